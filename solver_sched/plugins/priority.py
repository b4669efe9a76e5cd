"""Priority: a job of higher priority starts first, whatever the number of lower ones (formulation.md 1, ranks)."""

from __future__ import annotations

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.arrays import Ints, Problem


class Priority(Plugin):
    name = "priority"

    def rank(self, problem: Problem) -> Ints | None:
        """(J,) the job's priority, unless `enableJobOrder` is off."""
        return problem.job_priority if self.conf.on("jobOrder") else None

    def starving(self) -> bool:
        return self.conf.on("jobStarving")

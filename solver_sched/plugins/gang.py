"""Gang: a job starts with its whole minimum or not at all (formulation.md C3, C4).

The minimum counts bound, running and succeeded members (Volcano pkg/scheduler/api/job_info.go, ReadyTaskNum);
pods beyond it are growth. Role minimums bind while their sum is at most the job's minimum; the encoder leaves the
others out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver_sched.plugins.plugin import Plugin, Violation
from solver_sched.problem.arrays import PREEMPT, Ints, Plan, Problem
from solver_sched.problem.shares import waiting_for_backfill


class Gang(Plugin):
    name = "gang"

    def minimum(self, problem: Problem) -> Ints | None:
        """(J,) minMember, unless `enableJobReady` is off (then every job starts with one pod)."""
        return problem.job_min if self.conf.on("jobReady") else None

    def starving(self) -> bool:
        return self.conf.on("jobStarving")

    def ends_gangs(self) -> bool | None:
        return not self.conf.on("preemptable")

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        yield from self._ended(problem, plan)
        if not self.conf.on("jobReady"):
            return
        placed = plan.placed(problem)
        new = plan.of_jobs(problem)
        waiting = waiting_for_backfill(problem, self.policy.places(best_effort=True))
        for j in np.flatnonzero(new):
            have = int(problem.job_ready[j] + new[j] + waiting[j])
            if have < problem.job_min[j]:
                yield Violation(self.name, f"{have} of at least {problem.job_min[j]} members would run", job=int(j))
        for o, j in enumerate(problem.role_job):
            have = int(problem.role_ready[o] + placed[problem.set_role == o].sum())
            if new[j] and have < problem.role_min[o]:
                yield Violation(self.name, f"{have} of at least {problem.role_min[o]} members of a role", job=int(j))

    def _ended(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        """Gangs that end by preempt where only what stands above minimums may go (formulation.md C11)."""
        if not self.conf.on("preemptable") or self.policy.on("drf", "preemptable"):
            return
        v = problem.victims
        gone = v.of_holders(plan.evicted(problem, PREEMPT))
        for h in np.flatnonzero((gone == v.running) & (v.minimum > 0) & ~v.broken).tolist():
            message = f"a gang of {v.running[h]} is preempted whole, and only surplus may be"
            yield Violation(self.name, message, queue=int(v.queue[h]), holder=h)

"""Cool-down protection: a pod that has just started is left alone for a while (formulation.md 8).

Volcano pkg/scheduler/plugins/cdp/cdp.go: the time is that of the label or annotation `volcano.sh/cooldown-time` of the
pod, which has no default there; here the argument gives one for all pods.
"""

from __future__ import annotations

from collections.abc import Iterator

from solver_sched.plugins.plugin import Plugin, Violation
from solver_sched.problem.arrays import Bools, Ints, Plan, Problem


class Cdp(Plugin):
    name = "cdp"

    def spares(self, problem: Problem) -> Bools | None:
        """(V,) pods that run for less than their cool-down."""
        return problem.victims.seconds < self.cooldown(problem)

    def cooldown(self, problem: Problem) -> Ints:
        """(V,) seconds that a pod must have run."""
        return problem.victims.cooldown.clip(min=int(self.conf.seconds("cooldown-time", "0s")))

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        v, least = problem.victims, int(self.conf.seconds("cooldown-time", "0s"))
        for victim, pods in zip(plan.victim.tolist(), plan.out.tolist(), strict=True):
            wanted = max(least, int(v.cooldown[victim]))
            if v.seconds[victim] < wanted:
                message = f"{pods} pods go that run for {v.seconds[victim]} s of a cool-down of {wanted} s"
                yield Violation(self.name, message, node=int(v.node[victim]))

"""Cool-down protection: a pod that has just started is left alone for a while (formulation.md 8).

Volcano pkg/scheduler/plugins/cdp/cdp.go: the time is that of the label or annotation `volcano.sh/cooldown-time` of the
pod, which has no default there; here the argument gives one for all pods.
"""

from __future__ import annotations

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.arrays import Bools, Problem


class Cdp(Plugin):
    name = "cdp"

    def spares(self, problem: Problem) -> Bools | None:
        """(V,) pods that run for less than their cool-down."""
        cooldown = problem.victims.cooldown.clip(min=int(self.conf.seconds("cooldown-time", "0s")))
        return problem.victims.seconds < cooldown

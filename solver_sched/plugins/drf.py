"""Dominant resource fairness between the jobs of a queue: room beyond the minimums goes to the job that has least of
its most wanted resource (formulation.md O4, O7).

kube-batch and Volcano hand out one pod at a time to the job with the smallest share. Here the worth of a growth pod
falls with the share its job already has, in eight bands that halve, which keeps the objective linear and one level.
"""

from __future__ import annotations

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.arrays import Problem

BANDS = 8


def band_weight(position: int, reach: int) -> int:
    """Weight of a growth pod whose job stands at `position`; `reach`: the largest position of any job of its queue."""
    return 1 << (BANDS - 1 - min(BANDS - 1, BANDS * position // (1 + reach)))


def band_run(position: int, step: int, reach: int) -> int | None:
    """Steps until the weight at the position is another one; None = never."""
    band = BANDS * position // (1 + reach)
    return -(-((band + 1) * (1 + reach) - BANDS * position) // (BANDS * step)) if band < BANDS - 1 else None


class Drf(Plugin):
    name = "drf"

    def ends_gangs(self) -> bool | None:
        """Volcano asks drf, in a later tier, where gang spares everybody (framework/session_plugins.go)."""
        return True if self.conf.on("preemptable") else None

    def takes_surplus_of_equals(self) -> bool:
        return self.conf.on("preemptable")

    def share_bands(self, problem: Problem) -> bool:
        return self.conf.on("jobOrder")

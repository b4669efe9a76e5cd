"""Conformance: what keeps the cluster alive never makes room (formulation.md 8).

Volcano pkg/scheduler/plugins/conformance/conformance.go: namespace kube-system and the two system priority classes.
"""

from __future__ import annotations

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.arrays import Bools, Problem


class Conformance(Plugin):
    name = "conformance"

    def spares(self, problem: Problem) -> Bools | None:
        """(V,) pods of the system."""
        return problem.victims.system

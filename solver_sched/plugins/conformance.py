"""Conformance: what keeps the cluster alive never makes room (formulation.md 8).

Volcano pkg/scheduler/plugins/conformance/conformance.go: namespace kube-system and the two system priority classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from solver_sched.plugins.plugin import Plugin, Violation
from solver_sched.problem.arrays import Bools, Plan, Problem


class Conformance(Plugin):
    name = "conformance"

    def spares(self, problem: Problem) -> Bools | None:
        """(V,) pods of the system."""
        return problem.victims.system

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        for victim, pods in zip(plan.victim.tolist(), plan.out.tolist(), strict=True):
            if problem.victims.system[victim]:
                node = int(problem.victims.node[victim])
                yield Violation(self.name, f"{pods} pods of the system go", node=node)

"""Predicates: which node may take which pod, and which pods may stand together (formulation.md C9).

The facts are those of kube-scheduler's filters, the switches `predicate.*Enable` are Volcano's
(pkg/scheduler/plugins/predicates/predicates.go). Cordoned and unready nodes are refused whatever the switches say.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver_sched.plugins.plugin import Plugin, Violation
from solver_sched.problem.arrays import Bools, DomainRule, Plan, Problem
from solver_sched.problem.domain_rules import broken

SWITCHES = {
    "NodeAffinity": ("NodeAffinity",),
    "Ports": ("NodePorts",),
    "Taints": ("TaintToleration",),
    "InterPodAffinity": ("PodAffinity",),
    "TopologySpread": ("PodTopologySpread",),
    "Volumes": ("VolumeZone", "VolumeBinding"),
}
"""Predicate code -> the switches that keep it on; a code that is not listed is always on."""


class Predicates(Plugin):
    name = "predicates"

    def enabled(self, code: str) -> bool:
        """Whether the predicate applies: one of its switches is on."""
        switches = SWITCHES.get(code, ())
        return self.conf.on("predicate") and (
            not switches or any(self.conf.boolean(f"predicate.{switch}Enable", True) for switch in switches)
        )

    def applies(self, rule: DomainRule) -> bool:
        """Whether a domain rule is on; its source begins with the code of its predicate."""
        return super().applies(rule) and self.enabled(rule.source.partition(":")[0])

    def forbidden(self, problem: Problem) -> dict[str, Bools]:
        return {code: mask for code, mask in problem.masks.items() if self.enabled(code)}

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        """Pods on nodes that a predicate refuses, and domain rules that the end state breaks."""
        for code, mask in problem.masks.items():
            if not self.enabled(code):
                continue
            wrong = mask[problem.set_shape[plan.pod_set], problem.node_kind[plan.node]]
            for row in np.flatnonzero(wrong & (plan.count > 0)).tolist():
                pod_set, node, pods = int(plan.pod_set[row]), int(plan.node[row]), int(plan.count[row])
                text = f"{code}: {pods} pods of pod set {pod_set} on node {node}, which refuses them"
                yield Violation(self.name, text, job=int(problem.set_job[pod_set]), node=node)
        mine = [rule for rule in problem.domain_rules if self.applies(rule)]
        for _, message in broken(mine, plan.on_nodes(problem)):
            yield Violation(self.name, message)

"""Nodeorder: which of the nodes that would do, by kube-batch's and Volcano's weights (formulation.md O11).

Least and most requested and balanced use judge the node's load; preferred node affinity, preferred pod affinity and
PreferNoSchedule taints do not depend on it (Volcano pkg/scheduler/plugins/nodeorder/nodeorder.go).
"""

from __future__ import annotations

import numpy as np

from solver_sched.plugins.plugin import NodeScores, Plugin
from solver_sched.problem.arrays import Problem

SOFT_WEIGHTS = {"nodeaffinity": 2, "podaffinity": 2, "tainttoleration": 3}
"""Volcano's defaults; kube-batch weighs both affinities 1 and knows no soft taints."""


class NodeOrder(Plugin):
    name = "nodeorder"

    def scores(self, problem: Problem) -> NodeScores | None:
        if not self.conf.on("nodeOrder"):
            return None
        static = np.zeros((len(problem.request), problem.kinds), np.int64)
        for name, weight in SOFT_WEIGHTS.items():
            if name in problem.soft:
                static += self.conf.integer(f"{name}.weight", weight) * problem.soft[name]
        return NodeScores(
            static,
            least=self.conf.integer("leastrequested.weight", 1),
            most=self.conf.integer("mostrequested.weight", 0),
            balanced=self.conf.integer("balancedresource.weight", 1),
        )

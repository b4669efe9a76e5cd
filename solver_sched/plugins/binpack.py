"""Binpack: the fuller node first, so that whole nodes and whole GPUs stay free (formulation.md O11).

Score of a node = 100 x weight x weighted mean, over the requested resources that have a weight, of
(used + request) / allocatable (Volcano pkg/scheduler/plugins/binpack/binpack.go, BinPackingScore).
"""

from __future__ import annotations

import numpy as np

from solver_sched.plugins.plugin import NodeScores, Plugin
from solver_sched.problem.arrays import Problem


class Binpack(Plugin):
    name = "binpack"

    def scores(self, problem: Problem) -> NodeScores | None:
        """Resource rows cannot be named here, so the weights are looked up in the order of `problem.resources`."""
        weight = self.conf.integer("binpack.weight", 1)
        if not self.conf.on("nodeOrder") or weight <= 0:
            return None
        named = {name.strip() for name in self.conf.string("binpack.resources", "").split(",") if name.strip()}
        per_resource = np.zeros(len(problem.total), np.int64)
        for r, name in enumerate(problem.resources):
            if name in ("cpu", "memory"):
                per_resource[r] = max(0, self.conf.integer(f"binpack.{name}", 1))
            elif name in named:
                per_resource[r] = max(0, self.conf.integer(f"binpack.resources.{name}", 1))
        static = np.zeros((len(problem.request), problem.kinds), np.int64)
        return NodeScores(static, binpack=weight, binpack_shares=per_resource)

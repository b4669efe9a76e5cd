"""Which predicate removes how many nodes, per shape."""

from __future__ import annotations

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Problem


class Removal:
    """`nodes`: all there are. `eligible` (S,): nodes that none removes and an action may use."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.nodes = len(problem.node_kind)
        kinds = rules.forbidden.shape[1]
        size = np.bincount(problem.node_kind, minlength=kinds).astype(np.int64)
        self.eligible: list[int] = (~rules.forbidden @ size).tolist()
        self._each = {code: (mask @ size).tolist() for code, mask in rules.forbidden_by.items()}
        self._once: dict[str, list[int]] = {}
        seen = np.zeros_like(rules.forbidden)
        for code, mask in rules.forbidden_by.items():
            self._once[code] = ((mask & ~seen) @ size).tolist()
            seen |= mask

    def once(self, s: int) -> dict[str, int]:
        """Predicate -> nodes, each node counted under the first predicate that removes it."""
        return {code: removed[s] for code, removed in self._once.items() if removed[s]}

    def each(self, s: int) -> dict[str, int]:
        """Predicate -> all nodes that it removes."""
        return {code: removed[s] for code, removed in self._each.items() if removed[s]}

    def text(self, s: int) -> str:
        """`31 NodeAffinity, 9 Taints`, most first."""
        by_number = sorted(self.once(s).items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{removed} {code}" for code, removed in by_number) or "all by actions"

"""Rearranging by hand: from one packing of a whole cluster to another of other totals, without a solver.

Two solutions that follow each other differ in a few jobs, and what a class cannot hold often fits into another one. A
packing found like this is as exact as any; finding none proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver_sched.model.packing import Packing, Packings, held, room_for
from solver_sched.model.placement import Placement
from solver_sched.problem.arrays import Ints


class Stock:
    """The nodes of all classes, in groups that hold the same pods, `packings` at first.

    Only for clusters in which each node by itself says what it may hold.
    """

    def __init__(self, placement: Placement, packings: Packings) -> None:
        self._placement = placement
        self._class: list[int] = []
        self._nodes: list[int] = []
        self._pattern: list[Ints] = []
        self._free: list[Ints] = []
        problem = placement.problem
        self._largest = np.maximum(problem.class_free.max(axis=0, initial=1), 1)
        for c, shapes in placement.of_class.items():
            packing = packings[c][1] if c in packings else []
            empty = int(problem.class_size[c]) - sum(nodes for _, nodes in packing)
            for pattern, nodes in (*packing, (np.zeros(len(shapes), np.int64), empty)):
                if nodes:
                    # shapes that the class got since have no pod there
                    self._add(c, np.pad(pattern, (0, len(shapes) - len(pattern))), nodes)

    def reach(self, pods: Sequence[int]) -> bool:
        """Make it hold exactly these pods per shape; False: no place was found for all of them."""
        missing = np.array(pods, np.int64)
        for c, pattern, nodes in zip(self._class, self._pattern, self._nodes, strict=True):
            missing[self._placement.of_class[c]] -= pattern * nodes
        for s in np.flatnonzero(missing < 0).tolist():
            self._take(s, -int(missing[s]))
        share = (self._placement.problem.request / self._largest).max(axis=1)
        order = sorted(np.flatnonzero(missing > 0).tolist(), key=lambda s: (-float(share[s]), s))
        return all(self._place(s, int(missing[s])) for s in order)

    def packings(self) -> Packings:
        """What stands where, of classes that hold anything."""
        groups: dict[int, dict[bytes, tuple[Ints, int]]] = {}
        for c, nodes, pattern in zip(self._class, self._nodes, self._pattern, strict=True):
            if nodes and pattern.any():
                same = groups.setdefault(c, {})
                _, before = same.get(pattern.tobytes(), (pattern, 0))
                same[pattern.tobytes()] = (pattern, before + nodes)
        out: Packings = {}
        for c, of in groups.items():
            packing: Packing = list(of.values())
            out[c] = (held(packing, len(packing[0][0])).tolist(), packing)
        return out

    def _take(self, s: int, left: int) -> None:
        """Remove `left` pods of a shape, from nodes with the most room first: they serve others best when empty."""
        while left:
            with_it = [
                g for g, c in enumerate(self._class) if self._nodes[g] and self._pods(g, s, self._placement.of_class[c])
            ]
            g = max(with_it, key=lambda g: float((self._free[g] / self._largest).sum()))
            left -= self._change(g, s, -1, left)

    def _place(self, s: int, left: int) -> bool:
        """Stand `left` more pods of a shape, each where the least room is left beside it; whether all found a place."""
        request = self._placement.problem.request[s]
        asked = request > 0
        while left:
            free = np.array(self._free).reshape(-1, len(request)) - request
            fits = (self._placement.limit[s, np.array(self._class, np.int64)] > 0) & (free[:, asked] >= 0).all(axis=1)
            fits &= np.array(self._nodes) > 0
            order = np.flatnonzero(fits)[np.argsort((free / self._largest).sum(axis=1)[fits], kind="stable")]
            g = next((g for g in order.tolist() if self._holds(g, s)), None)
            if g is None:
                return False
            left -= self._change(g, s, 1, left)
        return True

    def _pods(self, g: int, s: int, shapes: Sequence[int]) -> int:
        return int(self._pattern[g][shapes.index(s)]) if s in shapes else 0

    def _holds(self, g: int, s: int) -> bool:
        c = self._class[g]
        return room_for(self._placement.bin(c)[0], self._placement.of_class[c].index(s), self._pattern[g]) > 0

    def _change(self, g: int, s: int, pods: int, most: int) -> int:
        """One pod more or less on nodes of a group, `most` of them at most; on how many."""
        c, nodes = self._class[g], min(most, self._nodes[g])
        pattern = self._pattern[g].copy()
        pattern[self._placement.of_class[c].index(s)] += pods
        self._nodes[g] -= nodes
        self._add(c, pattern, nodes)
        return nodes

    def _add(self, c: int, pattern: Ints, nodes: int) -> None:
        problem = self._placement.problem
        self._class.append(c)
        self._pattern.append(pattern)
        self._nodes.append(nodes)
        self._free.append(problem.class_free[c] - pattern @ problem.request[self._placement.of_class[c]])

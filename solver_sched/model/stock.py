"""Rearranging by hand: from one packing of a whole cluster to another of other totals, without a solver.

Two solutions that follow each other differ in a few jobs, and what a class cannot hold often fits into another one. A
packing found like this is as exact as any; finding none proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver_sched.model.packing import Packing, Packings, held, room_for
from solver_sched.model.placement import Placement
from solver_sched.problem.arrays import Bools, Ints

TRIES, SWAPS = 8, 200
"""Groups of nodes that are looked at for a swap, per shape that would have to go; swaps that are tried in all."""


class Stock:
    """The nodes of all classes, in groups that hold the same pods, `packings` at first.

    Only for clusters in which each node by itself says what it may hold. Per group g: `_class`, `_nodes` in it,
    `_count` (S,) pods of each shape on a node, `_free` (R,) room left on it; rows beyond `_groups` are spare.
    """

    def __init__(self, placement: Placement, packings: Packings) -> None:
        self._placement = placement
        problem = placement.problem
        shapes, resources = problem.request.shape
        self._groups, self._swaps = 0, SWAPS
        self._class, self._nodes = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._count, self._free = np.zeros((0, shapes), np.int64), np.zeros((0, resources), np.int64)
        self._largest = np.maximum(problem.class_free.max(axis=0, initial=1), 1)
        self._share = (problem.request / self._largest).max(axis=1)
        for c, present in placement.of_class.items():
            packing = packings[c][1] if c in packings else []
            empty = int(problem.class_size[c]) - sum(nodes for _, nodes in packing)
            for pattern, nodes in (*packing, (np.zeros(0, np.int64), empty)):
                if nodes:
                    count = np.zeros(shapes, np.int64)
                    count[present[: len(pattern)]] = pattern  # shapes that the class got since have no pod there
                    self._add(c, count, nodes)

    def reach(self, pods: Sequence[int]) -> bool:
        """Make it hold exactly these pods per shape; False: no place was found for all of them."""
        n = self._groups
        missing = np.array(pods, np.int64) - self._nodes[:n] @ self._count[:n]
        for s in np.flatnonzero(missing < 0).tolist():
            self._take(s, -int(missing[s]))
        order = sorted(np.flatnonzero(missing > 0).tolist(), key=lambda s: (-float(self._share[s]), s))
        return all(self._place(s, int(missing[s])) for s in order)

    def packings(self) -> Packings:
        """What stands where, of classes that hold anything."""
        groups: dict[int, dict[bytes, tuple[Ints, int]]] = {}
        for g in range(self._groups):
            c, nodes, count = int(self._class[g]), int(self._nodes[g]), self._count[g]
            if nodes and count.any():
                same = groups.setdefault(c, {})
                pattern = count[self._placement.of_class[c]]
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
            n = self._groups
            with_it = np.flatnonzero((self._nodes[:n] > 0) & (self._count[:n, s] > 0))
            g = with_it[(self._free[with_it] / self._largest).sum(axis=1).argmax()]
            left -= self._change(int(g), s, -1, left)

    def _place(self, s: int, left: int) -> bool:
        """Stand `left` more pods of a shape, where there is room or others make it; whether all found a place."""
        while left:
            stood = self._stand(s, left)
            if not stood and not self._swap(s):
                return False
            left -= stood or 1
        return True

    def _stand(self, s: int, most: int) -> int:
        """Pods of a shape, one each on nodes of the group where the least room is left beside it; how many."""
        request = self._placement.problem.request[s]
        asked = request > 0
        able = np.flatnonzero(self._may_hold(s) & (self._free[: self._groups, asked] >= request[asked]).all(axis=1))
        beside = ((self._free[able] - request) / self._largest).sum(axis=1)
        order = able[np.argsort(beside, kind="stable")].tolist()
        g = next((g for g in order if self._holds(int(self._class[g]), s, self._count[g])), None)
        return 0 if g is None else self._change(g, s, 1, most)

    def _swap(self, s: int) -> bool:
        """Stand one pod of a shape where pods of another one leave, for which there is room elsewhere."""
        request, n = self._placement.problem.request, self._groups
        may, counts = self._may_hold(s), self._count[:n]
        short = np.maximum(request[s] - self._free[:n], 0)
        for t in sorted(np.flatnonzero(counts[may].any(axis=0)).tolist(), key=lambda t: (float(self._share[t]), t)):
            gives = request[t] > 0
            if t == s or not gives.any():
                continue
            going = np.maximum(1, (-(-short[:, gives] // request[t][gives])).max(axis=1))
            able = np.flatnonzero(may & (going <= counts[:, t]) & (short[:, ~gives] == 0).all(axis=1))
            for g in able[np.argsort(going[able], kind="stable")][:TRIES].tolist():
                if not self._swaps:
                    return False
                self._swaps -= 1
                if self._swapped(g, s, t, int(going[g])):
                    return True
        return False

    def _swapped(self, g: int, s: int, t: int, going: int) -> bool:
        """On one node of a group, a pod of shape s takes the place of `going` pods of t, if these find another."""
        count = self._count[g].copy()
        count[t] -= going
        if not self._holds(int(self._class[g]), s, count):
            return False
        count[s] += 1
        groups, nodes = self._groups, self._nodes[: self._groups].copy()
        self._nodes[g] -= 1
        self._add(int(self._class[g]), count, 1)
        while going and (stood := self._stand(t, going)):
            going -= stood
        if going:
            self._groups, self._nodes[:groups] = groups, nodes
        return not going

    def _may_hold(self, s: int) -> Bools:
        """(G,) groups with nodes, of classes that may hold the shape."""
        n = self._groups
        may: Bools = (self._placement.limit[s, self._class[:n]] > 0) & (self._nodes[:n] > 0)
        return may

    def _holds(self, c: int, s: int, count: Ints) -> bool:
        """Whether a node of a class holds one more pod of a shape beside `count`."""
        shapes = self._placement.of_class[c]
        return room_for(self._placement.bin(c)[0], shapes.index(s), count[shapes]) > 0

    def _change(self, g: int, s: int, pods: int, most: int) -> int:
        """One pod more or less on nodes of a group, `most` of them at most; on how many."""
        nodes = min(most, int(self._nodes[g]))
        count = self._count[g].copy()
        count[s] += pods
        self._nodes[g] -= nodes
        self._add(int(self._class[g]), count, nodes)
        return nodes

    def _add(self, c: int, count: Ints, nodes: int) -> None:
        problem, g = self._placement.problem, self._groups
        if g == len(self._nodes):
            for name in ("_class", "_nodes", "_count", "_free"):
                rows = getattr(self, name)
                setattr(self, name, np.concatenate([rows, np.zeros((max(64, len(rows)), *rows.shape[1:]), np.int64)]))
        self._class[g], self._nodes[g], self._count[g] = c, nodes, count
        self._free[g] = problem.class_free[c] - count @ problem.request
        self._groups += 1

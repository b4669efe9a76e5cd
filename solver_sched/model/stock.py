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

TRIES = 8
"""Groups of nodes that are looked at for a swap, per shape that would have to go."""


class Stock:
    """The nodes of all classes, in groups that hold the same pods, `packings` at first.

    Only for clusters in which each node by itself says what it may hold. Per group g: `_class`, `_nodes` in it,
    `_count` (S,) pods of each shape on a node, `_free` (R,) room left on it.
    """

    def __init__(self, placement: Placement, packings: Packings) -> None:
        self._placement = placement
        self._class: list[int] = []
        self._nodes: list[int] = []
        self._count: list[Ints] = []
        self._free: list[Ints] = []
        problem = placement.problem
        self._largest = np.maximum(problem.class_free.max(axis=0, initial=1), 1)
        self._share = (problem.request / self._largest).max(axis=1)
        for c, shapes in placement.of_class.items():
            packing = packings[c][1] if c in packings else []
            empty = int(problem.class_size[c]) - sum(nodes for _, nodes in packing)
            for pattern, nodes in (*packing, (np.zeros(0, np.int64), empty)):
                if nodes:
                    count = np.zeros(len(problem.request), np.int64)
                    count[shapes[: len(pattern)]] = pattern  # shapes that the class got since have no pod there
                    self._add(c, count, nodes)

    def reach(self, pods: Sequence[int]) -> bool:
        """Make it hold exactly these pods per shape; False: no place was found for all of them."""
        missing = np.array(pods, np.int64) - np.array(self._nodes, np.int64) @ self._counts()
        for s in np.flatnonzero(missing < 0).tolist():
            self._take(s, -int(missing[s]))
        order = sorted(np.flatnonzero(missing > 0).tolist(), key=lambda s: (-float(self._share[s]), s))
        return all(self._place(s, int(missing[s])) for s in order)

    def packings(self) -> Packings:
        """What stands where, of classes that hold anything."""
        groups: dict[int, dict[bytes, tuple[Ints, int]]] = {}
        for c, nodes, count in zip(self._class, self._nodes, self._count, strict=True):
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
            with_it = [g for g, count in enumerate(self._count) if self._nodes[g] and count[s]]
            g = max(with_it, key=lambda g: float((self._free[g] / self._largest).sum()))
            left -= self._change(g, s, -1, left)

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
        free = np.array(self._free).reshape(-1, len(request)) - request
        fits = self._may_hold(s) & (free[:, asked] >= 0).all(axis=1)
        order = np.flatnonzero(fits)[np.argsort((free / self._largest).sum(axis=1)[fits], kind="stable")]
        g = next((g for g in order.tolist() if self._holds(self._class[g], s, self._count[g])), None)
        return 0 if g is None else self._change(g, s, 1, most)

    def _swap(self, s: int) -> bool:
        """Stand one pod of a shape where pods of another one leave, for which there is room elsewhere."""
        request = self._placement.problem.request
        short = np.maximum(request[s] - np.array(self._free).reshape(-1, request.shape[1]), 0)
        may, counts = self._may_hold(s), self._counts()
        for t in sorted(np.flatnonzero(counts[may].any(axis=0)).tolist(), key=lambda t: (float(self._share[t]), t)):
            gives = request[t] > 0
            if t == s or not gives.any():
                continue
            going = np.maximum(1, (-(-short[:, gives] // request[t][gives])).max(axis=1))
            able = np.flatnonzero(may & (going <= counts[:, t]) & (short[:, ~gives] == 0).all(axis=1))
            for g in able[np.argsort(going[able], kind="stable")][:TRIES].tolist():
                if self._swapped(g, s, t, int(going[g])):
                    return True
        return False

    def _swapped(self, g: int, s: int, t: int, going: int) -> bool:
        """On one node of a group, a pod of shape s takes the place of `going` pods of t, if these find another."""
        count = self._count[g].copy()
        count[t] -= going
        if not self._holds(self._class[g], s, count):
            return False
        count[s] += 1
        groups, nodes = len(self._class), self._nodes.copy()
        self._nodes[g] -= 1
        self._add(self._class[g], count, 1)
        while going and (stood := self._stand(t, going)):
            going -= stood
        if going:
            self._nodes = nodes
            for rows in (self._class, self._count, self._free):
                del rows[groups:]
        return not going

    def _counts(self) -> Ints:
        """(G, S) pods of each shape on a node of each group."""
        counts: Ints = np.array(self._count, np.int64).reshape(len(self._count), len(self._share))
        return counts

    def _may_hold(self, s: int) -> Bools:
        """(G,) groups with nodes, of classes that may hold the shape."""
        may: Bools = (self._placement.limit[s, np.array(self._class, np.int64)] > 0) & (np.array(self._nodes) > 0)
        return may

    def _holds(self, c: int, s: int, count: Ints) -> bool:
        """Whether a node of a class holds one more pod of a shape beside `count`."""
        shapes = self._placement.of_class[c]
        return room_for(self._placement.bin(c)[0], shapes.index(s), count[shapes]) > 0

    def _change(self, g: int, s: int, pods: int, most: int) -> int:
        """One pod more or less on nodes of a group, `most` of them at most; on how many."""
        nodes = min(most, self._nodes[g])
        count = self._count[g].copy()
        count[s] += pods
        self._nodes[g] -= nodes
        self._add(self._class[g], count, nodes)
        return nodes

    def _add(self, c: int, count: Ints, nodes: int) -> None:
        problem = self._placement.problem
        self._class.append(c)
        self._nodes.append(nodes)
        self._count.append(count)
        self._free.append(problem.class_free[c] - count @ problem.request)

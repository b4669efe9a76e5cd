"""Requests as rows of numbers, one for each object of equal needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solver_sched.cluster.objects import Needs, Pod
from solver_sched.problem.arrays import Index, Ints
from solver_sched.snapshot import Snapshot

SUM_LIMIT = 2**63 - 1
MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, odd (Knuth, The Art of Computer Programming 3, 6.4: multiplicative hashing)."""
DENSE = 64
"""Cells of a table of counts per pod up to which such a table is the faster way to sum."""


def distinct(rows: Ints) -> tuple[Ints, Ints]:
    """As `np.unique(rows, axis=0)` with `return_index` and `return_inverse`: of the distinct rows of (M, K), in
    lexicographic order, the first of each; and for each row which of them it is (M,).
    """
    first, inverse = alike(rows)
    order = np.lexsort(rows[first].T[::-1]) if rows.shape[1] else np.arange(len(first))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[inverse]


def alike(rows: Ints) -> tuple[Ints, Ints]:
    """`distinct` in any order.

    Sorting whole rows is slow. They are told apart by a sum modulo 2^64 instead; where that mixes up two, as seldom as
    it may be, rows are sorted after all.
    """
    if not len(rows) or not rows.shape[1]:
        return np.arange(min(len(rows), 1)), np.zeros(len(rows), np.int64)
    rows = np.ascontiguousarray(rows, np.int64)
    mixed = rows.view(np.uint64) * MIX
    mixed ^= mixed >> np.uint64(32)
    _, first, inverse = np.unique(mixed @ _odd(rows.shape[1]), return_index=True, return_inverse=True)
    if not (rows[first[inverse]] == rows).all():
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)
    return first, inverse


@lru_cache(maxsize=64)
def _odd(number: int) -> NDArray[np.uint64]:
    """Odd multipliers, one for each column: powers of one, so that equal rows in other columns differ."""
    return MIX ** np.arange(1, 2 * number, 2, dtype=np.uint64)


def requests(snapshot: Snapshot, index: Index, pods: Sequence[Pod]) -> Ints:
    """(len(pods), R) what each pod holds, in the numbers of the problem."""
    vector = Vectors({name: r for r, name in enumerate(index.resources)}, largest_amount(snapshot))
    return vector.of_all(pods)


def largest_amount(snapshot: Snapshot) -> int:
    """Amounts near 2^63 are legal quantities. Where the sum of all would leave 64 bits, each is cut down to its part
    of what fits; what is cut still fits on no node but one that is cut as well.
    """
    amounts = [amount for node in snapshot.nodes for amount in node.allocatable.values()]
    needs = [pod.needs for pod in snapshot.pods]
    distinct = {id(one): one for one in needs}
    total = sum(amounts)
    for row, pods in Counter(map(id, needs)).items():
        total += pods * max((amount for _, amount in distinct[row].request), default=0)
    return SUM_LIMIT if total < SUM_LIMIT else SUM_LIMIT // (1 + len(amounts) + len(needs))


class Vectors:
    """Request vectors per needs object, computed once: equal needs are one object (reader's promise)."""

    def __init__(self, column: Mapping[str, int], most: int) -> None:
        self.column, self.most = column, most
        self._row: dict[int, int] = {}
        self._needs: list[Needs] = []  # kept, so that none of their ids can come to be another's
        self._vectors: list[Ints] = []
        self._all = np.zeros((0, len(column)), np.int64)

    def __len__(self) -> int:
        return len(self._vectors)

    def row(self, needs: Needs) -> int:
        """Row of the request in `all`."""
        row = self._row.get(id(needs))
        if row is None:
            vector = np.zeros(len(self.column), np.int64)
            for name, amount in needs.request:
                vector[self.column[name]] = min(amount, self.most)
            row = self._row[id(needs)] = len(self._vectors)
            self._needs.append(needs)
            self._vectors.append(vector)
        return row

    @property
    def all(self) -> Ints:
        """(rows, R) the vectors so far."""
        if len(self._all) < len(self._vectors):
            self._all = np.array(self._vectors, np.int64)
        return self._all

    def of(self, pod: Pod) -> Ints:
        """(R,) request of the pod."""
        return self._vectors[self.row(pod.needs)]

    def of_all(self, pods: Sequence[Pod]) -> Ints:
        """(len(pods), R) request of each."""
        rows = self.rows(pods)
        return self.all[rows] if rows else np.zeros((0, len(self.column)), np.int64)

    def rows(self, pods: Sequence[Pod]) -> list[int]:
        """The row of each pod."""
        known = self._row
        return [known[key] if (key := id(pod.needs)) in known else self.row(pod.needs) for pod in pods]

    def add(self, out: Ints, at: Sequence[int], rows: Sequence[int]) -> None:
        """Add the request of each of the `rows` to the row of `out` (M, R) that `at` names for it."""
        if not rows:
            return
        width = len(self._vectors)
        if len(out) * width > DENSE * len(rows):
            np.add.at(out, np.array(at, np.int64), self.all[np.array(rows, np.int64)])
            return
        counts = np.bincount(np.array(at, np.int64) * width + rows, minlength=len(out) * width)
        out += counts.reshape(len(out), width) @ self.all

    def total(self, pods: Sequence[Pod]) -> Ints:
        """(R,) sum of the requests."""
        rows = self.rows(pods)
        if not rows:
            return np.zeros(len(self.column), np.int64)
        if rows.count(rows[0]) == len(rows):  # as of most jobs
            return self._vectors[rows[0]] * len(rows)
        out: Ints = self.all[rows].sum(axis=0)
        return out


class Wide:
    """Rows over some resources as rows over more."""

    def __init__(self, names: Sequence[str], column: Mapping[str, int]) -> None:
        self.column = column
        self._at = np.array([column[name] for name in names], np.int64)
        self._same = len(names) == len(column)

    def of(self, rows: Ints) -> Ints:
        """A copy, 0 in the other columns."""
        if self._same:
            return rows.copy()
        out = np.zeros((*rows.shape[:-1], len(self.column)), np.int64)
        out[..., self._at] = rows
        return out

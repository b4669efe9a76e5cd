"""Requests as rows of numbers, one for each object of equal needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from solver_sched.cluster.objects import Pod
from solver_sched.problem.arrays import Index, Ints
from solver_sched.snapshot import Snapshot

SUM_LIMIT = 2**63 - 1


def requests(snapshot: Snapshot, index: Index, pods: Sequence[Pod]) -> Ints:
    """(len(pods), R) what each pod holds, in the numbers of the problem."""
    vector = Vectors({name: r for r, name in enumerate(index.resources)}, largest_amount(snapshot))
    return np.array([vector.of(pod) for pod in pods], np.int64).reshape(-1, len(index.resources))


def largest_amount(snapshot: Snapshot) -> int:
    """Amounts near 2^63 are legal quantities. Where the sum of all would leave 64 bits, each is cut down to its part
    of what fits; what is cut still fits on no node but one that is cut as well.
    """
    amounts = [amount for node in snapshot.nodes for amount in node.allocatable.values()]
    seen: dict[int, int] = {}
    for pod in snapshot.pods:
        if id(pod.needs) not in seen:
            seen[id(pod.needs)] = max((amount for _, amount in pod.needs.request), default=0)
        amounts.append(seen[id(pod.needs)])
    return SUM_LIMIT if sum(amounts) < SUM_LIMIT else SUM_LIMIT // (1 + len(amounts))


class Vectors:
    """Request vectors per needs object, computed once: equal needs are one object (reader's promise)."""

    def __init__(self, column: Mapping[str, int], most: int) -> None:
        self.column, self.most = column, most
        self._row: dict[int, int] = {}
        self._vectors: list[Ints] = []

    def row(self, pod: Pod) -> int:
        """Row of the pod's request in `_vectors`."""
        key = id(pod.needs)
        row = self._row.get(key)
        if row is None:
            vector = np.zeros(len(self.column), np.int64)
            for name, amount in pod.needs.request:
                vector[self.column[name]] = min(amount, self.most)
            row = self._row[key] = len(self._vectors)
            self._vectors.append(vector)
        return row

    def of(self, pod: Pod) -> Ints:
        """(R,) request of the pod."""
        return self._vectors[self.row(pod)]

    def add(self, out: Ints, at: Iterable[int], pods: Sequence[Pod]) -> None:
        """Add the request of each pod to the row of `out` (M, R) that `at` names for it."""
        rows = np.fromiter((self.row(pod) for pod in pods), np.int64)
        if len(rows):
            np.add.at(out, np.fromiter(at, np.int64), np.array(self._vectors)[rows])

    def total(self, pods: Sequence[Pod]) -> Ints:
        """(R,) sum of the requests."""
        out: Ints = np.zeros((1, len(self.column)), np.int64)
        self.add(out, (0 for _ in pods), pods)
        return out.reshape(-1)

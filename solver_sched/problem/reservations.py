"""Room kept on nodes for a job that waits for it, as columns of the problem (formulation.md 10, C17).

A reservation and a resource make one more column, in which a node holds what the reservation leaves of the resource
there, and only pods ask that would still run when the reservation begins. C1 then keeps the room, for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from solver_sched.cluster.objects import Pod
from solver_sched.problem.arrays import RESERVED_PREFIX, Ints
from solver_sched.problem.runtimes import RunTimes
from solver_sched.snapshot import Snapshot

BY_HAND = 0
"""`Reservation.at` of a node that an annotation keeps for a group: it binds whatever would run there."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """`job`: group or lone pod it is for. `at`: when it begins, in seconds since the epoch. `nodes`: node -> pods of
    the job there, 0 = by hand. `left`: node -> resource -> what is left there for pods that end later. `ahead`: jobs
    that it does not bind, besides its own.
    """

    job: str
    at: int
    nodes: Mapping[str, int]
    left: Mapping[str, Mapping[str, int]]
    ahead: frozenset[str] = field(default=frozenset())

    @property
    def begins(self) -> str | None:
        """`at` as RFC 3339, None = by hand."""
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self.at else None

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(sorted({name for left in self.left.values() for name in left}))


def by_hand(snapshot: Snapshot) -> tuple[Reservation, ...]:
    """Nodes that an annotation keeps for a group with pending pods: all their slots, so nothing else starts there."""
    kept: dict[str, list[str]] = {}
    for node in snapshot.nodes:
        if node.reserved_for:
            kept.setdefault(node.reserved_for, []).append(node.name)
    if not kept:
        return ()
    waiting = {pod.group or pod.key for pod in snapshot.pods if pod.node is None and pod.phase in ("Pending", "")}
    return tuple(
        Reservation(job, BY_HAND, dict.fromkeys(nodes, 0), {node: {"pods": 0} for node in nodes})
        for job, nodes in sorted(kept.items())
        if job in waiting
    )


def bound_by(
    reserved: Sequence[Reservation], times: RunTimes, jobs: Sequence[str], pods: Sequence[Pod]
) -> list[tuple[int, ...]]:
    """Of each pod, the reservations that bind it, by row; nothing where there are none. `jobs`: whose the pods are."""
    if not reserved:
        return []
    out = []
    for job, pod in zip(jobs, pods, strict=True):
        end = times.now + times.of(pod)
        out.append(
            tuple(k for k, one in enumerate(reserved) if end > one.at and job != one.job and job not in one.ahead)
        )
    return out


def names(reserved: Sequence[Reservation]) -> tuple[str, ...]:
    """The columns that reservations add."""
    return tuple(f"{RESERVED_PREFIX}{k}/{name}" for k, one in enumerate(reserved) for name in one.resources)


def fill(
    reserved: Sequence[Reservation],
    bound: Sequence[tuple[int, ...]],
    column: Mapping[str, int],
    row: Mapping[str, int],
    request: Ints,
    alloc: Ints,
    free: Ints,
) -> None:
    """Write the columns of `names` into `request` (S, R), `alloc` and `free` (N, R). `bound`: per shape, what binds it;
    `column`, `row`: of a resource, of a node. A node that is not reserved has as much as it is large: no limit.
    """
    for k, one in enumerate(reserved):
        late = np.array([k in rows for rows in bound], bool)
        for name in one.resources:
            r, kept = column[name], column[f"{RESERVED_PREFIX}{k}/{name}"]
            request[:, kept] = np.where(late, request[:, r], 0)
            alloc[:, kept] = free[:, kept] = alloc[:, r]
            for node, left in one.left.items():
                if name in left and node in row:
                    free[row[node], kept] = min(left[name], int(alloc[row[node], r]))

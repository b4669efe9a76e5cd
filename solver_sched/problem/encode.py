"""Snapshot -> Problem: rows for what may be decided on now, sums for the rest, and a reason for what is held.

Classes are exact: two pods share a shape, two nodes a class only if no rule can tell them apart. Free room is cut down
to what pending shapes could use of it, so that nodes that differ only in useless room fall together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Pod, Queue
from solver_sched.problem import reservations
from solver_sched.problem.arrays import NO_LIMIT, RESERVED_PREFIX, Bools, Index, Ints, Problem
from solver_sched.problem.blocked import blocked
from solver_sched.problem.census import FIRST, Bunch, Census
from solver_sched.problem.domain_rules import class_columns
from solver_sched.problem.jobs import age_limit
from solver_sched.problem.placement import Placement, place
from solver_sched.problem.reservations import Reservation
from solver_sched.problem.vectors import SUM_LIMIT, Wide, distinct
from solver_sched.problem.victims import Rows, movable, victims
from solver_sched.snapshot import Snapshot


def encode(
    snapshot: Snapshot,
    refused: Mapping[str, tuple[str, str]] = {},
    *,
    reserved: Sequence[Reservation] = (),
    evicting: bool = False,
    moving: bool = False,
    grace: int = 60,
    classes: bool = True,
    census: Census | None = None,
) -> tuple[Problem, Index]:
    """The problem of one cycle and the names of its rows. Pure; equal arguments give equal problems.

    `refused`: group key -> (code, sentence) of groups that wait at the entrance, held like those that must wait.
    `reserved`: room to be kept, as more columns of R (formulation.md C17). `evicting`: list what running work may have
    to make room; else `victims` is empty. `moving`: and give those of it that may be placed again elsewhere a shape.
    `grace`: seconds for which a broken gang comes first, and after which the rest of it may go. `classes`: False
    leaves all nodes without class, where nobody solves. `census`: of the snapshot, where there is one.
    """
    census = Census(snapshot) if census is None else census
    known_nodes, queues, queue_row = census.nodes, census.queues, census.queue_row
    held: dict[str, tuple[str, str]] = {}
    for bunch in census.bunches:
        reason = census.held.get(bunch.job.key) or refused.get(bunch.job.key)
        if reason is not None:
            held[bunch.job.key] = reason

    waiting = [bunch for bunch in census.bunches if bunch.job.pending and bunch.job.key not in held]
    pieces = [bunch.singles if census.coupled else bunch.runs for bunch in waiting]
    candidates = [pod for of_job in pieces for pod, _ in of_job]
    owners = [bunch.job.key for bunch, of_job in zip(waiting, pieces, strict=True) for _ in of_job]
    residents = ((bunch.job.key, pod) for bunch in census.bunches for pod in bunch.job.resident)
    running = [(job, pod) for job, pod in residents if movable(pod)] if evicting and moving else []
    # a pod that moves starts anew: reservations bind it like one that waits
    placing = candidates + [pod for _, pod in running]
    bound = reservations.bound_by(reserved, census.times, owners + [job for job, _ in running], placing)
    on_node = census.on_node if census.coupled else []
    placement = place(snapshot.nodes, placing, on_node, snapshot, bound, census.table)
    shape_of = placement.shape_of.tolist()
    pending_shapes = 1 + max(shape_of[: len(candidates)], default=-1)
    pod_held = {candidates[row].key: why for row, why in placement.held.items() if row < len(candidates)}
    rows: list[Bunch] = []
    sets: list[_PodSet] = []
    begin = 0
    for bunch, piece in zip(waiting, pieces, strict=True):
        end = begin + len(piece)
        sets_of = _pod_sets(bunch.job.key, piece, shape_of[begin:end])
        begin = end
        sets += sets_of
        if sets_of:
            rows.append(bunch)
        else:
            reasons = (bunch.shut.get(pod.key) or pod_held.get(pod.key) for pod in bunch.job.pending)
            held[bunch.job.key] = next(reason for reason in reasons if reason is not None)

    resources = _resource_names(census, placement) + reservations.names(reserved)
    column = {name: r for r, name in enumerate(resources)}
    wide = Wide(census.names, column)
    nodes = _node_arrays(census, placement, wide)
    request = wide.of(census.vectors.of_all(placement.representative))
    for name, per_shape, _, _ in placement.extra:
        request[:, column[name]] = per_shape
    reservations.fill(reserved, placement.bound, column, known_nodes, request, nodes.alloc, nodes.free)

    job_row = {bunch.job.key: j for j, bunch in enumerate(rows)}
    units = _running_units(census)
    again = zip(running, shape_of[len(candidates) :], strict=True)
    movers = {pod.key: s for (_, pod), s in again if s >= 0 and placement.alone[s]}
    rows_of = Rows(known_nodes, queue_row, job_row, units.row, census.vectors, movers)
    jobs = [bunch.job for bunch in census.bunches] if evicting else []
    found = victims(jobs, snapshot.budgets, snapshot.now, rows_of, grace)
    v = found.rows
    v = replace(v, held=wide.of(v.held), minimum_held=wide.of(v.minimum_held), request=wide.of(v.request))
    if evicting and census.coupled:
        set_of = {pod: v for v, pods in enumerate(found.pods) for pod in pods}
        v = replace(v, blocks=blocked(snapshot, placement.representative, on_node, set_of, known_nodes))
        placement = placement.apart(np.unique(v.blocks[:, 1]))
    # room that reservations leave is used by what moves too
    reserved_columns = np.array([name.startswith(RESERVED_PREFIX) for name in resources])
    grain = np.where(reserved_columns, _grain(request), _grain(request[:pending_shapes]))
    demand = np.zeros(len(request), np.int64)
    for entry in sets if classes else ():
        demand[entry.shape] += len(entry.pods)
    node_class, class_size, class_kind, class_free = _node_classes(nodes, placement, request, grain, demand)

    roles = _roles(rows)
    now = snapshot.now
    problem = Problem(
        resources=resources,
        total=nodes.alloc.sum(axis=0),
        grain=grain,
        pods_row=column["pods"],
        node_alloc=nodes.alloc,
        node_free=nodes.free,
        node_releasing=nodes.releasing,
        node_kind=placement.node_kind.astype(np.int64),
        node_class=node_class,
        class_size=class_size,
        class_kind=class_kind,
        class_free=class_free,
        request=request,
        shape_best_effort=_bools(pod.needs.best_effort for pod in placement.representative),
        masks=placement.masks,
        soft=placement.soft,
        domain_rules=placement.rules,
        set_job=_ints(job_row[entry.job] for entry in sets),
        set_shape=_ints(entry.shape for entry in sets),
        set_role=_ints(roles.row.get((entry.job, entry.role), -1) for entry in sets),
        set_count=_ints(len(entry.pods) for entry in sets),
        set_priority=_ints(entry.priority for entry in sets),
        job_queue=_ints(queue_row[bunch.job.queue] for bunch in rows),
        job_priority=_ints(bunch.job.priority for bunch in rows),
        job_min=_ints(bunch.job.minimum for bunch in rows),
        job_ready=_ints(len(bunch.job.resident) + len(bunch.job.succeeded) for bunch in rows),
        job_created=_ints(bunch.job.created(now) for bunch in rows),
        job_age_limit=_ints(age_limit(bunch.job.group) for bunch in rows),
        job_held=wide.of(np.array([bunch.held for bunch in rows], np.int64).reshape(-1, len(census.names))),
        job_polite=_bools(bunch.polite for bunch in rows),
        job_promised=_bools(bunch.promised for bunch in rows),
        job_fresh=_bools(bunch.job.fresh(now, grace) for bunch in rows),
        role_job=_ints(job_row[job] for job, _ in roles.row),
        role_min=_ints(roles.minimum),
        role_ready=_ints(roles.ready),
        queue_weight=_ints(queues[name].weight for name in queue_row),
        queue_capability=_per_queue(queues, queue_row, column, "capability", int(NO_LIMIT)),
        queue_deserved=_per_queue(queues, queue_row, column, "deserved", -1),
        queue_guarantee=_per_queue(queues, queue_row, column, "guarantee", 0),
        queue_used=wide.of(census.queue_used),
        queue_priority=_ints(queues[name].priority for name in queue_row),
        queue_reclaimable=_bools(queues[name].reclaimable for name in queue_row),
        foreign=wide.of(census.foreign),
        unit_queue=units.queue,
        unit_priority=units.priority,
        unit_count=units.count,
        unit_request=wide.of(units.request),
        victims=v,
        now=now,
    )
    held.update({key: reason for key, reason in pod_held.items() if key not in held})
    for bunch in rows:
        held.update({key: reason for key, reason in bunch.shut.items() if key not in held})
    index = Index(
        resources=resources,
        nodes=census.node_names,
        jobs=tuple(job_row),
        queues=tuple(queue_row),
        roles=tuple(role for _, role in roles.row),
        set_pods=tuple(tuple(entry.pods) for entry in sets),
        holders=found.holders,
        victim_pods=found.pods,
        held=held,
        nominated=_nominated(rows, sets, known_nodes),
        members=census.members,
    )
    return problem, index


def _nominated(rows: Sequence[Bunch], sets: Sequence[_PodSet], nodes: Mapping[str, int]) -> dict[str, int]:
    """Node row by pod key."""
    pods = [(key, pod) for bunch in rows if bunch.promised for key, pod in zip(bunch.keys, bunch.open, strict=True)]
    rows_of = {key: nodes[pod.nominated] for key, pod in pods if pod.nominated is not None and pod.nominated in nodes}
    return {key: rows_of[key] for entry in sets for key in entry.pods if key in rows_of} if rows_of else {}


def _bools(values: Iterable[bool]) -> Bools:
    return np.fromiter(values, bool)


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _resource_names(census: Census, placement: Placement) -> tuple[str, ...]:
    """Those of the census, and attach limits, sorted in."""
    if not placement.extra:
        return census.names
    names = {*census.names, *(name for name, _, _, _ in placement.extra)}
    return FIRST + tuple(sorted(names - set(FIRST)))


class _NodeArrays(NamedTuple):
    alloc: Ints
    free: Ints
    releasing: Ints
    domains: Ints


def _node_arrays(census: Census, placement: Placement, wide: Wide) -> _NodeArrays:
    """Allocatable, free and being freed per node (N, R), and the domain columns that domain rules need (N, k)."""
    alloc, releasing = wide.of(census.alloc), wide.of(census.releasing)
    free = wide.of(census.alloc - census.used + census.releasing)
    for name, _, node_free, node_alloc in placement.extra:
        alloc[:, wide.column[name]] = node_alloc
        free[:, wide.column[name]] = node_free
    return _NodeArrays(alloc, free, releasing, class_columns(placement.rules, len(alloc)))


class _PodSet(NamedTuple):
    """`pods`: their keys."""

    job: str
    shape: int
    role: str
    priority: int
    pods: list[str]


def _pod_sets(job: str, pieces: Sequence[tuple[Pod, list[str]]], shape_of: Sequence[int]) -> list[_PodSet]:
    """Pending pods of a job by (shape, role, priority), in task order. `pieces`: one of equal pods, and their keys;
    `shape_of`: of each, -1 = held.
    """
    sets: dict[tuple[int, str, int], _PodSet] = {}
    for (pod, keys), shape in zip(pieces, shape_of, strict=True):
        if shape < 0:
            continue
        key = (shape, pod.role, pod.priority)
        if key not in sets:
            sets[key] = _PodSet(job, shape, pod.role, pod.priority, [])
        sets[key].pods.extend(keys)
    return sorted(sets.values(), key=lambda entry: -entry.priority)


class _Roles(NamedTuple):
    row: dict[tuple[str, str], int]
    minimum: list[int]
    ready: list[int]


def _roles(rows: Sequence[Bunch]) -> _Roles:
    out = _Roles({}, [], [])
    for job in (bunch.job for bunch in rows):
        for role, minimum in job.role_minimums.items():
            out.row[job.key, role] = len(out.row)
            out.minimum.append(minimum)
            out.ready.append(sum(pod.role == role for pod in job.resident + job.succeeded))
    return out


@dataclass(frozen=True, eq=False, slots=True)
class _Units:
    queue: Ints
    priority: Ints
    count: Ints
    request: Ints
    row: Mapping[tuple[int, int, bytes], int]


def _running_units(census: Census) -> _Units:
    rows = census.units
    return _Units(
        queue=_ints(key[0] for key in rows),
        priority=_ints(key[1] for key in rows),
        count=_ints(rows.values()),
        request=np.frombuffer(b"".join(key[2] for key in rows), np.int64).reshape(-1, len(census.names)),
        row={key: u for u, key in enumerate(rows)},
    )


def _per_queue(
    queues: Mapping[str, Queue], row: Mapping[str, int], column: Mapping[str, int], field: str, absent: int
) -> Ints:
    """(Q, R) of one resource list of every queue; `absent` where a queue does not name the resource."""
    out = np.full((len(row), len(column)), absent, np.int64)
    for name, q in row.items():
        for resource, amount in (getattr(queues[name], field) or {}).items():
            out[q, column[resource]] = min(amount, SUM_LIMIT // (1 + len(row)))
    return out


def _grain(request: Ints) -> Ints:
    """(R,) greatest common divisor of all requests per resource, 1 where nothing is asked."""
    return (
        np.maximum(1, np.gcd.reduce(request, axis=0, initial=0))
        if len(request)
        else np.ones(request.shape[1], np.int64)
    )


def _node_classes(
    nodes: _NodeArrays, placement: Placement, request: Ints, grain: Ints, demand: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Class of each node (N,), and per class size (C,), static kind (C,), useful free vector (C, R). `demand` (S,)."""
    asked = request[demand > 0]
    # where there is no room at all there is no useful one
    rows = np.flatnonzero(_fitting(np.maximum(nodes.free, 0), asked))
    useful = useful_free(nodes.free[rows], request, demand, grain)
    inside = _fitting(useful, asked)
    rows, useful = rows[inside], useful[inside]
    node_class = np.full(len(nodes.alloc), -1, np.int64)
    if not len(rows):
        return node_class, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, request.shape[1]), np.int64)
    key = np.column_stack([placement.node_kind[rows], useful, nodes.domains[rows]])
    first, inverse = distinct(key)
    node_class[rows] = inverse
    size = np.bincount(inverse, minlength=len(first))
    return node_class, size.astype(np.int64), placement.node_kind[rows][first].astype(np.int64), useful[first]


def _fitting(free: Ints, asked: Ints) -> Bools:
    """(N,) nodes with room for one of the requests (.., R)."""
    out = np.zeros(len(free), bool)
    for request in asked:
        out |= (free >= request).all(axis=1)
    return out


def useful_free(free: Ints, request: Ints, demand: Ints, grain: Ints) -> Ints:
    """(N, R) what pending shapes could use of the free room, in whole multiples of `grain`.

    A resource is cut at the demand of all pods together, and at what the shapes that ask for it could use before
    another resource that all of them ask for runs out. Cutting loses no plan: no set of pods that fits the node
    uses more.
    """
    out: Ints = np.maximum(free, 0)
    asked = request[demand > 0]
    if not len(asked):
        return np.zeros_like(out)
    for r, column in enumerate(request.T.tolist()):
        wanted = sum(amount * pods for amount, pods in zip(column, demand.tolist(), strict=True))
        out[:, r] = np.minimum(out[:, r], min(wanted, SUM_LIMIT))
    for r in range(request.shape[1]):
        users = asked[asked[:, r] > 0]
        for other in range(request.shape[1]):
            if other == r or not len(users) or (users[:, other] == 0).any():
                continue
            # the steepest user decides; Python ints, as bytes times bytes leave 64 bits
            rise, run = 0, 1
            for up, along in zip(users[:, r].tolist(), users[:, other].tolist(), strict=True):
                if up * run > rise * along:
                    rise, run = up, along
            most = int(out[:, other].max(initial=0))
            if most * rise < 2**62:
                cap = out[:, other] * rise // run
            else:
                cap = np.array([min(v * rise // run, 2**62) for v in out[:, other].tolist()], np.int64)
            out[:, r] = np.minimum(out[:, r], cap)
    lattice: Ints = out // grain * grain
    return lattice

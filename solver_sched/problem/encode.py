"""Snapshot -> Problem: rows for what may be decided on now, sums for the rest, and a reason for what is held.

Classes are exact: two pods share a shape, two nodes a class only if no rule can tell them apart. Free room is cut down
to what pending shapes could use of it, so that nodes that differ only in useless room fall together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Pod, Queue
from solver_sched.problem import reservations
from solver_sched.problem.arrays import NO_LIMIT, RESERVED_PREFIX, Index, Ints, Member, Problem
from solver_sched.problem.blocked import blocked
from solver_sched.problem.domain_rules import class_columns
from solver_sched.problem.jobs import Job, age_limit, hold, jobs_of, pod_hold, queues_of
from solver_sched.problem.placement import Placement, place
from solver_sched.problem.reservations import Reservation
from solver_sched.problem.vectors import SUM_LIMIT, Vectors, distinct, largest_amount
from solver_sched.problem.victims import Rows, movable, victims
from solver_sched.snapshot import Snapshot

DEFAULT_SLOTS = 110
"""Pod slots of a node that names none: the kubelet's `maxPods`."""


def encode(
    snapshot: Snapshot,
    refused: Mapping[str, tuple[str, str]] = {},
    *,
    reserved: Sequence[Reservation] = (),
    evicting: bool = False,
    moving: bool = False,
    grace: int = 60,
) -> tuple[Problem, Index]:
    """The problem of one cycle and the names of its rows. Pure; equal arguments give equal problems.

    `refused`: group key -> (code, sentence) of groups that wait at the entrance, held like those that must wait.
    `reserved`: room to be kept, as more columns of R (formulation.md C17). `evicting`: list what running work may have
    to make room; else `victims` is empty. `moving`: and give those of it that may be placed again elsewhere a shape.
    `grace`: seconds after which the rest of a broken gang may go.
    """
    ours = frozenset(snapshot.scheduler_names)
    known_nodes = {node.name: row for row, node in enumerate(snapshot.nodes)}
    queues = queues_of(snapshot)
    jobs = jobs_of(snapshot, ours)
    held: dict[str, tuple[str, str]] = {}
    unread = {problem.object: problem for problem in snapshot.problems}
    for job in jobs:
        reason = hold(job, snapshot, queues, unread) or refused.get(job.key)
        if reason is not None:
            held[job.key] = reason

    open_jobs = [job for job in jobs if job.key not in held and job.pending]
    owners = [(job.key, pod) for job in open_jobs for pod in job.pending if not pod_hold(pod)]
    candidates = [pod for _, pod in owners]
    running = [(job.key, pod) for job in jobs for pod in job.resident if movable(pod)] if evicting and moving else []
    # a pod that moves starts anew: reservations bind it like one that waits
    bound = reservations.bound_by(reserved, snapshot, owners + running)
    ended = ("Succeeded", "Failed")
    on_node = [pod for pod in snapshot.pods if pod.node in known_nodes and pod.phase not in ended]
    placement = place(snapshot.nodes, candidates + [pod for _, pod in running], on_node, snapshot, bound)
    pending_shapes = 1 + int(placement.shape_of[: len(candidates)].max(initial=-1))
    pod_held = {candidates[row].key: reason for row, reason in placement.held.items() if row < len(candidates)}
    shape_of = {
        pod.key: int(placement.shape_of[row]) for row, pod in enumerate(candidates) if row not in placement.held
    }
    for job in open_jobs:
        if not any(pod.key in shape_of for pod in job.pending):
            reasons = [pod_hold(pod) or pod_held.get(pod.key) for pod in job.pending]
            held[job.key] = next(reason for reason in reasons if reason is not None)
    rows = [job for job in open_jobs if job.key not in held]

    resources = _resource_names(snapshot, placement) + reservations.names(reserved)
    column = {name: r for r, name in enumerate(resources)}
    vector = Vectors(column, largest_amount(snapshot))
    nodes = _node_arrays(snapshot, on_node, known_nodes, placement, vector)
    request = np.array([vector.of(pod) for pod in placement.representative], np.int64).reshape(-1, len(resources))
    for name, per_shape, _, _ in placement.extra:
        request[:, column[name]] = per_shape
    of_shape = [bound.get(pod.key, ()) for pod in placement.representative]
    reservations.fill(reserved, of_shape, column, known_nodes, request, nodes.alloc, nodes.free)

    sets = _pod_sets(rows, shape_of)
    queue_row = {name: q for q, name in enumerate(sorted(queues))}
    job_row = {job.key: j for j, job in enumerate(rows)}
    queue_used = np.zeros((len(queue_row), len(resources)), np.int64)
    residents = [(queue_row[job.queue], pod) for job in jobs if job.queue in queue_row for pod in job.resident]
    vector.add(queue_used, [q for q, _ in residents], [pod for _, pod in residents])
    queueless = [pod for job in jobs if job.queue not in queue_row for pod in job.resident if pod.node in known_nodes]
    foreign = vector.total([pod for pod in on_node if pod.scheduler not in ours and not pod.terminating] + queueless)
    units = _running_units(jobs, queue_row, vector)
    shapes = placement.shape_of[len(candidates) :].tolist()
    again = {pod.key: s for (_, pod), s in zip(running, shapes, strict=True) if s >= 0 and placement.alone[s]}
    rows_of = Rows(known_nodes, queue_row, job_row, units.row, len(resources), vector.of, again)
    found = victims(jobs if evicting else (), snapshot.budgets, snapshot.now, rows_of, grace)
    if evicting:
        set_of = {pod: v for v, pods in enumerate(found.pods) for pod in pods}
        blocks = blocked(snapshot, placement.representative, on_node, set_of, known_nodes)
        placement = placement.apart(np.unique(blocks[:, 1]))
        found = found._replace(rows=replace(found.rows, blocks=blocks))
    # room that reservations leave is used by what moves too
    reserved_columns = np.array([name.startswith(RESERVED_PREFIX) for name in resources])
    grain = np.where(reserved_columns, _grain(request), _grain(request[:pending_shapes]))
    node_class, class_size, class_kind, class_free = _node_classes(nodes, placement, request, grain, sets)

    roles = _roles(rows)
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
        shape_best_effort=np.array([pod.needs.best_effort for pod in placement.representative], bool),
        masks=placement.masks,
        soft=placement.soft,
        domain_rules=placement.rules,
        set_job=_ints(job_row[entry.job] for entry in sets),
        set_shape=_ints(entry.shape for entry in sets),
        set_role=_ints(roles.row.get((entry.job, entry.role), -1) for entry in sets),
        set_count=_ints(len(entry.pods) for entry in sets),
        set_priority=_ints(entry.priority for entry in sets),
        job_queue=_ints(queue_row[job.queue] for job in rows),
        job_priority=_ints(job.priority for job in rows),
        job_min=_ints(job.minimum for job in rows),
        job_ready=_ints(len(job.resident) + len(job.succeeded) for job in rows),
        job_created=_ints(job.created(snapshot.now) for job in rows),
        job_age_limit=_ints(age_limit(job.group) for job in rows),
        job_held=np.array([vector.total(job.resident) for job in rows], np.int64).reshape(-1, len(resources)),
        job_polite=np.array([not all(pod.preempts for pod in job.pending) for job in rows], bool),
        job_promised=np.array([any(pod.nominated in known_nodes for pod in job.pending) for job in rows], bool),
        role_job=_ints(job_row[job] for job, _ in roles.row),
        role_min=_ints(roles.minimum),
        role_ready=_ints(roles.ready),
        queue_weight=_ints(queues[name].weight for name in queue_row),
        queue_capability=_per_queue(queues, queue_row, column, "capability", int(NO_LIMIT)),
        queue_deserved=_per_queue(queues, queue_row, column, "deserved", -1),
        queue_guarantee=_per_queue(queues, queue_row, column, "guarantee", 0),
        queue_used=queue_used,
        queue_priority=_ints(queues[name].priority for name in queue_row),
        queue_reclaimable=np.array([queues[name].reclaimable for name in queue_row], bool),
        foreign=foreign,
        unit_queue=units.queue,
        unit_priority=units.priority,
        unit_count=units.count,
        unit_request=units.request,
        victims=found.rows,
        now=snapshot.now,
    )
    held.update({key: reason for key, reason in pod_held.items() if key not in held})
    for job in rows:
        held.update({pod.key: reason for pod in job.pending if (reason := pod_hold(pod)) and pod.key not in held})
    index = Index(
        resources=resources,
        nodes=tuple(known_nodes),
        jobs=tuple(job_row),
        queues=tuple(queue_row),
        roles=tuple(role for _, role in roles.row),
        set_pods=tuple(tuple(pod.key for pod in entry.pods) for entry in sets),
        holders=found.holders,
        victim_pods=found.pods,
        held=held,
        nominated={
            pod.key: known_nodes[pod.nominated]
            for entry in sets
            for pod in entry.pods
            if pod.nominated is not None and pod.nominated in known_nodes
        },
        members=tuple(
            Member(
                job.key,
                job.queue,
                job.group.phase if job.group is not None else "",
                job.minimum,
                len(job.resident) + len(job.succeeded),
                len(job.pending),
            )
            for job in jobs
            if job.group is not None or job.pending or job.resident
        ),
    )
    return problem, index


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _resource_names(snapshot: Snapshot, placement: Placement) -> tuple[str, ...]:
    """cpu, memory and pods first, then everything that a node offers, a pod asks or a queue names, sorted."""
    names = {name for node in snapshot.nodes for name in node.allocatable}
    for needs in {id(pod.needs): pod.needs for pod in snapshot.pods}.values():
        names.update(name for name, _ in needs.request)
    for queue in snapshot.queues:
        for given in (queue.capability, queue.deserved, queue.guarantee):
            names.update(given or ())
    names.update(name for name, _, _, _ in placement.extra)
    first = ("cpu", "memory", "pods")
    return first + tuple(sorted(names - set(first)))


class _NodeArrays(NamedTuple):
    alloc: Ints
    free: Ints
    releasing: Ints
    domains: Ints


def _node_arrays(
    snapshot: Snapshot, on_node: Sequence[Pod], row: Mapping[str, int], placement: Placement, vector: Vectors
) -> _NodeArrays:
    """Allocatable, free and being freed per node (N, R), and the domain columns that domain rules need (N, k)."""
    alloc = np.zeros((len(snapshot.nodes), len(vector.column)), np.int64)
    given = [node.allocatable for node in snapshot.nodes]
    for name, r in vector.column.items():
        absent = DEFAULT_SLOTS if name == "pods" else 0
        column = [amounts.get(name, absent) for amounts in given]
        alloc[:, r] = column if vector.most == SUM_LIMIT else [min(amount, vector.most) for amount in column]
    used = np.zeros_like(alloc)
    vector.add(used, [row[pod.node or ""] for pod in on_node], on_node)
    # room that another scheduler has promised to a pod of its own is as good as taken
    nominated = [pod for pod in snapshot.pods if pod.nominated is not None]
    promised = [pod for pod in nominated if _promised_elsewhere(pod, snapshot) and pod.nominated in row]
    vector.add(used, [row[pod.nominated or ""] for pod in promised], promised)
    releasing = np.zeros_like(alloc)
    leaving = [pod for pod in on_node if pod.terminating]
    vector.add(releasing, [row[pod.node or ""] for pod in leaving], leaving)
    free = alloc - used + releasing
    for name, _, node_free, node_alloc in placement.extra:
        alloc[:, vector.column[name]] = node_alloc
        free[:, vector.column[name]] = node_free
    return _NodeArrays(alloc, free, releasing, class_columns(placement.rules, len(snapshot.nodes)))


def _promised_elsewhere(pod: Pod, snapshot: Snapshot) -> bool:
    return (
        pod.nominated is not None
        and pod.node is None
        and pod.scheduler not in snapshot.scheduler_names
        and not (pod.finished or pod.terminating)
    )


class _PodSet(NamedTuple):
    job: str
    shape: int
    role: str
    priority: int
    pods: list[Pod]


def _pod_sets(rows: Sequence[Job], shape_of: Mapping[str, int]) -> list[_PodSet]:
    """Pending pods by (job, shape, role, priority), in task order."""
    out = []
    for job in rows:
        sets: dict[tuple[int, str, int], _PodSet] = {}
        for pod in job.pending:
            shape = shape_of.get(pod.key)
            if shape is None:
                continue
            key = (shape, pod.role, pod.priority)
            if key not in sets:
                sets[key] = _PodSet(job.key, shape, pod.role, pod.priority, [])
            sets[key].pods.append(pod)
        out += sorted(sets.values(), key=lambda entry: -entry.priority)
    return out


class _Roles(NamedTuple):
    row: dict[tuple[str, str], int]
    minimum: list[int]
    ready: list[int]


def _roles(rows: Sequence[Job]) -> _Roles:
    out = _Roles({}, [], [])
    for job in rows:
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


def _running_units(jobs: Sequence[Job], queue_row: Mapping[str, int], vector: Vectors) -> _Units:
    """The minimum of each running job whose minimum runs, and each running pod beyond it; equal pods share a row."""
    rows: dict[tuple[int, int, bytes], int] = defaultdict(int)
    for job in jobs:
        needed = max(0, job.minimum - len(job.succeeded))
        if job.queue not in queue_row or not job.resident or len(job.resident) < needed:
            continue
        row = (queue_row[job.queue], job.priority)
        first = job.minimum_first(needed)
        if needed:
            rows[*row, vector.total(first[:needed]).tobytes()] += 1
        for pod in first[needed:]:
            rows[*row, vector.of(pod).tobytes()] += 1
    width = len(vector.column)
    return _Units(
        queue=_ints(key[0] for key in rows),
        priority=_ints(key[1] for key in rows),
        count=_ints(rows.values()),
        request=np.frombuffer(b"".join(key[2] for key in rows), np.int64).reshape(-1, width),
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
    nodes: _NodeArrays, placement: Placement, request: Ints, grain: Ints, sets: Sequence[_PodSet]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Class of each node (N,), and per class size (C,), static kind (C,), useful free vector (C, R)."""
    demand = np.zeros(len(request), np.int64)
    for entry in sets:
        demand[entry.shape] += len(entry.pods)
    useful = useful_free(nodes.free, request, demand, grain)
    fits = np.zeros(len(nodes.alloc), bool)
    for s in np.flatnonzero(demand):
        fits |= (useful >= request[s]).all(axis=1)
    node_class = np.full(len(nodes.alloc), -1, np.int64)
    rows = np.flatnonzero(fits)
    key = np.column_stack([placement.node_kind[rows], useful[rows], nodes.domains[rows]])
    if not len(rows):
        return node_class, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, request.shape[1]), np.int64)
    first, inverse = distinct(key)
    node_class[rows] = inverse
    size = np.bincount(inverse, minlength=len(first))
    return node_class, size.astype(np.int64), placement.node_kind[rows][first].astype(np.int64), useful[rows][first]


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

"""Snapshot -> Problem: rows for what may be decided on now, sums for the rest, and a reason for what is held.

Classes are exact: two pods share a shape, two nodes a class only if no rule can tell them apart. Free room is cut down
to what pending shapes could use of it, so that nodes that differ only in useless room fall together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Pod, PodGroup, Queue
from solver_sched.problem import reservations
from solver_sched.problem.arrays import NO_LIMIT, RESERVED_PREFIX, Index, Ints, Member, Problem
from solver_sched.problem.blocked import blocked
from solver_sched.problem.domain_rules import class_columns
from solver_sched.problem.placement import Placement, place
from solver_sched.problem.reservations import Reservation
from solver_sched.problem.victims import Rows, RunningJob, movable, victims
from solver_sched.quantity import parse_duration
from solver_sched.snapshot import Snapshot

DEFAULT_QUEUE = "default"
WITHOUT_CLASS = ("scheduling.x-k8s.io/v1alpha1",)
"""Dialects whose PodGroup has no priority class: the job ranks by its highest pod.

Upstream there orders by the priority of the pods (scheduler-plugins pkg/coscheduling/coscheduling.go, Less).
"""
DEFAULT_SLOTS = 110
"""Pod slots of a node that names none: the kubelet's `maxPods`."""
SUM_LIMIT = 2**63 - 1
SLA_KEYS = ("volcano.sh/sla-waiting-time", "sla-waiting-time")


class _Job(NamedTuple):
    """A group, or a pod on its own, while rows are being collected."""

    key: str
    group: PodGroup | None
    queue: str
    priority: int
    pending: list[Pod]
    resident: list[Pod]
    succeeded: list[Pod]
    terminating: int


def encode(
    snapshot: Snapshot,
    refused: Mapping[str, tuple[str, str]] = {},
    *,
    reserved: Sequence[Reservation] = (),
    evicting: bool = False,
    moving: bool = False,
) -> tuple[Problem, Index]:
    """The problem of one cycle and the names of its rows. Pure; equal arguments give equal problems.

    `refused`: group key -> (code, sentence) of groups that wait at the entrance, held like those that must wait.
    `reserved`: room to be kept, as more columns of R (formulation.md C17). `evicting`: list what running work may have
    to make room; else `victims` is empty. `moving`: and give those of it that may be placed again elsewhere a shape.
    """
    ours = frozenset(snapshot.scheduler_names)
    known_nodes = {node.name: row for row, node in enumerate(snapshot.nodes)}
    queues = _queues(snapshot)
    jobs = _jobs(snapshot, ours)
    held: dict[str, tuple[str, str]] = {}
    for job in jobs:
        reason = _hold(job, snapshot, queues) or refused.get(job.key)
        if reason is not None:
            held[job.key] = reason

    open_jobs = [job for job in jobs if job.key not in held and job.pending]
    owners = [(job.key, pod) for job in open_jobs for pod in job.pending if not _pod_hold(pod)]
    candidates = [pod for _, pod in owners]
    running = [(job.key, pod) for job in jobs for pod in job.resident if movable(pod)] if evicting and moving else []
    # a pod that moves starts anew: reservations bind it like one that waits
    bound = reservations.bound_by(reserved, snapshot, owners + running)
    on_node = [pod for pod in snapshot.pods if pod.node in known_nodes and not pod.finished]
    placement = place(snapshot.nodes, candidates + [pod for _, pod in running], on_node, snapshot, bound)
    pending_shapes = 1 + int(placement.shape_of[: len(candidates)].max(initial=-1))
    pod_held = {candidates[row].key: reason for row, reason in placement.held.items() if row < len(candidates)}
    shape_of = {
        pod.key: int(placement.shape_of[row]) for row, pod in enumerate(candidates) if row not in placement.held
    }
    for job in open_jobs:
        if not any(pod.key in shape_of for pod in job.pending):
            reasons = [_pod_hold(pod) or pod_held.get(pod.key) for pod in job.pending]
            held[job.key] = next(reason for reason in reasons if reason is not None)
    rows = [job for job in open_jobs if job.key not in held]

    resources = _resource_names(snapshot, placement) + reservations.names(reserved)
    column = {name: r for r, name in enumerate(resources)}
    vector = _Vectors(column, _largest_amount(snapshot))
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
    vector.add(queue_used, (q for q, _ in residents), [pod for _, pod in residents])
    queueless = [pod for job in jobs if job.queue not in queue_row for pod in job.resident if pod.node in known_nodes]
    foreign = vector.total([pod for pod in on_node if pod.scheduler not in ours and not pod.terminating] + queueless)
    units = _running_units(jobs, queue_row, vector)
    shapes = placement.shape_of[len(candidates) :].tolist()
    again = {pod.key: s for (_, pod), s in zip(running, shapes, strict=True) if s >= 0 and placement.alone[s]}
    rows_of = Rows(
        known_nodes, queue_row, job_row, units.row, len(resources), vector.of, _minimum, _minimum_first, again
    )
    found = victims(jobs if evicting else (), snapshot.budgets, snapshot.now, rows_of)
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
        job_min=_ints(_minimum(job) for job in rows),
        job_ready=_ints(len(job.resident) + len(job.succeeded) for job in rows),
        job_created=_ints(_created(job, snapshot.now) for job in rows),
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
        held.update({pod.key: reason for pod in job.pending if (reason := _pod_hold(pod)) and pod.key not in held})
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
                _minimum(job),
                len(job.resident) + len(job.succeeded),
                len(job.pending),
            )
            for job in jobs
            if job.group is not None or job.pending or job.resident
        ),
    )
    return problem, index


def requests(snapshot: Snapshot, index: Index, pods: Sequence[Pod]) -> Ints:
    """(len(pods), R) what each pod holds, in the numbers of the problem."""
    vector = _Vectors({name: r for r, name in enumerate(index.resources)}, _largest_amount(snapshot))
    return np.array([vector.of(pod) for pod in pods], np.int64).reshape(-1, len(index.resources))


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _queues(snapshot: Snapshot) -> dict[str, Queue]:
    """Queues by name; `default` is implied when absent (kube-batch and Volcano create it at start)."""
    queues = {queue.name: queue for queue in snapshot.queues}
    queues.setdefault(DEFAULT_QUEUE, Queue(name=DEFAULT_QUEUE))
    return queues


def _jobs(snapshot: Snapshot, ours: frozenset[str]) -> list[_Job]:
    """Every group, and every pod of ours without one, in key order."""
    members: dict[str, list[Pod]] = defaultdict(list)
    lone: list[Pod] = []
    for pod in snapshot.pods:
        if pod.scheduler not in ours:
            continue
        if pod.group is not None:
            members[pod.group].append(pod)
        else:
            lone.append(pod)
    default = next((cls.value for cls in snapshot.priority_classes if cls.is_default), 0)
    groups = {group.key: group for group in snapshot.groups}
    jobs = []
    for key in groups.keys() | members.keys():
        group = groups.get(key)
        pods = members.get(key, [])
        if group is None:
            priority, queue = max(pod.priority for pod in pods), ""
        else:
            queue = group.queue or DEFAULT_QUEUE
            if group.priority is not None:
                priority = group.priority
            elif group.dialect in WITHOUT_CLASS and pods:
                priority = max(pod.priority for pod in pods)
            else:
                priority = default
        jobs.append(_job(key, group, queue, priority, pods))
    taken = groups.keys() | members.keys()
    for pod in lone:
        if not pod.finished:
            # pods and groups are named apart in Kubernetes: of two of one name the pod says what it is
            key = f"{pod.key} (pod)" if pod.key in taken else pod.key
            jobs.append(_job(key, None, pod.queue or DEFAULT_QUEUE, pod.priority, [pod]))
    return sorted(jobs, key=lambda job: job.key)


def _job(key: str, group: PodGroup | None, queue: str, priority: int, pods: list[Pod]) -> _Job:
    """Split the members by what they are to the gang; releasing and failed ones do not count.

    Volcano pkg/scheduler/api/job_info.go, ReadyTaskNum.
    """
    pending: list[Pod] = []
    resident: list[Pod] = []
    succeeded: list[Pod] = []
    terminating = 0
    for pod in pods:
        if pod.phase == "Succeeded":
            succeeded.append(pod)
        elif pod.terminating or pod.finished:
            terminating += not pod.finished
        elif pod.node is not None or pod.phase == "Running":
            resident.append(pod)
        elif pod.phase in ("Pending", ""):
            pending.append(pod)
    pending.sort(key=_task_order)
    resident.sort(key=_task_order)
    return _Job(key, group, queue, priority, pending, resident, succeeded, terminating)


def _task_order(pod: Pod) -> tuple[int, int, int, str]:
    """Pod priority descending, then index, then name.

    Volcano pkg/scheduler/framework/session_plugins.go, TaskOrderFn, which ends with the creation time instead.
    """
    return (-pod.priority, pod.index if pod.index >= 0 else 2**31, len(pod.name), pod.name)


def _minimum(job: RunningJob) -> int:
    return job.group.min_member if job.group is not None else 1


def _created(job: _Job, now: int) -> int:
    """Creation time; what has none was written by hand and counts as created now, not as the oldest of all."""
    if job.group is not None and job.group.created:
        return job.group.created
    return min((pod.created for pod in job.pending if pod.created), default=now)


def age_limit(group: PodGroup | None) -> int:
    """`sla-waiting-time` of the group in seconds, 0 = not set. A value that is no duration does not limit."""
    for key in SLA_KEYS:
        if group is not None and key in group.annotations:
            return parse_duration(group.annotations[key]) or 0
    return 0


def _hold(job: _Job, snapshot: Snapshot, queues: Mapping[str, Queue]) -> tuple[str, str] | None:
    """Why nothing of the job may be decided on now, as (code, sentence), or None."""
    if job.group is None and not job.pending:
        return None
    if job.group is None and job.pending[0].group is not None:
        name = job.key.split("/", 1)[1]
        elsewhere = sorted(group.namespace for group in snapshot.groups if group.name == name)
        hint = f"; a group of that name is in namespace {', '.join(elsewhere)}" if elsewhere else ""
        return "GroupMissing", f"pod group {job.key} does not exist{hint}"
    if job.group is not None and job.group.suspended:
        return "Suspended", f"the owner of {job.key} is suspended"
    if job.group is not None and job.group.hold:
        return _split_hold(job.group.hold)
    queue = queues.get(job.queue)
    if queue is None:
        return "QueueMissing", f"queue {job.queue} does not exist"
    if queue.state not in ("", "Open"):
        return "QueueClosed", f"queue {job.queue} is {queue.state.lower()}"
    if any(other.parent == job.queue for other in queues.values()):
        return "QueueInner", f"queue {job.queue} has child queues; only leaves start jobs"
    return None


def _pod_hold(pod: Pod) -> tuple[str, str] | None:
    if pod.hold:
        return _split_hold(pod.hold)
    if pod.gates:
        return "Gated", f"pod {pod.key} waits for scheduling gate {', '.join(pod.gates)}"
    return None


def _split_hold(text: str) -> tuple[str, str]:
    code, _, sentence = text.partition(": ")
    return (code, sentence) if sentence else ("Held", text)


def _largest_amount(snapshot: Snapshot) -> int:
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


class _Vectors:
    """Request vectors per needs object, computed once: equal needs are one object (reader's promise)."""

    def __init__(self, column: Mapping[str, int], most: int) -> None:
        self.column, self.most = column, most
        self._row: dict[int, int] = {}
        self._vectors: list[Ints] = []

    def row(self, pod: Pod) -> int:
        """Row of the pod's request in `matrix`."""
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
        rows = _ints(self.row(pod) for pod in pods)
        if len(rows):
            np.add.at(out, _ints(at), np.array(self._vectors)[rows])

    def total(self, pods: Sequence[Pod]) -> Ints:
        """(R,) sum of the requests."""
        out: Ints = np.zeros((1, len(self.column)), np.int64)
        self.add(out, (0 for _ in pods), pods)
        return out.reshape(-1)


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
    snapshot: Snapshot, on_node: Sequence[Pod], row: Mapping[str, int], placement: Placement, vector: _Vectors
) -> _NodeArrays:
    """Allocatable, free and being freed per node (N, R), and the domain columns that domain rules need (N, k)."""
    alloc = np.zeros((len(snapshot.nodes), len(vector.column)), np.int64)
    for n, node in enumerate(snapshot.nodes):
        alloc[n, vector.column["pods"]] = DEFAULT_SLOTS
        for name, amount in node.allocatable.items():
            alloc[n, vector.column[name]] = min(amount, vector.most)
    used = np.zeros_like(alloc)
    vector.add(used, (row[pod.node or ""] for pod in on_node), on_node)
    # room that another scheduler has promised to a pod of its own is as good as taken
    promised = [pod for pod in snapshot.pods if _promised_elsewhere(pod, snapshot) and pod.nominated in row]
    vector.add(used, (row[pod.nominated or ""] for pod in promised), promised)
    releasing = np.zeros_like(alloc)
    leaving = [pod for pod in on_node if pod.terminating]
    vector.add(releasing, (row[pod.node or ""] for pod in leaving), leaving)
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


def _pod_sets(rows: Sequence[_Job], shape_of: Mapping[str, int]) -> list[_PodSet]:
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


def _roles(rows: Sequence[_Job]) -> _Roles:
    """Role minimums, left out where they are 0 and where their sum exceeds minMember.

    Volcano pkg/scheduler/api/job_info.go, CheckTaskReady.
    """
    out = _Roles({}, [], [])
    for job in rows:
        wanted = job.group.min_task_member if job.group is not None else {}
        if not wanted or sum(wanted.values()) > _minimum(job):
            continue
        for role, minimum in sorted(wanted.items()):
            if minimum > 0:
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


def _running_units(jobs: Sequence[_Job], queue_row: Mapping[str, int], vector: _Vectors) -> _Units:
    """The minimum of each running job whose minimum runs, and each running pod beyond it; equal pods share a row."""
    rows: dict[tuple[int, int, bytes], int] = defaultdict(int)
    for job in jobs:
        needed = max(0, _minimum(job) - len(job.succeeded))
        if job.queue not in queue_row or not job.resident or len(job.resident) < needed:
            continue
        row = (queue_row[job.queue], job.priority)
        first = _minimum_first(job, needed)
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


def _minimum_first(job: RunningJob, needed: int) -> list[Pod]:
    """Running pods with those that make up the minimum in front: the roles' minimums first, then task order."""
    wanted = dict(job.group.min_task_member) if job.group is not None else {}
    if not wanted or sum(wanted.values()) > needed:
        return list(job.resident)
    front, rest = [], []
    for pod in job.resident:
        if wanted.get(pod.role, 0) > 0:
            wanted[pod.role] -= 1
            front.append(pod)
        else:
            rest.append(pod)
    return front + rest


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
    _, first, inverse, size = np.unique(key, axis=0, return_index=True, return_inverse=True, return_counts=True)
    node_class[rows] = inverse.reshape(-1)
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
            steep = max(Fraction(int(u[r]), int(u[other])) for u in users)
            values, inverse = np.unique(out[:, other], return_inverse=True)
            cap = np.array([min(int(v * steep), 2**62) for v in values.tolist()], np.int64)
            out[:, r] = np.minimum(out[:, r], cap[inverse.reshape(-1)])
    lattice: Ints = out // grain * grain
    return lattice

"""Running work that may have to make room, as rows: holders, victim sets, roles, disruption budgets.

Only what no policy may ever touch is left out here (`preemptable: false`, terminating, other schedulers' pods); what
a plugin protects and what an action may take is decided from these rows in `rights.py` (formulation.md 8).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Budget, Pod
from solver_sched.cluster.selectors import selects
from solver_sched.problem.arrays import Ints, Victims
from solver_sched.problem.jobs import Job
from solver_sched.problem.vectors import Vectors
from solver_sched.quantity import parse_duration

COOLDOWN = "volcano.sh/cooldown-time"
SYSTEM_NAMESPACE = "kube-system"
SYSTEM_CLASSES = ("system-cluster-critical", "system-node-critical")
UNKNOWN_SECONDS = 2**40
"""Run time of a pod that does not say when it started: past every cool-down, and nothing to lose."""
EXACT_SECONDS = 3600
"""Pods that ran for less are told apart by the second, as cool-downs are; older ones by powers of two minutes."""


class Rows(NamedTuple):
    """Rows of the problem that victims refer to, by name."""

    node: Mapping[str, int]
    queue: Mapping[str, int]
    job: Mapping[str, int]
    unit: Mapping[tuple[int, int, bytes], int]
    vectors: Vectors
    shape: Mapping[str, int]


class Found(NamedTuple):
    """The rows, the holders' keys, and the pods of each set, last in task order first."""

    rows: Victims
    holders: tuple[str, ...]
    pods: tuple[tuple[str, ...], ...]


def victims(jobs: Sequence[Job], budgets: Sequence[Budget], now: int, rows: Rows, grace: int) -> Found:
    """Every running job that has a pod which may go.

    `grace`: seconds that a gang which lost a pod may wait for it before its rest may go (KAI's staleGracePeriod).
    """
    table = _Table(budgets, now, rows, grace)
    for job in jobs:
        if job.queue in rows.queue and any(table.may_go(pod) for pod in job.resident):
            table.add(job)
    return Found(table.victims(), tuple(table.names), tuple(tuple(reversed(pods)) for pods in table.pods))


class _Table:
    def __init__(self, budgets: Sequence[Budget], now: int, rows: Rows, grace: int) -> None:
        self.now, self.rows, self.grace = now, rows, grace
        self.budgets: dict[str, list[tuple[int, Budget]]] = defaultdict(list)
        for b, budget in enumerate(budgets):
            self.budgets[budget.namespace].append((b, budget))
        self.allowed = [budget.allowed for budget in budgets]
        self.names: list[str] = []
        self.pods: list[list[str]] = []
        self.holders: list[tuple[int, ...]] = []
        self.held: list[Ints] = []
        self.minimum_held: list[Ints] = []
        self.beyond: list[tuple[int, int, int, int, int]] = []
        self.roles: list[tuple[int, int, int]] = []
        self.sets: list[tuple[int, ...]] = []
        self.requests: list[int] = []
        self.covered: list[tuple[int, int]] = []
        self._under: dict[tuple[str, int], tuple[int, ...]] = {}
        self._ran: dict[int, tuple[int, int]] = {}

    def may_go(self, pod: Pod) -> bool:
        """Bound to a node that is there, and not marked as one that never goes."""
        return pod.preemptable and pod.node in self.rows.node

    def add(self, job: Job) -> None:
        rows = self.rows
        h, queue = len(self.names), rows.queue[job.queue]
        self.names.append(job.key)
        done, running = (Counter(pod.role for pod in pods) for pods in (job.succeeded, job.resident))
        roles = {role: max(0, least - done[role]) for role, least in job.role_minimums.items()}
        role_row = {role: len(self.roles) + i for i, role in enumerate(roles)}
        self.roles += [(h, least, running[role]) for role, least in roles.items()]
        needed = max(0, job.minimum - len(job.succeeded), sum(roles.values()))
        broken = len(job.resident) < needed or any(running[role] < least for role, least in roles.items())
        held = rows.vectors.total(job.resident)
        minimum_held = np.zeros_like(held)
        unit = -1
        if not broken:
            first = job.minimum_first(needed)
            minimum_held = held if needed == len(first) else rows.vectors.total(first[:needed])
            if needed:
                unit = rows.unit[queue, job.priority, minimum_held.tobytes()]
            counts: dict[bytes, int] = defaultdict(int)
            going: dict[bytes, int] = defaultdict(int)
            vectors = [rows.vectors.of(pod).tobytes() for pod in first] if needed < len(first) else []
            for pod, x in zip(first[needed:], vectors[needed:], strict=True):
                counts[x] += 1
                going[x] += self.may_go(pod)
            alike = Counter(vectors)
            self.beyond += [(h, rows.unit[queue, job.priority, x], n, going[x], alike[x]) for x, n in counts.items()]
        self.holders.append(
            (
                *(queue, job.priority, needed, len(job.resident), rows.job.get(job.key, -1), _created(job)),
                *(int(broken), int(broken and self._stale(job)), unit),
            )
        )
        self.held.append(held)
        self.minimum_held.append(minimum_held)
        self._sets(h, job, role_row)

    def _stale(self, job: Job) -> bool:
        latest = max([_created(job), *(max(pod.created, pod.started) for pod in job.resident)])
        return not job.terminating and self.now - latest >= self.grace

    def _sets(self, h: int, job: Job, role_row: Mapping[str, int]) -> None:
        found: dict[tuple[object, ...], int] = {}
        rows, ran = self.rows, self._ran
        for pod in job.resident:
            if not self.may_go(pod):
                continue
            node, started = rows.node[pod.node or ""], pod.started
            role, name = role_row.get(pod.role, -1), pod.key
            if started not in ran:
                ran[started] = self._run_time(started)
            seconds, minutes = ran[started]
            cooldown = _cooldown(pod)
            system = pod.namespace == SYSTEM_NAMESPACE or pod.priority_class in SYSTEM_CLASSES
            under = self._budgets_of(pod) if self.budgets else ()
            shape = rows.shape.get(name, -1)
            key = (node, id(pod.needs), role, pod.priority, seconds, cooldown, system, under, shape)
            v = found.get(key)
            if v is None:
                v = found[key] = len(self.sets)
                self.sets.append((h, node, role, pod.priority, seconds, cooldown, minutes, int(system), shape))
                self.requests.append(rows.vectors.row(pod.needs))
                self.covered += [(v, b) for b in under]
                self.pods.append([])
            self.pods[v].append(name)

    def _run_time(self, started: int) -> tuple[int, int]:
        """Seconds and minutes for which a pod has run: exact below EXACT_SECONDS, then as coarse as the minutes, which
        are rounded up to a power of two.
        """
        if not started:
            return UNKNOWN_SECONDS, 0
        seconds = max(0, self.now - started)
        minutes: int = 2 ** (seconds // 60).bit_length()
        return seconds if seconds < EXACT_SECONDS else minutes * 60, minutes

    def _budgets_of(self, pod: Pod) -> tuple[int, ...]:
        if pod.namespace not in self.budgets:
            return ()
        key = (pod.namespace, id(pod.labels))
        if key not in self._under:
            self._under[key] = tuple(
                b for b, budget in self.budgets[pod.namespace] if selects(budget.selector, pod.labels)
            )
        return self._under[key]

    def victims(self) -> Victims:
        queue, priority, minimum, running, job, created, broken, stale, unit = _columns(self.holders, 9)
        beyond_holder, beyond_unit, beyond_count, beyond_open, beyond_alike = _columns(self.beyond, 5)
        role_holder, role_min, role_running = _columns(self.roles, 3)
        holder, node, role, pod_priority, seconds, cooldown, minutes, system, shape = _columns(self.sets, 9)
        member, width = np.zeros((len(self.sets), len(self.allowed)), bool), len(self.rows.vectors.column)
        for v, b in self.covered:
            member[v, b] = True
        return Victims(
            queue=queue,
            priority=priority,
            minimum=minimum,
            running=running,
            held=np.array(self.held, np.int64).reshape(-1, width),
            minimum_held=np.array(self.minimum_held, np.int64).reshape(-1, width),
            job=job,
            created=created,
            broken=broken.astype(bool),
            stale=stale.astype(bool),
            unit_row=unit,
            beyond_holder=beyond_holder,
            beyond_unit=beyond_unit,
            beyond_count=beyond_count,
            beyond_open=beyond_open,
            beyond_alike=beyond_alike,
            role_holder=role_holder,
            role_min=role_min,
            role_running=role_running,
            holder=holder,
            node=node,
            role=role,
            count=np.array([len(pods) for pods in self.pods], np.int64),
            pod_priority=pod_priority,
            seconds=seconds,
            cooldown=cooldown,
            minutes=minutes,
            system=system.astype(bool),
            request=self.rows.vectors.all[np.array(self.requests, np.int64)],
            shape=shape,
            allowed=np.array(self.allowed, np.int64),
            member=member,
            blocks=np.zeros((0, 3), np.int64),
        )


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    """(width, rows)."""
    return np.array(rows, np.int64).reshape(-1, width).T


def movable(pod: Pod) -> bool:
    """Whether the running pod could be placed again elsewhere, as far as it says itself: nothing ties it to other pods,
    a port, a volume or a device, and somebody makes it again. A pod with neither owner nor group would just be lost.
    """
    needs = pod.needs
    near = needs.affinity or needs.anti_affinity or needs.preferred_affinity or needs.preferred_anti_affinity
    bound = needs.spread or needs.ports or needs.volume_claims or needs.inline_csi or needs.resource_claims
    return pod.preemptable and bool(pod.owner or pod.group) and not near and not bound


def _cooldown(pod: Pod) -> int:
    """Seconds after its start in which the pod wants to be left alone; 0 if it says nothing that can be read.

    Volcano pkg/scheduler/plugins/cdp/cdp.go reads the label, then the annotation.
    """
    said = pod.labels.get(COOLDOWN) or pod.annotations.get(COOLDOWN)
    return (parse_duration(said) or 0) if said else 0


def _created(job: Job) -> int:
    if job.group is not None and job.group.created:
        return job.group.created
    return min((pod.created for pod in job.resident if pod.created), default=0)

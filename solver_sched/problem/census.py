"""One snapshot, counted: jobs, what runs where, and sums of it, before anything is refused or kept.

All problems of a cycle are made of one census. From one snapshot to the next few objects change, and those that do not
are the same frozen objects: what follows from them alone is taken over from the census before, and sums change by what
came and went. A census that is made of another one equals one that is made of nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_

import numpy as np

from solver_sched.cluster.objects import Needs, Pod, PodGroup, Queue
from solver_sched.cluster.run_times import RUN_TIME, run_time
from solver_sched.problem.arrays import Ints, Member
from solver_sched.problem.jobs import (
    Job,
    default_priority,
    hold,
    job_of,
    lone_job,
    lone_key,
    pod_hold,
    queues_of,
    split,
)
from solver_sched.problem.node_table import NodeTable
from solver_sched.problem.runtimes import NEVER, RunTimes, class_of
from solver_sched.problem.vectors import SUM_LIMIT, Vectors, largest_amount
from solver_sched.snapshot import Snapshot

DEFAULT_SLOTS = 110
"""Pod slots of a node that names none: the kubelet's `maxPods`."""
FIRST = ("cpu", "memory", "pods")
"""Resources that every problem has."""
ENDED = ("Succeeded", "Failed")
OTHERS = ""
"""Key of the bunch of other schedulers' pods; those of jobs are "namespace/name"."""
NO_STAYS = np.zeros((0, 4), np.int64)
RENEWED = 1000
"""So many requests that are no longer asked for, and selectors, are remembered at most."""


@dataclass(slots=True)
class Asked:
    """What the pods of one group ask: `held` by bound and running ones, `done` by succeeded ones, `ready` by pending
    ones that may go, `present` by all but ended ones.
    """

    held: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    ready: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)


class Bunch:
    """Pods that are counted together: those of one job, or all of other schedulers (a job without key).

    standing: unfinished pods on nodes that are there; `at`, `row`: node row, and row in `vectors`, of each. open:
    pending pods that may be decided on, `keys` theirs; shut: keys of the others, with the reason.
    """

    def __init__(self, job: Job, pods: list[Pod], nodes: Mapping[str, int], vectors: Vectors) -> None:
        self.job, self.pods, self.nodes, self.vectors = job, pods, nodes, vectors
        self.standing = [pod for pod in pods if pod.node in nodes and pod.phase not in ENDED]
        self.at = [nodes[pod.node or ""] for pod in self.standing]
        self.row = vectors.rows(self.standing)
        self.open = [pod for pod in job.pending if not (pod.hold or pod.gates)]
        self.keys = [pod.key for pod in self.open]
        self.shut = {pod.key: reason for pod in job.pending if (reason := pod_hold(pod))}

    def is_of(self, group: PodGroup | None, pods: list[Pod]) -> bool:
        """Whether it is made of these."""
        mine = self.job.group
        same = len(self.pods) == len(pods) and all(map(is_, self.pods, pods))
        return same and (mine is group or mine == group)

    @cached_property
    def held(self) -> Ints:
        """(R,) requests of the resident pods."""
        return self.vectors.total(self.job.resident)

    @cached_property
    def units(self) -> Mapping[bytes, int]:
        """Request vectors of what runs: of the minimum, if that runs, and of each pod beyond it; and how many."""
        out: Counter[bytes] = Counter()
        job = self.job
        needed = max(0, job.minimum - len(job.succeeded))
        if not job.resident or len(job.resident) < needed:
            return out
        if needed == len(job.resident):
            out[self.held.tobytes()] = 1
            return out
        first = job.minimum_first(needed)
        if needed:
            out[self.vectors.total(first[:needed]).tobytes()] += 1
        for pod in first[needed:]:
            out[self.vectors.of(pod).tobytes()] += 1
        return out

    @cached_property
    def member(self) -> Member | None:
        job = self.job
        if job.group is None and not job.pending and not job.resident:
            return None
        phase = job.group.phase if job.group is not None else ""
        ready = len(job.resident) + len(job.succeeded)
        return Member(job.key, job.queue, phase, job.minimum, ready, len(job.pending))

    @cached_property
    def stays(self) -> Ints:
        """(len(standing), 4) see `RunTimes.stay`."""
        said = run_time(self.job.group.annotations.get(RUN_TIME)) if self.job.group is not None else 0
        return np.array(
            [(pod.started, pod.run_time or said, pod.deadline, pod.terminating) for pod in self.standing], np.int64
        ).reshape(-1, 4)

    @cached_property
    def classes(self) -> list[str | None]:
        """Class of each standing pod whose run time is its class's, None where it has its own; empty where all have."""
        own: list[bool] = np.logical_or(self.stays[:, 1] > 0, self.stays[:, 2] > 0).tolist()
        if all(own):
            return []
        return [None if said else class_of(pod) for pod, said in zip(self.standing, own, strict=True)]

    @cached_property
    def places(self) -> Ints:
        """(2, len(standing)) `at` and `row`."""
        return np.array([self.at, self.row], np.int64)

    @cached_property
    def runs(self) -> list[tuple[Pod, list[str]]]:
        """The open pods, with their keys, in runs of such as only affinity, ports and volumes could tell apart."""
        out: list[tuple[Pod, list[str]]] = []
        last: tuple[object, ...] = ()
        for pod, key in zip(self.open, self.keys, strict=True):
            what = (id(pod.needs), pod.role, pod.priority, pod.deadline, pod.run_time, pod.owner)
            # the name speaks where there is no owner, see `run_class`
            if what == last and pod.owner:
                out[-1][1].append(key)
            else:
                out.append((pod, [key]))
            last = what
        return out

    @cached_property
    def singles(self) -> list[tuple[Pod, list[str]]]:
        """The same one by one."""
        return [(pod, [key]) for pod, key in zip(self.open, self.keys, strict=True)]

    @cached_property
    def polite(self) -> bool:
        """Whether a pending pod must not preempt."""
        return not all(pod.preempts for pod in self.job.pending)

    @cached_property
    def promised(self) -> bool:
        """Whether a pending pod is nominated to a node that is there."""
        return any(pod.nominated in self.nodes for pod in self.job.pending)

    @cached_property
    def asked(self) -> Asked:
        """Equal needs are one object and are summed once."""
        states = [(_state(pod), id(pod.needs)) for pod in self.pods if pod.phase != "Failed" and not pod.terminating]
        needs = {id(pod.needs): pod.needs for pod in self.pods}
        out = Asked()
        for (state, row), count in Counter(states).items():
            sums = [getattr(out, state)] + ([out.present] if state in ("held", "ready") else [])
            for name, amount in needs[row].request:
                for each in sums:
                    each[name] += count * amount
        return out

    @cached_property
    def elastic(self) -> Mapping[str, int]:
        """What the pods that are placed hold beyond the group's `minResources`."""
        minimum = (self.job.group.min_resources if self.job.group is not None else None) or {}
        return {name: max(0, amount - minimum.get(name, 0)) for name, amount in self.asked.held.items()}


def _state(pod: Pod) -> str:
    if pod.phase == "Succeeded":
        return "done"
    if placed(pod):
        return "held"
    return "present" if pod.gates or pod.hold else "ready"


def placed(pod: Pod) -> bool:
    return pod.node is not None or pod.phase == "Running"


class Census:
    """Axes as in `Problem`; R are the resources that nodes offer, pods ask and queues name: `names`.

    nodes: name -> row. needs: all there are, by id. bunches: one for each job, in key order; others: that of other
    schedulers' pods. alloc, used, releasing (N, R), queue_used (Q, R), foreign (R,): as in `Problem`, of which they are
    the columns `names`. Do not write into them.
    """

    def __init__(self, snapshot: Snapshot, before: Census | None = None) -> None:
        """`before`: of an earlier snapshot."""
        self.snapshot = snapshot
        self.ours = frozenset(snapshot.scheduler_names)
        self.queues: dict[str, Queue] = queues_of(snapshot)
        self.queue_row = {name: q for q, name in enumerate(sorted(self.queues))}
        self.needs: dict[int, Needs] = {id(pod.needs): pod.needs for pod in snapshot.pods}
        self._default = default_priority(snapshot)
        if before is not None and before.snapshot.nodes != snapshot.nodes:
            before = None
        kept = before is not None and before.table.remembered <= RENEWED
        self.table: NodeTable = before.table if before is not None and kept else NodeTable(snapshot.nodes)
        self.nodes: Mapping[str, int] = self.table.rows
        self._offers: tuple[frozenset[str], int] = self._offered() if before is None else before._offers
        self.names = self._resource_names()
        most = self._most()
        self._base = (self.ours, self._default, self.queue_row, self.names, most)
        if before is not None and (before._base != self._base or len(before.vectors) > 2 * len(self.needs) + RENEWED):
            before = None
        column = {name: r for r, name in enumerate(self.names)}
        self.vectors: Vectors = Vectors(column, most) if before is None else before.vectors
        self.alloc: Ints = self._allocatable() if before is None else before.alloc
        self.used, self.releasing = np.zeros_like(self.alloc), np.zeros_like(self.alloc)
        self.queue_used = np.zeros((len(self.queue_row), len(self.names)), np.int64)
        self.foreign = np.zeros(len(self.names), np.int64)
        self._known: dict[str, Bunch] = {}
        self._count(before)

    def _offered(self) -> tuple[frozenset[str], int]:
        """Names of what nodes offer, and the sum of all amounts."""
        amounts = [amount for node in self.snapshot.nodes for amount in node.allocatable.values()]
        return frozenset(name for node in self.snapshot.nodes for name in node.allocatable), sum(amounts)

    def _resource_names(self) -> tuple[str, ...]:
        """cpu, memory and pods first, then everything that a node offers, a pod asks or a queue names, sorted."""
        names = set(self._offers[0])
        for needs in self.needs.values():
            names.update(name for name, _ in needs.request)
        for queue in self.snapshot.queues:
            for given in (queue.capability, queue.deserved, queue.guarantee):
                names.update(given or ())
        return FIRST + tuple(sorted(names - set(FIRST)))

    def _most(self) -> int:
        """`largest_amount`, asked for only where it may be less than all that fits."""
        largest = max((amount for needs in self.needs.values() for _, amount in needs.request), default=0)
        small = self._offers[1] + len(self.snapshot.pods) * largest < SUM_LIMIT
        return SUM_LIMIT if small else largest_amount(self.snapshot)

    def _allocatable(self) -> Ints:
        """(N, R)"""
        out = np.zeros((len(self.snapshot.nodes), len(self.names)), np.int64)
        given, most = [node.allocatable for node in self.snapshot.nodes], self.vectors.most
        for name, r in self.vectors.column.items():
            absent = DEFAULT_SLOTS if name == "pods" else 0
            column = [amounts.get(name, absent) for amounts in given]
            out[:, r] = column if most == SUM_LIMIT else [min(amount, most) for amount in column]
        return out

    def _count(self, before: Census | None) -> None:
        """Bunches, those of `before` where nothing of them has changed, and the sums."""
        found, groups = split(self.snapshot), {group.key: group for group in self.snapshot.groups}
        known: Mapping[str, Bunch] = before._known if before is not None else {}
        now = self._known
        taken = groups.keys() | found.members.keys()
        for key in taken:
            bunch, pods = known.get(key), found.members.get(key, [])
            group = groups.get(key)
            if bunch is None or not bunch.is_of(group, pods):
                bunch = self._bunch(job_of(key, group, pods, self._default), pods)
            now[key] = bunch
        for pod in found.lone:
            if pod.finished:
                continue
            key = lone_key(pod, taken)
            bunch = known.get(key)
            if bunch is None or not bunch.is_of(None, [pod]):
                bunch = self._bunch(lone_job(key, pod), [pod])
            now[key] = bunch
        self.bunches = sorted(now.values(), key=_key)
        bunch = known.get(OTHERS)
        if bunch is None or bunch.pods != found.others:
            bunch = self._bunch(Job(OTHERS, None, "", 0, [], [], [], 0), found.others)
        self.others = now[OTHERS] = bunch
        if before is not None:
            self.used += before.used
            self.releasing += before.releasing
            self.queue_used += before.queue_used
            self.foreign += before.foreign
            self._sum([one for key, one in known.items() if now.get(key) is not one], -1)
        self._sum([one for key, one in now.items() if known.get(key) is not one], 1)

    def _bunch(self, job: Job, pods: list[Pod]) -> Bunch:
        return Bunch(job, pods, self.nodes, self.vectors)

    def _sum(self, bunches: Sequence[Bunch], sign: int) -> None:
        """Add what the pods of the bunches hold, or take it away."""
        held, leaving, resident, foreign = (_Rows() for _ in range(4))
        for bunch in bunches:
            held.at += bunch.at
            held.row += bunch.row
            for at, row, pod in zip(bunch.at, bunch.row, bunch.standing, strict=True):
                if pod.terminating:
                    leaving.at.append(at)
                    leaving.row.append(row)
            job = bunch.job
            if job.key == OTHERS:
                # room that another scheduler has promised to a pod of its own is as good as taken
                promised = [pod for pod in bunch.pods if _promised(pod) and pod.nominated in self.nodes]
                held.at += [self.nodes[pod.nominated or ""] for pod in promised]
                held.row += self.vectors.rows(promised)
                foreign.row += self.vectors.rows([pod for pod in bunch.standing if not pod.terminating])
            elif job.queue in self.queue_row:
                resident.at += [self.queue_row[job.queue]] * len(job.resident)
                resident.row += self.vectors.rows(job.resident)
            else:
                foreign.row += self.vectors.rows([pod for pod in job.resident if pod.node in self.nodes])
        foreign.at = [0] * len(foreign.row)
        sums = (self.used, held), (self.releasing, leaving), (self.queue_used, resident), (self.foreign[None], foreign)
        for out, rows in sums:
            if rows.row and sign > 0:
                self.vectors.add(out, rows.at, rows.row)
            elif rows.row:
                gone = np.zeros_like(out)
                self.vectors.add(gone, rows.at, rows.row)
                out -= gone

    def bunch(self, key: str) -> Bunch:
        """Of one job. Raises KeyError for another key."""
        return self._known[key]

    def ends(self) -> Ints:
        """(P,) when each pod that stands on a node is expected to end; in order of bunches, others last."""
        standing = [bunch for bunch in self.bunches if bunch.standing]
        stays = np.concatenate([NO_STAYS, *(bunch.stays for bunch in standing)])
        medians = np.full(len(stays), NEVER)
        begin = 0
        for bunch in standing:
            end = begin + len(bunch.at)
            if bunch.classes:
                medians[begin:end] = [NEVER if name is None else self.times.median(name) for name in bunch.classes]
            begin = end
        out = self.times.ends(stays, medians)
        others = self.others.standing
        # what a group says of the pods of other schedulers may change without them
        return np.concatenate([out, np.array([self.times.end(pod) for pod in others], np.int64)])

    @cached_property
    def held(self) -> Mapping[str, tuple[str, str]]:
        """Jobs of which nothing may be decided on now, with (code, sentence)."""
        unread = {problem.object: problem for problem in self.snapshot.problems}
        parents = {queue.parent for queue in self.queues.values()}
        reasons = ((b.job.key, hold(b.job, self.snapshot, self.queues, parents, unread)) for b in self.bunches)
        return {key: reason for key, reason in reasons if reason is not None}

    @cached_property
    def on_node(self) -> list[Pod]:
        """Unfinished pods on nodes that are there."""
        return [pod for pod in self.snapshot.pods if pod.node in self.nodes and pod.phase not in ENDED]

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return tuple(bunch.member for bunch in self.bunches if bunch.member is not None)

    @cached_property
    def units(self) -> Mapping[tuple[int, int, bytes], int]:
        """Queue row, priority and request vector, as bytes, of what runs, with how many: the minimum of each running
        job whose minimum runs, and each running pod beyond it.
        """
        out: dict[tuple[int, int, bytes], int] = defaultdict(int)
        for bunch in self.bunches:
            if bunch.job.resident and bunch.job.queue in self.queue_row:
                queue, priority = self.queue_row[bunch.job.queue], bunch.job.priority
                for unit, count in bunch.units.items():
                    out[queue, priority, unit] += count
        return out

    @cached_property
    def coupled(self) -> bool:
        """Whether any pod asks for what depends on other pods: near or far from them, a port, a volume."""
        return any(
            needs.affinity
            or needs.anti_affinity
            or needs.preferred_affinity
            or needs.preferred_anti_affinity
            or needs.spread
            or needs.ports
            or needs.volume_claims
            for needs in self.needs.values()
        )

    @cached_property
    def times(self) -> RunTimes:
        return RunTimes(self.snapshot)


@dataclass(slots=True)
class _Rows:
    """Where, and which vector."""

    at: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)


def _key(bunch: Bunch) -> str:
    return bunch.job.key


def _promised(pod: Pod) -> bool:
    return pod.nominated is not None and pod.node is None and not (pod.finished or pod.terminating)

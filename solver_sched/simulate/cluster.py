"""A cluster in this process, on a clock of its own: what a scheduler is told of one and does to it, without API server.

It is the `Cache` and the `Hands` of `scheduler.py`, and plays the parts of controllers and kubelets: jobs make their
pods, bound pods run and end, what is evicted or lost with its node is made anew, its work lost. Facts are the frozen
objects that readers make: through the service's cache, as JSON, those of a week of 200,000 pods would take a third of
the minute in which greedy may decide on them all (benchmarks/simulate.md).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from msgspec.structs import replace

from solver_sched.cluster.binder import Placement
from solver_sched.cluster.dialects.volcano import DIALECT as VOLCANO
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, RunTime
from solver_sched.cluster.run_times import medians, run_class
from solver_sched.simulate.trace import Job, NodeEvent, Trace
from solver_sched.snapshot import Snapshot

SCHEDULER = "solver-sched"
START = 1_767_225_600
"""Second 0 of every trace in seconds since the epoch: 1 January 2026, UTC."""
GRACE = 30
"""Seconds from an eviction to the end of the pod (Kubernetes' default terminationGracePeriodSeconds)."""
SLOTS = 110
"""Pods of a node that says nothing: the kubelet's `maxPods`."""
RUNS_KEPT = 101
"""Run times of a class of which the median counts: the latest ones, as in `cluster/cache.py`."""
DIALECT = VOLCANO.versions[0]

Amounts = dict[str, int]
_V = TypeVar("_V")


class _Rows(Generic[_V]):
    """Values by namespace and name, in that order."""

    def __init__(self) -> None:
        self._keys: list[tuple[str, str]] = []
        self.values: list[_V] = []

    def put(self, namespace: str, name: str, value: _V) -> None:
        key = (namespace, name)
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            self.values[at] = value
        else:
            self._keys.insert(at, key)
            self.values.insert(at, value)

    def drop(self, namespace: str, name: str) -> None:
        at = bisect_left(self._keys, (namespace, name))
        del self._keys[at], self.values[at]


class _Kind(IntEnum):
    """What may happen; of what happens in one second the first listed comes first: room is freed before it is asked."""

    end = 0
    gone = 1
    node = 2
    start = 3
    submit = 4


@dataclass(slots=True)
class Course:
    """What has become of a job so far; seconds of the trace, -1 = not yet. `started`: when its minimum first ran.

    `left`: pods that have not ended. `standing`: pods on a node, not terminating; `running`: those of them that run;
    `succeeded`: pods that are done.
    """

    job: Job
    group: PodGroup
    left: int
    started: int = -1
    ended: int = -1
    failed: bool = False
    evictions: int = 0
    standing: int = 0
    running: int = 0
    succeeded: int = 0
    first_failures: int = 0
    live: dict[str, _Life] = field(default_factory=dict)


@dataclass(slots=True)
class _Life:
    """One pod. `index`: which of its job's; `made`: how many there were before it; `since`: when it began to run."""

    course: Course
    pod: Pod
    index: int
    made: int
    since: int = -1


class EmbeddedCluster:
    """`grace`: seconds that an evicted pod still holds its room; `start`: seconds from a bind to the pod's running.

    Times are seconds of the trace. `used`, `capacity`: amounts per resource, of all nodes. `held`, `asked`: per queue,
    what its pods on nodes have, and these and the pending ones together. `spent`, `offered`: amounts x seconds so far.
    `ended`: jobs that are over. `evictions`: pods, of the scheduler's. `lost`: pod seconds of work that has to be done
    again. `refused`: binds that did not fit, which a kubelet refuses.
    """

    def __init__(self, trace: Trace, *, grace: int = GRACE, start: int = 0) -> None:
        self.trace, self.grace, self.start = trace, grace, start
        self.now = 0
        self.courses: dict[str, Course] = {}
        self.evictions = self.lost = self.refused = self.pending = self.running = self.ended = 0
        self.used: Amounts = defaultdict(int)
        self.capacity: Amounts = defaultdict(int)
        self.spent: Amounts = defaultdict(int)
        self.offered: Amounts = defaultdict(int)
        self.held: dict[str, Amounts] = defaultdict(lambda: defaultdict(int))
        self.asked: dict[str, Amounts] = defaultdict(lambda: defaultdict(int))
        self._changes = 0
        self._heap: list[tuple[int, int, int, object]] = []
        self._order = 0
        self._nodes: dict[str, Node] = {}
        self._node_rows: tuple[Node, ...] | None = None
        self._free: dict[str, dict[str, int]] = {}
        self._on: dict[str, dict[str, _Life]] = defaultdict(dict)
        self._pods: _Rows[Pod] = _Rows()
        self._groups: _Rows[PodGroup] = _Rows()
        self._life: dict[str, _Life] = {}
        self._runs: dict[str, deque[int]] = {}
        self._medians: dict[str, RunTime] = {}
        self._ended: set[str] = set()
        self._of_trace = {node.name: node for node in trace.nodes}
        for node in trace.nodes:
            self._add_node(node)
        for job in trace.jobs:
            self._at(job.submitted, _Kind.submit, job)
        for event in trace.events:
            self._at(event.at, _Kind.node, event)

    # The clock

    @property
    def next(self) -> int | None:
        """When something happens next, None = nothing will."""
        return self._heap[0][0] if self._heap else None

    def advance(self, until: int) -> None:
        """Let everything happen up to and in second `until`, which is not before now."""
        assert until >= self.now
        while self._heap and self._heap[0][0] <= until:
            at, kind, _, what = heapq.heappop(self._heap)
            self._pass(at)
            self._happen(kind, what)
        self._pass(until)

    def _pass(self, until: int) -> None:
        seconds = until - self.now
        if seconds:
            for name, amount in self.used.items():
                self.spent[name] += amount * seconds
            for name, amount in self.capacity.items():
                self.offered[name] += amount * seconds
            self.now = until

    def _at(self, second: int, kind: _Kind, what: object) -> None:
        self._order += 1
        heapq.heappush(self._heap, (second, kind, self._order, what))

    def _happen(self, kind: int, what: object) -> None:
        match kind, what:
            case _, Job():
                self._submit(what)
            case _Kind.start, _Life() if self._alive(what) and not what.pod.terminating:
                self._run(what)
            case _Kind.end, _Life() if self._alive(what) and not what.pod.terminating:
                self._end(what)
            case _Kind.gone, _Life() if self._alive(what):
                self._remove(what)
            case _, NodeEvent():
                self._node_event(what.node, what.what)

    def _alive(self, life: _Life) -> bool:
        return self._life.get(life.pod.key) is life

    # Jobs and their pods

    def _submit(self, job: Job) -> None:
        group = PodGroup(
            job.namespace,
            job.name,
            DIALECT,
            min_member=job.minimum,
            queue=job.queue,
            priority=job.priority,
            phase="Pending",
            created=START + self.now,
        )
        course = self.courses[job.key] = Course(job, group, job.size)
        self._put_group(course, group)
        index = 0
        for part in job.pods:
            for _ in range(part.count):
                self._make(course, index, 0, part.needs)
                index += 1

    def _make(self, course: Course, index: int, made: int, needs: Needs) -> None:
        job = course.job
        pod = Pod(
            job.namespace,
            f"{job.name}-{index}" + (f"-r{made}" if made else ""),
            needs,
            uid=f"{job.key}/{index}/{made}",
            scheduler=SCHEDULER,
            priority=job.priority,
            created=START + self.now,
            group=job.key,
            member_of=DIALECT,
            index=index,
            owner=f"Job/{job.name}",
            deadline=job.deadline,
            run_time=job.estimate,
        )
        life = _Life(course, pod, index, made)
        self._life[pod.key] = course.live[pod.key] = life
        self._put(life, pod)
        self.pending += 1
        _add(self.asked[job.queue], needs.request)

    def _run(self, life: _Life) -> None:
        course, job = life.course, life.course.job
        life.since = self.now
        self._put(life, replace(life.pod, phase="Running", started=START + self.now))
        self.running += 1
        course.running += 1
        if course.started < 0 and course.running + course.succeeded >= job.minimum:
            course.started = self.now
        seconds = min(job.run_time, job.deadline) if job.deadline else job.run_time
        if life.index == 0 and course.first_failures < len(job.failures):
            seconds = min(seconds, job.failures[course.first_failures])
        self._at(self.now + seconds, _Kind.end, life)

    def _end(self, life: _Life) -> None:
        course, job = life.course, life.course.job
        ran = self.now - life.since
        if ran < job.run_time and not (job.deadline and ran >= job.deadline):
            course.first_failures += 1
            self.lost += ran
            self._remove(life)
            self._make(course, life.index, life.made + 1, life.pod.needs)
        elif job.fails or ran < job.run_time:
            self._finish(course, failed=True)
        else:
            self._leave(life)
            course.left -= 1
            course.succeeded += 1
            self._ran(life, ran)
            self._put(life, replace(life.pod, phase="Succeeded"))
            if not course.left:
                self._finish(course, failed=False)
        self._phase(course)

    def _finish(self, course: Course, *, failed: bool) -> None:
        """The job is over and deleted with its pods; those that are being evicted still take their time."""
        course.ended, course.failed, course.left = self.now, failed, 0
        self.ended += 1
        for life in list(course.live.values()):
            if not life.pod.terminating:
                self._remove(life)
        self._groups.drop(course.job.namespace, course.job.name)

    def _ran(self, life: _Life, seconds: int) -> None:
        name = run_class(life.pod.namespace, life.pod.owner, life.pod.name, life.pod.role)
        self._runs.setdefault(name, deque(maxlen=RUNS_KEPT)).append(seconds)
        self._ended.add(name)

    def _stop(self, life: _Life) -> None:
        """Its pod begins to end before its time: another one is made, and does its work from the beginning."""
        course = life.course
        if life.since >= 0:
            self.lost += self.now - life.since
        course.standing -= 1
        if life.since >= 0:
            course.running -= 1
        self._put(life, replace(life.pod, terminating=True))
        if course.ended < 0:
            self._make(course, life.index, life.made + 1, life.pod.needs)
            self._phase(course)

    def _leave(self, life: _Life) -> None:
        """The pod gives its room back."""
        pod, course = life.pod, life.course
        queue, request = course.job.queue, pod.needs.request
        _add(self.asked[queue], request, -1)
        if pod.node is None:
            self.pending -= 1
            return
        del self._on[pod.node][pod.key]
        _add(self.held[queue], request, -1)
        if life.since >= 0:
            self.running -= 1
        if not pod.terminating:
            course.standing -= 1
            course.running -= life.since >= 0
        free = self._free.get(pod.node)
        if free is not None:
            _add(self.used, request, -1)
            _add(free, request)

    def _remove(self, life: _Life) -> None:
        if not life.pod.finished:
            self._leave(life)
        key = life.pod.key
        del self._life[key], life.course.live[key]
        self._pods.drop(life.pod.namespace, life.pod.name)
        self._changes += 1

    def _put(self, life: _Life, pod: Pod) -> None:
        life.pod = pod
        self._pods.put(pod.namespace, pod.name, pod)
        self._changes += 1

    def _put_group(self, course: Course, group: PodGroup) -> None:
        course.group = group
        self._groups.put(group.namespace, group.name, group)
        self._changes += 1

    def _phase(self, course: Course) -> None:
        """As `conditions.py` writes it, from Volcano pkg/scheduler/framework/job_updater.go."""
        if course.ended >= 0:
            return
        if course.standing + course.succeeded >= course.job.minimum:
            phase = "Running"
        elif course.running:
            phase = "Unknown"
        else:
            phase = "Inqueue" if course.group.phase == "Inqueue" else "Pending"
        if phase != course.group.phase:
            self._put_group(course, replace(course.group, phase=phase))

    # Nodes

    def _add_node(self, node: Node) -> None:
        self._nodes[node.name] = node
        self._free[node.name] = defaultdict(int, {"pods": SLOTS, **node.allocatable})
        _add(self.capacity, node.allocatable.items())
        self._node_rows = None
        self._changes += 1

    def _node_event(self, name: str, what: str) -> None:
        if what == "return":
            if name not in self._nodes:
                self._add_node(self._of_trace[name])
            else:
                self._nodes[name] = self._of_trace[name]
        elif name in self._nodes and what == "drain":
            self._nodes[name] = replace(self._nodes[name], unschedulable=True)
            for life in list(self._on[name].values()):
                self._evict(life)
        elif name in self._nodes:
            del self._nodes[name], self._free[name]
            _add(self.capacity, self._of_trace[name].allocatable.items(), -1)
            for life in list(self._on[name].values()):
                _add(self.used, life.pod.needs.request, -1)
                if not life.pod.terminating:
                    self._stop(life)
                self._remove(life)
        self._node_rows = None
        self._changes += 1

    def _evict(self, life: _Life) -> None:
        if not life.pod.terminating:
            self._stop(life)
            self._at(self.now + self.grace, _Kind.gone, life)

    # What the scheduler is told: scheduler.Cache

    def snapshot(self, now: int) -> Snapshot:
        """The cluster as it is; `now` in seconds since the epoch."""
        if self._node_rows is None:
            self._node_rows = tuple(self._nodes[name] for name in sorted(self._nodes))
        if self._ended:
            found = medians({name: list(self._runs[name]) for name in self._ended})
            self._medians.update((one.key, one) for one in found)
            self._ended.clear()
        return Snapshot(
            nodes=self._node_rows,
            pods=tuple(self._pods.values),
            groups=tuple(self._groups.values),
            queues=self.trace.queues,
            now=now,
            scheduler_names=(SCHEDULER,),
            run_times=tuple(self._medians[name] for name in sorted(self._medians)),
        )

    def changes(self) -> int:
        """Grows with every change."""
        return self._changes

    def wait_changed(self, since: int, seconds: float) -> bool:  # noqa: ARG002  # nothing changes while nobody advances
        return self._changes != since

    def next_end(self) -> float:
        """Nothing here is only assumed."""
        return float("inf")

    def last_word(self) -> float:
        """Nobody decided before."""
        return float("-inf")

    def failed(self) -> Mapping[str, int]:
        """Failed pods are replaced at once."""
        return {}

    # What the scheduler does: scheduler.Hands

    def admit(self, group: PodGroup) -> None:
        course = self.courses[group.key]
        if course.ended < 0 and course.group.phase == "Pending":
            self._put_group(course, replace(course.group, phase="Inqueue"))

    def bind(self, gangs: Iterable[Sequence[Placement]]) -> None:
        """Bind at once. A pod that does not fit stays pending, and is counted: kubelets refuse such pods."""
        for gang in gangs:
            for one in gang:
                self._bind(one)
            self._phase(self.courses[gang[0].pod.group or ""])

    def _bind(self, one: Placement) -> None:
        life, free = self._life.get(one.pod.key), self._free.get(one.node)
        if life is None or life.pod.node is not None:
            return
        request = life.pod.needs.request
        if free is None or any(amount > free.get(name, 0) for name, amount in request):
            self.refused += 1
            return
        _add(free, request, -1)
        _add(self.used, request)
        _add(self.held[life.course.job.queue], request)
        self.pending -= 1
        life.course.standing += 1
        self._on[one.node][life.pod.key] = life
        self._put(life, replace(life.pod, node=one.node, nominated=None))
        if self.start:
            self._at(self.now + self.start, _Kind.start, life)
        else:
            self._run(life)

    def evict(self, evictions: Iterable[Eviction]) -> None:
        for one in evictions:
            life = self._life.get(one.pod.key)
            if life is not None and life.pod.node is not None and not life.pod.finished:
                self.evictions += not life.pod.terminating
                life.course.evictions += not life.pod.terminating
                self._evict(life)

    def nominate(self, pod: Pod, node: str | None) -> None:
        life = self._life.get(pod.key)
        if life is not None and life.pod.node is None:
            self._put(life, replace(life.pod, nominated=node))

    def drain(self, seconds: float) -> bool:  # noqa: ARG002  # all is done at once
        return True


def _add(out: Amounts, amounts: Iterable[tuple[str, int]], times: int = 1) -> None:
    for name, amount in amounts:
        out[name] += times * amount

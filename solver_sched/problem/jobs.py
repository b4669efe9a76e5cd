"""Groups and lone pods as jobs: whose pods run, wait or are done, and what keeps a job from being decided on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from solver_sched.cluster.objects import Pod, PodGroup, Queue
from solver_sched.quantity import parse_duration
from solver_sched.snapshot import InputProblem, Snapshot

DEFAULT_QUEUE = "default"
WITHOUT_CLASS = ("scheduling.x-k8s.io/v1alpha1",)
"""Dialects whose PodGroup has no priority class: the job ranks by its highest pod.

Upstream there orders by the priority of the pods (scheduler-plugins pkg/coscheduling/coscheduling.go, Less).
"""
SLA_KEYS = ("volcano.sh/sla-waiting-time", "sla-waiting-time")


class Job(NamedTuple):
    """A group, or a pod on its own. `pending`, `resident` in task order; `terminating`: how many."""

    key: str
    group: PodGroup | None
    queue: str
    priority: int
    pending: list[Pod]
    resident: list[Pod]
    succeeded: list[Pod]
    terminating: int

    @property
    def minimum(self) -> int:
        return self.group.min_member if self.group is not None else 1

    @property
    def role_minimums(self) -> dict[str, int]:
        """Members of each role that must run, left out where that is 0 or their sum exceeds minMember.

        Volcano pkg/scheduler/api/job_info.go, CheckTaskReady.
        """
        wanted = self.group.min_task_member if self.group is not None else {}
        if sum(wanted.values()) > self.minimum:
            return {}
        return {role: least for role, least in sorted(wanted.items()) if least > 0}

    def created(self, now: int) -> int:
        """Creation time; what has none was written by hand and counts as created now, not as the oldest of all."""
        if self.group is not None and self.group.created:
            return self.group.created
        return min((pod.created for pod in self.pending if pod.created), default=now)

    def fresh(self, now: int, grace: int) -> bool:
        """Whether some of its members are on nodes, none is leaving, and the newest came there less than `grace`
        seconds ago. One that has no start time yet came just now.
        """
        if not self.resident or self.terminating:
            return False
        made = self.group.created if self.group is not None else 0
        came = max(pod.started or (now if pod.phase == "Pending" else pod.created) for pod in self.resident)
        return now - max(made, came) < grace

    def minimum_first(self, needed: int) -> list[Pod]:
        """Running pods with those that make up the minimum in front: the roles' minimums first, then task order."""
        wanted = dict(self.group.min_task_member) if self.group is not None else {}
        if not wanted or sum(wanted.values()) > needed:
            return list(self.resident)
        front, rest = [], []
        for pod in self.resident:
            if wanted.get(pod.role, 0) > 0:
                wanted[pod.role] -= 1
                front.append(pod)
            else:
                rest.append(pod)
        return front + rest


def queues_of(snapshot: Snapshot) -> dict[str, Queue]:
    """Queues by name; `default` is implied when absent (kube-batch and Volcano create it at start)."""
    queues = {queue.name: queue for queue in snapshot.queues}
    queues.setdefault(DEFAULT_QUEUE, Queue(name=DEFAULT_QUEUE))
    return queues


_SCHEDULER, _GROUP = attrgetter("scheduler"), attrgetter("group")


class Split(NamedTuple):
    """The pods of a snapshot: of each group, ours without a group, and other schedulers'."""

    members: dict[str, list[Pod]]
    lone: list[Pod]
    others: list[Pod]


def split(snapshot: Snapshot) -> Split:
    """Whose is whose; pods of a group stay in the order of the snapshot."""
    ours = frozenset(snapshot.scheduler_names)
    members: dict[str, list[Pod]] = defaultdict(list)
    lone: list[Pod] = []
    others: list[Pod] = []
    if ours.issuperset(map(_SCHEDULER, snapshot.pods)):  # in order of their names, members of a group stand together
        for group, run in groupby(snapshot.pods, _GROUP):
            (lone if group is None else members[group]).extend(run)
        return Split(members, lone, others)
    for pod in snapshot.pods:
        if pod.scheduler not in ours:
            others.append(pod)
        elif pod.group is not None:
            members[pod.group].append(pod)
        else:
            lone.append(pod)
    return Split(members, lone, others)


def default_priority(snapshot: Snapshot) -> int:
    return next((cls.value for cls in snapshot.priority_classes if cls.is_default), 0)


def jobs_of(snapshot: Snapshot) -> list[Job]:
    """Every group, and every pod of ours without one, in key order."""
    found, default = split(snapshot), default_priority(snapshot)
    groups = {group.key: group for group in snapshot.groups}
    taken = groups.keys() | found.members.keys()
    jobs = [job_of(key, groups.get(key), found.members.get(key, []), default) for key in taken]
    jobs += [lone_job(lone_key(pod, taken), pod) for pod in found.lone if not pod.finished]
    return sorted(jobs, key=lambda job: job.key)


def job_of(key: str, group: PodGroup | None, pods: list[Pod], default: int) -> Job:
    """A group with its pods, which may be missing. `default`: priority of what names none."""
    if group is None:
        return _job(key, None, "", max(pod.priority for pod in pods), pods)
    if group.priority is not None:
        priority = group.priority
    elif group.dialect in WITHOUT_CLASS and pods:
        priority = max(pod.priority for pod in pods)
    else:
        priority = default
    return _job(key, group, group.queue or DEFAULT_QUEUE, priority, pods)


def lone_job(key: str, pod: Pod) -> Job:
    return _job(key, None, pod.queue or DEFAULT_QUEUE, pod.priority, [pod])


def lone_key(pod: Pod, taken: Container[str]) -> str:
    """Pods and groups are named apart in Kubernetes: of two of one name the pod says what it is."""
    return f"{pod.key} (pod)" if pod.key in taken else pod.key


def _job(key: str, group: PodGroup | None, queue: str, priority: int, pods: list[Pod]) -> Job:
    """Split the members by what they are to the gang; releasing and failed ones do not count.

    Volcano pkg/scheduler/api/job_info.go, ReadyTaskNum.
    """
    pending: list[Pod] = []
    resident: list[Pod] = []
    succeeded: list[Pod] = []
    terminating = 0
    for pod in pods:
        phase = pod.phase
        if phase == "Succeeded":
            succeeded.append(pod)
        elif pod.terminating or phase == "Failed":
            terminating += phase != "Failed"
        elif pod.node is not None or phase == "Running":
            resident.append(pod)
        elif phase in ("Pending", ""):
            pending.append(pod)
    if len(pending) > 1:
        pending.sort(key=_task_order)
    if len(resident) > 1:
        resident.sort(key=_task_order)
    return Job(key, group, queue, priority, pending, resident, succeeded, terminating)


def _task_order(pod: Pod) -> tuple[int, int, int, str]:
    """Pod priority descending, then index, then name.

    Volcano pkg/scheduler/framework/session_plugins.go, TaskOrderFn, which ends with the creation time instead.
    """
    return (-pod.priority, pod.index if pod.index >= 0 else 2**31, len(pod.name), pod.name)


def age_limit(group: PodGroup | None) -> int:
    """`sla-waiting-time` of the group in seconds, 0 = not set. A value that is no duration does not limit."""
    for key in SLA_KEYS:
        if group is not None and key in group.annotations:
            return parse_duration(group.annotations[key]) or 0
    return 0


def hold(
    job: Job,
    snapshot: Snapshot,
    queues: Mapping[str, Queue],
    parents: Container[str | None],
    unread: Mapping[str, InputProblem],
) -> tuple[str, str] | None:
    """Why nothing of the job may be decided on now, as (code, sentence), or None. `parents`: of the queues. `unread`:
    by object, what is wrong with those that could not be read: they are missing here, but they do exist.
    """
    if job.group is None and not job.pending:
        return None
    if job.group is None and job.pending[0].group is not None:
        if f"PodGroup {job.key}" in unread:
            return "GroupMissing", f"pod group {job.key} cannot be used: {_mistake(unread[f'PodGroup {job.key}'])}"
        name = job.key.split("/", 1)[1]
        elsewhere = sorted(group.namespace for group in snapshot.groups if group.name == name)
        hint = f"; a group of that name is in namespace {', '.join(elsewhere)}" if elsewhere else ""
        return "GroupMissing", f"pod group {job.key} does not exist{hint}"
    if job.group is not None and job.group.suspended:
        return "Suspended", f"the owner of {job.key} is suspended"
    if job.group is not None and job.group.hold:
        return _split_hold(job.group.hold)
    queue = queues.get(job.queue)
    if queue is None and f"Queue {job.queue}" in unread:
        return "QueueMissing", f"queue {job.queue} cannot be used: {_mistake(unread[f'Queue {job.queue}'])}"
    if queue is None:
        return "QueueMissing", f"queue {job.queue} does not exist"
    if queue.state not in ("", "Open"):
        return "QueueClosed", f"queue {job.queue} is {queue.state.lower()}"
    if job.queue in parents:
        return "QueueInner", f"queue {job.queue} has child queues; only leaves start jobs"
    return None


def _mistake(problem: InputProblem) -> str:
    return ": ".join(part for part in (problem.field, problem.message) if part)


def pod_hold(pod: Pod) -> tuple[str, str] | None:
    if pod.hold:
        return _split_hold(pod.hold)
    if pod.gates:
        return "Gated", f"pod {pod.key} waits for scheduling gate {', '.join(pod.gates)}"
    return None


def _split_hold(text: str) -> tuple[str, str]:
    code, _, sentence = text.partition(": ")
    return (code, sentence) if sentence else ("Held", text)

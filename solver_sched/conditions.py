"""What users see of a cycle, as values: conditions of pods, status of pod groups and queues, events. Pure.

`cluster/status.py` and `cluster/events.py` write them, when they say something new.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver_sched.actions.decide import Admit, Bind
from solver_sched.actions.evict import Evict
from solver_sched.cluster.dialects import DIALECTS, NATIVE
from solver_sched.cluster.dialects.coscheduling import DIALECT as COSCHEDULING
from solver_sched.cluster.dialects.volcano import DIALECT as VOLCANO
from solver_sched.cluster.events import Event, Ref
from solver_sched.cluster.objects import Pod, PodGroup, Queue
from solver_sched.cluster.status import Condition, GroupStatus, PodStatus, QueueStatus
from solver_sched.cycle import CycleReport
from solver_sched.explain import Reason
from solver_sched.problem.arrays import RESERVED_PREFIX, Ints
from solver_sched.problem.jobs import DEFAULT_QUEUE, queues_of
from solver_sched.quantity import format as format_quantity

UNSCHEDULABLE = "Unschedulable"
"""The reason of core/v1 for which autoscalers add nodes."""
QUOTA_EXCEEDED = "QuotaExceeded"
"""Of pods that no node would help: autoscalers look for `Unschedulable` alone (Cluster Autoscaler's pod lister,
Karpenter's IsProvisionable; volcano#1775, karpenter#742).
"""
OF_QUOTA = ("QueueCapability", "QueueShare", "QueueClosed")
VOTERS_OF_QUOTA = ("capacity", "proportion", "resourcequota")
"""Those who keep a group out for what its queue or namespace may hold; `overcommit` does for want of nodes."""
READY = "tasks in gang are ready to be scheduled"
"""Volcano's reason of the condition Scheduled, as its users match it (pkg/scheduler/plugins/gang/gang.go)."""
NOT_STARTED = ("", "Pending", "Inqueue", "Unknown")
_QUEUES = tuple(version for dialect in DIALECTS if dialect.queue for version in dialect.versions)


@dataclass(frozen=True, slots=True)
class _Members:
    """Pods of a group by what they are doing. `standing`: they have a node, those that are being deleted included."""

    pods: int = 0
    waiting: int = 0
    standing: int = 0
    ending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def scheduled(self) -> int:
        """Volcano's scheduled set: placed or done."""
        return self.standing + self.succeeded + self.failed

    @property
    def ready(self) -> int:
        """Those that count for the minimum."""
        return self.standing - self.ending + self.succeeded


class Shown:
    """What one cycle shows to users. `quota_reason`: QuotaExceeded for pods that wait for quota alone. `failed`: failed
    pods of each group that still exist.
    """

    def __init__(self, report: CycleReport, *, quota_reason: bool = True, failed: Mapping[str, int] = {}) -> None:
        self._report, self._quota_reason = report, quota_reason
        self._ours = frozenset(report.snapshot.scheduler_names)
        self._admitted = {one.pod_group for one in report.decisions if isinstance(one, Admit)}
        self._bound = {one.pod for one in report.decisions if isinstance(one, Bind)}
        self._members = self._counted(failed)
        self._phases: dict[str, str] = {}
        self.groups: tuple[GroupStatus, ...] = tuple(self._group(group) for group in self._our_groups())

    def pods(self) -> Iterator[PodStatus]:
        """PodScheduled=False of every pod of ours that this cycle leaves waiting, except gated ones, of which the API
        server says it.
        """
        for pod in self._waiting():
            reason = self._reason(pod)
            if reason is not None:
                yield PodStatus(pod, self._word(reason), _sentence(reason))

    def queues(self) -> Iterator[QueueStatus]:
        """What is allocated, and groups by phase; a queue above others shows the sum of them."""
        snapshot = self._report.snapshot
        queues = queues_of(snapshot)
        phases: dict[str, Counter[str]] = defaultdict(Counter)
        for group in self._our_groups():
            for name in (group.queue or DEFAULT_QUEUE, *_ancestors(group.queue or DEFAULT_QUEUE, queues)):
                phases[name][self._phases.get(group.key, "Pending")] += 1
        allocated = self._allocated(queues)
        for queue in snapshot.queues:
            count = phases[queue.name]
            fields: dict[str, Any] = {
                name.lower(): count[name] for name in ("Pending", "Inqueue", "Running", "Unknown", "Completed")
            }
            fields["allocated"] = allocated[queue.name]
            if queue.state in ("Closing", "Closed"):
                fields["state"] = "Closing" if any(count.values()) else "Closed"
            yield QueueStatus(queue.name, fields, {"state": "Open"})

    def _allocated(self, queues: Mapping[str, Queue]) -> dict[str, dict[str, str]]:
        """Canonical quantities by queue, after the plan."""
        report = self._report
        used = report.problem.after(report.plan).queue_used + report.plan.of_queues(report.problem)
        total: dict[str, Ints] = defaultdict(lambda: np.zeros(len(report.index.resources), np.int64))
        for name, amounts in zip(report.index.queues, used, strict=True):
            for each in (name, *_ancestors(name, queues)):
                total[each] = total[each] + amounts
        return {
            name: {
                resource: format_quantity(resource, int(amount))
                for resource, amount in zip(report.index.resources, total[name], strict=True)
                if amount and not resource.startswith(RESERVED_PREFIX)
            }
            for name in queues
        }

    def events(self) -> Iterator[Event]:
        """Why pods and groups wait, which groups may start, and which make room."""
        for pod in self._waiting():
            reason = self._reason(pod)
            if reason is not None and reason.code != "Nominated":
                note = _sentence(reason)
                yield Event(Ref.of(pod), "FailedScheduling", "Scheduling", note, "Warning", about=reason.code)
        for one in self.groups:
            group, reason = one.group, self._report.reasons.get(one.group.key)
            members = self._members[group.key]
            if reason is not None and reason.code != "Nominated" and members.ready < max(1, group.min_member):
                note = _gang(members, reason)
                yield Event(Ref.of(group), UNSCHEDULABLE, "Scheduling", note, "Warning", about=reason.code)
            elif members.ready >= max(1, group.min_member) and group.dialect in _QUEUES and group.phase in NOT_STARTED:
                yield Event(Ref.of(group), "Scheduled", "Scheduling", "pod group is ready")
        groups = {group.key: group for group in self._report.snapshot.groups}
        said: dict[tuple[str, str], Evict] = {}
        for decision in self._report.decisions:
            if isinstance(decision, Evict) and decision.pod_group in groups:
                said.setdefault((decision.pod_group, decision.action), decision)
        for (key, action), first in said.items():
            note = f"{action}: {first.reason}"
            yield Event(Ref.of(groups[key]), "Evict", "Preempting", note, about=action)

    # -- pods ----------------------------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Pod]:
        for pod in self._report.snapshot.pods:
            if self._waits(pod) and pod.key not in self._bound and not pod.gates:
                yield pod

    def _waits(self, pod: Pod) -> bool:
        pending = pod.node is None and not pod.terminating and pod.phase in ("Pending", "")
        return pending and pod.scheduler in self._ours

    def _reason(self, pod: Pod) -> Reason | None:
        held = self._report.index.held.get(pod.key) if pod.group is not None else None
        if held is not None:
            return Reason(*held)
        if pod.group is not None:
            return self._report.reasons.get(pod.group)
        return self._report.reasons.get(f"{pod.key} (pod)") or self._report.reasons.get(pod.key)

    def _word(self, reason: Reason) -> str:
        voter = reason.detail.get("voter") if reason.code == "NotAdmitted" else None
        quota = reason.code in OF_QUOTA or voter in VOTERS_OF_QUOTA
        return QUOTA_EXCEEDED if quota and self._quota_reason else UNSCHEDULABLE

    # -- groups --------------------------------------------------------------------------------------------------

    def _counted(self, failed: Mapping[str, int]) -> dict[str, _Members]:
        count: dict[str, Counter[str]] = defaultdict(Counter)
        for pod in self._report.snapshot.pods:
            if pod.group is None or pod.scheduler not in self._ours or pod.phase == "Failed":
                continue
            of = count[pod.group]
            standing = not pod.finished and pod.node is not None
            of["pods"] += 1
            of["succeeded"] += pod.phase == "Succeeded"
            of["standing"] += standing
            of["ending"] += standing and pod.terminating
            of["running"] += pod.phase == "Running" and not pod.terminating
            of["waiting"] += self._waits(pod)
        for key, number in failed.items():
            count[key].update(failed=number, pods=number)
        return defaultdict(_Members, {key: _Members(**of) for key, of in count.items()})

    def _our_groups(self) -> Iterator[PodGroup]:
        """Not those whose pods all belong to other schedulers, or will; and those that no pod has named yet only where
        there are queues: there a group may be let in before its pods are made.
        """
        others = {pod.group for pod in self._report.snapshot.pods if pod.group and pod.scheduler not in self._ours}
        for group in self._report.snapshot.groups:
            theirs = group.key in others or group.scheduler not in ("", *self._ours)
            if group.key in self._members or (group.dialect in _QUEUES and not theirs):
                yield group

    def _group(self, group: PodGroup) -> GroupStatus:
        members, reason = self._members[group.key], self._report.reasons.get(group.key)
        if group.dialect in NATIVE:
            return self._native(group, members, reason)
        if group.dialect in COSCHEDULING.versions:
            return GroupStatus(group, _coscheduling(group, members))
        return self._queued(group, members, reason)

    def _queued(self, group: PodGroup, members: _Members, reason: Reason | None) -> GroupStatus:
        """Volcano's and kube-batch's: Volcano pkg/scheduler/framework/job_updater.go and session.go, jobStatus."""
        volcano, least = group.dialect in VOLCANO.versions, max(1, group.min_member)
        ready = members.ready >= least
        if members.running and not ready and reason is not None:
            phase = "Unknown"
        elif members.scheduled >= least:
            done = members.scheduled == members.succeeded + members.failed
            phase = "Completed" if done and volcano else "Running"
        else:
            phase = self._before_start(group)
        self._phases[group.key] = phase
        fields = {"phase": phase} | {
            name: number if (number := getattr(members, name)) else None for name in ("running", "succeeded", "failed")
        }
        conditions: tuple[Condition, ...] = ()
        ended: tuple[str, ...] = ()
        if ready:
            ended = (UNSCHEDULABLE,)
            if volcano:
                conditions = (Condition("Scheduled", "True", READY, "", numbered=True),)
        elif reason is not None:
            word = "NotEnoughTasks" if reason.code == "GangIncomplete" else "NotEnoughResources"
            conditions = (Condition(UNSCHEDULABLE, "True", word, _gang(members, reason), numbered=True),)
            ended = ("Scheduled",) if volcano else ()
        return GroupStatus(group, fields, conditions, ended)

    def _before_start(self, group: PodGroup) -> str:
        if group.phase == "Inqueue" or group.key in self._admitted:
            return "Inqueue"
        return "Pending"

    def _native(self, group: PodGroup, members: _Members, reason: Reason | None) -> GroupStatus:
        """KEP-4671: the first condition never goes back once it is True. In v1alpha2 it had another name."""
        name = "PodGroupScheduled" if group.dialect.endswith("v1alpha2") else "PodGroupInitiallyScheduled"
        conditions = []
        if members.ready >= max(1, group.min_member):
            conditions.append(Condition(name, "True", "Scheduled", "", once=True))
        elif reason is not None and reason.code != "Evicted":
            conditions.append(Condition(name, "False", UNSCHEDULABLE, _sentence(reason), once=True))
        if reason is not None and reason.code == "Evicted":
            conditions.append(Condition("DisruptionTarget", "True", "PreemptionByScheduler", reason.message))
            return GroupStatus(group, {}, tuple(conditions))
        return GroupStatus(group, {}, tuple(conditions), ("DisruptionTarget",))


def _coscheduling(group: PodGroup, members: _Members) -> dict[str, Any]:
    """Its phases (scheduler-plugins pkg/controllers/podgroup_controller.go)."""
    least = max(1, group.min_member)
    if members.pods < least:
        phase = "Pending"
    elif members.succeeded >= least:
        phase = "Finished"
    elif members.failed and members.failed + members.running + members.succeeded >= least:
        phase = "Failed"
    elif members.running + members.succeeded >= least:
        phase = "Running"
    elif members.scheduled >= least:
        phase = "Scheduled"
    else:
        phase = "Scheduling"
    numbers = {name: getattr(members, name) or None for name in ("scheduled", "running", "succeeded", "failed")}
    return {"phase": phase, **numbers}


def _sentence(reason: Reason) -> str:
    return f"{reason.code}: {reason.message}"


def _gang(members: _Members, reason: Reason) -> str:
    """As Volcano opens it, for those who look for it."""
    return f"{members.waiting}/{members.pods} tasks in gang unschedulable: {_sentence(reason)}"


def _ancestors(name: str, queues: Mapping[str, Queue]) -> list[str]:
    """Parents of a queue, nearest first; a queue that is its own ancestor ends the list."""
    out: list[str] = []
    parent = queues[name].parent if name in queues else ""
    while parent and parent in queues and parent not in out and parent != name:
        out.append(parent)
        parent = queues[parent].parent
    return out

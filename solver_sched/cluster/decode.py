"""JSON text of single Kubernetes objects -> the values of `objects.py`, API defaults resolved.

One bad object costs one object: every method raises InputError with the field, never anything else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from solver_sched.cluster import wire
from solver_sched.cluster.dialects import ANNOTATED, BY_VERSION, LABELLED, MISPRINTS, NATIVE
from solver_sched.cluster.dialects.dialect import TASK_SPEC, kept_annotations, named, namespace, segment
from solver_sched.cluster.needs import NeedsReader, label_selector
from solver_sched.cluster.objects import (
    Budget,
    Namespace,
    Node,
    Pod,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
    Taint,
)
from solver_sched.cluster.requests import Quantities, amounts
from solver_sched.cluster.run_times import RUN_TIME, deadline, run_class, run_time
from solver_sched.cluster.selectors import selects
from solver_sched.cluster.wire import controller, decoded, within
from solver_sched.errors import InputError

GROUP_NAME = "scheduling.k8s.io/group-name"
GROUP_NAME_TWIN = "scheduling.volcano.sh/group-name"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
MIN_MEMBER = ("scheduling.k8s.io/group-min-member", "scheduling.volcano.sh/group-min-member")
QUEUE_NAME = "scheduling.volcano.sh/queue-name"
TASK_INDEX, TASK_PRIORITY = "volcano.sh/task-index", "volcano.sh/task-priority"
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
PREEMPTABLE = "volcano.sh/preemptable"
HOLD = "solver-sched.io/hold"
RESERVED_FOR = "solver-sched.io/reserved-for"

SHADOW = "shadow"
"""`PodGroup.dialect` of a group that exists only through its pods' annotation, as kube-batch makes them."""

DEFAULT_QUEUE = "default"
DEFAULT_POD_SLOTS = 110
"""kubelet's `--max-pods`; hand-written nodes often leave `pods` out, real ones never."""

SYSTEM_CLASSES = (
    PriorityClass("system-cluster-critical", 2_000_000_000),
    PriorityClass("system-node-critical", 2_000_001_000),
)
"""Made by every API server (pkg/apis/scheduling/v1/helpers.go); dumps often lack them."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_TRAILING_NUMBER = re.compile(r"[0-9]+$")
_NOTHING: Mapping[str, str] = {}


class OfJob(NamedTuple):
    """What a Job sets for its pods: seconds until they are ended and seconds that they run, 0 = none; who is to place
    them, "" = it does not say.
    """

    deadline: int = 0
    run_time: int = 0
    scheduler: str = ""


NO_JOB = OfJob()


class Reader:
    """Reads objects one by one, sharing equal parts. Make a new one per load.

    `classes`: PriorityClass by name. `queues`: namespace -> the queue its annotation names. Both must be known first,
    and before pods are read `dialects`: group "namespace/name" -> the apiVersion it was read in, and `jobs`:
    (namespace, name) of a Job -> what it sets for its pods.

    Afterwards `newest` is the latest time seen, in seconds; `shadows` are groups implied by `group-min-member`, by key;
    `runs`: class -> seconds that its succeeded pods ran;
    `unknown_classes`: priority class that is named but not known -> the first object that names it;
    `claim_templates`: (namespace, claim, template) of ephemeral volumes of pods that no API server has seen.
    """

    def __init__(self, classes: Mapping[str, PriorityClass], queues: Mapping[str, str]) -> None:
        self.dialects: Mapping[str, str] = {}
        self.jobs: Mapping[tuple[str, str], OfJob] = {}
        self.runs: dict[str, list[int]] = {}
        self.newest = 0
        self.shadows: dict[str, PodGroup] = {}
        self.unknown_classes: dict[str, str] = {}
        self.claim_templates: list[tuple[str, str, wire.ClaimTemplate]] = []
        self._classes = classes
        self._queues = queues
        # Where several claim to be the default, the API server takes the one of the lowest value.
        self._default_class = min(
            (one for one in classes.values() if one.is_default), key=lambda one: (one.value, one.name), default=None
        )
        self._newest_text = ""
        self._quantities = Quantities()
        self._needs = NeedsReader(self._quantities)
        self._labels: dict[bytes, Mapping[str, str]] = {}
        self._pod = msgspec.json.Decoder(wire.Pod)
        self._node = msgspec.json.Decoder(wire.Node)
        self._map = msgspec.json.Decoder(dict[str, str])
        self._string: dict[str, str] = {}

    @property
    def size(self) -> int:
        """How many parts it remembers."""
        return len(self._labels) + len(self._string) + self._needs.size

    # Pods

    def pod(self, raw: Raw | bytes, hold: str = "") -> Pod | None:
        """The pod; None for a finished one, unless it succeeded as a member of a group and so counts there.

        `hold`: a reason found elsewhere that it must wait.
        """
        pod = decoded(self._pod, raw)
        meta, spec, status = pod.metadata, pod.spec, pod.status
        name, where = named(meta), namespace(meta)
        phase = (status.phase if status is not None else None) or "Pending"
        labels, annotations = self.labels(meta), meta.annotations or _NOTHING
        group, dialect = self._group_of(pod, where, labels, annotations)
        if phase == "Succeeded":
            self._ran(pod, where, name, annotations.get(TASK_SPEC) or labels.get(TASK_SPEC) or "")
        if phase == "Failed" or (phase == "Succeeded" and not dialect):
            self._saw_conditions(status)
            return None
        needs = self._needs.of(pod, where, name, labels)
        hold = annotations.get(HOLD) or hold
        if not hold and group and not dialect and group in self.dialects:
            hold = f"Unmodelled: names group {group} in a way that does not lead to {self.dialects[group]}"
        if not hold and needs.resource_claims:
            hold = f"Claims: device claim {needs.resource_claims[0]} (DRA) is not modelled"
        if not hold and spec.workload_ref is not None:
            hold = "Unmodelled: spec.workloadRef (Kubernetes 1.35) is not modelled; name a PodGroup instead"
        priority, class_name, preempts = self._priority(spec, annotations, f"Pod {where}/{name}")
        made, started = self._saw(meta.creation_timestamp, "metadata.creationTimestamp"), 0
        if status is not None:
            started = self._saw(status.start_time, "status.startTime")
            self._saw_conditions(status)
        if not (meta.uid or meta.resource_version):
            self._ephemeral_claims(spec, where, name)
        owner = controller(meta.owner_references)
        of_job = self.jobs.get((where, owner.name), NO_JOB) if owner and owner.kind == "Job" else NO_JOB
        return Pod(
            namespace=self._shared(where),
            name=name,
            needs=needs,
            uid=meta.uid or "",
            labels=labels,
            annotations=kept_annotations(meta) if annotations else _NOTHING,
            phase=phase,
            node=self._shared(spec.node_name) if spec.node_name else None,
            nominated=(status.nominated_node_name or None) if status is not None else None,
            scheduler=spec.scheduler_name or "default-scheduler",
            priority=priority,
            priority_class=class_name,
            preempts=preempts,
            preemptable=_preemptable(annotations, labels),
            created=made,
            started=started,
            group=self._shared(group) if group else None,
            member_of=dialect,
            role=self._shared(annotations.get(TASK_SPEC) or labels.get(TASK_SPEC) or ""),
            index=_index(name, annotations, labels),
            terminating=bool(meta.deletion_timestamp),
            gates=tuple(sorted(gate.name for gate in spec.scheduling_gates or ())),
            hold=hold,
            owner=self._shared(f"{owner.kind}/{owner.name}") if owner else "",
            queue=self._shared(annotations.get(QUEUE_NAME) or self._queues.get(where, "")),
            deadline=deadline(spec.active_deadline_seconds) or of_job.deadline,
            run_time=run_time(annotations.get(RUN_TIME)) or of_job.run_time,
        )

    def _ran(self, pod: wire.Pod, where: str, name: str, role: str) -> None:
        """Note how long a pod ran that has succeeded: its conditions turn when its last container ends
        (kubelet pkg/kubelet/status/generate.go, PodCompleted).
        """
        status = pod.status
        if status is None or not status.start_time:
            return
        try:
            turned = [wire.seconds(c.last_transition_time) for c in status.conditions or () if c.last_transition_time]
            ran = max(turned, default=0) - wire.seconds(status.start_time)
        except ValueError:
            return
        if ran > 0:
            owner = controller(pod.metadata.owner_references)
            said = f"{owner.kind}/{owner.name}" if owner else ""
            self.runs.setdefault(run_class(where, said, name, role), []).append(ran)

    def _group_of(
        self, pod: wire.Pod, where: str, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> tuple[str, str]:
        """The group's key and the dialect that holds it; dialect "" if there is no such group, key "" for a lone pod.

        Where a pod names groups in several ways, the first way that leads to an existing group counts.
        """
        first = ""
        for key, versions in named_groups(pod, where, labels, annotations):
            version = self.dialects.get(key)
            if version in versions:
                return key, version
            first = first or key
        if first:
            return first, ""
        for annotation in MIN_MEMBER:
            if annotation in annotations:
                return self._shadow(pod, where, annotations, annotation), SHADOW
        return "", ""

    def _ephemeral_claims(self, spec: wire.PodSpec, where: str, name: str) -> None:
        """The claims that the ephemeral volume controller would make (KEP-1698)."""
        for i, volume in enumerate(spec.volumes or ()):
            template = volume.ephemeral.volume_claim_template if volume.ephemeral is not None else None
            if template is not None:
                claim = segment(f"{name}-{volume.name}", f"spec.volumes[{i}].name")
                self.claim_templates.append((where, claim, template))

    def _shadow(self, pod: wire.Pod, where: str, annotations: Mapping[str, str], annotation: str) -> str:
        """kube-batch: pods of one controller with `group-min-member` are a gang without a PodGroup object."""
        path = f"metadata.annotations[{annotation}]"
        minimum = _integer(annotations[annotation], path)
        if minimum < 0:
            raise InputError(f"{minimum} is negative; must be 0 or more", field=path)
        name = shadow_name(pod.metadata)
        with within("metadata.creationTimestamp"):
            made = wire.time(pod.metadata.creation_timestamp)
        queue = annotations.get(QUEUE_NAME) or self._queues.get(where) or DEFAULT_QUEUE
        known = self.shadows.get(f"{where}/{name}") or PodGroup(where, name, SHADOW, minimum, queue, created=made)
        # The order in which the pods come must not matter.
        shadow = replace(
            known,
            min_member=max(known.min_member, minimum),
            queue=min(known.queue, queue),
            created=min(known.created, made),
        )
        self.shadows[shadow.key] = shadow
        return shadow.key

    def _priority(self, spec: wire.PodSpec, annotations: Mapping[str, str], who: str) -> tuple[int, str, bool]:
        """(priority, class name, may preempt) of a pod. The API server has written them into dumped pods."""
        name = spec.priority_class_name or ""
        chosen = self._class(name, who if spec.priority is None else "")
        if chosen is None and spec.priority is None and not name:
            chosen = self._default_class
            name = chosen.name if chosen else ""
        priority = spec.priority
        if priority is None:
            priority = chosen.value if chosen is not None else 0
        if TASK_PRIORITY in annotations:
            priority = _integer(annotations[TASK_PRIORITY], f"metadata.annotations[{TASK_PRIORITY}]")
        if spec.preemption_policy is not None:
            return priority, name, spec.preemption_policy != "Never"
        return priority, name, chosen.preempts if chosen is not None else True

    def _class(self, name: str, who: str) -> PriorityClass | None:
        found = self._classes.get(name)
        if name and who and found is None:
            self.unknown_classes[name] = min(who, self.unknown_classes.get(name, who))
        return found

    # Groups and queues

    def group(self, raw: Raw | bytes, version: str) -> PodGroup:
        """The PodGroup with its queue and, where its dialect ranks groups by class, its priority."""
        dialect = BY_VERSION[version]
        with within(""):
            group = dialect.group(raw, MISPRINTS.get(version, version))
        for path, number in {"minMember": group.min_member, **group.min_task_member}.items():
            if number < 0:
                inside = path if path == "minMember" else f"minTaskMember.{path}"
                raise InputError(f"{number} is negative; must be 0 or more", field=f"spec.{inside}")
        self.newest = max(self.newest, group.created)
        priority = group.priority
        if priority is None and dialect.class_field:
            chosen = self._class(group.priority_class, f"PodGroup {group.key}") or self._default_class
            priority = chosen.value if chosen is not None else 0
        queue = group.queue or group.annotations.get(QUEUE_NAME) or self._queues.get(group.namespace)
        return replace(group, queue=queue or DEFAULT_QUEUE, priority=priority)

    def queue(self, raw: Raw | bytes, version: str) -> Queue:
        """The Queue."""
        read = BY_VERSION[version].queue
        assert read is not None, version
        with within(""):
            queue = read(raw, MISPRINTS.get(version, version))
        for path, number in (("spec.weight", queue.weight), ("spec.priority", queue.priority)):
            if number < 0:
                raise InputError(f"{number} is negative; must be 0 or more", field=path)
        return queue

    # Nodes

    def node(self, raw: Raw | bytes) -> Node:
        """The node. Without `status.allocatable` its capacity counts; without a Ready condition it is ready."""
        node = decoded(self._node, raw)
        spec, status = node.spec or wire.NodeSpec(), node.status or wire.NodeStatus()
        part = "allocatable" if wire.text(status.allocatable) else "capacity"
        with within(f"status.{part}"):
            room = self._quantities.plain(status.allocatable if part == "allocatable" else status.capacity)
        if "pods" not in room:
            room = {**room, "pods": DEFAULT_POD_SLOTS}
        taints = {Taint(taint.key, taint.value or "", taint.effect) for taint in spec.taints or ()}
        made = self._saw(node.metadata.creation_timestamp, "metadata.creationTimestamp")
        # Heartbeats are not seen: `now` must not depend on when the last one was written.
        ready = all(c.status == "True" for c in status.conditions or () if c.type == "Ready")
        return Node(
            name=named(node.metadata),
            allocatable=room,
            labels=self.labels(node.metadata),
            taints=tuple(sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect))),
            unschedulable=bool(spec.unschedulable),
            ready=ready,
            created=made,
            reserved_for=(node.metadata.annotations or _NOTHING).get(RESERVED_FOR, ""),
        )

    # Shared parts

    def labels(self, meta: wire.Meta) -> Mapping[str, str]:
        """The labels; equal ones are one mapping."""
        data = wire.text(meta.labels)
        found = self._labels.get(data)
        if found is None:
            with within("metadata.labels"):
                found = self._labels[data] = self._map.decode(data) if data else _NOTHING
        return found

    def _shared(self, value: str) -> str:
        return self._string.setdefault(value, value)

    def _saw(self, timestamp: str | None, path: str) -> int:
        if not timestamp:
            return 0
        try:
            moment = wire.seconds(timestamp)
        except ValueError:
            with within(path):
                return wire.time(timestamp)
        self.newest = max(self.newest, moment)
        return moment

    def _saw_conditions(self, status: wire.PodStatus | None) -> None:
        """Times of conditions count for `newest`; being read for nothing else, a broken one is passed over."""
        for condition in (status.conditions if status is not None else None) or ():
            timestamp = condition.last_transition_time
            # Almost all are written in one format whose order is the order of time.
            if timestamp and (timestamp > self._newest_text or len(timestamp) != len(self._newest_text)):
                try:
                    moment = wire.seconds(timestamp)
                except ValueError:
                    continue
                if moment >= self.newest:
                    self.newest, self._newest_text = moment, timestamp


def named_groups(
    pod: wire.Pod, where: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The groups that a pod names, as "namespace/name", each with the apiVersions in which that way may find it."""
    native = pod.spec.scheduling_group
    for name, versions in (
        (native.pod_group_name if native is not None else None, NATIVE),
        (annotations.get(GROUP_NAME), ANNOTATED),
        (annotations.get(GROUP_NAME_TWIN), ANNOTATED),
        (labels.get(GROUP_LABEL), LABELLED),
    ):
        if name:
            yield f"{where}/{name}", versions


def shadow_name(meta: wire.Meta) -> str:
    """The name of the group that pods of one controller are without a PodGroup."""
    owner = controller(meta.owner_references)
    return f"{owner.kind.lower()}-{owner.name}" if owner else f"pod-{meta.name}"


def read_namespace(raw: Raw | bytes) -> tuple[Namespace, str]:
    """The namespace, and the queue that its annotation names or ""."""
    meta = decoded(_namespaces, raw).metadata
    return Namespace(named(meta), _labels_of(meta)), (meta.annotations or {}).get(QUEUE_NAME, "")


def read_job(raw: Raw | bytes) -> tuple[tuple[str, str], OfJob]:
    """(namespace, name) of a Job of Kubernetes or Volcano, and what it sets for its pods.

    A Job's deadline counts from the Job's start (batch/v1, activeDeadlineSeconds), so its pods end no later than this.
    """
    job = decoded(_jobs, raw)
    spec, meta = job.spec or wire.JobSpec(), job.metadata
    said = (meta.annotations or _NOTHING).get(RUN_TIME) or spec.running_estimate
    of_job = OfJob(deadline(spec.active_deadline_seconds), run_time(said), spec.scheduler_name or "")
    return (namespace(meta), meta.name or ""), of_job


def placed_by(
    groups: Iterable[PodGroup], jobs: Mapping[tuple[str, str], OfJob], ours: Collection[str]
) -> Iterator[PodGroup]:
    """The groups, those with the other scheduler's name whose Job names one that is not among `ours`."""
    for group in groups:
        scheduler = jobs.get((group.namespace, group.job), NO_JOB).scheduler if group.job else ""
        yield replace(group, scheduler=scheduler) if scheduler and scheduler not in ours else group


def read_priority_class(raw: Raw | bytes) -> PriorityClass:
    """The priority class."""
    found = decoded(_classes, raw)
    return PriorityClass(
        named(found.metadata), found.value, bool(found.global_default), found.preemption_policy != "Never"
    )


def read_budget(raw: Raw | bytes, pods: Iterable[Pod]) -> Budget:
    """The budget: what its status allows or, in a hand-written one without status, what its spec leaves of `pods`."""
    found = decoded(_budgets, raw)
    name, where = named(found.metadata), namespace(found.metadata)
    selector = label_selector(found.spec.selector)
    allowed = found.status.disruptions_allowed if found.status is not None else None
    if allowed is None:
        allowed = _allowed(found.spec, (p for p in pods if p.namespace == where and selects(selector, p.labels)))
    return Budget(where, name, selector, max(0, allowed))


def read_quota(raw: Raw | bytes) -> ResourceQuota:
    """The quota: what its status enforces or, where no controller has seen it, its spec. InputError for one with
    scopes: which pods it counts is not modelled.
    """
    found = decoded(_quotas, raw)
    spec, status = found.spec or wire.QuotaSpec(), found.status or wire.QuotaStatus()
    for path, given in (("spec.scopes", spec.scopes), ("spec.scopeSelector", wire.text(spec.scope_selector))):
        if given:
            raise InputError("a quota with scopes is not modelled: it limits nothing here", field=path)
    part, hard = ("spec.hard", spec.hard) if status.hard is None else ("status.hard", status.hard)
    with within(part):
        most = amounts(hard)
    with within("status.used"):
        used = None if status.used is None else amounts(status.used)
    return ResourceQuota(namespace(found.metadata), named(found.metadata), most, used)


def _allowed(spec: wire.DisruptionSpec, matching: Iterable[Pod]) -> int:
    """Disruption controller: healthy pods minus those that must stay; percentages are rounded up."""
    present = [pod for pod in matching if not pod.finished]
    healthy = sum(pod.phase == "Running" and not pod.terminating for pod in present)
    if spec.max_unavailable is not None:
        return healthy - (len(present) - _share(spec.max_unavailable, len(present), "spec.maxUnavailable"))
    if spec.min_available is not None:
        return healthy - _share(spec.min_available, len(present), "spec.minAvailable")
    return 0


def _share(value: int | str, of: int, path: str) -> int:
    if isinstance(value, int):
        return value
    if not re.fullmatch(r"[0-9]{1,3}%", value):
        raise InputError(f"{value!r} is neither an integer nor a percentage such as 50%", field=path)
    return math.ceil(int(value[:-1]) * of / 100)


def _labels_of(meta: wire.Meta) -> Mapping[str, str]:
    data = wire.text(meta.labels)
    if not data:
        return {}
    with within("metadata.labels"):
        return msgspec.json.decode(data, type=dict[str, str])


def _preemptable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Annotation before label; true unless it says something else than true (volcano-sh/volcano, job_info.go)."""
    said = annotations.get(PREEMPTABLE, labels.get(PREEMPTABLE))
    return said is None or said in _TRUE


def _index(name: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> int:
    """Place in the role: `task-index`, a Job's completion index, else the number the name ends in; -1 if none."""
    for key in (TASK_INDEX, JOB_INDEX):
        said = annotations.get(key) or labels.get(key)
        if said and said.isdecimal() and len(said) < 10:
            return int(said)
    match = _TRAILING_NUMBER.search(name)
    return int(match[0]) if match and len(match[0]) < 10 else -1


def _integer(value: str, path: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", value):
        raise InputError(f"{value[:40]!r} is not an integer", field=path)
    return int(value)


_namespaces = msgspec.json.Decoder(wire.Namespace)
_classes = msgspec.json.Decoder(wire.PriorityClass)
_jobs = msgspec.json.Decoder(wire.Job)
_budgets = msgspec.json.Decoder(wire.DisruptionBudget)
_quotas = msgspec.json.Decoder(wire.ResourceQuota)

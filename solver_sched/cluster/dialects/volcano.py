"""Volcano: `scheduling.volcano.sh/v1beta1`. A group with rules that are not modelled is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from solver_sched.cluster.dialects.dialect import (
    TASK_SPEC,
    Dialect,
    created,
    kept_annotations,
    named,
    namespace,
    read_amounts,
)
from solver_sched.cluster.needs import label_selector
from solver_sched.cluster.objects import Pod, PodGroup, Queue
from solver_sched.cluster.selectors import selects
from solver_sched.cluster.wire import Int32, LabelSelector, Meta, Wire, controller


class _Topology(Wire, rename="camel"):
    mode: str | None = None
    highest_tier_allowed: Int32 | None = None
    highest_tier_name: str | None = None


class _SubGroups(Wire, rename="camel"):
    sub_group_size: Int32 | None = None
    min_sub_groups: Int32 | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    network_topology: _Topology | None = None


class _GroupSpec(Wire, rename="camel"):
    min_member: Int32 | None = None
    min_task_member: dict[str, Int32] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    min_resources: dict[str, Raw] | None = None
    network_topology: _Topology | None = None
    sub_group_policy: list[_SubGroups] | None = None


class _Status(Wire):
    phase: str | None = None


class _Group(Wire):
    metadata: Meta
    spec: _GroupSpec | None = None
    status: _Status | None = None


class _Guarantee(Wire):
    resource: dict[str, Raw] | None = None


class _QueueSpec(Wire):
    weight: Int32 | None = None
    capability: dict[str, Raw] | None = None
    deserved: dict[str, Raw] | None = None
    guarantee: _Guarantee | None = None
    reclaimable: bool | None = None
    parent: str | None = None
    priority: Int32 | None = None


class _QueueStatus(Wire):
    state: str | None = None


class _Queue(Wire):
    metadata: Meta
    spec: _QueueSpec | None = None
    status: _QueueStatus | None = None


_decode_group = msgspec.json.Decoder(_Group).decode
_decode_queue = msgspec.json.Decoder(_Queue).decode


def _read_group(raw: Raw | bytes, version: str) -> PodGroup:
    group = _decode_group(raw)
    spec = group.spec or _GroupSpec()
    topology = _topology(spec.network_topology)
    owner = controller(group.metadata.owner_references)
    return PodGroup(
        namespace=namespace(group.metadata),
        name=named(group.metadata),
        dialect=version,
        min_member=1 if spec.min_member is None else spec.min_member,
        queue=spec.queue or "",
        min_task_member=spec.min_task_member or {},
        min_resources=read_amounts("spec.minResources", spec.min_resources),
        priority_class=spec.priority_class_name or "",
        phase=(group.status and group.status.phase) or "",
        created=created(group.metadata),
        annotations=kept_annotations(group.metadata),
        topology=topology,
        hold=_hold(spec, topology),
        job=owner.name if owner is not None and owner.kind == "Job" else "",
    )


def _topology(wish: _Topology | None) -> dict[str, str]:
    """Mode and limit, as strings. Hard without a tier limits nothing, for Volcano too."""
    if wish is None:
        return {}
    found = {"mode": wish.mode or "hard"}
    if wish.highest_tier_allowed is not None:
        found["highestTierAllowed"] = str(wish.highest_tier_allowed)
    if wish.highest_tier_name:
        found["highestTierName"] = wish.highest_tier_name
    return found


def _hold(spec: _GroupSpec, topology: dict[str, str]) -> str:
    for wish in (topology, *(_topology(part.network_topology) for part in spec.sub_group_policy or ())):
        tier = wish.get("highestTierAllowed") or wish.get("highestTierName")
        if tier and wish["mode"] == "hard":
            return f"Topology: hard network topology up to tier {tier} is not modelled"
    if any(part.min_sub_groups for part in spec.sub_group_policy or ()):
        return _SUB_GROUPS
    return ""


_SUB_GROUPS = "Unmodelled: spec.subGroupPolicy with minSubGroups is modelled only where minMember takes in all pods"


def _settle(raw: Raw | bytes, group: PodGroup, pods: Sequence[Pod]) -> PodGroup:
    """A gang of all its pods starts whole or not at all: then sub-groups are either all there or can never be."""
    if group.hold != _SUB_GROUPS or len(pods) > group.min_member:
        return group
    policies = (_decode_group(raw).spec or _GroupSpec()).sub_group_policy or []
    sizes = [Counter[tuple[str, ...]]() for _ in policies]
    for pod in pods:
        labels = {TASK_SPEC: pod.role, **pod.labels} if pod.role else pod.labels
        for size, part in zip(sizes, policies, strict=True):
            keys = part.match_label_keys or []
            chosen = part.label_selector is None or selects(label_selector(part.label_selector), labels)
            if chosen and all(key in labels for key in keys):
                size[tuple(labels[key] for key in keys)] += 1
                break  # the first policy that fits counts
    for k, (size, part) in enumerate(zip(sizes, policies, strict=True)):
        complete = sum(count >= (part.sub_group_size or 1) for count in size.values())
        if complete < (part.min_sub_groups or 0):
            short = f"spec.subGroupPolicy[{k}] needs {part.min_sub_groups} sub-groups and {complete} are complete"
            return replace(group, hold=f"Unmodelled: {short}")
    return replace(group, hold="")


def _read_queue(raw: Raw | bytes, _version: str) -> Queue:
    queue = _decode_queue(raw)
    spec = queue.spec or _QueueSpec()
    return Queue(
        name=named(queue.metadata),
        weight=1 if spec.weight is None else spec.weight,
        capability=read_amounts("spec.capability", spec.capability),
        deserved=read_amounts("spec.deserved", spec.deserved),
        guarantee=read_amounts("spec.guarantee.resource", spec.guarantee.resource if spec.guarantee else None),
        parent=spec.parent or "",
        reclaimable=spec.reclaimable is not False,
        priority=spec.priority or 0,
        state=(queue.status and queue.status.state) or "Open",
        created=created(queue.metadata),
        annotations=kept_annotations(queue.metadata),
    )


DIALECT = Dialect(versions=("scheduling.volcano.sh/v1beta1",), group=_read_group, queue=_read_queue, settle=_settle)

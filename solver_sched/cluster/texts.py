"""API objects as text of what is read here: equal texts mean that nothing has changed.

Heartbeats, managed fields, images and our own status writes change an object without changing what a cycle looks at.
Kept like this a pod of 6 kB takes about 0.6 kB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from solver_sched.cluster import wire
from solver_sched.cluster.decode import GROUP_LABEL, JOB_INDEX, MIN_MEMBER, named_groups, shadow_name
from solver_sched.cluster.dialects.dialect import kept_annotations
from solver_sched.cluster.kinds import Kind
from solver_sched.cluster.wire import controller


class Text(Struct, gc=False):
    """`text`: what is read here; `raw`: all of it, of groups, queues and what cannot be read; `pod`: decoded; `told`:
    when a scheduler began to tell a pod without node that it waits, as written.
    """

    key: str
    text: bytes
    version: str = ""
    uid: str = ""
    raw: bytes = b""
    pod: wire.Pod | None = None
    told: str = ""


class _Phase(wire.Wire):
    phase: str | None = None
    state: str | None = None


class _Custom(wire.Wire):
    """A PodGroup or Queue: its status is written by us too, of it only the phase or state is read."""

    metadata: wire.Meta
    spec: Raw = wire.ABSENT
    status: _Phase | None = None


_WIRE: Mapping[str, type[Any]] = {
    "Pod": wire.Pod,
    "Node": wire.Node,
    "PodGroup": _Custom,
    "Queue": _Custom,
    "Job": wire.Job,
    "Namespace": wire.Namespace,
    "PriorityClass": wire.PriorityClass,
    "PodDisruptionBudget": wire.DisruptionBudget,
    "ResourceQuota": wire.ResourceQuota,
    "StorageClass": wire.StorageClass,
    "CSINode": wire.CsiNode,
    "PersistentVolume": wire.PersistentVolume,
    "PersistentVolumeClaim": wire.VolumeClaim,
}
_decoders = {kind: msgspec.json.Decoder(of) for kind, of in _WIRE.items()}
_named = msgspec.json.Decoder(wire.Named)
_labels = msgspec.json.Decoder(dict[str, str])


def trimmed(kind: Kind, raw: bytes | Raw) -> Text:
    """Raises msgspec.MsgspecError only for what is no object with a name."""
    try:
        body = _decoders[kind.kind].decode(raw)
        meta: wire.Meta = body.metadata
    except msgspec.MsgspecError:
        # told when it is read: which field, and what is allowed there
        broken = _named.decode(raw).metadata or wire.Meta()
        return Text(_key(kind, broken), bytes(raw), broken.resource_version or "", broken.uid or "", bytes(raw))
    key, version, uid = _key(kind, meta), meta.resource_version or "", meta.uid or ""
    meta.resource_version = None
    if meta.annotations:
        index = meta.annotations.get(JOB_INDEX)
        meta.annotations = kept_annotations(meta) | ({JOB_INDEX: index} if index is not None else {}) or None
    pod, told = body if kind.kind == "Pod" else None, ""
    if pod is not None and pod.status is not None:
        told = "" if pod.spec.node_name else _told(pod.status)
        _trim_status(pod.status)
    whole = bytes(raw) if kind.kind in ("PodGroup", "Queue") else b""
    return Text(key, msgspec.json.encode(body), version, uid, whole, pod, told)


def _told(status: wire.PodStatus) -> str:
    """Of a pod with gates it is the API server that says so (Kubernetes pkg/registry/core/pod/strategy.go)."""
    for one in status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False" and one.reason != "SchedulingGated":
            return one.last_transition_time or ""
    return ""


def _trim_status(status: wire.PodStatus) -> None:
    """Conditions tell when a pod ended, and whether a resize is possible; container statuses what a resize reached."""
    if status.conditions and status.phase != "Succeeded":
        status.conditions = [one for one in status.conditions if one.type == "PodResizePending"] or None
    for name in ("container_statuses", "init_container_statuses"):
        rows = getattr(status, name)
        if rows and not any(wire.text(row.resources) or wire.text(row.allocated_resources) for row in rows):
            setattr(status, name, None)


def _key(kind: Kind, meta: wire.Meta) -> str:
    return f"{meta.namespace or 'default'}/{meta.name}" if kind.namespaced else meta.name or ""


def reads(pod: wire.Pod) -> tuple[str, ...]:
    """What else decides how the pod is read, as keys of `_readers_of`."""
    meta = pod.metadata
    where, annotations = meta.namespace or "default", meta.annotations or {}
    labels: Mapping[str, str] = {}
    if GROUP_LABEL.encode() in bytes(meta.labels):
        try:
            labels = _labels.decode(meta.labels)
        except msgspec.MsgspecError:
            labels = {}  # told when the pod is read
    out = [f"group {key}" for key, _ in named_groups(pod, where, labels, annotations)]
    if any(one in annotations for one in MIN_MEMBER):
        out.append(f"shadow {where}/{shadow_name(meta)}")
    owner = controller(meta.owner_references)
    if owner is not None and owner.kind == "Job":
        out.append(f"job {where}/{owner.name}")
    return tuple(out)

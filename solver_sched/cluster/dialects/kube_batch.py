"""kube-batch: `scheduling.incubator.k8s.io/v1alpha1` and `scheduling.sigs.dev/v1alpha2`, two names for the same types.

Slides print the second group as `scheduling.sig.dev`; manifests copied from them are read with a warning.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from solver_sched.cluster.dialects.dialect import Dialect, created, kept_annotations, named, namespace, read_amounts
from solver_sched.cluster.objects import PodGroup, Queue
from solver_sched.cluster.wire import Int32, Meta, Wire


class _GroupSpec(Wire, rename="camel"):
    min_member: Int32 | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    min_resources: dict[str, Raw] | None = None


class _Status(Wire):
    phase: str | None = None


class _Group(Wire):
    metadata: Meta
    spec: _GroupSpec | None = None
    status: _Status | None = None


class _QueueSpec(Wire):
    weight: Int32 | None = None
    capability: dict[str, Raw] | None = None


class _Queue(Wire):
    metadata: Meta
    spec: _QueueSpec | None = None


_decode_group = msgspec.json.Decoder(_Group).decode
_decode_queue = msgspec.json.Decoder(_Queue).decode


def _read_group(raw: Raw | bytes, version: str) -> PodGroup:
    group = _decode_group(raw)
    spec = group.spec or _GroupSpec()
    return PodGroup(
        namespace=namespace(group.metadata),
        name=named(group.metadata),
        dialect=version,
        min_member=1 if spec.min_member is None else spec.min_member,
        queue=spec.queue or "",
        min_resources=read_amounts("spec.minResources", spec.min_resources),
        priority_class=spec.priority_class_name or "",
        phase=(group.status and group.status.phase) or "",
        created=created(group.metadata),
        annotations=kept_annotations(group.metadata),
    )


def _read_queue(raw: Raw | bytes, _version: str) -> Queue:
    queue = _decode_queue(raw)
    spec = queue.spec or _QueueSpec()
    return Queue(
        name=named(queue.metadata),
        weight=1 if spec.weight is None else spec.weight,
        capability=read_amounts("spec.capability", spec.capability),
        created=created(queue.metadata),
        annotations=kept_annotations(queue.metadata),
    )


DIALECT = Dialect(
    versions=("scheduling.sigs.dev/v1alpha2", "scheduling.incubator.k8s.io/v1alpha1"),
    group=_read_group,
    queue=_read_queue,
    misprints={"scheduling.sig.dev/v1alpha2": "scheduling.sigs.dev/v1alpha2"},
)

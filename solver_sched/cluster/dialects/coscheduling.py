"""The coscheduling plugin of scheduler-plugins: `scheduling.x-k8s.io/v1alpha1` PodGroup, named by a pod label.

It knows neither queues nor priority classes of groups.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from solver_sched.cluster.dialects.dialect import Dialect, created, kept_annotations, named, namespace, read_amounts
from solver_sched.cluster.objects import PodGroup
from solver_sched.cluster.wire import Int32, Meta, Wire


class _Spec(Wire, rename="camel"):
    min_member: Int32 | None = None
    min_resources: dict[str, Raw] | None = None


class _Group(Wire):
    metadata: Meta
    spec: _Spec | None = None


_decode = msgspec.json.Decoder(_Group).decode


def _read_group(raw: Raw | bytes, version: str) -> PodGroup:
    group = _decode(raw)
    spec = group.spec or _Spec()
    return PodGroup(
        namespace=namespace(group.metadata),
        name=named(group.metadata),
        dialect=version,
        min_member=1 if spec.min_member is None else spec.min_member,
        queue="",
        min_resources=read_amounts("spec.minResources", spec.min_resources),
        # Its phases (PreScheduling, Scheduling ...) are the plugin's own; admission is no step of it.
        created=created(group.metadata),
        annotations=kept_annotations(group.metadata),
    )


DIALECT = Dialect(versions=("scheduling.x-k8s.io/v1alpha1",), group=_read_group, class_field=False)

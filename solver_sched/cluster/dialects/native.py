"""Kubernetes' own `scheduling.k8s.io` PodGroup (KEP-4671): v1alpha2 in 1.36, v1beta1 and v1alpha3 in 1.37.

Pods name it in `spec.schedulingGroup.podGroupName`. Workload objects are templates only and not needed. A policy of
`basic` asks for nothing as a group: minimum 1.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from solver_sched.cluster.dialects.dialect import Dialect, created, kept_annotations, named, namespace
from solver_sched.cluster.objects import PodGroup
from solver_sched.cluster.wire import Int32, Meta, Wire


class _Gang(Wire, rename="camel"):
    min_count: Int32


class _Policy(Wire):
    gang: _Gang | None = None


class _TopologyConstraint(Wire):
    key: str = ""


class _Constraints(Wire):
    topology: list[_TopologyConstraint] | None = None


class _Claim(Wire):
    name: str = ""


class _Spec(Wire, rename="camel"):
    scheduling_policy: _Policy | None = None
    scheduling_constraints: _Constraints | None = None
    resource_claims: list[_Claim] | None = None
    priority_class_name: str | None = None
    priority: Int32 | None = None
    parent_composite_pod_group_name: str | None = None


class _Group(Wire):
    metadata: Meta
    spec: _Spec | None = None


_decode = msgspec.json.Decoder(_Group).decode


def _read_group(raw: Raw | bytes, version: str) -> PodGroup:
    group = _decode(raw)
    spec = group.spec or _Spec()
    gang = spec.scheduling_policy.gang if spec.scheduling_policy else None
    keys = [rule.key for rule in (spec.scheduling_constraints and spec.scheduling_constraints.topology) or ()]
    return PodGroup(
        namespace=namespace(group.metadata),
        name=named(group.metadata),
        dialect=version,
        min_member=gang.min_count if gang else 1,
        queue="",
        priority_class=spec.priority_class_name or "",
        priority=spec.priority,
        created=created(group.metadata),
        annotations=kept_annotations(group.metadata),
        topology={"mode": "hard", "key": keys[0]} if keys else {},
        hold=_hold(spec, keys),
    )


def _hold(spec: _Spec, keys: list[str]) -> str:
    if spec.parent_composite_pod_group_name:
        return f"Unmodelled: part of CompositePodGroup {spec.parent_composite_pod_group_name}, which is not modelled"
    if keys:
        return f"Topology: all pods in one domain of {keys[0]} is not modelled"
    if spec.resource_claims:
        return f"Claims: device claim {spec.resource_claims[0].name} of the group is not modelled"
    return ""


DIALECT = Dialect(
    versions=("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1alpha2"),
    group=_read_group,
)

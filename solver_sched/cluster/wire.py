"""Kubernetes JSON as it stands on the wire: of each kind only the fields that scheduling reads.

Decoding straight into these costs 7 us per pod of 6 kB; a full model costs a hundred times that. Parts that repeat
from pod to pod (resources, tolerations, affinity ...) stay `Raw` text, so that equal text is understood only once.
`null` counts as absent, as for the API server. Environment variables, commands and Secrets are never touched.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from solver_sched.errors import InputError

_T = TypeVar("_T")

ABSENT = Raw(b"")
"""A Raw field that is not there. `null` is treated alike: see `text`."""


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""The integers of the Kubernetes API, except quantities."""
Count = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
PortNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
TopologyKey = Annotated[str, msgspec.Meta(min_length=1)]
"""What the API server lets in (pkg/apis/core/validation); 0 is a port that is not given."""


def text(raw: Raw) -> bytes:
    """The JSON text of an optional part, b"" where it is absent, null or empty."""
    data = bytes(raw)
    return b"" if data in (b"null", b"{}", b"[]") else data


class Wire(Struct, gc=False, omit_defaults=True):
    """Base: values that live only while one object is read, too short for the cycle collector to matter.

    Encoded again, they are the same object without all that nobody here reads.
    """


class Head(Wire):
    """What kind of thing a document is. `format` marks our own snapshot dump, `items` a list."""

    kind: str | None = None
    api_version: str | None = field(name="apiVersion", default=None)
    items: list[Raw] | None = None
    format: str | None = None


class Kind(Wire):
    kind: str | None = None
    api_version: str | None = field(name="apiVersion", default=None)


class Owner(Wire):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


def controller(owners: list[Owner] | None) -> Owner | None:
    """Who made an object: its controller, else its only owner."""
    if not owners:
        return None
    return next((owner for owner in owners if owner.controller), owners[0] if len(owners) == 1 else None)


class Meta(Wire, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: Raw = ABSENT
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None
    owner_references: list[Owner] | None = None


class Named(Wire):
    """Any object, as far as its name."""

    metadata: Meta | None = None


class Condition(Wire, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    last_transition_time: str | None = None


# Label selectors and node selectors


class Expression(Wire):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] | None = None


class LabelSelector(Wire, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class NodeSelectorTerm(Wire, rename="camel"):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Wire, rename="camel"):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredNode(Wire):
    weight: Int32
    preference: NodeSelectorTerm


class NodeAffinity(Wire):
    required: NodeSelector | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredNode] | None = field(name="preferredDuringSchedulingIgnoredDuringExecution", default=None)


class PodAffinityTerm(Wire, rename="camel"):
    topology_key: TopologyKey
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPod(Wire, rename="camel"):
    weight: Int32
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Wire):
    required: list[PodAffinityTerm] | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredPod] | None = field(name="preferredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(Wire, rename="camel"):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(Wire, rename="camel"):
    topology_key: TopologyKey
    max_skew: Count
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: Count | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: list[str] | None = None


class TolerationSpec(Wire):
    key: str | None = None
    operator: Literal["", "Exists", "Equal", "Lt", "Gt"] | None = None
    value: str | None = None
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class TaintSpec(Wire):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str | None = None


# Pods


class ResourceSpec(Wire):
    """Quantities stay text: `129e6` unquoted must not become a float on the way."""

    requests: dict[str, Raw] | None = None
    limits: dict[str, Raw] | None = None


class Port(Wire, rename="camel"):
    container_port: PortNumber = 0
    host_port: PortNumber | None = None
    host_ip: str | None = field(name="hostIP", default=None)
    protocol: str | None = None


class Container(Wire, rename="camel"):
    name: str | None = None
    resources: Raw = ABSENT
    restart_policy: str | None = None
    ports: Raw = ABSENT


class ContainerStatus(Wire, rename="camel"):
    name: str | None = None
    resources: Raw = ABSENT
    allocated_resources: Raw = ABSENT


class ClaimVolume(Wire, rename="camel"):
    claim_name: str


class CsiVolume(Wire):
    driver: str


class ClaimSpec(Wire, rename="camel"):
    access_modes: list[str] | None = None
    storage_class_name: str | UnsetType | None = UNSET
    volume_name: str | None = None


class ClaimTemplate(Wire):
    spec: ClaimSpec


class EphemeralVolume(Wire, rename="camel"):
    volume_claim_template: ClaimTemplate | None = None


class Volume(Wire, rename="camel"):
    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    csi: CsiVolume | None = None
    ephemeral: EphemeralVolume | None = None


class ResourceClaim(Wire):
    name: str = ""


class Gate(Wire):
    name: str


class SchedulingGroup(Wire, rename="camel"):
    pod_group_name: str | None = None


class WorkloadRef(Wire, rename="camel"):
    """How 1.35 named a group: a Workload and one of the groups inside it."""

    name: str = ""
    pod_group: str = ""


class PodSpec(Wire, rename="camel"):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Raw = ABSENT
    overhead: Raw = ABSENT
    node_name: str | None = None
    node_selector: Raw = ABSENT
    affinity: Raw = ABSENT
    tolerations: Raw = ABSENT
    topology_spread_constraints: Raw = ABSENT
    scheduler_name: str | None = None
    priority: Int32 | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    host_network: bool | None = None
    volumes: list[Volume] | None = None
    resource_claims: list[ResourceClaim] | None = None
    scheduling_gates: list[Gate] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    active_deadline_seconds: int | None = None


class PodStatus(Wire, rename="camel"):
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown", ""] | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: Raw = ABSENT
    allocated_resources: Raw = ABSENT
    resize: str | None = None


class Pod(Wire):
    metadata: Meta
    spec: PodSpec
    status: PodStatus | None = None


# Nodes, queues, rules


class NodeSpec(Wire):
    unschedulable: bool | None = None
    taints: list[TaintSpec] | None = None


class NodeStatus(Wire):
    allocatable: Raw = ABSENT
    capacity: Raw = ABSENT
    conditions: list[Condition] | None = None


class Node(Wire):
    metadata: Meta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Namespace(Wire):
    metadata: Meta


class PriorityClass(Wire, rename="camel"):
    metadata: Meta
    value: Int32
    global_default: bool | None = None
    preemption_policy: str | None = None


class DisruptionSpec(Wire, rename="camel"):
    selector: LabelSelector | None = None
    min_available: Int32 | str | None = None
    max_unavailable: Int32 | str | None = None


class DisruptionStatus(Wire, rename="camel"):
    disruptions_allowed: Int32 | None = None


class DisruptionBudget(Wire):
    metadata: Meta
    spec: DisruptionSpec
    status: DisruptionStatus | None = None


class QuotaSpec(Wire, rename="camel"):
    hard: dict[str, Raw] | None = None
    scopes: list[str] | None = None
    scope_selector: Raw = ABSENT


class QuotaStatus(Wire):
    hard: dict[str, Raw] | None = None
    used: dict[str, Raw] | None = None


class ResourceQuota(Wire):
    metadata: Meta
    spec: QuotaSpec | None = None
    status: QuotaStatus | None = None


# Storage


class ClaimStatus(Wire):
    phase: str | None = None


class VolumeClaim(Wire):
    metadata: Meta
    spec: ClaimSpec
    status: ClaimStatus | None = None


class VolumeAffinity(Wire):
    required: NodeSelector | None = None


class VolumeSpec(Wire, rename="camel"):
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    node_affinity: VolumeAffinity | None = None
    csi: CsiVolume | None = None
    claim_ref: Owner | None = None


class PersistentVolume(Wire):
    metadata: Meta
    spec: VolumeSpec
    status: ClaimStatus | None = None


class TopologyExpression(Wire):
    key: str
    values: list[str] | None = None


class TopologyTerm(Wire, rename="camel"):
    match_label_expressions: list[TopologyExpression] | None = None


class StorageClass(Wire, rename="camel"):
    metadata: Meta
    provisioner: str
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class DriverLimit(Wire):
    count: Int32 | None = None


class Driver(Wire):
    name: str
    allocatable: DriverLimit | None = None


class CsiNodeSpec(Wire):
    drivers: list[Driver] | None = None


class CsiNode(Wire):
    metadata: Meta
    spec: CsiNodeSpec


class JobSpec(Wire, rename="camel"):
    """`running_estimate` and `scheduler_name` are of Volcano's Job (pkg/apis/batch/v1alpha1, JobSpec); Volcano itself
    reads the first nowhere.
    """

    active_deadline_seconds: int | None = None
    scheduler_name: str | None = None
    running_estimate: str | None = None


class Job(Wire):
    metadata: Meta
    spec: JobSpec | None = None


@lru_cache(maxsize=1 << 14)
def seconds(timestamp: str) -> int:
    """Seconds since the epoch of an RFC 3339 time, fractions cut off. Raises ValueError."""
    moment = datetime.fromisoformat(timestamp)
    offset = moment.utcoffset()
    return timegm(moment.timetuple()) - (int(offset.total_seconds()) if offset else 0)


def time(timestamp: str | None) -> int:
    """Like `seconds`, 0 for an absent one. Raises InputError."""
    if not timestamp:
        return 0
    try:
        return seconds(timestamp)
    except ValueError:
        raise InputError(f"{timestamp[:40]!r} is no time; allowed is RFC 3339, such as 2026-01-31T12:00:00Z") from None


def required(value: str | None, path: str) -> str:
    """`value`, or an InputError that it is missing."""
    if not value:
        raise InputError("missing: must not be empty", field=path)
    return value


@contextmanager
def within(path: str) -> Iterator[None]:
    """Whatever goes wrong inside stands under the field `path`: decoding errors and InputErrors leave as InputErrors
    whose `field` is the whole path.
    """
    try:
        yield
    except InputError as wrong:
        wrong.field = _joined(path, wrong.field)
        raise
    except msgspec.ValidationError as wrong:
        message, _, inner = str(wrong).partition(" - at `$")
        raise InputError(_plain(message), field=_joined(path, inner.rstrip("`").lstrip("."))) from None
    except msgspec.DecodeError as wrong:
        raise InputError(str(wrong), field=path) from None


def decoded(decoder: msgspec.json.Decoder[_T], raw: Raw | bytes) -> _T:
    """What `decoder` reads, or an InputError with the field."""
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError:
        try:
            with within(""):
                return decoder.decode(raw)
        except InputError as wrong:
            if "[...]" in wrong.field and wrong.message.startswith("expected str"):
                wrong.field = _keyed(raw, wrong.field)
            raise


def _keyed(raw: Raw | bytes, field: str) -> str:
    """`field` with the first key that is no text in place of the `[...]` of msgspec."""
    before, _, after = field.partition("[...]")
    found: Any = msgspec.json.decode(raw)
    for step in re.findall(r"[^.\[\]]+", before):
        found = found[int(step)] if isinstance(found, list) else found.get(step) if isinstance(found, dict) else None
    wrong = [key for key, value in found.items() if not isinstance(value, str)] if isinstance(found, dict) else []
    return f"{before}[{wrong[0]}]{after}" if wrong else field


def _joined(path: str, inner: str) -> str:
    return f"{path}.{inner}" if path and inner and not inner.startswith("[") else path + inner


def _plain(message: str) -> str:
    """msgspec's sentence in lower case and without its back-ticks, with advice for the commonest slip."""
    said = message.replace("`", "").replace("Object missing required field ", "missing: ").replace(" | null", "")
    advice = "; quote it" if said.startswith("Expected str, got") and not said.endswith(("object", "array")) else ""
    return said[:1].lower() + said[1:] + advice

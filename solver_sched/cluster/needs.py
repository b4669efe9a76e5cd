"""What a pod asks of its node: the parts of a pod spec that scheduling reads, with API defaults resolved.

Hash-consed twice: pods whose parts are equal text share one `Needs` without being understood again, and equal values
from different text are one object too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from solver_sched.cluster import wire
from solver_sched.cluster.objects import (
    HostPort,
    Needs,
    NodeTerm,
    PodTerm,
    Requirement,
    Selector,
    Spread,
    Toleration,
)
from solver_sched.cluster.requests import Quantities, effective_request
from solver_sched.cluster.wire import text, within
from solver_sched.errors import InputError

_T = TypeVar("_T")

_affinity = msgspec.json.Decoder(wire.Affinity)
_tolerations = msgspec.json.Decoder(list[wire.TolerationSpec])
_spread = msgspec.json.Decoder(list[wire.SpreadConstraint])
_node_selector = msgspec.json.Decoder(dict[str, str])
_ports = msgspec.json.Decoder(list[wire.Port])


class NeedsReader:
    """Reads pod specs into shared `Needs`. Holds what it has seen; make a new one per load."""

    def __init__(self, quantities: Quantities) -> None:
        self._quantities = quantities
        self._by_text: dict[object, Needs] = {}
        self._by_value: dict[Needs, Needs] = {}

    @property
    def size(self) -> int:
        """How many different texts it has understood."""
        return len(self._by_text)

    def of(self, pod: wire.Pod, namespace: str, name: str, labels: Mapping[str, str]) -> Needs:
        """The needs of `pod`. Raises InputError with the field."""
        key = _key(pod, namespace, name, labels)
        needs = self._by_text.get(key)
        if needs is None:
            needs = self._understood(pod, namespace, name, labels)
            needs = self._by_text[key] = self._by_value.setdefault(needs, needs)
        return needs

    def _understood(self, pod: wire.Pod, namespace: str, name: str, labels: Mapping[str, str]) -> Needs:
        spec = pod.spec
        if not spec.containers:
            raise InputError("missing: a pod has at least one container", field="spec.containers")
        with within("spec.affinity"):
            affinity = _decoded(_affinity, spec.affinity) or wire.Affinity()
        with within("spec.tolerations"):
            tolerations = _decoded(_tolerations, spec.tolerations) or []
        with within("spec.topologySpreadConstraints"):
            spread = _decoded(_spread, spec.topology_spread_constraints) or []
        with within("spec.nodeSelector"):
            selector = _decoded(_node_selector, spec.node_selector) or {}
        nodes = affinity.node_affinity or wire.NodeAffinity()
        near = affinity.pod_affinity or wire.PodAffinity()
        apart = affinity.pod_anti_affinity or wire.PodAffinity()
        volumes = spec.volumes or []
        return Needs(
            request=effective_request(spec, pod.status, self._quantities),
            node_selector=tuple(sorted(selector.items())),
            node_affinity=node_terms(nodes.required) if nodes.required is not None else None,
            preferred_nodes=tuple((p.weight, _node_term(p.preference)) for p in nodes.preferred or ()),
            tolerations=_sorted_tolerations(tolerations),
            affinity=tuple(_pod_term(term, namespace, labels) for term in near.required or ()),
            anti_affinity=tuple(_pod_term(term, namespace, labels) for term in apart.required or ()),
            preferred_affinity=_preferred(near, namespace, labels),
            preferred_anti_affinity=_preferred(apart, namespace, labels),
            spread=tuple(_spread_rule(rule, labels) for rule in spread),
            ports=_host_ports(spec),
            volume_claims=tuple(sorted({claim for volume in volumes if (claim := _claim(volume, name))})),
            inline_csi=tuple(sorted(volume.csi.driver for volume in volumes if volume.csi is not None)),
            resource_claims=tuple(sorted(claim.name for claim in spec.resource_claims or ())),
        )


def label_selector(selector: wire.LabelSelector | None) -> Selector | None:
    """None stays None: a missing selector matches nothing, an empty one everything."""
    if selector is None:
        return None
    pairs = tuple(Requirement(key, "In", (value,)) for key, value in sorted((selector.match_labels or {}).items()))
    return pairs + _requirements(selector.match_expressions)


def node_terms(selector: wire.NodeSelector) -> tuple[NodeTerm, ...]:
    """The alternatives of a node selector; none at all match no node."""
    return tuple(_node_term(term) for term in selector.node_selector_terms or ())


def _requirements(expressions: list[wire.Expression] | None) -> Selector:
    return tuple(Requirement(e.key, e.operator, tuple(sorted(e.values or ()))) for e in expressions or ())


def _node_term(term: wire.NodeSelectorTerm) -> NodeTerm:
    return NodeTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _key(pod: wire.Pod, namespace: str, name: str, labels: Mapping[str, str]) -> object:
    """All text that `_understood` depends on."""
    spec, status = pod.spec, pod.status
    affinity, spread = text(spec.affinity), text(spec.topology_spread_constraints)
    own: object = ()
    if affinity or spread:
        # A term without namespaces means the pod's own; matchLabelKeys take their values from the pod's labels.
        own = (namespace, tuple(labels.items()) if b"atchLabelKeys" in affinity + spread else ())
    volumes = tuple(claim for volume in spec.volumes or () if (claim := _claim(volume, name)))
    drivers = tuple(volume.csi.driver for volume in spec.volumes or () if volume.csi is not None)
    reported: object = ()
    if status is not None:
        rows = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        resized = tuple((r.name, bytes(r.resources), bytes(r.allocated_resources)) for r in rows)
        if any(resources or allocated for _, resources, allocated in resized):
            conditions = [(c.type, c.reason, c.status) for c in status.conditions or () if c.type == "PodResizePending"]
            reported = (resized, status.resize, *conditions)
        if bytes(spec.resources):
            reported = (reported, bytes(status.resources), bytes(status.allocated_resources), status.resize)
    return (
        tuple((c.name, bytes(c.resources), bytes(c.ports)) for c in spec.containers or ()),
        tuple((c.name, bytes(c.resources), bytes(c.ports), c.restart_policy) for c in spec.init_containers or ()),
        bytes(spec.resources),
        bytes(spec.overhead),
        bytes(spec.node_selector),
        bytes(spec.tolerations),
        affinity,
        spread,
        own,
        spec.host_network,
        volumes,
        drivers,
        tuple(claim.name for claim in spec.resource_claims or ()),
        reported,
    )


def _decoded(decoder: msgspec.json.Decoder[_T], raw: Raw) -> _T | None:
    data = text(raw)
    return decoder.decode(data) if data else None


def _claim(volume: wire.Volume, pod: str) -> str:
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    # A generic ephemeral volume is a claim named after pod and volume (KEP-1698).
    return f"{pod}-{volume.name}" if volume.ephemeral is not None else ""


def _sorted_tolerations(specs: list[wire.TolerationSpec]) -> tuple[Toleration, ...]:
    tolerations = {Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "") for t in specs}
    return tuple(sorted(tolerations, key=lambda t: (t.key, t.operator, t.value, t.effect)))


def _host_ports(spec: wire.PodSpec) -> tuple[HostPort, ...]:
    """Regular containers and sidecars hold their host ports; with hostNetwork every container port is one."""
    found = set()
    parts = {"containers": spec.containers or (), "initContainers": spec.init_containers or ()}
    for part, containers in parts.items():
        for k, container in enumerate(containers):
            if part == "initContainers" and container.restart_policy != "Always":
                continue
            with within(f"spec.{part}[{k}].ports"):
                for port in _decoded(_ports, container.ports) or ():
                    number = port.host_port or (port.container_port if spec.host_network else 0)
                    if number:
                        found.add(HostPort(port.host_ip or "0.0.0.0", port.protocol or "TCP", number))  # noqa: S104
    return tuple(sorted(found, key=lambda p: (p.port, p.protocol, p.ip)))


def _merged(
    selector: wire.LabelSelector | None, labels: Mapping[str, str], keys: list[str] | None, but: list[str] | None = None
) -> Selector | None:
    """The selector with `matchLabelKeys` (and `mismatchLabelKeys`) turned into requirements on the pod's own values.

    Newer API servers have written them into the selector already (KEP-3633, KEP-3243); then nothing is added.
    """
    base = label_selector(selector)
    if base is None:
        return None
    extra = [Requirement(key, "In", (labels[key],)) for key in keys or () if key in labels]
    extra += [Requirement(key, "NotIn", (labels[key],)) for key in but or () if key in labels]
    return base + tuple(requirement for requirement in extra if requirement not in base)


def _pod_term(term: wire.PodAffinityTerm, namespace: str, labels: Mapping[str, str], weight: int = 0) -> PodTerm:
    elsewhere = label_selector(term.namespace_selector)
    named = tuple(sorted(set(term.namespaces or ())))
    return PodTerm(
        topology_key=term.topology_key,
        selector=_merged(term.label_selector, labels, term.match_label_keys, term.mismatch_label_keys),
        namespaces=named if named or elsewhere is not None else (namespace,),
        namespace_selector=elsewhere,
        weight=weight,
    )


def _preferred(affinity: wire.PodAffinity, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    return tuple(_pod_term(p.pod_affinity_term, namespace, labels, p.weight) for p in affinity.preferred or ())


def _spread_rule(rule: wire.SpreadConstraint, labels: Mapping[str, str]) -> Spread:
    return Spread(
        topology_key=rule.topology_key,
        max_skew=rule.max_skew,
        hard=rule.when_unsatisfiable == "DoNotSchedule",
        selector=_merged(rule.label_selector, labels, rule.match_label_keys),
        min_domains=rule.min_domains or 1,
        honor_node_affinity=rule.node_affinity_policy != "Ignore",
        honor_node_taints=rule.node_taints_policy == "Honor",
    )

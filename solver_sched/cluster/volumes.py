"""Volume claims joined with their volume and class, and how many volumes a node can attach.

What kube-scheduler's VolumeBinding, VolumeZone and NodeVolumeLimits look at. A claim that cannot be judged from what is
in the input says why in `missing`: its pods wait instead of being placed where the volume may not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw, Struct

from solver_sched.cluster import wire
from solver_sched.cluster.dialects.dialect import named, namespace
from solver_sched.cluster.needs import node_terms
from solver_sched.cluster.objects import AttachLimit, NodeTerm, Requirement, VolumeClaim
from solver_sched.cluster.wire import decoded

_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ZONES = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Zone labels of volumes -> the node label they are matched with (VolumeZone)."""


class Named(Struct, frozen=True):
    """A storage object with its key."""

    name: str


class Claim(Named, frozen=True):
    namespace: str
    body: wire.VolumeClaim


class Volume(Named, frozen=True):
    body: wire.PersistentVolume


class Class(Named, frozen=True):
    body: wire.StorageClass


class Attachable(Named, frozen=True):
    """The limits of one node."""

    limits: tuple[AttachLimit, ...]


def read_claim(raw: Raw | bytes) -> Claim:
    """A PersistentVolumeClaim."""
    body = decoded(_claims, raw)
    return Claim(named(body.metadata), namespace(body.metadata), body)


def claim_of_template(where: str, name: str, template: wire.ClaimTemplate) -> Claim:
    """The claim that the template of a generic ephemeral volume becomes."""
    return Claim(name, where, wire.VolumeClaim(wire.Meta(name=name, namespace=where), template.spec))


def read_volume(raw: Raw | bytes) -> Volume:
    """A PersistentVolume."""
    body = decoded(_volumes, raw)
    return Volume(named(body.metadata), body)


def read_class(raw: Raw | bytes) -> Class:
    """A StorageClass."""
    body = decoded(_storage_classes, raw)
    return Class(named(body.metadata), body)


def read_attach_limits(raw: Raw | bytes) -> Attachable:
    """A CSINode: one limit per driver that states one."""
    body = decoded(_csi_nodes, raw)
    node = named(body.metadata)
    drivers = [(d.name, d.allocatable.count) for d in body.spec.drivers or () if d.allocatable is not None]
    return Attachable(node, tuple(AttachLimit(node, name, count) for name, count in drivers if count is not None))


def join(claims: Iterable[Claim], volumes: Iterable[Volume], classes: Iterable[Class]) -> list[VolumeClaim]:
    """Every claim with what its volume or class says."""
    by_name = {volume.name: volume.body for volume in volumes}
    by_class = {storage.name: storage.body for storage in classes}
    default = min((name for name, storage in by_class.items() if _is_default(storage)), default="")
    return [_joined(claim.body, by_name, by_class, default) for claim in claims]


def _joined(
    claim: wire.VolumeClaim,
    volumes: Mapping[str, wire.PersistentVolume],
    classes: Mapping[str, wire.StorageClass],
    default: str,
) -> VolumeClaim:
    spec = claim.spec
    found = VolumeClaim(
        namespace=namespace(claim.metadata),
        name=named(claim.metadata),
        volume=spec.volume_name or None,
        access_modes=tuple(sorted(spec.access_modes or ())),
    )
    replace = msgspec.structs.replace
    if claim.metadata.deletion_timestamp:
        return replace(found, missing="is being deleted")
    if claim.status is not None and claim.status.phase == "Lost":
        return replace(found, missing=f"lost its volume {spec.volume_name or ''}".rstrip())
    if found.volume:
        volume = volumes.get(found.volume)
        if volume is None:
            return replace(found, missing=f"its volume {found.volume} is not in the input")
        driver = volume.spec.csi.driver if volume.spec.csi else ""
        return replace(found, nodes=_reach(volume), driver=driver)

    name = (claim.metadata.annotations or {}).get(_OLD_CLASS)
    if name is None:
        # An absent class means the default one; "" means none at all.
        name = default if spec.storage_class_name in (msgspec.UNSET, None) else str(spec.storage_class_name)
    storage = classes.get(name)
    if storage is None:
        return replace(found, missing=f"its storage class {name} is not in the input") if name else found
    wait = storage.volume_binding_mode == "WaitForFirstConsumer"
    if storage.provisioner == _NO_PROVISIONER:
        local = [volume for volume in volumes.values() if _offers(volume, name, found.access_modes)]
        if not local:
            return replace(found, wait=wait, missing=f"no free volume of storage class {name}")
        reaches = [_reach(volume) for volume in local]
        terms = None if None in reaches else tuple(term for reach in reaches for term in reach or ())
        return replace(found, wait=wait, nodes=terms)
    return replace(found, wait=wait, nodes=_allowed(storage), driver=storage.provisioner)


def _is_default(storage: wire.StorageClass) -> bool:
    return any((storage.metadata.annotations or {}).get(key) == "true" for key in _DEFAULT_CLASS)


def _offers(volume: wire.PersistentVolume, storage_class: str, modes: tuple[str, ...]) -> bool:
    free = volume.spec.claim_ref is None and (volume.status is None or volume.status.phase in (None, "Available"))
    return (
        free and volume.spec.storage_class_name == storage_class and set(modes) <= set(volume.spec.access_modes or ())
    )


def _reach(volume: wire.PersistentVolume) -> tuple[NodeTerm, ...] | None:
    """Where the volume can be mounted: its node affinity, and the zone it is labelled with."""
    affinity = volume.spec.node_affinity
    terms = node_terms(affinity.required) if affinity is not None and affinity.required is not None else None
    labels = (
        msgspec.json.decode(volume.metadata.labels, type=dict[str, str]) if wire.text(volume.metadata.labels) else {}
    )
    # A regional volume lists its zones as "a__b".
    zones = tuple(
        Requirement(_ZONES[key], "In", tuple(sorted(value.split("__"))))
        for key, value in sorted(labels.items())
        if key in _ZONES
    )
    if not zones:
        return terms
    if terms is None:
        return (NodeTerm(expressions=zones),)
    return tuple(NodeTerm(term.expressions + zones, term.fields) for term in terms)


def _allowed(storage: wire.StorageClass) -> tuple[NodeTerm, ...] | None:
    """Where the class can make volumes; None = anywhere."""
    if not storage.allowed_topologies:
        return None
    return tuple(
        NodeTerm(
            expressions=tuple(
                Requirement(e.key, "In", tuple(sorted(e.values or ()))) for e in term.match_label_expressions or ()
            )
        )
        for term in storage.allowed_topologies
    )


_claims = msgspec.json.Decoder(wire.VolumeClaim)
_volumes = msgspec.json.Decoder(wire.PersistentVolume)
_storage_classes = msgspec.json.Decoder(wire.StorageClass)
_csi_nodes = msgspec.json.Decoder(wire.CsiNode)

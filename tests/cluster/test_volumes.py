"""Volume claims: where they can be reached, and why some make their pods wait."""

from __future__ import annotations

from typing import Any

import pytest

from solver_sched.cluster.objects import AttachLimit, NodeTerm, Requirement, VolumeClaim
from solver_sched.cluster.sources import read_objects

Json = dict[str, Any]


def claim(name: str = "c", status: Json | None = None, **spec: Any) -> Json:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec, "status": status or {}}


def volume(name: str = "v", labels: Json | None = None, **spec: Any) -> Json:
    meta = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": {"accessModes": ["RWO"], **spec}}


def storage(name: str = "s", provisioner: str = "disk.example.com", meta: Json | None = None, **more: Any) -> Json:
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name, **(meta or {})}}
    return {**body, "provisioner": provisioner, **more}


def zone(*values: str, key: str = "zone") -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def joined(*objects: Json) -> VolumeClaim:
    snapshot = read_objects(objects)
    assert not snapshot.problems
    (found,) = snapshot.claims
    return found


LATE: Json = {"volumeBindingMode": "WaitForFirstConsumer"}
DEFAULT: Json = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}


def test_a_bound_claim_is_where_its_volume_is() -> None:
    affinity = {"required": {"nodeSelectorTerms": [zone("a")]}}
    found = joined(claim(volumeName="v"), volume(nodeAffinity=affinity, csi={"driver": "disk.example.com"}))
    assert (found.volume, found.driver, found.missing) == ("v", "disk.example.com", "")
    assert found.nodes == (NodeTerm((Requirement("zone", "In", ("a",)),)),)


def test_a_zone_label_of_a_volume_counts_like_an_affinity() -> None:
    found = joined(claim(volumeName="v"), volume(labels={"topology.kubernetes.io/zone": "b__a"}))
    assert found.nodes == (NodeTerm((Requirement("topology.kubernetes.io/zone", "In", ("a", "b")),)),)


def test_a_late_claim_goes_where_its_class_allows() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    found = joined(claim(storageClassName="s"), storage(allowedTopologies=topologies, **LATE))
    assert (found.volume, found.wait, found.driver) == (None, True, "disk.example.com")
    assert found.nodes == (NodeTerm((Requirement("zone", "In", ("a",)),)),)
    assert joined(claim(storageClassName="s"), storage(**LATE)).nodes is None


def test_without_a_class_name_the_default_class_counts_and_with_an_empty_one_none() -> None:
    assert joined(claim(), storage(meta=DEFAULT, **LATE)).wait
    assert not joined(claim(storageClassName=""), storage(meta=DEFAULT, **LATE)).wait
    assert not joined(claim(), storage(**LATE)).wait


def test_local_volumes_are_where_a_free_one_is() -> None:
    local = storage(provisioner="kubernetes.io/no-provisioner", **LATE)
    at = {host: {"required": {"nodeSelectorTerms": [zone(host, key="host")]}} for host in ("n1", "n2")}
    taken = volume("v1", storageClassName="s", nodeAffinity=at["n1"], claimRef={"name": "other"})
    free = volume("v2", storageClassName="s", nodeAffinity=at["n2"])
    found = joined(claim(storageClassName="s", accessModes=["RWO"]), local, taken, free)
    assert found.nodes == (NodeTerm((Requirement("host", "In", ("n2",)),)),)
    assert joined(claim(storageClassName="s"), local, taken).missing == "no free volume of storage class s"


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (claim(volumeName="v"), "its volume v is not in the input"),
        (claim(storageClassName="x"), "its storage class x is not in the input"),
        (claim(status={"phase": "Lost"}, volumeName="v"), "lost its volume v"),
        ({**claim(), "metadata": {"name": "c", "deletionTimestamp": "2026-01-01T12:00:00Z"}}, "is being deleted"),
    ],
)
def test_a_claim_that_cannot_be_judged_says_why(body: Json, missing: str) -> None:
    assert joined(body).missing == missing


def test_an_ephemeral_volume_of_a_hand_written_pod_is_a_claim_named_after_both() -> None:
    template = {"spec": {"storageClassName": "s", "accessModes": ["ReadWriteOnce"]}}
    volumes = [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}, {"name": "x", "csi": {"driver": "d"}}]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    snapshot = read_objects([{**body, "spec": {"containers": [{}], "volumes": volumes}}, storage(**LATE)])
    assert (snapshot.pods[0].needs.volume_claims, snapshot.pods[0].needs.inline_csi) == (("p-data",), ("d",))
    assert [(c.name, c.wait) for c in snapshot.claims] == [("p-data", True)]


def test_attach_limits() -> None:
    drivers = [{"name": "b", "allocatable": {"count": 3}}, {"name": "a"}]
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": "n"},
        "spec": {"drivers": drivers},
    }
    assert read_objects([body]).attach_limits == (AttachLimit("n", "b", 3),)

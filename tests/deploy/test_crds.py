"""The CRDs on a real API server: nonsense is refused with a sentence, what users have is kept."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from solver_sched.cluster.dialects import DIALECTS
from tests.controlplane import binaries
from tests.controlplane.cluster import Cluster, StatusError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.deploy.rendered import CHART, DEPLOY

VOLCANO = "scheduling.volcano.sh/v1beta1"
KUBE_BATCH = ("scheduling.sigs.dev/v1alpha2", "scheduling.incubator.k8s.io/v1alpha1")
EVERY = (VOLCANO, *KUBE_BATCH)
CRDS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((DEPLOY / "crds").glob("*.yaml"))}


def group(api: str, name: str = "g", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    found = {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    return found if status is None else found | {"status": status}


def queue(api: str, name: str = "q", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def posted(cluster: Cluster, found: dict[str, Any], **query: str) -> Any:
    """What the server would store, without storing it. Unknown fields are errors, as for `kubectl apply`."""
    namespace = "default" if found["kind"] == "PodGroup" else None
    path = cluster.path(found["kind"], found["apiVersion"], namespace)
    return cluster.request("POST", path, found, query={"dryRun": "All", "fieldValidation": "Strict", **query})


@contextmanager
def stored(cluster: Cluster, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The object as the server has stored it; it is gone afterwards."""
    yield cluster.create(found, namespace="default")[0]
    cluster.delete(found["kind"], found["metadata"]["name"], "default", found["apiVersion"])


def kubectl_create(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    """The documented way to install the CRDs."""
    command = [
        str(binaries.binary("kubectl")),
        f"--kubeconfig={cluster.kubeconfig}",
        "create",
        "-f",
        str(DEPLOY / "crds"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# What they are


def test_they_are_the_groups_that_are_read() -> None:
    served = {f"{crd['spec']['group']}/{v['name']}" for crd in CRDS.values() for v in crd["spec"]["versions"]}
    assert served == {version for dialect in DIALECTS if dialect.queue for version in dialect.versions}


def test_the_two_groups_of_kube_batch_have_one_schema() -> None:
    for plural in ("podgroups", "queues"):
        (a,), (b,) = (CRDS[f"{api.partition('/')[0]}_{plural}"]["spec"]["versions"] for api in KUBE_BATCH)
        assert {k: v for k, v in a.items() if k != "name"} == {k: v for k, v in b.items() if k != "name"}


def test_groups_under_k8s_io_say_that_nobody_approved_them() -> None:
    # https://github.com/kubernetes/enhancements/pull/1111
    for name, crd in CRDS.items():
        said = crd["metadata"].get("annotations", {}).get("api-approved.kubernetes.io", "")
        assert said.startswith("unapproved,") == (".k8s.io_" in name), name


# Refused


@pytest.mark.parametrize("api", EVERY)
@pytest.mark.parametrize(
    ("kind", "spec", "says"),
    [
        (group, {"minMember": -1}, "spec.minMember: Invalid value: -1: minMember must be 0 or more"),
        (group, {"minMember": "3"}, "must be of type integer"),
        (group, {"minMember": 2**31}, "spec.minMember"),
        (group, {"minResources": {"cpu": "-1"}}, "every amount must be a quantity of 0 or more"),
        (group, {"minResources": {"cpu": -1}}, "every amount must be a quantity of 0 or more"),
        (group, {"minResources": {"memory": "two"}}, "every amount must be a quantity of 0 or more"),
        (queue, {"weight": 0}, "spec.weight: Invalid value: 0: weight must be 1 or more"),
        (queue, {"weight": -1}, "weight must be 1 or more"),
        (queue, {"capability": {"cpu": "-500m"}}, "every amount must be a quantity of 0 or more"),
    ],
)
def test_nonsense_is_refused(
    cluster: Cluster, api: str, kind: Callable[..., dict[str, Any]], spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(StatusError, match="422") as refused:
        posted(cluster, kind(api, **spec))
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (queue(VOLCANO, "q", parent="q"), "spec.parent: Invalid value: a queue cannot be its own parent"),
        (
            queue(VOLCANO, capability={"cpu": 1}, guarantee={"resource": {"cpu": "1500m"}}),
            "guaranteed more than its capability",
        ),
        (queue(VOLCANO, capability={"cpu": "1"}, deserved={"cpu": 2}), "cannot deserve more than its capability"),
        (queue(VOLCANO, deserved={"cpu": "-1"}), "quantity of 0 or more"),
        (queue(VOLCANO, guarantee={"resource": {"cpu": -1}}), "quantity of 0 or more"),
        (queue(VOLCANO, priority=-1), "spec.priority"),
        (group(VOLCANO, minTaskMember={"worker": -1}), "every minimum must be 0 or more"),
        (group(VOLCANO, networkTopology={"mode": "near"}), "Unsupported value"),
        (group(VOLCANO, networkTopology={"highestTierAllowed": 1, "highestTierName": "rack"}), "not both"),
        (group(VOLCANO, subGroupPolicy=[{"name": "a", "subGroupSize": 0}]), "subGroupSize"),
    ],
)
def test_nonsense_in_what_volcano_alone_has_is_refused(cluster: Cluster, found: dict[str, Any], says: str) -> None:
    with pytest.raises(StatusError, match="422") as refused:
        posted(cluster, found)
    assert says in refused.value.message


@pytest.mark.parametrize("api", KUBE_BATCH)
def test_a_misspelt_field_of_kube_batch_is_refused(cluster: Cluster, api: str) -> None:
    with pytest.raises(StatusError, match=r'400 BadRequest: .*unknown field "spec.minmember"'):
        posted(cluster, group(api, minmember=3))


# Accepted


@pytest.mark.parametrize("api", EVERY)
def test_what_users_of_every_group_have_is_accepted(cluster: Cluster, api: str) -> None:
    asked: dict[str, Any] = {
        "minMember": 3,
        "queue": "research",
        "priorityClassName": "high",
        "minResources": {"cpu": "1500m", "nvidia.com/gpu": 8},
    }
    assert posted(cluster, group(api, **asked))["spec"] == asked
    assert posted(cluster, group(api, minMember=0))["spec"] == {"minMember": 0}
    assert posted(cluster, group(api)).get("spec") in ({}, None)
    asked = {"weight": 3, "capability": {"cpu": 64, "memory": "1.5Ti", "nvidia.com/gpu": "8", "example.com/odd": "1e3"}}
    assert posted(cluster, queue(api, **asked))["spec"] == asked
    assert posted(cluster, queue(api, capability={}))["spec"] == {"weight": 1, "capability": {}}


def test_what_users_of_volcano_have_is_kept_field_by_field(cluster: Cluster) -> None:
    asked: dict[str, Any] = {
        "minMember": 6,
        "minTaskMember": {"master": 1, "worker": 5},
        "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
        "subGroupPolicy": [
            {
                "name": "worker",
                "subGroupSize": 5,
                "minSubGroups": 1,
                "labelSelector": {"matchLabels": {"volcano.sh/task-spec": "worker"}},
                "matchLabelKeys": ["volcano.sh/partition-id"],
                "networkTopology": {"mode": "soft", "highestTierName": "rack"},
            }
        ],
        "ofALaterVolcano": {"a": [1]},
    }
    assert posted(cluster, group(VOLCANO, **asked))["spec"] == asked
    asked = {
        "weight": 2,
        "parent": "root",
        "priority": 5,
        "reclaimable": False,
        "capability": {"cpu": "8", "memory": "64Gi"},
        "deserved": {"cpu": "4000m"},
        "guarantee": {"resource": {"cpu": 4}},
        "affinity": {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["gpu"]}},
        "dequeueStrategy": "fifo",
        "type": "",
        "extendClusters": [{"name": "far", "weight": 1, "capacity": {"cpu": "1"}}],
        "ofALaterVolcano": True,
    }
    assert posted(cluster, queue(VOLCANO, **asked))["spec"] == asked


def test_a_queue_of_volcano_is_open_before_anybody_says_so(cluster: Cluster) -> None:
    with stored(cluster, queue(VOLCANO, "fresh", weight=1)):
        assert cluster.get("Queue", "fresh", api_version=VOLCANO)["status"] == {"state": "Open"}
        closed = {"status": {"state": "Closed", "allocated": {"cpu": "3"}}}
        cluster.patch("Queue", "fresh", closed, api_version=VOLCANO, sub="status")
        # Whoever writes the spec cannot open it again.
        cluster.patch("Queue", "fresh", {"spec": {"weight": 2}, "status": {"state": "Open"}}, api_version=VOLCANO)
        found = cluster.get("Queue", "fresh", api_version=VOLCANO)
        assert (found["spec"]["weight"], found["status"]) == (2, closed["status"])


def test_volcanos_controllers_can_write_the_status_as_they_do(cluster: Cluster) -> None:
    # They create a group in phase Pending and update it as a whole; with a status subresource both would be dropped.
    with stored(cluster, group(VOLCANO, status={"phase": "Pending"}, minMember=1)) as made:
        assert made["status"] == {"phase": "Pending"}
        status = {"phase": "Inqueue", "conditions": [{"type": "Scheduled", "lastTransitionTime": None}]}
        path = cluster.path("PodGroup", VOLCANO, "default", "g")
        assert cluster.request("PUT", path, made | {"status": status})["status"] == status
        with pytest.raises(StatusError, match="404"):
            cluster.patch("PodGroup", "g", {"status": {}}, "default", VOLCANO, "status")


@pytest.mark.parametrize("api", KUBE_BATCH)
def test_the_status_of_kube_batch_is_a_subresource(cluster: Cluster, api: str) -> None:
    with stored(cluster, group(api, status={"phase": "Running"}, minMember=1)) as made:
        assert "status" not in made
        status = {
            "phase": "Running",
            "running": 1,
            "conditions": [{"type": "Unschedulable", "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z"}],
        }
        assert cluster.patch("PodGroup", "g", {"status": status}, "default", api, "status")["status"] == status


def test_kubectl_shows_what_one_looks_for(cluster: Cluster) -> None:
    status = {"phase": "Running", "running": 2}
    with stored(cluster, group(VOLCANO, status=status, minMember=2, queue="research")):
        head, row = cluster.kubectl("get", "podgroups.scheduling.volcano.sh").splitlines()
    assert head.split() == ["NAME", "STATUS", "MIN", "RUNNING", "QUEUE", "AGE"]
    assert row.split()[:5] == ["g", "Running", "2", "2", "research"]


# Installed, never over others


def test_crds_that_exist_are_left_alone(start_control_plane: Callable[..., ControlPlane]) -> None:
    require("kubectl", "helm")
    cluster = start_control_plane(components=()).cluster
    api, kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"

    def names() -> set[str]:
        return {crd["metadata"]["name"] for crd in cluster.items(kind, api_version=api)}

    def remove(*gone: str) -> None:
        for name in gone:
            cluster.delete(kind, name, api_version=api)
        cluster.wait_for(lambda: not names() & set(gone), 60, f"{gone} are gone")

    remove("queues.scheduling.sigs.dev", "queues.scheduling.incubator.k8s.io")
    theirs = names()
    assert len(theirs) == 4
    for name in theirs:
        cluster.patch(kind, name, {"metadata": {"annotations": {"example.com/whose": "theirs"}}}, api_version=api)

    def left_alone() -> set[str]:
        return {
            crd["metadata"]["name"]
            for crd in cluster.items(kind, api_version=api)
            if crd["metadata"].get("annotations", {}).get("example.com/whose") == "theirs"
            and crd["metadata"]["generation"] == 1
        }

    helm = [str(binaries.binary("helm")), "install", "solver-sched", str(CHART), f"--kubeconfig={cluster.kubeconfig}"]
    done = subprocess.run([*helm, "--set=replicas=0"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (left_alone(), len(names())) == (theirs, 6)

    remove("queues.scheduling.sigs.dev")
    done = kubectl_create(cluster)
    made = "customresourcedefinition.apiextensions.k8s.io/queues.scheduling.sigs.dev created\n"
    assert (done.returncode, done.stdout) == (1, made)
    assert done.stderr.count("already exists") == len(done.stderr.splitlines()) == 5
    assert (left_alone(), len(names())) == (theirs, 6)

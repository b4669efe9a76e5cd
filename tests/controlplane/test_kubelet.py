"""The pretended kubelet admits, runs and ends pods as a real one does."""

from __future__ import annotations

import pytest

from tests.controlplane.cluster import Cluster, StatusError, pod
from tests.controlplane.resources import effective_requests


def test_a_bound_pod_runs_and_cannot_be_bound_again(cluster: Cluster, namespace: str) -> None:
    cluster.nodes(2, {"cpu": 4})
    cluster.create(pod("a", {"cpu": 1}), namespace=namespace)
    cluster.bind("a", "node-0", namespace)
    with pytest.raises(StatusError, match=r'409 Conflict: .*already assigned to node "node-0"'):
        cluster.bind("a", "node-1", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace) == {"a": "Running"}, 30, "a runs")
    status = cluster.get("Pod", "a", namespace)["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert {c["type"] for c in status["conditions"]} >= {"PodScheduled", "Initialized", "ContainersReady"}
    assert status["containerStatuses"][0]["state"]["running"]["startedAt"] == status["startTime"]


def test_who_was_bound_first_has_the_room(cluster: Cluster, namespace: str) -> None:
    """A node of 4 CPUs: b takes 3 of them; a, made first but bound second, asks for 2 of the 1 that is left."""
    cluster.nodes(1, {"cpu": 4})
    cluster.create(pod("a", {"cpu": 2}), pod("b", {"cpu": 3}), namespace=namespace)
    cluster.bind("b", "node-0", namespace)
    cluster.bind("a", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace) == {"a": "Failed", "b": "Running"}, 30, "a is rejected")
    status = cluster.get("Pod", "a", namespace)["status"]
    assert status["reason"] == "OutOfcpu"
    assert status["message"].endswith("resource: cpu, requested: 2000, used: 3000, capacity: 4000")


def test_memory_devices_and_places_are_counted(cluster: Cluster, namespace: str) -> None:
    cluster.nodes(1, {"cpu": 4, "memory": "2Gi", "nvidia.com/gpu": 1, "pods": 2})
    asks: dict[str, dict[str, str | int]] = {
        "fits": {"memory": "1Gi"},
        "memory": {"memory": "1025Mi"},
        "gpu": {"nvidia.com/gpu": 2},
        "last": {},
        "many": {},
    }
    for name, ask in asks.items():
        cluster.create(pod(name, ask), namespace=namespace)
        cluster.bind(name, "node-0", namespace)

    def reasons() -> dict[str, str]:
        return {p["metadata"]["name"]: p["status"].get("reason", "") for p in cluster.items("Pod", namespace)}

    rejected = {"memory": "OutOfmemory", "gpu": "OutOfnvidia.com/gpu", "many": "OutOfpods"}
    cluster.wait_for(lambda: reasons() == dict.fromkeys(asks, "") | rejected, 30, f"rejected are {rejected}")


def test_a_pod_that_ended_gives_its_room_back(cluster: Cluster, namespace: str) -> None:
    cluster.nodes(1, {"cpu": 1})
    cluster.create(
        pod("short", {"cpu": 1}, annotations={"test/run-for": "1s"}), pod("next", {"cpu": 1}), namespace=namespace
    )
    cluster.bind("short", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace)["short"] == "Succeeded", 30, "short has succeeded")
    cluster.bind("next", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace)["next"] == "Running", 30, "next runs")


def test_a_deleted_pod_holds_its_room_until_it_has_ended(cluster: Cluster, namespace: str) -> None:
    """It takes 4 s to end, of 30 s that it may: too late for the second pod, in time for the third."""
    cluster.nodes(1, {"cpu": 1})
    cluster.create(
        pod("leaving", {"cpu": 1}, annotations={"test/terminate-after": "4s"}),
        pod("early", {"cpu": 1}),
        pod("late", {"cpu": 1}),
        namespace=namespace,
    )
    cluster.bind("leaving", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace)["leaving"] == "Running", 30, "it runs")
    cluster.delete("Pod", "leaving", namespace)
    cluster.bind("early", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace)["early"] == "Failed", 30, "early is rejected")
    assert "leaving" in cluster.phases(namespace)
    cluster.wait_for(lambda: "leaving" not in cluster.phases(namespace), 30, "it is gone")
    cluster.bind("late", "node-0", namespace)
    cluster.wait_for(lambda: cluster.phases(namespace)["late"] == "Running", 30, "late runs")


def test_a_pod_bound_before_its_node_is_there_starts_with_it(cluster: Cluster, namespace: str) -> None:
    cluster.create(pod("a", {"cpu": 1}), namespace=namespace)
    cluster.bind("a", "node-0", namespace)
    cluster.nodes(1, {"cpu": 1})
    cluster.wait_for(lambda: cluster.phases(namespace) == {"a": "Running"}, 30, "a runs")


def test_what_a_pod_asks_for() -> None:
    """Main: 1 CPU. A sidecar of 500m beside it: 1500m. Before, an init container of 1200m beside the sidecar: 1700m."""

    def container(cpu: str, **more: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [container("500m", restartPolicy="Always"), container("1200m")],
        "containers": [container("1")],
    }
    assert effective_requests(spec) == {"cpu": 1700, "pods": 1}
    assert effective_requests(spec | {"overhead": {"cpu": "50m"}}) == {"cpu": 1750, "pods": 1}
    assert effective_requests(spec | {"resources": {"requests": {"cpu": 1}}}) == {"cpu": 1000, "pods": 1}

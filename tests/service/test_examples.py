"""Every example of deploy/examples ends Running, and everybody who looks is told so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import yaml

from tests.controlplane.cluster import Cluster, Object, gang, pod
from tests.controlplane.controlplane import ROOT, ControlPlane
from tests.controlplane.fixtures import established
from tests.controlplane.recorder import Recorder
from tests.deploy.rendered import read
from tests.service.service import Service

Start = Callable[..., Service]
VOLCANO, KUBE_BATCH = "scheduling.volcano.sh/v1beta1", "scheduling.sigs.dev/v1alpha2"
COSCHEDULING, NATIVE = "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"
PODS = {
    "gang-job": 4,
    "kube-batch-talk": 6,
    "pytorchjob": 3,
    "pytorchjob-scheduler-plugins": 3,
    "mpijob": 5,
    "spark": 4,
    "native-podgroup": 3,
}
"""Example -> pods. They ask for 6 GPUs, and for 34 CPUs: two for a pod of PyTorch, one for any other."""


def running(cluster: Cluster, namespace: str, count: int) -> bool:
    return list(cluster.phases(namespace).values()) == ["Running"] * count


def condition(status: Object, kind: str) -> Object:
    found: dict[str, Object] = {one["type"]: one for one in status.get("conditions", [])}
    return found.get(kind, {})


def told(cluster: Cluster, namespace: str) -> dict[str, set[str]]:
    """Reason -> names of the objects of which the service has said so, in events."""
    found: dict[str, set[str]] = {}
    for event in cluster.items("Event", namespace, "events.k8s.io/v1"):
        if event["reportingController"] == "solver-sched":
            found.setdefault(event["reason"], set()).add(event["regarding"]["name"])
    return found


def test_every_example_runs(start_control_plane: Callable[..., ControlPlane], service: Start) -> None:
    """Those that need no eviction: all at once, each in a namespace of its name, on five nodes of 8 CPUs and 2 GPUs."""
    plane = start_control_plane(
        feature_gates={"GenericWorkload": True},
        runtime_config=("api/beta=true", "scheduling.k8s.io/v1beta1=true"),
    )
    cluster = plane.cluster
    cluster.apply(*yaml.safe_load_all((ROOT / "tests/deploy/scheduler-plugins.yaml").read_text()))
    cluster.wait_for(partial(established, cluster, "podgroups.scheduling.x-k8s.io"), 20, "the definition is served")
    cluster.nodes(5, {"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 2})
    with Recorder(cluster) as recorder:
        service(plane, scheduler_name=["solver-sched", "kube-batch", "volcano"])
        for example in PODS:
            cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": example}})
            cluster.apply(*read(f"examples/{example}.yaml"), namespace=example)
        for example, count in PODS.items():
            cluster.wait_for(partial(running, cluster, example, count), 60, f"{example} runs")

        def status(example: str, version: str) -> Any:
            (group,) = cluster.items("PodGroup", example, version)
            return group.get("status", {})

        for example in ("gang-job", "pytorchjob", "mpijob", "spark"):
            what = f"the group of {example} says Running, and counts"
            cluster.wait_for(lambda: status(example, VOLCANO).get("running") == PODS[example], 20, what)  # noqa: B023
            assert status(example, VOLCANO)["phase"] == "Running"
            assert condition(status(example, VOLCANO), "Scheduled")["status"] == "True"
        batch = partial(status, "kube-batch-talk", KUBE_BATCH)
        cluster.wait_for(lambda: (batch().get("phase"), batch().get("running")) == ("Running", 6), 20, "kube-batch's")
        plugins = partial(status, "pytorchjob-scheduler-plugins", COSCHEDULING)
        cluster.wait_for(lambda: plugins().get("phase") == "Running", 20, "that of scheduler-plugins")
        native = partial(status, "native-podgroup", NATIVE)
        initially = "PodGroupInitiallyScheduled"
        cluster.wait_for(lambda: condition(native(), initially).get("status") == "True", 20, "the native one")
        queue = partial(cluster.get, "Queue", "default", api_version=VOLCANO)
        # 6 for each PyTorchJob, 3 without a queue of their own: 4 + 6 + 6 + 5 + 4 + 3 = 28 are in the queue `default`.
        cluster.wait_for(lambda: queue()["status"]["allocated"].get("cpu") == "28", 20, "the queue has 28 CPUs")
        assert queue()["status"]["state"] == "Open"
        for example, count in PODS.items():
            said = partial(told, cluster, example)
            cluster.wait_for(lambda: len(said().get("Scheduled", ())) >= count, 20, f"events of {example}")  # noqa: B023
        recorder.wait_for_rest(1)
        assert recorder.overcommits(rejected=True) == []
        assert recorder.moved() == []
        assert len(recorder.binds()) == sum(PODS.values())


def test_the_owner_reclaims_its_half(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """8 CPUs, two queues of equal weight: four of eight borrowed go back, by eviction, and the Job does not fail."""
    cluster.nodes(2, {"cpu": 4, "memory": "16Gi"})
    with Recorder(cluster) as recorder:
        service(control_plane, scheduler_conf="preempting")
        cluster.apply(*read("examples/reclaim/1-borrower.yaml"), namespace=namespace)
        cluster.wait_for(partial(running, cluster, namespace, 8), 60, "the borrower runs")
        cluster.apply(*read("examples/reclaim/2-owner.yaml"), namespace=namespace)

        def run() -> list[str]:
            phases = cluster.phases(namespace)
            return sorted(name.partition("-")[0] for name, phase in phases.items() if phase == "Running")

        cluster.wait_for(lambda: run() == ["forecast"] * 4 + ["sweep"] * 4, 60, "both have their half")
        recorder.wait_for_rest(2)
        assert run() == ["forecast"] * 4 + ["sweep"] * 4
        assert recorder.overcommits() == []
        assert recorder.broken({f"{namespace}/sweep": 2, f"{namespace}/forecast": 4}) == []
        assert len(told(cluster, namespace)["Preempted"]) == 4
        assert cluster.get("Job", "sweep", namespace, "batch/v1")["status"].get("failed", 0) == 0
        for name in ("research", "production"):
            queue = partial(cluster.get, "Queue", name, api_version=VOLCANO)
            what = f"{name} has its half"
            cluster.wait_for(lambda: queue().get("status", {}).get("allocated", {}).get("cpu") == "4", 20, what)  # noqa: B023


def test_who_waits_is_told_why(control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start) -> None:
    """A node of 4 CPUs: three of the gang of five would fit beside a. The queue of a and b holds 1 CPU, so b waits."""
    cluster.nodes(1, {"cpu": 4})
    spec = {"weight": 1, "capability": {"cpu": "1"}}
    cluster.create({"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": "small"}, "spec": spec})
    one = service(control_plane)
    small = {"scheduling.volcano.sh/queue-name": "small"}
    pair = [pod(name, {"cpu": 1}, annotations=small) for name in "ab"]
    cluster.create(*pair, *gang("g", 5, {"cpu": 1}), namespace=namespace)

    def waits() -> dict[str, Object]:
        found = {p["metadata"]["name"]: condition(p["status"], "PodScheduled") for p in cluster.items("Pod", namespace)}
        return {name: said for name, said in found.items() if said.get("status") == "False"}

    cluster.wait_for(lambda: len(waits()) == 6, 30, "five wait for room, one for quota")
    (quota,) = (said for name, said in waits().items() if name in "ab")
    assert (quota["reason"], quota["message"].partition(":")[0]) == ("QuotaExceeded", "QueueCapability")
    assert {said["reason"] for name, said in waits().items() if name not in "ab"} == {"Unschedulable"}
    cluster.wait_for(lambda: "cpu" in waits()["g-0"]["message"], 40, "it says of what there is too little")
    status = partial(cluster.get, "PodGroup", "g", namespace, VOLCANO)
    cluster.wait_for(lambda: condition(status().get("status", {}), "Unschedulable"), 20, "the group says so")
    said = condition(status()["status"], "Unschedulable")
    assert (said["status"], said["reason"]) == ("True", "NotEnoughResources")
    assert said["message"].startswith("5/5 tasks in gang unschedulable")
    cluster.wait_for(lambda: len(told(cluster, namespace).get("FailedScheduling", ())) == 6, 20, "events")
    before, cycles = versions(cluster, namespace), len(one.cycles())
    cluster.nodes(1, {"cpu": 1}, prefix="tiny", full="yes")
    cluster.create(pod("c", {"cpu": 1}, nodeSelector={"full": "yes"}), namespace=namespace)
    one.wait_for(lambda: len(one.cycles()) > cycles, 20, "another cycle")
    assert before.items() <= versions(cluster, namespace).items(), "not one event per cycle"


def versions(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Name -> resourceVersion of all events."""
    events = cluster.items("Event", namespace, "events.k8s.io/v1")
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in events}

"""Objects that no scheduler can make sense of: each is told what is wrong with it, once, and all others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import yaml

from tests.controlplane.cluster import Cluster, Object, StatusError, gang, pod
from tests.controlplane.controlplane import ROOT, ControlPlane
from tests.controlplane.recorder import Recorder
from tests.service.service import Service
from tests.service.test_examples import condition

Start = Callable[..., Service]
VOLCANO = "scheduling.volcano.sh/v1beta1"
LARGEST = 262144
"""Bytes of all annotations of an object, keys included, that the API server takes (apimachinery api/validation)."""


def bad(name: str, **spec: Any) -> list[Object]:
    """A gang of two whose group has this spec."""
    group, *pods = gang(name, 2, {"cpu": 1})
    group["spec"].update(spec)
    return [group, *pods]


def warnings(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    """Kind and name -> what was said of it in events, as often as it was said."""
    found: dict[str, list[str]] = {}
    for event in cluster.items("Event", namespace, "events.k8s.io/v1"):
        if event["reportingController"] == "solver-sched" and event["type"] == "Warning":
            about = f"{event['regarding']['kind']} {event['regarding']['name']}"
            times = (event.get("series") or {}).get("count", 1)
            found.setdefault(about, []).extend([f"{event['reason']}: {event['note']}"] * times)
    return found


HEAVY = "spec.weight: expected int, got str"
BAD: dict[str, tuple[Object, str]] = {
    "words": ({"minMember": "three"}, "Invalid: spec.minMember: expected int, got str"),
    "beyond": ({"minMember": 10**12}, "Invalid: spec.minMember: expected int <= 2147483647"),
    "below": ({"minMember": -1}, "Invalid: spec.minMember: -1 is negative; must be 0 or more"),
    "owing": (
        {"minResources": {"cpu": "-4"}},
        "Invalid: spec.minResources.cpu: '-4' is negative; an amount must be 0 or more",
    ),
    "number": ({"queue": 7}, "Invalid: spec.queue: expected str, got int; quote it"),
    "many": (
        {"minMember": 10**9},
        "Unschedulable: 2/2 tasks in gang unschedulable: GangIncomplete: 2 of 1000000000 members exist",
    ),
    "nowhere": (
        {"queue": "nowhere"},
        "Unschedulable: 2/2 tasks in gang unschedulable: QueueMissing: queue nowhere does not exist",
    ),
    "burdened": (
        {"queue": "heavy"},
        f"Unschedulable: 2/2 tasks in gang unschedulable: QueueMissing: queue heavy cannot be used: {HEAVY}",
    ),
}
"""Group -> its spec, and what is said of it."""


def test_each_is_told_what_is_wrong_and_the_rest_goes_on(
    start_control_plane: Callable[..., ControlPlane], service: Start
) -> None:
    """They are there first; a gang that is as it should be runs all the same, and another one after it."""
    plane = start_control_plane()
    cluster, namespace = plane.cluster, "default"
    # The same kinds without a schema, as clusters have them that were set up by others.
    cluster.apply(*without_schema())
    text, *_ = gang("text", 0, {})
    text["spec"] = "not a spec"
    cluster.wait_for(partial(taken, cluster, text, namespace), 20, "there is no schema any more")
    cluster.nodes(2, {"cpu": 16})
    with Recorder(cluster) as recorder:
        heavy = {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": "heavy"}, "spec": {"weight": "heavy"}}
        cluster.create(heavy)
        cluster.create(text, namespace=namespace)
        for name, (spec, _) in BAD.items():
            cluster.create(*bad(name, **spec), namespace=namespace)
        # What is wrong from the beginning is seen whole; pods that come later may be seen before their group.
        one = service(plane)
        space = LARGEST - len("example.com/large")
        members, run = "scheduling.k8s.io/group-min-member", "solver-sched.io/run-time"
        cluster.create(
            pod("large", {"cpu": 1}, annotations={"example.com/large": "x" * space}),
            pod("short", {"cpu": 1}, annotations={run: "-5s"}),
            pod("members", {"cpu": 1}, annotations={members: "-3"}),
            *gang("good", 2, {"cpu": 1}),
            namespace=namespace,
        )
        muddled, *members_of_it = gang("muddled", 2, {"cpu": 1})
        muddled["status"] = {"conditions": [7, None], "running": "many"}
        cluster.create(muddled, *members_of_it, namespace=namespace)
        circle(cluster, namespace)
        good = ("circle-a", "circle-b", "good-0", "good-1", "large", "muddled-0", "muddled-1", "short")
        cluster.wait_for(partial(run_all, cluster, namespace, good), 40, f"{good} run")
        said = {f"PodGroup {name}": [words] for name, (_, words) in BAD.items()}
        said["PodGroup text"] = ["Invalid: spec: expected object, got str"]
        said["Queue heavy"] = [f"Invalid: {HEAVY}"]
        said["Pod members"] = [f"Invalid: metadata.annotations[{members}]: -3 is negative; must be 0 or more"]
        about = partial(warnings, cluster, namespace)
        cluster.wait_for(lambda: said.keys() <= about().keys(), 20, f"events of all of {[*said]}")
        cluster.create(*gang("next", 2, {"cpu": 1}), namespace=namespace)
        cluster.wait_for(partial(run_all, cluster, namespace, ("next-0", "next-1")), 20, "the next gang runs")
        state = partial(cluster.get, "PodGroup", "muddled", namespace, VOLCANO)
        cluster.wait_for(lambda: state()["status"].get("running") == 2, 20, "its status is put right")
        assert state()["status"]["conditions"][-1]["type"] == "Scheduled"
        recorder.wait_for_rest(3)
        told = about()
        assert {thing: told[thing] for thing in said} == said
        # The pods of a group that cannot be used say so too, once each.
        for name in BAD:
            for member in (f"Pod {name}-0", f"Pod {name}-1"):
                assert len(told.pop(member)) == 1
        assert told.keys().isdisjoint(("Pod large", "Pod short"))
        assert one.said(f"cannot be used: Queue heavy: {HEAVY}")
        waits = condition(cluster.get("Pod", "words-0", namespace)["status"], "PodScheduled")
        assert waits["message"] == (
            "GroupMissing: pod group default/words cannot be used: spec.minMember: expected int, got str"
        )
        assert recorder.overcommits(rejected=True) == []
        assert one.metrics("solver_sched_cycles_total").get('result="failed"', 0) == 0


def test_a_group_in_a_namespace_that_is_being_deleted(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """Its namespace waits for the finalizers of a group and of its pod. Nothing can be made there, not even an event;
    the pod is nobody's any more; and a gang elsewhere runs.
    """
    cluster.nodes(1, {"cpu": 4})
    where = f"{namespace}-leaving"
    kept = gang("left", 2, {"cpu": 1})
    for o in kept:
        o["metadata"]["finalizers"] = ["test.example/keep"]
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": where}})
    cluster.create(*kept, namespace=where)
    cluster.delete("Namespace", where)
    cluster.wait_for(
        lambda: "deletionTimestamp" in cluster.get("Pod", "left-1", where)["metadata"], 20, "the pods are to go"
    )
    try:
        with Recorder(cluster) as recorder:
            one = service(control_plane)
            cluster.create(*gang("good", 2, {"cpu": 1}), namespace=namespace)
            cluster.wait_for(partial(run_all, cluster, namespace, ("good-0", "good-1")), 40, "the gang runs")
            recorder.wait_for_rest(2)
            assert len(recorder.binds()) == 2
            assert one.metrics("solver_sched_cycles_total").get('result="failed"', 0) == 0
    finally:
        cluster.patch("PodGroup", "left", {"metadata": {"finalizers": None}}, where, VOLCANO)
        for name in ("left-0", "left-1"):
            cluster.patch("Pod", name, {"metadata": {"finalizers": None}}, where)


def run_all(cluster: Cluster, namespace: str, names: Iterable[str]) -> bool:
    phases = cluster.phases(namespace)
    return all(phases.get(name) == "Running" for name in names)


def circle(cluster: Cluster, namespace: str) -> None:
    """Two pods, each of which says that the other owns it."""

    def owner(name: str, uid: str) -> Object:
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}

    (a,) = cluster.create(pod("circle-a", {"cpu": 1}), namespace=namespace)
    owned = [owner("circle-a", a["metadata"]["uid"])]
    (b,) = cluster.create(pod("circle-b", {"cpu": 1}, ownerReferences=owned), namespace=namespace)
    change = {"metadata": {"ownerReferences": [owner("circle-b", b["metadata"]["uid"])]}}
    cluster.patch("Pod", "circle-a", change, namespace)


def without_schema() -> list[Object]:
    """The definitions of deploy/crds, which take anything."""
    found = [o for file in sorted(ROOT.glob("deploy/crds/*.yaml")) for o in yaml.safe_load_all(file.read_text())]
    for version in (version for crd in found for version in crd["spec"]["versions"]):
        version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return found


def taken(cluster: Cluster, group: Object, namespace: str) -> bool:
    """Whether the server would take it."""
    try:
        cluster.request("POST", cluster.path("PodGroup", VOLCANO, namespace), group, query={"dryRun": "All"})
    except StatusError as refused:
        return refused.status != 422
    return True

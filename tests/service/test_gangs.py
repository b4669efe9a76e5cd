"""Gangs start whole, on room that is there or that is freed for them, as a witness on the server sees it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from tests.controlplane.cluster import Cluster, Object, gang, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.recorder import Recorder
from tests.service.service import Service

Start = Callable[..., Service]
VOLCANO = "scheduling.volcano.sh/v1beta1"


def queue(name: str, weight: int) -> Object:
    return {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": weight}}


def priority(name: str, value: int) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def test_every_gang_starts_whole_or_not_at_all(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """Forty gangs of 1 to 6 pods, 1 or 2 CPUs a pod, come in three waves to 8 nodes of 8 CPUs; they ask for about 200
    of 64. Half of them run for 4 s, so that others follow them.
    """
    rng = random.Random(5)
    cluster.nodes(8, {"cpu": 8})
    minimums: dict[str, int] = {}
    waves: list[list[Object]] = [[], [], []]
    for number in range(40):
        size = rng.randint(1, 6)
        minimum = rng.randint(1, size)
        lasts = {"test/run-for": "4s"} if number % 2 else {}
        waves[number % 3] += gang(f"g{number}", size, {"cpu": rng.randint(1, 2)}, minimum, annotations=lasts)
        minimums[f"{namespace}/g{number}"] = minimum
    with Recorder(cluster) as recorder:
        one = service(control_plane, time_limit="2s")
        for wave in waves:
            cluster.create(*(o for o in wave if o["kind"] == "PodGroup"), namespace=namespace)
            cluster.create(*(o for o in wave if o["kind"] == "Pod"), namespace=namespace)
            time.sleep(2)
        recorder.wait_for_rest(5, within=90)
        assert recorder.broken(minimums) == []
        assert recorder.overcommits(rejected=True) == []
        assert recorder.moved() == []
        started = {bind.group for bind in recorder.binds()}
        assert 15 <= len(started) < 40, "some have no room"
        slow = {name: recorder.seconds_to_bind(name, minimums[name]) for name in started}
        assert {name: seconds for name, seconds in slow.items() if seconds >= 2} == {}
        assert one.metrics("solver_sched_decisions_total")['kind="Bind",result="ok"'] == len(recorder.binds())


def test_promised_room_is_taken_by_whom_it_was_promised_to(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """Two nodes of 2 CPUs are full of single pods, which take 3 s to end. A gang of two, 2 CPUs each and of higher
    priority, is promised both nodes meanwhile; a pod that comes later and would fit as soon as one has ended waits.
    """
    cluster.nodes(2, {"cpu": 2})
    cluster.apply(priority("high", 1000))
    ends = {"test/terminate-after": "3s"}
    try:
        with Recorder(cluster) as recorder:
            service(control_plane, scheduler_conf="preempting")
            low = [pod(f"low-{i}", {"cpu": 1}, annotations=ends) for i in range(4)]
            cluster.create(*low, namespace=namespace)
            cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 4, 30, "they run")
            group, *members = gang("high", 2, {"cpu": 2}, priorityClassName="high")
            group["spec"]["priorityClassName"] = "high"
            cluster.create(group, *members, namespace=namespace)

            def seen(field: str, part: str = "status") -> list[str]:
                return [cluster.get("Pod", f"high-{i}", namespace)[part].get(field, "") for i in range(2)]

            cluster.wait_for(lambda: all(seen("nominatedNodeName")), 20, "both are promised a node")
            promised = seen("nominatedNodeName")
            assert sorted(promised) == ["node-0", "node-1"]
            assert seen("nodeName", "spec") == ["", ""]
            cluster.create(pod("late", {"cpu": 1}), namespace=namespace)
            cluster.wait_for(lambda: all(seen("nodeName", "spec")), 30, "both are bound")
            assert seen("nodeName", "spec") == promised
            cluster.wait_for(lambda: seen("nominatedNodeName") == ["", ""], 20, "the promise is taken off")
            recorder.wait_for_rest(2)
            assert cluster.phases(namespace) == {"high-0": "Running", "high-1": "Running", "late": "Pending"}
            assert recorder.overcommits(rejected=True) == []
            assert recorder.seconds_to_bind(f"{namespace}/high", 2) < 2
    finally:
        cluster.delete("PriorityClass", "high", api_version="scheduling.k8s.io/v1")


def test_what_a_disruption_budget_refuses_is_planned_around(
    start_control_plane: Callable[..., ControlPlane], service: Start
) -> None:
    """Two nodes of 2 CPUs, full of what `borrower` has: one pod on one, two on the other. `owner` is owed 2 CPUs, and
    the fewest evictions are that of the one. Its budget says that it may go, but is out of date: the server refuses
    (429), and the two go.
    """
    plane = start_control_plane(components=["kubelet"])  # no controller that would bring the budget up to date
    cluster, namespace = plane.cluster, "default"
    cluster.nodes(2, {"cpu": 2})
    cluster.create(queue("borrower", 1), queue("owner", 1))
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": spec}
    cluster.create(budget, namespace=namespace)
    stale = {"disruptionsAllowed": 1, "expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 1}
    cluster.patch("PodDisruptionBudget", "kept", {"status": stale}, namespace, "policy/v1", sub="status")
    borrowed = {"scheduling.volcano.sh/queue-name": "borrower"}
    with Recorder(cluster) as recorder:
        one = service(plane, scheduler_conf="preempting")
        guarded = pod("guarded", {"cpu": 2}, annotations=borrowed, labels={"app": "guarded"})
        free = [pod(f"free-{i}", {"cpu": 1}, annotations=borrowed) for i in range(2)]
        cluster.create(guarded, *free, namespace=namespace)
        cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 3, 30, "they run")
        cluster.create(*gang("g", 1, {"cpu": 2}, queue="owner"), namespace=namespace)
        after = {"g-0": "Running", "guarded": "Running"}
        cluster.wait_for(lambda: cluster.phases(namespace) == after, 40, "the gang runs beside the guarded one")
        ends = one.metrics("solver_sched_decisions_total")
        assert (ends['kind="Evict",result="refused"'], ends['kind="Evict",result="ok"']) == (1, 2)
        events = cluster.items("Event", namespace, "events.k8s.io/v1")
        refused = {
            event["regarding"]["name"]: event["note"] for event in events if event["reason"] == "EvictionRefused"
        }
        assert refused.keys() == {"guarded"}
        assert "disruption budget" in refused["guarded"]
        recorder.wait_for_rest(2)
        assert recorder.overcommits() == []


def test_an_idle_service_does_nothing(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """A gang that does not fit waits: after the cycles that saw it come there is none, and nothing is written."""
    cluster.nodes(1, {"cpu": 2})
    one = service(control_plane)
    cluster.create(*gang("g", 3, {"cpu": 1}), namespace=namespace)
    events = partial(cluster.items, "Event", namespace, "events.k8s.io/v1")
    cluster.wait_for(lambda: len(events()) >= 3, 20, "the pods are told that they wait")

    def idle() -> bool:
        before = len(one.cycles()), revisions(cluster, namespace)
        time.sleep(6)
        return (len(one.cycles()), revisions(cluster, namespace)) == before

    one.wait_for(idle, 40, "6 s without a cycle or a write")


def revisions(cluster: Cluster, namespace: str) -> list[str]:
    found = cluster.items("Pod", namespace) + cluster.items("PodGroup", namespace, VOLCANO)
    found += cluster.items("Event", namespace, "events.k8s.io/v1")
    return [one["metadata"]["resourceVersion"] for one in found]

"""Decisions and what users see of them, on a real API server: cycles, and their plans handed out."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from solver_sched.actions.decide import Admit, Bind
from solver_sched.cluster.api import Api
from solver_sched.cluster.binder import Binder, Placement
from solver_sched.cluster.cache import ClusterCache
from solver_sched.cluster.events import Events
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.objects import Pod
from solver_sched.cluster.rate import TokenBucket
from solver_sched.cluster.status import StatusWriter, ensure_default_queue
from solver_sched.cluster.watch import Watches
from solver_sched.conditions import Shown
from solver_sched.cycle import Budget, run_cycle
from solver_sched.policy import load_policy
from tests.controlplane.cluster import Cluster, Object, gang, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Faults, Proxy

POLICY = load_policy("default")
VOLCANO, KUBE_BATCH = "scheduling.volcano.sh/v1beta1", "scheduling.sigs.dev/v1alpha2"
COSCHEDULING, NATIVE = "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"


class Scheduler:
    """Everything but the loop."""

    def __init__(self, api: Api, sending: Api | None = None) -> None:
        """`sending`: through which decisions and statuses go, if through another."""
        self.ends: dict[str, int] = defaultdict(int)
        self.cache = ClusterCache(["solver-sched"])
        self.watches = Watches(api, self.cache)
        api = sending or api
        self.events = Events(api, bucket=TokenBucket(500, 500), raw=self.cache.raw)
        self.binder = Binder(
            api, self.cache, qps=2000, burst=2000, may_send=lambda: True, events=self.events, told=self.told
        )
        self.status = StatusWriter(api, self.cache, bucket=TokenBucket(500, 500), ahead=self.binder.lane)

    def told(self, kind: str, result: str) -> None:
        self.ends[f"{kind} {result}"] += 1

    def pod(self, key: str) -> Pod:
        return next(pod for pod in self.cache.snapshot(int(time.time())).pods if pod.key == key)

    def cycle(self) -> None:
        """Plan, hand out, and wait until everything is sent."""
        report = run_cycle(self.cache.snapshot(int(time.time())), POLICY, Budget(2.0, apart=False))
        pods = {pod.key: pod for pod in report.snapshot.pods}
        groups = {group.key: group for group in report.snapshot.groups}
        gangs: dict[str, list[Placement]] = defaultdict(list)
        for one in report.decisions:
            if isinstance(one, Bind):
                gangs[one.pod_group].append(Placement(pods[one.pod], one.node, one.action))
            elif isinstance(one, Admit):
                self.binder.admit(groups[one.pod_group])
        self.binder.bind(gangs.values())
        shown = Shown(report, failed=self.cache.failed())
        self.status.want([*shown.pods(), *shown.groups, *shown.queues()])
        for event in shown.events():
            self.events.tell(event)
        assert self.binder.drain(60)
        assert self.status.drain(30)
        assert self.events.drain(30)


@contextmanager
def scheduling(control_plane: ControlPlane, sending: str = "") -> Iterator[Scheduler]:
    """`sending`: the URL through which decisions and statuses go."""
    api = Api.load(control_plane.kubeconfig)
    other = Api.load(control_plane.kubeconfig, master=sending) if sending else None
    scheduler = Scheduler(api, other)
    scheduler.watches.start()
    try:
        assert scheduler.watches.wait_synced(20), scheduler.watches.missing()
        yield scheduler
    finally:
        for part in (scheduler.binder, scheduler.status, scheduler.events, scheduler.watches):
            part.stop()
        api.close()
        if other is not None:
            other.close()


def condition(one: Object, kind: str) -> dict[str, Any]:
    found = [each for each in one.get("status", {}).get("conditions", []) if each["type"] == kind]
    assert len(found) <= 1, found
    return found[0] if found else {}


def until(cluster: Cluster, scheduler: Scheduler, check: Callable[[], bool], what: str) -> None:
    def tried() -> bool:
        scheduler.cycle()
        return check()

    cluster.wait_for(tried, 20, what)


def test_a_gang_is_bound_and_everybody_is_told(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    """One node of 2 cpu: the gang of two runs, the pod of 3 cpu waits and says why."""
    cluster.nodes(1, {"cpu": 2})
    with scheduling(control_plane) as scheduler:
        assert VOLCANO in ensure_default_queue(Api.load(control_plane.kubeconfig))
        assert ensure_default_queue(Api.load(control_plane.kubeconfig)) == []
        cluster.create(*gang("g", 2, {"cpu": 1}), pod("big", {"cpu": 3}), namespace=namespace)
        until(cluster, scheduler, lambda: len(scheduler.cache.snapshot(0).pods) == 3, "the pods are seen")
        until(
            cluster,
            scheduler,
            lambda: cluster.get("PodGroup", "g", namespace, VOLCANO).get("status", {}).get("phase") == "Running",
            "the group runs",
        )
        assert scheduler.ends["Bind ok"] == 2
        status = cluster.get("PodGroup", "g", namespace, VOLCANO)["status"]
        assert condition({"status": status}, "Scheduled")["status"] == "True"
        cluster.wait_for(lambda: cluster.phases(namespace)["g-0"] == "Running", 10, "the kubelet runs it")
        until(
            cluster,
            scheduler,
            lambda: cluster.get("PodGroup", "g", namespace, VOLCANO)["status"].get("running") == 2,
            "both are counted",
        )
        waits = condition(cluster.get("Pod", "big", namespace), "PodScheduled")
        assert (waits["status"], waits["reason"]) == ("False", "Unschedulable")
        assert waits["message"] == "Resources: asks 3 cpu, the largest eligible node has 2"
        assert waits["lastTransitionTime"]
        assert condition(cluster.get("Pod", "g-0", namespace), "PodScheduled")["status"] == "True"
        queue = cluster.get("Queue", "default", api_version=VOLCANO)["status"]
        assert (queue["state"], queue["running"], queue["allocated"]["cpu"]) == ("Open", 1, "2")
        told = cluster.kubectl("describe", "pod", "big", "-n", namespace)
        assert "FailedScheduling" in told
        assert "largest eligible node has 2" in told
        assert "Successfully assigned" in cluster.kubectl("describe", "pod", "g-0", "-n", namespace)
        assert "pod group is ready" in cluster.kubectl(
            "describe", "podgroups.v1beta1.scheduling.volcano.sh", "g", "-n", namespace
        )
        before = {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in cluster.items("Pod", namespace)
        }
        for _ in range(3):
            scheduler.cycle()
        after = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in cluster.items("Pod", namespace)}
        assert before == after, "nothing new, nothing written"


def test_a_status_write_between_decision_and_bind_does_no_harm(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    cluster.nodes(1, {"cpu": 2})
    with scheduling(control_plane) as scheduler:
        cluster.create(pod("a", {"cpu": 1}), pod("b", {"cpu": 1}), namespace=namespace)
        cluster.wait_for(lambda: len(scheduler.cache.snapshot(0).pods) == 2, 10, "the pods are seen")
        a, b = scheduler.pod(f"{namespace}/a"), scheduler.pod(f"{namespace}/b")
        old = scheduler.cache.version(a)
        scheduler.cache.version = lambda pod: old  # type: ignore[method-assign]  # a late watch
        cluster.patch("Pod", "a", {"status": {"nominatedNodeName": "node-0"}}, namespace, sub="status")
        cluster.delete("Pod", "b", namespace, grace=0)
        cluster.create(pod("b", {"cpu": 1}), namespace=namespace)
        scheduler.binder.bind([[Placement(a, "node-0", "allocate"), Placement(b, "node-0", "allocate")]])
        assert scheduler.binder.drain(10)
        assert scheduler.ends == {"Bind ok": 1, "Bind conflict": 1}
        assert cluster.get("Pod", "a", namespace)["spec"]["nodeName"] == "node-0"
        assert "nodeName" not in cluster.get("Pod", "b", namespace)["spec"]


def test_an_eviction_keeps_to_the_budget_and_says_whose_it_was(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    """Two pods under a budget that keeps one: the second eviction is refused, the third not asked for."""
    cluster.nodes(1, {"cpu": 4})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
    }
    finalizers = {"finalizers": ["test.example/keep"]}
    guarded = [pod(name, {"cpu": 1}, labels={"app": "x"}) for name in "ab"]
    for one in guarded:
        one["metadata"] |= finalizers
    cluster.create(budget, *guarded, pod("c", {"cpu": 1}), namespace=namespace)
    for name in "abc":
        cluster.bind(name, "node-0", namespace)

    def allowed() -> bool:
        found = cluster.get("PodDisruptionBudget", "one", namespace, "policy/v1")
        return bool(found["status"].get("disruptionsAllowed") == 1)

    cluster.wait_for(allowed, 20, "one disruption is allowed")
    with scheduling(control_plane) as scheduler:
        cluster.wait_for(lambda: scheduler.pod(f"{namespace}/c").phase == "Running", 10, "they run")
        victims = [scheduler.pod(f"{namespace}/{name}") for name in "cab"]
        who = f"{namespace}/big"
        scheduler.binder.evict(Eviction(one, who, "preempt", "gives way", guarded=one.name != "c") for one in victims)
        assert scheduler.binder.drain(20)
        assert scheduler.events.drain(10)
        assert scheduler.ends == {"Evict ok": 1, "Evict refused": 1, "Evict failed": 1}
        a, b, c = (cluster.get("Pod", name, namespace) for name in "abc")
        assert "deletionTimestamp" in a["metadata"]
        assert condition(a, "DisruptionTarget")["reason"] == "PreemptionByScheduler"
        for kept in (b, c):
            assert "deletionTimestamp" not in kept["metadata"]
            assert condition(kept, "DisruptionTarget") == {}
        reasons = {
            one["regarding"]["name"]: one["reason"]
            for one in cluster.items("Event", namespace, "events.k8s.io/v1")
            if one["reportingController"] == "solver-sched"
        }
        assert reasons == {"a": "Preempted", "b": "EvictionRefused"}
    for name in "ab":
        cluster.patch("Pod", name, {"metadata": {"finalizers": None}}, namespace)


def test_a_promise_is_shown_and_taken_back(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    cluster.nodes(1, {"cpu": 2})
    cluster.create(pod("a", {"cpu": 1}), namespace=namespace)
    with scheduling(control_plane) as scheduler:
        cluster.wait_for(lambda: len(scheduler.cache.snapshot(0).pods) == 1, 10, "the pod is seen")
        for node in ("node-0", None):
            scheduler.binder.nominate(scheduler.pod(f"{namespace}/a"), node)
            assert scheduler.binder.drain(10)
            assert cluster.get("Pod", "a", namespace)["status"].get("nominatedNodeName") == node
        assert scheduler.ends == {"Nominate ok": 2}


@pytest.mark.parametrize("seed", range(3))
def test_one_plan_is_carried_out_whatever_befalls_its_requests(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, seed: int
) -> None:
    """Ten gangs of three on three nodes of 10 cpu, in one cycle. Three requests in four fail, some of them after the
    server has acted, until 80 have; every pod is bound once, where it was planned.
    """
    cluster.nodes(3, {"cpu": 10})
    for i in range(10):
        cluster.create(*gang(f"g{i}", 3, {"cpu": 1}), namespace=namespace)
    share = 0.75 / 7
    bad = Faults(
        where=r"/pods/|/podgroups/|/events",
        conflict=share,
        too_many=share,
        error=share,
        error_after=share,
        refused=share,
        lost=share,
        reset=share,
        at_most=80,
    )
    with (
        Proxy(control_plane.url, control_plane.authority, seed=seed, faults=(bad,)) as proxy,
        scheduling(control_plane, proxy.url) as scheduler,
    ):
        cluster.wait_for(lambda: len(scheduler.cache.snapshot(0).pods) == 30, 10, "the pods are seen")
        scheduler.cycle()
        assert proxy.done[bad] > 30
        assert scheduler.ends["Bind ok"] == 30
        granted = [one.pod for one in proxy.binds() if one.status == 201]
        assert sorted(granted) == sorted(f"{namespace}/g{i}-{k}" for i in range(10) for k in range(3))
        bound = {
            f"{namespace}/{one['metadata']['name']}": one["spec"].get("nodeName")
            for one in cluster.items("Pod", namespace)
        }
        for one in proxy.binds():
            assert json.loads(one.body)["target"]["name"] == bound[one.pod]


def other_group(version: str, name: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def without_subresource(group: str, version: str) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }


def test_groups_of_every_dialect(start_control_plane: Callable[..., ControlPlane]) -> None:
    """A pod in a group of each dialect; one node, so that all but those of native `late` run. The definition of
    coscheduling has no status subresource here.
    """
    control_plane = start_control_plane(
        feature_gates={"GenericWorkload": True},
        runtime_config=("api/beta=true", "scheduling.k8s.io/v1beta1=true"),
    )
    cluster, namespace = control_plane.cluster, "default"
    cluster.apply(without_subresource("scheduling.x-k8s.io", "v1alpha1"))
    cluster.nodes(1, {"cpu": 4})
    ensure_default_queue(Api.load(control_plane.kubeconfig))
    cluster.wait_for(lambda: cluster.items("PodGroup", namespace, COSCHEDULING) == [], 10, "the definition is served")
    kept = {"type": "Other", "status": "True", "reason": "Theirs", "message": "", "lastTransitionTime": None}
    groups = [
        other_group(KUBE_BATCH, "batch", {"minMember": 1}),
        other_group(COSCHEDULING, "co", {"minMember": 1}) | {"status": {"theirs": 1, "conditions": [kept]}},
        other_group(NATIVE, "now", {"schedulingPolicy": {"gang": {"minCount": 1}}}),
        other_group(NATIVE, "late", {"schedulingPolicy": {"gang": {"minCount": 1}}}),
    ]
    cluster.create(*groups, namespace=namespace)
    annotated, labelled = {"scheduling.k8s.io/group-name": "batch"}, {"scheduling.x-k8s.io/pod-group": "co"}
    cluster.create(
        pod("batch", {"cpu": 1}, annotations=annotated),
        pod("co", {"cpu": 1}, labels=labelled),
        pod("now", {"cpu": 1}, schedulingGroup={"podGroupName": "now"}),
        pod("late", {"cpu": 9}, schedulingGroup={"podGroupName": "late"}),
        namespace=namespace,
    )

    def status(version: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = cluster.get("PodGroup", name, namespace, version).get("status", {})
        return found

    with scheduling(control_plane) as scheduler:
        until(cluster, scheduler, lambda: status(KUBE_BATCH, "batch").get("running") == 1, "kube-batch's group runs")
        until(cluster, scheduler, lambda: status(COSCHEDULING, "co").get("phase") == "Running", "coscheduling's runs")
        initially = "PodGroupInitiallyScheduled"
        until(
            cluster, scheduler, lambda: condition({"status": status(NATIVE, "now")}, initially) != {}, "native is told"
        )
    batch = status(KUBE_BATCH, "batch")
    assert (batch["phase"], batch["running"]) == ("Running", 1)
    co = status(COSCHEDULING, "co")
    assert (co["phase"], co["running"], co["scheduled"], co["theirs"]) == ("Running", 1, 1, 1)
    assert co["conditions"] == [kept]
    assert condition({"status": status(NATIVE, "now")}, initially)["status"] == "True"
    late = condition({"status": status(NATIVE, "late")}, initially)
    assert (late["status"], late["reason"]) == ("False", "Unschedulable")
    assert late["message"] == "Resources: asks 9 cpu, the largest eligible node has 4"

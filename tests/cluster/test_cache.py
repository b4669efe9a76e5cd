"""The cache gives what a reader of the same objects gives, whatever came in which order; and what we have under way."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from solver_sched.cluster.cache import ClusterCache
from solver_sched.cluster.kinds import KINDS, POD, Kind
from solver_sched.cluster.objects import Pod
from solver_sched.cluster.sources import load_snapshot
from solver_sched.cluster.states import TaskState
from solver_sched.snapshot import Snapshot

NAMES = ("solver-sched",)
BY_VERSION = {(kind.kind, version): kind for kind in KINDS for version in kind.versions}
Object = dict[str, Any]


class Cluster:
    """Objects as a server would hold them, told to a cache one by one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cache = ClusterCache(NAMES, lambda: self.now)
        self.objects: dict[tuple[str, str, str, str], Object] = {}
        self.revision = 0

    def put(self, thing: Object) -> None:
        self.revision += 1
        meta = thing["metadata"] | {"resourceVersion": str(self.revision)}
        meta.setdefault("uid", f"uid-{self.revision}")
        thing = thing | {"metadata": meta}
        self.objects[_place(thing)] = thing
        self.cache.apply(_kind(thing), thing["apiVersion"], False, msgspec.json.encode(thing))

    def drop(self, thing: Object) -> None:
        gone = self.objects.pop(_place(thing))
        self.cache.apply(_kind(gone), gone["apiVersion"], True, msgspec.json.encode(gone))

    def list_again(self) -> None:
        for kind in KINDS:
            held = [one for one in self.objects.values() if _kind(one) is kind]
            version = held[0]["apiVersion"] if held else kind.versions[0]
            self.cache.replace(kind, version, [msgspec.json.encode(one) for one in held])

    def snapshot(self) -> Snapshot:
        return self.cache.snapshot(0)

    def pod(self, name: str) -> Pod:
        (found,) = [pod for pod in self.snapshot().pods if pod.name == name]
        return found


def _place(thing: Object) -> tuple[str, str, str, str]:
    meta = thing["metadata"]
    return thing["apiVersion"], thing["kind"], meta.get("namespace", ""), meta["name"]


def _kind(thing: Object) -> Kind:
    return BY_VERSION[thing["kind"], thing["apiVersion"]]


def pod(name: str, namespace: str = "ns", *, uid: str = "", **parts: Any) -> Object:
    annotations, labels = parts.pop("annotations", {}), parts.pop("labels", {})
    owner, status = parts.pop("owner", None), parts.pop("status", {"phase": "Pending"})
    meta: Object = {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels}
    if uid:
        meta["uid"] = uid
    if owner:
        meta["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
    container = {"name": "c", "resources": {"requests": {"cpu": parts.pop("cpu", "1")}}}
    spec = {"schedulerName": "solver-sched", "priority": 0, "containers": [container], **parts}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def drawn(rng: random.Random) -> Object:
    """A random object out of few names, so that objects meet."""
    where, n = rng.choice(["a", "a-b"]), rng.randrange(3)
    kind = rng.choice(
        ["Pod"] * 6 + ["PodGroup"] * 3 + ["Queue", "Node", "Namespace", "PriorityClass", "Job", "PVC", "PV"]
    )
    meta: Object = {"name": f"{kind.lower()}-{n}"}
    match kind:
        case "Pod":
            annotations: Object = rng.choice(
                [
                    {},
                    {"scheduling.k8s.io/group-name": f"podgroup-{rng.randrange(3)}"},
                    {"scheduling.volcano.sh/group-name": f"podgroup-{rng.randrange(3)}"},
                    {"scheduling.k8s.io/group-min-member": str(rng.randrange(4))},
                    {"solver-sched.io/run-time": "90m"},
                ]
            )
            labels = rng.choice([{}, {"scheduling.x-k8s.io/pod-group": f"podgroup-{rng.randrange(3)}"}])
            status = {"phase": rng.choice(["Pending", "Running", "Failed"])}
            parts: Object = {"nodeName": "node-0"} if status["phase"] == "Running" else {}
            if rng.random() < 0.3:
                parts["schedulingGroup"] = {"podGroupName": f"podgroup-{rng.randrange(3)}"}
            return pod(
                f"pod-{rng.randrange(8)}",
                where,
                annotations=annotations,
                labels=labels,
                owner=rng.choice(["", "job-0", "job-1"]),
                status=status,
                cpu=rng.choice(["1", "2", "-1"]),
                **parts,
            )
        case "PodGroup":
            version = rng.choice(
                [
                    "scheduling.volcano.sh/v1beta1",
                    "scheduling.sigs.dev/v1alpha2",
                    "scheduling.x-k8s.io/v1alpha1",
                    "scheduling.k8s.io/v1beta1",
                ]
            )
            spec: Object = {"minMember": rng.choice([1, 2, -1, "two"]), "queue": rng.choice(["", "queue-0", "queue-1"])}
            if version.startswith("scheduling.k8s.io"):
                spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            elif rng.random() < 0.3:
                spec["priorityClassName"] = f"priorityclass-{n}"
            if "volcano" in version and rng.random() < 0.3:
                spec["subGroupPolicy"] = [{"minSubGroups": 1, "subGroupSize": 1}]
            return {"apiVersion": version, "kind": kind, "metadata": meta | {"namespace": where}, "spec": spec}
        case "Queue":
            version = rng.choice(["scheduling.volcano.sh/v1beta1", "scheduling.sigs.dev/v1alpha2"])
            name = rng.choice(["default", f"queue-{n}"])
            return {
                "apiVersion": version,
                "kind": kind,
                "metadata": {"name": name},
                "spec": {"weight": rng.choice([1, 3, -2])},
            }
        case "Node":
            room: Object = {"allocatable": {"cpu": rng.choice(["8", "x"]), "pods": "10"}}
            return {"apiVersion": "v1", "kind": kind, "metadata": meta, "status": room}
        case "Namespace":
            queue = rng.choice(["", "queue-1"])
            meta = {"name": where} | ({"annotations": {"scheduling.volcano.sh/queue-name": queue}} if queue else {})
            return {"apiVersion": "v1", "kind": kind, "metadata": meta}
        case "PriorityClass":
            version = "scheduling.k8s.io/v1"
            return {
                "apiVersion": version,
                "kind": kind,
                "metadata": meta,
                "value": n,
                "globalDefault": rng.random() < 0.2,
            }
        case "Job":
            template = {"spec": {"containers": [{"name": "c"}]}}
            spec = {"parallelism": 0, "activeDeadlineSeconds": rng.choice([None, 60]), "template": template}
            return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta | {"namespace": where}, "spec": spec}
        case "PVC":
            spec = {"accessModes": ["ReadWriteOnce"], "volumeName": f"pv-{n}"}
            meta |= {"namespace": where}
            return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        case _:
            spec = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": rng.choice(["d", "e"])}}
            return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}


def comparable(snapshot: Snapshot) -> dict[str, Any]:
    """What both ways must agree on: the reader of files names files and counts what it passes over."""
    facts: Object = msgspec.to_builtins(snapshot)
    problems = sorted((one["object"], one["field"], one["message"]) for one in facts.pop("problems"))
    for part in ("now", "ignored", "run_times"):
        facts.pop(part)
    return facts | {"problems": problems}


@pytest.mark.parametrize("seed", range(40))
def test_equals_what_a_reader_of_the_same_objects_gives(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster()
    for step in range(80):
        if cluster.objects and rng.random() < 0.25:
            cluster.drop(rng.choice(list(cluster.objects.values())))
        else:
            cluster.put(drawn(rng))
        if rng.random() < 0.03:
            cluster.list_again()
        if rng.random() < 0.3 or step == 79:
            order = list(BY_VERSION)
            objects = sorted(cluster.objects.values(), key=lambda one: order.index((one["kind"], one["apiVersion"])))
            expected = load_snapshot(objects, scheduler_names=NAMES)
            assert comparable(cluster.snapshot()) == comparable(expected)


def test_a_group_learns_from_its_job_who_places_it() -> None:
    """Volcano makes the PodGroup "train-1" of the Job "train" long before there are pods; the watch may show either
    first, and the Job may be taken away.
    """
    cluster = Cluster()
    meta = {"name": "train-1", "namespace": "ns", "ownerReferences": [{"kind": "Job", "name": "train"}]}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": {}}
    job: Object = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "ns"},
        "spec": {"schedulerName": "volcano"},
    }

    def says() -> tuple[str, str]:
        (found,) = cluster.snapshot().groups
        return found.job, found.scheduler

    cluster.put(group)
    assert says() == ("train", "")
    cluster.put(job)
    assert says() == ("train", "volcano")
    (read,) = load_snapshot([group, job], scheduler_names=NAMES).groups
    assert (read.name, read.scheduler) == ("train-1", "volcano")
    cluster.put(job | {"spec": {"schedulerName": "solver-sched"}})
    assert says() == ("train", "")
    cluster.put(job)
    cluster.drop(job)
    assert says() == ("train", "")


def test_a_heartbeat_changes_nothing_that_a_cycle_looks_at() -> None:
    cluster = Cluster()
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "1"}, "status": {}}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    cluster.put(node | {"status": {"conditions": [ready]}})
    before, first = cluster.cache.changes(), cluster.snapshot()
    cluster.put(node | {"status": {"conditions": [ready | {"lastHeartbeatTime": "2026-01-01T00:05:00Z"}]}})
    assert cluster.cache.changes() == before
    assert cluster.snapshot().nodes is first.nodes
    cluster.put(node | {"status": {"conditions": [ready | {"status": "False"}]}})
    assert cluster.cache.changes() == before + 1
    assert not cluster.snapshot().nodes[0].ready


def test_an_assumed_pod_takes_its_room_until_the_watch_shows_it() -> None:
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    mine = cluster.pod("p")
    cluster.cache.assume(mine, "n")
    assert cluster.pod("p").node == "n"
    assert not cluster.pod("p").preemptable  # a bind on its way cannot be called back
    assert cluster.cache.state(mine) is TaskState.Allocated
    cluster.cache.sent(mine)
    assert cluster.cache.state(mine) is TaskState.Binding
    assert cluster.cache.states() == {"Binding": 1}
    cluster.put(pod("p", uid="1", nodeName="n"))
    assert cluster.pod("p").preemptable
    assert cluster.cache.state(cluster.pod("p")) is TaskState.Bound


def test_a_failed_bind_gives_the_room_back() -> None:
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    mine = cluster.pod("p")
    cluster.cache.assume(mine, "n")
    cluster.cache.forget(mine)
    assert cluster.pod("p").node is None


def test_a_confirmed_bind_that_the_watch_never_shows_expires() -> None:
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    mine = cluster.pod("p")
    cluster.cache.assume(mine, "n")
    cluster.cache.bound(mine, "n")
    cluster.now = 59
    assert cluster.pod("p").node == "n"
    assert cluster.cache.next_end() == 1
    cluster.now = 60
    assert cluster.pod("p").node is None


def test_nothing_expires_while_the_watch_is_silent() -> None:
    """Bound at 0, the watch last heard of at 10 and again at 75: its silence says nothing about the pod."""
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    mine = cluster.pod("p")
    cluster.cache.assume(mine, "n")
    cluster.cache.bound(mine, "n")
    cluster.cache.alive(POD, 10)
    cluster.now = 70
    assert cluster.pod("p").node == "n"
    assert cluster.cache.next_end() == float("inf")
    cluster.cache.alive(POD, 75)
    cluster.now = 76
    assert cluster.cache.next_end() == 0
    assert cluster.pod("p").node is None


def test_a_successor_of_the_same_name_is_another_pod() -> None:
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    cluster.cache.assume(cluster.pod("p"), "n")
    cluster.put(pod("p", uid="2"))
    assert cluster.pod("p").node is None


def test_a_queue_in_two_apis_is_one_however_old_each_is() -> None:
    cluster = Cluster()
    for second, api in enumerate(("scheduling.volcano.sh/v1beta1", "scheduling.sigs.dev/v1alpha2")):
        metadata = {"name": "default", "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        cluster.put({"apiVersion": api, "kind": "Queue", "metadata": metadata, "spec": {"weight": 1}})
    snapshot = cluster.snapshot()
    assert (len(snapshot.queues), snapshot.problems) == (1, ())


def test_a_refused_victim_is_spared_for_a_while() -> None:
    cluster = Cluster()
    cluster.put(pod("v", uid="1", nodeName="n", status={"phase": "Running"}))
    cluster.cache.spared(cluster.pod("v"), 30)
    assert not cluster.pod("v").preemptable
    cluster.now = 30
    assert cluster.pod("v").preemptable


def test_an_evicted_pod_terminates_before_the_watch_says_so() -> None:
    cluster = Cluster()
    cluster.put(pod("v", uid="1", nodeName="n", status={"phase": "Running"}))
    cluster.cache.evicting(cluster.pod("v"))
    assert cluster.pod("v").terminating
    assert cluster.cache.state(cluster.pod("v")) is TaskState.Releasing
    cluster.now = 3600  # however long the server takes to answer
    assert cluster.pod("v").terminating


def test_a_pod_that_is_not_evicted_after_all_runs_on() -> None:
    cluster = Cluster()
    cluster.put(pod("v", uid="1", nodeName="n", status={"phase": "Running"}))
    for way in (cluster.cache.forget, lambda pod: cluster.cache.spared(pod, 30)):
        cluster.cache.evicting(cluster.pod("v"))
        way(cluster.pod("v"))
        assert not cluster.pod("v").terminating
        assert cluster.cache.state(cluster.pod("v")) is TaskState.Running


def test_an_eviction_that_the_watch_never_shows_expires() -> None:
    """The server has accepted it, and 60 s later the pod is still there: it is believed as it is shown."""
    cluster = Cluster()
    cluster.put(pod("v", uid="1", nodeName="n", status={"phase": "Running"}))
    cluster.cache.evicting(cluster.pod("v"))
    cluster.cache.evicted(cluster.pod("v"))
    cluster.now = 59
    assert cluster.pod("v").terminating
    cluster.now = 60
    assert not cluster.pod("v").terminating


def test_a_promise_holds_until_the_watch_shows_it() -> None:
    cluster = Cluster()
    cluster.put(pod("p", uid="1"))
    cluster.cache.nominate(cluster.pod("p"), "n")
    assert cluster.pod("p").nominated == "n"
    cluster.put(pod("p", uid="1", status={"phase": "Pending", "nominatedNodeName": "n"}))
    assert cluster.pod("p").nominated == "n"
    cluster.cache.nominate(cluster.pod("p"), None)
    assert cluster.pod("p").nominated is None


def test_a_run_time_counts_once_however_often_its_pod_is_told() -> None:
    cluster = Cluster()
    ended = {"phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z"}
    ended["conditions"] = [{"type": "Ready", "lastTransitionTime": "2026-01-01T00:02:00Z"}]  # type: ignore[assignment]
    for _ in range(3):
        cluster.put(pod("train-0", uid="1", status=ended))
        cluster.snapshot()
        cluster.list_again()
    (run,) = cluster.snapshot().run_times
    assert (run.runs, run.median) == (1, 120)


def test_another_version_of_an_api_is_read_as_such_though_no_text_has_changed() -> None:
    """The server was upgraded: it serves v1beta1 of the native API instead of v1alpha2, whose conditions differ."""
    cluster, kind = Cluster(), BY_VERSION["PodGroup", "scheduling.k8s.io/v1alpha2"]
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    group = msgspec.json.encode({"metadata": {"name": "g", "namespace": "ns", "uid": "1"}, "spec": spec})
    cluster.cache.replace(kind, "scheduling.k8s.io/v1alpha2", [group])
    assert [one.dialect for one in cluster.snapshot().groups] == ["scheduling.k8s.io/v1alpha2"]
    seen = cluster.cache.changes()
    cluster.cache.replace(kind, "scheduling.k8s.io/v1beta1", [group])
    assert cluster.cache.changes() > seen
    assert [one.dialect for one in cluster.snapshot().groups] == ["scheduling.k8s.io/v1beta1"]


def test_the_lag_of_a_kind_is_that_of_the_api_that_is_silent_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 Volcano's groups were heard of 60 s ago, kube-batch's 10 s ago, pods just now."""
    cluster = Cluster()
    cluster.cache.alive(BY_VERSION["PodGroup", "scheduling.volcano.sh/v1beta1"], 40)
    cluster.cache.alive(BY_VERSION["PodGroup", "scheduling.sigs.dev/v1alpha2"], 90)
    cluster.cache.alive(POD, 100)
    monkeypatch.setattr("solver_sched.cluster.cache.time.monotonic", lambda: 100.0)
    assert cluster.cache.lag() == {"PodGroup": 60, "Pod": 0}


def test_failed_members_are_counted_while_they_exist() -> None:
    """theirs is of another scheduler: its group is not ours to write to."""
    cluster = Cluster()
    failed = {"phase": "Failed"}
    cluster.put(pod("p", uid="1", annotations={"scheduling.k8s.io/group-name": "g"}, status=failed))
    theirs = pod("theirs", uid="2", annotations={"scheduling.k8s.io/group-name": "of-volcano"}, status=failed)
    theirs["spec"]["schedulerName"] = "volcano"
    cluster.put(theirs)
    assert cluster.cache.failed() == {"ns/g": 1}
    cluster.drop(pod("p"))
    assert cluster.cache.failed() == {}


def test_what_is_remembered_of_pods_that_are_gone_is_given_up() -> None:
    """20,000 pods of 20,000 sizes pass by; at most twice what lives, and RENEWED, is remembered."""
    cluster = Cluster()
    for n in range(20_000):
        cluster.cache.apply(
            BY_VERSION["Pod", "v1"], "v1", False, msgspec.json.encode(pod("p", uid=str(n), cpu=f"{n + 1}m"))
        )
        if n % 100 == 0:
            cluster.snapshot()
    assert cluster.cache._reader.size < 12_000

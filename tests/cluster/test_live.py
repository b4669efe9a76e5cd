"""Reading a live cluster once: what `kubectl get` of the same objects would give, and what may go wrong on the way."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from solver_sched.cluster.api import Api
from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.live import configured, listed, namespace_of
from solver_sched.cluster.sources import load_snapshot
from solver_sched.errors import InputError
from solver_sched.snapshot import InputProblem, Snapshot, dump
from tests.controlplane.cluster import Cluster
from tests.lister import Json, Lister, kubeconfig

EXAMPLES = Path(__file__).parents[2] / "solver_sched" / "examples"
VOLCANO = "scheduling.volcano.sh/v1beta1"
NATIVE = "scheduling.k8s.io/v1beta1"
NOON = 1767268800


def pod(name: str, **metadata: Any) -> Json:
    meta = {"namespace": "ml", "name": name, "uid": name, "creationTimestamp": "2026-01-01T11:00:00Z", **metadata}
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "volcano", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def node(name: str = "n1") -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}}


def group(name: str, version: str = VOLCANO) -> Json:
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"namespace": "ml", "name": name}}


def read(lister: Lister, tmp_path: Path) -> Snapshot:
    return load_snapshot(listed(Api.load(kubeconfig(tmp_path / "config", lister.url))), now=NOON)


def of_file(objects: list[Json]) -> Snapshot:
    return load_snapshot(objects, now=NOON)


def unplaced(snapshot: Snapshot) -> Snapshot:
    """Without what differs by construction: where a mistake stood."""
    return replace(snapshot, problems=tuple(InputProblem("", p.object, p.field, p.message) for p in snapshot.problems))


def test_a_live_cluster_reads_like_a_dump_of_it(tmp_path: Path) -> None:
    """One mistake among it: a pod that asks for less than nothing."""
    bad = pod("bad")
    bad["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "-1"
    member = pod("a", annotations={"scheduling.k8s.io/group-name": "g"})
    objects = [node(), group("g"), member, bad]
    with Lister(objects) as lister:
        live = read(lister, tmp_path)
    assert unplaced(live) == unplaced(of_file(objects))
    assert (live.pods[0].group, live.groups[0].dialect) == ("ml/g", VOLCANO)
    (problem,) = live.problems
    assert str(problem).startswith("cluster: Pod ml/bad: spec.containers[0].resources.requests.cpu: ")


def test_the_shipped_examples_read_alike_live_and_from_their_file(tmp_path: Path) -> None:
    """But for the pods that the file's reader makes of jobs: in a live cluster controllers do that."""
    kinds = {kind.kind for kind in KINDS}
    for file in sorted(EXAMPLES.glob("*.yaml")):
        text = json.dumps([one for one in yaml.safe_load_all(file.read_text()) if one], default=str)
        objects = [one for one in json.loads(text) if one["kind"] in kinds]
        with Lister(objects) as lister:
            live = read(lister, tmp_path)
        assert unplaced(live) == unplaced(of_file([one for one in objects if one["kind"] != "Job"]))
        assert live.nodes


def test_a_live_job_says_how_long_its_pods_run_and_makes_none(tmp_path: Path) -> None:
    """Two of two pods are wanted, one is there. The same job in a file asks for the missing one."""
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 2, "completions": 2, "activeDeadlineSeconds": 60, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "ml", "name": "j"}, "spec": spec}
    mine = pod("j-0", ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}])
    with Lister([node(), job, mine]) as lister:
        live = listed(Api.load(kubeconfig(tmp_path / "config", lister.url)))
    assert [(one.key, one.deadline) for one in load_snapshot(live).pods] == [("ml/j-0", 60)]
    assert len(load_snapshot([job, *live]).pods) == 2


def test_lists_come_in_pages(tmp_path: Path) -> None:
    """Five pods, two a page: three requests, each with the token of the one before."""
    objects = [pod(f"p{i}") for i in range(5)]
    with Lister(objects, page=2) as lister:
        assert [one.name for one in read(lister, tmp_path).pods] == ["p0", "p1", "p2", "p3", "p4"]
        asked = [line for line in lister.asked if "/pods" in line]
    assert asked == [f"/api/v1/pods?limit=500{more}" for more in ("", "&continue=2", "&continue=4")]


def test_a_list_whose_token_expires_starts_over(tmp_path: Path) -> None:
    """The third page is too old: what the first two gave is forgotten, not doubled. Three times in a row is a fault."""
    third = "/api/v1/pods?limit=500&continue=4"
    with Lister([pod(f"p{i}") for i in range(5)], page=2) as lister:
        lister.expired[third] = 1
        api = Api.load(kubeconfig(tmp_path / "config", lister.url))
        pods = next(one for one in listed(api) if one.kind == "Pod")
        assert [json.loads(bytes(raw))["metadata"]["name"] for raw in pods.items] == ["p0", "p1", "p2", "p3", "p4"]
        assert pods.problems == ()
        assert lister.asked.count("/api/v1/pods?limit=500") == 2
        lister.expired[third] = 3
        with pytest.raises(InputError, match=r"^cluster: cannot be read: 410 Expired"):
            listed(api)


def test_the_first_served_version_of_a_family_is_read(tmp_path: Path) -> None:
    native = next(kind for kind in KINDS if NATIVE in kind.versions)
    older = native.versions[native.versions.index(NATIVE) + 1]
    with Lister([group("new", NATIVE), group("old", older)]) as lister:
        assert [one.name for one in read(lister, tmp_path).groups] == ["new"]
    with Lister([group("old", older)]) as lister:
        assert [(one.name, one.dialect) for one in read(lister, tmp_path).groups] == [("old", older)]


@pytest.mark.parametrize("served", [(), (VOLCANO,)])
def test_kinds_that_are_not_served_are_no_problem(served: tuple[str, ...], tmp_path: Path) -> None:
    """Also for a user without rights: the server refuses before it looks whether there is such a kind. Once the whole
    API group is missing, once it has queues and no pod groups.
    """
    groups = "/apis/scheduling.volcano.sh/v1beta1/podgroups"
    with Lister([node()], served) as lister:
        lister.lists.pop(groups, None)
        lister.refusals[f"{groups}?limit=500"] = 403
        snapshot = read(lister, tmp_path)
    assert [one.name for one in snapshot.nodes] == ["n1"]
    assert (snapshot.groups, snapshot.problems) == ((), ())


def test_a_built_in_kind_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """A server older than PodDisruptionBudgets of policy/v1, or something that is no Kubernetes at all."""
    with Lister([node()]) as lister:
        del lister.versions["/apis/policy/v1"], lister.lists["/apis/policy/v1/poddisruptionbudgets"]
        snapshot = read(lister, tmp_path)
        lister.instead = (200, {})
        nothing = read(lister, tmp_path)
    (problem,) = snapshot.problems
    message = "poddisruptionbudgets of policy/v1 are not served: none of them is read"
    assert str(problem) == f"cluster: PodDisruptionBudget: {message}"
    assert len(nothing.problems) == sum(kind.built_in for kind in KINDS)


def test_a_kind_that_may_not_be_listed_is_one_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    with Lister([node(), pod("a"), group("g")]) as lister:
        lister.refusals["/apis/scheduling.volcano.sh/v1beta1/podgroups?limit=500"] = 403
        snapshot = read(lister, tmp_path)
    assert (len(snapshot.nodes), len(snapshot.pods), len(snapshot.groups)) == (1, 1, 0)
    (problem,) = snapshot.problems
    assert str(problem) == (
        "cluster: PodGroup: verb list on podgroups.scheduling.volcano.sh is not granted: none of them is read "
        '(User "eve" cannot list resource "podgroups" at the cluster scope)'
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {"reason": "Unauthorized", "message": "Unauthorized"}), "cannot be read: 401 Unauthorized"),
        ((200, b"<html>log in</html>"), "does not answer as Kubernetes does"),
        ((200, {"resources": {}}), "does not answer as Kubernetes does"),
    ],
)
def test_an_answer_that_is_no_list_is_one_line(answer: tuple[int, Json | bytes], message: str, tmp_path: Path) -> None:
    with Lister() as lister:
        lister.instead = answer
        with pytest.raises(InputError, match=message) as caught:
            read(lister, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        file = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(InputError, match=r"^cluster: cannot be read: .*Connection refused") as caught:
            listed(Api.load(file))
    assert "\n" not in str(caught.value)


def test_namespaces_of_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", namespace="ml")
    assert namespace_of(file) == "ml"
    assert namespace_of(file, "there") == "ml"
    assert namespace_of(kubeconfig(tmp_path / "plain", "http://127.0.0.1:1")) == "default"
    with pytest.raises(InputError, match="Invalid kube-config file"):
        namespace_of(tmp_path / "absent")


def test_whether_there_is_a_cluster_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert not configured()
    (tmp_path / ".kube").mkdir()
    file = kubeconfig(tmp_path / ".kube" / "config", "http://127.0.0.1:1")
    assert configured()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert not configured()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{file}")
    assert configured()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert configured()


SECRET = "hunter2-do-not-write-this-down"


def test_no_environment_and_no_secret_is_in_the_dump(tmp_path: Path) -> None:
    """A pod with its secrets in every place that people put them, a group and a node with theirs."""
    leaky = pod("leaky")
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"env": [{"value": SECRET}]})}
    leaky["metadata"]["annotations"] = {**applied, "team": SECRET, "vault.hashicorp.com/token": SECRET}
    leaky["metadata"]["managedFields"] = [{"manager": SECRET}]
    container = leaky["spec"]["containers"][0]
    container |= {"env": [{"name": "TOKEN", "value": SECRET}], "args": ["--password", SECRET], "command": [SECRET]}
    container["livenessProbe"] = {"exec": {"command": [SECRET]}}
    leaky["spec"]["initContainers"] = [{"name": "init", "env": [{"name": "TOKEN", "value": SECRET}]}]
    leaky["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": SECRET}}]
    leaky["spec"]["imagePullSecrets"] = [{"name": SECRET}]
    bad = pod("bad", annotations={**applied, "team": SECRET})
    bad["spec"]["containers"][0] |= {"env": [{"name": "T", "value": SECRET}], "resources": {"requests": {"cpu": "-1"}}}
    gang, machine = group("g"), node()
    gang["metadata"]["annotations"], machine["metadata"]["annotations"] = applied, applied
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "annotations": applied}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": SECRET}}
    with Lister([leaky, bad, gang, machine, space, secret]) as lister:
        text = dump(read(lister, tmp_path)).decode()
        assert not [line for line in lister.asked if "secret" in line or "configmap" in line]
    assert '"leaky"' in text
    assert SECRET not in text
    assert "last-applied" not in text


LISTED = (
    "nodes,pods,podgroups.scheduling.volcano.sh,queues.scheduling.volcano.sh,priorityclasses,poddisruptionbudgets,"
    "resourcequotas,pvc,pv,storageclasses,csinodes,namespaces,jobs.batch"
)


def test_the_example_on_a_real_server_reads_like_kubectl_get_of_it(cluster: Cluster) -> None:
    """The shipped cluster in which running work makes room, applied, then read by both."""
    objects = [one for one in yaml.safe_load_all((EXAMPLES / "preempting.yaml").read_text()) if one]
    spaces = sorted({one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]})
    api = Api.load(cluster.kubeconfig)
    cluster.create(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}} for space in spaces))
    try:
        for one in objects:
            create(cluster, one)

        def alike() -> Snapshot | None:
            """Controllers write while this reads: both are read again until nothing came in between."""
            live = load_snapshot(listed(api), now=NOON)
            dumped = load_snapshot([json.loads(cluster.kubectl("get", LISTED, "-A", "-o", "json"))], now=NOON)
            return live if unplaced(live) == unplaced(dumped) else None

        live = cluster.wait_for(alike, 20, "the live snapshot equals that of kubectl get")
        assert live is not None
        assert {one.key for one in live.groups} == names(objects, "PodGroup")
        assert {one.key for one in live.pods} == names(objects, "Pod")
        assert [one.name for one in live.queues] == ["production", "research"]
        assert len(live.nodes) == 2
        assert SECRET not in dump(live).decode()
    finally:
        for one in objects:
            if one["kind"] in ("PriorityClass", "Queue", "Node"):
                cluster.delete(one["kind"], one["metadata"]["name"], api_version=one["apiVersion"])
        for space in spaces:
            cluster.request("DELETE", cluster.path("Pod", namespace=space), query={"gracePeriodSeconds": 0})
            cluster.request("DELETE", cluster.path("PodGroup", VOLCANO, space))
            cluster.delete("Namespace", space)
        api.close()


def create(cluster: Cluster, one: Json) -> None:
    """As its user and its controllers would leave it: with an image and a secret in it, and with its status."""
    if one["kind"] == "Pod":
        for container in one["spec"]["containers"]:
            container |= {"image": "none", "env": [{"name": "TOKEN", "value": SECRET}]}
    where = one["metadata"].get("namespace")
    cluster.create(one)
    if one["kind"] == "Pod" and "status" in one:  # a Volcano PodGroup has no subresource: its status came along
        cluster.patch(
            one["kind"], one["metadata"]["name"], {"status": one["status"]}, where, one["apiVersion"], "status"
        )


def names(objects: list[Json], kind: str) -> set[str]:
    return {f"{o['metadata']['namespace']}/{o['metadata']['name']}" for o in objects if o["kind"] == kind}

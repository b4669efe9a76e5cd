"""Reading files, folders, standard input and objects: what is in the snapshot, and what is said about the rest."""

from __future__ import annotations

import copy
import gzip
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from solver_sched.cluster.sources import load_snapshot, read_objects
from solver_sched.errors import InputError
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot, dump

Json = dict[str, Any]
NOON = "2026-01-01T12:00:00Z"


def pod(name: str, cpu: str = "1", **spec: Any) -> Json:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def node(name: str, cpu: str = "4") -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu}}}


def names(snapshot: Snapshot) -> list[str]:
    return [node.name for node in snapshot.nodes] + [pod.name for pod in snapshot.pods]


def lines(snapshot: Snapshot) -> list[str]:
    return [str(problem) for problem in snapshot.problems]


# Where objects come from

FORMS = {
    "a.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("n"), pod("p")]}),
    "b.yaml": yaml.safe_dump_all([node("n"), pod("p")]),
    "c.yml": yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [node("n"), pod("p")]}),
    "d.yaml": json.dumps(node("n")) + "\n---\n" + json.dumps(pod("p")),
    "e.json": json.dumps(node("n")) + "\n" + json.dumps(pod("p")),
    "f.json": json.dumps([node("n"), pod("p")]),
    "g.json": json.dumps({"kind": "List", "items": [{"kind": "List", "items": [node("n")]}, pod("p")]}),
    "h.yaml": "# nothing\n---\n" + yaml.safe_dump(node("n")) + "...\n---\n---\n" + yaml.safe_dump(pod("p")),
    "i.yaml": "\ufeff%YAML 1.1\n---\n"
    + yaml.safe_dump(node("n")).replace("\n", "\r\n")
    + "---\n"
    + json.dumps(pod("p")),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_file_gives_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FORMS[name], newline="")
    snapshot = load_snapshot(tmp_path / name)
    assert snapshot == read_objects([node("n"), pod("p")])
    assert (names(snapshot), lines(snapshot)) == (["n", "p"], [])


def test_gzip_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(node("n")).encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(pod("p")).encode())))
    assert names(load_snapshot([tmp_path / "a.json.gz", "-"])) == ["n", "p"]


def test_a_cluster_info_dump_folder(tmp_path: Path) -> None:
    """Lists name the kind of their items only once; logs and kinds that say nothing about scheduling do no harm."""
    team = tmp_path / "team"
    (team / "p").mkdir(parents=True)
    (team / "p" / "logs.txt").write_text("not yaml: [")
    bare = {key: value for key, value in pod("p").items() if key in ("metadata", "spec")}
    bare["metadata"] = {"name": "p", "namespace": "team"}
    items = {"kind": "NodeList", "apiVersion": "v1", "items": [{k: node("n")[k] for k in ("metadata", "status")}]}
    (tmp_path / "nodes.json").write_text(json.dumps(items))
    (team / "pods.json").write_text(json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [bare]}))
    (team / "services.json").write_text(json.dumps({"kind": "ServiceList", "apiVersion": "v1", "items": [bare, bare]}))
    (team / "events.json").write_text(json.dumps({"kind": "EventList", "apiVersion": "v1", "items": None}))
    snapshot = load_snapshot(tmp_path)
    assert [p.key for p in snapshot.pods] == ["team/p"]
    assert [n.name for n in snapshot.nodes] == ["n"]
    assert snapshot.ignored == {"kind Service": 2}
    assert not snapshot.problems


def test_our_own_snapshot_comes_back_and_takes_newcomers(tmp_path: Path) -> None:
    first = read_objects([node("n"), pod("p"), pod("bad", cpu="-1")], scheduler_names=["mine"])
    (tmp_path / "snapshot.json").write_bytes(dump(first))
    assert load_snapshot(tmp_path / "snapshot.json") == first
    both = load_snapshot([tmp_path / "snapshot.json", pod("q")])
    assert names(both) == ["n", "p", "q"]
    assert both.problems == first.problems


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load_snapshot(tmp_path / "none.yaml")


# Bad input: one clear line each, and the neighbours are kept

BAD = {
    "truncated.json": (b'{"kind": "List", "items": [{"kind": "Pod",', "truncated JSON: ends in line 1"),
    "comma.json": (b'{"kind":\n "Pod",,}', "not JSON in line 2: object keys must be strings"),
    "empty.yaml": (b"", "empty: expected Kubernetes objects as YAML or JSON"),
    "comment.yaml": (b"# nothing\n---\n", "empty: expected Kubernetes objects as YAML or JSON"),
    "binary.yaml": (b"\x7fELF\0\1\2", "binary file (a zero byte at offset 4): expected YAML or JSON in UTF-8"),
    "latin.yaml": (b"kind: P\xf6d\n", "not YAML: line 1: "),
    "cut.json.gz": (gzip.compress(b"{}" * 99)[:-9], "broken gzip file: "),
    "text.yaml": (b"just a sentence\n", "not an object: expected a mapping with apiVersion and kind"),
    "number.json": (b"17", "not an object: expected a mapping with apiVersion and kind"),
    "values.yaml": (b"replicas: 3\n", "no kind: expected a Kubernetes object with apiVersion and kind"),
    "template.yaml": (b"kind: {{ .Values.kind }}\n", "not YAML: line 1: "),
    "twice.yaml": (b"kind: Pod\nmetadata:\n  name: a\n  name: b\n", "not YAML: line 4: key 'name' stands twice"),
    "deep.json": (b'{"a":' * 100_000, "nested too deep"),
    "deep.yaml": (b"- " * 100_000, "not YAML: line 1: exceeded maximum nesting depth"),
    "bomb.yaml": (
        b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(9)),
        "aliases expand to too many values",
    ),
    "knot.yaml": (b"a: &a\n  b: *a\n", "nested too deep"),
    "kind.json": (b'{"kind": 3}', "not an object: expected a mapping with apiVersion and kind"),
    "item.json": (b'{"kind": "List", "items": [4]}', "an item of a list is no Kubernetes object"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_at_once(tmp_path: Path, name: str) -> None:
    data, said = BAD[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(node("n")))
    begin = time.process_time()
    snapshot = load_snapshot(tmp_path)
    assert time.process_time() - begin < 5
    assert names(snapshot) == ["n"]
    (line,) = lines(snapshot)
    assert line.startswith(f"{tmp_path / name}: ")
    assert said in line
    assert "\n" not in line
    assert len(line) < 300


def test_a_bad_document_among_good_ones(tmp_path: Path) -> None:
    documents = [
        yaml.safe_dump(node("n")),
        "kind: [Pod\n",
        yaml.safe_dump(pod("p")),
        "kind: Pod\nmetadata:\n  name: cut\n",
    ]
    path = tmp_path / "all.yaml"
    path.write_text("---\n".join(documents))
    snapshot = load_snapshot(path)
    assert names(snapshot) == ["n", "p"]
    broken, cut = sorted(lines(snapshot), key=len, reverse=True)
    assert broken.startswith(f"{path}: not YAML: line ")
    assert cut == f"{path}: Pod default/cut: missing: spec"


def test_an_item_of_a_printed_list_that_is_no_yaml_costs_itself(tmp_path: Path) -> None:
    """`kubectl get -o yaml` prints the items in block style; each is read on its own."""
    text = yaml.safe_dump({"apiVersion": "v1", "items": [node("n"), pod("p")], "kind": "List", "metadata": {"x": "y"}})
    path = tmp_path / "list.yaml"
    path.write_text(text.replace("- apiVersion: v1\n  kind: Pod", "- broken: [\n- apiVersion: v1\n  kind: Pod"))
    snapshot = load_snapshot(path)
    assert names(snapshot) == ["n", "p"]
    assert len(snapshot.problems) == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (pod("x", cpu="-1"), "Pod default/x: spec.containers[0].resources.requests.cpu: '-1' is negative"),
        (pod("x", cpu="2 GB"), "Pod default/x: spec.containers[0].resources.requests.cpu: '2 GB' is not a quantity"),
        (pod("x", cpu="9" * 3_000_000), "Pod default/x: spec.containers[0].resources.requests.cpu: '99999"),
        (
            pod("x", cpu="1e1000000"),
            "Pod default/x: spec.containers[0].resources.requests.cpu: '1e1000000' is more than",
        ),
        (pod("x", priority="high"), "Pod default/x: spec.priority: expected int, got str"),
        (pod("x", priority=10**30), "Pod default/x: spec.priority: expected int <= 2147483647"),
        (pod("x", nodeSelector={"a": 1}), "Pod default/x: spec.nodeSelector[...]: expected str, got int; quote it"),
        (
            pod("x", tolerations=[{"operator": "Exist"}]),
            "Pod default/x: spec.tolerations[0].operator: invalid enum value",
        ),
        (
            pod("x", topologySpreadConstraints=[{"topologyKey": "zone", "maxSkew": 0}]),
            "Pod default/x: spec.topologySpreadConstraints[0].maxSkew: expected int >= 1",
        ),
        (
            pod("x", topologySpreadConstraints=[{"topologyKey": "", "maxSkew": 1}]),
            "Pod default/x: spec.topologySpreadConstraints[0].topologyKey: expected str of length >= 1",
        ),
        (
            pod("x", containers=[{"name": "c", "ports": [{"hostPort": 99999}]}]),
            "Pod default/x: spec.containers[0].ports[0].hostPort: expected int <= 65535",
        ),
        ({**pod("x"), "spec": {}}, "Pod default/x: spec.containers: missing: a pod has at least one container"),
        ({**pod("x"), "metadata": {}}, "Pod (without a name): metadata.name: missing"),
        (
            {**pod("x"), "metadata": {"name": "b/x", "namespace": "a"}},
            "Pod a/b/x: metadata.name: 'b/x' is no name: must be without /, % and control characters",
        ),
        (
            {**pod("x"), "metadata": {"name": "x", "namespace": "a/b"}},
            "Pod a/b/x: metadata.namespace: 'a/b' is no name",
        ),
        (node("x\ny"), "Node x y: metadata.name: 'x\\ny' is no name"),
        (
            {**pod("x"), "metadata": {"name": "x", "labels": {"a": True}}},
            "Pod default/x: metadata.labels[...]: expected str",
        ),
        (
            {**pod("x"), "metadata": {"name": "x", "creationTimestamp": "yesterday"}},
            "Pod default/x: metadata.creationTimestamp: 'yesterday' is no time",
        ),
        ({**pod("x"), "status": {"phase": "Sleeping"}}, "Pod default/x: status.phase: invalid enum value 'Sleeping'"),
        (node("x", cpu="-4"), "Node x: status.allocatable.cpu: '-4' is negative"),
        (
            {"apiVersion": "v2", "kind": "PodGroup", "metadata": {"name": "g"}},
            "PodGroup: apiVersion: v2 is not known: allowed are scheduling.volcano.sh/v1beta1, ",
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_bad_object_names_itself_and_its_field(tmp_path: Path, change: Json, line: str) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("n"), change, pod("p")]}))
    snapshot = load_snapshot(path)
    assert names(snapshot) == ["n", "p"]
    (said,) = lines(snapshot)
    assert said.startswith(f"{path}: {line}")
    assert "\n" not in said
    assert len(said) < 400
    with pytest.raises(InputError) as caught:
        load_snapshot(path, strict=True)
    assert str(caught.value) == said


def test_a_default_queue_with_a_mistake_is_not_the_implied_one() -> None:
    """Absent, the default queue is implied and has no limits. Given with a capability that cannot be read it would lose
    its limit, so nothing starts in it.
    """
    version = "scheduling.volcano.sh/v1beta1"
    queue = {"apiVersion": version, "kind": "Queue", "metadata": {"name": "default"}}
    group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"queue": "default"}}
    member = pod("p", schedulerName="volcano")
    member["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
    broken = {**queue, "spec": {"capability": {"cpu": "-1"}}}
    for objects, reason in (([], None), ([broken], ("QueueClosed", "queue default is unreadable"))):
        snapshot = read_objects([node("n"), group, member, *objects])
        _, index = encode(snapshot)
        assert index.held.get("default/g") == reason


def test_a_lone_pod_and_a_group_of_one_name_are_two() -> None:
    """Pod default/g names no group, pod default/p is in group default/g: two jobs of one pod each."""
    version = "scheduling.volcano.sh/v1beta1"
    group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "g"}}
    lone, member = pod("g", schedulerName="volcano"), pod("p", schedulerName="volcano")
    member["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
    problem, index = encode(read_objects([node("n"), group, lone, member]))
    assert index.jobs == ("default/g", "default/g (pod)")
    assert [(index.jobs[job], pods) for job, pods in zip(problem.set_job, index.set_pods, strict=True)] == [
        ("default/g", ("default/p",)),
        ("default/g (pod)", ("default/g",)),
    ]


def test_a_waiting_limit_beyond_any_duration_does_not_limit() -> None:
    """Go's longest is 2562047h; one hour more is none, whatever it would be in 64 bits."""
    for hours, seconds in ((2_562_047, 2_562_047 * 3600), (2_562_048, 0), (10**30, 0)):
        group = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "g", "annotations": {"sla-waiting-time": f"{hours}h"}},
        }
        member = pod("p", schedulerName="volcano")
        member["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
        problem, _ = encode(read_objects([node("n"), group, member]))
        assert problem.job_age_limit.tolist() == [seconds]


def test_an_empty_path_is_no_folder() -> None:
    with pytest.raises(InputError, match="an empty path: must name a file or a folder, or be - for stdin"):
        load_snapshot("")


def test_a_pod_given_twice(tmp_path: Path) -> None:
    """Equal copies are one pod, in whatever notation; of different ones the first is used and the other reported."""
    assert read_objects([pod("p", cpu="1"), pod("p", cpu="1000m")]).problems == ()
    path = tmp_path / "b.json"
    path.write_text(json.dumps(pod("p", cpu="2")))
    snapshot = load_snapshot([pod("p", cpu="1"), path])
    assert dict(snapshot.pods[0].needs.request)["cpu"] == 1000
    assert lines(snapshot) == [f"{path}: Pod default/p: is given twice and differs: the first one is used"]


def test_a_queue_in_two_apis_is_one_however_old_each_is() -> None:
    """As the service creates `default` in each API that lacks it; another weight would be a difference."""

    def queue(api: str, second: int, weight: int = 1) -> dict[str, Any]:
        metadata = {"name": "default", "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        return {"apiVersion": api, "kind": "Queue", "metadata": metadata, "spec": {"weight": weight}}

    volcano, kube_batch = "scheduling.volcano.sh/v1beta1", "scheduling.sigs.dev/v1alpha2"
    assert read_objects([queue(volcano, 1), queue(kube_batch, 2)]).problems == ()
    assert len(read_objects([queue(volcano, 1), queue(kube_batch, 1, weight=2)]).problems) == 1


def test_secrets_and_environment_never_reach_the_snapshot() -> None:
    told = pod("p")
    told["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}
    told["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": "hunter2"}}
    snapshot = read_objects([told, secret])
    assert b"hunter2" not in dump(snapshot)
    assert snapshot.ignored == {"kind Secret": 1}


# Workloads in the input: everything goes through their expansion, dumped pods as stubs

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j"},
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "template": {"spec": {**pod("x")["spec"], "schedulerName": "volcano", "restartPolicy": "Never"}},
    },
}


def dumped(name: str, **spec: Any) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    body = pod(name, schedulerName="volcano", **spec)
    return {**body, "metadata": {"name": name, "uid": f"uid-{name}", "ownerReferences": [owner]}}


def test_a_pod_that_is_there_is_not_made_again_and_keeps_all_it_said() -> None:
    there = dumped("j-0", nodeSelector={"disk": "ssd"})
    snapshot = read_objects([there, JOB])
    assert len(snapshot.pods) == 2
    assert read_objects([there]).pods[0] in snapshot.pods
    assert not snapshot.problems


def test_a_suspended_job_holds_the_pods_that_are_there() -> None:
    stopped = {**JOB, "spec": {**JOB["spec"], "suspend": True}}  # type: ignore[dict-item]
    snapshot = read_objects([dumped("j-0"), stopped, pod("p")])
    held = [(p.name, p.uid) for p in snapshot.pods if p.hold == "Suspended: job default/j is suspended"]
    # the second of its two pods is made, and held too
    assert held == [("j-0", "uid-j-0"), ("j-1", "")]


def test_a_bad_workload_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**JOB, "spec": {**JOB["spec"], "parallelism": -1}}))  # type: ignore[dict-item]
    (line,) = lines(load_snapshot([path, node("n")]))
    assert line.startswith(f"{path}: Job default/j: spec.parallelism: ")


def test_a_mistake_of_a_template_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(
        json.dumps(
            {
                **JOB,
                "spec": {
                    "parallelism": 3,
                    "template": {"spec": pod("x", schedulerName="volcano", cpu="one")["spec"]},
                },
            }
        )
    )
    # three pods, one mistake
    (line,) = lines(load_snapshot([path, node("n")]))
    assert line.startswith(f"{path}: Job default/j: template.spec.containers[0].resources.requests.cpu: 'one' is no")


def test_a_workload_kind_of_a_foreign_group_is_counted() -> None:
    assert read_objects([{**JOB, "apiVersion": "example.com/v1"}]).ignored == {"kind Job": 1}


# The whole


def cluster() -> list[Json]:
    meta = {"name": "g", "namespace": "default", "creationTimestamp": NOON}
    member = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    return [
        node("n"),
        {**pod("a", schedulerName="volcano", priorityClassName="high"), "metadata": {"name": "a", **member}},
        {**pod("b", nodeName="n"), "status": {"phase": "Running", "startTime": "2026-01-01T13:00:00Z"}},
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": {"minMember": 2}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7},
    ]


@given(st.permutations(cluster()))
def test_the_order_of_the_input_does_not_matter(objects: list[Json]) -> None:
    assert read_objects(objects) == read_objects(cluster())


def test_now_is_the_newest_time_in_the_input() -> None:
    # 2026-01-01T13:00:00Z
    assert read_objects(cluster()).now == 1767272400
    assert read_objects(cluster(), now=5).now == 5


def test_finished_pods_stay_only_where_a_gang_counts_them() -> None:
    members = [{**one, "status": {"phase": phase}} for phase in ("Succeeded", "Failed") for one in cluster()[1:3]]
    for k, one in enumerate(members):
        one["metadata"] = {**one["metadata"], "name": f"{one['metadata']['name']}{k}"}
    snapshot = read_objects([*members, cluster()[3]])
    assert [(p.name, p.phase) for p in snapshot.pods] == [("a0", "Succeeded")]
    assert snapshot.ignored == {"finished pods": 3}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


WHOLE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "x",
        "creationTimestamp": NOON,
        "labels": {"volcano.sh/task-spec": "r"},
        "annotations": {"scheduling.k8s.io/group-min-member": "2", "volcano.sh/task-priority": "1"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "controller": True}],
    },
    "spec": {
        "containers": [
            {"name": "m", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": 1}}, "ports": [{"hostPort": 80}]}
        ],
        "initContainers": [{"restartPolicy": "Always"}],
        "overhead": {"cpu": "1m"},
        "resources": {"requests": {"memory": "1Gi"}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}}}
                ]
            },
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}],
        "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}],
        "schedulingGates": [{"name": "g"}],
        "priorityClassName": "high",
    },
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "lastTransitionTime": NOON}]},
}
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, 10**40, "", "x", "-1", "é\n", [], [None], [[]], {}, {"": None}, {"a": {}}]
)


@example(("spec", "volumes", 0, "name"), "é\n", True)
@given(st.sampled_from(places(WHOLE)[1:]), JUNK, st.booleans())
def test_junk_in_any_place_costs_at_most_its_object(place: tuple[Any, ...], junk: Any, expand: bool) -> None:
    broken = copy.deepcopy(WHOLE)
    inner: Any = broken
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    # A LimitRange sends everything through admission.
    extra = [{"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {}}] if expand else []
    snapshot = read_objects([node("n"), broken, pod("p"), *extra])
    assert {"n", "p"} <= set(names(snapshot))
    assert all("\n" not in line and len(line) < 400 for line in lines(snapshot))

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

import solver_sched
from solver_sched.cli.app import app
from solver_sched.cli.evaluation import judged, read_plan
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, run_cycle
from solver_sched.errors import InputError
from solver_sched.model.effort import LevelResult
from solver_sched.plugins.plugin import Violation
from solver_sched.policy import load_policy
from solver_sched.report.layout import layout
from solver_sched.report.tables import summary
from solver_sched.snapshot import Snapshot
from tests import tiny

DIALECT = "scheduling.volcano.sh/v1beta1"
CPU = Needs(request=(("cpu", 1000), ("pods", 1)))


def pod(name: str, group: str, node: str | None = None) -> Pod:
    phase = "Running" if node else "Pending"
    return Pod("ns", name, CPU, phase=phase, node=node, scheduler="volcano", group=f"ns/{group}", member_of=DIALECT)


def cluster() -> Snapshot:
    """Two nodes of 2 CPU, one taken by old-0: a gang of two and a gang of four ask for 1 CPU each; 3 are free."""
    nodes = tuple(Node(name, {"cpu": 2000, "pods": 10}) for name in ("n1", "n2"))
    pods = [pod("old-0", "old", "n1"), *(pod(f"a-{i}", "a") for i in range(2)), *(pod(f"b-{i}", "b") for i in range(4))]
    groups = tuple(PodGroup("ns", name, DIALECT, min_member=least) for name, least in (("a", 2), ("b", 4), ("old", 1)))
    return Snapshot(nodes=nodes, pods=tuple(sorted(pods, key=lambda one: one.key)), groups=groups)


def judge(bindings: dict[str, str], gone: list[str] | None = None) -> dict[str, Any]:
    return judged(
        cluster(), load_policy("volcano"), {f"ns/{name}": node for name, node in bindings.items()}, gone or []
    )


def test_a_plan_that_keeps_every_rule_gets_its_level_values() -> None:
    found = judge({"a-0": "n1", "a-1": "n2"})
    assert found["violations"] == []
    assert found["certificate"]["status"] == "given"
    assert {(row["pod"], row["node"]) for row in found["decisions"] if row["kind"] == "Bind"} == {
        ("ns/a-0", "n1"),
        ("ns/a-1", "n2"),
    }
    (start,) = (level for level in found["levels"] if level["name"].startswith("start"))
    assert start["value"] > 0
    assert {(level["bound"], level["status"]) for level in found["levels"]} == {(None, "GIVEN")}
    assert found["seconds"]["total"] > 0
    (nothing,) = (level for level in judge({})["levels"] if level["name"] == start["name"])
    assert nothing["value"] < start["value"]


def test_who_was_let_in_elsewhere_is_in() -> None:
    """Both groups ask 3 CPUs of 1.2 x 4 less 1: the voters let in one of them, the given plan the other."""
    waiting = cluster()
    groups = tuple(
        msgspec.structs.replace(group, min_resources={"cpu": 3000}) if group.name in "ab" else group
        for group in waiting.groups
    )
    snapshot = msgspec.structs.replace(waiting, groups=groups)
    policy = load_policy({"actions": "enqueue, allocate", "tiers": [{"plugins": [{"name": "overcommit"}]}]})
    bindings = {"ns/b-0": "n1", "ns/b-1": "n2", "ns/b-2": "n2"}
    assert [row["podGroup"] for row in judged(snapshot, policy, {}, [])["decisions"]] == ["ns/a", "ns/old"]
    found = judged(snapshot, policy, bindings, [])
    assert found["violations"] == []
    assert "ns/b" in {row["podGroup"] for row in found["decisions"] if row["kind"] == "Admit"}


def test_a_value_that_is_not_settled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget ends while the best reading of `own` is open: 3 of at most 5 is known."""
    open_level = LevelResult("in-share.start>=0", 3, 5, "FEASIBLE")
    monkeypatch.setattr("solver_sched.model.levels.evaluate", lambda *_, **__: (open_level,))
    (level,) = judge({"a-0": "n1", "a-1": "n2"})["levels"]
    assert (level["value"], level["bound"], level["status"]) == (3, None, "GIVEN (at least)")


@pytest.mark.parametrize(
    ("bindings", "broken"),
    [
        ({"a-0": "n1"}, "gang: group ns/a:"),  # 1 of at least 2
        ({"a-0": "n1", "a-1": "n1"}, "node n1:"),  # 2 CPU where 1 is free
        ({"a-0": "n9", "a-1": "n2"}, "pod ns/a-0 is placed on n9, which is no node that can be used"),
        ({"x": "n1"}, "pod ns/x is placed, but is not in the snapshot"),
        ({"old-0": "n2"}, "pod ns/old-0 is placed, but is held, or not ours, or not pending"),
    ],
)
def test_a_broken_rule_is_one_line(bindings: dict[str, str], broken: str) -> None:
    found = judge(bindings)
    assert any(line.startswith(broken) for line in found["violations"]), found["violations"]
    assert found["levels"] == []


def test_what_is_gone_makes_room() -> None:
    """Four of b need 4 CPU: with old-0 gone there are 4."""
    placed = {"b-0": "n1", "b-1": "n1", "b-2": "n2", "b-3": "n2"}
    assert judge(placed)["violations"]
    found = judge(placed, gone=["ns/old-0"])
    assert found["violations"] == []
    assert found["decisions"][0] == {"kind": "Evict", "pod": "ns/old-0"}
    assert "4 bound, 1 taken as gone, 2 pending" in "".join(line for line, _ in layout(summary(found), None))
    assert judge({}, gone=["ns/ghost"])["violations"] == ["pod ns/ghost is gone, but the snapshot does not have it"]


def test_both_forms_are_read(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": "1.15.1", "bindings": {"ns/a": "n1"}, "gone": ["ns/v"]}))
    assert read_plan(file) == ({"ns/a": "n1"}, {"ns/v": ""})
    decisions = [
        {"kind": "Admit", "podGroup": "ns/g"},
        {"kind": "Evict", "pod": "ns/v", "node": "n1"},
        {"kind": "Nominate", "pod": "ns/a", "node": "n1"},
    ]
    file.write_text(json.dumps({"kind": "Plan", "decisions": decisions}))
    assert read_plan(file) == ({"ns/a": "n1"}, {"ns/v": ""})


def test_yaml_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("bindings: {ns/a: n1}\ngone:\n- ns/v\n")
    assert read_plan(file) == ({"ns/a": "n1"}, {"ns/v": ""})
    monkeypatch.setitem(solver_sched.__dict__, "load_snapshot", lambda *_, **__: cluster())
    good = "bindings: {ns/a-0: n1, ns/a-1: n2}\n"
    kept = CliRunner().invoke(app, ["plan", "-f", "x", "--evaluate", "-"], input=good)
    assert kept.exit_code == 0, kept.output
    assert "given: keeps every rule" in kept.stdout
    twice = CliRunner().invoke(app, ["plan", "-f", "-", "--evaluate", "-"], input=good)
    assert (twice.exit_code, twice.stdout) == (2, "")
    assert "standard input can be read only once" in twice.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"decisions": [', "truncated JSON: ends in line 1 inside an object"),
        ("[]", "must be a Plan (decisions) or a mapping with bindings (pod: node) and gone"),
        ('{"bindings": []}', "bindings: Expected `object`, got `array`"),
        ('{"bindings": {"a": 1}}', "bindings: Expected `str`, got `int` - at `$[...]`"),
        ('{"bindings": {}, "gone": "a"}', "gone: Expected `array`, got `str`"),
        ("[" * 100_000, "nested too deep"),
        (
            '{"decisions": [{"kind": "Bind", "pod": "a"}]}',
            "decisions[0]: Bind of pod 'a' on node '': both must be given",
        ),
        (
            '{"decisions": [{"kind": "Bind", "pod": 3, "node": "n"}]}',
            "decisions: Expected `str`, got `int` - at `$[0].pod`",
        ),
        (
            '{"decisions": [{"kind": "Bind", "pod": "a", "node": "n"}, {"kind": "Nominate", "pod": "a", "node": "m"}]}',
            "decisions[1]: pod a is placed twice, on n and m",
        ),
        ('{"decisions": [1]}', "decisions: Expected `object`, got `int` - at `$[0]`"),
        ("", "0 documents: must be one plan"),
        ("bindings: {}\n---\nbindings: {}\n", "2 documents: must be one plan"),
        ("bindings: {a: n, a: m}\n", "not YAML: line 1: key 'a' stands twice in one mapping"),
        ("\0", "binary file (a zero byte at offset 0): expected YAML or JSON in UTF-8"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        read_plan(file)
    assert str(caught.value) == f"{file}: {message}"


def test_the_command_says_no_to_a_broken_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(solver_sched.__dict__, "load_snapshot", lambda *_, **__: cluster())
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"bindings": {"ns/a-0": "n1"}}))
    refused = CliRunner().invoke(app, ["plan", "-f", "x", "--evaluate", str(file)])
    assert refused.exit_code == 1
    assert "given: breaks 1 rule" in refused.stdout
    assert "broken rule: gang: group ns/a:" in refused.stdout
    file.write_text(json.dumps({"bindings": {"ns/a-0": "n1", "ns/a-1": "n2"}}))
    kept = CliRunner().invoke(app, ["plan", "-f", "x", "--evaluate", str(file)])
    assert kept.exit_code == 0
    assert "given: keeps every rule" in kept.stdout


def test_our_own_plan_is_judged_as_it_was_printed(tmp_path: Path) -> None:
    """What `plan -o json` writes, `--evaluate` accepts, with the same value at every level."""
    policy = load_policy("volcano")
    printed = run_cycle(cluster(), policy, Budget(apart=False)).as_dict()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(printed))
    bindings, gone = read_plan(file)
    found = judged(cluster(), policy, bindings, gone)
    assert found["violations"] == []
    ours = {level["name"]: level["value"] for level in printed["levels"]}
    assert {level["name"]: level["value"] for level in found["levels"]} == ours


def test_explain_of_a_group_that_is_not_let_in(tmp_path: Path) -> None:
    """It has no pods to be pending, and waits all the same: exit code 1."""
    meta, spec = {"name": "g", "namespace": "ns"}, {"minMember": 1, "minResources": {"cpu": "9"}}
    group = {"apiVersion": DIALECT, "kind": "PodGroup", "metadata": meta, "spec": spec}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, group]}))
    done = CliRunner().invoke(app, ["explain", "ns/g", "-f", str(file), "--policy", "volcano"])
    assert done.exit_code == 1
    assert "NotAdmitted: overcommit: asks 9 cpu; 1.2 x 4 is 4800m, 0 used, 0 reserved" in done.output


def test_explain_of_a_group_with_fewer_pods_than_its_minimum(tmp_path: Path) -> None:
    """One of two runs, nobody has made the other: nothing is pending, and it waits all the same: exit code 1."""
    meta, spec = {"name": "g", "namespace": "ns"}, {"minMember": 2}
    group = {"apiVersion": DIALECT, "kind": "PodGroup", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}}
    runs = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "g-0", "namespace": "ns", "annotations": {"scheduling.k8s.io/group-name": "g"}},
        "spec": {"schedulerName": "volcano", "nodeName": "n", "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, group, runs]}))
    done = CliRunner().invoke(app, ["explain", "ns/g", "-f", str(file)])
    assert done.exit_code == 1
    assert "1 of the 2 pods that its minimum asks are there, and none is pending" in " ".join(done.output.split())


INSTANCES = Path(__file__).parents[2] / "models" / "instances"
EVICTING = [path for path in sorted(INSTANCES.glob("*.yaml")) if tiny.read(path).evicted]


@pytest.mark.parametrize("path", EVICTING, ids=lambda path: path.stem)
def test_our_own_evictions_are_judged_as_they_were_printed(path: Path, tmp_path: Path) -> None:
    """Same pods for the same causes, no broken rule, the same value at every level that was printed."""
    instance = tiny.read(path)
    snapshot = read_objects(tiny.objects(instance.cluster))
    policy = load_policy(tiny.policy(instance.cluster))
    printed = run_cycle(snapshot, policy, Budget(apart=False)).as_dict()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(printed))
    bindings, gone = read_plan(file)
    assert gone
    found = judged(snapshot, policy, bindings, gone)
    assert found["violations"] == []

    def evicted(plan: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {(d["pod"], d["action"], d["for"]) for d in plan["decisions"] if d["kind"] == "Evict"}

    assert evicted(found) == evicted(printed)
    values = {level["name"]: level["value"] for level in found["levels"]}
    above = 0
    for level in printed["levels"]:
        # a deficit that adds nothing to the one above may be left out
        left_out = above if level["name"].startswith("in-share.deficit") else None
        assert values.get(level["name"], left_out) == level["value"], level["name"]
        above = level["value"]


HALVES = """
  nodes: {n1: {cpu: 2}, n2: {cpu: 2}}
  actions: [allocate, preempt]
  switches: {gang: {enablePreemptable: false}}
  jobs:
    low: {min: 2, pods: [{cpu: 2, node: n1}, {cpu: 2, node: n2}]}
    high: {priority: 10, pods: [{cpu: 2}]}
"""


def foreign(gone: list[str], monkeypatch: pytest.MonkeyPatch | None = None) -> dict[str, Any]:
    """high on n1, where low's first pod stood."""
    cluster = tiny.cluster(yaml.safe_load(HALVES))
    if monkeypatch is not None:
        once = "solver_sched.verify.violations"
        half = Violation("base", "1 of at least 2 pods of default/low would run")
        monkeypatch.setattr(once, lambda _problem, _rules, plan: [half] if len(plan.victim) else [])
    snapshot, policy = read_objects(tiny.objects(cluster)), load_policy(tiny.policy(cluster))
    return judged(snapshot, policy, {"default/high-0": "n1"}, [f"default/{name}" for name in gone])


def test_half_a_gang_is_worth_what_none_of_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of low does no work: the levels are those of the plan that ends it whole, and the breach is told."""
    whole = foreign(["low-0", "low-1"])
    half = foreign(["low-0"], monkeypatch)
    assert half["violations"] == ["1 of at least 2 pods of default/low would run"]
    assert [(row["pod"], row["action"]) for row in half["decisions"] if row["kind"] == "Evict"] == [
        ("default/low-0", "preempt")
    ]
    values = {level["name"]: level["value"] for level in half["levels"]}
    assert values["start>=10"] > 0
    assert values["keep>=0"] == 0
    assert values["disruption.gangs"] == -1
    assert values == {level["name"]: level["value"] for level in whole["levels"]}


def test_levels_of_evictions_need_a_placement_that_fits() -> None:
    """low-1 goes from n2 and high is put onto n1, where low-0 stays: 2 CPU placed, none free."""
    found = foreign(["low-1"])
    assert any(line.startswith("node n1:") for line in found["violations"])
    assert found["levels"] == []


def test_who_never_goes_breaks_a_rule_and_is_taken_as_gone() -> None:
    cluster = tiny.cluster(yaml.safe_load(HALVES.replace("node: n1}", "node: n1, preemptable: false}")))
    snapshot, policy = read_objects(tiny.objects(cluster)), load_policy(tiny.policy(cluster))
    found = judged(snapshot, policy, {"default/high-0": "n1"}, ["default/low-0"])
    assert found["violations"] == ["pod default/low-0 goes, but is marked preemptable: false"]
    assert found["decisions"][0] == {"kind": "Evict", "pod": "default/low-0"}

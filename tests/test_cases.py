"""Every case of tests/cases, planned; and the demands on a plan that no single cluster can show."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import solver_sched
from tests.story import After, Case, Expect, Object, carried_out, cases, exact, played, read, shortfalls

CASES = {case.name: case for case in cases(Path(__file__).parent / "cases")}


@functools.cache
def planned(name: str) -> list[tuple[Expect, list[Object], Object]]:
    """One plan per cycle serves every demand on a case."""
    case = CASES[name]
    return list(played(case, functools.partial(solver_sched.plan, policy=case.policy_file(), time_limit=10.0)))


def one(text: str) -> Case:
    (case,) = read(text, "inline")
    return case


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, request: pytest.FixtureRequest) -> None:
    case = CASES[name]
    if case.missing:
        request.applymarker(pytest.mark.xfail(reason=case.missing, strict=True))
    for cycle, (expect, objects, plan) in enumerate(planned(name), 1):
        assert not shortfalls(case, plan, expect, objects), f"{case.story} ({case.source or 'own'}), cycle {cycle}"


@pytest.mark.parametrize("name", CASES)
def test_small_clusters_are_proven(name: str) -> None:
    """A level of a cluster of this size is either proven or bounded wrongly."""
    for _, _, plan in planned(name):
        assert plan["certificate"]["status"] == "optimal", plan["levels"]
        for level in plan["levels"]:
            assert level["bound"] is None or level["value"] <= level["bound"], level


@pytest.mark.parametrize("name", CASES)
def test_never_worse_than_greedy(name: str) -> None:
    """In the first level in which they differ."""
    for _, _, plan in planned(name):
        for level in plan["levels"]:
            if level.get("greedy") is not None and level["value"] != level["greedy"]:
                assert level["value"] > level["greedy"], level
                break


def test_every_case_has_a_name_of_its_own() -> None:
    names = Counter(case.name for case in cases(Path(__file__).parent / "cases"))
    assert not [name for name, times in names.items() if times > 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("podz: {p: cpu=1}, expect: {count: 1}", "podz"),
        ("pods: {p: {nodeSelector: {}}}, expect: {count: 1}", "nodeSelector"),
        ("pods: {p: cpu=1}, expect: {bind: {p: n1}}", "bind"),
        ("pods: {p: cpu=1}, expect: {}", "expect is empty"),
        ("pods: {p: cpu=1}", "expect"),
        ("pods: {p: cpu=1}, expect: {pending: [q]}", "'q'"),
        ("pods: {p: cpu=1}, expect: {evicted: [q]}", "'q'"),
        ("pods: {p: cpu=1}, expect: {count: 1}, then: [{expect: {runs: {q: 1}}}]", "'q'"),
        ("pods: {p: cpu=1}, expect: {count: 1}, then: [{evicted: [p], expect: {count: 1}}]", "evicted"),
        ("pods: {p: cpu=1}, expect: {count: 1}, variants: {v: {nodes: {}}}", "variant v has no expect"),
    ],
)
def test_a_mistyped_case_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read("[{name: x, story: y, nodes: {n1: cpu=1}, " + wrong + "}]", "inline"))


def test_a_demand_can_fail() -> None:
    """A plan that binds nothing falls short of a case that wants a pod bound, in every way of saying so."""
    nothing: Object = {"decisions": [], "podGroups": [], "queues": [], "snapshot": {"ignored": {}, "problems": []}}
    for want in (
        "bound: {p: n1}",
        "count: 1",
        "groups: {p: 1}",
        "pods: {p: 1}",
        "nodes: {n1: 1}",
        "evicted: [p]",
        "evicted: {p: 1}",
        "nominated: {p: n1}",
        "runs: {p: 1}",
        "why: {p: {action: preempt}}",
    ):
        for expect in ("{" + want + "}", "{one_of: [{" + want + "}]}"):
            case = one("[{name: x, story: y, nodes: {n1: cpu=1}, pods: {p: cpu=1}, expect: " + expect + "}]")
            assert shortfalls(case, nothing), expect


def test_an_eviction_that_no_case_asked_for() -> None:
    """Half a gang is never right, whatever the case demands; a whole one only if it is named."""
    text = "[{name: x, story: y, nodes: {n1: cpu=2}, groups: {g: {min: 2, pods: 2 x cpu=1 @n1}}, expect: "
    evict = [{"kind": "Evict", "pod": f"default/g-{i}", "podGroup": "default/g", "node": "n1"} for i in range(2)]
    plan: Object = {"decisions": evict[:1], "podGroups": [], "queues": [], "snapshot": {"ignored": {}, "problems": []}}
    (half,) = shortfalls(one(text + "{evicted: [g-0]}}]"), plan)
    assert "leaves half a gang: 1 of g, minimum 2" in half
    plan["decisions"] = evict
    assert not shortfalls(one(text + "{evicted: {g: 2}, runs: {g: 0}}}]"), plan)
    assert not shortfalls(one(text + "{one_of: [{evicted: [g-0, g-1]}, {evicted: []}]}}]"), plan)
    assert shortfalls(one(text + "{count: 0}}]"), plan) == ["evicts default/g-0", "evicts default/g-1"]


def test_a_plan_is_carried_out() -> None:
    """Bound pods run from then on, victims leave, come back or are gone, and a promise lasts for one cycle."""
    text = "[{name: x, story: y, nodes: {n1: cpu=2}, pods: {a: cpu=1 @n1, b: cpu=1, c: {ask: cpu=1, nominated: n1}}, "
    case = one(text + "expect: {count: 1}}]")
    rows = [{"kind": "Evict", "pod": "default/a"}, {"kind": "Bind", "pod": "default/b", "node": "n1"}]
    plan: Object = {"decisions": rows, "podGroups": []}
    for evicted, there in (("gone", set()), ("back", {"a"}), ("leaving", {"a"})):
        after = After.model_validate(
            {"evicted": evicted, "without": ["n1"], "pods": {"d": "cpu=1"}, "expect": {"count": 0}}
        )
        made = {new["metadata"]["name"]: new for new in carried_out(case.objects(), plan, after, 1)}
        assert set(made) == {"b", "c", "d"} | there
        assert made["b"]["spec"]["nodeName"] == "n1"
        assert made["b"]["status"] == {"phase": "Running", "startTime": "2026-01-01T12:01:00Z"}
        assert "nominatedNodeName" not in made["c"]["status"]
        if there:
            assert ("deletionTimestamp" in made["a"]["metadata"]) == (evicted == "leaving")
            assert ("nodeName" in made["a"]["spec"]) == (evicted == "leaving")


def test_odd_bytes_and_extreme_priorities() -> None:
    """2,000 pods of 4 GiB and some bytes on 200 nodes of 2 TiB: all fit (2,000 x 4 GiB = 8 TiB of 400 TiB).

    Products of byte counts, weights and priorities would pass 2^63 many times over (google/or-tools#4352).
    """
    text = """
    - name: x
      story: y
      nodes: {n: 200 x memory=2Ti}
      queues: {a: {weight: 10000000}, b: {weight: 9999999}, c: {weight: 1}}
      expect: {count: 2000}
    """
    priorities, queues = (2000001000, 0, -10), ("a", "b", "c")
    base = one(text)
    groups = {
        f"g{i}": {
            "queue": queues[i % 3],
            "priority": priorities[i % 7 % 3],
            "pods": {f"g{i}": {"ask": f"memory={4294967297 + i}"}},
        }
        for i in range(2000)
    }
    case = Case.model_validate({**base.model_dump(exclude_unset=True), "groups": groups})
    plan = solver_sched.plan(case.objects(), policy="volcano", time_limit=20.0)
    assert not shortfalls(case, plan)


def test_priorities_decide_where_bytes_are_short() -> None:
    """One node holds 30 of 90 pods of 4 GiB and some bytes; the 30 of system priority take it, not the smaller ones."""
    priorities = (-10, 0, 2000001000)
    pods = {f"p{i}": {"ask": f"memory={4294967297 + i}", "priority": priorities[i % 3]} for i in range(90)}
    room = sum(4294967297 + i for i in range(90) if i % 3 == 2)
    case = Case.model_validate(
        {
            "name": "x",
            "story": "y",
            "nodes": {"n1": f"memory={room}"},
            "pods": pods,
            "expect": {"groups": {name: 1 for i, name in enumerate(pods) if i % 3 == 2}},
        }
    )
    assert not shortfalls(case, solver_sched.plan(case.objects(), time_limit=10.0))


PLAN_FROM_STDIN = """
import json, sys
import solver_sched
plan = solver_sched.plan(json.load(sys.stdin), time_limit=10.0)
del plan["seconds"]
for level in plan["levels"]:
    del level["seconds"]
print(json.dumps(plan))
"""


def test_same_plan_from_shuffled_input_and_any_hash_seed() -> None:
    """Four nodes of 4 CPU and eight pods of 2: of the 2,520 equal plans, always the same one."""
    case = one("[{name: x, story: y, nodes: {n: 4 x cpu=4}, pods: {p: 8 x cpu=2}, expect: {count: 8}}]")
    plans = []
    for seed in range(4):
        objects = case.objects()
        random.Random(seed).shuffle(objects)
        done = subprocess.run(
            [sys.executable, "-c", PLAN_FROM_STDIN],
            input=json.dumps(objects),
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        plans.append(done.stdout)
    assert not shortfalls(case, json.loads(plans[0]))
    assert len(set(plans)) == 1


PLAIN_SCRIPT = """
import solver_sched
free = {"allocatable": {"cpu": "2", "pods": "9"}}
node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}, "status": free}
spec = {"schedulerName": "solver-sched", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "default"}, "spec": spec}
print("begun")
print(solver_sched.plan([node, pod])["certificate"]["status"])
"""


@pytest.mark.parametrize("from_stdin", [False, True])
def test_plan_in_a_plain_script(tmp_path: Path, from_stdin: bool) -> None:
    """A script or notebook has no `if __name__ == "__main__"`: it must be run once, and its plan be solved."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN_SCRIPT)
    command = [sys.executable, "-" if from_stdin else str(script)]
    done = subprocess.run(command, input=PLAIN_SCRIPT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun", "optimal"], done.stderr


@pytest.mark.parametrize(
    ("resource", "parts"),
    [
        ("cpu", ["0.5"]),
        ("cpu", ["100m", "200m"]),
        ("cpu", ["1", "1e-1", "0.25"]),
        ("memory", ["1.5Gi"]),
        ("memory", ["1Ei"]),
        ("memory", ["1"]),
        ("memory", ["129e6", "129M"]),
        ("nvidia.com/gpu", ["3", "5"]),
    ],
)
def test_printed_sums_read_back_exactly(resource: str, parts: list[str]) -> None:
    """No 499.99m and no 1E+17 (kubernetes-client/python#2624). `exact` raises outside the grammar of quantities."""
    pods = {f"p{i}": {"ask": {resource: part}, "at": "n1"} for i, part in enumerate(parts)}
    node = {"n1": {"have": {resource: "4Ei" if resource == "memory" else "64"}}}
    case = Case.model_validate({"name": "x", "story": "y", "nodes": node, "pods": pods, "expect": {"count": 0}})
    plan: dict[str, Any] = solver_sched.plan(case.objects(), time_limit=5.0)
    (queue,) = plan["queues"]
    for field in ("allocated", "request"):
        printed = queue[field][resource]
        assert isinstance(printed, str)
        assert exact(printed) == sum(exact(part) for part in parts)

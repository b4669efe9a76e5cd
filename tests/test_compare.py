"""What `compare` measures, worked out by hand on tiny clusters, and what holds on random ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from solver_sched.cluster.sources import read_objects
from solver_sched.compare import Run, comparison
from solver_sched.cycle import Budget, run_cycle
from solver_sched.document import node_rows, plan_document
from solver_sched.policy import load_policy
from solver_sched.report.comparison import comparison_blocks
from solver_sched.report.layout import Note, Table, layout
from solver_sched.snapshot import Snapshot
from tests.story import Cluster
from tests.story import exact as amount_of
from tests.strategies import full_snapshots, snapshots

BUDGET = Budget(2.0, apart=False)
some = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def compared(snapshot: Snapshot, *policies: str, solvers: tuple[str, ...] = ("greedy", "optimal")) -> dict[str, Any]:
    checked = [load_policy(name) for name in policies or ("default",)]
    return comparison([Run(solver, run_cycle(snapshot, one, BUDGET, solver)) for one in checked for solver in solvers])


def story(text: str) -> Snapshot:
    """A cluster in the notation of tests/cases."""
    return read_objects(Cluster.model_validate(yaml.safe_load(text)).objects())


def resource(run: Mapping[str, Any], name: str) -> tuple[str, ...]:
    row = next(row for row in run["resources"] if row["name"] == name)
    return tuple(row[key] for key in ("total", "used", "idle", "stranded"))


TWO_FIVES = """
nodes: {n1: cpu=10}
groups:
  six: {min: 2, age: 20, pods: 2 x cpu=3}
  five-a: {min: 5, age: 10, pods: 5 x cpu=1}
  five-b: {min: 5, age: 10, pods: 5 x cpu=1}
"""


def test_greedy_starts_the_oldest_and_the_optimum_the_two_that_fill_the_node() -> None:
    """Greedy: 2 pods of 3 = 6 of 10; 4 are left, and a group of 5 waits. Optimal: 5 + 5 = 10. The one queue deserves
    all 10: it lacks 4 of 10 under greedy. In the 4 that are left a pod of 1 would fit: nothing is stranded.
    """
    found = compared(story(TWO_FIVES))
    greedy, optimal = found["runs"]
    assert (greedy["name"], optimal["name"]) == ("greedy default", "optimal default")
    assert (greedy["groups"], optimal["groups"]) == ({"started": 1, "broken": 0}, {"started": 2, "broken": 0})
    assert [(run["pods"]["bound"], run["pods"]["pending"]) for run in found["runs"]] == [(2, 10), (10, 2)]
    assert resource(greedy, "cpu") == ("10", "6", "4", "0")
    assert resource(optimal, "cpu") == ("10", "10", "0", "0")
    assert greedy["deficit"] == {"value": 0.4, "queue": "default", "resource": "cpu"}
    assert optimal["deficit"]["value"] == 0.0
    assert [run["whole"] for run in found["runs"]] == [{"nodes": 0, "usable": 1}] * 2
    one_node = {"key": "kubernetes.io/hostname", "mean": 1.0, "max": 1}
    assert [run["span"] for run in found["runs"]] == [[one_node | {"groups": 1}], [one_node | {"groups": 2}]]
    assert optimal["certificate"]["status"] == "optimal"
    (policy,) = found["levels"]
    start = next(level for level in policy["levels"] if level["name"] == "start>=0")
    # values count tenths of the node, on whatever grid: 6 against 10
    assert start["values"]["greedy default"] * 10 == start["values"]["optimal default"] * 6
    assert start["bound"] == start["values"]["optimal default"]


def test_the_groups_that_fare_differently_say_why_where_they_wait() -> None:
    found = compared(story(TWO_FIVES))["differences"]
    assert [group["name"] for group in found] == ["default/five-a", "default/five-b", "default/six"]
    greedy, optimal = (found[2]["runs"][name] for name in ("greedy default", "optimal default"))
    assert (greedy["bound"], greedy["pending"], greedy["reason"]) == (2, 0, None)
    assert (optimal["bound"], optimal["pending"], optimal["phase"]) == (0, 2, "Inqueue")
    assert optimal["reason"]["code"] == "Lost"
    assert "five-a" in optimal["reason"]["message"]


def test_room_that_no_pending_shape_can_use_is_counted_node_by_node() -> None:
    """Pods of 3 CPU. n1 has 8 - 6 = 2 idle, where none fits; n2 8 - 2 = 6, where two do, of a gang that needs three.
    n3 is cordoned and n4 not ready: neither counts. Of 16 there are 8 used and 8 idle, 2 of these of no use.
    """
    cluster = story("""
    nodes:
      n1: cpu=8
      n2: cpu=8
      n3: {have: cpu=8, cordoned: true}
      n4: {have: cpu=8, ready: false}
    pods:
      a: {ask: cpu=6, at: n1, scheduler: other}
      b: {ask: cpu=2, at: n2, scheduler: other}
    groups:
      gang: {min: 3, pods: 3 x cpu=3}
    """)
    (run,) = compared(cluster, solvers=("greedy",))["runs"]
    assert resource(run, "cpu") == ("16", "8", "8", "2")
    assert run["pods"]["pending"] == 3


def test_what_is_placed_is_no_waste_of_what_is_left() -> None:
    """All three pods run; the shape of 3 still is the yardstick: of 8 - 6 = 2 idle on n1 nothing is of use to it, the
    8 - 3 = 5 on n2 are. And what nobody asks for (memory) is of no use wherever it is.
    """
    cluster = story("""
    nodes: {n1: cpu=8 memory=4Gi, n2: cpu=8 memory=4Gi}
    groups:
      trio: {min: 3, pods: 3 x cpu=3}
    """)
    for run in compared(cluster, "packing")["runs"]:
        assert resource(run, "cpu") == ("16", "9", "7", "2")
        assert resource(run, "memory") == ("8Gi", "0", "8Gi", "8Gi")


def test_who_is_ended_and_who_comes_instead() -> None:
    """A node of 2 CPU full of a gang of two. `urgent` asks 2: both go, the gang is broken, one pod is nominated."""
    cluster = story("""
    nodes: {n1: cpu=2}
    groups:
      low: {min: 2, priority: 1, phase: Running, pods: {low: 2 x cpu=1 @n1}}
      urgent: {min: 1, priority: 10, pods: 1 x cpu=2}
    """)
    found = compared(cluster, "preempting", "default")
    assert [run["name"] for run in found["runs"]] == [
        *("greedy preempting", "optimal preempting", "greedy default", "optimal default"),
    ]
    pods = {"bound": 0, "nominated": 1, "pending": 0, "evicted": 2, "moved": 0}
    for run in found["runs"][:2]:
        assert run["pods"] == pods
        assert run["groups"] == {"started": 1, "broken": 1}
        assert resource(run, "cpu") == ("2", "2", "0", "0")
    for run in found["runs"][2:]:
        assert run["pods"] == {**pods, "nominated": 0, "pending": 1, "evicted": 0}
        assert run["groups"] == {"started": 0, "broken": 0}
    low = next(group for group in found["differences"] if group["name"] == "default/low")
    assert [(low["runs"][name]["running"], low["runs"][name]["evicted"]) for name in low["runs"]] == [
        *((0, 2), (0, 2), (2, 0), (2, 0)),
    ]
    assert low["runs"]["optimal preempting"]["reason"]["code"] == "Evicted"
    # both evict, so both are measured at the levels of a cycle that evicts
    preempting = next(one for one in found["levels"] if one["policy"] == "preempting")
    pods_level = next(level for level in preempting["levels"] if level["name"] == "disruption.pods")
    assert pods_level["values"] == {"greedy preempting": -2, "optimal preempting": -2}


def test_nodes_left_whole_and_zones_of_a_gang() -> None:
    """n1 runs a daemon only and n2 a pod; n3 and n4, in zones a and b, get one pod of the pair each (2 CPU on 2)."""
    cluster = story("""
    nodes:
      n1: {have: cpu=1}
      n2: {have: cpu=1}
      n3: {have: cpu=2, labels: {topology.kubernetes.io/zone: a}}
      n4: {have: cpu=2, labels: {topology.kubernetes.io/zone: b}}
    pods:
      daemon: {ask: cpu=1, at: n1, scheduler: other}
      single: {ask: cpu=1, at: n2, scheduler: other}
    groups:
      pair: {min: 2, pods: 2 x cpu=2}
    """)
    objects = Cluster.model_validate(
        yaml.safe_load("nodes: {n1: cpu=1}\npods: {daemon: {ask: cpu=1, at: n1, scheduler: other}}")
    ).objects()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    objects[1]["metadata"]["ownerReferences"] = [owner]
    alone = compared(read_objects(objects), solvers=("greedy",))["runs"][0]
    assert alone["whole"] == {"nodes": 1, "usable": 1}
    (run,) = compared(cluster, solvers=("greedy",))["runs"]
    assert run["whole"] == {"nodes": 0, "usable": 4}
    assert [(span["key"], span["mean"], span["max"]) for span in run["span"]] == [
        ("kubernetes.io/hostname", 2.0, 2),
        ("topology.kubernetes.io/zone", 2.0, 2),
    ]


def test_where_nothing_differs_one_line_says_so() -> None:
    found = compared(story("nodes: {n1: cpu=2}\ngroups: {a: {pods: 1 x cpu=1}}"))
    assert found["differences"] == []
    blocks = comparison_blocks(found)
    assert [block.text for block in blocks if isinstance(block, Note) and block.style == "good"][-1].startswith(
        "nothing differs"
    )
    assert not [block for block in blocks if isinstance(block, Table)]


def test_the_tables_put_runs_side_by_side() -> None:
    found = compared(story(TWO_FIVES))
    lines = [line for line, _ in layout(comparison_blocks(found), None)]
    assert lines[0] == "2 plans for 1 node, 12 pods, 3 pod groups, 1 queue"
    assert "greedy: no bound is known" in lines[1]
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["groups started"][2:] == ["1", "2"]
    assert rows["cpu used of 10"][4:] == ["6", "(60.0", "%)", "10", "(100.0", "%)"]
    assert rows["largest deficit"][2:] == ["40.0", "%", "(queue", "default,", "cpu)", "none"]
    assert any(line.startswith("the same in all: gangs broken: 0, pods nominated: 0") for line in lines)
    assert any(line.startswith("default/six") and "2 bound" in line and "optimal: Lost: " in line for line in lines)
    wide = comparison_blocks(found, wide=True)
    (measures,) = [block for block in wide if isinstance(block, Table) and block.title == "Measures"]
    assert "gangs broken" in [row[0] for row in measures.rows]
    assert not any(isinstance(block, Note) and "the same in all" in block.text for block in wide)


def test_levels_of_two_policies_stand_apart_and_say_so() -> None:
    found = compared(story(TWO_FIVES), "default", "packing", solvers=("optimal",))
    assert [one["policy"] for one in found["levels"]] == ["default", "packing"]
    assert [set(one["levels"][0]["values"]) for one in found["levels"]] == [{"optimal default"}, {"optimal packing"}]
    blocks = comparison_blocks(found, wide=True)
    assert any(isinstance(block, Note) and "within one policy only" in block.text for block in blocks)
    (measures,) = [block for block in blocks if isinstance(block, Table) and block.title == "Measures"]
    assert measures.header == ("MEASURE", "default", "packing")


@pytest.mark.parametrize("policy", ["default", "preempting"])
@some
@given(snapshots())
def test_any_cluster_can_be_compared(policy: str, snapshot: Snapshot) -> None:
    """Room is used or idle; every pod that may be placed is placed or waits; optimal is never below greedy."""
    holds(snapshot, policy)


@some
@given(full_snapshots())
def test_any_full_cluster_can_be_compared(snapshot: Snapshot) -> None:
    holds(snapshot, "preempting")


@some
@given(snapshots(hostile=True))
def test_absurd_amounts_can_be_compared_too(snapshot: Snapshot) -> None:
    """Sums of a few 2^63 - 1 are no int64."""
    found = compared(snapshot, solvers=("greedy",))
    for row in found["runs"][0]["resources"]:
        total, used, idle, stranded = (amount_of(row[key]) for key in ("total", "used", "idle", "stranded"))
        assert total == used + idle
        assert 0 <= stranded <= idle
    assert comparison_blocks(found, wide=True)


def test_pods_that_have_ended_or_are_ending_keep_no_node_from_being_whole() -> None:
    """n1 has a pod that succeeded, n2 one that is being deleted, n3 one that runs."""
    cluster = story("""
    nodes: {n1: cpu=1, n2: cpu=1, n3: cpu=1}
    groups:
      g:
        min: 3
        phase: Running
        pods:
          done: {ask: cpu=1, at: n1, phase: Succeeded}
          ending: {ask: cpu=1, at: n2, terminating: true}
          runs: {ask: cpu=1, at: n3}
    """)
    (run,) = compared(cluster, solvers=("greedy",))["runs"]
    assert run["whole"] == {"nodes": 2, "usable": 3}


def holds(snapshot: Snapshot, policy: str) -> None:
    checked = load_policy(policy)
    runs = [Run(solver, run_cycle(snapshot, checked, BUDGET, solver)) for solver in ("greedy", "optimal")]
    found = comparison(runs, nodes=True)
    assert json.loads(json.dumps(found)) == found
    wait = {sum(run["pods"][key] for key in ("bound", "nominated", "pending")) for run in found["runs"]}
    assert len(wait) == 1
    for run in found["runs"]:
        for row in run["resources"]:
            if row["name"] == "pods":
                assert int(row["used"]) + int(row["idle"]) == int(row["total"])
                assert int(row["stranded"]) <= int(row["idle"])
    (policy_levels,) = found["levels"]
    optimal = plan_document(runs[1].report)
    assert [level["name"] for level in policy_levels["levels"]] == [level["name"] for level in optimal["levels"]]
    for level in policy_levels["levels"]:
        greedy, best = (level["values"][f"{solver} {policy}"] for solver in ("greedy", "optimal"))
        if greedy is None:
            break
        assert best >= greedy
        if best > greedy:
            break
    arrive = sum(row["arrive"] for row in node_rows(runs[1].report))
    assert arrive == sum(found["runs"][1]["pods"][key] for key in ("bound", "nominated", "moved"))
    assert comparison_blocks(found)

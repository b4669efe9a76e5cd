"""What the benchmarks of decision quality count, and the clusters that they make, by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import quality, quality_openb, quality_priorities
from benchmarks.quality_openb import GPU, Ask, Machine
from solver_sched.cluster.objects import Node
from solver_sched.model.effort import Clock
from solver_sched.policy import load_policy
from solver_sched.simulate.openb import GPU_MILLI
from tests.test_cycle import greedy_trap


def test_a_gang_of_4_of_4_cpu_beside_a_pod_of_1() -> None:
    # Values are dominant shares: the gang 4/4, the pod 1/4; 5/4 wait. Greedy starts the pod, the solver the gang.
    row = quality.compared(greedy_trap(), load_policy(), 2.0)
    assert row["waiting"] == 2
    assert [row[side]["value"] for side in ("greedy", "ours")] == [pytest.approx(0.2), pytest.approx(0.8)]
    assert [row[side]["gangs"] for side in ("greedy", "ours")] == [1, 1]
    assert [row[side]["pods"] for side in ("greedy", "ours")] == [1, 2]
    assert [row[side]["cpu"] for side in ("greedy", "ours")] == [0.25, 1.0]
    assert row["first"][0] == "start>=0"
    assert row["optimal"]
    assert not row["behind"]


def test_the_first_level_that_differs_decides_and_a_deficit_left_out_is_closed() -> None:
    greedy = {"in-share.deficit[1]>=0": 0, "start>=5": 3, "start>=0": 9}
    ours = {"in-share.deficit[1]>=0": 0, "in-share.deficit[2]>=0": 0, "start>=5": 4, "start>=0": 8}
    assert quality.first_difference(greedy, ours) == ("start>=5", 3, 4)
    assert quality.first_difference(greedy, greedy) is None


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    results, calls = tmp_path / "rows.jsonl", Counter[str]()

    def measure(name: str) -> dict[str, int]:
        calls[name] += 1
        return {"value": len(name)}

    parts = {"a": lambda: measure("a"), "bb": lambda: measure("bb")}
    assert quality.resumed(results, parts, Clock(-1.0)) == {}
    quality.resumed(results, {"a": parts["a"]}, Clock())
    rows = quality.resumed(results, parts, Clock())
    assert rows == {"a": {"key": "a", "value": 1}, "bb": {"key": "bb", "value": 2}}
    assert calls == {"a": 1, "bb": 1}


@pytest.mark.parametrize("cell", [(4, 4, 2, 0.9), (8, 8, 4, 1.05)])
def test_a_small_cluster_is_as_full_as_asked(cell: tuple[int, int, int, float]) -> None:
    nodes, per_node, priorities, utilisation = cell
    snapshot = quality_priorities.instance(*cell, seed=3)
    assert snapshot == quality_priorities.instance(*cell, seed=3)
    assert snapshot != quality_priorities.instance(*cell, seed=4)
    assert len(snapshot.nodes) == nodes
    assert len(snapshot.pods) == nodes * per_node
    sets = Counter((pod.name.rpartition("-")[0], pod.needs, pod.priority) for pod in snapshot.pods)
    assert set(sets.values()) <= {1, 2, 3, 4}
    assert len({name for name, _, _ in sets}) == len(sets)  # the pods of a set are equal
    assert {pod.priority for pod in snapshot.pods} <= set(range(1, priorities + 1))
    for row, name in enumerate(("cpu", "memory")):
        asked = [pod.needs.request[row][1] for pod in snapshot.pods]
        (capacity,) = {node.allocatable[name] for node in snapshot.nodes}
        assert capacity == max(*asked, math.ceil(sum(asked) / utilisation / nodes))


def test_where_there_is_room_for_all_only_clusters_count_that_greedy_does_not_fill() -> None:
    for snapshot in islice(quality_priorities.instances(4, 4, 1, 0.9), 2):
        row = quality_priorities.measure(snapshot, 1.0)
        assert sum(row["greedy_pods"]) < len(snapshot.pods)
        assert row["outcome"] in quality_priorities.OUTCOMES
        assert row["outcome"] != "no call"


def machine(gpus: int) -> Machine:
    node = Node("n", {"cpu": 8000, "memory": 2**34, "pods": 110, GPU_MILLI: GPU * gpus})
    return Machine(node, 8000, 2**34, [GPU] * gpus)


def test_shares_stand_on_the_tightest_gpu_and_straddle_none() -> None:
    one = machine(2)
    taken = [one.take(Ask(name, 1000, 2**30, gpu)) for name, gpu in (("a", 600), ("b", 600), ("c", 600), ("d", 300))]
    # 600 each on its own GPU; 400 + 400 are left and hold no third; 300 stands on either
    assert taken == [True, True, False, True]
    assert sorted(one.gpus) == [100, 400]
    assert one.cpu == 5000
    assert not one.take(Ask("whole", 0, 0, GPU))


@given(st.lists(st.integers(1, GPU), min_size=1, max_size=6).filter(lambda shares: sum(shares) <= GPU))
def test_what_stands_on_a_gpu_keeps_every_row_of_it(shares: list[int]) -> None:
    sizes = sorted({50, 320, 470, 810, GPU, *shares})
    asked = Counter[str]()
    for share in shares:
        asked.update(quality_openb.gpu_amounts((share,), sizes))
    have = quality_openb.gpu_amounts((GPU,), sizes)
    assert all(asked[name] <= have[name] for name in have)


@given(st.integers(0, GPU), st.integers(0, GPU), st.integers(1, GPU))
def test_the_rows_are_exact_for_one_pod(first: int, second: int, share: int) -> None:
    sizes = sorted({share, GPU})
    asked, free = (quality_openb.gpu_amounts(gpus, sizes) for gpus in ((share,), (first, second)))
    assert all(asked[name] <= free[name] for name in free) == (share <= max(first, second))


def test_a_trace_of_four_pods_in_two_readings() -> None:
    # 2 GPUs. Shared: 600 and 600, then 300 beside one of them; the fourth, a whole GPU, has none: 1,500 of 2,000.
    # Whole: the first two take both GPUs.
    asks = [Ask(f"p{i}", 100, 2**20, gpu) for i, gpu in enumerate((600, 600, 300, GPU))]
    for solver in ("greedy", "optimal"):
        shared = quality_openb.replayed([machine(2)], asks, "shared", 1, solver)
        assert (shared["placed"], shared["allocated"], shared["cycles"]) == (3, 0.75, 4)
        whole = quality_openb.replayed([machine(2)], asks, "whole", 1, solver)
        assert (whole["placed"], whole["allocated"]) == (2, 1.0)


def test_seen_at_once_the_pods_with_more_gpus_are_placed() -> None:
    # 600 + 300 + 1000 of 2,000; two of 600 would leave no GPU for the whole one.
    asks = [Ask(f"p{i}", 100, 2**20, gpu) for i, gpu in enumerate((600, 600, 300, GPU))]
    row = quality_openb.replayed([machine(2)], asks, "shared", 0, "optimal")
    assert (row["allocated"], row["ahead"], row["proven"]) == (0.95, 1, 1)


def test_pods_are_drawn_until_they_ask_130_percent() -> None:
    asks = [Ask("a", 1, 1, 500), Ask("b", 1, 1, GPU)]
    drawn = quality_openb.inflated(asks, 10 * GPU, seed=42)
    assert drawn == quality_openb.inflated(asks, 10 * GPU, seed=42)
    assert 13 * GPU <= sum(one.gpu for one in drawn) < 14 * GPU
    assert len({one.name for one in drawn}) == len(drawn)

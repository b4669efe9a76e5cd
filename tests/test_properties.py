"""What holds for every cluster, however small and odd: solver against greedy, verifier, evaluator and itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import Needs, Node, Pod
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.greedy import greedy_plan
from solver_sched.model.effort import Effort, LevelResult, Solution
from solver_sched.model.levels import evaluate
from solver_sched.model.solve import solve
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import Index, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations
from tests import tiny
from tests.strategies import GPU, random_snapshot, snapshots
from tests.strategies import shuffled as shuffle
from tests.test_reference import random_cluster

EFFORT = Effort(seconds=2.0, gap=0.0)
BUDGET = Budget(seconds=2.0, apart=False)
CAPACITY = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [{"plugins": [{"name": n} for n in ("priority", "gang", "predicates", "capacity", "drf", "binpack")]}],
}
NO_BACKFILL = {
    "actions": "enqueue, allocate",
    "tiers": [{"plugins": [{"name": n} for n in ("priority", "gang", "predicates", "proportion")]}],
}
POLICIES = [load_policy(given) for given in ("default", "kube-batch", "volcano", "packing", CAPACITY, NO_BACKFILL)]
policies = st.sampled_from(POLICIES)
some = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass(frozen=True)
class Planned:
    problem: Problem
    index: Index
    rules: Rules
    greedy: Plan
    solution: Solution


def planned(snapshot: Snapshot, policy: Policy) -> Planned:
    problem, index = encode(snapshot)
    rules = derive(problem, policy)
    greedy = greedy_plan(problem, rules)
    return Planned(problem, index, rules, greedy, solve(problem, rules, EFFORT, greedy=greedy))


def values(levels: Sequence[LevelResult]) -> dict[str, int]:
    return {level.name: level.value for level in levels}


def assert_reaches(levels: Sequence[LevelResult], others: Mapping[str, int]) -> None:
    """A plan that the solver could have chosen is not better, beyond what an unproven level leaves open."""
    for level in levels:
        other = others.get(level.name, level.value)
        assert level.bound is not None
        if level.value != level.bound or other != level.value:
            assert other <= level.bound, level
            # Below an unproven level the locks of the two differ.
            assert other <= level.value or level.value < level.bound, level
            return


def assert_same_optimum(left: Sequence[LevelResult], right: Sequence[LevelResult]) -> None:
    """Equal values as long as both are proven; then each within the other's bound."""
    for a, b in zip(left, right, strict=False):
        assert a.name == b.name
        assert a.bound is not None
        assert b.bound is not None
        if a.value != a.bound or b.value != b.bound:
            assert a.value <= b.bound
            assert b.value <= a.bound
            return
        assert a.value == b.value, (a, b)
    assert len(left) == len(right)


def assert_nothing_discarded(report: CycleReport) -> None:
    assert report.refused == ()
    assert not [note for note in report.notes if "discarded" in note]


def proven(report: CycleReport) -> bool:
    """Every level is: no clock had a say in the plan."""
    return all(level.value == level.bound for level in report.levels)


def document(report: CycleReport) -> str:
    """The plan as printed, without the clock."""
    out: dict[str, Any] = report.as_dict()
    del out["seconds"]
    for level in out["levels"]:
        del level["seconds"]
    return json.dumps(out)


def never_worse_than_greedy(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    reached = values(evaluate(found.problem, found.rules, found.greedy, EFFORT))
    assert_reaches(found.solution.levels, reached)
    assert found.solution.greedy.items() <= reached.items()


def verifier_accepts(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    assert violations(found.problem, found.rules, found.solution.plan) == []
    assert violations(found.problem, found.rules, found.greedy) == []
    report = run_cycle(snapshot, policy, BUDGET)
    assert_nothing_discarded(report)
    assert violations(report.problem, report.rules, report.plan) == []


def levels_are_those_of_the_plan(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    reread = values(evaluate(found.problem, found.rules, found.solution.plan, EFFORT))
    for level in found.solution.levels:
        assert level.bound is not None
        assert level.value <= level.bound
        # The order of starts is no part of the plan: the evaluator counts the oldest of equal jobs.
        assert reread.get(level.name, level.value) >= level.value, level
        if level.value != level.bound:
            return
        assert reread.get(level.name, level.value) == level.value, level


def order_of_input_changes_no_value(snapshot: Snapshot, policy: Policy, rng: Random) -> None:
    left, right = planned(snapshot, policy), planned(shuffle(snapshot, rng), policy)
    assert_same_optimum(left.solution.levels, right.solution.levels)


@some
@given(snapshots(), policies)
def test_never_worse_than_greedy(snapshot: Snapshot, policy: Policy) -> None:
    never_worse_than_greedy(snapshot, policy)


@some
@given(snapshots(), policies)
def test_the_verifier_accepts_every_plan(snapshot: Snapshot, policy: Policy) -> None:
    verifier_accepts(snapshot, policy)


@some
@given(snapshots(), policies)
def test_the_levels_are_those_of_the_plan_and_stay_within_their_bounds(snapshot: Snapshot, policy: Policy) -> None:
    levels_are_those_of_the_plan(snapshot, policy)


@some
@given(snapshots(), policies, st.randoms(use_true_random=False))
def test_the_order_of_input_changes_no_proven_value(snapshot: Snapshot, policy: Policy, rng: Random) -> None:
    order_of_input_changes_no_value(snapshot, policy, rng)


@settings(some, max_examples=25)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_shuffled_objects_give_the_same_plan(seed: int, rng: Random) -> None:
    objects = tiny.objects(random_cluster(seed))
    other = rng.sample(objects, len(objects))
    assert read_objects(objects) == read_objects(other)  # BR-86
    first, second = (run_cycle(read_objects(given), POLICIES[0], BUDGET) for given in (objects, other))
    assert document(first) == document(second) or not proven(first)


@some
@given(snapshots(), policies)
def test_the_same_seed_gives_the_same_document(snapshot: Snapshot, policy: Policy) -> None:
    first, second = run_cycle(snapshot, policy, BUDGET), run_cycle(snapshot, policy, BUDGET)
    assert document(first) == document(second) or not proven(first)


def pods_on_nodes(index: Index, plan: Plan) -> Iterator[tuple[str, int]]:
    """(pod, node row), the pods of a set in task order."""
    rest = [iter(pods) for pods in index.set_pods]
    for t, node, count in zip(plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        yield from ((pod, node) for pod in islice(rest[t], count))


def idle_node_takes_no_plan_away(snapshot: Snapshot, policy: Policy) -> None:
    small = planned(snapshot, policy)
    # No label: a new domain of a spread would be its emptiest, and does take plans away.
    idle = Node("z", {"cpu": 4000, "memory": 8, "pods": 110, GPU: 4})
    large = planned(replace(snapshot, nodes=(*snapshot.nodes, idle)), policy)
    set_of = {pod: t for t, pods in enumerate(large.index.set_pods) for pod in pods}
    rows = Counter((set_of[pod], node) for pod, node in pods_on_nodes(small.index, small.solution.plan))
    table = np.array([(t, node, count) for (t, node), count in sorted(rows.items())], np.int64).reshape(-1, 3)
    plan = Plan(table[:, 0], table[:, 1], table[:, 2])
    assert violations(large.problem, large.rules, plan) == []
    assert_reaches(large.solution.levels, values(evaluate(large.problem, large.rules, plan, EFFORT)))


@some
@given(snapshots(), policies)
def test_an_idle_node_takes_no_plan_away(snapshot: Snapshot, policy: Policy) -> None:
    """Level values may fall: 2 of 4 GPUs are 2 of 8 then, and deserved shares move. What is monotone: the old plan
    still verifies, and by the new values the new plan reaches it.
    """
    idle_node_takes_no_plan_away(snapshot, policy)


def executed(snapshot: Snapshot, report: CycleReport) -> Snapshot:
    """The cluster when all bound pods run."""
    node_of = {bind.pod: bind.node for bind in report.decisions if isinstance(bind, Bind)}
    running = (
        replace(pod, node=node_of[pod.key], phase="Running") if pod.key in node_of else pod for pod in snapshot.pods
    )
    return replace(snapshot, pods=tuple(running))


def executed_plan_is_a_fixed_point(snapshot: Snapshot, policy: Policy) -> None:
    first = run_cycle(snapshot, policy, BUDGET)
    started = [level for level in first.levels if level.name.startswith(("in-share", "start", "grow"))]
    if any(level.value != level.bound for level in started):
        return
    second = run_cycle(executed(snapshot, first), policy, BUDGET)
    # What was held for a rule between pods may be free to go once the others run.
    late = {bind.pod for bind in second.decisions if isinstance(bind, Bind)}
    decided_on = {pod for pods in first.index.set_pods for pod in pods}
    assert not late & decided_on


@some
@given(snapshots(), policies)
def test_an_executed_plan_is_a_fixed_point(snapshot: Snapshot, policy: Policy) -> None:
    """Whatever the second cycle starts, the first could have started beside its own plan, at a better level value."""
    executed_plan_is_a_fixed_point(snapshot, policy)


def nothing_raises(snapshot: Snapshot, policy: Policy) -> None:
    report = run_cycle(snapshot, policy, BUDGET)
    document(report)
    assert_nothing_discarded(report)
    assert violations(report.problem, report.rules, report.plan) == []
    assert all(level.bound is None or level.value <= level.bound for level in report.levels)


@settings(some, derandomize=True)
@given(snapshots(hostile=True), policies)
def test_no_number_is_too_hostile(snapshot: Snapshot, policy: Policy) -> None:
    """No nodes, totals of zero, weight 0, amounts near 2^63, minimums no group can meet, groups without pods."""
    nothing_raises(snapshot, policy)


def test_a_queue_without_capability_has_no_limit_however_much_runs() -> None:
    # 2^62 bytes are in use; one more is 2^62 + 1, beyond the number that stands for "no capability".
    big = Needs(request=(("memory", 2**62), ("pods", 1)))
    small = Needs(request=(("memory", 1), ("pods", 1)))
    snapshot = Snapshot(
        nodes=(Node("n", {"memory": 4}), Node("o", {"memory": 4})),
        pods=(
            Pod("ns", "big", big, node="n", phase="Running", scheduler="solver-sched"),
            Pod("ns", "small", small, scheduler="solver-sched"),
        ),
    )
    report = run_cycle(snapshot, POLICIES[0], BUDGET)
    assert [bind.node for bind in report.decisions if isinstance(bind, Bind)] == ["o"]
    assert report.notes == ()


PROPERTIES = [
    never_worse_than_greedy,
    verifier_accepts,
    levels_are_those_of_the_plan,
    idle_node_takes_no_plan_away,
    executed_plan_is_a_fixed_point,
    nothing_raises,
]


@pytest.mark.slow
@pytest.mark.parametrize("holds", PROPERTIES)
@pytest.mark.parametrize("policy", POLICIES, ids=["default", "kube-batch", "volcano", "packing", "capacity", "bare"])
def test_on_many_seeds(holds: Callable[[Snapshot, Policy], None], policy: Policy) -> None:
    for seed in range(1000, 1100):
        holds(random_snapshot(Random(seed), hostile=holds is nothing_raises), policy)

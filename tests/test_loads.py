"""Loads: after any moves the best node is the one that scoring every node afresh gives."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solver_sched.cluster.objects import HostPort, Needs, Node, Pod
from solver_sched.loads import IDLE, Loads, NodeScore, placement_score
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Problem
from solver_sched.problem.domain_rules import blocked
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from tests.strategies import snapshots

POLICIES = [load_policy(name) for name in ("default", "packing", "volcano")]


def by_hand(problem: Problem, rules: Rules, placed: list[list[int]], shape: int) -> int:
    """The highest score over nodes that take one more pod, idle room before room that is being freed, lowest row first;
    -1 if none.
    """
    counts = np.array(placed, np.int64).reshape(len(problem.request), len(problem.node_free))
    used = problem.node_alloc - problem.node_free + counts.T @ problem.request
    request = problem.request[shape]
    shut = blocked(list(rules.domain_rules), counts, shape)
    scorer = NodeScore(problem, rules, shape)
    best, chosen = -1, -1
    for n in range(len(used)):
        fits = ((used[n] + request <= problem.node_alloc[n]) | (request == 0)).all()
        if not fits or shut[n] or rules.forbidden[shape, problem.node_kind[n]]:
            continue
        value = scorer.of(problem.node_alloc[n].tolist(), used[n].tolist())
        score = max(0, scorer.static[problem.node_kind[n]] + value)
        idle = ((used[n] + problem.node_releasing[n] + request <= problem.node_alloc[n]) | (request == 0)).all()
        score += IDLE if problem.node_releasing.any() and idle else 0
        if score > best:
            best, chosen = score, n
    return chosen


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_the_best_node_is_the_best_however_it_got_there(snapshot: Snapshot, policy: Policy, rng: Random) -> None:
    problem, _ = encode(snapshot)
    rules = derive(problem, policy)
    if not len(problem.request):
        return
    loads = Loads(problem, rules)
    placed = np.zeros((len(problem.request), len(problem.node_free)), np.int64)
    for _ in range(12):
        shape = rng.randrange(len(problem.request))
        node = loads.best(shape)
        assert node == by_hand(problem, rules, placed.tolist(), shape)
        if node >= 0 and rng.random() < 0.8:
            loads.move(shape, node, 1)
            placed[shape, node] += 1
        back = np.argwhere(placed > 0)
        if len(back) and rng.random() < 0.3:
            shape, node = rng.choice(back.tolist())
            loads.move(shape, node, -1)
            placed[shape, node] -= 1


def stated(nodes: dict[str, int], *pods: Pod, policy: str = "packing") -> tuple[Problem, Rules]:
    made = tuple(Node(name, {"cpu": cpu, "memory": cpu, "pods": 110}) for name, cpu in nodes.items())
    problem, _ = encode(Snapshot(nodes=made, pods=pods))
    return problem, derive(problem, load_policy(policy))


def pod(name: str, cpu: int, node: str | None = None, port: int = 0) -> Pod:
    ports = (HostPort("", "TCP", port),) if port else ()
    needs = Needs(request=(("cpu", cpu), ("memory", cpu), ("pods", 1)), ports=ports)
    phase = "Running" if node else "Pending"
    return Pod("ns", name, needs, node=node, phase=phase, scheduler="solver-sched")


def least_requested(*pods: Pod, **nodes: int) -> tuple[Problem, Rules]:
    made = tuple(Node(name, {"cpu": cpu, "memory": cpu, "pods": 110}) for name, cpu in nodes.items())
    problem, _ = encode(Snapshot(nodes=made, pods=pods))
    arguments = {"leastrequested.weight": 1, "balancedresource.weight": 0, "nodeaffinity.weight": 0}
    tiers = [{"plugins": [{"name": "predicates"}, {"name": "nodeorder", "arguments": arguments}]}]
    return problem, derive(problem, load_policy({"actions": "allocate", "tiers": tiers}))


def test_packing_fills_the_fuller_node_and_spreading_the_emptier() -> None:
    # a has 4 of 8 in use, b nothing; one more pod of 2
    problem, rules = stated({"a": 8000, "b": 8000}, pod("r", 4000, "a"), pod("p", 2000))
    assert Loads(problem, rules).best(0) == 0
    problem, rules = least_requested(pod("r", 4000, "a"), pod("p", 2000), a=8000, b=8000)
    assert Loads(problem, rules).best(0) == 1


def test_least_requested_counts_what_is_left_with_the_pod() -> None:
    # 8 - 4 - 2 = 2 of 8 are left on a: 25; 6 of 8 on b: 75.
    problem, rules = least_requested(pod("r", 4000, "a"), pod("p", 2000), a=8000, b=8000)
    scorer = NodeScore(problem, rules, 0)
    used = (problem.node_alloc - problem.node_free).tolist()
    assert [scorer.of(problem.node_alloc[n].tolist(), used[n]) for n in (0, 1)] == [25, 75]
    # the whole plan on b: the end state has one pod, at 75
    one = Plan(np.array([0]), np.array([1]), np.array([1]))
    assert placement_score(problem, rules, one) == 75
    assert placement_score(problem, rules, EMPTY_PLAN) == 0


def test_equal_nodes_go_by_row() -> None:
    problem, rules = stated({"a": 8000, "b": 8000}, pod("p", 2000))
    assert Loads(problem, rules).best(0) == 0


def test_a_full_node_takes_nothing_until_something_leaves() -> None:
    problem, rules = stated({"a": 2000}, pod("p", 2000), pod("q", 2000))
    loads = Loads(problem, rules)
    loads.move(0, 0, 1)
    assert loads.best(0) == -1
    loads.move(0, 0, -1)
    assert loads.best(0) == 0


def test_a_port_is_taken_once_a_node() -> None:
    problem, rules = stated({"a": 8000, "b": 8000}, pod("p", 1000, port=80), pod("q", 1000, port=80))
    loads = Loads(problem, rules)
    first = loads.best(0)
    loads.move(0, first, 1)
    assert {first, loads.best(0)} == {0, 1}
    loads.move(0, 1 - first, 1)
    assert loads.best(0) == -1


@pytest.mark.parametrize("policy", ["default", "packing"])
def test_no_nodes(policy: str) -> None:
    problem, rules = stated({}, pod("p", 1000), policy=policy)
    assert Loads(problem, rules).best(0) == -1


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_pods_placed_in_one_go_stand_where_they_would_one_by_one(
    snapshot: Snapshot, policy: Policy, rng: Random
) -> None:
    problem, _ = encode(snapshot)
    rules = derive(problem, policy)
    if not len(problem.request):
        return
    loads, single = Loads(problem, rules), Loads(problem, rules)
    for _ in range(6):
        shape, pods = rng.randrange(len(problem.request)), rng.randint(0, 4)
        expected: list[int] = []
        while len(expected) < pods and (node := single.best(shape)) >= 0:
            single.move(shape, node, 1)
            expected.append(node)
        assert loads.fill(shape, pods) == expected

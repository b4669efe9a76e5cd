"""The verifier refuses what no cluster could execute, and says by how much."""

from __future__ import annotations

import numpy as np
import pytest

from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations


def plan(*rows: tuple[int, int, int]) -> Plan:
    """(pod set, node, count) each."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Plan(table[:, 0], table[:, 1], table[:, 2])


def pod(name: str, cpu: int, *, memory: int = 0, node: str | None = None, group: str | None = None) -> Pod:
    request = (("cpu", cpu), *((("memory", memory),) if memory else ()), ("pods", 1)) if cpu else ()
    phase = "Running" if node else "Pending"
    return Pod("ns", name, Needs(request=request), node=node, phase=phase, group=group, scheduler="solver-sched")


def stated(*pods: Pod, actions: str = "enqueue, allocate, backfill", minimum: int = 1) -> tuple[Problem, Rules]:
    """Nodes n0 and n1 of 4 cpu and 8 bytes of memory."""
    nodes = tuple(Node(f"n{i}", {"cpu": 4000, "memory": 8, "pods": 3}) for i in range(2))
    named = {p.group for p in pods if p.group}
    groups = tuple(
        PodGroup("ns", key.removeprefix("ns/"), "scheduling.volcano.sh/v1beta1", minimum) for key in sorted(named)
    )
    problem, _ = encode(Snapshot(nodes=nodes, pods=pods, groups=groups))
    plugins = [{"name": name} for name in ("priority", "gang", "predicates")]
    return problem, derive(problem, load_policy({"actions": actions, "tiers": [{"plugins": plugins}]}))


def said(problem: Problem, rules: Rules, given: Plan) -> list[str]:
    return [violation.message for violation in violations(problem, rules, given)]


def test_what_fits_exactly_breaks_nothing() -> None:
    # 2 x 2 cpu on a node of 4.
    problem, rules = stated(pod("a", 2000, group="ns/g"), pod("b", 2000, group="ns/g"))
    assert said(problem, rules, plan((0, 0, 2))) == []
    assert said(problem, rules, EMPTY_PLAN) == []


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        # 3 x 2 cpu on a node of 4
        (plan((0, 0, 3)), ["6000 cpu placed, 4000 free"]),
        # the same in two rows
        (plan((0, 0, 2), (0, 0, 1)), ["6000 cpu placed, 4000 free"]),
        # four of three pods
        (plan((0, 0, 2), (0, 1, 2)), ["4 pods placed of 3 pending"]),
        (plan((0, 0, 0)), ["a plan row places no pod"]),
        (plan((0, 0, -1)), ["a plan row places no pod"]),
        (plan((1, 0, 1)), ["a plan row names no pod set"]),
        (plan((-1, 0, 1)), ["a plan row names no pod set"]),
        (plan((0, 2, 1)), ["a plan row names no node"]),
        (plan((0, -1, 1)), ["a plan row names no node"]),
    ],
)
def test_what_no_cluster_could_execute(given: Plan, messages: list[str]) -> None:
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"))
    assert said(problem, rules, given) == messages


def test_a_negative_row_does_not_make_room_for_another() -> None:
    # 3 - 1 pods of 2 cpu are 4 in sum; no cluster executes minus one pod.
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"))
    assert said(problem, rules, plan((0, 0, 3), (0, 0, -1))) == ["a plan row places no pod"]


def test_slots_are_a_resource() -> None:
    # 4 small pods on a node with 3 slots.
    problem, rules = stated(*(pod(name, 100, group="ns/g") for name in "abcd"))
    assert said(problem, rules, plan((0, 0, 4))) == ["4 pods placed, 3 free"]


def test_an_overfull_node_refuses_only_what_asks_for_what_it_lacks() -> None:
    # 10 of 8 bytes are in use: a pod of cpu alone may still come, one of memory not.
    running = pod("r", 1000, memory=10, node="n0")
    problem, rules = stated(running, pod("a", 1000), pod("b", 1000, memory=1))
    assert said(problem, rules, plan((0, 0, 1))) == []
    assert said(problem, rules, plan((1, 0, 1))) == ["1 memory placed, -2 free"]


def test_an_action_that_is_not_listed_places_nothing() -> None:
    problem, rules = stated(pod("a", 1000), pod("b", 0), actions="enqueue")
    assert said(problem, rules, plan((0, 0, 1))) == ["no action places these pods"]
    assert said(problem, rules, plan((1, 1, 1))) == ["no action places request-less pods"]


def test_plugins_are_asked_once_the_plan_can_be_executed_at_all() -> None:
    # Two of a gang of three: the gang plugin objects. Three on one node: capacity comes first, and alone.
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"), minimum=3)
    broken = violations(problem, rules, plan((0, 0, 2)))
    assert [violation.plugin for violation in broken] == ["gang"]
    assert broken[0].job == 0
    assert [violation.plugin for violation in violations(problem, rules, plan((0, 0, 3)))] == ["base"]
    assert said(problem, rules, plan((0, 0, 2), (0, 1, 1))) == []


def test_who_and_where_are_rows() -> None:
    problem, rules = stated(pod("a", 1000, group="ns/g"), pod("z", 3000, group="ns/h"), pod("y", 3000, group="ns/h"))
    (over,) = violations(problem, rules, plan((1, 1, 2)))
    assert (over.plugin, over.node, over.job) == ("base", 1, -1)
    (more,) = violations(problem, rules, plan((0, 0, 2)))
    assert (more.plugin, more.node, more.job) == ("base", -1, 0)

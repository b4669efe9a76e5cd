"""Decisions: admissions, then binds, every pod once, promised nodes kept."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.actions.decide import Admit, Bind, Decision, Nominate, decide
from solver_sched.actions.enqueue import open_cycle
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, PodTerm, Queue, Requirement, Spread
from solver_sched.greedy import greedy_plan
from solver_sched.plugins.rules import derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Require, SpreadRule
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from tests.strategies import random_plan, snapshots

POLICY = load_policy("default")
NODES = tuple(Node(f"n{i}", {"cpu": 4000, "pods": 110}) for i in range(2))


def pods(count: int, nominated: dict[int, str] | None = None, group: str | None = "ns/g") -> tuple[Pod, ...]:
    """p-0 .. of 1 cpu; `nominated`: index -> node."""
    needs = Needs(request=(("cpu", 1000), ("pods", 1)))
    return tuple(
        Pod(
            "ns",
            f"p-{i}",
            needs,
            group=group,
            index=i,
            nominated=(nominated or {}).get(i),
            scheduler="solver-sched",
        )
        for i in range(count)
    )


def group(name: str = "g", **fields: object) -> PodGroup:
    return replace(PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", 1), **fields)


def plan(*rows: tuple[int, int, int]) -> Plan:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Plan(table[:, 0], table[:, 1], table[:, 2])


def decided(snapshot: Snapshot, given: Plan, actions: str = "enqueue, allocate, backfill") -> tuple[Decision, ...]:
    tiers = [{"plugins": [{"name": "gang"}]}]
    policy = load_policy({"actions": actions, "tiers": tiers})
    problem, index, rules, entries = open_cycle(snapshot, policy)
    return decide(entries.admitted, problem, index, given, rules)


def bound(decisions: tuple[Decision, ...]) -> dict[str, str]:
    return {one.pod: one.node for one in decisions if isinstance(one, Bind)}


def test_admissions_come_first() -> None:
    snapshot = Snapshot(nodes=NODES, pods=pods(1), groups=(group(phase="Pending"),))
    assert decided(snapshot, plan((0, 1, 1))) == (
        Admit("ns/g"),
        Bind("allocate", "ns/p-0", "n1", "ns/g", "default"),
    )


@pytest.mark.parametrize(
    ("phase", "actions", "admitted"),
    [
        ("", "enqueue, allocate", True),
        ("Pending", "enqueue, allocate", True),
        ("Inqueue", "enqueue, allocate", False),
        ("Running", "enqueue, allocate", False),
        ("Pending", "allocate", False),
    ],
)
def test_only_enqueue_admits_and_only_what_waits(phase: str, actions: str, admitted: bool) -> None:
    snapshot = Snapshot(nodes=NODES, pods=pods(1), groups=(group(phase=phase),))
    assert decided(snapshot, EMPTY_PLAN, actions) == ((Admit("ns/g"),) if admitted else ())


def test_what_is_held_is_not_admitted() -> None:
    snapshot = Snapshot(pods=pods(1), groups=(group(queue="q"),), queues=(Queue("q", state="Closed"),))
    assert decided(snapshot, EMPTY_PLAN) == ()


def test_the_first_pods_in_task_order_go() -> None:
    # Three of four, two to n0 and one to n1.
    snapshot = Snapshot(nodes=NODES, pods=pods(4), groups=(group(),))
    assert bound(decided(snapshot, plan((0, 0, 2), (0, 1, 1)))) == {"ns/p-0": "n0", "ns/p-1": "n0", "ns/p-2": "n1"}


def test_a_promised_node_is_kept_where_the_plan_has_a_place_there() -> None:
    # p-0 was promised n1: it gets it, and p-1 takes the place on n0.
    snapshot = Snapshot(nodes=NODES, pods=pods(2, {0: "n1"}), groups=(group(),))
    assert bound(decided(snapshot, plan((0, 0, 1), (0, 1, 1)))) == {"ns/p-0": "n1", "ns/p-1": "n0"}
    # without a place on n1 the promise is void
    assert bound(decided(snapshot, plan((0, 0, 2)))) == {"ns/p-0": "n0", "ns/p-1": "n0"}


def test_two_promises_of_one_place() -> None:
    snapshot = Snapshot(nodes=NODES, pods=pods(2, {0: "n1", 1: "n1"}), groups=(group(),))
    assert bound(decided(snapshot, plan((0, 0, 1), (0, 1, 1)))) == {"ns/p-0": "n1", "ns/p-1": "n0"}


def test_a_promise_of_a_node_that_is_gone() -> None:
    snapshot = Snapshot(nodes=NODES, pods=pods(1, {0: "n9"}), groups=(group(),))
    assert bound(decided(snapshot, plan((0, 0, 1)))) == {"ns/p-0": "n0"}


def test_request_less_pods_are_backfilled_and_a_lone_pod_is_its_own_group() -> None:
    lone = Pod("ns", "lone", Needs(), scheduler="solver-sched", queue="q")
    snapshot = Snapshot(nodes=NODES, pods=(lone,), queues=(Queue("q"),))
    assert decided(snapshot, plan((0, 1, 1))) == (Bind("backfill", "ns/lone", "n1", "ns/lone", "q"),)


def ordered(snapshot: Snapshot, given: Plan) -> list[tuple[str, str]]:
    problem, index = encode(snapshot)
    rules = derive(problem, POLICY)
    decisions = decide((), problem, index, given, rules)
    return [(one.pod, one.node) for one in decisions if isinstance(one, Bind)]


ZONES = tuple(Node(f"n{i}", {"cpu": 4000, "pods": 110}, labels={"zone": f"z{i}"}) for i in range(2))
REQUEST = (("cpu", 1000), ("pods", 1))


def test_a_pod_comes_after_the_pod_it_requires() -> None:
    # Row order is a, b. kube-scheduler refuses a while no pod of app=b stands in its zone.
    term = PodTerm("zone", (Requirement("app", "In", ("b",)),), ("ns",))
    a = Pod("ns", "a", Needs(REQUEST, affinity=(term,)), scheduler="solver-sched")
    b = Pod("ns", "b", Needs(REQUEST), labels={"app": "b"}, scheduler="solver-sched")
    snapshot = Snapshot(nodes=ZONES, pods=(a, b))
    assert ordered(snapshot, plan((0, 1, 1), (1, 1, 1))) == [("ns/b", "n1"), ("ns/a", "n1")]


def test_pods_that_require_each_other_keep_their_rows() -> None:
    def term(app: str) -> PodTerm:
        return PodTerm("zone", (Requirement("app", "In", (app,)),), ("ns",))

    a = Pod("ns", "a", Needs(REQUEST, affinity=(term("b"),)), labels={"app": "a"}, scheduler="solver-sched")
    b = Pod("ns", "b", Needs(REQUEST, affinity=(term("a"),)), labels={"app": "b"}, scheduler="solver-sched")
    snapshot = Snapshot(nodes=ZONES, pods=(a, b))
    assert ordered(snapshot, plan((0, 1, 1), (1, 1, 1))) == [("ns/a", "n1"), ("ns/b", "n1")]


def test_a_spread_gang_is_never_ahead_by_more_than_its_skew() -> None:
    # Two pods in each zone at skew 1: node after node would stand 2 in z0 against 0 in z1.
    spread = Spread("zone", 1, True, (Requirement("app", "In", ("a",)),))
    four = tuple(
        Pod(
            "ns",
            f"p-{i}",
            Needs(REQUEST, spread=(spread,)),
            labels={"app": "a"},
            group="ns/g",
            scheduler="solver-sched",
        )
        for i in range(4)
    )
    snapshot = Snapshot(nodes=ZONES, pods=four, groups=(group(),))
    assert [node for _, node in ordered(snapshot, plan((0, 0, 2), (0, 1, 2)))] == ["n0", "n1", "n1", "n0"]


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_kube_scheduler_would_let_every_pod_of_the_greedy_plan_go_in_that_order(snapshot: Snapshot) -> None:
    """Greedy places pod by pod, so an order exists; the formulas are those of kube-scheduler's two plugins."""
    problem, index = encode(snapshot)
    rules = derive(problem, POLICY).domain_rules
    shape_of = {pod: int(problem.set_shape[t]) for t, members in enumerate(index.set_pods) for pod in members}
    on_nodes = np.zeros((len(problem.request), len(problem.node_alloc)), np.int64)
    for pod, name in ordered(snapshot, greedy_plan(problem, derive(problem, POLICY))):
        node, shape = index.nodes.index(name), shape_of[pod]
        for rule in rules:
            if not isinstance(rule, Require | SpreadRule) or shape not in rule.shapes:
                continue
            here = rule.domain == rule.domain[node]
            if isinstance(rule, Require):
                met = rule.present[node] or on_nodes[rule.targets][:, here].any()
                first = rule.seed and shape in rule.targets and not on_nodes[rule.targets].any()
                assert met or first, (pod, name, rule)
            else:
                count = [
                    int(rule.existing[d] + on_nodes[rule.counted][:, rule.domain == d].sum())
                    for d in range(len(rule.existing))
                ]
                fewest = 0 if len(count) < rule.min_domains else min(count)
                skew = count[rule.domain[node]] + (shape in rule.counted) - fewest
                assert skew <= rule.max_skew, (pod, name, rule)
        on_nodes[shape, node] += 1


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots(), st.randoms(use_true_random=False))
def test_binds_are_the_plan_pod_by_pod(snapshot: Snapshot, rng: Random) -> None:
    """Whatever the plan: as many pods of each set to each node, no pod twice, and only pods of that set."""
    problem, index = encode(snapshot)
    rules = derive(problem, POLICY)
    given = random_plan(rng, problem, greedy_plan(problem, rules))
    if (given.placed(problem) > problem.set_count).any():
        return
    promised = {pod.key: pod for pod in snapshot.pods}
    rules = derive(problem, POLICY)
    # what stands on room that a terminating pod still holds is promised, not bound
    binds = [one for one in decide((), problem, index, given, rules) if isinstance(one, Bind | Nominate)]
    assert len({bind.pod for bind in binds}) == len(binds)
    set_of = {pod: t for t, members in enumerate(index.set_pods) for pod in members}
    found = Counter((set_of[bind.pod], index.nodes.index(bind.node)) for bind in binds)
    wanted: Counter[tuple[int, int]] = Counter()
    for t, n, count in zip(given.pod_set.tolist(), given.node.tolist(), given.count.tolist(), strict=True):
        wanted[t, n] += count
    assert found == wanted
    for bind in binds:
        assert bind.pod_group == (promised[bind.pod].group or bind.pod)
        best_effort = promised[bind.pod].needs.best_effort
        assert bind.action == ("backfill" if best_effort else "allocate")

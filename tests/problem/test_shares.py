"""Shares: water filling against bisection, and what queues may ask for, told on few pods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.cluster.objects import HostPort, Needs, Node, Pod, PodGroup, Queue
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import NO_LIMIT, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.problem.shares import ceiling_excess, ceiling_room, real_capability, water_fill
from solver_sched.snapshot import Snapshot


@dataclass(frozen=True)
class Water:
    """One resource and at most five queues: (weight, floor, cap) each."""

    avail: int
    queues: tuple[tuple[int, int, int], ...]

    def filled(self) -> list[int]:
        return water_fill(self.avail, *(list(column) for column in zip(*self.queues, strict=True)))


amounts = st.integers(0, 40) | st.integers(0, 2**40)
queues = st.tuples(st.integers(0, 5), st.integers(0, 10) | st.just(0), amounts)
waters = st.builds(Water, amounts, st.lists(queues, min_size=1, max_size=5).map(tuple))


def at(level: Fraction, water: Water) -> list[Fraction]:
    """Everybody at max(floor, min(cap, weight x level)); a cap below the floor does not count."""
    return [max(Fraction(f), min(Fraction(max(f, c)), w * level)) for w, f, c in water.queues]


def bisected(water: Water) -> tuple[list[int], list[int]]:
    """The same by halving an interval: shares at its two ends, equal unless the level itself gives whole numbers."""
    low, high = Fraction(0), Fraction(1 + max(max(f, c) for _, f, c in water.queues))
    if sum(at(high, water)) <= water.avail:
        return whole(high, water), whole(high, water)
    if sum(at(low, water)) > water.avail:
        return whole(low, water), whole(low, water)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle, water)) <= water.avail else (low, middle)
    return whole(low, water), whole(high, water)


def whole(level: Fraction, water: Water) -> list[int]:
    return [int(x) for x in at(level, water)]


@settings(max_examples=300)
@given(waters)
def test_water_fill_is_what_bisection_finds(water: Water) -> None:
    below, above = bisected(water)
    assert all(low <= x <= high <= low + 1 for low, x, high in zip(below, water.filled(), above, strict=True))


@settings(max_examples=300)
@given(waters)
def test_all_is_given_out_or_everybody_is_full(water: Water) -> None:
    got = water.filled()
    assert all(f <= x <= max(f, c) for x, (_, f, c) in zip(got, water.queues, strict=True))
    floors = sum(f for _, f, _ in water.queues)
    assert sum(got) <= max(water.avail, floors)
    open_ = [x for x, (w, f, c) in zip(got, water.queues, strict=True) if w and x < max(f, c)]
    if open_ and water.avail >= floors:
        # rounding down costs less than one per queue
        assert sum(got) > water.avail - len(water.queues)


@settings(max_examples=300)
@given(waters, st.integers(0, 4), st.integers(1, 3))
def test_more_weight_is_never_less_for_the_queue_and_never_more_for_another(water: Water, q: int, more: int) -> None:
    q %= len(water.queues)
    weight, floor, cap = water.queues[q]
    heavier = replace(water, queues=(*water.queues[:q], (weight + more, floor, cap), *water.queues[q + 1 :]))
    before, after = water.filled(), heavier.filled()
    assert after[q] >= before[q]
    assert all(b <= a for i, (a, b) in enumerate(zip(before, after, strict=True)) if i != q)


@settings(max_examples=200)
@given(waters, st.integers(0, 50))
def test_more_to_give_is_never_less_for_anybody(water: Water, more: int) -> None:
    richer = replace(water, avail=water.avail + more).filled()
    assert all(a <= b for a, b in zip(water.filled(), richer, strict=True))


@pytest.mark.parametrize(
    ("avail", "queue", "shares"),
    [
        # weights 1 : 3 of 8
        (8, [(1, 0, 99), (3, 0, 99)], [2, 6]),
        # the first wants 1 only; its rest goes to the other
        (8, [(1, 0, 1), (1, 0, 99)], [1, 7]),
        # a guarantee of 6 stands whatever its weight; 2 are left
        (8, [(1, 6, 99), (3, 0, 99)], [6, 2]),
        # weight 0 gets its floor
        (8, [(0, 2, 99), (1, 0, 99)], [2, 6]),
        # floors of 10 exceed 8: nobody gets more than the floor
        (8, [(1, 5, 99), (1, 5, 99)], [5, 5]),
        # a third each of 8, rounded down
        (8, [(1, 0, 9), (1, 0, 9), (1, 0, 9)], [2, 2, 2]),
        (0, [(1, 0, 9)], [0]),
    ],
)
def test_water_fill_by_hand(avail: int, queue: list[tuple[int, int, int]], shares: list[int]) -> None:
    assert Water(avail, tuple(queue)).filled() == shares


# -- demand and ceilings ----------------------------------------------------------------------------------------------


def pod(name: str, cpu: int, queue: str = "default", node: str | None = None, port: int = 0, group: str = "") -> Pod:
    needs = Needs(request=(("cpu", cpu), ("pods", 1)), ports=(HostPort("", "TCP", port),) if port else ())
    phase = "Running" if node else "Pending"
    return Pod(
        "ns",
        name,
        needs,
        phase=phase,
        node=node,
        queue=queue,
        group=f"ns/{group}" if group else None,
        scheduler="solver-sched",
    )


def stated(snapshot: Snapshot, policy: str = "default") -> tuple[Problem, Rules]:
    problem, _ = encode(snapshot)
    return problem, derive(problem, load_policy(policy))


def node(name: str, cpu: int) -> Node:
    return Node(name, {"cpu": cpu, "pods": 110})


def test_a_pod_that_no_empty_node_holds_asks_for_nothing() -> None:
    # 5 cpu on nodes of 4: it will never run, so its queue is not short of it. The other asks for 1.
    problem, rules = stated(Snapshot(nodes=(node("a", 4000), node("b", 4000)), pods=(pod("p", 5000), pod("q", 1000))))
    assert rules.demand.shape_room[problem.set_shape].tolist() == [0, 8]
    assert rules.demand.starts.tolist() == [False, True]
    assert rules.demand.ask[0, 0] == 1000


def test_a_gang_larger_than_the_cluster_asks_for_nothing() -> None:
    # 3 pods of 3 cpu on 2 nodes of 4: one each, so 2 at most.
    group = PodGroup("ns", "g", "scheduling.volcano.sh/v1beta1", 3)
    pods = tuple(pod(f"g-{i}", 3000, group="g") for i in range(3))
    nodes = (node("a", 4000), node("b", 4000))
    _, rules = stated(Snapshot(nodes=nodes, pods=pods, groups=(group,)))
    assert rules.demand.starts.tolist() == [False]
    assert rules.demand.ask[0, 0] == 0
    _, rules = stated(Snapshot(nodes=(*nodes, node("c", 4000)), pods=pods, groups=(group,)))
    assert rules.demand.ask[0, 0] == 9000


def test_pods_with_one_host_port_ask_for_one_a_node() -> None:
    # Three pods of 1 cpu and port 80, two nodes of 4: two can ever run, and 2 of 3 ask.
    group = PodGroup("ns", "g", "scheduling.volcano.sh/v1beta1", 1)
    pods = tuple(pod(f"g-{i}", 1000, port=80, group="g") for i in range(3))
    _, rules = stated(Snapshot(nodes=(node("a", 4000), node("b", 4000)), pods=pods, groups=(group,)))
    assert rules.demand.counts.tolist() == [2]
    assert rules.demand.ask[0, 0] == 2000


def test_contended_is_what_is_asked_for_beyond_what_others_leave() -> None:
    # 4 cpu, 1 of them held by another scheduler: 3 are there. 2 run and 1 asks: not contended; 2 ask: contended.
    other = replace_scheduler(pod("other", 1000, node="a"))
    running = pod("r", 2000, node="a")
    problem, rules = stated(Snapshot(nodes=(node("a", 4000),), pods=(other, running, pod("p", 1000))))
    assert rules.demand.avail[0] == 3000
    assert not rules.contended.any()
    _, rules = stated(Snapshot(nodes=(node("a", 4000),), pods=(other, running, pod("p", 1000), pod("q", 1000))))
    assert [problem.resources[r] for r in np.flatnonzero(rules.contended)] == ["cpu"]


def replace_scheduler(given: Pod) -> Pod:
    return Pod(given.namespace, given.name, given.needs, phase=given.phase, node=given.node)


def test_the_guarantee_of_another_queue_is_no_capability_of_mine() -> None:
    # 8 cpu: q guarantees 5 of them, so r can have 3 at most, and q, whose capability is 6, 6.
    queues = (Queue("q", guarantee={"cpu": 5000}, capability={"cpu": 6000}), Queue("r"))
    problem, rules = stated(Snapshot(nodes=(node("a", 8000),), queues=queues, pods=(pod("p", 1000, "r"),)))
    row = {name: q for q, name in enumerate(["default", "q", "r"])}
    room = real_capability(problem, rules.demand.avail)[:, 0]
    assert {name: int(room[q]) for name, q in row.items()} == {"default": 3000, "q": 6000, "r": 3000}


def test_a_ceiling_leaves_what_is_not_used_and_never_less_than_nothing() -> None:
    queues = (Queue("q", capability={"cpu": 3000}), Queue("r", capability={"cpu": 1000}))
    pods = (pod("a", 2000, "q", node="n"), pod("b", 2000, "r", node="n"), pod("c", 1000, "q"))
    problem, _ = stated(Snapshot(nodes=(node("n", 8000),), queues=queues, pods=pods))
    # default, q, r: none; 3 - 2; 1 - 2 is nothing
    assert ceiling_room(problem)[:, 0].tolist() == [int(NO_LIMIT), 1000, 0]


def test_what_breaks_a_ceiling_is_said_with_numbers() -> None:
    # q may have 3 cpu, uses 2; two pods of 1 more are 4.
    queues = (Queue("q", capability={"cpu": 3000}),)
    pods = (pod("a", 2000, "q", node="n"), pod("b", 1000, "q"), pod("c", 1000, "q"))
    problem, _ = stated(Snapshot(nodes=(node("n", 8000),), queues=queues, pods=pods))

    def excess(*sets: int) -> list[str]:
        plan = Plan(np.array(sets), np.zeros(len(sets), np.int64), np.ones(len(sets), np.int64))
        return [message for _, message in ceiling_excess(problem, plan)]

    assert excess(0) == []
    assert excess(0, 1) == ["4 cpu in use, capability 3"]


def test_a_guarantee_is_kept_free_for_its_queue() -> None:
    # 4 cpu, q guarantees 3: r may take 1 and not 2, q all it likes.
    queues = (Queue("q", guarantee={"cpu": 3000}), Queue("r"))
    pods = (pod("a", 1000, "r"), pod("b", 1000, "r"), pod("c", 3000, "q"))
    problem, index = encode(Snapshot(nodes=(node("n", 4000),), queues=queues, pods=pods))
    row = {pods[0]: t for t, pods in enumerate(index.set_pods)}

    def excess(*names: str) -> list[str]:
        sets = np.array([row[f"ns/{name}"] for name in names])
        plan = Plan(sets, np.zeros(len(sets), np.int64), np.ones(len(sets), np.int64))
        return [message for _, message in ceiling_excess(problem, plan)]

    assert excess("a") == excess("a", "c") == []
    assert excess("a", "b") == ["5 cpu used or guaranteed, 4 there are"]

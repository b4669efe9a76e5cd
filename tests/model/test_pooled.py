"""Evictions seen from afar: the levels on pooled nodes, and a plan on real ones that comes near to them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.cluster.objects import Budget, Needs, Node, Pod, PodGroup, Queue, Requirement
from solver_sched.cluster.sources import read_objects
from solver_sched.greedy import evicting_plan, greedy_plan, towards
from solver_sched.model import afar, levels
from solver_sched.model import cleared as model_cleared
from solver_sched.model import solve as solving
from solver_sched.model.effort import Clock, Effort, Solution, beats
from solver_sched.model.floor import Joint
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import evaluate
from solver_sched.model.pooled import Pooled, pooled
from solver_sched.model.reduced import Reduced
from solver_sched.model.search import Search
from solver_sched.model.solve import solve
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Ints, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.rights import Rights, rights
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations
from tests.model.test_guided import EFFORT, agree, solved, world

POLICY = load_policy({"actions": "enqueue, allocate, preempt, reclaim, backfill"})


def crowded(seed: int) -> tuple[Snapshot, Policy]:
    """Twelve full nodes and twelve gangs that wait, in three queues."""
    objects = generate(nodes=12, gangs=12, seed=seed, occupancy=1.0, load="victims", queues=3, priorities=3)
    return read_objects(objects), POLICY


def across(*gangs: tuple[str, int, int, str], budget: str = "") -> tuple[Snapshot, Policy]:
    """Nodes n and m of 8 GPUs; gangs: name, priority, GPUs of a pod, a node for each pod (none: one pod waits). Of the
    one that is named by `budget` one pod may go.
    """
    groups, pods = [], []
    for name, priority, gpus, places in gangs:
        phase, needs = "Running" if places else "Inqueue", Needs(request=(("nvidia.com/gpu", gpus), ("pods", 1)))
        members = max(1, len(places))
        groups.append(PodGroup("ns", name, "v", min_member=members, queue="q", priority=priority, phase=phase))
        for i, node in enumerate(places or [None]):
            key, phase = f"{name}-{i}", phase if node else "Pending"
            pod = Pod("ns", key, needs, node=node, phase=phase, scheduler="solver-sched", labels={"of": name})
            pods.append(replace(pod, group=f"ns/{name}", priority=priority))
    nodes = tuple(Node(n, {"cpu": 1000, "nvidia.com/gpu": 8, "pods": 110}) for n in "nm")
    budgets = (Budget("ns", "one", (Requirement("of", "In", (budget,)),), 1),) if budget else ()
    snapshot = Snapshot(nodes, tuple(pods), tuple(groups), (Queue("q"),), budgets=budgets, now=10_000)
    return snapshot, POLICY


class HandSetClock(Clock):
    """`passed`: seconds that have gone by beside those that the test takes."""

    passed = 0.0

    @property
    def left(self) -> float:
        return super().left - self.passed


class JumpingClock(Clock):
    """Most of its time has gone by from some reading on."""

    readings, part = 20, 0.91

    @property
    def left(self) -> float:
        self.readings -= 1
        return super().left - (self.part * self.seconds if self.readings < 0 else 0.0)


def stated(snapshot: Snapshot, policy: Policy) -> tuple[Problem, Rules]:
    problem, _ = encode(snapshot, evicting=True)
    return problem, derive(problem, policy)


def from_afar(patch: pytest.MonkeyPatch, snapshot: Snapshot, policy: Policy) -> Solution:
    """The plan of a large model, though it is a small one; single nodes are not looked at."""
    patch.setattr(solving, "LARGE", -1)
    patch.setattr(solving, "NEAR", 2.0)
    problem, rules = stated(snapshot, policy)
    greedy = greedy_plan(problem, rules)
    evicting = evicting_plan(problem, rules, greedy)
    found = solve(problem, rules, Effort(5.0, 0.0), greedy=greedy, evicting=evicting, stand=towards)
    assert violations(problem, rules, found.plan) == []
    return found


def on_its_own(problem: Problem, rules: Rules, allowed: Rights) -> Pooled:
    """Nothing is pooled."""
    nodes, sets = np.arange(len(problem.node_free)), np.arange(len(problem.victims.holder))
    return Pooled(problem, rules, allowed, nodes, sets)


@pytest.mark.parametrize("seed", range(16))
def test_a_plan_is_worth_the_same_on_pooled_nodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, rules = stated(*(crowded(seed) if seed % 2 else world(seed)))
    greedy = greedy_plan(problem, rules)
    plan, allowed = evicting_plan(problem, rules, greedy), rights(problem, rules, greedy)

    def values() -> list[tuple[str, int]]:
        return [(level.name, level.value) for level in evaluate(problem, rules, plan, EFFORT, (), allowed)]

    seen = values()
    monkeypatch.setattr(levels, "pooled", on_its_own)
    assert values() == seen


def test_sets_that_differ_in_their_node_alone_are_one() -> None:
    problem, rules = stated(*crowded(1))
    of = pooled(problem, rules, rights(problem, rules))
    v = of.problem.victims
    assert len(v.holder) < len(problem.victims.holder)
    assert v.of_holders(v.count).tolist() == problem.victims.of_holders(problem.victims.count).tolist()
    assert len(of.problem.node_free) == problem.kinds
    assert of.problem.node_alloc.sum(axis=0).tolist() == problem.node_alloc.sum(axis=0).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_what_is_seen_from_afar_and_the_optimum_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reaches what the other calls out of reach; and it is not below the greedy plan."""
    exact = solved(*world(seed))
    afar = from_afar(monkeypatch, *world(seed))
    agree(exact, afar)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_at_least_as_good_as_greedy_or_says_so(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = from_afar(monkeypatch, *crowded(seed))
    assert all(level.bound is not None and level.value <= level.bound for level in found.levels)
    # the first levels are those of the pooled optimum: greedy, in no order of levels, is below
    assert not beats(found.greedy, found.levels)


@pytest.mark.parametrize(("part", "readings"), [(0.91, 20), (1.01, 32)])
def test_what_is_told_of_a_given_plan_is_what_it_is_worth(part: float, readings: int) -> None:
    """Short of time fewer levels are told. What a level reads before it is solved may be less than it is worth."""
    problem, rules = stated(*crowded(0))
    greedy = greedy_plan(problem, rules)
    plan, allowed = evicting_plan(problem, rules, greedy), rights(problem, rules, greedy)
    worth = {level.name: level.value for level in evaluate(problem, rules, plan, EFFORT, (), allowed)}
    clock = JumpingClock(1000.0)
    clock.part, clock.readings = part, readings
    told = evaluate(problem, rules, plan, EFFORT, (), allowed, clock)
    assert 0 < len(told) < len(worth)
    assert [(level.name, level.value) for level in told] == list(worth.items())[: len(told)]


def test_room_beyond_what_a_row_can_hold_is_left_as_it_is() -> None:
    """Nodes of 600,000 times as much memory, some 2^62 bytes in all: sums of a row would not fit 64 bits."""
    objects = generate(nodes=16, gangs=16, seed=3, occupancy=1.0, load="victims", queues=3, priorities=3)
    snapshot, times = read_objects(objects), 600_000
    nodes = tuple(
        replace(node, allocatable={r: n * times if r == "memory" else n for r, n in node.allocatable.items()})
        for node in snapshot.nodes
    )
    pods = tuple(
        replace(
            pod,
            needs=replace(
                pod.needs, request=tuple((r, n * times if r == "memory" else n) for r, n in pod.needs.request)
            ),
        )
        for pod in snapshot.pods
    )
    problem, rules = stated(replace(snapshot, nodes=nodes, pods=pods), POLICY)
    allowed = rights(problem, rules, greedy_plan(problem, rules))
    found = afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best()
    assert found is not None
    assert violations(problem, rules, found.plan) == []


def hopeless() -> tuple[Problem, Rules, Rights]:
    """c waits for 4 GPUs in one pod. In the pool the 4 GPUs of a are enough, on either node b has to go too, and of b
    only one pod of two may.
    """
    gangs = ("h", 20, 4, "nm"), ("a", 0, 2, "nm"), ("b", 0, 2, "nm"), ("c", 10, 4, "")
    problem, rules = stated(*across(*gangs, budget="b"))
    return problem, rules, rights(problem, rules, greedy_plan(problem, rules))


def test_nobody_goes_for_a_job_that_finds_no_node() -> None:
    problem, rules, allowed = hopeless()
    found = afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best()
    assert found is not None
    assert (len(found.plan.pod_set), len(found.plan.victim)) == (0, 0)
    assert violations(problem, rules, found.plan) == []


@pytest.mark.parametrize("others", [True, False])
def test_by_hand_somebody_goes_for_nobody_unless_there_is_time_for_other_plans(
    others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy lets go who should (2 pods of a), finds no node, and tries what lets others go, twice: nobody."""
    problem, rules, allowed = hopeless()
    gone: list[int] = []

    def stand(problem: Problem, rules: Rules, jobs: Ints, going: Ints, first: Ints) -> Plan:
        plan = towards(problem, rules, jobs, going, first)
        gone.append(len(plan.victim))
        if not others:
            clock.passed = 60.0  # more than half of the time
        return plan

    clock = HandSetClock(100.0)
    monkeypatch.setattr(afar, "assigned", lambda *_: None)
    monkeypatch.setattr(afar.Afar, "_at_hand", lambda _: None)
    found = afar.Afar(problem, rules, allowed, EFFORT, clock, None, stand).best()
    assert gone == ([2, 0, 0] if others else [2])
    assert (found is not None) == others
    if found is not None:
        assert violations(problem, rules, found.plan) == []


def test_room_beside_idle_gpus_is_left_to_those_who_ask_for_gpus() -> None:
    """Nodes n and m with 8 idle GPUs and 2 CPUs, l with 8 CPUs and none. Three gangs of 8 GPUs wait, so that GPUs are
    contended, and one pod of 1 CPU: l is the least tight, and leaves both nodes to the gangs.
    """
    snapshot, policy = across(*((name, 0, 8, "") for name in "abc"))
    small = Needs(request=(("cpu", 1000), ("pods", 1)))
    group = PodGroup("ns", "d", "v", min_member=1, queue="q", phase="Inqueue")
    pod = Pod("ns", "d-0", small, phase="Pending", scheduler="solver-sched", group="ns/d")
    nodes = [replace(one, allocatable={**one.allocatable, "cpu": 2000}) for one in snapshot.nodes]
    nodes.append(Node("l", {"cpu": 8000, "pods": 110}))
    snapshot = replace(snapshot, nodes=tuple(nodes), pods=(*snapshot.pods, pod), groups=(*snapshot.groups, group))
    problem, rules = stated(snapshot, policy)
    d = int(np.flatnonzero(problem.request[problem.set_shape, 0] > 0)[0])
    nobody = np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
    plan = towards(problem, rules, problem.set_job[[d]], *nobody)
    assert plan.node[plan.pod_set == d].tolist() == [2]


@pytest.mark.parametrize("most", [0, 1, 100])
@pytest.mark.parametrize("seed", range(8))
def test_who_goes_on_single_nodes_is_who_goes_from_the_pool(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For no pair of a shape and a node, for those of which a node takes one, and for all."""
    monkeypatch.setattr(model_cleared, "MOST", most)
    problem, rules = stated(*crowded(seed))
    of = pooled(problem, rules, rights(problem, rules, greedy_plan(problem, rules)))
    ledger = Ledger(of.problem, of.rules, of.rights, np.ones(len(of.problem.node_free), bool))
    floor = Joint(ledger)
    cleared = model_cleared.Cleared(ledger, floor, problem, rules, of)
    search = Search(ledger, floor, EFFORT, None, Clock())
    for _ in levels.evicting_levels(search):
        pass
    assert ledger.evictions is not None
    going = cleared.going(search.value)
    for cause in (PREEMPT, RECLAIM):
        here = np.zeros(len(of.problem.victims.holder), np.int64)
        for s, pods, why in going:
            assert pods <= problem.victims.count[s]
            here[of.set_of[s]] += pods * (why == cause)
        pool = [search.value(terms) if terms.variables else 0 for terms in ledger.evictions.out[cause]]
        assert here.tolist() == pool


@pytest.mark.parametrize("seed", range(12))
def test_the_rows_of_single_nodes_cost_no_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a variable for every pair of a shape and a node the bounds hold for the optimum too."""
    exact = solved(*world(seed))
    monkeypatch.setattr(model_cleared, "MOST", 1000)
    agree(exact, from_afar(monkeypatch, *world(seed)))


def test_a_node_is_cleared_for_a_pod_that_takes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each node two pods of 2 GPUs of gang a and two of gang b; c waits with one pod of 8 GPUs. In the pool the 8
    GPUs of a are enough, on nodes both a and b have to go.
    """
    problem, rules = stated(*across(("a", 0, 2, "nnmm"), ("b", 0, 2, "nnmm"), ("c", 10, 8, "")))
    allowed = rights(problem, rules, greedy_plan(problem, rules))

    def bound(most: int) -> int | None:
        monkeypatch.setattr(model_cleared, "MOST", most)
        found = afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best()
        assert found is not None
        assert len(found.plan.count) == 1
        return next(level.bound for level in found.levels if level.name == "disruption.gangs")

    assert bound(0) == -1
    assert bound(1) == -2


def test_a_deficit_level_that_is_asked_for_is_given() -> None:
    """It is left out where each queue that is not counted yet lacks less than one of its units, or nothing."""
    more = 0
    for seed in range(4):
        problem, rules = stated(*crowded(seed))
        greedy = greedy_plan(problem, rules)
        plan, allowed = evicting_plan(problem, rules, greedy), rights(problem, rules, greedy)
        short = {level.name for level in evaluate(problem, rules, plan, EFFORT, (), allowed)}
        asked = frozenset(name.replace("[1]", f"[{k}]") for name in short for k in (2, 3) if "[1]" in name)
        full = evaluate(problem, rules, plan, EFFORT, (), allowed, None, asked)
        for above, level in itertools.pairwise(full):
            if level.name not in short:
                more += 1
                assert level.name in asked
                assert level.value <= above.value
    assert more


@pytest.mark.parametrize("seed", [*range(12), 1124])  # 1124: growth needs what was ruled out while there was none
def test_what_a_level_rules_out_changes_no_value(seed: int) -> None:
    """The levels on pooled nodes with and without the values that each rules out for those below; as far as they are
    the same levels: whether what is left of the deficits is worth one more depends on the solution.
    """
    problem, rules = stated(*(crowded(seed) if seed % 2 else world(seed)))
    of = pooled(problem, rules, rights(problem, rules, greedy_plan(problem, rules)))

    def reached(*, reduced: bool) -> list[tuple[str, int, int | None]]:
        ledger = Ledger(of.problem, of.rules, of.rights, np.ones(len(of.problem.node_free), bool))
        search = Search(ledger, Joint(ledger), EFFORT, None, Clock())
        search.reduced = Reduced(ledger.model) if reduced else None
        for _ in levels.evicting_levels(search):
            pass
        found = [level for level in search.outcome() if level.name not in levels.BEST_EFFORT]
        return [(level.name, level.value, level.bound) for level in found]

    both = list(zip(reached(reduced=True), reached(reduced=False), strict=False))
    alike = next((i for i, (one, other) in enumerate(both) if one[0] != other[0]), len(both))
    assert alike > 0
    for one, other in both[:alike]:
        assert one == other


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_aimed_at_the_plan_keeps_the_rules(seed: int) -> None:
    problem, rules = stated(*crowded(seed))
    rng = np.random.default_rng(seed)
    jobs = rng.permutation(np.flatnonzero(rules.need > 0))
    going = rng.integers(0, 2, len(problem.victims.queue)) * problem.victims.running
    plan: Plan = towards(problem, rules, jobs, going, np.zeros((0, 3), np.int64))
    assert violations(problem, rules, plan) == []


def test_a_clock_that_has_run_out_leaves_the_levels_without_evictions() -> None:
    snapshot, policy = crowded(2)
    problem, rules = stated(snapshot, policy)
    found = solve(problem, rules, Effort(-1.0), greedy=greedy_plan(problem, rules), stand=towards)
    assert found.cut
    assert not len(found.plan.victim)
    # nobody knows what they would be if others made room: a deficit may be gone
    assert [level.name for level in found.ever] == [level.name for level in found.levels]
    assert all(level.bound == 0 for level in found.ever if "deficit" in level.name)
    assert all(level.bound is not None and level.bound >= level.value for level in found.ever)
    assert Clock(-1.0).over()


@pytest.mark.parametrize("seed", [13, 31, 41, 55])
def test_a_bound_without_time_to_look_for_one_is_still_a_bound(seed: int) -> None:
    """The greedy plan is worth less in the first level that differs and more below, where what this search has ruled
    out for its own values does not hold.
    """
    problem, rules = stated(*crowded(seed))
    greedy = greedy_plan(problem, rules)
    allowed = rights(problem, rules, greedy)
    of = pooled(problem, rules, allowed)
    ledger = Ledger(of.problem, of.rules, of.rights, np.ones(len(of.problem.node_free), bool))
    search = Search(ledger, Joint(ledger), EFFORT, None, Clock())
    search.reduced = Reduced(ledger.model)
    for _ in levels.evicting_levels(search):
        pass
    plan = evicting_plan(problem, rules, greedy)
    values = {level.name: level.value for level in evaluate(problem, rules, plan, EFFORT, (), allowed)}
    search.clock = Clock(-1.0)
    bounds = search.rebound(values, search.priced(values))
    assert all(bounds[name] >= value for name, value in values.items() if name in bounds)

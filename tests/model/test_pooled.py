"""Evictions seen from afar: the levels on pooled nodes, and a plan on real ones that comes near to them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.cluster.sources import read_objects
from solver_sched.greedy import evicting_plan, greedy_plan, towards
from solver_sched.model import cleared as model_cleared
from solver_sched.model import levels
from solver_sched.model.effort import Clock, Effort, Solution, beats
from solver_sched.model.floor import Joint
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import evaluate, solve
from solver_sched.model.pooled import Pooled, pooled
from solver_sched.model.reduced import Reduced
from solver_sched.model.search import Search
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


def two_gangs_across() -> tuple[Snapshot, Policy]:
    """Two nodes of 8 GPUs; gangs a and b of four pods of 2 GPUs, two on each node; c waits for 8 GPUs in one pod."""
    pair, eight = (Needs(request=(("nvidia.com/gpu", gpus), ("pods", 1))) for gpus in (2, 8))
    groups, pods = [], []
    for name, priority, needs, places in (("a", 0, pair, "nnmm"), ("b", 0, pair, "nnmm"), ("c", 10, eight, "")):
        phase, members = ("Running", len(places)) if places else ("Inqueue", 1)
        groups.append(PodGroup("ns", name, "v", min_member=members, queue="q", priority=priority, phase=phase))
        for i, node in enumerate(places or [None]):
            pod = Pod(
                "ns", f"{name}-{i}", needs, node=node, phase=phase if node else "Pending", scheduler="solver-sched"
            )
            pods.append(replace(pod, group=f"ns/{name}", priority=priority))
    nodes = tuple(Node(n, {"cpu": 1000, "nvidia.com/gpu": 8, "pods": 110}) for n in "nm")
    snapshot = Snapshot(nodes=nodes, pods=tuple(pods), groups=tuple(groups), queues=(Queue("q"),), now=10_000)
    return snapshot, POLICY


def stated(snapshot: Snapshot, policy: Policy) -> tuple[Problem, Rules]:
    problem, _ = encode(snapshot, evicting=True)
    return problem, derive(problem, policy)


def from_afar(patch: pytest.MonkeyPatch, snapshot: Snapshot, policy: Policy) -> Solution:
    """The plan of a large model, though it is a small one; single nodes are not looked at."""
    patch.setattr(levels, "LARGE", -1)
    patch.setattr(levels, "NEAR", 2.0)
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


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_the_plans_that_were_tried_stands(seed: int) -> None:
    """Halfway down the levels, at their end, and where these leave out a job, as jobs find nodes."""
    problem, rules = stated(*crowded(seed))
    allowed = rights(problem, rules, greedy_plan(problem, rules))
    tried: list[Plan] = []

    def stand(problem: Problem, rules: Rules, jobs: Ints, going: Ints, first: Ints) -> Plan:
        tried.append(towards(problem, rules, jobs, going, first))
        return tried[-1]

    found, _ = levels._from_afar(problem, rules, allowed, EFFORT, Clock(), None, stand)
    assert found is not None
    assert tried
    for plan in tried:
        reached = {level.name: level.value for level in evaluate(problem, rules, plan, EFFORT, (), allowed)}
        assert not beats(reached, found.levels)


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
    for _ in levels._evicting_levels(search):
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
    """Two nodes of 8 GPUs, on each of them four pods of 2 GPUs; gangs a and b of four pods have two on each node, c, a
    gang of four too, waits with one pod of 8 GPUs. In the pool a's 8 GPUs are enough, on nodes both a and b have to go.
    """
    problem, rules = stated(*two_gangs_across())
    allowed = rights(problem, rules, greedy_plan(problem, rules))

    def bound(most: int) -> int | None:
        monkeypatch.setattr(model_cleared, "MOST", most)
        found, _ = levels._from_afar(problem, rules, allowed, EFFORT, Clock(), None, towards)
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
        for _ in levels._evicting_levels(search):
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
    assert Clock(-1.0).over()

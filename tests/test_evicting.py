"""What holds where running work may have to make room: who goes, who comes, and that it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.actions.decide import Bind, Nominate
from solver_sched.actions.evict import Evict
from solver_sched.cycle import CycleReport, run_cycle
from solver_sched.greedy import evicting_plan, greedy_plan
from solver_sched.model.effort import Solution, beats
from solver_sched.model.levels import evaluate
from solver_sched.model.solve import solve
from solver_sched.plugins.rules import derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import PREEMPT, Plan
from solver_sched.problem.encode import encode
from solver_sched.rights import rights
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations
from tests.strategies import full_snapshot, full_snapshots
from tests.strategies import shuffled as shuffle
from tests.test_properties import (
    BUDGET,
    EFFORT,
    Planned,
    assert_nothing_discarded,
    assert_reaches,
    assert_same_optimum,
    document,
    proven,
    values,
)

ORDER = ("priority", "gang", "conformance", "predicates")


def evicting_policy(actions: str, plugins: tuple[str, ...], **switches: dict[str, object]) -> Policy:
    tier = [{"name": name, **switches.get(name, {})} for name in (*ORDER, *plugins, "nodeorder")]
    return load_policy({"actions": f"enqueue, allocate, {actions}, backfill", "tiers": [{"plugins": tier}]})


OFF: dict[str, object] = {"enablePreemptable": False}
POLICIES = {
    "both": evicting_policy("preempt, reclaim", ("proportion", "drf")),
    "preempt": evicting_policy("preempt", ("proportion", "drf"), drf=OFF),
    "reclaim": evicting_policy("reclaim", ("proportion", "drf"), gang=OFF, drf=OFF),
    "capacity": evicting_policy("gangpreempt, gangreclaim", ("capacity", "drf"), gang=OFF),
    "cool": evicting_policy("preempt, reclaim", ("proportion", "cdp"), gang=OFF),
    "no shares": evicting_policy("preempt, reclaim", ("drf",)),
}
policies = st.sampled_from(list(POLICIES.values()))
some = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass(frozen=True)
class Evicted(Planned):
    evicting: Plan = field(kw_only=True)


def planned(snapshot: Snapshot, policy: Policy) -> Evicted:
    problem, index = encode(snapshot, evicting=True)
    rules = derive(problem, policy)
    greedy = greedy_plan(problem, rules)
    evicting = evicting_plan(problem, rules, greedy)
    solution = solve(problem, rules, EFFORT, greedy=greedy, evicting=evicting)
    return Evicted(problem, index, rules, greedy, solution, evicting=evicting)


def never_worse_than_greedy(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    assert_reaches(found.solution.levels, found.solution.greedy)
    if all(level.value == level.bound for level in found.solution.levels):
        assert not beats(found.solution.greedy, found.solution.levels)


def verifier_accepts(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    for plan in (found.solution.plan, found.greedy, found.evicting):
        assert violations(found.problem, found.rules, plan) == []
    report = run_cycle(snapshot, policy, BUDGET)
    assert_nothing_discarded(report)
    assert violations(report.problem, report.rules, report.plan) == []
    assert all(level.bound is None or level.value <= level.bound for level in report.levels)


def greedy_keeps_what_it_has_begun(snapshot: Snapshot, policy: Policy) -> None:
    """Evictions add starts and take none back; who gives way has a lower right, and greedy's plan can be evaluated."""
    found = planned(snapshot, policy)
    problem, rules, plan = found.problem, found.rules, found.evicting
    assert (plan.placed(problem) >= found.greedy.placed(problem)).all()
    if not len(plan.victim):
        return
    levels = evaluate(problem, rules, plan, EFFORT, (), rights(problem, rules, found.greedy))
    assert any(level.name.startswith("disruption.pods") and level.value < 0 for level in levels)


def levels_are_those_of_the_plan(snapshot: Snapshot, policy: Policy) -> None:
    found = planned(snapshot, policy)
    v = found.problem.victims
    if not len(found.solution.plan.victim) or (v.stale & (v.job >= 0)).any():
        return  # which remainders section 6 completes is not told by the plan
    allowed = rights(found.problem, found.rules)
    reread = values(evaluate(found.problem, found.rules, found.solution.plan, EFFORT, (), allowed))
    for level in found.solution.levels:
        assert level.bound is not None
        assert level.value <= level.bound
        assert reread.get(level.name, level.value) >= level.value, level
        if level.value != level.bound:
            return
        assert reread.get(level.name, level.value) == level.value, level


def order_of_input_changes_no_value(snapshot: Snapshot, policy: Policy, rng: Random) -> None:
    left, right = planned(snapshot, policy), planned(shuffle(snapshot, rng), policy)
    assert_same_optimum(left.solution.levels, right.solution.levels)


# -- executed, again and again -----------------------------------------------------------------------------------------


WAVES = 10
"""Cycles after which the evictions of a cluster of a dozen jobs are over; nearly all are over at once."""


def executed(snapshot: Snapshot, report: CycleReport) -> Snapshot:
    """The cluster when bound pods run, evicted ones are on their way out and promises are noted."""
    binds = {one.pod: one.node for one in report.decisions if isinstance(one, Bind)}
    promised = {one.pod: one.node for one in report.decisions if isinstance(one, Nominate)}
    gone = {one.pod for one in report.decisions if isinstance(one, Evict)}

    def pod(old: Any) -> Any:
        if old.key in binds:
            return replace(old, node=binds[old.key], phase="Running", nominated=None, started=snapshot.now)
        if old.key in gone:
            return replace(old, terminating=True)
        return replace(old, nominated=promised.get(old.key)) if old.node is None else old

    return replace(snapshot, pods=tuple(pod(old) for old in snapshot.pods))


def ended(snapshot: Snapshot, *, back: bool) -> Snapshot:
    """The pods on their way out are gone; `back`: their controllers have made new ones."""
    pods = []
    for old in snapshot.pods:
        if not old.terminating:
            pods.append(old)
        elif back and old.node:
            pods.append(replace(old, terminating=False, node=None, phase="Pending", started=0))
    return replace(snapshot, pods=tuple(pods))


def evictions_come_to_an_end(snapshot: Snapshot, policy: Policy, *, back: bool) -> None:
    """Nobody goes for ever, and who has gone does not drive out whom he went for.

    One wave may follow another: shares move as pods go, and growth of a higher priority may take the room that a
    second promise stands on.
    """
    # whoever was on the way out before comes or goes for reasons of its own
    snapshot = replace(snapshot, pods=tuple(replace(pod, terminating=False) for pod in snapshot.pods))
    first = run_cycle(snapshot, policy, BUDGET)
    gone = [one for one in first.decisions if isinstance(one, Evict)]
    if not gone or not proven_but_for_preferences(first):
        return
    left, came = {one.pod_group for one in gone}, {one.beneficiary for one in gone}
    now, quiet = executed(snapshot, first), 0
    for cycle in range(WAVES + 1):
        if cycle:
            now = ended(now, back=back)
        report = run_cycle(now, policy, BUDGET)
        if not proven_but_for_preferences(report):
            return
        more = [one for one in report.decisions if isinstance(one, Evict)]
        assert not [one for one in more if one.pod_group in came and one.beneficiary in left], (cycle, more)
        # two in a row: in one of them who has gone may just be bound again
        quiet = 0 if more else quiet + 1
        if cycle > 1 and quiet > 1:
            return
        now = executed(now, report)
    raise AssertionError(more)


def proven_but_for_preferences(report: CycleReport) -> bool:
    best_effort = ("balance", "promised", "order")
    return all(level.value == level.bound for level in report.levels if not level.name.startswith(best_effort))


@some
@given(full_snapshots(), policies)
def test_never_worse_than_greedy(snapshot: Snapshot, policy: Policy) -> None:
    never_worse_than_greedy(snapshot, policy)


@some
@given(full_snapshots(), policies)
def test_the_verifier_accepts_every_plan(snapshot: Snapshot, policy: Policy) -> None:
    verifier_accepts(snapshot, policy)


@some
@given(full_snapshots(), policies)
def test_greedy_keeps_what_it_has_begun(snapshot: Snapshot, policy: Policy) -> None:
    greedy_keeps_what_it_has_begun(snapshot, policy)


@some
@given(full_snapshots(), policies)
def test_the_levels_are_those_of_the_plan(snapshot: Snapshot, policy: Policy) -> None:
    levels_are_those_of_the_plan(snapshot, policy)


@some
@given(full_snapshots(), policies, st.randoms(use_true_random=False))
def test_the_order_of_input_changes_no_proven_value(snapshot: Snapshot, policy: Policy, rng: Random) -> None:
    order_of_input_changes_no_value(snapshot, policy, rng)


@some
@given(full_snapshots(), policies)
def test_the_same_seed_gives_the_same_document(snapshot: Snapshot, policy: Policy) -> None:
    first, second = run_cycle(snapshot, policy, BUDGET), run_cycle(snapshot, policy, BUDGET)
    assert document(first) == document(second) or not proven(first)


@some
@given(full_snapshots(), policies, st.booleans())
def test_evictions_come_to_an_end(snapshot: Snapshot, policy: Policy, back: bool) -> None:
    evictions_come_to_an_end(snapshot, policy, back=back)


def comes_to_an_end_with_pods_gone(snapshot: Snapshot, policy: Policy) -> None:
    evictions_come_to_an_end(snapshot, policy, back=False)


def comes_to_an_end_with_pods_back(snapshot: Snapshot, policy: Policy) -> None:
    evictions_come_to_an_end(snapshot, policy, back=True)


PROPERTIES = [
    never_worse_than_greedy,
    verifier_accepts,
    greedy_keeps_what_it_has_begun,
    levels_are_those_of_the_plan,
    comes_to_an_end_with_pods_gone,
    comes_to_an_end_with_pods_back,
]


@pytest.mark.slow
@pytest.mark.parametrize("holds", PROPERTIES)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_on_many_seeds(holds: Callable[[Snapshot, Policy], None], policy: Policy) -> None:
    for seed in range(1000, 1100):
        holds(full_snapshot(Random(seed)), policy)


def test_the_clusters_are_full_enough() -> None:
    """Somebody has to go in many of them, in each way: else nothing above has been tested."""
    said = {"solver": 0, "greedy": 0, "preempt": 0, "reclaim": 0, "whole": 0, "surplus": 0}
    for seed in range(60):
        found = planned(full_snapshot(Random(seed)), list(POLICIES.values())[seed % len(POLICIES)])
        plan, v = found.solution.plan, found.problem.victims
        said["solver"] += len(plan.victim) > 0
        said["greedy"] += len(found.evicting.victim) > 0
        for s, cause in zip(plan.victim.tolist(), plan.cause.tolist(), strict=True):
            said["preempt" if cause == PREEMPT else "reclaim"] += 1
            gone = int(plan.evicted(found.problem)[v.holder == v.holder[s]].sum())
            said["whole" if gone == v.running[v.holder[s]] else "surplus"] += 1
    assert min(said.values()) >= 3, said


@pytest.mark.parametrize("seed", [0, 2, 7])
def test_a_guarantee_far_above_the_cluster_costs_no_plan(seed: int) -> None:
    snapshot = full_snapshot(Random(seed))
    queues = (replace(snapshot.queues[0], guarantee={"cpu": 2**62}), *snapshot.queues[1:])
    report = run_cycle(replace(snapshot, queues=queues), POLICIES["both"], BUDGET)
    assert not [note for note in report.notes if "failed" in note]


def test_a_plan_that_is_told_before_the_end_evicts_or_is_that_of_the_levels_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who loses the solver while it looks for room to free falls back on the best plan without evictions."""
    monkeypatch.setattr("solver_sched.model.solve.TOLD", math.inf)  # whatever it costs
    looked = 0
    for seed in range(40):
        problem, _ = encode(full_snapshot(Random(seed)), evicting=True)
        rules = derive(problem, POLICIES["both"])
        told: list[Solution] = []
        solve(problem, rules, EFFORT, greedy=greedy_plan(problem, rules), improved=told.append)
        for one in told:
            freeing = any(level.name.startswith(("keep", "in-share.spare")) for level in one.levels)
            looked += freeing
            assert not freeing or len(one.plan.victim)
    assert looked > 20

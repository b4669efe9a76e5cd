"""Greedy with evictions: Volcano's order under our rights, on clusters of two nodes of 4 cpu and queues q and r."""

from __future__ import annotations

from typing import Any

import pytest

from solver_sched.cluster.objects import Budget, Queue
from solver_sched.cycle import Budget as Seconds
from solver_sched.cycle import run_cycle
from solver_sched.greedy import evicting_plan, greedy_plan
from solver_sched.model import solve as solving
from solver_sched.model.effort import Solution
from solver_sched.model.levels import evaluate
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, PREEMPT, RECLAIM, Problem
from solver_sched.verify import violations
from tests.test_verify import full, gang, stated_full

DRF = "priority gang drf proportion"


def moves(problem: Problem, rules: Rules) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Pods placed per pod set; pods that go per (holder, cause)."""
    plan = evicting_plan(problem, rules, greedy_plan(problem, rules))
    assert violations(problem, rules, plan) == []
    gone: dict[tuple[int, int], int] = {}
    for s, pods, cause in zip(plan.victim.tolist(), plan.out.tolist(), plan.cause.tolist(), strict=True):
        at = int(problem.victims.holder[s]), cause
        gone[at] = gone.get(at, 0) + pods
    return {t: n for t, n in enumerate(plan.placed(problem).tolist()) if n}, gone


def test_a_gang_goes_whole_on_all_its_nodes() -> None:
    # low runs one pod of 3 cpu on each node; high needs 2 cpu on one. Half of low would do no work.
    low = gang("low", 3000, 2, 2, node="n0")
    low[1][1:] = [*gang("low", 3000, 2, 2, node="n1")[1][1:]]
    assert moves(*full(low, gang("high", 2000, 1, 1, priority=5), plugins=DRF)) == ({0: 1}, {(0, PREEMPT): 2})


def test_a_job_that_does_not_start_gives_everything_back() -> None:
    # high needs 2 x 3 cpu; low's node can be cleared for one, the other node is held by who never goes.
    low, kept = gang("low", 3000, 1, 1, node="n0"), gang("kept", 3000, 1, 1, node="n1", preemptable=False)
    assert moves(*full(low, kept, gang("high", 3000, 2, 2, priority=5), plugins=DRF)) == ({}, {})


def test_the_lowest_goes_first_and_no_more_than_needed() -> None:
    # 4 x 1 cpu of one pod each run on n0, priorities 0 and 3, n1 is held: a pod of 1 cpu takes the place of a low one.
    running = [gang(f"s{i}", 1000, 1, 1, node="n0", priority=3 * (i % 2)) for i in range(4)]
    kept = gang("kept", 4000, 1, 1, node="n1", preemptable=False)
    placed, gone = moves(*full(*running, kept, gang("high", 1000, 1, 1, priority=5), plugins=DRF))
    assert (placed, list(gone.values())) == ({0: 1}, [1])
    assert set(gone) <= {(0, PREEMPT), (2, PREEMPT)}


def test_surplus_goes_down_to_the_minimum() -> None:
    # elastic runs 4 x 1 with minimum 2 on n0. An equal takes 2 of them, not 3.
    kept = gang("kept", 4000, 1, 1, node="n1", preemptable=False)
    elastic = gang("elastic", 1000, 4, 2, node="n0")
    assert moves(*full(elastic, kept, gang("pair", 1000, 2, 2), plugins=DRF)) == ({0: 2}, {(0, PREEMPT): 2})
    assert moves(*full(elastic, kept, gang("trio", 1000, 3, 3), plugins=DRF)) == ({}, {})


def test_budgets_hold() -> None:
    low, kept = gang("low", 2000, 2, 0, node="n0"), gang("kept", 4000, 1, 1, node="n1", preemptable=False)
    high = gang("high", 2000, 2, 1, priority=5)
    one = (Budget("ns", "calm", (), 1),)
    assert moves(*full(low, kept, high, plugins=DRF, budgets=one)) == ({0: 1}, {(0, PREEMPT): 1})
    none = (Budget("ns", "calm", (), 0),)
    assert moves(*full(low, kept, high, plugins=DRF, budgets=none)) == ({}, {})


def test_reclaim_is_for_starts_inside_the_share() -> None:
    # q holds all 8 cpu in singles of 2, r asks 3 x 2 in jobs of one: half of 8 is r's, so two start.
    many = [gang(f"s{i}", 2000, 1, 1, node=f"n{i // 2}") for i in range(4)]
    asking = [gang(f"x{i}", 2000, 1, 1, queue="r") for i in range(3)]
    placed, gone = moves(*full(*many, *asking, plugins=DRF))
    assert sum(placed.values()) == sum(gone.values()) == 2
    assert {cause for _, cause in gone} == {RECLAIM}
    assert moves(*full(*many, *asking, plugins=DRF, queues=(Queue("q", reclaimable=False), Queue("r")))) == ({}, {})


def test_the_solver_that_needs_nobody_to_go_is_compared_without() -> None:
    """Greedy puts the older pod of 2 cpu on the emptier n1; then 4 cpu are nowhere, and low goes. The solver puts it
    beside low.
    """
    low = gang("low", 2000, 1, 1, node="n0")
    jobs = (low, gang("a", 2000, 1, 1, priority=5), gang("b", 4000, 1, 1, priority=4))
    problem, rules = full(*jobs, plugins=f"{DRF} nodeorder")
    assert moves(problem, rules) == ({0: 1, 1: 1}, {(0, PREEMPT): 1})
    report = run_cycle(*stated_full(*jobs, plugins=f"{DRF} nodeorder"), Seconds(2.0, apart=False))
    assert (report.winner, len(report.plan.victim), len(report.greedy.victim)) == ("solver", 0, 0)
    assert report.plan.count.sum() == 2


def test_greedy_is_the_floor_of_a_cycle_that_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of section 8 that finds nothing: greedy's start of high at the price of low is better in its levels."""
    jobs = (gang("low", 2000, 4, 4, node="n0"), gang("high", 2000, 4, 4, priority=5))
    low = [*jobs[0][1][:2], *gang("low", 2000, 4, 4, node="n1")[1][2:]]
    jobs = ((jobs[0][0], low), jobs[1])

    def nothing(problem: Problem, rules: Rules, allowed: Any, effort: Any, *_: Any) -> tuple[Solution, float]:
        return Solution(EMPTY_PLAN, evaluate(problem, rules, EMPTY_PLAN, effort, (), allowed)), 0.0

    monkeypatch.setattr(solving, "_freeing", nothing)
    report = run_cycle(*stated_full(*jobs, plugins=DRF), Seconds(2.0, apart=False))
    assert (report.winner, int(report.plan.out.sum()), int(report.plan.count.sum())) == ("greedy", 4, 4)
    assert report.greedy_levels["start>=5"] > 0

"""Of a plan that evicts more than it needs, whoever goes for nobody stays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from solver_sched import cycle
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import run_cycle
from solver_sched.greedy import spare
from solver_sched.model.effort import Effort, LevelResult, Solution
from solver_sched.model.solve import solve
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import PREEMPT, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.verify import violations
from tests import tiny
from tests.strategies import full_snapshot
from tests.test_evicting import POLICIES
from tests.test_properties import BUDGET

CROWD = tiny.Cluster(
    {"n1": tiny.Node({"cpu": 4000}), "n2": tiny.Node({"cpu": 4000})},
    {"q": tiny.Queue()},
    {
        **{f"low{i}": tiny.Job("q", (tiny.Pods(1, {"cpu": 1000}, node=f"n{1 + i // 4}"),)) for i in range(8)},
        "high": tiny.Job("q", (tiny.Pods(1, {"cpu": 2000}),), priority=10),
    },
    plugins=("priority", "gang", "predicates"),
    actions=("allocate", "preempt"),
    switches={"gang": {"enablePreemptable": False}},
)


def crowd() -> tuple[Problem, Rules, Plan]:
    """One of 2 CPUs starts on a node of 4 on which 4 run; on both nodes all go."""
    problem, _ = encode(read_objects(tiny.objects(CROWD)), evicting=True)
    rules = derive(problem, load_policy(tiny.policy(CROWD)))
    found = solve(problem, rules, Effort(seconds=2.0)).plan
    rows = np.arange(len(problem.victims.holder))
    everybody = replace(found, victim=rows, out=problem.victims.count, cause=np.full(len(rows), PREEMPT))
    return problem, rules, everybody


def test_only_those_go_whose_room_is_needed() -> None:
    problem, rules, plan = crowd()
    assert violations(problem, rules, plan) == []
    kept = spare(problem, rules, plan, lambda plan: not violations(problem, rules, plan))
    assert violations(problem, rules, kept) == []
    assert kept.out.sum() == 2
    assert set(problem.victims.node[kept.victim].tolist()) == set(plan.node.tolist())


def test_where_not_all_may_stay_at_once_some_do() -> None:
    problem, rules, plan = crowd()
    kept = spare(problem, rules, plan, lambda plan: len(plan.victim) >= 5)
    assert len(kept.victim) == 5


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_that_evicts_the_least_stays_as_it_is(seed: int) -> None:
    problem, _ = encode(full_snapshot(Random(seed)), evicting=True)
    rules = derive(problem, list(POLICIES.values())[seed % len(POLICIES)])
    plan = solve(problem, rules, Effort(seconds=2.0, gap=0.0)).plan
    kept = spare(problem, rules, plan, lambda plan: not violations(problem, rules, plan))
    assert kept.out.sum() == plan.out.sum()


def test_a_search_that_is_cut_short_evicts_nobody_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver is lost after its first level, with a plan in which all go."""
    _, _, plan = crowd()
    lost = Solution(plan, (LevelResult("start>=10", 1, 1, "OPTIMAL"),))
    monkeypatch.setattr(cycle, "solve_apart", lambda *given, **named: (lost, "the solver process died"))
    report = run_cycle(read_objects(tiny.objects(CROWD)), load_policy(tiny.policy(CROWD)), BUDGET)
    assert report.plan.out.sum() == 2
    assert report.as_dict()["certificate"]["status"] == "gap"

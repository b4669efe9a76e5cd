"""A cycle always answers: with the solved plan where it stands, else with greedy, and it says which and why."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from solver_sched import cycle
from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.greedy import settle
from solver_sched.model.effort import Effort, LevelResult, Solution
from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Problem
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations

POLICY = load_policy("default")
HERE = Budget(2.0, apart=False)


def pods(name: str, cpu: int, count: int, group: str | None) -> tuple[Pod, ...]:
    needs = Needs(request=(("cpu", cpu), ("pods", 1)))
    return tuple(Pod("ns", f"{name}-{i}", needs, group=group, scheduler="solver-sched") for i in range(count))


def greedy_trap() -> Snapshot:
    """One node of 4 cpu. Greedy starts the older pod of 1 cpu, after which the gang of 2 x 2 cpu does not fit.

    The gang is worth 4, the pod 1: the solver starts the gang.
    """
    old = PodGroup("ns", "old", "scheduling.volcano.sh/v1beta1", 1, created=1)
    gang = PodGroup("ns", "gang", "scheduling.volcano.sh/v1beta1", 2, created=2)
    return Snapshot(
        nodes=(Node("n", {"cpu": 4000, "pods": 110}),),
        pods=pods("gang", 2000, 2, "ns/gang") + pods("old", 1000, 1, "ns/old"),
        groups=(gang, old),
        now=3,
    )


def bound(report: CycleReport) -> list[str]:
    return sorted(one.pod for one in report.decisions if isinstance(one, Bind))


GANG, OLD = ["ns/gang-0", "ns/gang-1"], ["ns/old-0"]


def test_the_solver_sees_what_greedy_misses() -> None:
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report), report.notes, report.refused) == ("solver", GANG, (), ())
    # 4 of 4 cpu against 1 of 4
    start = next(level for level in report.levels if level.name == "start>=0")
    assert start.value == start.bound == 4 * report.greedy_levels["start>=0"]


def test_greedy_alone_leaves_its_pods_where_it_placed_them() -> None:
    """Nodes a of 4 CPUs, b of 2, packed. The older pod of 1 CPU takes b, where it fills most, so the younger of 2 CPUs
    takes a. In the other order both would be on fuller nodes, but greedy looks at one pod after the other.
    """
    old = PodGroup("ns", "old", "scheduling.volcano.sh/v1beta1", 1, created=1)
    young = PodGroup("ns", "young", "scheduling.volcano.sh/v1beta1", 1, created=2)
    nodes = tuple(Node(name, {"cpu": cpu, "pods": 110}) for name, cpu in (("a", 4000), ("b", 2000)))
    both = pods("old", 1000, 1, "ns/old") + pods("young", 2000, 1, "ns/young")
    snapshot, packing = Snapshot(nodes, both, (old, young), now=3), load_policy("packing")
    report = run_cycle(snapshot, packing, HERE, solver="greedy")
    where = {one.pod: one.node for one in report.decisions if isinstance(one, Bind)}
    assert where == {"ns/old-0": "b", "ns/young-0": "a"}
    settled = settle(report.problem, report.rules, report.plan)
    assert settled.node[settled.pod_set == int(np.flatnonzero(report.problem.job_created == 2)[0])].tolist() == [1]


def test_greedy_alone_proves_nothing() -> None:
    report = run_cycle(greedy_trap(), POLICY, HERE, solver="greedy")
    assert (report.winner, bound(report), report.notes) == ("greedy", OLD, ())
    assert report.levels == ()
    assert report.as_dict()["certificate"] == {"status": "greedy", "gap": None, "winner": "greedy"}


def objecting(times: int) -> Callable[[Problem, Rules, Plan], list[Violation]]:
    """A verifier that objects so often, and then judges."""
    left = [times]

    def judge(problem: Problem, rules: Rules, plan: Plan) -> list[Violation]:
        left[0] -= 1
        return [Violation("base", "planted")] if left[0] >= 0 else violations(problem, rules, plan)

    return judge


def test_a_plan_that_only_breaks_when_its_pods_are_moved_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "violations", objecting(1))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report), report.notes) == ("solver", GANG, ())


def test_a_refused_plan_is_never_executed_and_greedy_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "violations", objecting(2))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report)) == ("greedy", OLD)
    assert report.refused == (Violation("base", "planted"),)
    assert report.notes == ("the solved plan breaks 1 rules and was discarded: planted",)
    document = report.as_dict()
    assert document["notes"] == list(report.notes)
    # 1 of the 4 that are possible: greedy's value under the solver's bound
    assert document["certificate"] == {"status": "gap", "gap": 0.75, "level": "start>=0", "winner": "greedy"}
    assert {level["status"] for level in document["levels"]} == {"GREEDY"}


def test_without_any_plan_that_verifies_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "violations", objecting(4))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert bound(report) == []
    assert report.notes == (
        "the solved plan breaks 1 rules and was discarded: planted",
        "the greedy plan breaks 1 rules and was discarded: planted",
    )


def solving(solution: Solution | None, note: str = "") -> Callable[..., tuple[Solution | None, str]]:
    return lambda *_, **__: (solution, note)


def test_a_lost_solver_leaves_greedy_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "solve_apart", solving(None, "the solver process died"))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report), report.notes) == ("greedy", OLD, ("the solver process died",))


@pytest.mark.parametrize(("actions", "status"), [("allocate", "optimal"), ("allocate, preempt", "gap")])
def test_a_solver_lost_before_it_evicted_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, actions: str, status: str
) -> None:
    """Its last word is the best plan that evicts nobody; whether evictions would do better is not known."""
    last = Solution(EMPTY_PLAN, (LevelResult("start>=0", 0, 0, "OPTIMAL"), LevelResult("disruption", 0, 0, "OPTIMAL")))
    monkeypatch.setattr(cycle, "solve_apart", solving(last, "the solver overran 5.0 s and was stopped"))
    report = run_cycle(greedy_trap(), load_policy({"actions": actions}), HERE)
    assert report.as_dict()["certificate"]["status"] == status


def test_what_a_cut_solve_leaves_is_filled_by_hand_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # The solve found nothing of 100: the pod of 1 cpu still goes in.
    cut = Solution(EMPTY_PLAN, (LevelResult("start>=0", 0, 100, "FEASIBLE"),))
    monkeypatch.setattr(cycle, "solve_apart", solving(cut))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report)) == ("solver", OLD)
    assert report.notes == ("the budget ended early: room left was filled greedily, level values are at least these",)


def test_a_closed_solve_is_not_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Solution(EMPTY_PLAN, (LevelResult("start>=0", 0, 0, "OPTIMAL"), LevelResult("order", 0, 9, "FEASIBLE")))
    monkeypatch.setattr(cycle, "solve_apart", solving(closed))
    report = run_cycle(greedy_trap(), POLICY, HERE)
    assert (report.winner, bound(report), report.notes) == ("solver", [], ())


@pytest.mark.parametrize(
    ("values", "winner"),
    [
        ({"start>=0": 6, "order": 0}, "greedy"),
        ({"start>=0": 5, "order": 3}, "greedy"),
        ({"start>=0": 5, "order": 2}, "solver"),
        ({"start>=0": 4, "order": 9}, "solver"),
        ({}, "solver"),
    ],
)
def test_the_first_level_that_differs_decides(
    values: dict[str, int], winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = (LevelResult("start>=0", 5, 9, "FEASIBLE"), LevelResult("order", 2, 9, "FEASIBLE"))
    monkeypatch.setattr(cycle, "solve_apart", solving(Solution(EMPTY_PLAN, levels, values)))
    assert run_cycle(greedy_trap(), POLICY, HERE).winner == winner


def test_a_budget_of_nothing_still_gives_a_plan_that_verifies() -> None:
    # 40 nodes and 60 gangs are more than a tenth of a second; the plan is one all the same, and not below greedy.
    snapshot = read_objects(generate(nodes=40, gangs=60, seed=3))
    report = run_cycle(snapshot, POLICY, Budget(0.0, apart=False))
    assert violations(report.problem, report.rules, report.plan) == []
    assert report.plan.count.sum() > 0
    assert report.refused == ()


def test_nothing_pending_is_optimal_without_a_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cycle, "solve_apart")
    report = run_cycle(Snapshot(nodes=(Node("n", {"cpu": 1}),)), POLICY, HERE)
    assert report.as_dict()["certificate"] == {"status": "optimal", "gap": 0.0, "winner": "solver"}


def without_clock(report: CycleReport) -> dict[str, Any]:
    out = report.as_dict()
    del out["seconds"]
    for level in out["levels"]:
        del level["seconds"]
    return out


def test_the_same_in_this_process_and_in_the_other() -> None:
    snapshot = read_objects(generate(nodes=12, gangs=20, seed=2, queues=3))
    here = run_cycle(snapshot, POLICY, Budget(5.0, apart=False))
    there = run_cycle(snapshot, POLICY, Budget(5.0))
    assert without_clock(here) == without_clock(there) == without_clock(run_cycle(snapshot, POLICY, Budget(5.0)))


def test_every_stage_has_its_seconds_and_progress_its_levels() -> None:
    seen: list[LevelResult] = []
    report = run_cycle(greedy_trap(), POLICY, HERE, progress=seen.append)
    assert list(report.seconds) == ["encode", "greedy", "solve", "verify", "explain", "total"]
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert [level.name for level in seen] == [level.name for level in report.levels]


def test_where_time_is_over_before_room_was_looked_for_greedy_says_who_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve full nodes; the clock has run out before the solve. Gangs start all the same, none is called proven."""
    objects = generate(nodes=12, gangs=12, seed=2, occupancy=1.0, load="victims", queues=3, priorities=3)
    preempting = load_policy({"actions": "enqueue, allocate, preempt, reclaim, backfill"})
    monkeypatch.setattr(cycle, "LEAST", -1.0)
    report = run_cycle(read_objects(objects), preempting, Budget(-1.0, apart=False))
    assert "the budget ended before room was looked for: who gives way is chosen greedily" in report.notes
    assert violations(report.problem, report.rules, report.plan) == []
    assert report.plan.out.sum() > 0
    assert report.levels == ()
    assert report.as_dict()["certificate"] == {"status": "greedy", "gap": None, "winner": "greedy"}


@pytest.mark.parametrize("walled", [True, False])
def test_a_replay_has_a_budget_that_no_clock_cuts_short(monkeypatch: pytest.MonkeyPatch, walled: bool) -> None:
    """What encoding and greedy have taken comes off the solver's seconds, unless wall time is to change nothing."""
    given: list[Effort] = []

    def solve(problem: Problem, rules: Rules, effort: Effort, *_: Any, **__: Any) -> tuple[None, str]:
        given.append(effort)
        return None, ""

    monkeypatch.setattr(cycle, "solve_apart", solve)
    run_cycle(greedy_trap(), POLICY, Budget(2.0, apart=False, walled=walled))
    (effort,) = given
    assert (effort.seconds < 2.0) == walled == (effort.clock().seconds < math.inf)
    assert effort.clock().over(0.5) is False


@pytest.mark.parametrize("seed", [-1, 2**31, 10**30])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    """CP-SAT takes 31 bits; a larger one would fail the solve, and greedy would start the older pod."""
    report = run_cycle(greedy_trap(), POLICY, Budget(2.0, apart=False, seed=seed))
    assert report.winner == "solver"
    assert report.notes == ()


def test_the_slack_of_a_large_model_is_not_spent_below_what_greedy_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 20 CPUs and 20 of memory. high and other ask for 20 and 18 CPUs and have priority 10; low asks for 2
    CPUs and all memory. A gap of a tenth would let other and low (18, then 18 + 20) take the place of high (20), and
    greedy's plan would be chosen over that, whatever it brings below.
    """
    monkeypatch.setattr("solver_sched.model.search.SMALL_CLASSES", 0)
    asked = {"high": (20, 0, 10), "other": (18, 0, 10), "low": (2, 20, 0)}
    groups, members = [], []
    for at, (name, (cpu, memory, priority)) in enumerate(asked.items()):
        groups.append(PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", 1, created=1 + at, priority=priority))
        request = {"cpu": cpu, "memory": memory, "pods": 1}
        needs = Needs(request=tuple((resource, amount) for resource, amount in request.items() if amount))
        members.append(Pod("ns", f"{name}-0", needs, group=f"ns/{name}", scheduler="solver-sched"))
    snapshot = Snapshot(
        nodes=(Node("n", {"cpu": 20, "memory": 20, "pods": 9}),), pods=tuple(members), groups=tuple(groups), now=9
    )
    policy = load_policy({"solver": {"gap": 0.1}})
    report = run_cycle(snapshot, policy, HERE)
    assert report.winner == "solver"
    assert [one.pod for one in report.decisions if isinstance(one, Bind)] == ["ns/high-0"]


def test_reasons_that_are_found_when_somebody_reads_them_are_the_same() -> None:
    """The gang fits, the old pod then does not: it is told why, at once or later."""
    at_once, later = (run_cycle(greedy_trap(), POLICY, HERE, explained=explained) for explained in (True, False))
    assert list(at_once.reasons) == list(later.reasons) == ["ns/old"]
    assert at_once.reasons["ns/old"] == later.reasons["ns/old"]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_left_as_it_was(collecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off while it plans, whatever comes of it."""
    during: list[bool] = []

    def stumble(*_: object, **__: object) -> None:
        during.append(gc.isenabled())
        raise RuntimeError

    monkeypatch.setattr("solver_sched.cycle.open_cycle", stumble)
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with pytest.raises(RuntimeError):
            run_cycle(Snapshot(), POLICY)
        assert (during, gc.isenabled()) == ([False], collecting)
    finally:
        (gc.enable if before else gc.disable)()

"""Nodes for what pooled levels say, by integer program: where there are some, and where levels have to give way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Node, Pod
from solver_sched.cluster.sources import read_objects
from solver_sched.greedy import evicting_plan, greedy_plan, towards
from solver_sched.model import afar, assigned, mip
from solver_sched.model.effort import Clock, Solution, beats
from solver_sched.model.levels import BEST_EFFORT, evaluate
from solver_sched.model.reduced import Matrix
from solver_sched.model.search import Search
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.rights import Rights, rights
from solver_sched.simulate.generate import generate
from solver_sched.verify import violations
from tests.model.test_guided import EFFORT
from tests.model.test_pooled import POLICY, HandSetClock, across, stated


def full(seed: int) -> tuple[Problem, Rules, Rights]:
    """Sixteen full nodes and sixteen gangs that wait."""
    objects = generate(nodes=16, gangs=16, seed=seed, occupancy=1.0, load="victims", queues=3, priorities=3)
    problem, rules = stated(read_objects(objects), POLICY)
    return problem, rules, rights(problem, rules, greedy_plan(problem, rules))


def attempts(patch: pytest.MonkeyPatch) -> list[str]:
    """Of all plans that are asked for: A, found, or n; g with who starts given, o with that open. Without a look at
    what greedy makes of the last solution.
    """
    out: list[str] = []
    found = assigned.assigned

    def asked(cleared: Any, search: Any, asked: assigned.Asked, *limits: float) -> Plan | None:
        plan = found(cleared, search, asked, *limits)
        out.append("og"[asked.given] + ("n" if plan is None else "A"))
        return plan

    patch.setattr(afar, "assigned", asked)
    patch.setattr(afar.Afar, "_at_hand", lambda _: None)
    return out


def kept_and_worth(problem: Problem, rules: Rules, allowed: Rights, found: Solution | None) -> Solution:
    """The plan keeps the rules and is worth what is told."""
    assert found is not None
    assert violations(problem, rules, found.plan) == []
    told = {level.name: level.value for level in found.levels if level.name not in BEST_EFFORT}
    levels = evaluate(problem, rules, found.plan, EFFORT, (), allowed, None, frozenset(told))
    worth = {level.name: level.value for level in levels}
    assert {name: worth[name] for name in told} == told
    assert all(level.bound is not None and level.value <= level.bound for level in found.levels)
    return found


@pytest.mark.parametrize(
    ("seed", "tries"),
    [
        (0, ["gA"]),
        (2, ["gA", "gA"]),
        (5, ["gn", "gA", *["gA", "oA"] * 4]),
        (8, ["gA", "gn", "oA", "gn", "oA"]),
        (10, ["gn", "gn", "oA", "oA", "oA", "oA"]),
    ],
)
def test_levels_give_way_from_the_lowest_where_nodes_do_not_have_enough(
    seed: int, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts is given at first, with the values that levels inside shares have left, then with those that the last
    start there has left; then it is open. After that each level that is not all it could be is looked at once more,
    with who starts given, and then open.
    """
    problem, rules, allowed = full(seed)
    tried = attempts(monkeypatch)
    found = afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best()
    found = kept_and_worth(problem, rules, allowed, found)
    assert tried == tries
    evicting = evicting_plan(problem, rules, greedy_plan(problem, rules))
    reached = {level.name: level.value for level in evaluate(problem, rules, evicting, EFFORT, (), allowed)}
    assert not beats(reached, found.levels)


def test_a_node_that_holds_too_much_has_room_once_enough_goes() -> None:
    """9 of n's 8 GPUs are taken, by a (5) and b (4). Without a 4 are free, for c: no bound may say that c cannot start.
    m is full of h, which nobody may evict.
    """
    problem, rules = stated(*across(("h", 20, 8, "m"), ("a", 0, 5, "n"), ("b", 0, 4, "n"), ("c", 10, 4, "")))
    allowed = rights(problem, rules, greedy_plan(problem, rules))
    plan = evicting_plan(problem, rules, greedy_plan(problem, rules))
    assert violations(problem, rules, plan) == []
    levels = evaluate(problem, rules, plan, EFFORT, (), allowed)
    start = next(level for level in levels if level.name == "start>=10")
    assert start.value > 0
    seen = afar.Afar(problem, rules, allowed, EFFORT, Clock(60.0), None, towards)
    kept_and_worth(problem, rules, allowed, seen.best())
    objective = seen.search.objective(start.name)
    assert objective is not None
    assert seen.search.reduced is not None
    widest = seen.search.reduced.widest()
    most = assigned.most_on_nodes(seen.cleared, seen.search, objective, {}, widest, 10.0)
    assert most == start.value


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_has_more_than_nodes_are_said_to_hold(seed: int) -> None:
    """Neither the plan that is found nor greedy's, in any level, whatever those above have."""
    problem, rules, allowed = full(seed)
    seen = afar.Afar(problem, rules, allowed, EFFORT, Clock(60.0), None, towards)
    found = kept_and_worth(problem, rules, allowed, seen.best())
    evicting = evicting_plan(problem, rules, greedy_plan(problem, rules))
    reached = {level.name: level.value for level in evaluate(problem, rules, evicting, EFFORT, (), allowed)}
    assert seen.search.reduced is not None
    widest = seen.search.reduced.widest()
    for level in found.levels[::5]:
        objective = seen.search.objective(level.name)
        if objective is not None and level.name not in BEST_EFFORT:
            most = assigned.most_on_nodes(seen.cleared, seen.search, objective, {}, widest, 10.0)
            assert most is None or most >= max(level.value, reached.get(level.name, level.value))


@pytest.mark.parametrize("seed", [5, 8, 14])
def test_what_pooled_room_leaves_open_is_closed_on_nodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the best there is, which is not known of pooled nodes, where there is room for better ones."""
    problem, rules, allowed = full(seed)

    def unproven() -> set[str]:
        found = afar.Afar(problem, rules, allowed, EFFORT, Clock(60.0), None, towards).best()
        found = kept_and_worth(problem, rules, allowed, found)
        return {level.name for level in found.levels if level.gap > 0 and level.name not in BEST_EFFORT}

    assert not unproven()
    monkeypatch.setattr(afar, "most_on_nodes", lambda *_: None)
    assert len(unproven()) > 3


@pytest.mark.parametrize(
    ("seed", "path"), [(2, "as many"), (6, "as many"), (23, "as many"), (0, "others"), (3, "some"), (14, "some")]
)
def test_without_an_answer_nodes_are_found_by_hand(seed: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in time that is too short for HiGHS: as many go as should, others go too, or only some jobs start."""
    monkeypatch.setattr(mip.Part, "best", lambda *_: mip.Answer(None, None))
    monkeypatch.setattr(afar.Afar, "_at_hand", lambda _: None)
    problem, rules, allowed = full(seed)
    paths: list[str] = []
    as_aimed = afar.Afar._as_aimed

    def asked(*given: Any) -> bool:
        paths.append("as many" if as_aimed(*given) else "others")
        return paths[-1] == "as many"

    monkeypatch.setattr(afar.Afar, "_as_aimed", asked)
    kept_and_worth(problem, rules, allowed, afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best())
    assert (paths or ["some"]) == [path]


def test_where_greedy_finds_nodes_for_the_last_solution_nothing_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, rules, allowed = full(6)
    at_hand = afar.Afar._at_hand
    tried = attempts(monkeypatch)
    monkeypatch.setattr(afar.Afar, "_at_hand", at_hand)
    kept_and_worth(problem, rules, allowed, afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best())
    assert tried == []


@pytest.mark.parametrize("beside", [False, True])
def test_the_pool_has_room_that_no_node_has(beside: bool) -> None:
    """Nodes n and m of 8 GPUs, on each a pod of 2 GPUs and priority 1 (a, b) and three of 2 GPUs and priority 3; a pod
    of 4 GPUs and priority 10 waits. In the pool a and b are enough: 2 + 2 GPUs. On a node one of them goes and one of
    priority 3 beside it: of the kept value what priority 3 counts is lost once, and nothing else is possible. A node
    `beside` them that has less than nothing, as it lost its GPU under a pod of others, changes nothing.
    """
    cheap = [("a", 1, 2, "n"), ("b", 1, 2, "m")]
    dear = [(f"d{i}", 3, 2, "nnnmmm"[i]) for i in range(6)]
    snapshot, policy = across(*cheap, *dear, ("c", 10, 4, ""))
    if beside:
        needs = Needs(request=(("nvidia.com/gpu", 1), ("pods", 1)))
        theirs = Pod("ns", "theirs", needs, node="x", phase="Running", scheduler="default-scheduler")
        node = Node("x", {"cpu": 1000, "nvidia.com/gpu": 0, "pods": 110})
        snapshot = replace(snapshot, nodes=(*snapshot.nodes, node), pods=(*snapshot.pods, theirs))
    problem, rules = stated(snapshot, policy)
    assert (problem.node_free < 0).any() == beside
    allowed = rights(problem, rules, greedy_plan(problem, rules))
    found = afar.Afar(problem, rules, allowed, EFFORT, Clock(), None, towards).best()
    found = kept_and_worth(problem, rules, allowed, found)
    v = problem.victims
    gone = found.plan.victim[found.plan.out > 0]
    assert sorted(v.priority[v.holder[gone]].tolist()) == [1, 3]
    assert len(set(v.node[gone].tolist()) | set(found.plan.node.tolist())) == 1
    open_levels = [level.name for level in found.levels if level.gap and level.name not in BEST_EFFORT]
    assert open_levels[0] == "keep>=3"


def cut_off(
    search: Search, maximise: Any, clock: HandSetClock, passed: float, name: str, *given: Any, **also: Any
) -> Any:
    """From the first level that says who is kept at all, the levels have no time, and so much of the whole is over."""
    if name.startswith("keep"):
        search.clock, clock.passed = Clock(0.0), passed
    return maximise(name, *given, **also)


def test_where_time_is_short_what_the_levels_were_cut_off_from_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With most of the time left the sum of what is kept is an aim of its own; with a fifth of it only the levels."""
    problem, rules, allowed = full(0)
    aims: list[bool] = []
    found = assigned.assigned

    def asked(cleared: Any, search: Any, asked: assigned.Asked, *limits: float) -> Plan | None:
        aims.append(asked.wanted is not None)
        return found(cleared, search, asked, *limits)

    monkeypatch.setattr(afar, "assigned", asked)
    for passed, aim in ((50.0, True), (75.0, False)):
        clock = HandSetClock(100.0)
        one = afar.Afar(problem, rules, allowed, EFFORT, clock, None, towards)
        seen = one.search.maximise

        monkeypatch.setattr(one.search, "maximise", partial(cut_off, one.search, seen, clock, passed))
        aims.clear()
        kept_and_worth(problem, rules, allowed, one.best())
        assert aims[0] == aim


def test_rows_that_cannot_be_broken_are_left_out() -> None:
    """x is 2; y and z are 0..3. x + y <= 5 always holds, x + y + z <= 6 leaves y + z <= 4, and 2 y >= 1 stays."""
    domain = np.array([(2, 2), (0, 3), (0, 3)])
    rows = [
        mip.Row(np.array([0, 1]), np.array([1, 1]), -mip.INFINITE, 5),
        mip.Row(np.array([2, 0, 1]), np.array([1, 1, 1]), -mip.INFINITE, 6),
        mip.Row(np.array([1]), np.array([2]), 1, mip.INFINITE),
    ]
    first, second = Matrix.of(rows).open(domain, {}) or []
    assert (first.indices.tolist(), first.coefficients.tolist(), first.high) == ([1, 2], [1, 1], 4)
    assert (second.indices.tolist(), second.coefficients.tolist(), second.low) == ([1], [2], 1)


def test_a_row_that_is_broken_in_any_case_needs_slack() -> None:
    """x is 2, and 3 x >= 7: with slack s it is s >= 1."""
    domain = np.array([(2, 2), (0, 10)])
    row = mip.Row(np.array([0]), np.array([3]), 7, mip.INFINITE)
    assert Matrix.of([row]).open(domain, {}) is None
    (left,) = Matrix.of([row]).open(domain, {0: 1}) or []
    assert (left.indices.tolist(), left.coefficients.tolist(), left.low) == ([1], [1], 1)


def test_sums_beyond_64_bits_are_refused() -> None:
    row = mip.Row(np.array([0]), np.array([2**40]), 1, mip.INFINITE)
    assert Matrix.of([row]).open(np.array([(0, 2**30)]), {}) is None

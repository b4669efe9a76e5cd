"""The best plan in the time: without evictions, then with them, from afar and near, then with moves.

Which levels decide, and in which order: `model/levels.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from solver_sched.model.afar import Afar
from solver_sched.model.effort import (
    Clock,
    Effort,
    Fill,
    LevelResult,
    OutOfTimeError,
    Progress,
    Solution,
    Stand,
    beats,
)
from solver_sched.model.evictions import opened
from solver_sched.model.floor import Apart, Joint
from solver_sched.model.guided import Guided
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import BEST_EFFORT, evaluate, evicting_levels, run_levels
from solver_sched.model.search import CLOSE_ENOUGH, Search, plan_of, small
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.rights import Rights, movable, rights, wait_for_moves

NEAR = 0.5
"""Part of the time that must be left to look at single nodes as well, after pooled ones."""
IN_SUM, PAIRS = 0.4, 6_000
"""Part of the time for sums over equal nodes where single nodes may follow; pairs of a node and a shape up to which
they do.
"""
LARGE = 4_000
"""Victim sets, and pairs of a node class and a shape, from which the relaxation guides an eviction model."""
COMPARED = 0.3
"""Seconds that the comparison with greedy may take beyond the time."""
TOLD = 0.1
"""Most part of the time for telling incumbents to the caller, in case this process is killed."""
FIRST = 0.4
"""Part of the time for the levels without evictions, where others may follow."""
SMALL = 20_000
"""Jobs x levels up to which another plan is evaluated at every level."""


def solve(
    problem: Problem,
    rules: Rules,
    effort: Effort,
    progress: Progress | None = None,
    greedy: Plan | None = None,
    improved: Callable[[Solution], None] | None = None,
    fill: Fill | None = None,
    evicting: Plan | None = None,
    stand: Stand | None = None,
) -> Solution:
    """The best plan found for the levels up to O9, with value, bound and status of each.

    `greedy`, a plan that evicts nobody, is where a level starts from whose value it alone tells; `improved` gets the
    incumbent after a level, as often as that costs little (a caller that may have to kill this process keeps the last);
    `fill` adds to a plan what still fits. `evicting`: the greedy plan in which others give way; `stand` finds nodes for
    a plan that has none.

    The greedy plan without evictions is compared in the levels of section 6 as long as nobody is evicted here. Where
    section 8 has a say, the one with evictions is compared in its levels, with the best plan that these have.
    """
    clock = effort.clock()
    follows = rules.policy.evicts and len(problem.victims.holder) > 0
    first = replace(effort, seconds=FIRST * effort.seconds) if follows else effort
    ledger = Ledger(problem, rules)
    single = not ledger.owned and _few_pairs(problem)
    first_clock = (replace(first, seconds=IN_SUM * first.seconds) if single else first).clock()
    floor = Joint(ledger, clock=first_clock) if small(ledger) else Apart(ledger, first_clock)
    search = Search(ledger, floor, first, progress, first_clock)
    if greedy is not None and not ledger.owned:
        search.baseline = greedy
    search.fill = fill
    if improved is not None:
        search.after_level = sparingly(lambda: improved(Solution(plan_of(search), tuple(search.results))))
    run_levels(search)
    plan, levels, spent, best = plan_of(search), search.outcome(), search.spent, None
    if single and any(level.gap > CLOSE_ENOUGH for level in levels if level.name not in BEST_EFFORT):
        left = Clock((1 - IN_SUM) * first.seconds + first_clock.left)
        further, more = _on_single_nodes(search, _rest(first, spent), left)
        plan, levels, spent = further.plan, further.levels, spent + more
    allowed, cut = rights(problem, rules, plan), False
    other = greedy if evicting is None else evicting
    if (allowed.claimants & (plan.of_jobs(problem) == 0)).any():
        freeing, more = _freeing(problem, rules, allowed, _rest(effort, spent), clock, progress, improved, stand)
        spent += more
        cut = freeing is None
        if freeing is not None and other is not None and (len(freeing.plan.victim) or len(other.victim)):
            values = _values(problem, rules, other, effort, clock, freeing.levels, allowed)
            freeing = replace(freeing, greedy=values, evicting=True)
        if freeing is not None and (len(freeing.plan.victim) or beats(freeing.greedy, freeing.levels)):
            best = freeing
        elif freeing is not None:
            levels = _at_least_as_open(levels, freeing.levels)
    if best is None:
        given = {} if greedy is None else _values(problem, rules, greedy, effort, clock, levels)
        most = {result.name: span for result, span in zip(search.results, search.spans, strict=True)}
        ever = tuple(_bounded_by_all(level, most[level.name]) for level in levels if level.name in most)
        best = Solution(plan, levels, given, cut=cut, ever=ever if cut else ())
    moving = replace(allowed, moves=movable(problem, rules))
    waiting = wait_for_moves(problem, rules, allowed, best.plan)
    if moving.moves.any() and waiting.any() and not beats(best.greedy, best.levels):
        if improved is not None:
            improved(best)
        found, _ = _freeing(problem, rules, moving, _rest(effort, spent), clock, progress, None)
        if found is not None and len(found.plan.moved) and _starts_more(found.levels, best.levels):
            values = _values(problem, rules, other, effort, clock, found.levels, moving) if other is not None else {}
            return replace(found, greedy=values, evicting=True)
    return best


def _few_pairs(problem: Problem) -> bool:
    """Whether there are equal nodes, and few enough pairs of a node and a shape to tell them apart."""
    nodes = int(problem.class_size.sum())
    return nodes > len(problem.class_size) and nodes * len(problem.request) <= PAIRS


def _on_single_nodes(search: Search, effort: Effort, clock: Clock) -> tuple[Solution, float]:
    """The better of a finished search and one that goes on from its plan with every node a class of its own; and the
    effort. Where many shapes share few nodes, hardly a sum over equal nodes packs.
    """
    problem, plan, levels = search.ledger.problem, plan_of(search), search.outcome()
    inside = np.flatnonzero(problem.node_class >= 0)
    of, row = problem.node_class[inside], problem.node_class.copy()
    row[inside] = np.arange(len(inside))
    one = np.ones(len(inside), np.int64)
    kind, free = problem.class_kind[of], problem.class_free[of]
    single = replace(problem, node_class=row, class_size=one, class_kind=kind, class_free=free)
    ledger = Ledger(single, search.ledger.rules)
    onward = Search(ledger, Joint(ledger, clock=clock), effort, None, clock)
    onward.baseline, onward.fill = plan, search.fill
    run_levels(onward)
    reached = onward.outcome()
    if beats({level.name: level.value for level in levels}, reached):
        return Solution(plan, levels), onward.spent
    return Solution(plan_of(onward), tuple(_bounded_by_both(reached, levels))), onward.spent


def _bounded_by_both(levels: Sequence[LevelResult], others: Sequence[LevelResult]) -> Iterator[LevelResult]:
    """Levels of one cluster from two searches, as far as both keep the same values above: either bound holds."""
    bounds, same = {level.name: level for level in others}, True
    for level in levels:
        other = bounds.get(level.name)
        same &= other is not None
        if (
            same
            and other is not None
            and other.bound is not None
            and (level.bound is None or other.bound < level.bound)
        ):
            status = "OPTIMAL" if level.value == other.bound else level.status
            yield replace(level, bound=other.bound, status=status)
        else:
            yield level
        same &= other is not None and other.value == level.value


def _rest(effort: Effort, spent: float) -> Effort:
    return replace(effort, seconds=max(0.1, effort.seconds - spent))


def _starts_more(levels: Sequence[LevelResult], others: Sequence[LevelResult]) -> bool:
    """Whether the first start level that differs is higher: only then anybody moves (formulation.md 11)."""
    values = {level.name: level.value for level in levels}
    return beats(values, [level for level in others if "start>=" in level.name])


def _freeing(
    problem: Problem,
    rules: Rules,
    allowed: Rights,
    effort: Effort,
    clock: Clock,
    progress: Progress | None,
    improved: Callable[[Solution], None] | None,
    stand: Stand | None = None,
) -> tuple[Solution | None, float]:
    """The best plan when running work may have to make room or to move (formulation.md 8, 11), None where there was no
    time to look for one; and the effort.
    """
    wide, usable, whole = opened(problem, rules, allowed)
    shapes = np.union1d(problem.set_shape, problem.victims.shape[allowed.moves])
    large = len(wide.class_size) * len(shapes) + len(problem.victims.holder) > LARGE
    afar, spent = None, 0.0
    # what is tied to single nodes cannot be seen from afar
    tied = len(rules.domain_rules) > 0 or len(problem.victims.blocks) > 0 or bool(allowed.moves.any())
    if large and stand is not None and not tied:
        with suppress(OutOfTimeError):
            pooled = Afar(problem, rules, allowed, effort, clock, progress, stand)
            afar, spent = pooled.best(), pooled.search.spent
        if afar is not None and improved is not None:
            improved(afar)
        if clock.over(NEAR) or (afar is not None and all(level.gap <= effort.gap for level in afar.levels)):
            return afar, spent
        effort = _rest(effort, spent)
    try:
        ledger = Ledger(wide, rules, allowed, usable, clock)
        # with moves it is rows on single nodes that bound a level, and pairs that are left out have none
        floor = Joint(ledger, effort.seed if large and not allowed.moves.any() else None)
    except OutOfTimeError:
        return afar, spent
    search = Search(ledger, floor, effort, None if afar is not None else progress, Clock(clock.left))
    if large:
        search.guided = Guided(ledger, floor, effort.seed)
    if improved is not None and afar is None:
        search.after_level = sparingly(lambda: _tell_evictions(search, improved))
    for _ in evicting_levels(search):
        pass
    levels = search.outcome()
    if not whole:
        levels = tuple(map(_bounded_by_all, levels, search.spans))
    spent += search.spent
    if search.incumbent is None:
        return afar, spent
    near = Solution(plan_of(search), levels)
    if afar is not None and not beats({level.name: level.value for level in near.levels}, afar.levels):
        return afar, spent
    return near, spent


def sparingly(tell: Callable[[], None]) -> Callable[[], None]:
    """Tell now or, where that would take more than TOLD of the time, not."""
    due = 0.0

    def told() -> None:
        nonlocal due
        began = time.monotonic()
        if began >= due:
            tell()
            ended = time.monotonic()
            due = ended + (ended - began) / TOLD

    return told


def _tell_evictions(search: Search, improved: Callable[[Solution], None]) -> None:
    """A plan that evicts nobody is told by the levels without evictions, which count growth too."""
    if search.incumbent is not None and len((plan := plan_of(search)).victim):
        improved(Solution(plan, search.outcome()))


def _bounded_by_all(level: LevelResult, most: int) -> LevelResult:
    """A level of a part of the cluster: only the most that it could ever reach is a bound for the whole."""
    bound = level.value if level.value == most else most
    status = level.status.replace("OPTIMAL", "FEASIBLE") if bound != level.value else level.status
    return replace(level, bound=bound, status=status)


def _at_least_as_open(levels: Sequence[LevelResult], freeing: Sequence[LevelResult]) -> tuple[LevelResult, ...]:
    """Levels without evictions, where evictions were looked for and none was found: unless it is proven that nobody
    goes, what these might reach is open. Growth comes there after it is known who goes, and has no say.
    """
    deciding = [level for level in freeing if "grow" not in level.name and level.name not in BEST_EFFORT]
    if all(level.bound == level.value for level in deciding):
        return tuple(levels)
    bounds = {level.name: level.bound for level in deciding if "start" in level.name}
    out = []
    for level in levels:
        bound = bounds.get(level.name)
        if bound is not None and level.bound is not None and bound > level.bound:
            level = replace(level, bound=bound, status=level.status.replace("OPTIMAL", "FEASIBLE"))
        out.append(level)
    return tuple(out)


def _values(
    problem: Problem,
    rules: Rules,
    plan: Plan,
    effort: Effort,
    clock: Clock,
    levels: Sequence[LevelResult],
    allowed: Rights | None = None,
) -> dict[str, int]:
    """What another plan reaches at these levels: all of them in a small model, else, and where time is short, up to the
    first that differs. It has its time even when that is over: what is not compared could be below greedy.
    """
    until = () if len(problem.job_min) * len(levels) <= SMALL and not clock.over(FIRST) else levels
    clock = Clock(max(clock.left, COMPARED))
    found = {level.name: level.value for level in evaluate(problem, rules, plan, effort, until, allowed, clock)}
    if beats(found, levels) and len(found) < len(levels) and not clock.over():
        found = {level.name: level.value for level in evaluate(problem, rules, plan, effort, (), allowed, clock)}
    return found

"""The levels of formulation.md 6, 8, 11 (O1 O2 O3 O5 O6 O9 O12 O13 O14 O15 O16) in their order.

How one level is solved: `model/search.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver_sched.model.cleared import Cleared
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
from solver_sched.model.linear import Terms, summed
from solver_sched.model.pooled import pooled
from solver_sched.model.reduced import Reduced
from solver_sched.model.search import CLOSE_ENOUGH, Search, plan_of, small
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RECLAIM, Floats, Ints, Plan, Problem, Require, SpreadRule
from solver_sched.rights import Rights, movable, rights, wait_for_moves

LEXIMIN_DEPTH = 2
"""Deficits are minimised largest first to this depth, then in sum: exact leximin for up to three queues."""
AFAR, NEAR, LEAST_LEFT = 0.5, 0.5, 0.1
"""Parts of the time: for levels on pooled nodes; what must be left to look at single ones as well, and to find places
for what was seen from afar.
"""
STEER = 0.15
"""Deterministic seconds for the least harm in sum, where the clock has cut off the levels that look for it in turn."""
COMPARABLE = 0.25
"""Part of the time that is left for one more plan on real nodes to be compared with the best so far."""
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
BEST_EFFORT = ("balance", "promised", "order")
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
        best = Solution(plan, levels, given, cut=cut)
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
        afar, spent = _from_afar(problem, rules, allowed, effort, clock, progress, stand)
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
    for _ in _evicting_levels(search):
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


def _from_afar(
    problem: Problem,
    rules: Rules,
    allowed: Rights,
    effort: Effort,
    clock: Clock,
    progress: Progress | None,
    stand: Stand,
) -> tuple[Solution | None, float]:
    """The levels solved on pooled nodes, and a plan on real ones that comes near to that. The values are the plan's,
    the bounds those of the pooled levels.
    """
    of = pooled(problem, rules, allowed)
    whole = np.ones(len(of.problem.node_free), bool)
    try:
        ledger = Ledger(of.problem, of.rules, of.rights, whole, clock)
        floor = Joint(ledger)
        cleared = Cleared(ledger, floor, problem, rules, of)
    except OutOfTimeError:
        return None, 0.0
    search = Search(ledger, floor, replace(effort, seconds=AFAR * effort.seconds), progress, Clock(AFAR * clock.left))
    search.reduced, search.mostly_known = Reduced(ledger.model), True
    evictions = ledger.evictions
    assert evictions is not None
    last, halfway = _last_start(ledger), None
    for level in _evicting_levels(search):
        if level.name == last and search.incumbent is not None:
            halfway = _on_nodes(problem, rules, stand, _aim(search, cleared))
    cut, late, search.clock = search.clock.over(), clock.over(LEAST_LEFT), clock
    if search.incumbent is None or (late and halfway is None):
        return None, search.spent
    standing = [] if halfway is None else [halfway]
    if not late:
        if cut:
            search.steer(summed(evictions.keep_value(rank) for rank in evictions.ranks()), STEER)
        standing += _with_a_reserve(problem, rules, stand, halfway, _aim(search, cleared))
    if len(standing) > 1 and standing[0].whole and standing[1].whole:
        del standing[0]  # of those who go there some stay in the second, and as many jobs start
    best = _stood(search, cleared, standing, problem, rules, allowed, effort, clock, stand)
    if best is None:
        return None, search.spent
    plan, levels = best
    bounds = search.rebound({level.name: level.value for level in levels})
    out: list[LevelResult] = []
    for level in levels:
        # all deficits together are no less than the largest: the one level that may not have been worth solving
        above = out[-1].bound if out and level.unit else level.value
        bound = max(level.value, bounds.get(level.name, 0 if above is None else above))
        out.append(replace(level, bound=bound, status="OPTIMAL" if bound == level.value else "FEASIBLE"))
    return Solution(plan, tuple(out)), search.spent


def _last_start(ledger: Ledger) -> str:
    """The last level that says who starts, of those inside shares if there are such. Below it levels spare what runs,
    ever more, and what is spared leaves no room to find nodes in.
    """
    names, ranks = ledger.rules.rank_names, _ranks(ledger)
    return f"{'in-share.' * ledger.owned}start>={names[ranks[-1]]}" if ranks else ""


class _Aim(NamedTuple):
    """What a solution on pooled nodes starts: jobs (rows) in the order in which levels count them, the size of a pod of
    each; `gone` (.., 3): set, pods and cause of who goes for them.
    """

    jobs: Ints
    size: Floats
    gone: Ints

    @property
    def largest_first(self) -> Ints:
        """The jobs in another order: pods that take much of a node fit the fewest."""
        return self.jobs[np.argsort(-self.size, kind="stable")]


class _Standing(NamedTuple):
    """A plan on real nodes, what it comes from, and whether it starts all of that."""

    plan: Plan
    aim: _Aim
    whole: bool


def _on_nodes(problem: Problem, rules: Rules, stand: Stand, aim: _Aim, going: Ints | None = None) -> _Standing:
    """All go who should, and the largest pods find nodes first. Where that does not suffice others go: of `going` (H,)
    pods of each holder before any more.
    """
    going = _of_holders(problem, aim.gone) if going is None else going
    plan = stand(problem, rules, aim.largest_first, going, aim.gone)
    return _Standing(plan, aim, bool((plan.of_jobs(problem)[aim.jobs] > 0).all()))


def _with_a_reserve(
    problem: Problem, rules: Rules, stand: Stand, halfway: _Standing | None, aim: _Aim
) -> Iterator[_Standing]:
    """What was found halfway, but at first only those go who do at the end, too; and what is aimed at in the end. In
    both those who went halfway go as they are needed.
    """
    if halfway is None:
        yield _on_nodes(problem, rules, stand, aim)
        return
    reserve = _of_holders(problem, halfway.aim.gone)
    still = {(s, cause): pods for s, pods, cause in aim.gone.tolist()}
    both = [(s, min(pods, still.get((s, cause), 0)), cause) for s, pods, cause in halfway.aim.gone.tolist()]
    fewer = np.array([row for row in both if row[1]], np.int64).reshape(-1, 3)
    if halfway.whole:
        yield _on_nodes(problem, rules, stand, halfway.aim._replace(gone=fewer), reserve)
    yield _on_nodes(problem, rules, stand, aim, np.maximum(reserve, _of_holders(problem, aim.gone)))


def _of_holders(problem: Problem, gone: Ints) -> Ints:
    """(H,) pods of each holder."""
    out = np.zeros(len(problem.victims.queue), np.int64)
    np.add.at(out, problem.victims.holder[gone[:, 0]], gone[:, 1])
    return out


def _stood(
    search: Search,
    cleared: Cleared,
    standing: Sequence[_Standing],
    problem: Problem,
    rules: Rules,
    allowed: Rights,
    effort: Effort,
    clock: Clock,
    stand: Stand,
) -> tuple[Plan, tuple[LevelResult, ...]] | None:
    """The best of these plans, with its levels. Where none starts all that it should, of some more that come near to
    the incumbent: others go as jobs find nodes, in the order in which levels count them, or the largest pods first.
    None: somebody goes for nobody in each of them, or there is no time to tell.
    """
    plans = [one.plan for one in standing]
    # where the pooled levels took all of their time there is enough for no more
    if not any(one.whole for one in standing) and not clock.over(1 - AFAR):
        aim = _aim(search, cleared)
        going, nobody = _of_holders(problem, aim.gone), aim.gone[:0]
        plans += [stand(problem, rules, order, going, nobody) for order in (aim.jobs, aim.largest_first)]
        # most likely better is the one that starts the first job, in the order of levels, that only one of them starts
        plans.sort(key=lambda plan: (plan.of_jobs(problem)[aim.jobs] > 0).tolist(), reverse=True)
    asked = frozenset(level.name for level in search.results)
    best: tuple[Plan, tuple[LevelResult, ...]] | None = None
    for plan in plans:
        if best is not None and clock.over(COMPARABLE):
            break
        levels = evaluate(problem, rules, plan, effort, (), allowed, clock, asked)
        if levels and (best is None or beats({level.name: level.value for level in levels}, best[1])):
            best = plan, levels
    return best


def _aim(search: Search, cleared: Cleared) -> _Aim:
    """Of the incumbent."""
    ledger = search.ledger
    problem, rules, plan = ledger.problem, ledger.rules, plan_of(search)
    own = np.zeros(len(rules.need), bool)
    for cls, terms in zip(ledger.classes, ledger.terms, strict=True):
        own[cls.jobs[: search.value(terms.own.started)]] = True
    largest = np.maximum(problem.class_free.max(axis=0, initial=0), 1)
    size = np.zeros(len(rules.need))
    np.maximum.at(size, problem.set_job, (problem.request / largest).max(axis=1)[problem.set_shape])
    jobs = np.flatnonzero((plan.of_jobs(problem) > 0) & (rules.need > 0))
    first = rules.rank[jobs] < rules.first_claims
    order = jobs[np.lexsort((jobs, -size[jobs], rules.rank[jobs], ~own[jobs], ~first))]
    return _Aim(order, size[order], np.array(cleared.going(search.value), np.int64).reshape(-1, 3))


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


def evaluate(
    problem: Problem,
    rules: Rules,
    plan: Plan,
    effort: Effort,
    until: Sequence[LevelResult] = (),
    allowed: Rights | None = None,
    clock: Clock | None = None,
    asked: frozenset[str] = frozenset(),
) -> tuple[LevelResult, ...]:
    """The levels' values of a given plan that keeps the rules: its admissions fixed, the best reading of `own`.

    `until`: stop after the first level whose value differs from that of the same name here. `allowed`: the levels are
    those of a cycle that evicts. `clock`: no further level is begun when it is over. `asked`: names of deficit levels
    that are given even where what they add is below one unit.
    """
    clock = Clock() if clock is None else clock
    if allowed is not None:
        of = pooled(problem, rules, allowed)
        problem, rules, allowed, plan = of.problem, of.rules, of.rights, of.plan(plan)
    ledger = Ledger(problem, rules, allowed, np.ones(len(problem.node_free), bool))
    if ledger.evictions is not None:
        ledger.evictions.hold(plan)
    placed = plan.placed(problem)
    for cls, terms in zip(ledger.classes, ledger.terms, strict=True):
        counts = placed[cls.sets]
        if cls.need:
            ledger.model.add(terms.whole.started.linear() == int((counts.sum(axis=1) > 0).sum()))
        if not (cls.need and cls.rigid):
            for i in range(len(cls.shape)):
                held = terms.whole.minimum[i].linear() + terms.whole.growth[i].linear()
                ledger.model.add(held == int(counts[:, i].sum()))
    search = Search(ledger, None, effort, None, clock)
    search.asked = asked
    search.settled = _settled
    search.mostly_known = True
    wanted = {level.name: level.value for level in until}
    for result in _levels(search) if allowed is None else _evicting_levels(search):
        if result.status.startswith("UNKNOWN"):
            return tuple(search.results[:-1])
        if clock.over():
            break
        if result.name in wanted and wanted[result.name] != result.value:
            break
    return tuple(search.results)


def _settled(name: str) -> bool:
    """Levels whose value follows from who starts and who goes; what counts as own and which pods as growth does not."""
    what = name.partition(">")[0]
    return what in ("in-share.spare", "keep", "start", *BEST_EFFORT) or what.startswith("disruption")


def run_levels(search: Search) -> None:
    """Every level of the skeleton, in order."""
    for _ in _levels(search):
        pass


def _ranks(ledger: Ledger) -> list[int]:
    return sorted({cls.rank for cls in ledger.classes})


def _levels(search: Search) -> Iterator[LevelResult]:
    ledger = search.ledger
    ranks, names = _ranks(ledger), ledger.rules.rank_names
    last = ranks[-1] if ranks else -1
    steered = search.floor is None or not _enabling(ledger.rules)
    # of a given plan only what counts as own is free
    least = last if search.floor is None else -1
    search.levels_left = max(1, len(ranks) * (4 if ledger.owned else 1))
    first = [d for d in ranks if ledger.owned and d < ledger.rules.first_claims]
    for d in first:
        if steered:
            ledger.open(-1, max(d, least))
        yield search.maximise(f"start>={names[d]}", ledger.start_value(d, own=False), rank=d)
    for d in ranks if ledger.owned else ():
        if steered:
            ledger.open(d, max([least, *first]))
        if any(rank <= d for _, _, rank in ledger.kept):
            yield search.maximise(f"in-share.keep>={names[d]}", ledger.keep_value(d))
        yield from _deficits(search, d, names[d])
        yield search.maximise(f"in-share.start>={names[d]}", ledger.start_value(d, own=True))
        worth = ledger.growth_worth(d, own=True)
        if worth.variables:
            yield search.maximise(f"in-share.grow>={names[d]}", worth)
    for d in ranks:
        if steered:
            ledger.open(last, max([d, least, *first]))
        if d not in first:
            yield search.maximise(f"start>={names[d]}", ledger.start_value(d, own=False), rank=d)
        worth = ledger.growth_worth(d, own=False)
        if worth.variables:
            yield search.maximise(f"grow>={names[d]}", worth, rank=d)
    yield search.maximise("disruption", Terms())
    yield from _preferences(search)


def _enabling(rules: Rules) -> bool:
    """Whether affinity or spread may let a pod stand because another does: then what a level does not count may serve
    it.
    """
    return any(isinstance(rule, Require | SpreadRule) for rule in rules.domain_rules)


def _evicting_levels(search: Search) -> Iterator[LevelResult]:
    """The skeleton of formulation.md 8 and 11: whoever starts first, then the least harm, growth last.

    No job is kept out of a level that does not count it: its claim may make the room that another starts on (C18).
    """
    ledger, evictions = search.ledger, search.ledger.evictions
    assert evictions is not None
    starting, names = _ranks(ledger), ledger.rules.rank_names
    keeping = evictions.ranks()
    ranks = sorted({*starting, *keeping})
    search.levels_left = max(1, len(ranks) * (3 if ledger.owned else 2) + len(starting))
    # of a given plan the growth is given; where a start may lean on growth, it has to be there first
    closed = search.floor is not None and not _enabling(ledger.rules)
    if closed:
        ledger.close_growth()

    def solve(name: str, objective: Terms) -> Iterator[LevelResult]:
        if search.guided is None:
            yield search.maximise(name, objective)
        else:
            search.promise(name, objective)

    first = [d for d in starting if ledger.owned and d < ledger.rules.first_claims]
    for d in first:
        yield search.maximise(f"start>={names[d]}", ledger.start_value(d, own=False))
    for d in ranks if ledger.owned else ():
        if any(rank <= d for _, _, rank in ledger.kept):
            yield search.maximise(f"in-share.keep>={names[d]}", ledger.keep_value(d))
        if d in starting:
            yield from _deficits(search, d, names[d])
            yield search.maximise(f"in-share.start>={names[d]}", ledger.start_value(d, own=True))
    for d in evictions.ranks(RECLAIM):
        yield from solve(f"in-share.spare>={names[d]}", evictions.keep_value(d, RECLAIM))
    for d in ranks:
        if d in keeping:
            yield from solve(f"keep>={names[d]}", evictions.keep_value(d))
        if d in starting and d not in first:
            yield from solve(f"start>={names[d]}", ledger.start_value(d, own=False))
    yield search.maximise("disruption.gangs", evictions.gangs())
    one = np.ones(len(ledger.problem.victims.holder), np.int64)
    yield search.maximise("disruption.pods", evictions.pods(one))
    yield search.maximise("disruption.whom", evictions.pods(evictions.whom()))
    yield search.maximise("disruption.time", evictions.pods(ledger.problem.victims.minutes))
    if evictions.rights.moves.any():
        yield search.maximise("disruption.moves", evictions.moves(one))
        yield search.maximise("disruption.moved-time", evictions.moves(ledger.problem.victims.minutes))
    if closed:
        if search.reduced is not None:
            search.reduced.undo()  # with growth more pods of a shape may stand in a class than without
        ledger.open_growth()
    for d in starting:
        for own in (True, False) if ledger.owned else (False,):
            worth = ledger.growth_worth(d, own=own)
            if worth.variables:
                yield search.maximise(f"{'in-share.' * own}grow>={names[d]}", worth)
    yield from _preferences(search)


def _preferences(search: Search) -> Iterator[LevelResult]:
    """What decides between plans that are equal in all that matters."""
    ledger = search.ledger
    load = ledger.largest_load() if ledger.owned else None
    if load is not None:
        yield search.maximise("balance", Terms.of(load, -1), best_effort=True)
    promised = ledger.promised_value()
    if promised.variables:
        yield search.maximise("promised", promised, best_effort=True)
    yield search.maximise("order", ledger.order_value(), best_effort=True)


def _deficits(search: Search, rank: int, name: str) -> Iterator[LevelResult]:
    """O2: the largest deficit, the two largest together, then all; until what is left is below one unit."""
    parts = search.ledger.deficits(rank)
    deficits, worth_it = [Terms.of(var) for var, _ in parts], True
    for k in sorted({*range(1, min(len(parts), LEXIMIN_DEPTH) + 1), len(parts)} - {0}):
        if not worth_it and f"in-share.deficit[{k}]>={name}" not in search.asked:
            return
        objective = search.ledger.largest_sum([var for var, _ in parts], k).times(-1)
        unit = min(unit for _, unit in parts)
        yield search.maximise(f"in-share.deficit[{k}]>={name}", objective, unit=unit)
        if search.incumbent is None:
            return
        search.tighten_derived()
        left = sorted((search.value(terms), unit) for terms, (_, unit) in zip(deficits, parts, strict=True))
        worth_it = any(value > 0 and value >= unit for value, unit in left[: len(left) - k])

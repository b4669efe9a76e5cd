"""The levels of formulation.md 6, 8, 11 (O1 O2 O3 O5 O6 O9 O12 O13 O14 O15 O16) in their order.

How one level is solved: `model/search.py`; what is solved when: `model/solve.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from solver_sched.model.effort import Clock, Effort, LevelResult
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms
from solver_sched.model.pooled import pooled
from solver_sched.model.search import WALL_LIMIT, Search
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RECLAIM, Plan, Problem, Require, SpreadRule
from solver_sched.rights import Rights

LEXIMIN_DEPTH = 2
"""Deficits are minimised largest first to this depth, then in sum: exact leximin for up to three queues."""
BEST_EFFORT = ("balance", "promised", "order")


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
    those of a cycle that evicts. `clock`: no further level is begun when it is over,
    and one that it cuts short is left out. `asked`: names of deficit levels
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
    told = 0
    for result in _levels(search) if allowed is None else evicting_levels(search):
        cut = result.status.endswith(WALL_LIMIT) or (clock.over() and result.status != "OPTIMAL")
        # what the clock cut short may be worth more: such a level is told only where there is no other
        if result.status.startswith("UNKNOWN") or (cut and told):
            break
        told += 1
        if cut or clock.over():
            break
        if result.name in wanted and wanted[result.name] != result.value:
            break
    return search.outcome()[:told]


def _settled(name: str) -> bool:
    """Levels whose value follows from who starts and who goes; what counts as own and which pods as growth does not."""
    what = name.partition(">")[0]
    return what in ("in-share.spare", "keep", "start", *BEST_EFFORT) or what.startswith("disruption")


def run_levels(search: Search) -> None:
    """Every level of the skeleton, in order."""
    for _ in _levels(search):
        pass


def ranks_of(ledger: Ledger) -> list[int]:
    return sorted({cls.rank for cls in ledger.classes})


def _levels(search: Search) -> Iterator[LevelResult]:
    ledger = search.ledger
    ranks, names = ranks_of(ledger), ledger.rules.rank_names
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


def evicting_levels(search: Search) -> Iterator[LevelResult]:
    """The skeleton of formulation.md 8 and 11: whoever starts first, then the least harm, growth last.

    No job is kept out of a level that does not count it: its claim may make the room that another starts on (C18).
    """
    ledger, evictions = search.ledger, search.ledger.evictions
    assert evictions is not None
    starting, names = ranks_of(ledger), ledger.rules.rank_names
    keeping = evictions.ranks()
    ranks = sorted({*starting, *keeping})
    search.levels_left = max(1, len(ranks) * (3 if ledger.owned else 2) + len(starting))
    # of a given plan the growth is given; where a start may lean on growth, it has to be there first
    closed = search.floor is not None and not _enabling(ledger.rules)
    if closed:
        ledger.close_growth()
    search.begin_at_nothing()

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
    if search.reduced is not None:
        search.reduced.undo()  # the largest load is that of any plan
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

"""Nodes for a solution on pooled ones, as an integer program: who starts and which gangs end is given; which nodes pods
take, and who of all others goes from which node, is solved for (formulation.md 8, docs/adr/0029).

Every row of the pooled model holds as it is, beside it what nodes have room for. The levels that may give way have a
slack each, the dearer the higher the level is: where nodes do not have what pooled room promised, the lowest pay first.
Only shapes that ask for something scarce are modelled; the others take what is left, the largest first. With nothing
given the same program bounds a level (docs/adr/0030).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.cleared import Cleared
from solver_sched.model.linear import ACTIVITY, Terms
from solver_sched.model.reduced import Matrix
from solver_sched.model.search import Search, standing
from solver_sched.problem.arrays import Bools, Ints, Plan

DEAREST, LEAD, BEYOND = 12, 6, 6
"""Prices of slack are powers of 2: this much apart are the lowest and the highest (from there on all cost the same); so
much more costs what is asked for first, and so much less what is wanted beyond the levels. Of prices 2^26 apart HiGHS
found nothing in 30 s on 5,000 nodes, 2^12 and 2^18 apart all in 1 to 3 s.
"""
MOST_SECONDS, ON_TIME = 10.0, 0.8
"""HiGHS has at most so many seconds, and this part of those that are left, as it does not always end when it should."""
FINEST, WIDEST = 2**30, 2**36
"""Amounts of a node's row are at most so many steps; with coefficients beyond the other HiGHS is not asked: it may take
ten times as long as it may, or never end.
"""
AMPLE = 4
"""Of what is ample at least a part of so much is left as is taken: its pods find nodes by hand."""

Slots = dict[int, list[list[int]]]
"""[node, pods] of a shape."""


class State(NamedTuple):
    """The pooled model after the level `name`: how many rows it has, (variables, 2) its domains, a solution."""

    name: str
    rows: int
    domain: Ints
    solution: list[int]


class Asked(NamedTuple):
    """Of a plan on real nodes: who starts and which gangs end is as in `state`, if that is `given`; `prices` of slack
    by row; `floors`: by how much rows hold at more than they were locked at, or less; `wanted`: what comes after the
    levels, and the value that is aimed at.
    """

    state: State
    prices: Mapping[int, int]
    floors: Mapping[int, int]
    wanted: tuple[Terms, int] | None
    given: bool = True


def falling(rows: Sequence[int], *, beyond: bool = False, first: bool = False) -> dict[int, int]:
    """Prices of the slack of these rows, the highest level first; `beyond`: something is wanted beyond them; `first`:
    the highest is what is asked for, and those below it come after that.
    """
    steps = range(len(rows))[::-1]
    prices = {row: 2 ** (min(step, DEAREST) + BEYOND * beyond) for row, step in zip(rows, steps, strict=True)}
    if first and rows:
        prices[rows[0]] *= 2**LEAD
    return prices


def assigned(cleared: Cleared, search: Search, asked: Asked, gap: float, seconds: float = MOST_SECONDS) -> Plan | None:
    """Such a plan; its pooled values are the incumbent then. `gap`: of the price of all slack, at which the search may
    stop. None: not found in the seconds or the time of the search, there is none, or numbers are too large for the
    solver.
    """
    scarce = _scarce(cleared, asked.state.solution)
    plan, in_the_way = _found(cleared, search, asked, gap, seconds, scarce)
    if in_the_way and not search.clock.over():  # what is ample in sum may lie in pieces
        plan, _ = _found(cleared, search, asked, gap, seconds, np.ones_like(scarce))
    return plan


def _found(
    cleared: Cleared, search: Search, asked: Asked, gap: float, most: float, scarce: Bools
) -> tuple[Plan | None, bool]:
    """The plan where only what asks for something `scarce` (R,) is modelled; whether others find no room beside it."""
    state = asked.state
    program = _Program(_given(cleared, state) if asked.given else state.domain.copy())
    matrix, slack = _levels(search, asked, program)
    posed = _posed(cleared, program, matrix, scarce, {row: column for row, column, _ in slack})
    if posed is None:
        return None, False
    leaving, places, domain, rows = posed
    worth = np.zeros(len(domain), np.int64)
    for _, column, price in slack:
        worth[column] = -price
    free = np.flatnonzero(domain[:, 0] < domain[:, 1])
    seconds = min(ON_TIME * search.clock.left, most, MOST_SECONDS)
    found = mip.Part(free, rows).best(worth, domain, seconds, gap) if seconds > 0 else mip.Answer(None, None)
    if found.solution is None:
        return None, False
    values = domain[:, 0].copy()
    values[free] = found.solution
    gone = leaving.pods(values)
    slots = places.slots(values, gone)
    if slots is None:
        return None, True
    search.go_back(values[: len(state.domain)].tolist())
    some = np.flatnonzero(gone).tolist()
    going = np.array(cleared.by_cause(search.value, [(s, int(gone[s])) for s in some]), np.int64).reshape(-1, 3)
    return Plan(*standing(search, slots).T, *going.T, *np.zeros((0, 3), np.int64).T), False


def most_on_nodes(
    cleared: Cleared, search: Search, objective: Terms, floors: Mapping[int, int], domain: Ints, seconds: float
) -> int | None:
    """What no plan on real nodes has more of, if each row of `floors` holds at that much; `domain` (variables, 2)
    leaves all such plans. It is HiGHS's bound, wider by its tolerance. None: not known in these seconds, or numbers are
    too large for the solver.
    """
    assert search.reduced is not None
    assert search.incumbent is not None
    matrix = search.reduced.matrix()
    low = matrix.low.copy()
    low[search.locks()] = -mip.INFINITE
    low[list(floors)] = list(floors.values())
    scarce = _scarce(cleared, search.incumbent)
    posed = _posed(cleared, _Program(domain.copy()), matrix._replace(low=low), scarce)
    if posed is None:
        return None
    _, _, domain, rows = posed
    worth = mip.worth_of(objective, len(domain))
    free = np.flatnonzero(domain[:, 0] < domain[:, 1])
    found = mip.Part(free, rows).best(worth, domain, min(seconds, MOST_SECONDS))
    if found.bound is None:
        return None
    known = domain[:, 0] == domain[:, 1]
    step = int(np.gcd.reduce(worth[free], initial=0)) or 1  # plans are worth multiples of this, beside the rest
    return objective.constant + int((worth[known] * domain[known, 0]).sum()) + found.bound // step * step


def _posed(
    cleared: Cleared, program: _Program, matrix: Matrix, scarce: Bools, elastic: Mapping[int, int] | None = None
) -> tuple[_Leaving, _Standing, Ints, list[mip.Row]] | None:
    """Who leaves, who stands, all domains and rows: with the slack columns of `elastic` rows for a plan, without such
    rows for a bound, which holds for every plan. None: there is nothing to find, or numbers are too large.
    """
    leaving = _Leaving(cleared, program)
    places = _Standing(cleared, program, leaving, scarce, bounding=elastic is None)
    if places.short:
        return None
    domain = program.domain
    rows = matrix.and_then(Matrix.of(program.rows)).open(domain, elastic or {})
    if rows is None or any(len(row.coefficients) and np.abs(row.coefficients).max() > WIDEST for row in rows):
        return None
    return leaving, places, domain, rows


def _levels(search: Search, asked: Asked, program: _Program) -> tuple[Matrix, list[tuple[int, int, int]]]:
    """The rows of the pooled model as they are asked for, and (row, column, price of one) of every slack."""
    assert search.reduced is not None
    matrix = search.reduced.matrix().first(asked.state.rows)
    low = matrix.low.copy()
    for row, more in asked.floors.items():
        low[row] += more
    matrix = matrix._replace(low=low)
    slack = [(row, program.column(ACTIVITY), price) for row, price in asked.prices.items()]
    if asked.wanted is not None:
        terms, value = asked.wanted[0].collected(), asked.wanted[1] - asked.wanted[0].constant
        columns = np.array([var.index for var in terms.variables], np.int64)
        last = mip.Row(columns, np.array(terms.coefficients, np.int64), value, mip.INFINITE)
        matrix = matrix.and_then(Matrix.of([last]))
        slack.append((asked.state.rows, program.column(ACTIVITY), 1))
    return matrix, slack


def _given(cleared: Cleared, state: State) -> Ints:
    """(variables, 2) domains that leave open who goes without that a gang ends, and nothing else."""
    evictions = cleared.evictions
    parts = [part for terms in cleared.ledger.terms for part in (terms.own, terms.over)]
    fixed = [var.index for part in parts for var in part.variables()]
    fixed += [var.index for var in cleared.floor.placement.var.values()]
    fixed += [var.index for ends in evictions.end.values() for terms in ends for var in terms.variables]
    domain = state.domain.copy()
    domain[fixed] = np.array(state.solution, np.int64)[fixed, None]
    return domain


def _scarce(cleared: Cleared, solution: Sequence[int]) -> Bools:
    """(R,) of which little is left once all that starts in a solution has its share."""
    asked = np.zeros_like(cleared.problem.total)
    for (s, _), var in cleared.floor.placement.var.items():
        asked += cleared.problem.request[s] * solution[var.index]
    room = np.maximum(cleared.problem.node_free, 0).sum(axis=0)
    for t, terms in enumerate(cleared.gone):
        room += cleared.of.problem.victims.request[t] * terms.at(solution)
    out: Bools = (room - asked) * AMPLE < asked
    return out


class _Program:
    """Columns and rows beside those of the pooled model; `known` (variables, 2) are its domains."""

    def __init__(self, known: Ints) -> None:
        self.known = known
        self.rows: list[mip.Row] = []
        self._more: list[tuple[int, int]] = []

    def column(self, most: int) -> int:
        self._more.append((0, most))
        return len(self.known) + len(self._more) - 1

    @property
    def domain(self) -> Ints:
        return np.vstack([self.known, np.array(self._more, np.int64).reshape(-1, 2)])


class _Leaving:
    """Who goes from which node. `sets`: rows of the victim sets for which that is open, the `column` of each, and the
    `most` pods of it; `whole` (V,): pods of those that go in any case.
    """

    def __init__(self, cleared: Cleared, program: _Program) -> None:
        v, set_of, domain = cleared.problem.victims, cleared.of.set_of, program.known
        pooled, count = cleared.of.problem.victims, cleared.of.problem.victims.count
        least, most = np.zeros_like(count), np.zeros_like(count)
        for t, terms in enumerate(cleared.gone):
            for var, each in zip(terms.variables, terms.coefficients, strict=True):
                least[t] += each * domain[var.index, 0]
                most[t] += each * domain[var.index, 1]
        ended = np.zeros(len(pooled.queue), bool)
        for h in cleared.evictions.sets:
            ended[h] = any(domain[var.index, 0] > 0 for var in cleared.evictions.ended(h).variables)
        able = most > 0
        whole = able & (ended[pooled.holder] | (least >= count))
        self.whole = np.where(whole[set_of], v.count, 0)
        self.sets = np.flatnonzero((able & ~whole)[set_of])
        self.most = np.minimum(v.count[self.sets], most[set_of[self.sets]])
        self.column = np.zeros(len(self.sets), np.int64)
        here: dict[int, list[int]] = defaultdict(list)
        new: set[int] = set()
        for i, s in enumerate(self.sets.tolist()):
            own, t = cleared.own.get(s), int(set_of[s])
            if own is None:
                new.add(t)
            self.column[i] = program.column(int(self.most[i])) if own is None else own.index
            here[t].append(int(self.column[i]))
        for t in sorted(new):
            gone = cleared.gone[t].collected()
            columns = np.array([*here[t], *(var.index for var in gone.variables)], np.int64)
            factors = np.array([1] * len(here[t]) + [-c for c in gone.coefficients], np.int64)
            program.rows.append(mip.Row(columns, factors, gone.constant, gone.constant))

    def pods(self, values: Ints) -> Ints:
        """(V,) that go of each set."""
        out: Ints = self.whole.copy()
        out[self.sets] = values[self.column]
        return out


class _Standing:
    """Which pods of a shape stand where. `short`: there is no room for those that start, whoever goes, or, where every
    plan is to fit (`bounding`), rows would be narrower than nodes are.
    """

    def __init__(
        self, cleared: Cleared, program: _Program, leaving: _Leaving, scarce: Bools, *, bounding: bool
    ) -> None:
        p, v = cleared.problem, cleared.problem.victims
        self._cleared = cleared
        self._by_hand: list[tuple[int, cp_model.IntVar]] = []
        self.short = False
        asks: Bools = np.asarray((p.request[:, scarce] > 0).any(axis=1))
        room = p.node_free + leaving_room(cleared, leaving.whole)
        most = room.copy()
        np.add.at(most, v.node[leaving.sets], leaving.most[:, None] * v.request[leaving.sets])
        tables = [np.zeros((0, 4), np.int64)]
        for (s, c), var in cleared.floor.placement.var.items():
            if not asks[s]:
                self._by_hand.append((s, var))
                continue
            least, wanted = program.known[var.index].tolist()
            fits = np.minimum(cleared.fits(s, most), wanted)
            fits[cleared.of.node_of != c] = 0
            if not bounding:  # who stands on a node that has less than nothing needs more to go than the row says
                fits[room[:, p.request[s] > 0].min(axis=1, initial=0) < 0] = 0
            columns = np.full(len(fits), -1)
            for n, single in cleared.single.get(s, {}).items():
                if cleared.of.node_of[n] == c:
                    low, high = program.known[single.index].tolist()
                    columns[n], fits[n] = single.index, min(int(fits[n]), high)
                    program.known[single.index, 1] = fits[n]
                    self.short |= low > fits[n]
            nodes = np.flatnonzero(fits)
            for n in nodes[columns[nodes] < 0].tolist():
                columns[n] = program.column(int(fits[n]))
            self.short |= int(fits.sum()) < least
            factors = np.append(np.ones(len(nodes), np.int64), -1)
            program.rows.append(mip.Row(np.append(columns[nodes], var.index), factors, 0, 0))
            tables.append(np.column_stack([nodes, columns[nodes], fits[nodes], np.full(len(nodes), s)]))
        self._table = np.concatenate(tables)
        self._rows(program, leaving, np.maximum(room, 0) if bounding else room, bounding=bounding)

    def _rows(self, program: _Program, leaving: _Leaving, room: Ints, *, bounding: bool) -> None:
        """What stands on a node has room there, in every resource in which it might not."""
        p, v = self._cleared.problem, self._cleared.problem.victims
        node, columns, most, shape = self._table.T
        asked, freed = p.request[shape], v.request[leaving.sets]
        need = np.zeros_like(room)
        np.add.at(need, node, most[:, None] * asked)
        scarce = need > np.maximum(room, 0)
        unit = np.gcd(np.gcd.reduce(asked, axis=0, initial=0), np.gcd.reduce(freed, axis=0, initial=0))
        largest = np.maximum(asked.max(axis=0, initial=0), freed.max(axis=0, initial=0))
        # in coarser steps what is asked for is rounded up, and what goes, and room, down
        exact = np.maximum(unit, 1)
        unit = np.maximum(exact, -(-largest // FINEST))
        self.short |= bounding and bool((unit > exact).any())
        at = np.concatenate([node, v.node[leaving.sets]])
        order = np.argsort(at, kind="stable")
        at, columns = at[order], np.concatenate([columns, leaving.column])[order]
        amounts = np.concatenate([-(-asked // unit), -(freed // unit)])[order]
        room = room // unit
        ends = np.searchsorted(at, np.arange(len(room) + 1))
        for n, r in np.argwhere(scarce).tolist():
            here = slice(ends[n], ends[n + 1])
            some = amounts[here, r] != 0
            row = mip.Row(columns[here][some], amounts[here, r][some], -mip.INFINITE, int(room[n, r]))
            program.rows.append(row)

    def slots(self, values: Ints, gone: Ints) -> Slots | None:
        """All pods, given who goes (V,); None where one that was not modelled has no room."""
        cleared, p = self._cleared, self._cleared.problem
        node, columns, _, shape = self._table.T
        out: Slots = defaultdict(list)
        room = p.node_free + leaving_room(cleared, gone)
        np.subtract.at(room, node, values[columns][:, None] * p.request[shape])
        for n, s, pods in np.column_stack([node, shape, values[columns]])[values[columns] > 0].tolist():
            out[s].append([n, pods])
        largest = np.maximum(p.class_free.max(axis=0, initial=0), 1)
        wanted: dict[int, int] = defaultdict(int)
        for s, var in self._by_hand:
            wanted[s] += int(values[var.index])
        for s in sorted(wanted, key=lambda s: (-float((p.request[s] / largest).max()), s)):
            left, fits = wanted[s], cleared.fits(s, room)
            for n in np.argsort(-fits, kind="stable").tolist():
                pods = min(left, int(fits[n]))
                if not pods:
                    break
                out[s].append([n, pods])
                room[n] -= pods * p.request[s]
                left -= pods
            if left:
                return None
        return out


def leaving_room(cleared: Cleared, gone: Ints) -> Ints:
    """(N, R) what these pods (V,) leave."""
    v = cleared.problem.victims
    out: Ints = np.zeros_like(cleared.problem.node_free)
    some = np.flatnonzero(gone)
    np.add.at(out, v.node[some], gone[some, None] * v.request[some])
    return out

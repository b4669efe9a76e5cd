"""Nodes for a solution on pooled ones, as an integer program: who starts and which gangs end is given; which nodes pods
take, and who of all others goes from which node, is solved for (formulation.md 8, docs/adr/0029).

Every row of the pooled model holds as it is, beside it what nodes have room for. The levels that may give way have a
slack each, the dearer the higher the level is: where nodes do not have what pooled room promised, the lowest pay first.
Only shapes that ask for something scarce are modelled; the others take what is left, the largest first.
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
from solver_sched.model.reduced import LARGEST, Matrix
from solver_sched.model.search import Search, taken
from solver_sched.problem.arrays import Bools, Ints, Plan

DEAREST, LEAD = 12, 6
"""A slack costs twice as much as that of the next level, up to this many levels, and those above cost the same; what is
asked for first, so many times twice as much. Of costs 2^26 apart HiGHS found nothing in 30 s, 2^12 apart all in 1.4 s.
"""
LEAST = 10
"""Steps between what comes after the levels and the lowest of them."""
GAP, COARSE = 1e-2, 5e-2
"""Of the price of all slack, at which a search may stop; where something is wanted beyond the levels."""
MOST_SECONDS = 10.0
PLENTY = 4
"""Of what is plentiful at least a part of so much is left as is taken: its pods find nodes by hand."""

Slots = dict[int, list[list[int]]]
"""[node, pods] of a shape."""


class State(NamedTuple):
    """The pooled model after a level: how many rows it has, (variables, 2) its domains, a solution."""

    rows: int
    domain: Ints
    solution: list[int]


class Asked(NamedTuple):
    """Of a plan on real nodes: who starts and which gangs end is as in `state`, if that is `given`; `loose`: rows of
    the levels that may have slack, the highest first; `floors`: by how much other rows hold at more than they were
    locked at, or less; `wanted`: what comes after the levels, and the value that is aimed at; `first`: the highest
    level that may have slack is what is asked for, those below it come after that.
    """

    state: State
    loose: Sequence[int]
    floors: Mapping[int, int]
    wanted: tuple[Terms, int] | None
    given: bool = True
    first: bool = False


def assigned(cleared: Cleared, search: Search, asked: Asked, seconds: float, gap: float = GAP) -> Plan | None:
    """Such a plan; its pooled values are the incumbent then. None: not found in time, or there is none. `gap`: of the
    price of all slack, at which the search may stop.
    """
    state = asked.state
    program = _Program(_given(cleared, state) if asked.given else state.domain.copy())
    leaving = _Leaving(cleared, program)
    standing = _Standing(cleared, program, leaving, _scarce(cleared, state.solution))
    if standing.short:
        return None
    matrix, slack = _levels(search, asked, program)
    domain = program.domain
    rows = _open_rows(matrix.and_then(Matrix.of(program.rows)), domain, {row: column for row, column, _ in slack})
    if rows is None:
        return None
    worth = np.zeros(len(domain), np.int64)
    for _, column, price in slack:
        worth[column] = -price
    free = np.flatnonzero(domain[:, 0] < domain[:, 1])
    found = mip.Part(free, rows).best(
        worth, domain, min(seconds, MOST_SECONDS), gap if asked.wanted is None else COARSE
    )
    if found.solution is None:
        return None
    values = domain[:, 0].copy()
    values[free] = found.solution
    gone = leaving.pods(values)
    places = standing.places(values, gone)
    if places is None:
        return None
    search.go_back(values[: len(state.domain)].tolist())
    return _plan(cleared, search, places, gone)


def _levels(search: Search, asked: Asked, program: _Program) -> tuple[Matrix, list[tuple[int, int, int]]]:
    """The rows of the pooled model as they are asked for, and (row, column, price of one) of every slack."""
    assert search.reduced is not None
    matrix = search.reduced.matrix().first(asked.state.rows)
    low = matrix.low.copy()
    for row, more in asked.floors.items():
        low[row] += more
    matrix = matrix._replace(low=low)
    steps = range(len(asked.loose))[::-1]
    if asked.wanted is not None:
        steps = range(LEAST, LEAST + len(asked.loose))[::-1]
    slack = [
        (row, program.column(ACTIVITY), 2 ** (min(step, DEAREST) + LEAD * (asked.first and row == asked.loose[0])))
        for row, step in zip(asked.loose, steps, strict=True)
    ]
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
    taken = np.zeros_like(cleared.problem.total)
    for (s, _), var in cleared.floor.placement.var.items():
        taken += cleared.problem.request[s] * solution[var.index]
    room = np.maximum(cleared.problem.node_free, 0).sum(axis=0)
    for t, terms in enumerate(cleared.gone):
        room += cleared.of.problem.victims.request[t] * terms.at(solution)
    out: Bools = (room - taken) * PLENTY < taken
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
    `most` pods of it.
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
        self._whole = np.where(whole[set_of], v.count, 0)
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
        out: Ints = self._whole.copy()
        out[self.sets] = values[self.column]
        return out


class _Standing:
    """Which pods of a shape stand where. `short`: there is no room for those that start, whoever goes."""

    def __init__(self, cleared: Cleared, program: _Program, leaving: _Leaving, scarce: Bools) -> None:
        p, v = cleared.problem, cleared.problem.victims
        self._cleared = cleared
        self._by_hand: list[tuple[int, cp_model.IntVar]] = []
        self.short = False
        asks: Bools = np.asarray((p.request[:, scarce] > 0).any(axis=1))
        room = p.node_free + leaving_room(cleared, leaving.pods(np.zeros(len(program.domain), np.int64)))
        most = room.copy()
        np.add.at(most, v.node[leaving.sets], leaving.most[:, None] * v.request[leaving.sets])
        tables = [np.zeros((0, 4), np.int64)]
        for (s, c), var in cleared.floor.placement.var.items():
            if not asks[s]:
                self._by_hand.append((s, var))
                continue
            least, wanted = program.known[var.index].tolist()
            fits = np.minimum(cleared.fits(s, most), wanted)
            # a node that has less than nothing is for nobody who asks for it
            fits[cleared.of.node_of != c] = 0
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
        self._rows(program, leaving, room)

    def _rows(self, program: _Program, leaving: _Leaving, room: Ints) -> None:
        """What stands on a node has room there, in every resource in which it might not."""
        p, v = self._cleared.problem, self._cleared.problem.victims
        node, columns, most, shape = self._table.T
        asked, freed = p.request[shape], v.request[leaving.sets]
        need = np.zeros_like(room)
        np.add.at(need, node, most[:, None] * asked)
        scarce = need > room
        unit = np.gcd(np.gcd.reduce(asked, axis=0, initial=0), np.gcd.reduce(freed, axis=0, initial=0))
        unit = np.maximum(unit, 1)
        at = np.concatenate([node, v.node[leaving.sets]])
        order = np.argsort(at, kind="stable")
        at, columns = at[order], np.concatenate([columns, leaving.column])[order]
        amounts = (np.concatenate([asked, -freed]) // unit)[order]
        room = room // unit
        ends = np.searchsorted(at, np.arange(len(room) + 1))
        for n, r in np.argwhere(scarce).tolist():
            here = slice(ends[n], ends[n + 1])
            some = amounts[here, r] != 0
            row = mip.Row(columns[here][some], amounts[here, r][some], -mip.INFINITE, int(room[n, r]))
            program.rows.append(row)

    def places(self, values: Ints, gone: Ints) -> Slots | None:
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


def _open_rows(matrix: Matrix, domain: Ints, elastic: dict[int, int]) -> list[mip.Row] | None:
    """The rows without the columns that have one value, and without those that cannot be broken. `elastic`: the slack
    of a row. None: one is broken in any case, or sums do not fit 64 bits.
    """
    columns, coefficients, size, low, high = matrix
    row = np.repeat(np.arange(len(size)), size)
    reach = np.bincount(row, np.abs(coefficients).astype(float) * np.abs(domain).max(axis=1)[columns], len(size))
    if (reach > LARGEST).any():
        return None
    fixed: Bools = (domain[:, 0] == domain[:, 1])[columns]
    rest, least, most = np.zeros((3, len(size)), np.int64)
    np.add.at(rest, row[fixed], coefficients[fixed] * domain[columns[fixed], 0])
    order = np.lexsort((columns[~fixed], row[~fixed]))
    row, columns, coefficients = (part[~fixed][order] for part in (row, columns, coefficients))
    ends = coefficients[:, None] * domain[columns]
    np.add.at(least, row, ends.min(axis=1))
    np.add.at(most, row, ends.max(axis=1))
    low = np.where(low > -mip.INFINITE, low - rest, -mip.INFINITE)
    high = np.where(high < mip.INFINITE, high - rest, mip.INFINITE)
    loose = np.zeros(len(size), bool)
    loose[list(elastic)] = True
    if (((most < low) & ~loose) | (least > high)).any():
        return None
    first = np.searchsorted(row, np.arange(len(size) + 1))
    out: list[mip.Row] = []
    for i in np.flatnonzero((least < low) | (most > high)).tolist():
        here = slice(first[i], first[i + 1])
        if loose[i]:
            entry = np.append(columns[here], elastic[i]), np.append(coefficients[here], 1)
        else:
            entry = columns[here], coefficients[here]
        out.append(mip.Row(*entry, int(low[i]), int(high[i])))
    return out


def _plan(cleared: Cleared, search: Search, places: Slots, gone: Ints) -> Plan:
    """The incumbent on these places."""
    problem, rows = cleared.problem, list[tuple[int, int, int]]()
    placed = cleared.ledger.per_set(search.value)
    for t in np.flatnonzero(placed).tolist():
        rows += [(t, node, pods) for node, pods in taken(places[int(problem.set_shape[t])], int(placed[t]))]
    some = np.flatnonzero(gone).tolist()
    going = np.array(cleared.by_cause(search.value, [(s, int(gone[s])) for s in some]), np.int64).reshape(-1, 3)
    nobody = np.zeros((0, 3), np.int64)
    return Plan(*np.array(rows, np.int64).reshape(-1, 3).T, *going.T, *nobody.T)

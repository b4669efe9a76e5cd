"""What the prices of a relaxation prove, in integers: a level's bound, and values that no variable takes any more.

GLOP computes in floating point, but any prices of the rows bound an objective: with prices y, positive only where a row
has a right side and negative only where it has a left one, c x <= y b + the sum of the largest d_j x_j, d = c - y A.
Here prices are rounded to multiples of 1 / scale and all sums are taken in whole numbers, so GLOP's tolerance costs
sharpness, never truth. Once a level is locked, plans worth less do not matter: where k + 1 steps
of a variable from its better end cost more than the bound is above the lock, it stays within k steps of that end in
every plan that is left (formulation.md 7, docs/adr/0021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.linear import Terms
from solver_sched.problem.arrays import Bools, Floats, Ints

LARGEST = 2.0**61
"""Sums of whole numbers are taken only where their absolute values come to less."""
FINEST = 2**40
INTEGRAL = 1e-6
"""A value of the relaxation is whole if it is so near to a whole number."""


@dataclass(frozen=True, eq=False, slots=True)
class Proof:
    """`bound` of an objective; its constant, (rows,) `prices` and (variables,) `worth` of one step, times `scale`; the
    `domain` that it holds for; `most`: the bound without constant and rounding, times `scale`; `point` (variables,):
    where the relaxation reaches it.
    """

    bound: int
    constant: int
    scale: int
    most: int
    prices: Ints
    worth: Ints
    domain: Ints
    point: Floats = field(default_factory=lambda: np.zeros(0))

    def elsewhere(self, low: Ints, high: Ints, domain: Ints) -> Proof | None:
        """What the same prices say with other sides of the rows and another domain; None where they say nothing."""
        low, high, domain = low[: len(self.prices)], high[: len(self.prices)], domain[: len(self.worth)]
        if ((self.prices > 0) & (high >= mip.INFINITE) | (self.prices < 0) & (low <= -mip.INFINITE)).any():
            return None
        side = np.where(self.prices > 0, high, np.where(self.prices < 0, low, 0))
        end = np.where(self.worth > 0, domain[:, 1], domain[:, 0])
        parts = zip((self.prices, self.worth), (side, end), strict=True)
        if sum(float((np.abs(a.astype(float)) * np.abs(b)).sum()) for a, b in parts) > LARGEST:
            return None
        most = int((self.prices * side).sum() + (self.worth * end).sum())
        return replace(self, bound=self.constant + most // self.scale, most=most, domain=domain)

    def left(self, value: int) -> Ints:
        """(variables, 2) the domain without what no plan of this value or a larger one has."""
        slack = min(self.most - (value - self.constant) * self.scale, int(LARGEST))
        if slack < 0:
            return self.domain
        low, high = self.domain.T
        steps = np.minimum(slack // np.maximum(np.abs(self.worth), 1), high - low)
        return np.column_stack(
            [np.where(self.worth > 0, high - steps, low), np.where(self.worth < 0, low + steps, high)]
        )


class Step(NamedTuple):
    """A level that has been locked: how it was proven, if it was, the row, and what a plan has there."""

    proof: Proof | None
    row: int
    low: int


class Priced(NamedTuple):
    """What the prices of a level say of a plan of other values: a `bound`, or None, in the (variables, 2) `domain` that
    the levels above leave.
    """

    bound: int | None
    domain: Ints


class Matrix(NamedTuple):
    """Rows one after another: `columns` and `values` of their entries; of each row the `size`, `low` and `high`."""

    columns: Ints
    values: Ints
    size: Ints
    low: Ints
    high: Ints

    @classmethod
    def of(cls, entries: Sequence[mip.Row]) -> Matrix:
        nothing = np.zeros(0, np.int64)
        sides = np.array([(row.low, row.high) for row in entries], np.int64).reshape(-1, 2)
        return cls(
            np.concatenate([nothing, *(row.indices for row in entries)]),
            np.concatenate([nothing, *(row.coefficients for row in entries)]),
            np.array([len(row.indices) for row in entries], np.int64),
            sides[:, 0],
            sides[:, 1],
        )

    def and_then(self, other: Matrix) -> Matrix:
        return Matrix(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def open(self, domain: Ints, elastic: Mapping[int, int]) -> list[mip.Row] | None:
        """The rows without the columns that have one value, and without those that cannot be broken. `elastic`: the
        slack of a row. None: one is broken in any case, or sums do not fit 64 bits.
        """
        columns, coefficients, size, low, high = self
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

    def holds(self, values: Ints) -> bool:
        """Whether these values of the columns keep every row; False where sums do not fit 64 bits."""
        row = np.repeat(np.arange(len(self.size)), self.size)
        each = self.values * values[self.columns]
        if (np.bincount(row, np.abs(each.astype(float)), len(self.size)) > LARGEST).any():
            return False
        sums = np.zeros(len(self.size), np.int64)
        np.add.at(sums, row, each)
        return bool(((sums >= self.low) & (sums <= self.high)).all())

    def first(self, rows: int) -> Matrix:
        """So many rows."""
        entries = int(self.size[:rows].sum())
        return Matrix(
            self.columns[:entries], self.values[:entries], self.size[:rows], self.low[:rows], self.high[:rows]
        )


class Reduced(mip.Relaxation):
    """What is ruled out of one model, level by level. It reads a domain once: whoever else widens one calls `undo`
    before, and one that somebody else narrows counts as it was.
    """

    def __init__(self, model: cp_model.CpModel) -> None:
        super().__init__(model)
        self._before: dict[int, tuple[int, int]] = {}
        self._read: Ints | None = None
        self._matrix = Matrix.of([])
        self._caps: dict[int, int] = {}

    def domains(self) -> Ints:
        known = np.zeros((0, 2), np.int64) if self._read is None else self._read
        self._read = np.concatenate([known, mip.domains(self._model, len(known))])
        return self._read

    def matrix(self) -> Matrix:
        """All rows of the model, with the sides they had when they came in."""
        self._sync()
        self._matrix = self._matrix.and_then(Matrix.of(self._rows[len(self._matrix.size) :]))
        return self._matrix

    def cap(self, row: int, high: int) -> None:
        """No plan that is left has more than this of what the row counts: a level that is locked has been bounded. The
        relaxation of the levels below knows only by this what whole numbers cost in the levels above.
        """
        self._caps[row] = high

    def _capped(self) -> Matrix:
        """All rows, with what is known of them since they came in."""
        matrix = self.matrix()
        high = matrix.high.copy()
        for row, most in self._caps.items():
            if most < high[row]:
                high[row] = most
                self._duals[row].SetUb(float(most))
        return matrix._replace(high=high)

    def prove(self, objective: Terms, seconds: float = math.inf) -> Proof | None:
        """None where GLOP finds no prices in time."""
        matrix = self._capped()
        worth = mip.worth_of(objective, len(self._columns))
        goal = self._solver.Objective()
        goal.Clear()
        for index in np.flatnonzero(worth).tolist():
            goal.SetCoefficient(self._columns[index], float(worth[index]))
        goal.SetMaximization()
        if not self._solved(seconds):
            return None
        prices = np.array([row.dual_value() for row in self._duals])
        proof = proven(matrix, self._domain, worth, prices, objective.constant)
        if proof is None:
            return None
        return replace(proof, point=np.array([column.solution_value() for column in self._columns]))

    def near(self, objective: Terms, proof: Proof, incumbent: Sequence[int], seconds: float) -> list[int] | None:
        """The best plan in which every variable that has the same whole value in the relaxation and the incumbent
        keeps it (relaxation induced neighbourhood search: Danna, Rothberg, Le Pape 2005).
        """
        known = np.array(incumbent, np.int64)
        domain = proof.domain.copy()
        same = np.abs(proof.point - known) <= INTEGRAL
        same &= (known >= domain[:, 0]) & (known <= domain[:, 1])
        domain[same] = known[same, None]
        rows = self._capped().open(domain, {})
        free = np.flatnonzero(domain[:, 0] < domain[:, 1])
        if rows is None or not len(free):
            return None
        worth = mip.worth_of(objective, len(domain))
        found = mip.Part(free, rows).best(worth, domain, seconds)
        if found.solution is None:
            return None
        domain[free, 0] = found.solution
        out: list[int] = domain[:, 0].tolist()
        return out

    def keep(self, proof: Proof, value: int) -> None:
        """Take from the variables what no plan of this value or a larger one has."""
        left = proof.left(value)
        cut = np.flatnonzero((left != proof.domain).any(axis=1))
        if self._read is not None:
            self._read = self._read.copy()  # proofs hold what was read before
        for j in cut.tolist():
            domain = self._model.proto.variables[j].domain
            self._before.setdefault(j, (int(domain[0]), int(domain[1])))
            domain[0], domain[1] = max(int(domain[0]), int(left[j, 0])), min(int(domain[1]), int(left[j, 1]))
            if self._read is not None:
                self._read[j] = domain[0], domain[1]

    def bounds(self, steps: Sequence[Step], locked: Sequence[int]) -> list[Priced]:
        """Of each level, given a plan's values in those above: what the prices that were found say of other sides.
        `locked`: the rows of all levels.
        """
        matrix, domain = self.matrix(), self.widest()
        low, high = matrix.low.copy(), matrix.high.copy()
        low[list(locked)] = -mip.INFINITE
        out: list[Priced] = []
        for proof, row, least in steps:
            there = None if proof is None else proof.elsewhere(low, high, domain)
            out.append(Priced(None if there is None else there.bound, domain.copy()))
            low[row] = least
            if there is not None:
                high[row] = min(int(high[row]), max(there.bound - there.constant, least))
                domain[: len(there.worth)] = there.left(least + there.constant)
        return out

    def widest(self) -> Ints:
        """(variables, 2) domains with what was taken."""
        out = mip.domains(self._model)
        for j, side in self._before.items():
            out[j] = side
        return out

    def undo(self) -> None:
        """Give the variables back what was taken, and the rows."""
        for j, (low, high) in self._before.items():
            domain = self._model.proto.variables[j].domain
            domain[0], domain[1] = low, high
        self._before.clear()
        self._read = None
        for row in self._caps:
            if row < len(self._duals):
                self._duals[row].SetUb(self._solver.infinity())
        self._caps.clear()


def proven(matrix: Matrix, domain: Ints, worth: Ints, prices: Floats, constant: int) -> Proof | None:
    """What prices of the rows say of an objective; None where it does not fit 64 bits."""
    columns, values, size, low, high = matrix
    if not len(size):
        return None
    prices = np.where((prices > 0) & (high < mip.INFINITE) | (prices < 0) & (low > -mip.INFINITE), prices, 0.0)
    side = np.where(prices > 0, high, np.where(prices < 0, low, 0))
    reach = np.abs(domain).max(axis=1, initial=0).astype(float)

    def largest(prices: Floats, worth: Floats) -> float:
        """Of the sums below, in absolute values."""
        each = np.abs(worth) + np.bincount(
            columns, weights=np.repeat(np.abs(prices), size) * np.abs(values), minlength=len(domain)
        )
        return float((np.abs(prices) * np.abs(side)).sum() + (each * np.maximum(reach, 1.0)).sum())

    scale = min(FINEST, int(LARGEST / 2 / max(1.0, largest(prices, worth.astype(float)))))
    if scale < 1:
        return None
    rounded = np.rint(prices * scale).astype(np.int64)
    if largest(rounded.astype(float), worth.astype(float) * scale) > LARGEST:
        return None
    left = worth * scale
    np.subtract.at(left, columns, np.repeat(rounded, size) * values)
    most = int((rounded * side).sum() + np.where(left > 0, left * domain[:, 1], left * domain[:, 0]).sum())
    return Proof(constant + most // scale, constant, scale, most, rounded, left, domain)

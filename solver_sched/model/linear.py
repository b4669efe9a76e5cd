"""Linear expressions under construction, and the few things the model asks of a variable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ortools.sat.python import cp_model

ACTIVITY = 2**50
"""Largest sum of coefficients times ranges in a row: clear of overflow in CP-SAT, exact in a double."""


class Model(cp_model.CpModel):
    """A model that keeps what `at_most` adds to it as lists, and the largest value each variable had at first: to read
    that back from the solver's own memory takes longer than to solve the relaxation (0.6 s for 24,000 rows). Nobody
    changes a row that is `listed`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[int, tuple[list[int], list[int], int]] = {}
        self.most: dict[int, int] = {}

    def new_int_var(self, lb: cp_model.IntegralT, ub: cp_model.IntegralT, name: str) -> cp_model.IntVar:
        out = super().new_int_var(lb, ub, name)
        self.most[out.index] = int(ub)
        return out

    def new_bool_var(self, name: str) -> cp_model.IntVar:
        return self.new_int_var(0, 1, name)


def weighted(variables: Sequence[cp_model.IntVar], coefficients: Sequence[int]) -> cp_model.LinearExpr:
    """Sum of coefficient x variable."""
    return cp_model.LinearExpr.weighted_sum(variables, coefficients)


def total(variables: Sequence[cp_model.IntVar]) -> cp_model.LinearExpr:
    """Sum of the variables."""
    return weighted(variables, [1] * len(variables))


def upper(variable: cp_model.IntVar) -> int:
    """Largest value in the domain of a variable."""
    return int(variable.proto.domain[1])


def fix(variable: cp_model.IntVar, value: int) -> None:
    """Leave the variable one value."""
    variable.proto.domain[0] = value
    variable.proto.domain[1] = value


class Terms:
    """A sum of coefficient x variable plus a constant."""

    __slots__ = ("coefficients", "constant", "variables")

    def __init__(self) -> None:
        self.variables: list[cp_model.IntVar] = []
        self.coefficients: list[int] = []
        self.constant = 0

    def add(self, variable: cp_model.IntVar, coefficient: int) -> None:
        if coefficient:
            self.variables.append(variable)
            self.coefficients.append(int(coefficient))

    def extend(self, other: Terms, factor: int = 1) -> None:
        if factor:
            self.variables += other.variables
            self.coefficients += [factor * c for c in other.coefficients] if factor != 1 else other.coefficients
            self.constant += factor * other.constant

    def times(self, factor: int) -> Terms:
        out = Terms()
        out.extend(self, factor)
        return out

    def collected(self) -> Terms:
        """The same expression with every variable once."""
        found: dict[int, int] = {}
        by_index: dict[int, cp_model.IntVar] = {}
        for variable, coefficient in zip(self.variables, self.coefficients, strict=True):
            found[variable.index] = found.get(variable.index, 0) + coefficient
            by_index[variable.index] = variable
        out = Terms.const(self.constant)
        for index, coefficient in found.items():
            out.add(by_index[index], coefficient)
        return out

    def linear(self) -> cp_model.LinearExpr:
        return weighted(self.variables, self.coefficients) + self.constant

    def span(self) -> int:
        """Largest value the expression can take; variables start at 0."""
        return self.constant + sum(
            c * upper(v) for c, v in zip(self.coefficients, self.variables, strict=True) if c > 0
        )

    def at(self, solution: Sequence[int]) -> int:
        """Value in a solution (values by variable index)."""
        return self.constant + sum(
            c * solution[v.index] for c, v in zip(self.coefficients, self.variables, strict=True)
        )

    @staticmethod
    def of(variable: cp_model.IntVar, coefficient: int = 1) -> Terms:
        out = Terms()
        out.add(variable, coefficient)
        return out

    @staticmethod
    def const(value: int) -> Terms:
        out = Terms()
        out.constant = int(value)
        return out


def at_most(model: Model, left: Terms, right: int, *, ceiling: bool = False) -> None:
    """left <= right, divided by the common divisor of the coefficients; rows that cannot bind are left out.

    A row beyond ACTIVITY is rounded to coarser steps: down, so that it only relaxes (the split and the verifier are
    exact), or for a `ceiling`, which nothing checks again before it binds, to the safe side.
    """
    if not left.variables:
        return
    coefficients = left.coefficients
    divisor = math.gcd(*coefficients)
    if divisor != 1:
        coefficients = [c // divisor for c in coefficients]
    room = (right - left.constant) // divisor
    if room < 0 and min(coefficients) > 0:
        room = 0
    columns, most = [var.index for var in left.variables], model.most
    activity = sum([abs(c) * most[column] for c, column in zip(coefficients, columns, strict=True)])
    if activity <= room:
        return
    step = max(1, -(-max(activity, room) // ACTIVITY))
    if step > 1:
        coefficients = [-(-c // step) if ceiling else c // step for c in coefficients]
        room //= step
    row = model.add(weighted(left.variables, coefficients) <= room)
    model.listed[row.index] = columns, list(coefficients), room


def summed(parts: Iterable[Terms]) -> Terms:
    """The sum, with every variable once."""
    out = Terms()
    for part in parts:
        out.extend(part)
    return out.collected()

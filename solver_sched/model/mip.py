"""A second opinion on a level: HiGHS on the same integer model (MathOpt, part of OR-Tools).

CP-SAT is exact and usually first; where a level is nearly a linear program (the largest deficits of many queues), a
branch and bound on the linear relaxation closes in a fraction of a second what CP-SAT does not (docs/adr/0005). HiGHS
computes in floating point, so its solution is checked row by row in integers before it counts, and its bound is
widened by its own tolerance.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # no stubs in OR-Tools 9.15
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.sat.python import cp_model

from solver_sched.model.linear import Terms
from solver_sched.problem.arrays import Ints

TOLERANCE = 1e-7
"""Relative width by which a bound is loosened: HiGHS's default feasibility and optimality tolerance."""
INFINITE = 2**62
EXACT = 2**53
LARGEST = 10**15
"""HiGHS refuses a model with a coefficient beyond this (its option `large_matrix_value`)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A solution that keeps every row exactly, or None, and an upper bound on the objective, or None."""

    solution: list[int] | None
    bound: int | None


def maximise(model: cp_model.CpModel, objective: Terms, seconds: float) -> Answer:
    """Maximise `objective` over the linear rows of `model` (which must have no others)."""
    proto = model.proto
    if any(max(abs(v.domain[0]), abs(v.domain[1])) > EXACT for v in proto.variables):
        return Answer(None, None)  # beyond what a double holds exactly
    if any(abs(c) > LARGEST for constraint in proto.constraints for c in constraint.linear.coeffs):
        return Answer(None, None)
    copy = mathopt.Model()
    columns = [copy.add_variable(lb=v.domain[0], ub=v.domain[1], is_integer=True) for v in proto.variables]
    rows: list[tuple[Sequence[int], Sequence[int], int, int]] = []
    for constraint in proto.constraints:
        linear = constraint.linear
        low, high = linear.domain[0], linear.domain[1]
        rows.append((list(linear.vars), list(linear.coeffs), low, high))
        row = copy.add_linear_constraint(
            lb=float(low) if low > -INFINITE else -math.inf, ub=float(high) if high < INFINITE else math.inf
        )
        for index, coefficient in zip(linear.vars, linear.coeffs, strict=True):
            row.set_coefficient(columns[index], row.get_coefficient(columns[index]) + coefficient)
    copy.objective.is_maximize = True
    for variable, coefficient in zip(objective.variables, objective.coefficients, strict=True):
        column = columns[variable.index]
        copy.objective.set_linear_coefficient(column, copy.objective.get_linear_coefficient(column) + coefficient)
    result = mathopt.solve(
        copy,
        mathopt.SolverType.HIGHS,
        params=mathopt.SolveParameters(
            time_limit=dt.timedelta(seconds=seconds), relative_gap_tolerance=0.0, absolute_gap_tolerance=0.5
        ),
    )
    bound: int | None = None
    dual = result.best_objective_bound()
    if math.isfinite(dual):
        bound = objective.constant + math.floor(dual + TOLERANCE * max(1.0, abs(dual)))
    if not result.has_primal_feasible_solution():
        return Answer(None, bound)
    values = result.variable_values(columns)
    solution = [round(value) for value in values]
    exact = all(
        low <= sum(c * solution[i] for i, c in zip(indices, coefficients, strict=True)) <= high
        for indices, coefficients, low, high in rows
    )
    return Answer(solution if exact else None, bound)


class Rows:
    """An integer program in arrays: some columns of a larger one, and rows on them.

    `columns` (M,): their indices there; rows name columns by these.
    """

    def __init__(self, columns: Ints) -> None:
        self.columns = columns
        self._at = {index: i for i, index in enumerate(columns.tolist())}
        self._rows: list[tuple[Ints, Ints, int, int]] = []

    def add(self, indices: Ints, coefficients: Ints, low: int, high: int) -> None:
        """low <= sum of coefficient x variable <= high."""
        columns = np.array([self._at[index] for index in indices.tolist()], np.int64)
        self._rows.append((columns, coefficients, low, high))

    def maximise(self, objective: Ints, domain: Ints, seconds: float, gap: float) -> Ints | None:
        """(M,) the best solution that HiGHS finds and that keeps every row exactly. `objective` and `domain` (.., 2) by
        index of the larger program; `gap` relative.
        """
        if any(len(coefficients) and np.abs(coefficients).max() > LARGEST for _, coefficients, _, _ in self._rows):
            return None
        proto = model_pb2.ModelProto()
        count = len(self.columns)
        proto.variables.ids.extend(range(count))
        proto.variables.lower_bounds.extend(domain[self.columns, 0].astype(float).tolist())
        proto.variables.upper_bounds.extend(domain[self.columns, 1].astype(float).tolist())
        proto.variables.integers.extend([True] * count)
        worth = objective[self.columns]
        counted = np.flatnonzero(worth)
        proto.objective.maximize = True
        proto.objective.linear_coefficients.ids.extend(counted.tolist())
        proto.objective.linear_coefficients.values.extend(worth[counted].astype(float).tolist())
        proto.linear_constraints.ids.extend(range(len(self._rows)))
        matrix = proto.linear_constraint_matrix
        for row, (columns, coefficients, low, high) in enumerate(self._rows):
            proto.linear_constraints.lower_bounds.append(float(low) if low > -INFINITE else -math.inf)
            proto.linear_constraints.upper_bounds.append(float(high) if high < INFINITE else math.inf)
            order = np.argsort(columns)
            matrix.row_ids.extend([row] * len(columns))
            matrix.column_ids.extend(columns[order].tolist())
            matrix.coefficients.extend(coefficients[order].astype(float).tolist())
        limits = mathopt.SolveParameters(time_limit=dt.timedelta(seconds=seconds), relative_gap_tolerance=gap)
        result = mathopt.solve(mathopt.Model.from_model_proto(proto), mathopt.SolverType.HIGHS, params=limits)
        if not result.has_primal_feasible_solution():
            return None
        values = result.variable_values()
        out = np.zeros(count, np.int64)
        for variable, value in values.items():
            out[variable.id] = round(value)
        exact = all(
            low <= int((coefficients * out[columns]).sum()) <= high for columns, coefficients, low, high in self._rows
        )
        inside = (out >= domain[self.columns, 0]) & (out <= domain[self.columns, 1])
        return out if exact and bool(inside.all()) else None


def _relaxation(model: cp_model.CpModel, objective: Terms) -> tuple[bool, pywraplp.Solver, list[pywraplp.Variable]]:
    """Maximise an objective over the linear relaxation with GLOP: (solved, solver, a column per variable)."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    columns = [solver.NumVar(v.domain[0], v.domain[1], "") for v in model.proto.variables]
    for constraint in model.proto.constraints:
        linear = constraint.linear
        low, high = linear.domain[0], linear.domain[1]
        row = solver.Constraint(
            float(low) if low > -INFINITE else -solver.infinity(), float(high) if high < INFINITE else solver.infinity()
        )
        summed: dict[int, int] = {}
        for index, coefficient in zip(linear.vars, linear.coeffs, strict=True):
            summed[index] = summed.get(index, 0) + coefficient
        for index, coefficient in summed.items():
            row.SetCoefficient(columns[index], coefficient)
    goal = solver.Objective()
    for variable, coefficient in zip(objective.variables, objective.coefficients, strict=True):
        column = columns[variable.index]
        goal.SetCoefficient(column, goal.GetCoefficient(column) + coefficient)
    goal.SetMaximization()
    return solver.Solve() == pywraplp.Solver.OPTIMAL, solver, columns


def prices(model: cp_model.CpModel, pods: Sequence[cp_model.IntVar], most: int) -> list[int] | None:
    """What one more pod of each shape would cost, 0..most, when as many as fit are placed (dual of the relaxation).

    The upper bounds of `pods` are what is to be placed. None: the relaxation was not solved.
    """
    everything = Terms()
    for variable in pods:
        everything.add(variable, 1)
    solved, _, columns = _relaxation(model, everything)
    # reduced cost 1 - price where all pods of the shape are placed, 0 where some are not
    return [round(most * min(1.0, max(0.0, 1.0 - columns[v.index].reduced_cost()))) for v in pods] if solved else None


def relaxed_bound(model: cp_model.CpModel, objective: Terms) -> int:
    """Upper bound of an objective over the linear relaxation; its span where that was not solved."""
    solved, solver, _ = _relaxation(model, objective)
    if not solved:
        return objective.span()
    value = solver.Objective().Value()
    return int(objective.constant + math.floor(value + TOLERANCE * max(1.0, abs(value))))

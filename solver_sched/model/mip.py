"""A second opinion on a level: HiGHS on the same integer model (MathOpt, part of OR-Tools).

CP-SAT is exact and usually first; where a level is nearly a linear program (the largest deficits of many queues), a
branch and bound on the linear relaxation closes in a fraction of a second what CP-SAT does not (docs/adr/0005). HiGHS
computes in floating point, so its solution is checked row by row in integers before it counts, and its bound is
widened by its own tolerance.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ortools.linear_solver import linear_solver_pb2, pywraplp  # type: ignore[import-untyped]  # no py.typed in OR-Tools 9.15
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.sat.python import cp_model

from solver_sched.model.linear import Model, Terms
from solver_sched.problem.arrays import Ints

TOLERANCE = 1e-7
"""Relative width by which a bound is loosened: HiGHS's default feasibility and optimality tolerance."""
INFINITE = 2**62
EXACT = 2**53
LARGEST = 10**15
"""HiGHS refuses a model with a coefficient beyond this (its option `large_matrix_value`)."""


class Row(NamedTuple):
    """low <= sum of coefficient x variable <= high, every variable once; beyond INFINITE no limit."""

    indices: Ints
    coefficients: Ints
    low: int
    high: int


def rows(model: cp_model.CpModel, first: int = 0) -> Iterator[Row]:
    """The rows of a model from the `first` on, which must all be linear: columns ascending, each once."""
    constraints = model.proto.constraints
    known = model.listed if isinstance(model, Model) else {}
    for at in range(first, len(constraints)):
        if at in known:
            listed, factors, high = known[at]
            low = -INFINITE
        else:
            linear = constraints[at].linear
            listed, factors = list(linear.vars), list(linear.coeffs)
            low, high = int(linear.domain[0]), int(linear.domain[1])
        if listed != sorted(set(listed)):
            sums: dict[int, int] = {}
            for column, factor in zip(listed, factors, strict=True):
                sums[column] = sums.get(column, 0) + factor
            listed = sorted(sums)
            factors = [sums[column] for column in listed]
        yield Row(np.array(listed, np.int64), np.array(factors, np.int64), low, high)


def worth_of(objective: Terms, variables: int) -> Ints:
    """(variables,) what one step of each counts in an objective."""
    out = np.zeros(variables, np.int64)
    np.add.at(out, [var.index for var in objective.variables], objective.coefficients)
    return out


def domains(model: cp_model.CpModel, first: int = 0) -> Ints:
    """(variables, 2) smallest and largest value of the variables from the `first` on."""
    variables = model.proto.variables
    listed = (variables[i].domain for i in range(first, len(variables)))
    return np.array([(domain[0], domain[1]) for domain in listed], np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Answer:
    """A solution that keeps every row exactly, or None, and an upper bound on the objective, or None."""

    solution: list[int] | None
    bound: int | None


def maximise(model: cp_model.CpModel, objective: Terms, seconds: float) -> Answer:
    """Maximise `objective` over the linear rows of `model` (which must have no others)."""
    domain = domains(model)
    if (np.abs(domain) > EXACT).any():
        return Answer(None, None)  # beyond what a double holds exactly
    return Part(np.arange(len(domain)), rows(model)).maximise(objective, domain, seconds)


class Part:
    """An integer program on some columns of a larger one: `columns` (M,) their indices there, ascending."""

    def __init__(self, columns: Ints, listed: Iterable[Row]) -> None:
        self.columns = columns
        self._rows = [row._replace(indices=np.searchsorted(columns, row.indices)) for row in listed]

    def maximise(self, objective: Terms, domain: Ints, seconds: float, gap: float = 0.0) -> Answer:
        """The best values of `columns` that HiGHS finds. `objective` is in variables of the larger program, of which
        those outside count nothing, `domain` (.., 2) by their index; `gap` is relative.
        """
        worth = worth_of(objective, len(domain))
        answer = self.best(worth, domain, seconds, gap)
        return answer if answer.bound is None else Answer(answer.solution, objective.constant + answer.bound)

    def best(self, worth: Ints, domain: Ints, seconds: float, gap: float = 0.0) -> Answer:
        """The same of an objective given by what each variable of the larger program is worth."""
        if any(len(row.coefficients) and np.abs(row.coefficients).max() > LARGEST for row in self._rows):
            return Answer(None, None)
        inside, count = domain[self.columns], len(self.columns)
        worth = worth[self.columns]
        counted = np.flatnonzero(worth)
        proto = model_pb2.ModelProto()
        proto.variables.ids.extend(range(count))
        proto.variables.lower_bounds.extend(inside[:, 0].astype(float).tolist())
        proto.variables.upper_bounds.extend(inside[:, 1].astype(float).tolist())
        proto.variables.integers.extend([True] * count)
        proto.objective.maximize = True
        proto.objective.linear_coefficients.ids.extend(counted.tolist())
        proto.objective.linear_coefficients.values.extend(worth[counted].astype(float).tolist())
        proto.linear_constraints.ids.extend(range(len(self._rows)))
        matrix = proto.linear_constraint_matrix
        for at, (columns, coefficients, low, high) in enumerate(self._rows):
            proto.linear_constraints.lower_bounds.append(float(low) if low > -INFINITE else -math.inf)
            proto.linear_constraints.upper_bounds.append(float(high) if high < INFINITE else math.inf)
            matrix.row_ids.extend([at] * len(columns))
            matrix.column_ids.extend(columns.tolist())
            matrix.coefficients.extend(coefficients.astype(float).tolist())
        limits = mathopt.SolveParameters(
            time_limit=dt.timedelta(seconds=seconds), relative_gap_tolerance=gap, absolute_gap_tolerance=0.5
        )
        model = mathopt.Model.from_model_proto(proto)  # what this raises is our mistake, not HiGHS's
        try:
            result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=limits)
        except (AttributeError, RuntimeError, ValueError):
            # an internal error of HiGHS, which OR-Tools 9.15 stumbles over: it was a second opinion, and gives none
            return Answer(None, None)
        bound: int | None = None
        dual = result.best_objective_bound()
        if math.isfinite(dual):
            bound = math.floor(dual + TOLERANCE * max(1.0, abs(dual)))
        if not result.has_primal_feasible_solution():
            return Answer(None, bound)
        out = np.zeros(count, np.int64)
        for variable, value in result.variable_values().items():
            out[variable.id] = round(value)
        kept = all(
            low <= int((coefficients * out[columns]).sum()) <= high for columns, coefficients, low, high in self._rows
        )
        kept &= bool(((out >= inside[:, 0]) & (out <= inside[:, 1])).all())
        return Answer(out.tolist() if kept else None, bound)


def _sides(row: Row) -> tuple[float, float]:
    low = float(row.low) if row.low > -INFINITE else -math.inf
    return low, float(row.high) if row.high < INFINITE else math.inf


def add_row(solver: pywraplp.Solver, columns: Sequence[pywraplp.Variable], row: Row) -> pywraplp.Constraint:
    """Bring a row into a GLOP model with a column per variable."""
    out = solver.Constraint(*_sides(row))
    for index, coefficient in zip(row.indices.tolist(), row.coefficients.tolist(), strict=True):
        out.SetCoefficient(columns[index], coefficient)
    return out


class Relaxation:
    """The linear relaxation of a model in GLOP, kept between objectives: each starts from the basis of the last."""

    def __init__(self, model: cp_model.CpModel) -> None:
        self._model = model
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._columns: list[pywraplp.Variable] = []
        self._duals: list[pywraplp.Constraint] = []
        self._rows: list[Row] = []
        self._domain: Ints = np.zeros((0, 2), np.int64)

    def _sync(self) -> None:
        """Bring columns, bounds and rows up to the model."""
        domain = self.domains()
        known = len(self._columns)
        for i in np.flatnonzero((domain[:known] != self._domain).any(axis=1)).tolist():
            self._columns[i].SetBounds(float(domain[i, 0]), float(domain[i, 1]))
        new = list(rows(self._model, len(self._rows)))
        if not known:
            self._load(domain, new)
        else:
            self._columns += [self._solver.NumVar(float(low), float(high), "") for low, high in domain[known:].tolist()]
            self._duals += [add_row(self._solver, self._columns, row) for row in new]
        self._domain = domain
        self._rows += new

    def _load(self, domain: Ints, listed: Sequence[Row]) -> None:
        """All at once: one by one takes twice as long."""
        proto = linear_solver_pb2.MPModelProto()
        for low, high in domain.tolist():
            proto.variable.add(lower_bound=low, upper_bound=high)
        for row in listed:
            low, high = _sides(row)
            proto.constraint.add(lower_bound=low, upper_bound=high, var_index=row.indices, coefficient=row.coefficients)
        error = self._solver.LoadModelFromProto(proto)
        assert not error, error
        self._columns, self._duals = list(self._solver.variables()), list(self._solver.constraints())

    def domains(self) -> Ints:
        """Of all variables, as they are now."""
        return domains(self._model)

    def at_least(self, row: int, low: int) -> None:
        """Another left side for a row, which the model does not know of."""
        self._sync()
        self._duals[row].SetLb(float(low) if low > -INFINITE else -self._solver.infinity())

    def maximise(self, objective: Terms, seconds: float = math.inf) -> bool:
        """Whether it was solved to the optimum in time."""
        self._sync()
        goal, whole = self._solver.Objective(), objective.collected()
        goal.Clear()
        for variable, coefficient in zip(whole.variables, whole.coefficients, strict=True):
            goal.SetCoefficient(self._columns[variable.index], coefficient)
        goal.SetMaximization()
        return self._solved(seconds)

    def _solved(self, seconds: float) -> bool:
        """Whether GLOP comes to the optimum in time: from the basis of the last solve; where it loses its way (on 5,000
        nodes in one solve of thirty, whatever the basis and the simplex) once more with the rows as they are.
        """
        end, unscaled = time.monotonic() + seconds, pywraplp.MPSolverParameters()
        unscaled.SetIntegerParam(unscaled.SCALING, unscaled.SCALING_OFF)
        for parameters in (pywraplp.MPSolverParameters(), unscaled):
            if seconds < math.inf:
                self._solver.SetTimeLimit(max(1, int(1000 * (end - time.monotonic()))))
            status = self._solver.Solve(parameters)
            if status != pywraplp.Solver.ABNORMAL:
                return bool(status == pywraplp.Solver.OPTIMAL)
        return False

    def bound(self, objective: Terms, seconds: float = math.inf) -> int:
        """Upper bound of an objective; its span where that was not solved in time."""
        if not self.maximise(objective, seconds):
            return objective.span()
        value = self._solver.Objective().Value()
        return min(objective.span(), int(objective.constant + math.floor(value + TOLERANCE * max(1.0, abs(value)))))

    def reduced_cost(self, variable: cp_model.IntVar) -> float:
        """Of the last solve."""
        return float(self._columns[variable.index].reduced_cost())


def prices(
    model: cp_model.CpModel, pods: Sequence[cp_model.IntVar], most: int, seconds: float = math.inf
) -> list[int] | None:
    """What one more pod of each shape would cost, 0..most, when as many as fit are placed (dual of the relaxation).

    The upper bounds of `pods` are what is to be placed. None: the relaxation was not solved in time.
    """
    everything = Terms()
    for variable in pods:
        everything.add(variable, 1)
    relaxation = Relaxation(model)
    if not relaxation.maximise(everything, seconds):
        return None
    # reduced cost 1 - price where all pods of the shape are placed, 0 where some are not
    return [round(most * min(1.0, max(0.0, 1.0 - relaxation.reduced_cost(one)))) for one in pods]


def relaxed_bound(model: cp_model.CpModel, objective: Terms, seconds: float = math.inf) -> int:
    """Upper bound of an objective over the linear relaxation; its span where that was not solved in time."""
    return Relaxation(model).bound(objective, seconds)

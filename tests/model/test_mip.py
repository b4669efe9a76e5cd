"""The second opinion agrees with the first: HiGHS and the relaxations against CP-SAT and brute force."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # no py.typed in OR-Tools 9.15
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.linear import Model, Terms, at_most, weighted


@dataclass(frozen=True)
class Tiny:
    """At most 3 integer variables from 0 to `upper`, and rows low <= sum <= high."""

    upper: tuple[int, ...]
    rows: tuple[tuple[tuple[int, ...], int, int], ...]
    objective: tuple[int, ...]
    constant: int

    def model(self) -> tuple[cp_model.CpModel, list[cp_model.IntVar], Terms]:
        model = cp_model.CpModel()
        variables = [model.new_int_var(0, most, "") for most in self.upper]
        for coefficients, low, high in self.rows:
            model.add_linear_constraint(weighted(variables, coefficients), low, high)
        objective = Terms.const(self.constant)
        for variable, coefficient in zip(variables, self.objective, strict=True):
            objective.add(variable, coefficient)
        return model, variables, objective

    def keeps(self, solution: tuple[int, ...]) -> bool:
        return all(low <= dot(row, solution) <= high for row, low, high in self.rows)

    def optimum(self) -> int | None:
        """The best value over every solution, None without any."""
        solutions = product(*(range(most + 1) for most in self.upper))
        return max((self.constant + dot(self.objective, x) for x in solutions if self.keeps(x)), default=None)


def dot(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


@st.composite
def tiny(draw: st.DrawFn) -> Tiny:
    width = draw(st.integers(1, 3))
    vector = st.lists(st.integers(-7, 7), min_size=width, max_size=width).map(tuple)
    rows = draw(st.lists(st.tuples(vector, st.integers(-20, 8), st.integers(0, 12)), max_size=4))
    upper = draw(st.lists(st.integers(0, 6), min_size=width, max_size=width))
    objective = draw(st.lists(st.integers(-9, 9), min_size=width, max_size=width))
    rows = [(row, low, low + room) for row, low, room in rows]
    return Tiny(tuple(upper), tuple(rows), tuple(objective), draw(st.integers(-5, 5)))


@settings(max_examples=150)
@given(tiny())
def test_highs_finds_the_optimum_and_its_bound_is_never_below(case: Tiny) -> None:
    model, _, objective = case.model()
    best = case.optimum()
    answer = mip.maximise(model, objective, 5.0)
    if best is None:
        assert answer.solution is None
        return
    assert answer.bound is not None
    assert answer.bound >= best
    assert answer.solution is not None
    assert case.keeps(tuple(answer.solution))
    # the solve may stop half a unit from the optimum, which integers cannot be
    assert objective.at(answer.solution) == best


@settings(max_examples=80)
@given(tiny())
def test_cp_sat_says_the_same(case: Tiny) -> None:
    model, _, objective = case.model()
    answer = mip.maximise(model, objective, 5.0)
    model.maximize(objective.linear())
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) == cp_model.INFEASIBLE:
        assert answer.solution is None
    else:
        assert answer.solution is not None
        assert objective.at(answer.solution) == round(solver.objective_value)


@settings(max_examples=150)
@given(tiny())
def test_the_relaxation_is_never_below_the_optimum(case: Tiny) -> None:
    model, _, objective = case.model()
    best = case.optimum()
    if best is not None:
        assert mip.relaxed_bound(model, objective) >= best


def test_a_bound_is_that_of_the_relaxation() -> None:
    # 3 x <= 7 with x an integer from 0 to 9: 7/3 in the relaxation, so 10 x is at most 23.
    model = cp_model.CpModel()
    x = model.new_int_var(0, 9, "")
    model.add(3 * x <= 7)
    assert mip.relaxed_bound(model, Terms.of(x, 10)) == 23
    assert mip.maximise(model, Terms.of(x, 10), 5.0) == mip.Answer([2], 20)


def test_a_price_is_what_a_pod_costs_of_the_scarce_room() -> None:
    # One node of 10: 4 pods of 2 and 4 of 1 are wanted, 12 in all. The small ones go first, one more of them costs half
    # a large one; the large ones are those left out, at full price.
    model = cp_model.CpModel()
    large, small = model.new_int_var(0, 4, ""), model.new_int_var(0, 4, "")
    model.add(2 * large + small <= 10)
    assert mip.prices(model, [large, small], 1000) == [1000, 500]


def test_where_all_fit_nothing_has_a_price() -> None:
    model = cp_model.CpModel()
    pods = model.new_int_var(0, 4, "")
    model.add(2 * pods <= 10)
    assert mip.prices(model, [pods], 1000) == [0]


def test_a_solution_that_breaks_a_row_by_a_rounding_does_not_count() -> None:
    # x + 10^9 y <= 10^9 with y = 1 leaves x = 0; within HiGHS's tolerance of 1e-7 a float y may be 1 - 1e-9 and x = 1.
    model = cp_model.CpModel()
    x, y = model.new_int_var(0, 1, ""), model.new_int_var(0, 1, "")
    model.add(x + 10**9 * y <= 10**9)
    objective = Terms.of(x, 1)
    objective.add(y, 2)
    answer = mip.maximise(model, objective, 5.0)
    assert answer.bound is not None
    assert answer.bound >= 2
    if answer.solution is not None:
        assert answer.solution[0] + 10**9 * answer.solution[1] <= 10**9


# -- rows ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=3), st.integers(-3, 60))
def test_a_divided_row_allows_the_same(columns: list[tuple[int, int]], right: int) -> None:
    """At most `right`: dividing by the common divisor and leaving out rows that cannot bind change nothing."""
    model = Model()
    left = Terms()
    for coefficient, most in columns:
        left.add(model.new_int_var(0, most, ""), coefficient)
    at_most(model, left, max(right, 0))
    allowed = {
        x
        for x in product(*(range(most + 1) for _, most in columns))
        if sum(c * n for (c, _), n in zip(columns, x, strict=True)) <= max(right, 0)
    }
    assert allowed == {x for x in product(*(range(most + 1) for _, most in columns)) if row_allows(model, x)}


def row_allows(model: cp_model.CpModel, x: tuple[int, ...]) -> bool:
    """The solution keeps the model's only row, if it has one."""
    return all(
        sum(c * x[i] for i, c in zip(row.linear.vars, row.linear.coeffs, strict=True)) <= row.linear.domain[1]
        for row in model.proto.constraints
    )


def test_a_row_past_64_bits_is_coarser_but_on_the_side_that_was_asked_for() -> None:
    # 2^61 + 1 and 2^61 beside each other, at most 2^62: steps of 2^12 or more.
    for ceiling, sums in ((False, {(0, 0), (0, 1), (1, 0), (1, 1)}), (True, {(0, 0), (0, 1), (1, 0)})):
        model = Model()
        left = Terms()
        left.add(model.new_int_var(0, 1, ""), 2**61 + 1)
        left.add(model.new_int_var(0, 1, ""), 2**61)
        at_most(model, left, 2**62, ceiling=ceiling)
        assert {x for x in product((0, 1), repeat=2) if row_allows(model, x)} == sums


def test_a_coefficient_beyond_what_highs_takes_costs_its_opinion_and_nothing_else() -> None:
    model = Model()
    x, y = model.new_int_var(0, 3, ""), model.new_int_var(0, 3, "")
    model.add(x + 2**50 * y <= 5)
    assert mip.maximise(model, Terms.of(x), 1.0) == mip.Answer(None, None)


def test_an_engine_that_breaks_has_no_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS ended with an internal error, and OR-Tools with an AttributeError on its way to say so."""

    def broken(*_: object, **__: object) -> None:
        raise AttributeError("canonical_code")

    monkeypatch.setattr("solver_sched.model.mip.mathopt.solve", broken)
    model = cp_model.CpModel()
    x = model.new_int_var(0, 2, "")
    assert mip.maximise(model, Terms.of(x, 10), 5.0) == mip.Answer(None, None)


@pytest.mark.parametrize(("answers", "solved"), [([0], True), ([4, 0], True), ([4, 4], False), ([2], False)])
def test_a_relaxation_in_which_glop_loses_its_way_is_solved_unscaled(answers: list[int], solved: bool) -> None:
    """0 is the optimum, 2 there is none, 4 GLOP calls its own answer abnormal."""
    model = cp_model.CpModel()
    x = model.new_int_var(0, 3, "")
    relaxation = mip.Relaxation(model)
    real, scaled = relaxation._solver, []

    class Lost:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def Solve(self, parameters: pywraplp.MPSolverParameters) -> int:  # noqa: N802  # as OR-Tools calls it
            scaled.append(parameters.GetIntegerParam(parameters.SCALING) != parameters.SCALING_OFF)
            real.Solve(parameters)
            return answers[len(scaled) - 1]

    relaxation._solver = Lost()
    assert relaxation.maximise(Terms.of(x), 5.0) == solved
    assert scaled == [True, False][: len(answers)]


def test_rows_that_are_remembered_are_those_of_the_model() -> None:
    """3y + 2x + x <= 7 is 3x + 3y <= 7: columns ascending, each once; and what is not remembered is read."""
    model = Model()
    x, y = (model.new_int_var(0, 3, "") for _ in range(2))
    left = Terms.of(y, 3)
    left.add(x, 2)
    left.add(x, 1)
    at_most(model, left, 7)
    model.add(x - y >= -1)
    told = [(row.indices.tolist(), row.coefficients.tolist(), row.low, row.high) for row in mip.rows(model)]
    assert told[0] == ([0, 1], [3, 3], -mip.INFINITE, 7)
    assert told[1][:3] == ([0, 1], [1, -1], -1)
    model.listed.clear()
    read = next(mip.rows(model))
    assert (read.indices.tolist(), read.coefficients.tolist(), read.high) == ([0, 1], [3, 3], 7)

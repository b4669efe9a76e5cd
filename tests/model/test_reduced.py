"""What prices of a relaxation prove: bounds and values that are left, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ortools.sat.python import cp_model

from solver_sched.model.linear import Terms
from solver_sched.model.mip import INFINITE, domains, rows
from solver_sched.model.reduced import Matrix, Reduced, proven


def knapsack() -> tuple[cp_model.CpModel, list[cp_model.IntVar], Terms]:
    """Three jobs of 3, 2 and 1 GPUs worth 12, 4 and 3, in a room of 4."""
    model = cp_model.CpModel()
    jobs = [model.new_int_var(0, 1, "") for _ in range(3)]
    model.add(3 * jobs[0] + 2 * jobs[1] + jobs[2] <= 4)
    objective = Terms()
    for job, value in zip(jobs, (12, 4, 3), strict=True):
        objective.add(job, value)
    return model, jobs, objective


def left(model: cp_model.CpModel) -> list[tuple[int, int]]:
    return [(int(low), int(high)) for low, high in domains(model)]


def test_a_bound_settles_who_starts() -> None:
    """The relaxation starts 12 + 3 at a price of 2 to 3 a GPU, and the bound is 15. Without the first job at least
    12 - 3 x 3 = 3 would be lost: at value 15 it cannot stay out.
    """
    model, _, objective = knapsack()
    reduced = Reduced(model)
    proof = reduced.prove(objective)
    assert proof is not None
    assert proof.bound == 15
    reduced.keep(proof, 15)
    assert left(model)[0] == (1, 1)
    reduced.undo()
    assert left(model) == [(0, 1)] * 3


def test_what_a_lower_value_allows_stays() -> None:
    """With 7 worth of plans in question the first job (12) may stay out: 4 + 3 = 7."""
    model, _, objective = knapsack()
    reduced = Reduced(model)
    proof = reduced.prove(objective)
    assert proof is not None
    reduced.keep(proof, 7)
    assert left(model)[0][0] == 0


def test_a_level_after_another_starts_from_what_is_left() -> None:
    """12 + 3 is locked. Of the room of 4 nothing is left, so fewest starts is 2 as well: the bound of minus the number
    of starts is -2.
    """
    model, jobs, objective = knapsack()
    reduced = Reduced(model)
    proof = reduced.prove(objective)
    assert proof is not None
    model.add(12 * jobs[0] + 4 * jobs[1] + 3 * jobs[2] >= 15)
    reduced.keep(proof, 15)
    fewest = Terms()
    for job in jobs:
        fewest.add(job, -1)
    after = reduced.prove(fewest)
    assert after is not None
    assert after.bound == -2


@pytest.mark.parametrize("seed", range(60))
def test_any_prices_are_true(seed: int) -> None:
    """Whatever the prices, signs included: no point is worth more than the bound, none that is worth enough is cut."""
    rng = np.random.default_rng(seed)
    model = cp_model.CpModel()
    most = rng.integers(1, 4, 4)
    variables = [model.new_int_var(0, int(u), "") for u in most]
    for _ in range(3):
        row = cp_model.LinearExpr.weighted_sum(variables, rng.integers(-4, 9, 4).tolist())
        side = int(rng.integers(0, 12))
        model.add(row <= side) if rng.random() < 0.7 else model.add(row >= -side)
    objective = Terms.const(int(rng.integers(-5, 5)))
    for variable, worth in zip(variables, rng.integers(-6, 20, 4).tolist(), strict=True):
        objective.add(variable, worth)
    entries = list(rows(model))
    points = [
        point
        for point in itertools.product(*(range(u + 1) for u in most.tolist()))
        if all(e.low <= int(np.dot(e.coefficients, np.array(point)[e.indices])) <= e.high for e in entries)
    ]
    worth = np.zeros(4, np.int64)
    worth[[v.index for v in objective.variables]] = objective.coefficients
    reduced = Reduced(model)
    guessed = proven(Matrix.of(entries), domains(model), worth, rng.normal(0, 2, 3), objective.constant)
    for proof in (reduced.prove(objective), guessed):
        if proof is None:
            continue
        values = [objective.at(point) for point in points]
        assert all(value <= proof.bound for value in values)
        for value in set(values):
            reduced.keep(proof, value)
            domain = domains(model)
            for point, reached in zip(points, values, strict=True):
                if reached >= value:
                    assert ((point >= domain[:, 0]) & (point <= domain[:, 1])).all()
            reduced.undo()


def test_what_does_not_fit_64_bits_is_not_claimed() -> None:
    """A range of 2^61 times any price is too large for an exact sum."""
    model = cp_model.CpModel()
    huge = model.new_int_var(0, 2**61, "")
    model.add(huge <= 2**60)
    assert Reduced(model).prove(Terms.of(huge, 3)) is None


def test_between_the_relaxation_and_a_plan_lies_a_better_one() -> None:
    """The relaxation starts the first job and the last, and there is no room for a part of the second that is worth
    more: 15. The plan starts the second (4). They agree in nothing, so all is open, and 15 is found. A plan that starts
    the first job (12) agrees in that: of the others the last is found, 15 again.
    """
    model, _, objective = knapsack()
    reduced = Reduced(model)
    proof = reduced.prove(objective)
    assert proof is not None
    for incumbent in ([0, 1, 0], [1, 0, 0]):
        found = reduced.near(objective, proof, incumbent, 10.0)
        assert found == [1, 0, 1]
    assert reduced.near(objective, proof, [1, 0, 1], 10.0) is None


def test_what_whole_numbers_cost_above_is_known_below() -> None:
    """Two jobs of 3 GPUs in a room of 5: the relaxation starts 5/3, so one at most (bound 1), and 5 GPUs are in use. As
    soon as it is known that one starts at most, 3 GPUs are, and without that once more 5.
    """
    model = cp_model.CpModel()
    jobs = [model.new_int_var(0, 1, "") for _ in range(2)]
    model.add(3 * jobs[0] + 3 * jobs[1] <= 5)
    model.add(jobs[0] + jobs[1] >= 1)
    starts, gpus = Terms(), Terms()
    for job in jobs:
        starts.add(job, 1)
        gpus.add(job, 3)
    reduced = Reduced(model)
    bounds = []
    for cap, undo in ((False, False), (True, False), (False, True)):
        if cap:
            reduced.cap(1, 1)
        if undo:
            reduced.undo()
        proof = reduced.prove(gpus)
        assert proof is not None
        bounds.append(proof.bound)
    assert bounds == [5, 3, 5]
    first = reduced.prove(starts)
    assert first is not None
    assert first.bound == 1


@pytest.mark.parametrize("seed", range(60))
def test_prices_are_true_of_other_sides_and_domains(seed: int) -> None:
    """Rows and variables get other limits, as when a plan reaches other values in the levels above: no point in them is
    worth more than what the same prices say, and none that is worth enough is cut.
    """
    rng = np.random.default_rng(seed)
    model = cp_model.CpModel()
    variables = [model.new_int_var(0, 3, "") for _ in range(4)]
    for _ in range(3):
        model.add(cp_model.LinearExpr.weighted_sum(variables, rng.integers(-4, 9, 4).tolist()) <= int(rng.integers(12)))
    objective = Terms.const(int(rng.integers(-5, 5)))
    for variable, worth in zip(variables, rng.integers(-6, 20, 4).tolist(), strict=True):
        objective.add(variable, worth)
    matrix = Matrix.of(list(rows(model)))
    proof = Reduced(model).prove(objective)
    assert proof is not None
    high, domain = matrix.high + rng.integers(-3, 6, 3), np.sort(rng.integers(0, 4, (4, 2)), axis=1)
    elsewhere = proof.elsewhere(matrix.low, high, domain)
    assert elsewhere is not None
    other = matrix._replace(high=high)
    points = [
        np.array(point)
        for point in itertools.product(*(range(low, most + 1) for low, most in domain.tolist()))
        if other.holds(np.array(point))
    ]
    values = [objective.at(point.tolist()) for point in points]
    assert all(value <= elsewhere.bound for value in values)
    for value in set(values):
        left = elsewhere.left(value)
        kept = [((point >= left[:, 0]) & (point <= left[:, 1])).all() for point in points]
        assert all(kept[i] for i, reached in enumerate(values) if reached >= value)


def test_prices_of_a_side_that_is_gone_say_nothing() -> None:
    """The room's only limit is open now: 12 + 4 + 3 at 3 a GPU would be a bound of something that has none."""
    model, _, objective = knapsack()
    proof = Reduced(model).prove(objective)
    assert proof is not None
    matrix = Matrix.of(list(rows(model)))
    assert proof.elsewhere(matrix.low, np.array([INFINITE]), proof.domain) is None

"""Class totals dealt to the members of the class: every member gets its whole minimum, and nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.model.classes import JobClass
from solver_sched.model.ledger import deal
from solver_sched.problem.arrays import Ints


def job_class(size: int, count: list[int], need: int, role: list[int], role_need: tuple[int, ...]) -> JobClass:
    positions = len(count)
    return JobClass(
        jobs=np.arange(size, dtype=np.int64),
        sets=np.arange(size * positions, dtype=np.int64).reshape(size, positions),
        shape=np.zeros(positions, np.int64),
        count=np.array(count, np.int64),
        role=np.array(role, np.int64),
        role_need=role_need,
        need=need,
        rank=0,
        queue=0,
        held=np.zeros(1, np.int64),
        start_value=1,
        worth=((),) * positions,
        polite=False,
        promised=False,
    )


@dataclass(frozen=True)
class Dealing:
    """A class, how many of its members start, and totals that some split over those members has."""

    cls: JobClass
    started: int
    minimum: Ints
    growth: Ints


@st.composite
def dealings(draw: st.DrawFn) -> Dealing:
    count = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    roles = draw(st.integers(0, 2))
    role = [draw(st.integers(-1, roles - 1)) for _ in count]
    started = draw(st.integers(1, 5))
    of_role = [sum(c for c, at in zip(count, role, strict=True) if at == o) for o in range(roles)]
    role_need = tuple(draw(st.integers(0, pods)) for pods in of_role)
    need = draw(st.integers(sum(role_need), sum(count)))
    minimum, room = [0] * len(count), [0] * len(count)
    for _ in range(started):
        one = [0] * len(count)
        for o, missing in enumerate(role_need):
            # one role need after the other, then the rest wherever there is room
            _put(draw, one, count, [i for i, at in enumerate(role) if at == o], missing)
        _put(draw, one, count, list(range(len(count))), need - sum(one))
        for i, pods in enumerate(one):
            minimum[i] += pods
            room[i] += count[i] - pods
    growth = [draw(st.integers(0, most)) for most in room]
    cls = job_class(5, count, need, role, role_need)
    return Dealing(cls, started, np.array(minimum, np.int64), np.array(growth, np.int64))


def _put(draw: st.DrawFn, one: list[int], count: list[int], at: list[int], pods: int) -> None:
    """`pods` more pods somewhere at these positions."""
    for _ in range(pods):
        one[draw(st.sampled_from([i for i in at if one[i] < count[i]]))] += 1


@settings(max_examples=300)
@given(dealings())
def test_every_member_gets_its_minimum_with_its_roles_and_the_totals_stay(case: Dealing) -> None:
    cls = case.cls
    out = deal(cls, case.started, case.minimum, np.zeros_like(case.growth))
    assert out.shape == (case.started, len(cls.count))
    assert (out >= 0).all()
    assert (out <= cls.count).all()
    assert out.sum(axis=1).tolist() == [cls.need] * case.started
    assert out.sum(axis=0).tolist() == case.minimum.tolist()
    for o, missing in enumerate(cls.role_need):
        assert (out[:, cls.role == o].sum(axis=1) >= missing).all()


@settings(max_examples=200)
@given(dealings())
def test_growth_is_added_evenly_to_the_minimums(case: Dealing) -> None:
    cls = case.cls
    minimum = deal(cls, case.started, case.minimum, np.zeros_like(case.growth))
    out = deal(cls, case.started, case.minimum, case.growth)
    assert (out >= minimum).all()
    assert (out <= cls.count).all()
    assert out.sum(axis=0).tolist() == (case.minimum + case.growth).tolist()
    for i in range(len(cls.count)):
        grown, rest = out[:, i] > minimum[:, i], out[:, i] < cls.count[i]
        if grown.any() and rest.any():
            # nobody was raised past a member that could still take one
            assert out[grown, i].max() - out[rest, i].min() <= 1


def test_a_mixed_minimum_is_split_evenly() -> None:
    # Three members of 2 + 2 pods with a minimum of 3: 5 + 4 of the two kinds are 2+1, 2+1, 1+2 in some order.
    cls = job_class(3, [2, 2], 3, [-1, -1], ())
    out = deal(cls, 3, np.array([5, 4]), np.array([0, 0]))
    assert sorted(out.tolist()) == [[1, 2], [2, 1], [2, 1]]


def test_a_master_each() -> None:
    # Two members with a master (role 0) and three workers, minimum 3 with one master: 2 masters, 4 workers.
    cls = job_class(2, [1, 3], 3, [0, 1], (1, 0))
    assert deal(cls, 2, np.array([2, 4]), np.array([0, 1])).tolist() == [[1, 3], [1, 2]]


def test_totals_that_no_split_has_are_refused() -> None:
    # Two members with a minimum of 2 need 4 pods; there are 3.
    with pytest.raises(AssertionError, match="does not split"):
        deal(job_class(2, [2, 2], 2, [-1, -1], ()), 2, np.array([2, 1]), np.array([0, 0]))
    # One member of 2 pods, of which 1 is its minimum, cannot grow by 2.
    with pytest.raises(AssertionError, match="growth exceeds"):
        deal(job_class(1, [2], 1, [-1], ()), 1, np.array([1]), np.array([2]))

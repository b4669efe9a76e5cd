"""Sums of requests and distinct rows: the fast ways give what the plain ones give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver_sched.cluster.objects import Needs, Pod
from solver_sched.problem import vectors
from solver_sched.problem.arrays import Ints
from solver_sched.problem.vectors import SUM_LIMIT, Vectors, distinct, largest_amount
from solver_sched.snapshot import Snapshot

tables = st.integers(0, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from((0, 1, 2, -1, 2**62)), min_size=width, max_size=width), max_size=12
    ).map(lambda rows: np.array(rows, np.int64).reshape(len(rows), width))
)


def same_as_numpy(rows: Ints) -> None:
    first, inverse = distinct(rows)
    if not rows.shape[1]:  # numpy cannot
        assert (len(first), inverse.tolist()) == (min(1, len(rows)), [0] * len(rows))
        return
    _, expected_first, expected_inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    assert rows[first].tolist() == rows[expected_first].tolist()
    assert inverse.tolist() == expected_inverse.reshape(-1).tolist()


@given(tables)
def test_distinct_rows_are_those_of_numpy_in_its_order(rows: Ints) -> None:
    same_as_numpy(rows)


def test_rows_that_are_mixed_up_are_told_apart_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a multiplier of 0 all sums are equal."""
    monkeypatch.setattr(vectors, "MIX", np.uint64(0))
    same_as_numpy(np.array([[1, 2], [0, 5], [1, 2], [3, 3]], np.int64))


A, B = Needs((("cpu", 2), ("pods", 1))), Needs((("memory", 7), ("pods", 1)))
PODS = [Pod("ns", f"p{n}", needs) for n, needs in enumerate((A, A, B, A))]


@pytest.mark.parametrize("rows", [2, 10_000])
def test_requests_are_added_where_their_pods_are(rows: int) -> None:
    """A table of counts for few rows, one by one for many: 2 CPUs each of the first two, then 7 and 2 in the last."""
    vector = Vectors({"cpu": 0, "memory": 1, "pods": 2}, SUM_LIMIT)
    out = np.ones((rows, 3), np.int64)
    vector.add(out, [0, 0, rows - 1, rows - 1], vector.rows(PODS))
    assert out[0].tolist() == [5, 1, 3]
    assert out[-1].tolist() == [3, 8, 3]
    assert int(out.sum()) == 3 * rows + 6 + 7 + 4
    vector.add(out, [], [])


def test_totals_of_equal_and_of_different_pods() -> None:
    vector = Vectors({"cpu": 0, "memory": 1, "pods": 2}, SUM_LIMIT)
    assert vector.total(PODS).tolist() == [6, 7, 4]
    assert vector.total(PODS[:2]).tolist() == [4, 0, 2]
    assert vector.total([]).tolist() == [0, 0, 0]


def test_amounts_whose_sum_leaves_64_bits_are_cut_down_to_their_part() -> None:
    """Three pods of 2^62: each counts as at most a quarter of 2^63 - 1."""
    huge = Needs((("memory", 2**62),))
    pods = tuple(Pod("ns", f"p{n}", huge) for n in range(3))
    assert largest_amount(Snapshot(pods=pods)) == SUM_LIMIT // 4
    assert largest_amount(Snapshot(pods=pods[:1])) == SUM_LIMIT

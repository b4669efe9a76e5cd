"""What a run is measured by, on numbers small enough to work out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solver_sched.simulate.measures import fair, jain, spread


def test_jain_of_equals_is_one_and_of_one_who_has_all_one_in_n() -> None:
    assert jain(np.array([0.5, 0.5, 0.5])) == 1.0
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain(np.array([1.0, 0.5])) == 1.5**2 / (2 * 1.25)
    assert np.isnan(jain(np.array([])))
    assert jain(np.array([0.0, 0.0])) == 1.0  # nobody has anything: alike


def test_fair_shares_are_weighted_and_nobody_gets_more_than_he_asks() -> None:
    """12 CPUs, weights 1, 2, 3, asks 1, 20, 20: the first has its 1, the others 11 x 2/5 and 11 x 3/5. Of memory there
    is enough.
    """
    shares = fair(np.array([12.0, 100.0]), np.array([1.0, 2.0, 3.0]), np.array([[1.0, 5.0], [20.0, 5.0], [20.0, 5.0]]))
    assert np.allclose(shares, [[1.0, 5.0], [4.4, 5.0], [6.6, 5.0]])


@given(st.integers(0, 100), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=5))
def test_fair_shares_use_all_there_is_or_all_that_is_asked(total: int, queues: list[tuple[int, int]]) -> None:
    weight, ask = (np.array(column, np.float64) for column in zip(*queues, strict=True))
    shares = fair(np.array([float(total)]), weight, ask[:, None])[:, 0]
    assert (shares <= ask + 1e-9).all()
    wanted = ask.sum() if ask.sum() <= total else min(total, ask[weight > 0].sum())
    assert np.isclose(shares.sum(), wanted)


def test_spread_of_nothing_is_zeros() -> None:
    assert spread([]) == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    # percentiles lie between: 95 % of the way from 1 to 3 in two steps is 0.9 of the second one
    assert spread([1, 2, 3]) == {"mean": 2.0, "p50": 2.0, "p95": 2.9, "max": 3.0}

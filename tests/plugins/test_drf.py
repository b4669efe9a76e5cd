"""Bands of growth worth."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from solver_sched.plugins.drf import band_run, band_weight


@given(st.integers(0, 200), st.integers(1, 30), st.integers(0, 200))
def test_a_run_ends_where_counting_finds_another_weight(position: int, step: int, reach: int) -> None:
    weight = band_weight(position, reach)
    run = band_run(position, step, reach)
    if run is None:
        assert weight == 1  # of the last band: there is none below it
    else:
        assert run == next(k for k in count(1) if band_weight(position + k * step, reach) != weight)

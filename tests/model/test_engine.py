"""The solver leaves the process as it found it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ortools.sat.python import cp_model

from solver_sched.model.engine import engine


@contextmanager
def presses() -> Iterator[list[int]]:
    """Ctrl-C is written down while the block lasts."""
    seen: list[int] = []

    def press(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_after_a_solve_is_still_the_callers() -> None:
    """CP-SAT's own handler would leave SIG_DFL behind, which ends the process here."""
    model = cp_model.CpModel()
    model.maximize(model.new_int_var(0, 3, "x"))
    with presses() as seen:
        assert engine().solve(model) == cp_model.OPTIMAL
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]

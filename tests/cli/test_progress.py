from __future__ import annotations

import io
import time

import pytest

from solver_sched.cli import progress as module
from solver_sched.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stands in for stderr; not a fixture, because capturing puts its own stderr back between set-up and test."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.02)
    return stream


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    monkeypatch.setattr(module, "DELAY_SECONDS", 60.0)
    with progress("planning") as tell:
        tell("start = 1, bound 2")
    assert stream.getvalue() == ""


def test_long_work_shows_the_running_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with progress("planning [x]") as tell:
        tell("start>=0 = 96, bound 120")
        time.sleep(0.3)
    assert "planning [x]: start>=0 = 96, bound 120" in stream.getvalue()


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    with progress("planning") as tell:
        tell("x")
        time.sleep(0.1)
    assert stream.getvalue() == ""

"""The command line: `solver-sched` (see `app.py`)."""

from __future__ import annotations

from solver_sched.cli.app import main

__all__ = ["main"]

"""The command line: `solver-sched` (see `app.py`)."""

from __future__ import annotations

from solver_sched.cli.app import complete, main, plugin

__all__ = ["complete", "main", "plugin"]

"""`python -m solver_sched.cli` is `solver-sched`."""

from __future__ import annotations

from solver_sched.cli.app import main

main()

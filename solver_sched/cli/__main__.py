"""`python -m solver_sched.cli` is `solver-sched`."""

from __future__ import annotations

from solver_sched.cli.app import main

if __name__ == "__main__":  # the solver process imports this module again
    main()

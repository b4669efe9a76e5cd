"""CP-SAT as all solves here run it."""

from __future__ import annotations

from ortools.sat.python import cp_model


def engine() -> cp_model.CpSolver:
    """A solver of one thread, which is what makes its answer the same each time, and without CP-SAT's own handler of
    SIGINT: that leaves SIG_DFL behind (OR-Tools, util/sigint.cc), so that the next Ctrl-C would end the process at once
    instead of reaching the caller's handler.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.presolve_inclusion_work_limit = 0
    return solver

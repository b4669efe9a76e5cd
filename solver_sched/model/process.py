"""Solve where it can be killed: a worker process that is kept warm, fed problems and sends every improved plan back.

CP-SAT may run past its own time limit (OR-Tools issues #3243, #4882), so the hard limit is ours: when it passes, the
worker is killed and the last incumbent it sent is the answer.
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from solver_sched.model.effort import Effort, Fill, LevelResult, Progress, Solution, Stand
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Plan, Problem

HARD_FACTOR = 1.1
HARD_EXTRA = 1.0
"""The worker is killed at HARD_FACTOR x budget + HARD_EXTRA wall seconds. What it does looks at the clock; it is killed
where a solver does not: that costs the next cycle a second of imports.
"""
FAILURES = (
    AssertionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a solve may end with on numbers it cannot hold, our own defects included: the greedy plan is then the answer."""
Question = tuple[Problem, Rules, Effort, Plan, Fill | None, Plan | None, Stand | None]
"""What the worker is asked: `solve`'s problem, rules, effort, greedy plan, fill, greedy plan that evicts, stand."""
MEMORY = "SOLVER_SCHED_MEMORY"
"""Environment variable: bytes that this process and its worker may take together, instead of the container's limit."""
MEMORY_SHARE = 0.6
"""The worker's part of it."""
START_SECONDS = 30.0
"""A worker that has not answered by then has failed to start."""


class Worker:
    """One child process and the pipe to it.

    A fresh interpreter, neither forked nor spawned by multiprocessing: a fork would copy the locks of the parent's
    threads (a live watch), a spawn would run the caller's main script once more.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  # our own interpreter on our own module
                [sys.executable, "-c", f"from solver_sched.model.process import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # the terminal's Ctrl-C is for the caller, who ends us
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.pipe: Connection = Connection(ours.detach())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


_warm: list[Worker] = []
"""The one worker that is kept, if it lives."""
_turn = threading.RLock()
"""Held from a question to its answer: threads that plan at the same time take turns."""


def warm_up() -> Worker:
    """The worker; started now if there is none, so that its imports run while the caller still reads input."""
    with _turn:
        if not _warm or _warm[0].process.poll() is not None:
            shut_down()
            _warm.append(Worker())
        return _warm[0]


def shut_down() -> None:
    """End the worker; the next solve starts another."""
    while _warm:
        _warm.pop().stop()


atexit.register(shut_down)


def solve_apart(
    problem: Problem,
    rules: Rules,
    effort: Effort,
    greedy: Plan,
    progress: Progress | None,
    fill: Fill | None = None,
    evicting: Plan | None = None,
    stand: Stand | None = None,
    *,
    apart: bool = True,
) -> tuple[Solution | None, str]:
    """(solution, "") or (last incumbent or None, why the worker was lost). `apart` False solves in this process."""
    if not apart:
        from solver_sched.model.solve import solve

        try:
            return solve(problem, rules, effort, progress, greedy, fill=fill, evicting=evicting, stand=stand), ""
        except FAILURES as error:
            return None, f"the solver failed: {type(error).__name__}: {error}"
    with _turn:
        try:
            return _ask((problem, rules, effort, greedy, fill, evicting, stand), progress)
        except BaseException:
            # interrupted: the answer that is still to come would be taken for that of the next question
            shut_down()
            raise


def _ask(question: Question, progress: Progress | None) -> tuple[Solution | None, str]:
    pipe = warm_up().pipe
    best: Solution | None = None
    try:
        pipe.send(question)
        # a new worker still imports: that is no time of the solve
        if not pipe.poll(START_SECONDS):
            shut_down()
            return None, "the solver process did not start"
        deadline = time.monotonic() + HARD_FACTOR * question[2].seconds + HARD_EXTRA
        while pipe.poll(max(0.0, deadline - time.monotonic())):
            match pipe.recv():
                case LevelResult() as level:
                    if progress is not None:
                        progress(level)
                case Solution() as incumbent:
                    best = incumbent
                case ("done", Solution() as last):
                    return last, ""
                case ("failed", str() as text):
                    return best, f"the solver failed: {text}"
    except (EOFError, OSError):
        lost = "the solver process died"
    else:
        lost = f"the solver overran {question[2].seconds:.1f} s and was stopped"
    shut_down()
    warm_up()  # its imports run while the caller still works on this cycle
    return best, lost


def _goes_first() -> None:
    """When memory runs out, this process ends and not the one that asked: that one goes on with the greedy plan.

    The kernel may end a whole container for one process (kubelet sets memory.oom.group since 1.28), so there is a limit
    of our own below the container's.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        most = os.environ.get(MEMORY) or Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return
    if most.isdecimal():
        share = int(int(most) * MEMORY_SHARE)
        with suppress(OSError, ValueError):  # a lower limit of the system stays
            resource.setrlimit(resource.RLIMIT_DATA, (share, share))


def serve(descriptor: int) -> None:
    """The worker's loop: one problem after another until the pipe closes."""
    _goes_first()
    from solver_sched.model.solve import solve

    pipe: Connection = Connection(descriptor)
    gc.disable()
    while True:
        gc.collect()  # nobody waits now
        try:
            problem, rules, effort, greedy, fill, evicting, stand = pipe.recv()
            pipe.send(None)
            try:
                done = solve(problem, rules, effort, pipe.send, greedy, pipe.send, fill, evicting, stand)
            except FAILURES as error:
                pipe.send(("failed", f"{type(error).__name__}: {error}"))
            else:
                pipe.send(("done", done))
        except (EOFError, OSError, KeyboardInterrupt):  # the caller is gone
            return

"""Several schedulers on the same traces, side by side: the document of `solver-sched simulate`.

Runs go one after another in this process, or to any `concurrent.futures.Executor`: a pool of processes, or what
dask.distributed's `Client.get_executor()` gives. Through a folder that all can see, runs say how far they are and are
told to stop; where it is not seen (a worker on another machine), a run goes on to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct

from solver_sched.cycle import CycleReport
from solver_sched.simulate.replay import BUDGET, PERIOD, Run, Told, replay
from solver_sched.simulate.trace import Trace

LOOK_SECONDS = 0.3
"""How often runs elsewhere are looked at, and how often they say how far they are."""
STOP = "stop"


class Task(Struct, frozen=True):
    """One run of one trace. `period`: virtual seconds between cycles; `budget`: deterministic seconds of a solve."""

    trace: Trace
    run: Run
    period: int = PERIOD
    budget: float = BUDGET


Result = tuple[dict[str, Any], bool]
"""What `replay` gives."""


def simulate(
    tasks: Sequence[Task],
    executor: Executor | None = None,
    *,
    told: Callable[[int, Told], None] = lambda _number, _told: None,
    stopped: Callable[[], bool] = lambda: False,
    see: Callable[[CycleReport], None] = lambda _: None,
) -> dict[str, Any]:
    """The simulation document of all tasks, in their order.

    `told`: hears of each run (its number) how far it is. `see`: is shown each cycle of runs in this process. `stopped`:
    asked again and again; once it is true, runs end
    where they are, and the document has `partial: true` and what there is. The first task's trace stands in the
    document. Raises what `replay` raises.
    """
    results: Iterator[tuple[Task, Result | None]]
    if executor is None:
        results = ((task, _here(number, task, told, stopped, see)) for number, task in enumerate(tasks))
    else:
        results = zip(tasks, _elsewhere(tasks, executor, told, stopped), strict=True)
    runs, notes, partial = [], [*tasks[0].trace.notes], False
    for task, result in results:
        if result is None:
            partial = True
            notes.append(f"{task.run.solver} {task.run.policy or 'default'} with seed {task.run.seed} was not run")
            continue
        run, whole = result
        partial |= not whole
        notes += [f"{run['name']}: {note}" for note in run.pop("notes")]
        runs.append(run)
    trace = tasks[0].trace
    return {
        "apiVersion": "solver-sched.io/v1alpha1",
        "kind": "Simulation",
        "trace": {
            "source": trace.source,
            "jobs": len(trace.jobs),
            "pods": trace.pods,
            "nodes": len(trace.nodes),
            "queues": [queue.name for queue in trace.queues],
            "seed": trace.seed,
            "period": tasks[0].period,
            "problems": [msgspec.to_builtins(problem) for problem in trace.problems],
        },
        "partial": partial,
        "notes": list(dict.fromkeys(notes)),
        "runs": runs,
    }


def _here(
    number: int,
    task: Task,
    told: Callable[[int, Told], None],
    stopped: Callable[[], bool],
    see: Callable[[CycleReport], None],
) -> Result | None:
    def goes_on(so_far: Told) -> bool:
        told(number, so_far)
        return not stopped()

    if stopped():
        return None
    return replay(task.trace, task.run, period=task.period, budget=task.budget, goes_on=goes_on, see=see)


def _elsewhere(
    tasks: Sequence[Task],
    executor: Executor,
    told: Callable[[int, Told], None],
    stopped: Callable[[], bool],
) -> list[Result | None]:
    with TemporaryDirectory(prefix="solver-sched-") as name:
        folder = Path(name)
        futures = [executor.submit(carried_out, task, name, number) for number, task in enumerate(tasks)]
        left: set[Future[Result]] = set(futures)
        try:
            while left:
                left = wait(left, LOOK_SECONDS).not_done
                for number in range(len(tasks)):
                    with suppress(OSError, msgspec.DecodeError):  # not there yet, or half written
                        told(number, msgspec.json.decode((folder / str(number)).read_bytes(), type=Told))
                if left and stopped():
                    (folder / STOP).touch()
                    left = {future for future in left if not future.cancel()}
        finally:
            for future in left:
                future.cancel()
        return [_result(future) for future in futures]


def _result(future: Future[Result]) -> Result | None:
    """None of a run that was cancelled, or whose process is gone."""
    if future.cancelled():
        return None
    try:
        return future.result()
    except BrokenExecutor:
        return None


def carried_out(task: Task, folder: str, number: int) -> Result:
    """One task, in whatever process. `folder`: where this run, `number`, says how far it is; once it is gone, nobody
    waits for the result any more.
    """
    where, seen = Path(folder), 0.0
    there = where.exists()

    def goes_on(so_far: Told) -> bool:
        nonlocal seen
        now = time.monotonic()
        if not there or now - seen < LOOK_SECONDS:
            return True
        seen = now
        with suppress(OSError):
            (where / str(number)).write_bytes(msgspec.json.encode(so_far))
        return where.exists() and not (where / STOP).exists()

    return replay(task.trace, task.run, period=task.period, budget=task.budget, goes_on=goes_on)

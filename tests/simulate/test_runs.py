"""Several runs side by side, here and through executors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from solver_sched.simulate.replay import Run, Told
from solver_sched.simulate.runs import Task, carried_out, simulate
from tests.simulate.traces import job, trace

TASKS = [Task(trace(job("a"), job("b", at=500)), Run("greedy", policy)) for policy in ("default", "kube-batch")]


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    for one in found["runs"]:
        one["summary"].pop("cycle")
    return found


def test_any_executor_gives_what_running_here_gives() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert comparable(simulate(TASKS, pool)) == comparable(simulate(TASKS))


def test_what_is_stopped_has_what_there_is_and_what_never_began_is_named() -> None:
    """Stopped at the second cycle of the first run: job a has ended. The second run does not begin."""
    cycles: list[Told] = []
    found = simulate(TASKS, told=lambda _number, told: cycles.append(told), stopped=lambda: len(cycles) >= 2)
    assert found["partial"] is True
    assert [one["summary"]["jobs"] for one in found["runs"]] == [{"ended": 1, "failed": 0, "left": 1}]
    assert found["notes"] == ["greedy kube-batch with seed 0 was not run"]


def test_a_run_that_nobody_waits_for_any_more_ends(tmp_path: Path) -> None:
    """Its folder is gone after the first cycle. Where it never was, on another machine, the run goes on to its end."""
    folder = tmp_path / "runs"
    folder.mkdir()
    Thread(target=partial(_remove_once_used, folder)).start()
    many = trace(*(job(f"j{n}", at=600 * n) for n in range(5000)))
    run, whole = carried_out(Task(many, Run("greedy")), str(folder), 0)
    assert not whole
    assert run["summary"]["jobs"]["left"] > 0
    assert carried_out(TASKS[0], str(tmp_path / "elsewhere"), 0)[1]


def _remove_once_used(folder: Path) -> None:
    while not (folder / "0").exists():
        time.sleep(0.01)
    shutil.rmtree(folder)


class Dies(Executor):
    """A pool whose processes are killed, as the kernel does when memory runs out."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("a process was terminated abruptly"))
        return future


def test_runs_whose_process_is_gone_are_named() -> None:
    found = simulate(TASKS, Dies())
    assert (found["partial"], found["runs"], len(found["notes"])) == (True, [], 2)


def test_neither_dask_nor_the_solver_is_imported_for_a_greedy_run() -> None:
    code = (
        "import sys; from tests.simulate.test_runs import TASKS, simulate; simulate(TASKS);"
        "print(sorted({'distributed', 'dask', 'kubernetes', 'ortools'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

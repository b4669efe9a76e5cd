"""A solve that dies or hangs costs its level, never the cycle: the last incumbent or greedy stands, and it is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from solver_sched.cluster.objects import Needs, Node, Pod
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, run_cycle
from solver_sched.document import certificate
from solver_sched.greedy import greedy_plan
from solver_sched.model import process
from solver_sched.model.effort import Effort, LevelResult
from solver_sched.model.process import MEMORY, shut_down, solve_apart, warm_up
from solver_sched.model.solve import sparingly
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations

POLICY = load_policy("default")


@pytest.fixture(autouse=True)
def _fresh_worker() -> Iterator[None]:
    yield
    shut_down()


def three_of_four() -> Snapshot:
    """A node of 3 cpu and four pods of 1."""
    needs = Needs(request=(("cpu", 1000), ("pods", 1)))
    pods = tuple(Pod("ns", f"p{i}", needs, scheduler="solver-sched") for i in range(4))
    return Snapshot(nodes=(Node("n", {"cpu": 3000, "pods": 110}),), pods=pods)


def stated(snapshot: Snapshot) -> tuple[Problem, Rules, Plan]:
    problem, _ = encode(snapshot)
    rules = derive(problem, POLICY)
    return problem, rules, greedy_plan(problem, rules)


def rows(plan: Plan) -> list[list[int]]:
    return [plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist()]


def test_the_process_gives_what_solving_here_gives_and_reports_every_level() -> None:
    problem, rules, greedy = stated(three_of_four())
    seen: list[LevelResult] = []
    there, lost = solve_apart(problem, rules, Effort(1.0), greedy, seen.append)
    here, _ = solve_apart(problem, rules, Effort(1.0), greedy, None, apart=False)
    assert lost == ""
    assert there is not None
    assert here is not None
    assert rows(there.plan) == rows(here.plan)
    assert [(level.name, level.value) for level in there.levels] == [(level.name, level.value) for level in here.levels]
    assert [level.name for level in seen] == [level.name for level in there.levels]


def test_one_worker_serves_many_solves() -> None:
    first = warm_up().process.pid
    for _ in range(3):
        solution, lost = solve_apart(*arguments(three_of_four()), None)
        assert (solution is not None, lost) == (True, "")
    assert warm_up().process.pid == first


def arguments(snapshot: Snapshot, seconds: float = 1.0) -> tuple[Problem, Rules, Effort, Plan]:
    problem, rules, greedy = stated(snapshot)
    return problem, rules, Effort(seconds), greedy


def large() -> Snapshot:
    """Many levels, each of some tens of milliseconds at least."""
    return read_objects(generate(nodes=100, gangs=120, seed=1))


def test_a_worker_killed_in_mid_solve_leaves_its_last_incumbent() -> None:
    problem, rules, effort, greedy = arguments(large(), 5.0)
    seen: list[LevelResult] = []

    def kill_at_the_third(level: LevelResult) -> None:
        seen.append(level)
        if len(seen) == 3:
            warm_up().process.kill()

    solution, lost = solve_apart(problem, rules, effort, greedy, kill_at_the_third)
    assert lost == "the solver process died"
    assert solution is not None
    # the incumbent of the first level is sent right after it, those of others as far as that costs little
    told = [level.name for level in solution.levels]
    assert told
    assert told == [level.name for level in seen[: len(told)]]
    assert violations(problem, rules, solution.plan) == []


def test_incumbents_are_told_for_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling takes 1 s. Told at 0, done at 1: again from 1 + 1 / 0.1 = 11 on."""
    now, told = [0.0], list[float]()
    monkeypatch.setattr("solver_sched.model.solve.time.monotonic", lambda: now[0])

    def tell() -> None:
        told.append(now[0])
        now[0] += 1

    again = sparingly(tell)
    for at in (0.0, 5.0, 10.9, 11.0, 12.0):
        now[0] = at
        again()
    assert told == [0.0, 11.0]


def test_a_worker_killed_before_its_first_level_leaves_greedy_and_a_note() -> None:
    pid = warm_up().process.pid
    os.kill(pid, signal.SIGSTOP)  # else it might be done before it is killed
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    report = run_cycle(three_of_four(), POLICY, Budget(1.0))
    assert report.notes == ("the solver process died",)
    assert report.winner == "greedy"
    assert int(report.plan.count.sum()) == 3
    assert report.as_dict()["certificate"] == {"status": "greedy", "gap": None, "winner": "greedy"}


def test_a_worker_that_runs_out_of_memory_leaves_greedy_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 MiB for both, of which the worker may take 48: what it imports alone needs more."""
    monkeypatch.setenv(MEMORY, str(80 * 2**20))
    shut_down()
    report = run_cycle(three_of_four(), POLICY, Budget(5.0))
    assert report.notes == ("the solver process died",)
    assert report.winner == "greedy"
    assert int(report.plan.count.sum()) == 3
    monkeypatch.delenv(MEMORY)
    shut_down()  # the next one was started within the same limit
    assert run_cycle(three_of_four(), POLICY, Budget(5.0)).winner == "solver"


def test_a_worker_that_hangs_is_killed_and_the_next_solve_works(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = warm_up()
    with monkeypatch.context() as patch:
        patch.setattr(process, "HARD_FACTOR", 0.0)
        patch.setattr(process, "HARD_EXTRA", 0.05)
        began = time.monotonic()
        solution, lost = solve_apart(*arguments(large(), 60.0), None)
        assert lost == "the solver overran 60.0 s and was stopped"
        assert solution is None or solution.levels
        assert time.monotonic() - began < 20
        assert process._warm  # the next one starts at once
    assert stuck.process.returncode == -signal.SIGKILL
    solution, lost = solve_apart(*arguments(three_of_four()), None)
    assert lost == ""
    assert solution is not None
    assert int(solution.plan.count.sum()) == 3


def test_a_worker_that_does_not_answer_at_all_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_SECONDS", 0.2)
    os.kill(warm_up().process.pid, signal.SIGSTOP)
    assert solve_apart(*arguments(three_of_four()), None) == (None, "the solver process did not start")
    monkeypatch.setattr(process, "START_SECONDS", 30.0)
    assert solve_apart(*arguments(three_of_four()), None)[1] == ""


def test_what_fails_inside_is_a_note_and_the_worker_lives_on() -> None:
    problem, rules, effort, greedy = arguments(three_of_four())
    broken = replace(problem, set_shape=problem.set_shape + 99)  # names a shape that does not exist
    solution, lost = solve_apart(broken, rules, effort, greedy, None)
    pid = warm_up().process.pid
    assert solution is None
    assert lost.startswith("the solver failed: IndexError")
    assert solve_apart(problem, rules, effort, greedy, None)[1] == ""
    assert warm_up().process.pid == pid


def test_a_caller_that_gives_up_leaves_nothing_behind_for_the_next() -> None:
    """Ctrl-C, or a progress display that fails: the answer of that solve must not be taken for that of the next."""

    def interrupt(level: LevelResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_apart(*arguments(large(), 5.0), interrupt)
    problem, rules, effort, greedy = arguments(three_of_four())
    solution, lost = solve_apart(problem, rules, effort, greedy, None)
    assert lost == ""
    assert solution is not None
    assert solution.plan.placed(problem).tolist() == [1, 1, 1, 0]


def test_what_a_lost_worker_left_free_is_filled() -> None:
    """Killed at its third level, it has not come to most pods: none of them waits where it would fit."""
    seen: list[LevelResult] = []

    def kill_at_the_third(level: LevelResult) -> None:
        seen.append(level)
        if len(seen) == 3:
            warm_up().process.kill()

    report = run_cycle(large(), POLICY, Budget(20.0), progress=kill_at_the_third)
    assert "the solver process died" in report.notes
    assert report.winner == "solver"
    filled = greedy_plan(report.problem, report.rules, report.plan)
    assert filled.count.sum() == report.plan.count.sum() > 0


def test_levels_that_a_lost_worker_did_not_come_to_are_not_proven() -> None:
    """start and grow of three_of_four are proven; without what comes after them nothing more is claimed."""
    report = run_cycle(three_of_four(), POLICY, Budget(5.0, apart=False))
    assert certificate(report)["status"] == "optimal"
    names = [level.name for level in report.levels]
    lost = replace(report, levels=report.levels[: names.index("disruption")])
    assert certificate(lost) == {"status": "gap", "gap": None, "level": "disruption", "winner": "solver"}


PLANS_A_LARGE_CLUSTER = """
from tests.model.test_process import arguments, large
from solver_sched.model.process import solve_apart, warm_up
problem = arguments(large(), 60.0)
print(warm_up().process.pid, flush=True)
solve_apart(*problem, lambda level: print("solving", flush=True))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_goes_quietly_with_its_caller(ending: signal.Signals) -> None:
    """Ctrl-C reaches all of the terminal's process group; SIGKILL leaves the caller no time to end its worker."""
    caller = subprocess.Popen(
        [sys.executable, "-c", PLANS_A_LARGE_CLUSTER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    assert caller.stdout is not None
    worker = int(caller.stdout.readline())
    if ending != signal.SIGINT:  # that one while the worker still imports
        assert caller.stdout.readline() == "solving\n"
    os.killpg(caller.pid, ending)
    _, said = caller.communicate(timeout=30)
    assert caller.returncode == -ending
    assert "serve" not in said
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_plans_from_threads_do_not_mix() -> None:
    """Clusters of 1, 2 .. 8 cpu and ten pods of 1: every thread gets the answer to its own question."""

    def places(cpu: int) -> int:
        needs = Needs(request=(("cpu", 1000), ("pods", 1)))
        pods = tuple(Pod("ns", f"p{i}", needs, scheduler="solver-sched") for i in range(10))
        snapshot = Snapshot(nodes=(Node("n", {"cpu": 1000 * cpu, "pods": 110}),), pods=pods)
        report = run_cycle(snapshot, POLICY, Budget(5.0))
        assert report.notes == ()
        assert report.winner == "solver"
        return int(report.plan.count.sum())

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(places, range(1, 9))) == list(range(1, 9))

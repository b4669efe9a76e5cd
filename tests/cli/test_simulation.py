"""`solver-sched simulate`: its inputs, its answers in every form, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import yaml

from solver_sched.report.simulation import lasting
from tests.cli.test_commands import refused, run

SMALL = "nodes=2,jobs=4,days=0.02,load=0.5"
TRACE = """\
{"kind": "Node", "name": "n", "allocatable": {"cpu": 4}}
{"kind": "Queue", "name": "q"}
{"kind": "Job", "name": "a", "submitted": 1, "runTime": 100, "queue": "q", \
"pods": [{"count": 4, "requests": {"cpu": 1}}]}
{"kind": "Job", "name": "b", "submitted": 61, "runTime": 50, "queue": "q", "pods": [{"requests": {"cpu": 4}}]}
"""


@pytest.fixture
def given(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return str(path)


def document(*arguments: str) -> Any:
    result = run("simulate", *arguments, "-o", "json", "--jobs", "1")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_document_of_a_trace(given: str) -> None:
    """a runs from 60 to 160; b, which came at 61, from 180 to 230."""
    found = document("--trace", given, "--solvers", "greedy")
    assert (found["apiVersion"], found["kind"], found["partial"]) == ("solver-sched.io/v1alpha1", "Simulation", False)
    trace = {"jobs": 2, "pods": 5, "nodes": 1, "queues": ["q"], "seed": 0, "period": 60, "problems": []}
    assert found["trace"] == {"source": given, **trace}
    (one,) = found["runs"]
    assert (one["name"], one["solver"], one["policy"], one["seed"]) == ("greedy default", "greedy", "default", 0)
    assert one["jobs"][1] == {
        "name": "default/b",
        "queue": "q",
        "pods": 1,
        "submitted": 61,
        "started": 180,
        "ended": 230,
        "evictions": 0,
    }
    assert one["queues"][0]["jobs"] == 2
    assert len(one["series"]["time"]) == len(one["series"]["queues"]["q"]["share"]) == len(one["series"]["pending"])


def test_solvers_policies_and_seeds_side_by_side() -> None:
    found = document("--generate", SMALL, "--policies", "default,preempting", "--seeds", "2", "--seed", "7")
    assert [(one["name"], one["seed"]) for one in found["runs"]] == [
        (f"{solver} {policy}", seed)
        for seed in (7, 8)
        for policy in ("default", "preempting")
        for solver in ("greedy", "optimal")
    ]
    assert found["trace"]["seed"] == 7
    assert found["runs"][0]["jobs"] != found["runs"][4]["jobs"]  # each seed has a workload of its own


def test_runs_in_other_processes_give_the_same(given: str) -> None:
    def comparable(found: Any) -> Any:
        for one in found["runs"]:
            one["summary"].pop("cycle")
        return found

    result = run("simulate", "--trace", given, "-o", "json", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert comparable(json.loads(result.stdout)) == comparable(document("--trace", given))


@pytest.mark.parametrize("form", ["table", "wide", "yaml"])
def test_other_forms(given: str, form: str) -> None:
    result = run("simulate", "--trace", given, "--solvers", "greedy", "-o", form, "--jobs", "1")
    assert result.exit_code == 0, result.output
    if form == "yaml":
        assert yaml.safe_load(result.stdout)["kind"] == "Simulation"
        return
    header, row = [line.split() for line in result.stdout.splitlines() if line.startswith(("RUN  ", "greedy "))][:2]
    assert header[:4] == ["RUN", "ENDED", "FAILED", "LEFT"]
    # waits 59 and 119 s
    assert row[:6] == ["greedy", "default", "2", "0", "0", "1m29s"]
    assert ("Queues" in result.stdout, "Sizes" in result.stdout) == (form == "wide", form == "wide")
    if form == "wide":  # one job of one pod, one of several: there is no row for the two sizes above
        rows = [row.split()[:5] for row in result.stdout.partition("Sizes\n")[2].splitlines()[1:]]
        assert rows == [["greedy", "default", "0", size, "1"] for size in ("1", "2-8")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "Invalid value for --trace: give one of --trace FILE and --generate SPEC",
        ),
        (("--generate", "nodes=0"), "generate: nodes: '0' is not a whole number from 1 to 100000"),
        (("--generate", "nods=1"), "generate: 'nods=1' is none of nodes=N, jobs=N, days=N, queues=N"),
        (("--generate", SMALL, "--solvers", "best"), "Invalid value for --solvers: 'best' is not one of"),
        (("--generate", SMALL, "--policies", "none.yaml"), "none.yaml"),
        (("--generate", SMALL, "--policies", ","), "Invalid value for --policies: ',' is not a list"),
        (("--generate", SMALL, "--period", "0.5s"), "Invalid value for --period: 0.5 s is no whole number of seconds"),
        (("--generate", SMALL, "--first", "3"), "Invalid value for --first: is for --trace"),
        (("--trace", "a.txt"), "a.txt: not a trace that is known: give one .swf, one .jsonl"),
        (("--trace", "none.swf"), "none.swf: cannot be read: No such file or directory"),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("simulate", *arguments)


def test_bad_lines_are_told_and_the_rest_is_run(given: str) -> None:
    bad = '{"kind": "Job", "name": "c", "submitted": "soon", "runTime": 1, "pods": []}\n'
    with Path(given).open("a") as file:
        file.write(bad)
    result = run("simulate", "--trace", given, "--solvers", "greedy", "--jobs", "1")
    assert result.exit_code == 0
    assert result.stderr == (f"solver-sched: warning: {given}: line 5: pods: 0 is not from 1 to 100000\n")
    assert "line 5: pods: 0 is not from 1 to 100000" in refused("simulate", "--trace", given, "--strict")


def test_dask_is_asked_for_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = refused("simulate", "--generate", SMALL, "--dask", "tcp://nobody:1")
    assert line == "dask.distributed is not installed: pip install 'solver-sched[dask]'"


def test_a_dask_cluster_is_used_through_its_executor(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """`Client(ADDRESS)` and its `get_executor()`, as dask.distributed has them; threads stand in for its workers."""
    asked: list[str] = []

    class Client:
        def __init__(self, address: str) -> None:
            asked.append(address)
            self.pool = ThreadPoolExecutor(1)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.pool.shutdown()

        def get_executor(self) -> ThreadPoolExecutor:
            return self.pool

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client))
    found = document("--trace", given, "--solvers", "greedy", "--dask", "tcp://there:8786")
    assert (asked, len(found["runs"])) == (["tcp://there:8786"], 1)


def test_ctrl_c_prints_what_there_is_and_exits_with_130(tmp_path: Path) -> None:
    """Far more work than the test waits for: it is ended once it says that it runs."""
    command = [sys.executable, "-m", "solver_sched.cli", "simulate", "--generate", "nodes=20,jobs=20000,days=50"]
    command += ["--solvers", "greedy", "-o", "json", "--seeds", "2", "--jobs", "2"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        while len([*tmp_path.glob("solver-sched-*/[01]")]) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        output, errors = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, errors
    assert "ending the runs where they are" in errors
    found = json.loads(output)
    assert found["partial"] is True
    assert [one["seed"] for one in found["runs"]] == [0, 1]
    assert all(one["summary"]["cycles"] > 0 for one in found["runs"])


def test_times_are_told_in_two_units() -> None:
    assert [lasting(s) for s in (0.4, 59, 60, 3599.4, 3600, 11_100, 172_800, 190_000)] == [
        *("0s", "59s", "1m00s", "59m59s", "1h00m", "3h05m", "2d00h", "2d05h")
    ]

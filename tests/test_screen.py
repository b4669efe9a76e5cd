"""The screen of `run --embedded`: what is on it, and that it ends when it is told to."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from solver_sched import plan
from solver_sched.report.layout import layout
from solver_sched.report.screen import Moment, bar, clock, decided, screen

SMALL = "nodes=3,jobs=6,days=0.05,queues=2"


def objects() -> list[dict[str, Any]]:
    """A node of 4 CPUs. Gang `fits` asks for 2 x 1, gang `large` for 2 x 4: of these one finds room, so none starts."""
    out: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}}
    ]
    for name, cpu in (("fits", "1"), ("large", "4")):
        meta = {"name": name, "namespace": "ns"}
        out.append(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": meta,
                "spec": {"minMember": 2},
            }
        )
        out += [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{n}",
                    "namespace": "ns",
                    "annotations": {"scheduling.k8s.io/group-name": name},
                },
                "spec": {
                    "schedulerName": "solver-sched",
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
                },
            }
            for n in range(2)
        ]
    return out


def test_queues_waiting_gangs_and_what_was_done() -> None:
    document = plan(objects())
    moment = Moment(3 * 86400 + 3661, 7, 2, 4, 2, decided(document, 3661))
    lines = [line for line, _ in layout(screen(document, moment), 160)]
    assert lines[0] == "day 4 01:01:01  cycle 7  2 of 4 jobs ended  2 pods wait"
    assert lines[1].startswith("last plan: proven optimal in all ")
    assert any(line.startswith("default ") and line.endswith("cpu 2") for line in lines)
    assert "1 gang waits" in lines
    assert any(line.startswith("ns/large") and "Resources: " in line for line in lines)
    assert lines[-1] == "01:01:01 bind ns/fits: 2 pods on 1 node (allocate)"


def test_before_the_first_cycle_there_is_only_the_clock() -> None:
    assert [line for line, _ in layout(screen(None, Moment(0, 0, 0, 9, 0)), 80)] == [
        "day 1 00:00:00  cycle 0  0 of 9 jobs ended  0 pods wait"
    ]


def test_one_pod_waits() -> None:
    [(line, _)] = layout(screen(None, Moment(0, 0, 0, 9, 1)), 80)
    assert line.endswith("  1 pod waits")


def test_an_eviction_names_who_it_is_for() -> None:
    one = {"kind": "Evict", "action": "reclaim", "pod": "a/p", "node": "n", "podGroup": "a/g", "for": "b/h"}
    other = one | {"pod": "a/q", "node": "m"}
    assert decided({"decisions": [one, other, {"kind": "Admit", "podGroup": "b/h"}]}, 59) == [
        "00:00:59 evict a/g: 2 pods on 2 nodes for b/h"
    ]


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, "." * 20), (0.5, "#" * 10 + "." * 10), (1, "#" * 20), (1.25, "#" * 20 + "+" * 5), (9, "#" * 20 + "+" * 10)],
)
def test_a_bar_is_full_at_what_is_deserved(share: float, drawn: str) -> None:
    assert bar(share) == drawn


def test_a_clock_counts_days_from_one() -> None:
    assert clock(86399) == "day 1 23:59:59"
    assert clock(86400) == "day 2 00:00:00"


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "solver_sched.cli", "run", "--embedded", *more]


def called(*more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*more), check=False, capture_output=True, text=True, timeout=300)


def test_without_a_terminal_each_cycle_is_a_line_and_tables_end_it() -> None:
    done = called("--workload", SMALL, "--speed=100000", "--log-format=text")
    assert done.returncode == 0, done.stderr
    assert "scheduler: cycle" in done.stderr
    assert done.stdout.startswith("generated: nodes=3, jobs=6")
    assert "optimal default" in done.stdout


def test_on_a_terminal_it_is_a_screen_until_it_is_interrupted() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command("--workload", SMALL, "--speed=1"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    said, until = b"", time.monotonic() + 120
    try:
        while b"jobs ended" not in said:
            assert time.monotonic() < until, said
            said += _read(ours)
        process.send_signal(signal.SIGINT)
        while time.monotonic() < until and process.poll() is None:
            said += _read(ours)
        said += _read(ours)
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)
    assert b"partial" in said


def _read(terminal: int) -> bytes:
    """What is there, after a second at most."""
    if not select.select([terminal], [], [], 1.0)[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def test_it_reads_no_cluster() -> None:
    done = called("--master=http://127.0.0.1:1")
    assert done.returncode == 2
    assert "--embedded" in done.stderr


def test_a_bad_workload_is_one_line() -> None:
    done = called("--workload=nodes=0")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "nodes" in line


@pytest.mark.parametrize("speed", ["nan", "inf", "1e308", "0"])
def test_a_speed_that_is_no_speed_is_one_line(speed: str) -> None:
    done = called(f"--speed={speed}")
    assert done.returncode == 2
    assert done.stderr.startswith("solver-sched: Invalid value for '--speed'")

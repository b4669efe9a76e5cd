"""When a running pod ends and how long a pending one runs, by whoever says so."""

from __future__ import annotations

from typing import Any

import pytest

from solver_sched.cluster.objects import Needs, Pod, PodGroup, RunTime
from solver_sched.problem.runtimes import NEVER, RunTimes
from solver_sched.snapshot import Snapshot

KEY = "solver-sched.io/run-time"
GROUPS = (
    PodGroup("ns", "hour", "scheduling.volcano.sh/v1beta1", annotations={KEY: "1h"}),
    PodGroup("ns", "odd", "scheduling.volcano.sh/v1beta1", annotations={KEY: "soon"}),
)
CLASSES = (RunTime("ns/Job/train/", 3, 700), RunTime("ns/Job/rare/", 2, 700))
TIMES = RunTimes(Snapshot(groups=GROUPS, run_times=CLASSES, now=1000))


def pod(**fields: Any) -> Pod:
    return Pod("ns", "p", Needs(), **fields)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, NEVER),
        ({"deadline": 50}, 50),
        ({"run_time": 40, "deadline": 50}, 40),
        ({"run_time": 60, "deadline": 50}, 50),
        ({"group": "ns/hour"}, 3600),
        ({"group": "ns/hour", "run_time": 60}, 60),
        ({"group": "ns/odd"}, NEVER),
        ({"owner": "Job/train-7"}, 700),
        ({"owner": "Job/train-28391820"}, 700),
        ({"owner": "Job/train-x7k2p"}, 700),
        ({"owner": "Job/train", "deadline": 900}, 900),  # a limit is sure, a median is not
        ({"owner": "Job/rare"}, NEVER),  # two runs are too few
    ],
)
def test_run_time(fields: dict[str, Any], seconds: int) -> None:
    assert TIMES.of(pod(**fields)) == seconds


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"started": 900}, NEVER),
        ({"started": 900, "deadline": 250}, 1150),
        ({"started": 900, "run_time": 250}, 1150),
        ({"run_time": 250}, 1250),  # not started yet: now
        ({"started": 900, "run_time": 30}, 1020),  # 30 and 60 are over, 120 is not
        ({"started": 900, "run_time": 100}, 1100),
        ({"started": 900, "run_time": 30, "deadline": 110}, 1010),
        ({"started": 900, "deadline": 30}, 1030),  # the kubelet is about to end it
        ({"started": 900, "owner": "Job/train-1"}, 1600),
        ({"started": 900, "owner": "Job/train-1", "deadline": 900}, 1800),
        ({"started": 900, "terminating": True}, 1030),
    ],
)
def test_end(fields: dict[str, Any], end: int) -> None:
    assert TIMES.end(pod(node="n1", **fields)) == end

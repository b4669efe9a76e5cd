"""Readers of traces and the generator: what is read, and that one bad line costs one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver_sched.cluster.objects import Queue
from solver_sched.errors import InputError
from solver_sched.simulate import lines, openb, swf
from solver_sched.simulate.read import read
from solver_sched.simulate.trace import NodeEvent, Trace
from solver_sched.simulate.workload import DAY, Spec, parsed, workload


def problems(trace: Trace) -> list[str]:
    return [str(problem).partition(": ")[2] for problem in trace.problems]


# Standard Workload Format

HEADER = "; Version: 2.2\n; MaxNodes: 4\n; MaxProcs: 32 (8 each)\n;   Note: anything\n\n"


def line(**given: int) -> str:
    """A line of the log; what is not given is unknown."""
    row = dict.fromkeys(swf.FIELDS, -1) | {"job number": 1, "submit time": 0, "run time": 100}
    row |= {"allocated processors": 8, "status": 1}
    return " ".join(str(value) for value in (row | {key.replace("_", " "): n for key, n in given.items()}).values())


def log(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "log.swf"
    path.write_text(header + "\n".join(rows) + "\n")
    return path


def test_processors_become_pods_that_fit_the_nodes(tmp_path: Path) -> None:
    """Nodes of 32 / 4 = 8 processors: 20 are two whole nodes and 4 of a third. Asked for counts before given."""
    (tmp_path / "log.swf").touch()
    found = swf.read(log(tmp_path, line(requested_processors=20, allocated_processors=24)))
    assert [node.allocatable["cpu"] for node in found.nodes] == [8000] * 4
    (job,) = found.jobs
    assert [(part.count, dict(part.needs.request)["cpu"]) for part in job.pods] == [(2, 8000), (1, 4000)]
    assert (job.minimum, job.size, found.problems, found.notes) == (3, 3, (), ())


def test_queue_else_partition_else_group(tmp_path: Path) -> None:
    rows = [
        line(job_number=1, queue=3, partition=2, group=1),
        line(job_number=2, partition=2, group=1),
        line(job_number=3, group=1, user=9, executable=7, requested_time=400, status=0),
        line(job_number=4),
    ]
    found = swf.read(log(tmp_path, *rows))
    assert [job.queue for job in found.jobs] == ["queue-3", "partition-2", "group-1", "default"]
    assert [queue.name for queue in found.queues] == ["default", "group-1", "partition-2", "queue-3"]
    third = found.jobs[2]
    # jobs of one executable are one class of run times, as those of one name are in a cluster
    assert (third.key, third.estimate, third.fails) == ("user-9/app7-3", 400, True)


def test_what_never_ran_and_parts_of_jobs_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [line(), line(job_number=2, run_time=-1, status=5), line(job_number=3, status=2)]
    found = swf.read(log(tmp_path, *rows))
    assert len(found.jobs) == 1
    assert found.notes == ("1 jobs that never ran left out", "1 lines of partial executions left out")


def test_bad_lines_of_a_log_cost_one_line_each(tmp_path: Path) -> None:
    rows = [
        line(),
        "1 2 3",
        line(job_number=2).replace("100", "abc"),
        line(job_number=1),
        line(job_number=5, submit_time=-1),
        line(job_number=6, allocated_processors=0),
        line(job_number=7, submit_time=7),
    ]
    found = swf.read(log(tmp_path, *rows))
    assert [job.submitted for job in found.jobs] == [0, 7]
    assert problems(found) == [
        "line 7: 3 fields, there must be 18",
        "line 8: run time: 'abc' is no number from -1 to 10000000000",
        "line 9: job number: 1 stands in line 6 already",
        "line 10: submit time: is unknown: a job needs one",
        "line 11: requested processors: 0 is not from 1 to 10000000, nor allocated ones",
    ]
    assert str(found.problems[0]).startswith(str(tmp_path))


def test_a_log_without_a_header_is_a_cluster_of_its_largest_job(tmp_path: Path) -> None:
    found = swf.read(log(tmp_path, line(allocated_processors=5), header=""))
    assert len(found.nodes) == 5
    assert "neither MaxProcs nor MaxNodes" in found.notes[0]


def test_the_last_node_has_what_is_left_and_packed_logs_are_read(tmp_path: Path) -> None:
    """10 processors on 3 nodes: 4, 4 and 2."""
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(("; MaxNodes: 3\n; MaxProcs: 10\n" + line() + "\n" + line(job_number=2)).encode()))
    found = read([path], first=1)
    assert [node.allocatable["cpu"] for node in found.nodes] == [4000, 4000, 2000]
    assert len(found.jobs) == 1


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_no_text_is_more_than_bad_lines(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    for reader, name in ((swf.read, "a.swf"), (lines.read, "a.jsonl")):
        (folder / name).write_text(text)
        reader(folder / name)


# JSON lines


def written(tmp_path: Path, *things: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(thing if isinstance(thing, str) else json.dumps(thing) for thing in things))
    return path


JOB = {"kind": "Job", "name": "j", "submitted": "1m", "runTime": "1h30m", "pods": [{"requests": {"cpu": "500m"}}]}
NODE = {"kind": "Node", "name": "n", "allocatable": {"cpu": 4, "memory": "8Gi"}}


def test_json_lines(tmp_path: Path) -> None:
    gang = JOB | {
        "name": "g",
        "namespace": "ml",
        "queue": "q",
        "minMember": 2,
        "priority": 10,
        "estimate": "2h",
        "activeDeadlineSeconds": 9000,
        "failures": [10],
        "fails": True,
        "submitted": 5,
        "pods": [{"count": 2, "requests": {"cpu": 1}, "nodeSelector": {"a": "b"}}, {"requests": {"cpu": 1}}],
    }
    queue = {"kind": "Queue", "name": "q", "weight": 3, "capability": {"cpu": 2}, "reclaimable": False}
    loss = {"kind": "Event", "at": 60, "node": "n-1", "what": "loss"}
    found = lines.read(written(tmp_path, NODE | {"count": 2, "labels": {"a": "b"}}, queue, JOB, gang, loss))
    assert found.problems == ()
    assert [node.name for node in found.nodes] == ["n-0", "n-1"]
    assert found.nodes[0].allocatable == {"cpu": 4000, "memory": 8 * 2**30}
    assert found.queues == (
        Queue("default"),
        Queue("q", weight=3, capability={"cpu": 2000}, reclaimable=False),
    )
    assert found.events == (NodeEvent(60, "n-1", "loss"),)
    g, j = found.jobs
    assert (j.submitted, j.run_time, j.minimum, j.pods[0].needs.request) == (60, 5400, 1, (("cpu", 500), ("pods", 1)))
    assert (g.key, g.size, g.minimum, g.priority, g.estimate, g.deadline) == ("ml/g", 3, 2, 10, 7200, 9000)
    assert (g.failures, g.fails, g.pods[0].needs.node_selector) == ((10,), True, (("a", "b"),))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 3: Input data was truncated"),
        ({"kind": "Pod"}, "line 3: kind: Invalid value 'Pod'"),
        ('{"x": ' + "[" * 10**6 + "]" * 10**6 + "}", "line 3: is nested too deep"),
        ({"kind": "Queue", "name": "q", "priority": 10**30}, f"line 3: priority: {10**30} is not from -2147483648"),
        (JOB | {"runtime": 1}, "line 3: Object contains unknown field `runtime`"),
        (JOB | {"name": 3}, "line 3: name: Expected `str`, got `int`"),
        (JOB | {"name": ""}, "line 3: name: is empty: a name is needed"),
        (JOB | {"name": "a"}, "line 3: name: default/a is given twice: the first one is used"),
        (JOB | {"submitted": "soon"}, "line 3: submitted: 'soon' is no duration such as 90, 90s or 1h30m"),
        (JOB | {"runTime": -1}, "line 3: runTime: -1 is not from 0 to 10000000000"),
        (JOB | {"pods": []}, "line 3: pods: 0 is not from 1 to 100000"),
        (JOB | {"minMember": 2}, "line 3: minMember: 2 is not from 0 to 1"),
        (JOB | {"pods": [{"requests": {"cpu": "x"}}]}, "line 3: pods[0].requests.cpu: "),
        ({"kind": "Event", "at": 1, "node": "n", "what": "fire"}, "line 3: what: Invalid enum value 'fire'"),
        ({"kind": "Event", "at": 1, "node": "m", "what": "loss"}, "Event of m: node: there is no such node"),
    ],
)
def test_a_bad_line_costs_one_line_and_nothing_else(tmp_path: Path, bad: object, message: str) -> None:
    found = lines.read(written(tmp_path, NODE, JOB | {"name": "a"}, bad, JOB | {"name": "z"}))
    assert [job.name for job in found.jobs] == ["a", "z"]
    (problem,) = problems(found)
    assert problem.startswith(message)


# openb


def test_openb_times_are_run_times(tmp_path: Path) -> None:
    """Pod b: made at 100, scheduled at 130, deleted at 230: it arrives 50 s after a and runs 100 s."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1024,2,P100\nn2,x,1,0,\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "b,1000,1,1,460,P100|T4,LS,Running,100,230,130\n"
        "a,2000,1,0,0,,BE,Running,50,60,\n"
        "c,2000,1,0,0,,BE,Running,50,40,50\n"
        "d,2000,1,0,0,,BE,Running,50,,50\n"
        "e,2000\n"
    )
    found = read([nodes, pods])
    assert [node.name for node in found.nodes] == ["n1"]
    assert [(job.name, job.submitted, job.run_time, job.queue) for job in found.jobs] == [
        ("a", 0, 10, "be"),
        ("b", 50, 100, "ls"),
    ]
    needs = found.jobs[1].pods[0].needs
    assert dict(needs.request) == {"cpu": 1000, "memory": 2**20, "nvidia.com/gpu": 1, "pods": 1}
    assert needs.node_affinity is not None
    assert needs.node_affinity[0].expressions[0].values == ("P100", "T4")
    assert problems(found) == [
        "row 3: cpu_milli: 'x' is not an integer from 0 to 1000000000",
        "row 4: deletion_time: 40 is before the pod begins at 50",
        "row 6: 2 columns, the header has 11",
    ]
    assert found.notes == ("1 pods without deletion_time left out",)
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n")
    with pytest.raises(InputError, match="no column creation_time, deletion_time"):
        openb.read_trace(nodes, pods)


def test_a_trace_without_jobs_or_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no job that can be used; .*line 1: 1 fields"):
        read([log(tmp_path, "x", header="")])
    with pytest.raises(InputError, match="holds no node that can be used"):
        read([written(tmp_path, JOB)])


# The generator


def test_same_spec_and_seed_same_workload() -> None:
    spec = Spec(nodes=20, jobs=300, losses=2)
    assert workload(spec, 1) == workload(spec, 1)
    assert workload(spec, 1).jobs != workload(spec, 2).jobs


def test_the_workload_is_what_the_spec_says() -> None:
    """The work of the resource that is asked for most is `load` of what the nodes give; a tenth is lost or won where
    run times are cut off.
    """
    spec = Spec(nodes=50, jobs=4000, days=4, load=0.8, losses=3)
    found = workload(spec)
    assert (len(found.nodes), len(found.jobs), len(found.queues), len(found.events)) == (50, 4000, 4, 6)
    parts = []
    for name in ("cpu", "memory", "nvidia.com/gpu"):
        room = sum(node.allocatable.get(name, 0) for node in found.nodes) * spec.days * DAY
        work = sum(
            job.run_time * part.count * dict(part.needs.request).get(name, 0) for job in found.jobs for part in job.pods
        )
        parts.append(work / room)
    assert 0.6 < max(parts) < 0.9
    hours = np.array([job.submitted for job in found.jobs]) % DAY // 3600
    assert (np.abs(hours - 12) < 6).mean() > 0.6  # by day more than by night
    assert all(job.estimate == 0 or job.run_time <= job.estimate <= 5 * job.run_time for job in found.jobs)


def test_a_spec_is_read_and_its_mistakes_are_named() -> None:
    assert parsed(" nodes=3, days=12h ,load=0.5") == Spec(nodes=3, days=0.5, load=0.5)
    assert parsed("") == Spec()
    for text, message in (
        ("nodes", "'nodes' is none of nodes=N, jobs=N"),
        ("jobs=1.5", "jobs: '1.5' is not a whole number from 0 to 1e+06"),
        ("load=0", "load: '0' is not a number from 0.001 to 100"),
        ("days=soon", "days: 'soon' is not a number"),
    ):
        with pytest.raises(InputError) as caught:
            parsed(text)
        assert message in str(caught.value)

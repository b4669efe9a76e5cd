"""`queue list` and `job list`: what they count, in which order, and what programs may rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from solver_sched.actions.enqueue import open_cycle
from solver_sched.cli.app import app
from solver_sched.cli.listing import positions
from solver_sched.cluster.conditions import last_written
from solver_sched.cluster.sources import load_snapshot
from solver_sched.greedy import greedy_plan
from solver_sched.policy import load_policy
from solver_sched.report.lists import age

DIALECT = "scheduling.volcano.sh/v1beta1"
Json = dict[str, Any]
NOON = "2026-01-02T12:00:00Z"


def node(cpu: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": cpu}}}


def queue(name: str, weight: int = 1, **spec: Any) -> Json:
    return {"apiVersion": DIALECT, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": weight, **spec}}


def group(name: str, queue: str, minimum: int = 1, created: str = "2026-01-02T11:00:00Z", **more: Any) -> Json:
    namespace, _, name = name.rpartition("/")
    meta = {"namespace": namespace or "ml", "name": name, "creationTimestamp": created}
    spec = {"minMember": minimum, "queue": queue} | more.pop("spec", {})
    return {"apiVersion": DIALECT, "kind": "PodGroup", "metadata": meta, "spec": spec, **more}


def pods(of: str, count: int, *, on: str | None = None, namespace: str = "ml") -> list[Json]:
    """Pods of 1 CPU."""
    spec = {"schedulerName": "volcano", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    placed = {"nodeName": on} if on else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": namespace,
                "name": f"{of}-{i}",
                "uid": f"{of}-{i}",
                "annotations": {"scheduling.k8s.io/group-name": of},
            },
            "spec": spec | placed,
            "status": {"phase": "Running" if on else "Pending"},
        }
        for i in range(count)
    ]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """8 CPU. Queue a (weight 3) runs 2 pods of 1 CPU and waits for 4, queue b (weight 1, below root) waits for 8."""
    condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2/4 tasks"}
    objects = [
        node("8"),
        queue("a", 3),
        queue("b", 1),
        queue("shut", 1) | {"status": {"state": "Closed"}},
        group("runs", "a", 2, "2025-12-30T08:00:00Z", status={"phase": "Running"}),
        *pods("runs", 2, on="n"),
        group("first", "a", 4, "2026-01-02T11:00:00Z", status={"phase": "Inqueue", "conditions": [condition]}),
        *pods("first", 4),
        group("web/wide", "b", 8, "2026-01-02T11:54:30Z"),
        *pods("wide", 8, namespace="web"),
        group("none", "shut"),
        *pods("none", 1),
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--now", NOON])


def table(*arguments: str) -> list[list[str]]:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.split() for line in result.stdout.splitlines()]


def test_queues_as_a_table(file: str) -> None:
    """8 CPU at 3:1 are 6 and 2; a asks for 6 of its 6, b for 8 of its 2; a holds 2 of 6."""
    assert table("queue", "list", "-f", file) == [
        ["NAME", "STATE", "WEIGHT", "PARENT", "SHARE", "PENDING", "RUNNING"],
        ["a", "Open", "3", "<none>", "0.333", "1", "1"],
        ["b", "Open", "1", "<none>", "0.000", "1", "0"],
        ["default", "Open", "1", "<none>", "0.000", "0", "0"],
        ["shut", "Closed", "1", "<none>", "0.000", "1", "0"],
    ]


def test_wide_queues_show_what_they_deserve_hold_and_ask_for(file: str) -> None:
    a, b = table("queue", "list", "-f", file, "-o", "wide")[1:3]
    assert a[7:] == ["cpu=6,pods=6", "cpu=2,pods=2", "cpu=6,pods=6"]
    assert b[7:9] == ["cpu=2,pods=8", "<none>"]
    assert table("queue", "list", "-f", file, "-o", "wide", "--no-headers")[0][0] == "a"


def test_a_queue_with_a_parent_says_so(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump_all([node("4"), queue("org"), queue("team", parent="org")]))
    rows = table("queue", "list", "-f", str(path), "--no-headers")
    assert [row[3] for row in rows if row[0] == "team"] == ["org"]
    (tmp_path / "q.yaml").write_text(yaml.safe_dump_all([queue("org")]))  # queues alone are enough
    assert [row[0] for row in table("queue", "list", "-f", str(path), "--no-headers")] == ["default", "org"]


def test_queues_for_programs_have_the_entitlement_of_the_plan(file: str) -> None:
    listed = json.loads(run("queue", "list", "-f", file, "-o", "json").stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("solver-sched.io/v1alpha1", "QueueList")
    keys = ["name", "state", "weight", "parent", "share", "pending", "running", "deserved", "allocated", "request"]
    assert {tuple(row) for row in listed["items"]} == {tuple(keys)}
    planned = json.loads(run("plan", "-f", file, "-o", "json", "--solver", "greedy").stdout)["queues"]
    for part in ("name", "weight", "deserved", "request"):
        assert [row[part] for row in listed["items"]] == [row[part] for row in planned]
    assert yaml.safe_load(run("queue", "list", "-f", file, "-o", "yaml").stdout) == listed


def test_jobs_as_a_table(file: str) -> None:
    """Of all namespaces where files are read. What waits for a closed queue has no position."""
    assert table("job", "list", "-f", file) == [
        ["NAMESPACE", "NAME", "QUEUE", "PRIORITY", "PHASE", "MIN", "RUNNING", "PENDING", "AGE", "POSITION"],
        ["ml", "first", "a", "0", "Inqueue", "4", "0", "4", "60m", "1"],
        ["ml", "none", "shut", "0", "Pending", "1", "0", "1", "60m", "<none>"],
        ["ml", "runs", "a", "0", "Running", "2", "2", "0", "3d4h", "<none>"],
        ["web", "wide", "b", "0", "Pending", "8", "0", "8", "5m30s", "1"],
    ]


def test_jobs_of_one_namespace_have_no_column_for_it(file: str) -> None:
    assert table("job", "list", "-f", file, "-n", "web")[0][0] == "NAME"
    assert table("job", "list", "-f", file, "-n", "web", "--no-headers")[0][:2] == ["wide", "b"]
    assert len(table("job", "list", "-f", file, "-n", "web", "-A", "--no-headers")) == 4
    empty = run("job", "list", "-f", file, "-n", "dev")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "No jobs found in dev namespace.\n")
    assert json.loads(run("job", "list", "-f", file, "-n", "dev", "-o", "json").stdout)["items"] == []


def test_wide_jobs_show_the_reason_that_was_last_written(file: str) -> None:
    rows = table("job", "list", "-f", file, "-n", "ml", "-o", "wide", "--no-headers")
    assert [(row[0], row[-1]) for row in rows] == [
        ("first", "NotEnoughResources"),
        ("none", "<none>"),
        ("runs", "<none>"),
    ]


def test_jobs_for_programs_always_have_the_same_keys(file: str) -> None:
    listed = json.loads(run("job", "list", "-f", file, "-o", "json").stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("solver-sched.io/v1alpha1", "JobList")
    keys = ["namespace", "name", "kind", "queue", "priority", "phase", "minMember", "running", "pending", "created"]
    assert {tuple(row) for row in listed["items"]} == {(*keys, "position", "condition")}
    first = listed["items"][0]
    assert first["created"] == "2026-01-02T11:00:00Z"
    assert first["condition"]["reason"] == "NotEnoughResources"
    assert listed["items"][1]["condition"] is None
    assert yaml.safe_load(run("job", "list", "-f", file, "-o", "yaml").stdout) == listed


def test_groups_of_other_schedulers_are_not_listed(tmp_path: Path) -> None:
    theirs = pods("theirs", 1)
    theirs[0]["spec"] = theirs[0]["spec"] | {"schedulerName": "default-scheduler"}
    path = tmp_path / "c.json"
    objects = [node("4"), group("theirs", "default"), *theirs, group("empty", "default")]
    path.write_text(json.dumps({"kind": "List", "items": objects}))
    assert [row[0] for row in table("job", "list", "-f", str(path), "-n", "ml", "--no-headers")] == ["empty"]
    assert table("queue", "list", "-f", str(path), "--no-headers") == [
        ["default", "Open", "1", "<none>", "0.000", "1", "0"]
    ]


def test_positions_are_by_priority_then_start_before_growth_then_age() -> None:
    """One queue. `old` and `young` start, `grows` has its minimum and wants one more, `high` is the youngest."""
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    snapshot = load_snapshot(
        [
            node("9"),
            high,
            group("young", "default", created="2026-01-02T11:00:00Z"),
            *pods("young", 1),
            group("old", "default", created="2026-01-02T09:00:00Z"),
            *pods("old", 1),
            group("high", "default", created="2026-01-02T11:30:00Z", spec={"priorityClassName": "high"}),
            *pods("high", 1),
            group("grows", "default", created="2026-01-02T08:00:00Z"),
            *pods("grows", 1, on="n"),
            {**pods("grows", 2)[1]},
        ]
    )
    problem, index, rules, _ = open_cycle(snapshot, load_policy("default"))
    assert positions(problem, index, rules) == {"ml/high": 1, "ml/old": 2, "ml/young": 3, "ml/grows": 4}


@given(st.permutations(range(5)), st.integers(1, 4))
def test_positions_are_the_order_in_which_greedy_takes_the_jobs(ages: list[int], room: int) -> None:
    """Jobs of one pod of 1 CPU on a node of `room` CPU: those that get it are the first `room`."""
    objects: list[Json] = [node(str(room))]
    for job, hour in enumerate(ages):
        objects += [group(f"g{job}", "default", created=f"2026-01-01T0{hour}:00:00Z"), *pods(f"g{job}", 1)]
    problem, index, rules, _ = open_cycle(load_snapshot(objects), load_policy("default"))
    placed = {index.jobs[problem.set_job[t]] for t in greedy_plan(problem, rules).pod_set.tolist()}
    assert placed == {job for job, at in positions(problem, index, rules).items() if at <= room}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-9, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (330, "5m30s"), (599, "9m59s")),
        *((600, "10m"), (179 * 60, "179m"), (3 * 3600, "3h"), (3 * 3600 + 60, "3h1m"), (8 * 3600 - 1, "7h59m")),
        *((8 * 3600, "8h"), (48 * 3600 - 1, "47h"), (48 * 3600, "2d"), (76 * 3600, "3d4h"), (8 * 86400, "8d")),
        *((729 * 86400, "729d"), (730 * 86400, "2y"), (760 * 86400, "2y30d"), (3000 * 86400, "8y")),
    ],
)
def test_ages_as_kubectl_prints_them(seconds: int, text: str) -> None:
    assert age(seconds) == text


def conditions(*written: Json) -> bytes:
    return json.dumps({"metadata": {"name": "g"}, "status": {"conditions": list(written)}}).encode()


def test_the_last_condition_is_that_of_the_latest_transition() -> None:
    early = {"type": "A", "status": "True", "reason": "early", "lastTransitionTime": "2026-01-01T10:00:00Z"}
    late = {"type": "B", "status": "False", "reason": "late", "lastTransitionTime": "2026-01-01T11:00:00Z"}
    untimed = {"type": "C", "status": "True"}
    for given_ in ((early, late), (late, early), (untimed, late, early)):
        found = last_written(conditions(*given_))
        assert found is not None
        assert found.reason == "late"
    found = last_written(conditions(late, {**late, "reason": "after"}))
    assert found is not None
    assert found.reason == "after"


@pytest.mark.parametrize(
    "text", [b"{}", b'{"status": null}', b'{"status": {"conditions": 3}}', b'{"status": {"conditions": []}}']
)
def test_a_group_without_readable_conditions_has_none(text: bytes) -> None:
    assert last_written(text) is None

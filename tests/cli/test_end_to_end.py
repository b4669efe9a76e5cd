"""The commands on real input, nothing replaced: what a user sees first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solver_sched.cli.app import app

NODE = '{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: "4", pods: "10"}}}'
POD = (
    "{apiVersion: v1, kind: Pod, metadata: {name: NAME, namespace: ns}, spec: {schedulerName: volcano, containers: "
    "[{name: c, resources: {requests: {cpu: CPU}}}]}}"
)


def pod(name: str, cpu: str) -> str:
    return POD.replace("NAME", name).replace("CPU", f'"{cpu}"')


def run(*arguments: str, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def documents(*texts: str) -> str:
    return "\n---\n".join(texts) + "\n"


def test_the_example_has_a_proven_plan_that_its_own_judge_accepts(tmp_path: Path) -> None:
    planned = run("plan", "--example", "-o", "json", "--time-limit", "20s")
    assert planned.exit_code == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["certificate"]["status"] == "optimal"
    pending = [group["name"] for group in plan["podGroups"] if group["pending"]]
    assert pending
    assert all(group["reason"] for group in plan["podGroups"] if group["pending"])
    (tmp_path / "plan.json").write_text(planned.stdout)
    judged = run("plan", "--example", "--evaluate", str(tmp_path / "plan.json"), "-o", "json")
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout)["violations"] == []
    explained = run("explain", pending[0], "--example", "--solver", "greedy")
    assert explained.exit_code == 1
    assert pending[0] in explained.stdout


def test_one_bad_object_among_good_ones() -> None:
    """4 CPU: the pod of 3 is bound, the one of -1 is left out, and --strict refuses both."""
    text = documents(NODE, pod("good", "3"), pod("bad", "-1"))
    planned = run("plan", "-f", "-", "-o", "json", "--solver", "greedy", stdin=text)
    assert planned.exit_code == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert [row["pod"] for row in plan["decisions"] if row["kind"] == "Bind"] == ["ns/good"]
    (problem,) = plan["snapshot"]["problems"]
    assert "ns/bad" in problem["object"]
    assert problem["field"].endswith("requests.cpu")
    strict = run("plan", "-f", "-", "--strict", stdin=text)
    assert strict.exit_code == 2
    assert strict.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n---\n---\n",
        b"apiVersion: v1\nkind: Node\nmetadata: {name: n1\n",
        b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\xff\xfe",
        b"\x1f\x8b\x08\x00broken",
        b'{"kind": "List", "items": [{',
        b"hello",
        b"- 1\n- 2\n",
        b"kind: Service\napiVersion: v1\nmetadata: {name: s}\n",
        b"9" * 100_000,
    ],
)
def test_input_with_nothing_to_plan_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "input.yaml"
    file.write_bytes(content)
    result = run("plan", "-f", str(file), "--solver", "greedy")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("solver-sched: ")
    assert "internal" not in line


def test_a_saved_snapshot_plans_alike(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    text = documents(NODE, pod("a", "3"), pod("b", "2"))
    first = run("plan", "-f", "-", "--solver", "greedy", "-o", "json", "--save-snapshot", str(file), stdin=text)
    again = run("plan", "-f", str(file), "--solver", "greedy", "-o", "json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(first.stdout)["decisions"] == json.loads(again.stdout)["decisions"]

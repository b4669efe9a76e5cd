"""`-o html` where another command's tests do not have it."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from solver_sched.cli.app import app

WORKLOAD = ("--generate", "nodes=3,jobs=6,days=0.05,queues=2", "--jobs", "1")


def test_a_simulation_as_a_page() -> None:
    said = CliRunner().invoke(app, ["simulate", *WORKLOAD, "-o", "html"])
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith("<!doctype html>")
    runs = json.loads(CliRunner().invoke(app, ["simulate", *WORKLOAD, "-o", "json"]).stdout)["runs"]
    assert [one["name"] for one in runs] == ["greedy default", "optimal default"]
    assert all(one["name"] in said.stdout for one in runs)

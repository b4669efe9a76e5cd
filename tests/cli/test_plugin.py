"""The same commands as a plugin of kubectl, as the installed scripts start them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]


def call(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the script of that name does: the entry point that pyproject.toml gives it, with its name as argv[0]."""
    module, _, function = SCRIPTS[script].partition(":")
    code = f"import sys; sys.argv[0] = {script!r}; from {module} import {function}; {function}()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("script", "program"), [("solver-sched", "solver-sched"), ("kubectl-solver_sched", "kubectl solver-sched")]
)
def test_help_and_refusals_name_the_program_that_was_called(script: str, program: str) -> None:
    shown = call(script, "queue", "list", "--help")
    assert shown.returncode == 0
    assert f"Usage: {program} queue list [OPTIONS]" in shown.stdout
    refused = call(script, "plan", "--wrong")
    assert refused.returncode == 2
    assert refused.stderr == f"solver-sched: No such option: --wrong (see {program} plan --help)\n"


def test_the_plugin_does_what_the_command_does() -> None:
    arguments = ("queue", "list", "--example")
    plugin, command = call("kubectl-solver_sched", *arguments), call("solver-sched", *arguments)
    assert plugin.stdout == command.stdout
    assert "research" in plugin.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["que"], ["queue"]),
        (["queue", ""], ["list"]),
        (["plan", "--cont"], ["--context"]),
        (["plan", "-o", "w"], ["wide"]),
    ],
)
def test_completion_gives_kubectl_one_candidate_a_line(words: list[str], offered: list[str]) -> None:
    done = call("kubectl_complete-solver_sched", *words)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, offered, "")

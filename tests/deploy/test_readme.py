"""What deploy/README.md names is there: files, reasons, alerts, flags."""

from __future__ import annotations

import re

import pytest

from solver_sched.cli.app import app
from tests.controlplane.fixtures import require
from tests.deploy.rendered import DEPLOY, NAME, kustomized, objects, one

README = (DEPLOY / "README.md").read_text()
REASONS = set(re.findall(r"^### `(\w+)`", (DEPLOY.parent / "docs" / "reasons.md").read_text(), re.MULTILINE))
SYMPTOMS = [line for line in README.partition("## Troubleshoot")[2].splitlines() if line.startswith("|")]


def flags_of_run() -> set[str]:
    import typer.main

    command = typer.main.get_command(app)
    run = command.commands["run"]  # type: ignore[attr-defined]  # a group has commands
    return {option for parameter in run.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", ["README.md", "examples/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = DEPLOY / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_reasons_are_those_of_the_program() -> None:
    first = {word for line in SYMPTOMS for word in re.findall(r"`([A-Z]\w+)`", line.split("|")[1])}
    # What a pod says when quota alone keeps it waiting, and what the alert table is about.
    assert {word for word in first if not word.startswith(("SolverSched", "Out"))} - {"QuotaExceeded"} <= REASONS


def test_flags_that_are_named_exist() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", README)) - {"--skip-crds"}  # that one is Helm's
    assert len(named) > 4
    assert named <= flags_of_run()


@pytest.mark.parametrize("overlay", ["base", "overlays/dev", "overlays/ha"])
def test_the_program_knows_the_flags_it_is_started_with(overlay: str) -> None:
    require("kubectl")
    args = one(objects(kustomized(overlay)), "Deployment", NAME)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[0] == "run"
    assert {arg.partition("=")[0] for arg in args[1:]} <= flags_of_run()

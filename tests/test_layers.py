"""The import contracts of pyproject.toml hold, and bite: each is broken here once, in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN_NAMES = {"common", "handler", "handlers", "helper", "helpers", "manager", "misc", "util", "utils"}

STAGES = "who decides, who judges and who explains do not know each other"
FAULTS = [
    ("solver_sched/problem/fault.py", "import solver_sched.plugins.plugin", "the cycle flows one way"),
    ("solver_sched/snapshot.py", "import solver_sched.problem.arrays", "the cycle flows one way"),
    ("solver_sched/stray.py", "", "the cycle flows one way"),
    ("solver_sched/snapshot.py", "import solver_sched.cluster.workloads", "the facts of a cycle know no reader"),
    ("solver_sched/cluster/objects.py", "import solver_sched.snapshot", "the objects know nothing but themselves"),
    ("solver_sched/verify/places.py", "import solver_sched.model.effort", STAGES),
    ("solver_sched/model/fault.py", "import solver_sched.greedy", STAGES),
    (
        "solver_sched/verify/places.py",
        "import solver_sched.rights",
        "who judges evictions has not read the rights to them",
    ),
    ("solver_sched/plugins/fault.py", "import solver_sched.plugins.gang", "plugins do not know each other"),
    ("solver_sched/plugins/fault.py", "import solver_sched.plugins.rules", "plugins do not know each other"),
    ("solver_sched/plugins/fault.py", "import ortools", "only model/ imports ortools"),
    (
        "solver_sched/report/fault.py",
        "import jinja2",
        "only report/html/ imports what the extra report installs",
    ),
    ("solver_sched/cli/fault.py", "import kubernetes", "only cluster/ imports the Kubernetes client"),
]


@pytest.mark.parametrize(("path", "line", "contract"), FAULTS, ids=[f"{path}: {line}" for path, line, _ in FAULTS])
def test_a_planted_fault_breaks_its_contract(tmp_path: Path, path: str, line: str, contract: str) -> None:
    shutil.copytree(ROOT / "solver_sched", tmp_path / "solver_sched", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / path
    file.write_text((file.read_text() if file.exists() else "") + f"\n{line}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall(r"^(.*) BROKEN", done.stdout, re.MULTILINE) == [contract], done.stdout


@pytest.mark.parametrize("module", ["solver_sched", "solver_sched.cli"])
def test_importing_pulls_neither_the_solver_nor_the_client(module: str) -> None:
    """`solver-sched --help` must answer in half a second; ortools alone takes one."""
    heavy = {"ortools", "kubernetes", "pandas", "jinja2", "matplotlib"}
    code = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_modules_are_named_after_what_they_are() -> None:
    names = {path.stem for path in (ROOT / "solver_sched").rglob("*.py")}
    assert not names & FORBIDDEN_NAMES


def test_the_written_model_holds_no_python() -> None:
    """models/ is read by people and by MiniZinc, so that it cannot drift into a second implementation (ADR 0004)."""
    assert sorted((ROOT / "models").rglob("*.py")) == []

"""What is promised: the public names, the package's data, the lock, and every path the documents name."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import solver_sched

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "models/**/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)


def test_every_public_name_is_documented() -> None:
    """`__all__` is the promise: each name has a docstring and stands in the README."""
    names = solver_sched.__all__
    assert {"plan", "load_snapshot", "load_policy", "run_cycle"} <= set(names)
    assert [name for name in names if not inspect.getdoc(getattr(solver_sched, name))] == []
    assert [name for name in names if f"`{name}`" not in README] == []


def test_a_wheel_carries_policies_examples_and_types(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    policies = {f"solver_sched/policies/{path.name}" for path in (ROOT / "models/policies").glob("*.yaml")}
    assert len(policies) >= 4
    assert policies <= names
    assert "solver_sched/py.typed" in names
    assert {"solver_sched/report/html/page.html.jinja", "solver_sched/report/html/style.css"} <= names
    assert any(name.startswith("solver_sched/examples/") and name.endswith(".yaml") for name in names)
    assert not [name for name in names if not name.startswith(("solver_sched/", "solver_sched-"))]


def pins(lock: str) -> dict[str, list[Requirement]]:
    """Name -> its pins, one for each range of Python versions where they differ."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            pin = Requirement(line.removesuffix("\\"))
            found.setdefault(pin.name.lower(), []).append(pin)
    return found


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", PROJECT["dependencies"]),
        ("requirements-dev.lock", [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["report"]]),
    ],
)
def test_the_lock_holds_what_the_project_asks_for(lock: str, wanted: list[str]) -> None:
    """`make lock` was run after the last change of a dependency; hashes for all, and no address of an index."""
    locked = pins(lock)
    for want in map(Requirement, wanted):
        assert want.name.lower() in locked, f"{want.name} is not locked: run `make lock`"
        for pin in locked[want.name.lower()]:
            (version,) = (spec.version for spec in pin.specifier)
            assert want.specifier.contains(version, prereleases=True), f"{pin} is locked, {want} is asked for"
    text = (ROOT / lock).read_text()
    assert not re.search(r"^\s*(--index|--extra-index|--find-links|-i |-f )|://", text, re.MULTILINE)
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


def test_architecture_names_every_module() -> None:
    """A package or module of the first level that ARCHITECTURE.md does not place is one that nobody will find."""
    package = ROOT / "solver_sched"
    modules = {path.name for path in package.iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    packages = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in sorted(modules | packages) if f"`{name}`" not in text] == []


def test_makefile_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, f"{document.name} names {sorted(named - targets)}"


def test_the_code_told_in_contributing_is_the_real_one() -> None:
    told = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert len(told) >= 3
    assert [path for path, code in told if code not in (ROOT / path).read_text()] == []


def test_paths_in_architecture_exist() -> None:
    named = set(re.findall(r"`([a-z_]+/(?:[a-z_]+/|[a-z_]+\.py)?)`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 20
    assert [
        path for path in sorted(named) if not any((base / path).exists() for base in (ROOT, ROOT / "solver_sched"))
    ] == []


@pytest.mark.parametrize("name", ["comparison", "demo", "evictions"])
def test_the_demos_in_the_readme_are_what_the_commands_print(name: str) -> None:
    (shown,) = re.findall(rf"<!-- {name} -->\n```text\n\$ solver-sched (.*?)\n(.*?)\n\.\.\.\n```", README, re.DOTALL)
    command, table = shown
    done = subprocess.run(
        [sys.executable, "-m", "solver_sched.cli", *command.split()], capture_output=True, text=True, check=True
    )
    seconds = re.compile(r"; \d.* s.*")  # how long it took
    printed = seconds.sub("", done.stdout).splitlines()
    assert [line for line in seconds.sub("", table).splitlines() if line not in printed] == []

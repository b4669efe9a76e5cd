"""The written model and the files it names know each other by number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "solver_sched"
TEXT = (ROOT / "models" / "formulation.md").read_text()
NUMBER = re.compile(r"\b[CO][1-9]\d?\b")
ENTRY = re.compile(r"\*\*(?P<number>[CO]\d+)\b[^*]*\*\*(?: \((?P<files>[^)]*)\))?")
ENTRIES = {m["number"]: re.findall(r"`([^`]+)`", m["files"] or "") for m in ENTRY.finditer(TEXT)}
BEST_EFFORT = {"O10", "O11"}
"""Levels that no reference can judge: they promise no optimum."""


def cited(path: Path, pattern: str) -> set[str]:
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    return {number for file in files for number in NUMBER.findall(file.read_text())}


def test_numbers_are_defined_once_and_without_gaps() -> None:
    defined = [m["number"] for m in ENTRY.finditer(TEXT)]
    assert len(defined) == len(set(defined))
    for letter in "CO":
        found = sorted(int(number[1:]) for number in defined if number[0] == letter)
        assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number, names in ENTRIES.items() for name in names], ids=lambda value: value
)
def test_the_file_named_with_a_number_cites_it(number: str, name: str) -> None:
    path = PACKAGE / name
    assert path.exists(), f"formulation.md names {name} at {number}"
    assert number in cited(path, "*.py")


def test_numbers_cited_in_code_exist() -> None:
    assert cited(PACKAGE, "*.py") <= set(ENTRIES)


def test_the_reference_restates_every_number_that_has_an_optimum() -> None:
    assert cited(ROOT / "models" / "reference", "*.mzn") == set(ENTRIES) - BEST_EFFORT

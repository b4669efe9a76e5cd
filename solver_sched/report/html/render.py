"""A page as text: everything that comes from a cluster goes through Jinja's autoescaping."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from solver_sched.report.html.parts import Figure, Folded
from solver_sched.report.layout import Table, numeric, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from solver_sched.report.html.parts import Page, Part

HERE = Path(__file__).parent
LONG = 40
"""Characters of a cell that is prose, or of a name that is broken."""
OPEN_ROWS, MOST_ROWS = 40, 2000
"""Rows of a table that is open at first, and of any: what a telephone still shows. The JSON has all."""


def rendered(page: Page) -> str:
    """The whole document, from `<!doctype html>` on."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["printable"] = printable
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.tests["folded"] = _folds
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    environment.filters["beside"] = _beside
    environment.globals["numeric"], environment.globals["wordy"] = numeric, _wordy
    style = Markup((HERE / "style.css").read_text())  # noqa: S704  our own file
    return (
        environment.get_template("page.html.jinja").render(page=page, style=style, most=MOST_ROWS, long_name=LONG)
        + "\n"
    )


def _beside(parts: Iterable[Part]) -> list[list[Part]]:
    """Figures that follow each other stand beside each other; everything else by itself."""
    out: list[list[Part]] = []
    for figures, found in groupby(parts, lambda part: isinstance(part, Figure)):
        alike = list(found)
        out += [alike] if figures else [[part] for part in alike]
    return out


def _folds(part: Part) -> bool:
    return isinstance(part, Folded) or (isinstance(part, Table) and len(part.rows) > OPEN_ROWS)


def _wordy(table: Table) -> set[int]:
    """Columns of prose, which get room for more than a word a line."""
    return {c for c in range(len(table.header)) if any(len(row[c]) > LONG for row in table.rows[:MOST_ROWS])}

"""What a page is made of. Text is plain everywhere but in `Figure.drawing`; `render` escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from solver_sched.report.layout import Note, Table

Swatch = Literal["line", "dashes", "dots", "dashdots", "fill", "thin", "mark", "outline"]


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend. `colour`: a custom property of style.css without its dashes, such as `c0` or `u10`."""

    label: str
    colour: str
    swatch: Swatch = "fill"


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing (an `svg` element), what it shows in a sentence or two, and its numbers in full."""

    title: str
    text: str
    drawing: Markup
    table: Table
    legend: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A key figure: `value` is the large print."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Folded:
    """A table that is closed at first, however short."""

    table: Table


Part = Note | Table | Folded | Figure


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    lead: Sequence[Note]
    cards: Sequence[Card]
    sections: Sequence[Section]

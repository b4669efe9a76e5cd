"""Plots with axes, drawn by Matplotlib as SVG whose colours are custom properties of style.css, so that one drawing
serves light, dark and print. Sizes are in points of a drawing as wide as a telephone; the page scales it up.

Names from a cluster are text here too: never mathematics (`parse_math`), never longer than their place.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, NamedTuple

from markupsafe import Markup

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # a folder for its cache that cannot be written is no news

from matplotlib import rc_context  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure as Drawing  # noqa: E402
from matplotlib.ticker import MaxNLocator, PercentFormatter  # noqa: E402

from solver_sched.report.layout import printable  # noqa: E402

WIDTH = 340.0
"""Points."""
POINT = 72
LABEL, THICK, GAP = 14.0, 9.0, 7.0
"""Points: of a label, of a bar, of what is left free under it."""
LONGEST = 40
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],  # measured with; style.css has the one that is shown
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "text.parse_math": False,
}
SERIES = 8
DASHES = ("solid", "dashed", "dotted", "dashdot")
# Colours that occur nowhere else stand in for custom properties until the drawing is text.
NAMES = (*(f"c{i}" for i in range(SERIES)), "used", "idle", "stranded", "ink", "dim", "rule", "grid", "panel")
COLOURS = {name: f"#a1b2{number:02x}" for number, name in enumerate(NAMES)}
_STAND_INS = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_numbers = re.compile("|".join(_STAND_INS))


class Line(NamedTuple):
    """`x`, `y` of one length; `look`: which colour and dash."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int = 0


class Stack(NamedTuple):
    """One bar of parts that follow each other: (length, colour name)."""

    label: str
    parts: Sequence[tuple[float, str]]


class Span(NamedTuple):
    """A row of a Gantt chart: it waits from `begin` to `start` and runs until `end`; None = not yet."""

    label: str
    begin: float
    start: float | None
    end: float | None
    colour: str


def lines(
    series: Sequence[Line], alt: tuple[str, str], *, x: str, y: str, percent: bool = False, step: bool = False
) -> Markup:
    """Series over a common axis; `percent`: y in fractions. `step`: a value holds until the next."""
    with _axes(WIDTH, 210.0) as axes:
        for line in series:
            style: dict[str, Any] = {"color": _series(line.colour), "linestyle": DASHES[line.dash % len(DASHES)]}
            axes.plot(line.x, line.y, linewidth=1.6, drawstyle="steps-post" if step else "default", **style)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=not percent))
        axes.set_ylim(bottom=0, top=None if any(value > 0 for line in series for value in line.y) else 1)
        axes.margins(x=0.02)
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        return _svg(axes, alt)


def bars(
    labels: Sequence[str],
    groups: Sequence[Sequence[float]],
    marks: Sequence[float | None],
    alt: tuple[str, str],
    *,
    x: str,
) -> Markup:
    """Per label a bar of each group, in fractions; `marks`: a thick stroke at this length, such as what is deserved."""
    row = LABEL + THICK * len(groups) + GAP
    with _rows(labels, row, x) as axes:
        for g, values in enumerate(groups):
            at = [i * row + LABEL + (g + 0.5) * THICK for i in range(len(labels))]
            axes.barh(at, values, THICK - 1, color=_series(g))
        for i, mark in enumerate(marks):
            if mark is not None:
                top = i * row + LABEL
                axes.plot([mark, mark], [top - 2, top + THICK * len(groups) + 2], color=COLOURS["ink"], linewidth=2.5)
        longest = max([1e-9, *(v for values in groups for v in values), *(mark or 0 for mark in marks)])
        axes.set_xlim(0, longest * 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return _svg(axes, alt)


def stacks(whole: Sequence[Stack], alt: tuple[str, str], *, x: str) -> Markup:
    """One bar per row, in fractions of a whole."""
    row = LABEL + THICK + GAP
    with _rows([bar.label for bar in whole], row, x) as axes:
        for i, bar in enumerate(whole):
            left = 0.0
            for length, colour in bar.parts:
                axes.barh(i * row + LABEL + THICK / 2, length, THICK, left=left, color=COLOURS[colour])
                left += length
        axes.set_xlim(0, 1)
        return _svg(axes, alt)


def gantt(spans: Sequence[Span], end: float, alt: tuple[str, str], *, x: str) -> Markup:
    """One row each, from the top: a thin line while it waits, a bar while it runs. `end`: of the time axis."""
    row = LABEL + THICK
    with _axes(WIDTH, 45 + len(spans) * row) as axes:
        axes.set_xlim(0, max(end, 1e-9))
        axes.set_ylim(len(spans) * row, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(x)
        for i, span in enumerate(spans):
            at = i * row + LABEL + THICK / 2 - 1
            until = end if span.start is None else span.start
            axes.plot([span.begin, until], [at, at], color=COLOURS["dim"], linewidth=1, solid_capstyle="butt")
            if span.start is not None:
                length = max((end if span.end is None else span.end) - span.start, 0)
                axes.barh(at, length, THICK - 2, left=span.start, color=COLOURS[span.colour])
            late = span.begin > 0.5 * end  # then there is more room before it
            last = end if span.start is None or span.end is None else span.end
            place: dict[str, Any] = {"ha": "right" if late else "left", "va": "center", "fontsize": 9}
            axes.text(last if late else span.begin, i * row + LABEL / 2 + 1, _short(span.label), **place)
        return _svg(axes, alt)


@contextmanager
def _axes(width: float, height: float) -> Iterator[Axes]:
    with rc_context(SETTINGS), warnings.catch_warnings():
        # widths of characters that the measuring font lacks are guessed; the browser has a font for them
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawing = Drawing(figsize=(width / POINT, height / POINT), dpi=POINT, layout="constrained")
        drawing.patch.set_visible(False)
        axes = drawing.add_subplot()
        axes.patch.set_visible(False)
        axes.grid(color=COLOURS["grid"], linewidth=0.8)
        axes.tick_params(colors=COLOURS["ink"])
        for spine in axes.spines.values():
            spine.set_color(COLOURS["rule"])
        yield axes


def _series(number: int) -> str:
    return COLOURS[f"c{number % SERIES}"]


@contextmanager
def _rows(labels: Sequence[str], row: float, x: str) -> Iterator[Axes]:
    """Rows of this height (points), each under its label: beside it a long name would leave too little of the plot."""
    with _axes(WIDTH, 45 + len(labels) * row) as axes:
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(labels) * row, 0)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        axes.set_xlabel(x)
        for i, label in enumerate(labels):
            place: dict[str, Any] = {"va": "center", "fontsize": 10, "transform": axes.get_yaxis_transform()}
            axes.text(0, i * row + LABEL / 2, _short(label), **place)
        yield axes


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _svg(axes: Axes, alt: tuple[str, str]) -> Markup:
    """The drawing as an element of a page: with its title and description, and no id that nothing refers to."""
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    title, description = (printable(text) for text in alt)
    text = StringIO()
    with rc_context({"svg.hashsalt": title}):  # ids of one page differ
        drawing.savefig(text, format="svg", metadata={"Date": None})
    body = text.getvalue().partition("<svg")[2].partition(">")[2]
    body = re.sub(r"<(metadata|style)\b.*?</\1>|<g id=\"[^\"]*\"/>|(?<=\n) +", "", body, flags=re.DOTALL)
    body = _numbers.sub(lambda found: _STAND_INS[found[0]], body)
    used = {one for pair in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body) for one in pair}
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", body)
    width, height = (round(float(inches) * POINT, 2) for inches in drawing.get_size_inches())
    return svg(width, height, title, description, Markup(body.rpartition("</svg>")[0]))  # noqa: S704  by Matplotlib


def svg(width: float, height: float, title: str, description: str, body: Markup) -> Markup:
    """The element around a drawing, with what is read out instead of it."""
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {} {}" '
        'role="img" aria-label="{}">\n<title>{}</title><desc>{}</desc>\n{}</svg>'
    ).format(f"{width:g}", f"{height:g}", title, title, description, body)

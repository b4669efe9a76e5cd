"""Blocks of a report and their layout as lines of text: kubectl's columns, within the width of a terminal.

Written here and not with rich.table because a report may have ten thousand rows, because nothing may be cut off, and
because output into a file or a pipe must be one line per row without trailing blanks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Style = Literal["plain", "title", "header", "good", "warning", "dim"]
GAP = "  "
NOTHING = ("", "-", "<none>", "<unknown>")
LEAST_FOR_TEXT = 24
"""A last column narrower than this is put under its row instead."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of prose; `hang`: indentation of its continuation lines."""

    text: str
    style: Style = "plain"
    hang: int = 2


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header. The last column may wrap; `optional` columns are left out, first named first, where the
    terminal is too narrow for all. Columns of numbers are set flush right. `bare`: the header is not printed.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    optional: tuple[str, ...] = ()
    bare: bool = False


Block = Note | Table


def layout(blocks: Iterable[Block], width: int | None) -> Iterator[tuple[str, Style]]:
    """Lines with their style. `width` None = no wrapping at all (not a terminal). A blank line between blocks of
    different kinds and around tables.
    """
    before: Block | None = None
    for block in blocks:
        if before is not None and (isinstance(block, Table) or isinstance(before, Table)):
            yield "", "plain"
        before = block
        if isinstance(block, Note):
            for line in _wrapped(printable(block.text), width, " " * block.hang):
                yield line.rstrip(), block.style
        else:
            if block.title:
                yield block.title, "title"
            yield from _columns(block, width)


def printable(text: str) -> str:
    """`text` with control characters spelled out: a name from a file must not steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def numeric(table: Table) -> set[int]:
    """Columns of numbers, which are set flush right."""
    return {
        c
        for c in range(len(table.header))
        if all(_is_number(row[c]) for row in table.rows) and any(row[c] not in NOTHING for row in table.rows)
    }


def _columns(table: Table, width: int | None) -> Iterator[tuple[str, Style]]:
    rows = [tuple(map(printable, row)) for row in table.rows]
    keep = list(range(len(table.header)))
    header = [] if table.bare else [table.header]
    widths = [max((_cells(row[c]) for row in (*header, *rows)), default=0) for c in keep]
    for name in table.optional:
        if width is not None and _taken(widths, keep) + min(widths[keep[-1]], LEAST_FOR_TEXT) > width:
            keep.remove(table.header.index(name))
    last = keep[-1]
    # A header stands over its column on the side where the column is flush.
    right = numeric(table) & set(keep[:-1])
    taken = _taken(widths, keep)
    below = width is not None and taken + min(widths[last], LEAST_FOR_TEXT) > width
    for row, style in [*((row, "header") for row in header), *((row, "plain") for row in rows)]:
        cells = [_padded(row[c], widths[c], c in right) for c in keep[:-1]]
        start = GAP.join(cells) + (GAP if cells else "")
        if below:
            yield start.rstrip(), _style(style)
            for line in _wrapped("    " + row[last], width, "    ") if row[last] else ():
                yield line.rstrip(), _style(style)
            continue
        first, *rest = _wrapped(row[last], None if width is None else width - taken, "") or [""]
        yield (start + first).rstrip(), _style(style)
        for line in rest:
            yield (" " * taken + line).rstrip(), _style(style)


def _style(name: str) -> Style:
    return "header" if name == "header" else "plain"


def _taken(widths: Sequence[int], keep: Sequence[int]) -> int:
    """Cells that the columns before the last one take, gaps included."""
    return sum(widths[c] + len(GAP) for c in keep[:-1])


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """`text` in lines of at most `width` cells, all but the first indented. Names are never broken at a hyphen; only a
    word longer than a line is.
    """
    if width is None or _cells(text) <= width:
        return [text]
    room = max(width - len(indent), 8)
    start = len(text) - len(text.lstrip(" "))
    line = " " * start
    lines: list[str] = []
    for word in text.split():
        if _cells(line) + _cells(word) + bool(line.strip()) > room + (0 if lines else len(indent)) and line.strip():
            lines.append(line)
            line = ""
        line += f" {word}" if line.strip() else word
        while _cells(line) > room:
            cut = len(line)
            while _cells(line[:cut]) > room:
                cut -= 1
            lines.append(line[:cut])
            line = line[cut:]
    lines.append(line)
    first, *rest = lines
    return [first, *(indent + line for line in rest)]


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - _cells(text))
    return blanks + text if right else text + blanks


def _is_number(text: str) -> bool:
    return text in NOTHING or text.replace(".", "", 1).replace(",", "").lstrip("-").removesuffix(" %").isdigit()

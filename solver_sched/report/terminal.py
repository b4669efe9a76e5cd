"""Writes blocks to a stream: styled and wrapped on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from solver_sched.report.layout import Block, Style, layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STYLES: Mapping[Style, str] = {
    "plain": "",
    "title": "bold",
    "header": "bold cyan",
    "good": "green",
    "warning": "yellow",
    "dim": "dim",
}


def write(blocks: Iterable[Block], stream: TextIO | None = None) -> None:
    """Print `blocks` to `stream` (stdout). NO_COLOR and TERM=dumb are respected."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        stream.writelines(encodable(line, stream) + "\n" for line, _ in layout(blocks, None))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    for line, style in layout(blocks, console.width):
        console.print(Text(encodable(line, stream), STYLES[style], no_wrap=True), soft_wrap=True)


def encodable(text: str, stream: TextIO) -> str:
    """`text`, with characters that the stream's encoding lacks (LANG=C) spelled out."""
    encoding = stream.encoding or "utf-8"
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)

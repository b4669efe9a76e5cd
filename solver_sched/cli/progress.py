"""A spinner with the running bound: on stderr, on a terminal only, and only for work of more than a second."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DELAY_SECONDS = 1.0


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Show `doing` and whatever the yielded function is told, until the block ends."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    # "line" is the one spinner of ASCII only.
    status = Console(stderr=True).status(escape(doing), spinner="line")
    timer = threading.Timer(DELAY_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: status.update(escape(f"{doing}: {text}"))
    finally:
        timer.cancel()
        timer.join()
        status.stop()

"""The lines of a trace's file, packed with gzip or not: archives keep them packed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from solver_sched.errors import InputError


def opened(path: Path) -> Iterator[str]:
    """Line by line, without its end; bytes that are no UTF-8 are replaced. Raises InputError if it cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                yield line.decode("utf-8-sig", "replace").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as wrong:
        reason = getattr(wrong, "strerror", None) or str(wrong)
        raise InputError(f"cannot be read: {reason}", source=str(path)) from None

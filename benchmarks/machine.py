"""Where and when a benchmark ran: one line for its report."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Processor, cores, memory, versions, load and date."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2**30} GiB"
    except (OSError, StopIteration, ValueError):
        processor, memory = platform.processor() or platform.machine(), ""
    versions = f"Python {platform.python_version()}, OR-Tools {version('ortools')}, numpy {version('numpy')}"
    load = f"load {os.getloadavg()[0]:.1f} at the start"
    return f"{os.cpu_count()} cores of {processor}{memory}; {versions}; {load}; {datetime.now(UTC):%d %B %Y}"


if __name__ == "__main__":
    print(machine())

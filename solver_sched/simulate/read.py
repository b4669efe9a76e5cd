"""A trace from files, by what they are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from solver_sched.errors import InputError
from solver_sched.simulate import lines, openb, swf
from solver_sched.simulate.trace import Trace

ALLOWED = "one .swf, one .jsonl (either may end in .gz), or two .csv: nodes and pods of openb"


def read(paths: Sequence[Path], first: int | None = None) -> Trace:
    """The trace of one file, or of two for openb. `first`: at most so many jobs.

    Raises InputError for a file that cannot be read, of a format that is not known, or that holds no job.
    """
    kinds = [Path(path.stem).suffix if path.suffix == ".gz" else path.suffix for path in paths]
    match kinds:
        case [".swf"]:
            trace = swf.read(paths[0], first)
        case [".jsonl" | ".ndjson" | ".json"]:
            trace = lines.read(paths[0], first)
        case [".csv", ".csv"]:
            trace = openb.read_trace(paths[0], paths[1], first)
        case _:
            raise InputError(f"not a trace that is known: give {ALLOWED}", source=", ".join(map(str, paths)))
    if not trace.jobs or not trace.nodes:
        what = "job" if not trace.jobs else "node"
        more = f"; {trace.problems[0]}" if trace.problems else ""
        raise InputError(f"holds no {what} that can be used{more}", source=trace.source)
    return trace

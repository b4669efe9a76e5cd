"""Lists of queues and jobs as kubectl prints lists: one line each, ages like 5m and 3d4h, `<none>` for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from solver_sched.report.layout import Table
from solver_sched.report.tables import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NONE = "<none>"
UNKNOWN = "<unknown>"


def queue_table(rows: Sequence[Mapping[str, Any]], *, wide: bool = False, bare: bool = False) -> Table:
    """One row per queue; `wide` adds what it deserves, holds and asks for."""
    header: tuple[str, ...] = ("NAME", "STATE", "WEIGHT", "PARENT", "SHARE", "PENDING", "RUNNING")
    body: list[tuple[str, ...]] = [
        (
            row["name"],
            row["state"],
            str(row["weight"]),
            row["parent"] or NONE,
            f"{row['share']:.3f}",
            str(row["pending"]),
            str(row["running"]),
        )
        for row in rows
    ]
    if wide:
        parts = ("deserved", "allocated", "request")
        header += tuple(part.upper() for part in parts)
        body = [(*cells, *(_amounts(row[part]) for part in parts)) for cells, row in zip(body, rows, strict=True)]
    return Table("", header, body, bare=bare)


def job_table(
    rows: Sequence[Mapping[str, Any]], now: int, *, namespaces: bool, wide: bool = False, bare: bool = False
) -> Table:
    """One row per job. `now`: s since the epoch; `namespaces`: with a column for them; `wide`: with the reason of the
    condition that was written last.
    """
    header: tuple[str, ...] = ("NAME", "QUEUE", "PRIORITY", "PHASE", "MIN", "RUNNING", "PENDING", "AGE", "POSITION")
    body: list[tuple[str, ...]] = [
        (
            row["name"],
            row["queue"] or NONE,
            str(row["priority"]),
            row["phase"],
            str(row["minMember"]),
            str(row["running"]),
            str(row["pending"]),
            age(now - row["created"]) if row["created"] is not None else UNKNOWN,
            str(row["position"]) if row["position"] is not None else NONE,
        )
        for row in rows
    ]
    if namespaces:
        header = ("NAMESPACE", *header)
        body = [(row["namespace"], *cells) for cells, row in zip(body, rows, strict=True)]
    if wide:
        header = (*header, "REASON")
        body = [(*cells, (row["condition"] or {}).get("reason") or NONE) for cells, row in zip(body, rows, strict=True)]
    return Table("", header, body, bare=bare)


def age(seconds: int) -> str:
    """How long ago, in two units where the first is small: `90s`, `5m30s`, `3d4h`, `2y30d`.

    As kubectl rounds it (apimachinery pkg/util/duration, HumanDuration).
    """
    if seconds < -1:
        return "<invalid>"  # from a clock that is ahead of ours
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{max(0, seconds)}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, of: str, small: int, unit: str) -> str:
    return f"{large}{of}{small}{unit}" if small else f"{large}{of}"


def _amounts(resources: Mapping[str, str]) -> str:
    """`cpu=8,memory=32Gi`: one word, so that a column stays a column for awk."""
    return ",".join(f"{name}={readable(name, amount)}" for name, amount in resources.items()) or NONE

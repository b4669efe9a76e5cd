"""Tables of a simulation: schedulers side by side; with `wide` also by queue and by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from solver_sched.report.layout import Block, Note, Table
from solver_sched.report.tables import count, counted

GPU = "nvidia.com/gpu"


def simulation_blocks(document: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """All of it for a terminal. Times are virtual, but for the seconds of a cycle."""
    trace, runs = document["trace"], document["runs"]
    read = ", ".join(
        (
            counted(trace["jobs"], "job", "jobs"),
            counted(trace["pods"], "pod", "pods"),
            counted(trace["nodes"], "node", "nodes"),
            counted(len(trace["queues"]), "queue", "queues"),
        )
    )
    seeds = {run["seed"] for run in runs}
    blocks: list[Block] = [
        Note(f"{trace['source']}"),
        Note(f"{read}; a cycle at most every {lasting(trace['period'])} of virtual time"),
    ]
    if document["partial"]:
        blocks.append(Note("partial: the runs were ended before they were through; what is below is so far", "warning"))
    blocks += [Note(f"note: {note}", "warning") for note in document["notes"]]
    blocks.append(_summary(runs, seeds=len(seeds) > 1, wide=wide))
    if wide:
        blocks += [_queues(runs), _sizes(runs)]
    return blocks


def _summary(runs: Sequence[Mapping[str, Any]], *, seeds: bool, wide: bool) -> Table:
    resources = list(dict.fromkeys(name for run in runs for name in run["summary"]["utilisation"]))
    if not wide:
        resources = [name for name in resources if name in ("cpu", GPU)] or resources[:1]
    header = (
        "RUN",
        *(("SEED",) if seeds else ()),
        "ENDED",
        "FAILED",
        "LEFT",
        "WAIT",
        "P50",
        "P95",
        *(("MAX",) if wide else ()),
        "SLOWDOWN",
        "MAKESPAN",
        *(
            name.upper() if name in ("cpu", "memory") else name.removeprefix("nvidia.com/").upper()
            for name in resources
        ),
        "FAIR",
        "EVICTED",
        "LOST",
        "CYCLES",
        "MS",
    )
    rows = []
    for run in runs:
        one = run["summary"]
        rows.append(
            (
                run["name"],
                *((str(run["seed"]),) if seeds else ()),
                *(count(one["jobs"][key]) for key in ("ended", "failed", "left")),
                *(lasting(one["wait"][key]) for key in ("mean", "p50", "p95", *(("max",) if wide else ()))),
                f"{one['slowdown']['mean']:.2f}",
                lasting(one["makespan"]),
                *(f"{100 * one['utilisation'].get(name, 0):.1f} %" for name in resources),
                f"{one['jain']:.3f}",
                count(one["evictions"]),
                lasting(one["lost"]["podSeconds"]),
                count(one["cycles"]),
                f"{1000 * one['cycle']['mean']:.1f}",
            )
        )
    return Table("", header, rows, optional=("CYCLES", "LOST", "FAILED", "P50", "MAKESPAN"))


def _queues(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            run["name"],
            str(run["seed"]),
            queue["name"],
            count(queue["jobs"]),
            lasting(queue["wait"]["mean"]),
            lasting(queue["wait"]["p95"]),
            f"{queue['share']:.3f}",
            f"{queue['deserved']:.3f}",
        )
        for run in runs
        for queue in run["queues"]
    ]
    return Table("Queues", ("RUN", "SEED", "QUEUE", "JOBS", "WAIT", "P95", "SHARE", "DESERVED"), rows)


def _sizes(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            run["name"],
            str(run["seed"]),
            size["pods"],
            count(size["jobs"]),
            lasting(size["wait"]["mean"]),
            lasting(size["wait"]["p95"]),
            f"{size['slowdown']['mean']:.2f}",
            f"{size['slowdown']['p95']:.2f}",
        )
        for run in runs
        for size in run["sizes"]
        if size["jobs"]  # of none there is neither wait nor slowdown
    ]
    return Table("Sizes", ("RUN", "SEED", "PODS", "JOBS", "WAIT", "P95", "SLOWDOWN", "P95"), rows)


def lasting(seconds: float) -> str:
    """`42s`, `7m30s`, `3h05m`, `2d04h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 2 * 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24:,}d{hours % 24:02d}h"

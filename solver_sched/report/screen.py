"""The screen of `run --embedded`: a cluster as its scheduler sees it, cycle after cycle, as blocks of text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from solver_sched.report.layout import Note, Table
from solver_sched.report.tables import counted, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from solver_sched.report.layout import Block

BAR = 20
"""Cells of a bar that is all of what a queue deserves."""
OVER = 10
"""Cells for what a queue holds beyond."""
FEW = 8
"""Gangs that are listed, and last decisions."""


class Moment(NamedTuple):
    """Where a replay is. `now`: virtual seconds; `jobs`: ended and all; `decisions`: the last ones, newest first."""

    now: int
    cycles: int
    ended: int
    jobs: int
    pending: int
    decisions: Sequence[str] = ()


def screen(plan: Mapping[str, Any] | None, moment: Moment) -> Iterator[Block]:
    """`plan`: the document of the last cycle, None before the first."""
    yield Note(
        f"{clock(moment.now)}  cycle {moment.cycles:,}  {moment.ended:,} of {moment.jobs:,} jobs ended  "
        f"{counted(moment.pending, 'pod waits', 'pods wait')}",
        "title",
    )
    if plan is None:
        return
    yield Note(_solver(plan), "good" if plan["certificate"]["status"] == "optimal" else "plain")
    yield Table(
        "Queues",
        ("QUEUE", "WEIGHT", "OF DESERVED", "", "HOLDS"),
        [
            (row["name"], str(row["weight"]), f"{row['share']:.0%}", bar(row["share"]), _amounts(row["allocated"]))
            for row in plan["queues"]
            if row["request"]
        ],
    )
    waiting = [row for row in plan["podGroups"] if row["pending"] or row["nominated"]]
    if waiting:
        more = f", {FEW} of them" if len(waiting) > FEW else ""
        yield Table(
            f"{counted(len(waiting), 'gang waits', 'gangs wait')}{more}",
            ("GANG", "QUEUE", "PODS", "WHY"),
            [(row["name"], row["queue"], str(row["pending"] + row["nominated"]), _why(row)) for row in waiting[:FEW]],
        )
    if moment.decisions:
        yield Note("Last decisions", "title")
        yield from (Note(line, hang=9) for line in moment.decisions[:FEW])


def clock(seconds: int) -> str:
    """`day 3 08:41:00`, the first day is 1."""
    day, rest = divmod(seconds, 24 * 3600)
    return f"day {day + 1} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def bar(share: float) -> str:
    """`#` for each twentieth of what a queue deserves, `.` for what it lacks, `+` beyond it."""
    full = min(round(share * BAR), BAR + OVER)
    return "#" * min(full, BAR) + "." * (BAR - full) + "+" * (full - BAR)


def decided(plan: Mapping[str, Any], now: int) -> list[str]:
    """A line for each gang that this plan does something to."""
    when, out = clock(now).rpartition(" ")[2], []
    nodes: dict[tuple[str, str, str], set[str]] = {}
    pods: Counter[tuple[str, str, str]] = Counter()
    for one in plan["decisions"]:
        if one["kind"] != "Admit":
            key = (one["kind"], one["podGroup"], one.get("for") or one["action"])
            nodes.setdefault(key, set()).add(one["node"])
            pods[key] += 1
    for (kind, group, what), count in pods.items():
        where = f"{counted(count, 'pod', 'pods')} on {counted(len(nodes[kind, group, what]), 'node', 'nodes')}"
        said = f"for {what}" if kind == "Evict" else f"({what})"
        out.append(f"{when} {kind.lower()} {group}: {where} {said}")
    return out


def _solver(plan: Mapping[str, Any]) -> str:
    given, seconds = plan["certificate"], plan["seconds"].get("total", 0.0)
    levels = plan["levels"]
    gain = next((f"; ahead of greedy at {one['name']}" for one in levels if _ahead(one)), "")
    match given["status"]:
        case "optimal":
            said = f"proven optimal in all {len(levels)} levels"
        case "gap":
            said = f"within {given['gap']:.2%} of the bound at {given.get('level', 'one level')}"
        case _:
            said = "greedy, without a bound"
    return f"last plan: {said}, {seconds:.2f} s{gain}"


def _ahead(level: Mapping[str, Any]) -> bool:
    greedy = level["greedy"]
    return greedy is not None and level["value"] > greedy and level["name"] not in ("balance", "order")


def _why(row: Mapping[str, Any]) -> str:
    if row["reason"] is not None:
        return f"{row['reason']['code']}: {row['reason']['message']}"
    return "room is being freed" if row["nominated"] else ""


def _amounts(resources: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {readable(name, amount)}" for name, amount in resources.items() if name != "pods")

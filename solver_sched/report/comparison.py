"""A comparison, as `solver_sched.compare` gives it, as tables: measures side by side, levels, groups that fare
differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from solver_sched import quantity
from solver_sched.report.layout import Block, Note, Table
from solver_sched.report.tables import SHORT_ROWS, certificate, count, counted, facts, left_out, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FATES = {"running": "run", "bound": "bound", "nominated": "nominated", "pending": "wait", "evicted": "evicted"}
WORDS = {"kubernetes.io/hostname": "nodes", "topology.kubernetes.io/zone": "zones"}


def comparison_blocks(document: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """What was read, how good each run is known to be, measures that differ, levels, groups, and what was left out.
    `wide`: measures, levels and groups in full.
    """
    runs = document["runs"]
    columns = titles(runs)
    table, same = measures(document, wide=wide)
    groups = differences(document, wide=wide)
    blocks: list[Block] = [
        Note(f"{counted(len(runs), 'plan', 'plans')} for {facts(document['snapshot'])}"),
        *(Note(_titled(columns[run["name"]], certificate(run)), "good" if _proven(run) else "plain") for run in runs),
        *(Note(f"note: {columns[run['name']]}: {note}", "warning") for run in runs for note in run["notes"]),
    ]
    if len(runs) > 1 and not document["differences"] and not _differs(document):
        blocks.append(Note("nothing differs: every measure is the same, and every group fares the same", "good"))
    if table.rows:
        blocks.append(table)
    if same:
        blocks.append(Note(f"the same in all: {', '.join(same)}", "dim"))
    return [
        *blocks,
        *shares(document, wide=wide),
        *level_tables(document, wide=wide),
        *groups,
        *left_out(document, wide=wide),
    ]


def titles(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What tells a run from the others: its solver, its policy, or both."""
    policies, solvers = {run["policy"] for run in runs}, {run["solver"] for run in runs}
    part = "solver" if len(policies) == 1 else "policy" if len(solvers) == 1 else "name"
    return {run["name"]: run[part] for run in runs}


def measures(document: Mapping[str, Any], *, wide: bool = False) -> tuple[Table, list[str]]:
    """One row per measure, one column per run, and in words the measures that are the same in all runs; in the `wide`
    form they are rows too.
    """
    runs = document["runs"]
    rows = list(_measures(runs))
    several = len(runs) > 1 and not wide
    shown = [row for row in rows if not several or len(set(row[1:])) > 1]
    same = [f"{name}: {values[0]}" for name, *values in rows if several and len(set(values)) == 1]
    return Table("Measures", ("MEASURE", *titles(runs).values()), shown), same


def _measures(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield ("groups started", *(count(run["groups"]["started"]) for run in runs))
    yield ("gangs broken", *(count(run["groups"]["broken"]) for run in runs))
    for key in ("bound", "nominated", "pending", "evicted", "moved"):
        yield (f"pods {key}", *(count(run["pods"][key]) for run in runs))
    names = [row["name"] for row in runs[0]["resources"] if row["name"] != "pods"]
    for name in names:
        found = [next((row for row in run["resources"] if row["name"] == name), None) for run in runs]
        total = next(readable(name, row["total"]) for row in found if row is not None)
        yield (f"{name} used of {total}", *(_part(row, "used") for row in found))
        yield (f"{name} idle and of no use", *(_part(row, "stranded") for row in found))
    yield ("largest deficit", *(_deficit(run["deficit"]) for run in runs))
    usable = runs[0]["whole"]["usable"]
    yield (f"nodes left whole of {count(usable)}", *(count(run["whole"]["nodes"]) for run in runs))
    for key in dict.fromkeys(row["key"] for run in runs for row in run["span"]):
        spans = [next((row for row in run["span"] if row["key"] == key), None) for run in runs]
        yield (
            f"{WORDS.get(key, key)} per placed gang",
            *("-" if span is None else f"{span['mean']:.2f}, at most {span['max']}" for span in spans),
        )


def _part(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None:
        return "-"
    part, total = (quantity.parse(row[name], 1000 if quantity.is_cpu(row["name"]) else 1) for name in (key, "total"))
    return f"{readable(row['name'], row[key])} ({part / total * 100:.1f} %)" if part else "0"


def _deficit(found: Mapping[str, Any] | None) -> str:
    if found is None or not found["value"]:
        return "none"
    return f"{found['value'] * 100:.1f} % (queue {found['queue']}, {found['resource']})"


def shares(document: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """Of each queue the largest part of what it deserves that it holds after each plan; the short form leaves out
    queues that all plans give the same.
    """
    rows = list(_shares(document["runs"]))
    differing = [row for row in rows if len(set(row[1:])) > 1]
    shown = rows if wide or len(document["runs"]) == 1 else differing[:SHORT_ROWS]
    header = ("QUEUE", *titles(document["runs"]).values())
    blocks: list[Block] = [Table("Queues (largest part of deserved)", header, shown)] if shown else []
    if shown and len(shown) < len(differing):
        blocks.append(Note(f"{count(len(differing) - len(shown))} more: -o wide lists them all", "dim"))
    return blocks


def _shares(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for queue in [row["name"] for row in runs[0]["queues"]]:
        found = [next((row["share"] for row in run["queues"] if row["name"] == queue), None) for run in runs]
        yield (queue, *("-" if share is None else f"{share:.3f}" for share in found))


def _titled(title: str, text: str) -> str:
    return text if text.startswith(f"{title}:") else f"{title}: {text}"


def _differs(document: Mapping[str, Any]) -> bool:
    rows = [*_measures(document["runs"]), *_shares(document["runs"])]
    levels = [level["values"].values() for policy in document["levels"] for level in policy["levels"]]
    return any(len(set(values)) > 1 for _, *values in rows) or any(len(set(values)) > 1 for values in levels)


def level_tables(document: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """Per policy the objective, most important level first; of another policy it is another one, which compares with
    nothing here. The short form leaves out levels that are proven and the same in all runs.
    """
    columns = titles(document["runs"])
    blocks: list[Block] = []
    for policy in document["levels"]:
        rows = policy["levels"]
        shown = [row for row in rows if wide or len({*row["values"].values(), row["bound"]} - {None}) > 1]
        solvers = list(rows[0]["values"]) if rows else []
        body = [
            (row["name"], *(_number(row["values"][run]) for run in solvers), _number(row["bound"]), row["status"])
            for row in shown
        ]
        title = f"Levels of policy {policy['policy']}, most important first; larger is better"
        if body:
            blocks.append(Table(title, ("LEVEL", *(columns[run] for run in solvers), "BOUND", "STATUS"), body))
        if len(shown) < len(rows):
            same = counted(len(rows) - len(shown), "level is", "levels are")
            blocks.append(Note(f"{same} proven and the same in all runs of policy {policy['policy']}", "dim"))
    if len(document["levels"]) > 1:
        blocks.append(Note("levels are comparable within one policy only", "dim"))
    return blocks


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def differences(document: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """Groups that fare differently: what becomes of their pods in each run, and why those wait that wait."""
    columns = titles(document["runs"])
    found = document["differences"]
    rows = [
        (
            group["name"],
            group["queue"],
            *(fate(group["runs"].get(run["name"])) for run in document["runs"]),
            why(group, columns),
        )
        for group in (found if wide else found[:SHORT_ROWS])
    ]
    if not rows:
        return []
    title = f"{counted(len(found), 'group fares', 'groups fare')} differently"
    blocks: list[Block] = [Table(title, ("NAME", "QUEUE", *columns.values(), "WHY"), rows, optional=("QUEUE",))]
    if len(rows) < len(found):
        blocks.append(Note(f"{count(len(found) - len(rows))} more: -o wide lists them all", "dim"))
    return blocks


def fate(pods: Mapping[str, Any] | None) -> str:
    """`4 bound, 2 wait`."""
    if pods is None:
        return "-"
    return ", ".join(f"{pods[key]} {word}" for key, word in FATES.items() if pods[key]) or "-"


def why(group: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """The reasons of the runs in which pods wait or the group is ended; one that several give is said once."""
    said: dict[str, list[str]] = {}
    for run, pods in group["runs"].items():
        if pods["reason"]:
            said.setdefault(f"{pods['reason']['code']}: {pods['reason']['message']}", []).append(columns[run])
    return "; ".join(f"{', '.join(runs)}: {reason}" for reason, runs in said.items())


def _proven(run: Mapping[str, Any]) -> bool:
    return bool(run["certificate"]["status"] == "optimal")

"""Documents as pages: what is told of a plan, of a comparison and of a simulation, in which order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from solver_sched import quantity
from solver_sched.report import comparison, tables
from solver_sched.report.html.nodes import busiest, node_map
from solver_sched.report.html.parts import Card, Figure, Folded, Key, Page, Part, Section
from solver_sched.report.html.plots import Stack, bars, stacks
from solver_sched.report.html.simulation import simulation
from solver_sched.report.layout import Note, Table
from solver_sched.report.tables import amounts, count, counted, readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from solver_sched.report.layout import Block

MOST_BARS = 30
"""Queues of a plot: those furthest from what they deserve; the table has all."""
MAPS = 3


def sections(document: Mapping[str, Any]) -> Page:
    """The page of a document, by its kind. Raises ValueError for one that has no page."""
    match document.get("kind"):
        case "Plan":
            return plan(document)
        case "Comparison":
            return compared(document)
        case "Simulation":
            return simulation(document)
        case kind:
            raise ValueError(f"kind {kind!r} has no page: must be Plan, Comparison or Simulation")


def plan(document: Mapping[str, Any]) -> Page:
    """Nodes if the document has them, queues, who waits and why, evictions, levels, decisions."""
    groups, nodes = document["podGroups"], document.get("nodes") or []
    waiting = [group for group in groups if group["pending"] or group["reason"]]
    kinds = Counter(one["kind"] for one in document["decisions"])
    cards = [
        Card("Pods bound", count(kinds["Bind"])),
        *([Card("Pods nominated", count(kinds["Nominate"]))] if kinds["Nominate"] else ()),
        *([Card("Pods evicted", count(kinds["Evict"]))] if kinds["Evict"] else ()),
        Card(
            "Pods pending",
            count(sum(group["pending"] for group in groups)),
            f"in {counted(sum(bool(group['pending']) for group in groups), 'group', 'groups')}",
        ),
        *_fullness(nodes),
    ]
    maps = [node_map(nodes, name, f"Nodes by {name} in use") for name in busiest(nodes, MAPS)]
    parts = [
        Section("Nodes", maps),
        Section("Queues", _queues(document["queues"])),
        Section("Waiting", [*_codes(waiting), *_waiting(waiting)]),
        Section("Decisions", _folded(tables.decisions(document["decisions"], wide=True))),
        Section("Pod groups", _folded(tables.pod_groups(groups, wide=True))),
        Section("Levels", tables.levels(document["levels"], wide=True)),
        Section("Left out", tables.left_out(document, wide=True)),
    ]
    lead = [block for block in tables.summary(document) if isinstance(block, Note)]
    return Page(f"Plan, policy {document['policy']['name']}", lead, cards, _filled(parts))


def compared(document: Mapping[str, Any]) -> Page:
    """Measures side by side, room, queues, nodes, levels, groups that fare differently."""
    runs = document["runs"]
    columns = comparison.titles(runs)
    blocks = comparison.comparison_blocks(document, wide=True)
    lead = [block for block in blocks if isinstance(block, Note) and block.style != "dim"]
    table, _ = comparison.measures(document, wide=True)
    cards = [
        Card(
            columns[run["name"]],
            count(run["groups"]["started"]),
            f"{'group starts' if run['groups']['started'] == 1 else 'groups start'}, "
            f"{count(run['pods']['bound'] + run['pods']['nominated'])} pods placed, "
            f"{count(run['pods']['pending'])} pending",
        )
        for run in runs
    ]
    maps = []
    for run in runs:
        nodes = run.get("nodes") or []
        maps += [node_map(nodes, name, f"Nodes by {name} in use, {columns[run['name']]}") for name in busiest(nodes, 1)]
    parts = [
        Section("Measures", [table, *_room(runs, columns)]),
        Section("Queues", _shares(runs, columns)),
        Section("Groups that fare differently", comparison.differences(document, wide=True)),
        Section("Nodes", maps),
        Section("Levels", comparison.level_tables(document, wide=True)),
        Section("Left out", tables.left_out(document, wide=True)),
    ]
    return Page(f"Comparison of {counted(len(runs), 'plan', 'plans')}", lead, cards, _filled(parts))


def _filled(parts: Sequence[Section]) -> list[Section]:
    return [section for section in parts if section.parts]


def _folded(blocks: Sequence[Block]) -> list[Part]:
    return [Folded(block) if isinstance(block, Table) else block for block in blocks]


def _waiting(groups: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Who waits, and beside it why: on a telephone the columns after that are out of sight."""

    def reordered(row: tuple[str, ...]) -> tuple[str, ...]:
        return (row[0], row[-1], *row[1:-1])

    return [
        Table("Pod groups that wait", reordered(block.header), [reordered(row) for row in block.rows])
        for block in tables.pod_groups(groups, wide=True)
        if isinstance(block, Table)
    ]


def _fullness(nodes: Sequence[Mapping[str, Any]]) -> list[Card]:
    cards = []
    for name in busiest(nodes, MAPS):
        total = sum(quantity.amount(name, node["allocatable"].get(name, "0")) for node in nodes)
        used = sum(_signed(name, node["used"].get(name, "0")) for node in nodes)
        if total:
            text = f"{readable(name, quantity.format(name, used))} of {readable(name, quantity.format(name, total))}"
            cards.append(Card(f"{name} in use", f"{100 * used / total:.1f} %", text))
    return cards


def _signed(name: str, amount: str) -> int:
    return quantity.parse(amount, 1000 if quantity.is_cpu(name) else 1)


def _queues(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Of each queue what it has of what it deserves."""
    known = [row for row in rows if row.get("share") is not None]
    shown = sorted(known, key=lambda row: (-abs(row["share"] - 1) if row["deserved"] else 1, row["name"]))[:MOST_BARS]
    shown.sort(key=lambda row: str(row["name"]))
    table = Table(
        "Queues",
        ("QUEUE", "SHARE", "DESERVED", "ALLOCATED", "REQUEST"),
        [
            (
                row["name"],
                "-" if row.get("share") is None else f"{row['share']:.3f}",
                *(amounts(row.get(key) or {}) for key in ("deserved", "allocated", "request")),
            )
            for row in rows
        ],
    )
    if not shown:
        return [table] if rows else []
    over = sum(row["share"] > 1 for row in known if row["deserved"])
    text = (
        "The largest part of what a queue deserves that it holds after the plan, over its resources; of a queue that "
        f"deserves nothing, of the cluster. {counted(over, 'queue holds', 'queues hold')} more than that"
        + (
            f"; {len(known) - len(shown)} of {len(known)} queues, the nearest to it, are left out."
            if len(shown) < len(known)
            else "."
        )
    )
    title = "Queue share against deserved"
    drawing = bars(
        [row["name"] for row in shown],
        [[row["share"] for row in shown]],
        [1.0 if row["deserved"] else None for row in shown],
        (title, text),
        x="share of deserved",
    )
    return [Figure(title, text, drawing, table, [Key("holds", "c0"), Key("deserves", "ink", "mark")])]


def _shares(runs: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[Part]:
    names = [row["name"] for row in runs[0]["queues"]]
    by_run = {run["name"]: {row["name"]: row for row in run["queues"]} for run in runs}
    rows = []
    for name in names:
        found = [by_run[run["name"]].get(name) for run in runs]
        for run, row in zip(runs, found, strict=True):
            if row is not None:
                share = "-" if row.get("share") is None else f"{row['share']:.3f}"
                rows.append(
                    (
                        name,
                        columns[run["name"]],
                        share,
                        amounts(row.get("deserved") or {}),
                        amounts(row.get("allocated") or {}),
                    )
                )
    if not rows:
        return []

    def shares(name: str) -> list[float]:
        return [float((by_run[run["name"]].get(name) or {}).get("share") or 0.0) for run in runs]

    shown = sorted(names, key=lambda name: (min(shares(name)) - max(shares(name)), -max(shares(name)), name))
    shown = sorted(shown[: max(4, MOST_BARS // len(runs))])
    text = "The largest part of what a queue deserves that it holds after the plan, over its resources."
    if len(shown) < len(names):
        text += f" {len(names) - len(shown)} of {len(names)} queues, in which plans differ least, are left out."
    title = "Queue share against deserved"
    drawing = bars(
        shown,
        [[shares(name)[r] for name in shown] for r in range(len(runs))],
        [1.0 if any((by_run[run["name"]].get(name) or {}).get("deserved") for run in runs) else None for name in shown],
        (title, text),
        x="share of deserved",
    )
    table = Table("Queues", ("QUEUE", "RUN", "SHARE", "DESERVED", "ALLOCATED"), rows)
    legend = [*(Key(columns[run["name"]], f"c{r % 8}") for r, run in enumerate(runs)), Key("deserves", "ink", "mark")]
    return [Figure(title, text, drawing, table, legend)]


def _room(runs: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[Part]:
    """Used, idle, idle and of no use: of each resource that is in use anywhere."""
    names = [
        row["name"]
        for row in runs[0]["resources"]
        if row["name"] != "pods"
        and any(one["used"] != "0" for run in runs for one in run["resources"] if one["name"] == row["name"])
    ]
    rows, stacked = [], []
    for name in names:
        for run in runs:
            row = next((row for row in run["resources"] if row["name"] == name), None)
            if row is None:
                continue
            total, used, idle, stranded = (_signed(name, row[key]) for key in ("total", "used", "idle", "stranded"))
            rows.append(
                (
                    name,
                    columns[run["name"]],
                    *(readable(name, row[key]) for key in ("total", "used", "idle", "stranded")),
                )
            )
            lengths = (used / total, (idle - stranded) / total, stranded / total)
            stacked.append(
                Stack(f"{name}, {columns[run['name']]}", list(zip(lengths, ("used", "idle", "stranded"), strict=True)))
            )
    if not rows:
        return []
    title = "Room used"
    text = (
        "Of no use is idle room on nodes where none of the shapes fits that were pending before the plan and ask for "
        "the resource."
    )
    table = Table("Room", ("RESOURCE", "RUN", "TOTAL", "USED", "IDLE", "OF NO USE"), rows)
    legend = [Key("used", "used"), Key("idle", "idle"), Key("idle and of no use", "stranded")]
    return [Figure(title, text, stacks(stacked, (title, text), x="of all there is"), table, legend)]


def _codes(groups: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Reasons by how many groups and pods they hold back."""
    waits: Counter[str] = Counter()
    pods: Counter[str] = Counter()
    for group in groups:
        code = (group["reason"] or {}).get("code", "no reason")
        waits[code] += 1
        pods[code] += group["pending"]
    rows = [
        (code, count(n), count(pods[code])) for code, n in sorted(waits.items(), key=lambda item: (-item[1], item[0]))
    ]
    return [Table("Why", ("REASON", "GROUPS", "PODS"), rows)] if rows else []

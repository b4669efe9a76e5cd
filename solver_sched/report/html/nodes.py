"""Nodes by use: a map with a square for each, and the table behind it."""

from __future__ import annotations

import re
from collections import Counter
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from solver_sched import quantity
from solver_sched.report.html.parts import Figure, Key
from solver_sched.report.html.plots import WIDTH, svg
from solver_sched.report.layout import Table, printable
from solver_sched.report.tables import count, counted, readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEPS = 10
WIDEST, LEAST = 34.0, 11.0
"""Points: of a square where there are few; of one in which a mark leaves enough of its colour."""
CELL = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" fill="var(--{})"><title>{}</title></rect>')
PLAIN = ("cpu", "memory", "ephemeral-storage", "pods")


def node_map(nodes: Sequence[Mapping[str, Any]], resource: str, title: str) -> Figure:
    """How much of `resource` each node has in use when the plan is carried out; nodes of one make stand together."""
    shown = sorted(nodes, key=lambda node: (sorted(node["allocatable"].items()), _natural(node["name"])))
    columns = max(ceil(sqrt(1.5 * len(shown))), int(WIDTH / WIDEST))
    side = WIDTH / columns
    marked = side >= LEAST
    cells = [
        CELL.format(
            "cell new" if node["arrive"] and marked else "cell",
            f"{at % columns * side + 0.8:.5g}",
            f"{at // columns * side + 0.8:.5g}",
            f"{side - 1.6:.4g}",
            f"{side - 1.6:.4g}",
            colour(node, resource),
            printable(f"{node['name']}: {_of(node, resource)} {resource}{_change(node)}"),
        )
        for at, node in enumerate(shown)
    ]
    text = _sentence(nodes, resource)
    height = max(1, ceil(len(shown) / columns)) * side
    legend = [
        *(Key(f"{10 * step} %", f"u{step}") for step in (0, 5, STEPS)),
        Key("more than all", "over"),
        Key("has none", "none"),
        *([Key("gets pods", "c1", "outline")] if marked else ()),
    ]
    held = {colour(node, resource) for node in nodes}
    legend = [key for key in legend if key.colour not in ("over", "none") or key.colour in held]
    drawing = svg(WIDTH, height, printable(title), text, Markup("\n").join(cells))
    return Figure(title, text, drawing, table(nodes, resource), legend)


def busiest(nodes: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Resources that are worth a map: devices first, the most used before others, then CPU and memory."""
    used: Counter[str] = Counter()
    for node in nodes:
        used.update(dict.fromkeys(node["allocatable"], 1))
        used.update(dict.fromkeys(node["used"], 1000))
    devices = sorted(
        (name for name in used if name not in PLAIN and not name.startswith(("hugepages-", "attachable-"))),
        key=lambda name: (-used[name], name),
    )
    return [*devices[: max(1, most - 2)], *(name for name in PLAIN[:2] if name in used)][:most]


def table(nodes: Sequence[Mapping[str, Any]], resource: str) -> Table:
    """What of the resource is used and what there is, per node."""
    rows = [
        (
            node["name"],
            *(readable(resource, node[key].get(resource, "0")) for key in ("used", "allocatable")),
            str(node["arrive"]),
            str(node["leave"]),
        )
        for node in nodes
    ]
    return Table(f"Nodes by {resource}", ("NODE", "USED", "ALLOCATABLE", "PODS COME", "PODS GO"), rows)


def colour(node: Mapping[str, Any], resource: str) -> str:
    """Of style.css: `u0` idle .. `u10` full, `over`, `none`. Never full below all, never idle above nothing."""
    total = quantity.amount(resource, node["allocatable"].get(resource, "0"))
    used = quantity.parse(node["used"].get(resource, "0"), 1000 if quantity.is_cpu(resource) else 1)
    if used > total:
        return "over"
    if total == 0:
        return "none"
    if used in (0, total):
        return f"u{STEPS if used else 0}"
    return f"u{min(STEPS - 1, max(1, round(STEPS * used / total)))}"


def _of(node: Mapping[str, Any], resource: str) -> str:
    used, total = (node[key].get(resource, "0") for key in ("used", "allocatable"))
    return f"{readable(resource, used)}/{readable(resource, total)}"


def _change(node: Mapping[str, Any]) -> str:
    words = [
        *([f"{counted(node['arrive'], 'pod comes', 'pods come')}"] if node["arrive"] else ()),
        *([f"{counted(node['leave'], 'pod goes', 'pods go')}"] if node["leave"] else ()),
    ]
    return "; " + ", ".join(words) if words else ""


def _sentence(nodes: Sequence[Mapping[str, Any]], resource: str) -> str:
    have = [node for node in nodes if node["allocatable"].get(resource, "0") != "0"]
    colours = Counter(colour(node, resource) for node in have)
    full, idle, over = colours[f"u{STEPS}"], colours["u0"], colours["over"]
    text = f"Of {counted(len(have), 'node', 'nodes')} with {resource}, {count(full)} full, {count(idle)} idle"
    text += f", {count(over)} beyond what there is" if over else ""
    new = sum(bool(node["arrive"]) for node in nodes)
    return f"{text}; {counted(new, 'node gets', 'nodes get')} pods."


def _natural(name: str) -> list[tuple[int, int | str]]:
    """`n9` before `n10`."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]{1,18})", name) if part]

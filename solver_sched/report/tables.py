"""A plan, as `CycleReport.as_dict` gives it, as the tables people look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from solver_sched import quantity
from solver_sched.report.layout import Block, Note, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SHORT_ROWS = 40
"""Rows of a table in the short form; `wide` shows all."""
SHORT_RESOURCES = 4
SHORT_NODES = 5
LONGEST_NUMBER = 6
"""Digits that are still read at a glance."""


def plan_blocks(plan: Mapping[str, Any], *, wide: bool = False, unmet: Sequence[str] = ()) -> list[Block]:
    """Summary, pod groups, queues, decisions, levels, and what was left out. `wide`: every row of each. `unmet`: what
    the policy asks for and nothing follows from.
    """
    return [
        *summary(plan),
        *pod_groups(plan["podGroups"], wide=wide),
        *queues(plan["queues"], wide=wide),
        *decisions(plan["decisions"], wide=wide),
        *levels(plan["levels"], wide=wide),
        *left_out(plan, wide=wide),
        *(
            [Note(f"the policy names what has no effect yet: {', '.join(unmet)} (see policy check)", "dim")]
            if unmet
            else ()
        ),
    ]


def summary(plan: Mapping[str, Any]) -> list[Block]:
    """What was read, what came of it, how good that is known to be, and how long it took."""
    groups = plan["podGroups"]
    kinds = Counter(decision["kind"] for decision in plan["decisions"])
    done = [f"{count(kinds['Bind'])} bound"]
    if kinds["Nominate"]:
        done.append(f"{count(kinds['Nominate'])} nominated")
    moved = sum(bool(decision.get("to")) for decision in plan["decisions"])
    if moved:
        done.append(f"{count(moved)} moved")
    outside = sum(decision["kind"] == "Evict" and not decision.get("action") for decision in plan["decisions"])
    evicted = kinds["Evict"] - outside - moved
    if evicted:
        ended = sum((group["reason"] or {}).get("code") == "Evicted" for group in groups)
        end = f"{counted(ended, 'gang ends', 'gangs end')}" if ended else "no gang ends"
        done.append(f"{count(evicted)} evicted ({end})")
    if outside:
        done.append(f"{count(outside)} taken as gone")
    waiting = [group for group in groups if group["pending"]]
    pending = sum(group["pending"] for group in waiting)
    result = f"pods: {', '.join(done)}, {count(pending)} pending"
    if waiting:
        codes = Counter((group["reason"] or {}).get("code", "no reason") for group in waiting)
        why = ", ".join(f"{code} {count(n)}" for code, n in sorted(codes.items(), key=lambda item: (-item[1], item[0])))
        result += f" in {counted(len(waiting), 'group', 'groups')} ({why})"
    return [
        Note(f"policy {plan['policy']['name']} on {facts(plan['snapshot'])}"),
        Note(result),
        Note(certificate(plan), "good" if plan["certificate"]["status"] == "optimal" else "warning"),
        *(Note(f"reserved: {reserved(one)}") for one in plan.get("reservations") or ()),
        *(Note(f"note: {note}", "warning") for note in plan.get("notes") or ()),
        *(Note(f"broken rule: {broken}", "warning") for broken in plan.get("violations") or ()),
    ]


def facts(read: Mapping[str, Any]) -> str:
    """`12 nodes, 39 pods, 10 pod groups, 4 queues`: what was read."""
    return ", ".join(
        counted(read[key], one, many)
        for key, one, many in (
            ("nodes", "node", "nodes"),
            ("pods", "pod", "pods"),
            ("podGroups", "pod group", "pod groups"),
            ("queues", "queue", "queues"),
        )
    )


def reserved(one: Mapping[str, Any]) -> str:
    """Whom nodes are kept for, and from when."""
    nodes = one["nodes"]
    shown = ", ".join(nodes[:SHORT_NODES]) + (
        f" and {len(nodes) - SHORT_NODES} more" if len(nodes) > SHORT_NODES else ""
    )
    return f"{shown} for {one['podGroup']} " + (f"from {one['at']}" if one["at"] else "by hand")


def certificate(plan: Mapping[str, Any]) -> str:
    """One line: how far the plan can be from the best, and the seconds behind it."""
    given, seconds = plan["certificate"], plan["seconds"]
    if given["status"] == "optimal":
        text = "optimal: every level is proven"
    elif given["status"] == "gap":
        opened = given.get("level") or next((level["name"] for level in plan["levels"] if _gap(level)), "")
        text = f"gap {percent(given['gap'])}" + (f", first at level {opened}" if opened else "")
    elif given["status"] == "given":
        broken = plan.get("violations") or ()
        text = f"given: breaks {counted(len(broken), 'rule', 'rules')}" if broken else "given: keeps every rule"
    else:
        text = "greedy: no bound is known"
    if given["status"] in ("optimal", "gap") and given.get("winner") == "greedy":
        text += ", reached by the greedy plan"
    spent = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items() if name != "total" and value >= 0.005)
    return f"{text}; {seconds['total']:.2f} s" + (f" ({spent})" if spent else "")


def pod_groups(groups: Sequence[Mapping[str, Any]], *, wide: bool = False) -> list[Block]:
    """One row per group. The short form of a long list puts those that wait first."""
    shown = list(groups)
    if not wide and len(groups) > SHORT_ROWS:
        shown = sorted(groups, key=lambda group: not (group["pending"] or group["reason"]))[:SHORT_ROWS]
    header: tuple[str, ...] = ("NAME", "QUEUE", "PHASE", "MIN", "RUNNING", "BOUND", "NOMINATED", "PENDING", "REASON")
    rows: list[tuple[str, ...]] = [
        (
            group["name"],
            group["queue"],
            group["phase"] or "-",
            str(group["minMember"]),
            *(str(group[key]) for key in ("running", "bound", "nominated", "pending")),
            reason(group),
        )
        for group in shown
    ]
    if not any(group["nominated"] for group in shown):
        at = header.index("NOMINATED")
        header = header[:at] + header[at + 1 :]
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return _table("Pod groups", header, rows, len(groups), optional=("PHASE", "RUNNING", "MIN", "QUEUE"))


def reason(group: Mapping[str, Any]) -> str:
    """Why pods of the group wait: the code and its numbers."""
    given = group.get("reason")
    return f"{given['code']}: {given['message']}" if given else ""


def queues(rows: Sequence[Mapping[str, Any]], *, wide: bool = False) -> list[Block]:
    """Per queue its share, and per resource what it holds of what it deserves."""
    asked: Counter[str] = Counter()
    for queue in rows:
        for part in ("deserved", "allocated", "request"):
            asked.update(name for name, amount in (queue.get(part) or {}).items() if amount != "0")
    # Compute and memory first, then what most queues use; pod slots are never scarce enough to head a column.
    names = sorted(asked, key=lambda name: (name != "cpu", name != "memory", name == "pods", -asked[name], name))
    names = names if wide else [name for name in names if name != "pods"][:SHORT_RESOURCES]
    header = ("QUEUE", "SHARE", *(name.upper() if name in ("cpu", "memory") else name for name in names))
    body = [
        (
            queue["name"],
            "-" if queue.get("share") is None else f"{queue['share']:.3f}",
            *(_held(queue, name) for name in names),
        )
        for queue in rows
    ]
    shown = body if wide else body[:SHORT_ROWS]
    return _table("Queues (allocated/deserved)", header, shown, len(rows), optional=tuple(reversed(header[3:-1])))


def _held(queue: Mapping[str, Any], resource: str) -> str:
    held = (queue.get("allocated") or {}).get(resource, "0")
    return f"{readable(resource, held)}/{readable(resource, (queue.get('deserved') or {}).get(resource, '-'))}"


def decisions(rows: Sequence[Mapping[str, Any]], *, wide: bool = False) -> list[Block]:
    """What is to be done, in the order in which it may be: admissions and binds, who goes, who gets the room. The short
    form of a long list leaves the first to `wide`.
    """
    short = not wide and len(rows) > SHORT_ROWS
    first = [row for row in rows if row["kind"] not in ("Evict", "Nominate")]
    gone = [row for row in rows if row["kind"] == "Evict"]
    later = [row for row in rows if row["kind"] == "Nominate"]
    blocks: list[Block] = []
    if not short:
        blocks += _places("Decisions", first)
    shown = gone[:SHORT_ROWS] if short else gone
    body = [
        (row["pod"], _target(row) or "-", row.get("action") or "-", row.get("for") or "-", row.get("reason") or "")
        for row in shown
    ]
    header = ("POD", "NODE", "ACTION", "FOR", "REASON")
    blocks += _table("Evictions", header, body, len(gone), optional=("ACTION", "NODE"))
    blocks += _places("Nominations (bound when the room is there)", later[:SHORT_ROWS] if short else later, len(later))
    if short:
        blocks.append(Note(f"{counted(len(rows), 'decision', 'decisions')}: -o wide lists them all", "dim"))
    return blocks


def _places(title: str, rows: Sequence[Mapping[str, Any]], total: int | None = None) -> list[Block]:
    # The last column may wrap, and node names are the longest: queue and group come before.
    body = []
    for row in rows:
        place = _target(row)
        body.append((row["kind"], row.get("pod") or "-", row.get("podGroup") or "-", row.get("action") or "-", place))
    header = ("DECISION", "POD", "POD GROUP", "ACTION", "NODE")
    return _table(title, header, body, len(rows) if total is None else total, optional=("ACTION", "POD GROUP"))


def _target(row: Mapping[str, Any]) -> str:
    return (row.get("node") or "") + (f" -> {row['to']}" if row.get("to") else "")


def levels(rows: Sequence[Mapping[str, Any]], *, wide: bool = False) -> list[Block]:
    """The objective, most important level first. The short form leaves out what is proven and as greedy has it."""
    shown = [row for row in rows if wide or _gap(row) != 0 or row["value"] != row.get("greedy")]
    body = [
        (
            row["name"],
            str(row["value"]),
            "-" if row["bound"] is None else str(row["bound"]),
            "-" if _gap(row) is None else percent(_gap(row) or 0.0),
            "-" if row.get("greedy") is None else str(row["greedy"]),
            f"{row.get('seconds') or 0:.2f}",
            row["status"],
        )
        for row in shown
    ]
    header = ("LEVEL", "VALUE", "BOUND", "GAP", "GREEDY", "SECONDS", "STATUS")
    blocks = _table("Levels", header, body, len(body), optional=("SECONDS", "GREEDY", "BOUND")) if body else []
    same = len(rows) - len(shown)
    if same:
        word = counted(same, "level is", "levels are")
        blocks.append(Note(f"{word} proven, with the value that greedy has", "dim"))
    return blocks


def left_out(plan: Mapping[str, Any], *, wide: bool = False) -> list[Block]:
    """What the snapshot does not hold: objects with mistakes, and objects that are none of a scheduler's business."""
    facts = plan["snapshot"]
    problems = facts.get("problems") or []
    shown = problems if wide else problems[:SHORT_ROWS]
    blocks: list[Block] = []
    if problems:
        rows = [
            (problem["source"] or "-", problem["object"] or "-", problem["field"] or "-", problem["message"])
            for problem in shown
        ]
        blocks += _table(
            "Problems", ("SOURCE", "OBJECT", "FIELD", "MESSAGE"), rows, len(problems), optional=("SOURCE", "FIELD")
        )
    ignored = facts.get("ignored") or {}
    if ignored:
        causes = sorted(ignored.items(), key=lambda item: (-item[1], item[0]))
        blocks.append(Note("ignored: " + ", ".join(f"{count(n)} {cause}" for cause, n in causes), "dim"))
    return blocks


def _table(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], total: int, *, optional: tuple[str, ...] = ()
) -> list[Block]:
    if not rows:
        return []
    blocks: list[Block] = [Table(title, header, rows, optional)]
    if len(rows) < total:
        blocks.append(Note(f"{count(total - len(rows))} more: -o wide lists them all", "dim"))
    return blocks


def _gap(level: Mapping[str, Any]) -> float | None:
    """|bound - value| / max(1, |bound|), None without a bound."""
    if level.get("bound") is None:
        return None
    return float(abs(level["bound"] - level["value"]) / max(1, abs(level["bound"])))


def percent(fraction: float) -> str:
    """Never `0 %` unless it is nothing: an open level must not look closed. Of a bound near 0 a share says nothing."""
    if fraction > 1:
        return "> 100 %"
    return "0 %" if fraction == 0 else f"{max(fraction * 100, 0.0001):.4f} %"


def count(number: int) -> str:
    """1234567 as 1,234,567."""
    return f"{number:,}"


def counted(number: int, one: str, many: str) -> str:
    """`1 pod`, `2,000 pods`."""
    return f"{count(number)} {one if number == 1 else many}"


def amounts(resources: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """`cpu 2, memory 4Gi`; `nothing` if empty."""
    pairs = dict(resources)
    return ", ".join(f"{name} {readable(name, amount)}" for name, amount in pairs.items()) or "nothing"


def readable(resource: str, amount: str) -> str:
    """A share of memory is seldom a round number: `~9878.9Gi` for 10607342087606; nor is a sum of requests: `~74204.7`
    for 74204698m of CPU. The JSON has every byte.
    """
    if len(amount.rstrip("kMGTPEim")) <= LONGEST_NUMBER:
        return amount
    number = quantity.parse(amount, 1000 if quantity.is_cpu(resource) else 1)
    if quantity.is_cpu(resource) and amount.endswith("m"):
        return f"~{number / 1000:.1f}"
    if not quantity.counts_bytes(resource) or number < 2**20:
        return amount
    unit, name = (2**30, "Gi") if number >= 2**30 else (2**20, "Mi")
    return f"~{number / unit:.1f}{name}"

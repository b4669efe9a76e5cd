"""The full record of one pod group: its numbers, its reason with the detail behind it, its queue, its decisions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from solver_sched.report.layout import Block, Note, Table
from solver_sched.report.tables import amounts, certificate, counted, decisions, left_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def record(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Everything a plan says about the group `name`: the answer of `explain -o json`. Raises KeyError."""
    group = next((group for group in plan["podGroups"] if group["name"] == name), None)
    if group is None:
        raise KeyError(name)
    return {
        "apiVersion": plan["apiVersion"],
        "kind": "Explanation",
        "podGroup": group,
        "queue": next((queue for queue in plan["queues"] if queue["name"] == group["queue"]), None),
        "decisions": [d for d in plan["decisions"] if name in (d.get("podGroup"), d.get("for"))],
        "certificate": plan["certificate"],
    }


def short_of_pods(group: Mapping[str, Any]) -> bool:
    """Whether a group of a plan document lacks pods of its minimum that nobody has made."""
    there: int = group["running"] + group["bound"] + group["nominated"] + group["pending"]
    least: int = group["minMember"]
    return there < least


def explain_blocks(plan: Mapping[str, Any], name: str) -> list[Block]:
    """The record as text: facts first, then why, then what the numbers are."""
    found = record(plan, name)
    group, queue = found["podGroup"], found["queue"]
    blocks: list[Block] = [
        Note(f"Pod group {name}", "title"),
        *_fields(
            {
                "Queue": group["queue"],
                "Phase": group["phase"] or "-",
                "Pods": f"{group['running']} running, {group['bound']} bound now, {group['nominated']} nominated, "
                f"{group['pending']} pending; minimum {group['minMember']}",
                "Proof": certificate(plan),
            }
        ),
    ]
    given = group.get("reason")
    if given:
        blocks += [Note(f"{given['code']}: {given['message']}", "warning")]
        blocks += detail_blocks(given.get("detail") or {})
    elif group["pending"]:
        blocks += [Note("pods are pending without a reason", "warning")]
    elif short_of_pods(group):
        there = group["running"] + group["bound"] + group["nominated"]
        blocks += [
            Note(
                f"{there} of the {group['minMember']} pods that its minimum asks are there, and none is pending: "
                "the rest is yet to be made, is ending, "
                + ("could not be read (below), " if _beside(plan, name) else "")
                + "or is of a scheduler not decided on (--scheduler-name)",
                "warning",
            )
        ]
    else:
        blocks += [Note("no pod of it is pending", "good")]
    if queue is not None:
        share = "-" if queue.get("share") is None else f"{queue['share']:.3f}"
        parts = [(part, amounts(queue.get(part) or {})) for part in ("deserved", "allocated", "request")]
        blocks += [Table(f"Queue {queue['name']} after the plan, share {share}", ("PART", "RESOURCES"), parts)]
    return blocks + decisions(found["decisions"], wide=True) + left_out({"snapshot": {"problems": _beside(plan, name)}})


def _beside(plan: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Objects of the group's namespace that could not be read: some may be its pods."""
    namespace = name.partition("/")[0]
    problems = plan["snapshot"].get("problems") or []
    return [one for one in problems if (one["object"] or "").partition(" ")[2].startswith(f"{namespace}/")]


def detail_blocks(detail: Mapping[str, Any]) -> Iterator[Block]:
    """Whatever a reason carries: lists of records and records of records become tables, the rest lines; nothing is
    left out.
    """
    mixed = {key: value for key, value in detail.items() if _mixed(value)}
    for key, value in mixed.items():
        plain = {inner: found for inner, found in value.items() if not _records(found)}
        yield from _fields({_words(key): cell(plain)})
        yield from detail_blocks({inner: found for inner, found in value.items() if _records(found)})
    detail = {key: value for key, value in detail.items() if key not in mixed}
    plain = {key: value for key, value in detail.items() if not _records(value) and not _deep(value)}
    yield from _fields({_words(key): cell(value) for key, value in plain.items()})
    for key, value in detail.items():
        if _deep(value):
            yield Table(_words(key), ("FIELD", "VALUE"), [(_words(name), cell(inner)) for name, inner in value.items()])
        if _records(value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            rows = [tuple(cell(row.get(column)) for column in columns) for row in value]
            yield Table(_words(key), tuple(_words(column).upper() for column in columns), rows)


def cell(value: object) -> str:
    """A value of a detail in one line: `cpu 2, memory 4Gi`, `yes`, `a, b`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_nested(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_nested(inner) for inner in value) or "-"
    return str(value)


def _nested(value: object) -> str:
    return f"({cell(value)})" if isinstance(value, (dict, list, tuple)) else cell(value)


def _records(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(row, dict) for row in value)


def _deep(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values())


def _mixed(value: object) -> bool:
    return isinstance(value, dict) and any(_records(inner) for inner in value.values())


def _fields(fields: Mapping[str, str]) -> Iterator[Note]:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        yield Note(f"  {name + ':':{width + 2}} {value}", hang=width + 5)


def _words(name: str) -> str:
    """`nodesEligible` -> `Nodes eligible`."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    return text[:1].upper() + text[1:]


def unknown_group(names: Sequence[str], name: str, of: str | None = None) -> str:
    """The message for a group that the plan does not have. `of`: the group of the pod that has this name."""
    from difflib import get_close_matches

    if of in names:
        return f"{name} is no pod group but a pod of {of}: name that"
    near = get_close_matches(name, names, n=1) or [full for full in names if full.endswith(f"/{name}")][:1]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no pod group {name!r} among {counted(len(names), 'group', 'groups')}{hint}"

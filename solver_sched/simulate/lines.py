"""Traces as JSON lines, one object a line, of kind Node, Queue, Job or Event (docs/simulation.md lists the fields)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from solver_sched import quantity
from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.errors import InputError, QuantityError
from solver_sched.policy.conf import as_seconds
from solver_sched.simulate.text import opened
from solver_sched.simulate.trace import Happening, Job, NodeEvent, Pods, Trace
from solver_sched.snapshot import InputProblem

Given = dict[str, str | int | float]
Seconds = int | str

MOST_PODS = 100_000
"""Of one job; and nodes of one line. More is a mistake."""
LONGEST = 10**10
"""Seconds: some 300 years."""


class _Line(Struct, tag_field="kind", forbid_unknown_fields=True, rename="camel"):
    pass


class _Node(_Line, tag="Node"):
    name: str
    allocatable: Given
    labels: dict[str, str] = {}
    count: int = 1


class _Queue(_Line, tag="Queue"):
    name: str
    weight: int = 1
    capability: Given | None = None
    deserved: Given | None = None
    guarantee: Given | None = None
    parent: str = ""
    reclaimable: bool = True
    priority: int = 0


class _Pods(Struct, forbid_unknown_fields=True, rename="camel"):
    requests: Given
    count: int = 1
    node_selector: dict[str, str] = {}


class _Job(_Line, tag="Job"):
    name: str
    submitted: Seconds
    run_time: Seconds
    pods: list[_Pods]
    namespace: str = "default"
    queue: str = "default"
    min_member: int | None = None
    priority: int = 0
    estimate: Seconds = 0
    active_deadline_seconds: int = 0
    failures: list[Seconds] = []
    fails: bool = False


class _Event(_Line, tag="Event"):
    at: Seconds
    node: str
    what: Happening


_AT = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def read(path: Path, first: int | None = None) -> Trace:
    """The trace of a file (`.gz` is unpacked); lines with a mistake are left out, each with a line of its own in
    `problems`: file, number of the line, field. `first`: at most so many jobs. Raises InputError if it cannot be read.
    """
    nodes: dict[str, Node] = {}
    queues: dict[str, Queue] = {}
    jobs: dict[str, Job] = {}
    events: list[NodeEvent] = []
    shared: dict[Needs, Needs] = {}
    problems: list[InputProblem] = []
    for number, text in enumerate(opened(path), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Node | _Queue | _Job | _Event)
            match line:
                case _Node():
                    for node in _nodes(line):
                        _new(nodes, node.name, node)
                case _Queue():
                    _new(queues, line.name, _queue(line))
                case _Job():
                    job = _job(line, shared)
                    _new(jobs, job.key, job)
                case _Event():
                    events.append(NodeEvent(_seconds("at", line.at), line.node, line.what))
        except msgspec.DecodeError as wrong:
            found = _AT.search(str(wrong))
            message = _AT.sub("", str(wrong))
            problems.append(InputProblem(str(path), f"line {number}", found[1] if found else "", message))
        except RecursionError:
            problems.append(InputProblem(str(path), f"line {number}", "", "is nested too deep"))
        except InputError as wrong:
            problems.append(InputProblem(str(path), f"line {number}", wrong.field, wrong.message))
        if first is not None and len(jobs) >= first:
            break
    named = {event.node for event in events} - nodes.keys()
    problems += [InputProblem(str(path), f"Event of {name}", "node", "there is no such node") for name in sorted(named)]
    for name in sorted({job.queue for job in jobs.values()} - queues.keys()):
        queues[name] = Queue(name)
    return Trace(
        source=str(path),
        nodes=tuple(nodes[name] for name in sorted(nodes)),
        queues=tuple(queues[name] for name in sorted(queues)),
        jobs=tuple(sorted(jobs.values(), key=lambda job: job.submitted)),
        events=tuple(sorted((one for one in events if one.node not in named), key=lambda event: event.at)),
        problems=tuple(problems),
    )


def _new(
    known: dict[str, object] | dict[str, Node] | dict[str, Queue] | dict[str, Job], name: str, value: object
) -> None:
    if not name.rpartition("/")[2]:
        raise InputError("is empty: a name is needed", field="name")
    if name in known:
        raise InputError(f"{name} is given twice: the first one is used", field="name")
    known[name] = value  # type: ignore[assignment]  # of the dict's type, as the calls above show


def _nodes(line: _Node) -> Iterable[Node]:
    _within("count", line.count, 1, MOST_PODS)
    allocatable = _amounts("allocatable", line.allocatable)
    for number in range(line.count):
        name = f"{line.name}-{number}" if line.count > 1 else line.name
        yield Node(name, allocatable, {"kubernetes.io/hostname": name, **line.labels})


def _queue(line: _Queue) -> Queue:
    _within("weight", line.weight, 0, 2**31)
    _within("priority", line.priority, -(2**31), 2**31 - 1)

    def amounts(field: str, given: Given | None) -> dict[str, int] | None:
        return None if given is None else _amounts(field, given)

    return Queue(
        line.name,
        line.weight,
        capability=amounts("capability", line.capability),
        deserved=amounts("deserved", line.deserved),
        guarantee=amounts("guarantee", line.guarantee),
        parent=line.parent,
        reclaimable=line.reclaimable,
        priority=line.priority,
    )


def _job(line: _Job, shared: dict[Needs, Needs]) -> Job:
    size = 0
    pods = []
    for at, part in enumerate(line.pods):
        _within(f"pods[{at}].count", part.count, 1, MOST_PODS)
        request = {"pods": 1, **_amounts(f"pods[{at}].requests", part.requests)}
        needs = Needs(
            tuple(sorted((name, amount) for name, amount in request.items() if amount)),
            node_selector=tuple(sorted(part.node_selector.items())),
        )
        pods.append(Pods(part.count, shared.setdefault(needs, needs)))
        size += part.count
    _within("pods", size, 1, MOST_PODS)
    minimum = size if line.min_member is None else line.min_member
    _within("minMember", minimum, 0, size)
    _within("activeDeadlineSeconds", line.active_deadline_seconds, 0, LONGEST)
    _within("priority", line.priority, -(2**31), 2**31 - 1)
    return Job(
        namespace=line.namespace,
        name=line.name,
        pods=tuple(pods),
        submitted=_seconds("submitted", line.submitted),
        run_time=_seconds("runTime", line.run_time),
        minimum=minimum,
        queue=line.queue,
        priority=line.priority,
        estimate=_seconds("estimate", line.estimate),
        deadline=line.active_deadline_seconds,
        failures=tuple(_seconds(f"failures[{at}]", value) for at, value in enumerate(line.failures)),
        fails=line.fails,
    )


def _amounts(field: str, given: Mapping[str, str | int | float]) -> dict[str, int]:
    out = {}
    for name, value in given.items():
        try:
            out[name] = quantity.amount(name, value)
        except QuantityError as wrong:
            raise InputError(str(wrong), field=f"{field}.{name}") from None
    return out


def _seconds(field: str, value: Seconds) -> int:
    try:
        seconds = int(as_seconds(value))
    except ValueError:
        raise InputError(f"{str(value)[:40]!r} is no duration such as 90, 90s or 1h30m", field=field) from None
    _within(field, seconds, 0, LONGEST)
    return seconds


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{value} is not from {least} to {most}", field=field)

"""Reader of the Standard Workload Format 2.2 of the Parallel Workloads Archive (cs.huji.ac.il/labs/parallel/workload).

18 numbers a line, -1 = unknown; `; Name: value` before them. Only processors are read of what jobs ask: memory is known
of few logs, and of their nodes never.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.errors import InputError
from solver_sched.simulate.text import opened
from solver_sched.simulate.trace import Job, Pods, Trace
from solver_sched.snapshot import InputProblem

FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
FAILED, CANCELLED = 0, 5
PARTIAL = (2, 3, 4)
"""Status of lines that tell parts of a job of which another line tells the whole."""
MOST = 10**10
MOST_PROCESSORS = 10**7
MOST_NODES = 10**5
MOST_PODS = 100_000
SLOTS = 110

_COMMENT = re.compile(r"\s*;\s*(\w+)\s*:\s*(.*)")


def read(path: Path, first: int | None = None) -> Trace:
    """The trace of a log (`.gz` is unpacked). Lines with a mistake are left out, each with a line of its own in
    `problems`: file, number of the line, field. `first`: at most so many jobs. Raises InputError if it cannot be read.

    Nodes: MaxNodes of the header, each with its part of MaxProcs. A job's processors become pods of whole nodes and one
    of the rest, which start together. Its queue is that of the log, else its partition, else its user's group; its
    namespace is its user; requested time is its estimate; a job that failed in the log fails.
    """
    header: dict[str, int] = {}
    rows: list[tuple[int, dict[str, int]]] = []
    problems: list[InputProblem] = []
    left_out: Counter[str] = Counter()
    seen: dict[int, int] = {}
    for number, text in enumerate(opened(path), 1):
        comment = _COMMENT.match(text)
        if comment is not None and comment[1] in ("MaxNodes", "MaxProcs"):
            value = re.match(r"[0-9]{1,9}", comment[2])
            if value is None or not int(value[0]):
                problems.append(InputProblem(str(path), f"line {number}", comment[1], "is no number above 0"))
            else:
                header.setdefault(comment[1], int(value[0]))
        if not text.strip() or text.lstrip().startswith(";"):
            continue
        try:
            row = _row(text)
            job = row["job number"]
            if row["status"] in PARTIAL:
                left_out["lines of partial executions"] += 1
            elif row["run time"] < 0 or (row["status"] == CANCELLED and not row["run time"]):
                left_out["jobs that never ran"] += 1
            elif job in seen:
                raise InputError(f"{job} stands in line {seen[job]} already", field="job number")  # noqa: TRY301
            else:
                seen[job] = number
                rows.append((number, row))
        except InputError as wrong:
            problems.append(InputProblem(str(path), f"line {number}", wrong.field, wrong.message))
        if first is not None and len(rows) >= first:
            break
    nodes, size, guessed = _cluster(header, [processors(row) for _, row in rows])
    shared: dict[int, Needs] = {}
    jobs = []
    for number, row in rows:
        try:
            jobs.append(_job(row, size, shared))
        except InputError as wrong:
            problems.append(InputProblem(str(path), f"line {number}", wrong.field, wrong.message))
    notes = [f"{number} {what} left out" for what, number in sorted(left_out.items())]
    return Trace(
        source=str(path),
        nodes=nodes,
        queues=tuple(Queue(name) for name in sorted({job.queue for job in jobs})),
        jobs=tuple(sorted(jobs, key=lambda job: job.submitted)),
        problems=tuple(problems),
        notes=(*notes, *guessed),
    )


def _row(text: str) -> dict[str, int]:
    """Times may be fractions: whole seconds are kept."""
    cells = text.split()
    if len(cells) != len(FIELDS):
        raise InputError(f"{len(cells)} fields, there must be {len(FIELDS)}")
    row = {}
    for name, cell in zip(FIELDS, cells, strict=True):
        if not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]*)?", cell) or not -1 <= float(cell) <= MOST:
            raise InputError(f"{cell[:40]!r} is no number from -1 to {MOST}", field=name)
        row[name] = int(float(cell))
    if row["submit time"] < 0:
        raise InputError("is unknown: a job needs one", field="submit time")
    if not 0 < processors(row) <= MOST_PROCESSORS:
        given = processors(row)
        raise InputError(
            f"{given} is not from 1 to {MOST_PROCESSORS}, nor allocated ones", field="requested processors"
        )
    return row


def processors(row: dict[str, int]) -> int:
    """Those asked for; of logs that do not say, those given."""
    asked = row["requested processors"]
    return asked if asked > 0 else row["allocated processors"]


def _cluster(header: dict[str, int], asked: list[int]) -> tuple[tuple[Node, ...], int, list[str]]:
    """Nodes, processors of each but for the last, and what had to be guessed."""
    guessed = []
    total = header.get("MaxProcs", header.get("MaxNodes", 0))
    if not total:
        total = max(asked, default=1)
        guessed.append(f"neither MaxProcs nor MaxNodes in the header: {total} processors, as the largest job asks")
    number = min(header.get("MaxNodes", total), total)
    if number > MOST_NODES:
        guessed.append(f"{number} nodes put together to {MOST_NODES}")
        number = MOST_NODES
    size = -(-total // number)
    sizes = [size] * (total // size) + ([total % size] if total % size else [])
    width = len(str(len(sizes) - 1))
    nodes = tuple(
        Node(f"node-{n:0{width}}", {"cpu": 1000 * cpus, "pods": max(SLOTS, cpus)}) for n, cpus in enumerate(sizes)
    )
    return nodes, size, guessed


def _job(row: dict[str, int], size: int, shared: dict[int, Needs]) -> Job:
    whole, rest = divmod(processors(row), size)
    if whole > MOST_PODS:
        raise InputError(f"{whole} nodes: at most {MOST_PODS} pods are read", field="requested processors")
    parts = [(count, cpus) for count, cpus in ((whole, size), (1, rest)) if count and cpus]
    name = f"app{row['executable']}-" if row["executable"] > 0 else "job-"
    return Job(
        namespace=f"user-{row['user']}" if row["user"] >= 0 else "default",
        name=f"{name}{row['job number']}",
        pods=tuple(Pods(count, shared.setdefault(cpus, _needs(cpus))) for count, cpus in parts),
        submitted=row["submit time"],
        run_time=row["run time"],
        minimum=sum(count for count, _ in parts),
        queue=next((f"{kind}-{row[kind]}" for kind in ("queue", "partition", "group") if row[kind] >= 0), "default"),
        estimate=max(0, row["requested time"]),
        fails=row["status"] == FAILED,
    )


def _needs(cpus: int) -> Needs:
    return Needs((("cpu", 1000 * cpus), ("pods", 1)))

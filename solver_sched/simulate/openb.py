"""Reader of the openb CSV format (Alibaba cluster-trace-gpu-v2023): a node list and a pod list as Kubernetes objects.

All pods come out pending, whatever the trace did with them: the question is what could be placed.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Node, NodeTerm, Queue, Requirement
from solver_sched.errors import InputError
from solver_sched.simulate.trace import Job, Pods, Trace
from solver_sched.snapshot import InputProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]
GpuShare = Literal["whole", "milli"]
_V = TypeVar("_V")

GPU = "nvidia.com/gpu"
GPU_MILLI = "solver-sched.io/gpu-milli"
MODEL = "nvidia.com/gpu.product"
"""The node label that NVIDIA's GPU feature discovery sets."""

POD_SLOTS = 110
"""The kubelet's default `maxPods`; the trace does not say. Nodes of the trace average 5 pods, so it does not bind."""

START = datetime(2023, 1, 1, tzinfo=UTC)
"""Second 0 of the trace, which has no calendar of its own."""

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIME_COLUMNS = ("creation_time", "deletion_time")
MIB = 2**20
LARGEST = 10**9
"""Far above any machine (10^9 MiB is 1 PiB): a larger number is a broken row."""


def read(nodes_csv: str | Path, pods_csv: str | Path, *, gpu_share: GpuShare = "whole") -> list[Json]:
    """Nodes and pending pods, schedulerName solver-sched, in file order.

    The trace lets pods share a GPU (`gpu_milli` < 1000 where `num_gpu` is 1). Kubernetes counts devices, so either
    answer is one-sided. "whole": a share takes its GPU alone; every plan can be executed, and places the fewest pods.
    "milli": 1000 `solver-sched.io/gpu-milli` per GPU, pooled over the node; a share may then straddle two GPUs (three
    pods of 600 "fit" on 2 GPUs), so what is placed is an upper bound and no executable plan.

    Columns after the fifth of the pod list are optional (`gpu_spec`, `qos`, `creation_time`; others are not read).
    Raises InputError naming file, row (line number) and column.
    """
    if gpu_share not in get_args(GpuShare):
        raise ValueError(f"gpu_share {gpu_share!r}: must be one of {', '.join(get_args(GpuShare))}")
    nodes = [_node(row, gpu_share) for row in _rows(Path(nodes_csv), NODE_COLUMNS)]
    return nodes + [_pod(row, gpu_share) for row in _rows(Path(pods_csv), POD_COLUMNS)]


def read_trace(nodes_csv: Path, pods_csv: Path, first: int | None = None) -> Trace:
    """The same as a trace: each pod a job that runs from its scheduling (else its creation) to its deletion, in a queue
    for each quality of service, whole GPUs only. Rows with a mistake, and pods that are never deleted, are left out,
    each of the former with a line in `problems`. `first`: at most so many jobs.

    Raises InputError where a file cannot be read or lacks a column.
    """
    wrong: list[InputError] = []
    nodes = [node for row in _rows(nodes_csv, NODE_COLUMNS, wrong.append) if (node := _tried(_frozen, row, wrong))]
    jobs: list[Job] = []
    shared: dict[Needs, Needs] = {}
    endless = 0
    for row in _rows(pods_csv, (*POD_COLUMNS, *TIME_COLUMNS), wrong.append):
        if first is not None and len(jobs) >= first:
            break
        if not row.text("deletion_time"):
            endless += 1
            continue
        job = _tried(_job, row, wrong, shared)
        if job is not None:
            jobs.append(job)
    begin = min((job.submitted for job in jobs), default=0)
    return Trace(
        source=f"{nodes_csv}, {pods_csv}",
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        queues=tuple(Queue(name) for name in sorted({job.queue for job in jobs})),
        jobs=tuple(
            sorted((replace(job, submitted=job.submitted - begin) for job in jobs), key=lambda job: job.submitted)
        ),
        problems=tuple(InputProblem(one.source, one.object, one.field, one.message) for one in wrong),
        notes=(f"{endless} pods without deletion_time left out",) if endless else (),
    )


def _tried(read: Callable[..., _V], row: _Row, wrong: list[InputError], *more: Any) -> _V | None:
    try:
        return read(row, *more)
    except InputError as error:
        wrong.append(error)
        return None


def _frozen(row: _Row) -> Node:
    named, model, gpus = row.text("sn"), row.text("model"), row.integer("gpu")
    allocatable = {"cpu": row.integer("cpu_milli"), "memory": row.integer("memory_mib") * MIB, "pods": POD_SLOTS}
    labels = {"kubernetes.io/hostname": named} | ({MODEL: model} if model else {})
    return Node(named, allocatable | ({GPU: gpus} if gpus else {}), labels)


def _job(row: _Row, shared: dict[Needs, Needs]) -> Job:
    count = row.integer("num_gpu")
    request = {"cpu": row.integer("cpu_milli"), "memory": row.integer("memory_mib") * MIB, GPU: count, "pods": 1}
    models = tuple(model.strip() for model in row.text("gpu_spec").split("|") if model.strip())
    needs = Needs(
        tuple(sorted((name, amount) for name, amount in request.items() if amount)),
        node_affinity=(NodeTerm((Requirement(MODEL, "In", models),)),) if models else None,
    )
    created, deleted = row.integer("creation_time"), row.integer("deletion_time")
    begun = row.integer("scheduled_time") if row.text("scheduled_time") else created
    if deleted < begun:
        row.fail("deletion_time", f"{deleted} is before the pod begins at {begun}")
    return Job(
        namespace="openb",
        name=row.text("name"),
        pods=(Pods(1, shared.setdefault(needs, needs)),),
        submitted=created,
        run_time=deleted - begun,
        minimum=1,
        queue=row.text("qos").lower() or "default",
    )


class _Row:
    """One line of a file; its accessors raise InputError with the line's number."""

    def __init__(self, path: Path, number: int, cells: dict[str, str]) -> None:
        self.path = path
        self.number = number
        self.cells = cells

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def required(self, column: str) -> str:
        return self.text(column) or self.fail(column, "empty: a value is needed")

    def integer(self, column: str) -> int:
        text = self.required(column)
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= LARGEST):
            self.fail(column, f"{text[:40]!r} is not an integer from 0 to {LARGEST}")
        return int(text)

    def fail(self, column: str, message: str) -> NoReturn:
        raise InputError(message, source=str(self.path), kind_and_name=f"row {self.number}", field=column)


def _raised(wrong: InputError) -> None:
    raise wrong


def _rows(path: Path, columns: tuple[str, ...], bad: Callable[[InputError], None] = _raised) -> Iterator[_Row]:
    """The rows of a file, each with a name of its own in the first column. `bad`: is told of rows that are left out."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            absent = [column for column in columns if column not in header]
            if absent:
                message = f"no column {', '.join(absent)}; needed are {','.join(columns)}"
                raise InputError(message, source=str(path), kind_and_name="row 1")
            seen: dict[str, int] = {}
            for cells in reader:
                if not cells:
                    continue
                row = _Row(path, reader.line_num, dict(zip(header, cells, strict=False)))
                try:
                    _check(row, columns[0], len(cells), len(header), seen)
                except InputError as wrong:
                    bad(wrong)
                    continue
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not a CSV text ({error})"
        raise InputError(f"cannot be read: {reason}", source=str(path)) from None


def _check(row: _Row, column: str, cells: int, columns: int, seen: dict[str, int]) -> None:
    if cells != columns:
        message = f"{cells} columns, the header has {columns}"
        raise InputError(message, source=str(row.path), kind_and_name=f"row {row.number}")
    named = row.required(column)
    if named in seen:
        row.fail(column, f"{named} stands in row {seen[named]} already")
    seen[named] = row.number


def _node(row: _Row, gpu_share: GpuShare) -> Json:
    named, model, gpus = row.text("sn"), row.text("model"), row.integer("gpu")
    allocatable = {
        "cpu": f"{row.integer('cpu_milli')}m",
        "memory": f"{row.integer('memory_mib')}Mi",
        "pods": str(POD_SLOTS),
    }
    if gpus:
        allocatable |= {GPU: str(gpus)} if gpu_share == "whole" else {GPU_MILLI: str(1000 * gpus)}
    labels = {"kubernetes.io/hostname": named} | ({MODEL: model} if model else {})
    ready = {"type": "Ready", "status": "True"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": named, "labels": labels},
        "status": {"allocatable": allocatable, "conditions": [ready]},
    }


def _pod(row: _Row, gpu_share: GpuShare) -> Json:
    count, milli = row.integer("num_gpu"), row.integer("gpu_milli")
    if milli > 1000:
        row.fail("gpu_milli", f"{milli} is more than one GPU, 1000: several GPUs stand in num_gpu")
    requests = {"cpu": f"{row.integer('cpu_milli')}m", "memory": f"{row.integer('memory_mib')}Mi"}
    if count:
        requests |= {GPU: str(count)} if gpu_share == "whole" else {GPU_MILLI: str(count * milli)}
    spec: Json = {
        "schedulerName": "solver-sched",
        "containers": [{"name": "main", "resources": {"requests": requests}}],
    }
    models = [model.strip() for model in row.text("gpu_spec").split("|") if model.strip()]
    if models:
        expression = {"key": MODEL, "operator": "In", "values": models}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    metadata: Json = {"name": row.text("name"), "namespace": "openb"}
    if row.text("qos"):
        metadata["labels"] = {"qos": row.text("qos")}
    if row.text("creation_time"):
        created = START + timedelta(seconds=row.integer("creation_time"))
        metadata["creationTimestamp"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}

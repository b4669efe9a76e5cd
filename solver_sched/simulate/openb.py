"""Reader of the openb CSV format (Alibaba cluster-trace-gpu-v2023): a node list and a pod list as Kubernetes objects.

All pods come out pending, whatever the trace did with them: the question is what could be placed.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from solver_sched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
GpuShare = Literal["whole", "milli"]

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


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    """The rows of a file, each with a name of its own in the first column."""
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
                if len(cells) != len(header):
                    message = f"{len(cells)} columns, the header has {len(header)}"
                    raise InputError(message, source=str(path), kind_and_name=f"row {reader.line_num}")
                row = _Row(path, reader.line_num, dict(zip(header, cells, strict=True)))
                named = row.required(columns[0])
                if named in seen:
                    row.fail(columns[0], f"{named} stands in row {seen[named]} already")
                seen[named] = row.number
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not a CSV text ({error})"
        raise InputError(f"cannot be read: {reason}", source=str(path)) from None


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

"""The frozen facts of one cycle: what was in the cluster, and what could not be read.

The snapshot is the bug report: `dump` writes everything a cycle decided on, `load` gives the same value back, and
`run_cycle` on it gives the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from solver_sched.cluster.objects import (
    AttachLimit,
    Budget,
    Namespace,
    Node,
    Pod,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
    RunTime,
    VolumeClaim,
)

DEFAULT_SCHEDULERS = ("solver-sched", "kube-batch", "volcano")
FORMAT = "solver-sched.io/snapshot/v1alpha1"


class InputProblem(Struct, frozen=True):
    """One thing in the input that could not be used: where it stood, which field, and what is allowed there."""

    source: str
    object: str
    field: str
    message: str

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.source, self.object, self.field) if part)
        return f"{where}: {self.message}"


class Snapshot(Struct, frozen=True):
    """Everything one cycle knows. Tuples are sorted by name (pods and groups by namespace, then name).

    `now`: integer seconds since the epoch, for files the newest timestamp in them.
    `scheduler_names`: whose pods are decided on; all other pods are usage.
    `run_times`: of finished pods, which are not in `pods`, by class.
    `ignored`: count of left-out objects by cause, e.g. {"finished pods": 210000, "kind Service": 3}.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    groups: tuple[PodGroup, ...] = ()
    queues: tuple[Queue, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    budgets: tuple[Budget, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    claims: tuple[VolumeClaim, ...] = ()
    attach_limits: tuple[AttachLimit, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    now: int = 0
    scheduler_names: tuple[str, ...] = DEFAULT_SCHEDULERS
    ignored: Mapping[str, int] = {}
    problems: tuple[InputProblem, ...] = ()
    format: str = FORMAT
    run_times: tuple[RunTime, ...] = ()


def dump(snapshot: Snapshot) -> bytes:
    """JSON of the snapshot; `load(dump(s)) == s`."""
    return msgspec.json.encode(snapshot)


def load(data: bytes) -> Snapshot:
    """The snapshot that `dump` wrote. Raises msgspec.ValidationError on anything else."""
    return msgspec.json.decode(data, type=Snapshot)

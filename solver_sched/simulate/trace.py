"""A workload as a frozen value: the nodes, the queues, and what is submitted when. Seconds count from its beginning.

Readers: `lines.py` (our own JSON lines), `swf.py`, `openb.py`; `workload.py` makes one from a seed.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.snapshot import InputProblem

Happening = Literal["drain", "loss", "return"]


class Pods(Struct, frozen=True):
    """`count` pods of equal needs; equal needs are one object."""

    count: int
    needs: Needs


class Job(Struct, frozen=True):
    """What a user submits. `submitted`: second; `run_time`: seconds that each of its pods runs, known to nobody before.

    `minimum`: pods that run together or not at all. `estimate`: run time as its user says it (the annotation
    `solver-sched.io/run-time`), 0 = says nothing. `deadline`: `activeDeadlineSeconds`, 0 = none: the job fails then.
    `failures`: for each failure of its first pod, after how many seconds of running; the pod is made anew. `fails`: the
    job fails when its first pod has run.
    """

    namespace: str
    name: str
    pods: tuple[Pods, ...]
    submitted: int
    run_time: int
    minimum: int
    queue: str = "default"
    priority: int = 0
    estimate: int = 0
    deadline: int = 0
    failures: tuple[int, ...] = ()
    fails: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def size(self) -> int:
        """Number of pods."""
        return sum(part.count for part in self.pods)


class NodeEvent(Struct, frozen=True):
    """At second `at` the node is drained (cordoned, its pods evicted), lost with its pods, or back as it was."""

    at: int
    node: str
    what: Happening


class Trace(Struct, frozen=True):
    """`source`: where it is from, for people. `jobs` in order of submission; names of nodes, queues, jobs are distinct.
    `problems`: what could not be read and is left out. `notes`: what the source says that has no meaning here.
    """

    source: str
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    events: tuple[NodeEvent, ...] = ()
    seed: int = 0
    problems: tuple[InputProblem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pods(self) -> int:
        """Number of pods."""
        return sum(job.size for job in self.jobs)

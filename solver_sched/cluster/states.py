"""The states of a task, as kube-batch and Volcano name them, derived in this one place.

| state | the pod | on our side |
|---|---|---|
| Pending | no node | nothing decided |
| Pipelined | no node | promised room that is being freed (`nominatedNodeName`) |
| Allocated | no node | assumed on a node, its bind not yet sent |
| Binding | no node | its bind is on the way |
| Bound | has a node, phase Pending | |
| Running | phase Running | |
| Releasing | `deletionTimestamp` set | or its eviction decided on |
| Succeeded, Failed, Unknown | that phase | |

Source: kube-batch pkg/scheduler/api/types.go; Volcano pkg/scheduler/api/helpers.go, getTaskStatus. There *allocated*
is Allocated, Binding, Bound, Running, and *scheduled* Bound, Running, Succeeded, Failed.
"""

from __future__ import annotations

from enum import StrEnum

from solver_sched.cluster.objects import Pod


class Held(StrEnum):
    """What we are doing to a pod beyond what the server shows."""

    nothing = ""
    assumed = "assumed"
    sent = "sent"
    evicted = "evicted"


class TaskState(StrEnum):
    """See the table above."""

    Pending = "Pending"
    Pipelined = "Pipelined"
    Allocated = "Allocated"
    Binding = "Binding"
    Bound = "Bound"
    Running = "Running"
    Releasing = "Releasing"
    Succeeded = "Succeeded"
    Failed = "Failed"
    Unknown = "Unknown"


def task_state(pod: Pod, held: Held = Held.nothing) -> TaskState:
    """The state of a pod as the server shows it, and of what we have under way."""
    if pod.finished or pod.phase == "Unknown":
        return TaskState(pod.phase)
    if pod.terminating or held is Held.evicted:
        return TaskState.Releasing
    if pod.phase == "Running":
        return TaskState.Running
    if held is Held.assumed:
        return TaskState.Allocated
    if held is Held.sent:
        return TaskState.Binding
    if pod.node is not None:
        return TaskState.Bound
    return TaskState.Pipelined if pod.nominated else TaskState.Pending

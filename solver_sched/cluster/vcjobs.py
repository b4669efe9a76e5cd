"""Volcano's Job (batch.volcano.sh/v1alpha1): the PodGroup and the pods that Volcano's job controller derives from it.

Defaults are those of its admission webhook: queue `default`, schedulerName `volcano`, task names `default<i>`, a
task's minAvailable its replicas, the job's minAvailable their sum. All tasks are made at once, `dependsOn` or not:
the group's minimum counts them all. A minimum that the replicas cannot reach is reported, as its webhook refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from solver_sched import quantity
from solver_sched.cluster import wire
from solver_sched.cluster.admission import Json, items, mapping, name, namespace
from solver_sched.cluster.requests import Quantities, effective_request
from solver_sched.cluster.templates import FieldError, Present, Workload, amount, api_group, checked_template, held, pod
from solver_sched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "batch.volcano.sh"
OVER = frozenset({"Completing", "Completed", "Terminating", "Terminated", "Failed"})
STOPPED = frozenset({"Aborting", "Aborted"})  # `vcctl job suspend` aborts, `resume` takes it up again


@dataclass(frozen=True)
class Task:
    """One entry of `spec.tasks`, defaults filled in. `partition_size` 0 = not partitioned."""

    name: str
    replicas: int
    min_available: int
    template: Json
    partition_size: int
    partition: Json


def expand(job: Workload, present: Present) -> list[Json]:
    """The PodGroup and the pods of `job` that are not in the input. Raises FieldError."""
    state = str(mapping(job.status.get("state")).get("phase") or "")
    if state in OVER:
        return []
    tasks = list(_tasks(job))
    group = _group_name(job, present)
    made: list[Json] = [] if present.has("PodGroup", job.namespace, group) else [_group(job, tasks, group, present)]
    claims, volumes = _volumes(job, present)
    made.extend(claims)
    for task in tasks:
        spec = dict(task.template["spec"])
        spec["schedulerName"] = spec.get("schedulerName") or job.spec.get("schedulerName") or "volcano"
        priority_class = spec.get("priorityClassName") or job.spec.get("priorityClassName")
        if priority_class:
            spec["priorityClassName"] = priority_class
        if volumes:
            spec["volumes"] = [*items(spec.get("volumes")), *volumes]
        for index in range(task.replicas):
            named = f"{job.name}-{task.name}-{index}"
            # Volcano finds a job's pods by these fixed names, so a taken name is the pod itself, finished or not.
            if present.has("Pod", job.namespace, named):
                continue
            one = _pod(job, task, spec, index, present.claim(job.namespace, named), group)
            made.append(held(one, f"Suspended: job {job.namespace}/{job.name} is aborted") if state in STOPPED else one)
    return made


def _tasks(job: Workload) -> Iterator[Task]:
    entries = items(job.spec.get("tasks"))
    if not entries:
        raise FieldError("spec.tasks", "missing: must list at least one task")
    names: set[str] = set()
    for row, entry in enumerate(entries):
        path = f"spec.tasks[{row}]"
        if entry.get("replicas") is None:
            raise FieldError(f"{path}.replicas", "missing: must be an integer >= 0")
        replicas = amount(entry["replicas"], f"{path}.replicas", 0)
        minimum = amount(entry.get("minAvailable"), f"{path}.minAvailable", replicas)
        if minimum > replicas:
            raise FieldError(f"{path}.minAvailable", f"is {minimum}: must be at most the task's {replicas} replicas")
        partition = mapping(entry.get("partitionPolicy"))
        named = str(entry.get("name") or f"default{row}")
        if named in names:
            raise FieldError(f"{path}.name", f"{named} names two tasks: their pods would have one name")
        names.add(named)
        yield Task(
            named,
            replicas,
            minimum,
            checked_template(entry.get("template"), f"{path}.template"),
            amount(partition.get("partitionSize"), f"{path}.partitionPolicy.partitionSize", 0),
            partition,
        )


def _group_name(job: Workload, present: Present) -> str:
    """The job's group where the input has it; else `<job>-<uid>`, or `<job>` (older Volcano) where no uid is known."""
    for group in present.owned(job, "PodGroup"):
        return name(group)
    named = f"{job.name}-{job.uid}" if job.uid else job.name
    for group in present.pod_groups:
        if namespace(group) == job.namespace and name(group) == job.name and "volcano.sh" in api_group(group):
            return job.name
    return named


def _group(job: Workload, tasks: list[Task], named: str, present: Present) -> Json:
    # 0 counts as not given, as in the webhook.
    minimum = job.amount("spec.minAvailable", 0) or sum(task.min_available for task in tasks)
    replicas = sum(task.replicas for task in tasks)
    if minimum > replicas:
        raise FieldError("spec.minAvailable", f"is {minimum}: must be at most the {replicas} replicas of all tasks")
    metadata: Json = {
        "name": named,
        "namespace": job.namespace,
        "annotations": job.annotations,
        "labels": mapping(mapping(job.body.get("metadata")).get("labels")),
        "ownerReferences": [job.owner_reference()],
    }
    created = mapping(job.body.get("metadata")).get("creationTimestamp")
    if created:
        metadata["creationTimestamp"] = created
    spec: Json = {
        "minMember": minimum,
        "minTaskMember": {task.name: task.min_available for task in tasks},
        "minResources": _min_resources(tasks, minimum, present),
        "queue": job.spec.get("queue") or "default",
    }
    for key in ("priorityClassName", "networkTopology"):
        if job.spec.get(key):
            spec[key] = job.spec[key]
    partitioned = [_sub_group(task) for task in tasks if task.partition_size]
    if partitioned:
        spec["subGroupPolicy"] = partitioned
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def _min_resources(tasks: list[Task], minimum: int, present: Present) -> Json:
    """What the first `minimum` pods request (calcPGMinResources): every task's own minimum where they all count, then
    by the priority of the tasks' classes.
    """
    by_priority = sorted(tasks, key=lambda task: -present.priority(task.template["spec"]))
    own = {task.name: task.min_available for task in tasks}
    taken = own if sum(own.values()) <= minimum else dict.fromkeys(own, 0)
    left = minimum - sum(taken.values())
    total: dict[str, int] = {}
    for task in by_priority:
        more = min(left, task.replicas - taken[task.name])
        left -= more
        for resource, number in _request(task):
            total[resource] = total.get(resource, 0) + number * (taken[task.name] + more)
    return {resource: quantity.format(resource, number) for resource, number in sorted(total.items()) if number}


def _request(task: Task) -> list[tuple[str, int]]:
    """Of one pod, its slot left out. A quantity that cannot be read is reported once, by the reader of the pods."""
    try:
        spec = msgspec.json.decode(msgspec.json.encode(task.template["spec"]), type=wire.PodSpec)
        request = effective_request(spec, None, Quantities())
    except (InputError, msgspec.ValidationError):
        return []
    return [(resource, number) for resource, number in request if resource != "pods"]


def _sub_group(task: Task) -> Json:
    policy: Json = {
        "name": task.name,
        "subGroupSize": task.partition_size,
        "matchLabelKeys": ["volcano.sh/partition-id"],
        "labelSelector": {"matchLabels": {"volcano.sh/task-spec": task.name}},
    }
    if "minPartitions" in task.partition:
        policy["minSubGroups"] = task.partition["minPartitions"]
    if "networkTopology" in task.partition:
        policy["networkTopology"] = task.partition["networkTopology"]
    return policy


def _pod(job: Workload, task: Task, spec: Json, index: int, named: str, group: str) -> Json:
    both = {
        "volcano.sh/job-name": job.name,
        "volcano.sh/queue-name": str(job.spec.get("queue") or "default"),
        "volcano.sh/task-spec": task.name,
        "volcano.sh/task-index": str(index),
    }
    labels = {**both, "volcano.sh/job-namespace": job.namespace}
    if task.partition_size:
        labels["volcano.sh/partition-id"] = str(index // task.partition_size)
    annotations = {
        **both,
        "scheduling.k8s.io/group-name": group,
        "scheduling.volcano.sh/group-name": group,
        "volcano.sh/job-version": str(job.status.get("version") or 0),
    }
    for key in ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone"):
        if key in job.annotations:
            annotations[key] = job.annotations[key]
    return pod(job, task.template, named, spec=spec, labels=labels, annotations=annotations)


def _volumes(job: Workload, present: Present) -> tuple[list[Json], list[Json]]:
    """New claims, and the volumes that every pod of the job mounts."""
    claims: list[Json] = []
    volumes: list[Json] = []
    for row, entry in enumerate(items(job.spec.get("volumes"))):
        # The controller draws a random suffix for a claim that it makes itself; here it is the row.
        claim = str(entry.get("volumeClaimName") or f"{job.name}-pvc-{row}")
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        if mapping(entry.get("volumeClaim")) and not present.has("PersistentVolumeClaim", job.namespace, claim):
            claims.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": claim, "namespace": job.namespace},
                    "spec": entry["volumeClaim"],
                }
            )
    return claims, volumes

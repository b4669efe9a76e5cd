"""What-if planning: workloads given without their pods become the pods that their controllers would create.

Only the missing pods are made; pods already in the input count by their owner. Pods of one template share one spec.
A workload for a scheduler that is not planned for gets no pods (they would be pending elsewhere: neither decided on
nor using room) but one line in the problems, except a DaemonSet: its pods have their nodes, so they use room there.
"""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from solver_sched.cluster import admission, daemons, vcjobs
from solver_sched.cluster.admission import RULE_KINDS, Json, items, mapping, name, namespace
from solver_sched.cluster.templates import (
    MAX_PODS,
    FieldError,
    OwnerKey,
    Present,
    Workload,
    active,
    held,
    phase,
    pod,
    workload,
)
from solver_sched.snapshot import DEFAULT_SCHEDULERS, InputProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

GROUP_NAME = "scheduling.k8s.io/group-name"
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
INDEX = "batch.kubernetes.io/job-completion-index"


def expand(
    objects: list[Json], scheduler_names: Collection[str] = DEFAULT_SCHEDULERS
) -> tuple[list[Json], list[InputProblem]]:
    """All objects of the input with workloads replaced by their missing pods (and PodGroups, claims), and every pod
    that no API server has seen admitted (`admission`); and what could not be used. `source` of a problem is "".

    LimitRange and RuntimeClass are used up here; CronJob and unknown kinds are passed through for the reader to count.
    A workload given twice: the last one counts, as if applied over the first.
    """
    rest: list[Json] = []
    given: list[Json] = []
    for obj in objects:
        kind = str(obj.get("kind"))
        if kind in WORKLOAD_KINDS and _kind(obj) in CONTROLLERS:
            given.append(obj)
        elif kind not in RULE_KINDS:
            rest.append(obj)
    found, problems = _workloads(given)
    by = admission.rules(objects)
    made: list[Json] = []
    if found:
        present = Present([*rest, *(one.body for one in found.values())])
        stopped: dict[int, str] = {}
        for one in found.values():
            try:
                own = _grouped(one, CONTROLLERS[one.group, one.kind](one, present), present)
            except FieldError as error:
                problems.append(InputProblem("", str(one), error.path, str(error)))
                continue
            planned, foreign = _split(own, scheduler_names)
            problems.extend(_elsewhere(one, foreign))
            admitted, missing = _admitted(one, planned, by)
            made.extend(admitted)
            problems.extend(missing)
            if _suspended(one):
                reason = f"Suspended: job {one.namespace}/{one.name} is suspended"
                stopped.update((id(p), reason) for p in present.owned(one, "Pod") if active(p) and not _node(p))
        if stopped:
            rest = [held(obj, stopped[id(obj)]) if id(obj) in stopped else obj for obj in rest]
    handed_in, missing = admission.admit(rest, by)
    out = handed_in + made
    return out + _ephemeral_claims(out), problems + missing


def _kind(obj: Json) -> tuple[str, str]:
    return str(obj.get("apiVersion") or "").rpartition("/")[0], str(obj.get("kind"))


def _workloads(objects: list[Json]) -> tuple[dict[OwnerKey, Workload], list[InputProblem]]:
    found: dict[OwnerKey, Workload] = {}
    problems = []
    for obj in objects:
        one = workload(_named(obj, found))
        if not one.name:
            problems.append(InputProblem("", str(one), "metadata.name", "missing: the workload is left out"))
            continue
        earlier = found.get(one.key)
        if earlier is not None and earlier.body != one.body:
            problems.append(InputProblem("", str(one), "metadata.name", "given twice: the last one is planned"))
            if not one.uid and earlier.uid:
                metadata = {**one.body["metadata"], "uid": earlier.uid}
                one = workload({**one.body, "metadata": metadata})
        found[one.key] = one
    return found, problems


def _named(obj: Json, found: dict[OwnerKey, Workload]) -> Json:
    """`metadata.generateName` becomes a name with the first free number, where the API server draws a suffix."""
    metadata = mapping(obj.get("metadata"))
    base = metadata.get("generateName")
    if metadata.get("name") or not base:
        return obj
    group, kind = _kind(obj)
    number = next(i for i in range(len(found) + 1) if (namespace(obj), group, kind, f"{base}{i}") not in found)
    return {**obj, "metadata": {**metadata, "name": f"{base}{number}"}}


def _job(job: Workload, present: Present) -> list[Json]:
    """batch/v1 Job: as many active pods as `parallelism`, until `completions` have succeeded."""
    if job.condition("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"):
        return []
    template = job.template()
    own = present.owned(job, "Pod")
    succeeded = [p for p in own if phase(p) == "Succeeded"]
    late = job.spec.get("podReplacementPolicy") == "Failed"  # then a pod is replaced only once it is gone
    running = [p for p in own if active(p) or (late and phase(p) not in ("Succeeded", "Failed"))]
    parallelism = job.amount("spec.parallelism", 1)
    completions = _whole(job.spec.get("completions"), "spec.completions")
    if completions is None and job.spec.get("parallelism") is None:
        completions = 1
    labels = {"job-name": job.name, "batch.kubernetes.io/job-name": job.name}
    if job.uid:
        labels |= {"controller-uid": job.uid, "batch.kubernetes.io/controller-uid": job.uid}

    if job.spec.get("completionMode") == "Indexed":
        if completions is None:
            raise FieldError("spec.completions", "missing: an Indexed job must say how many")
        settled = _ranges(job, "completedIndexes") | _ranges(job, "failedIndexes")
        settled |= {_index(p) for p in [*succeeded, *running]}
        free = islice((i for i in range(completions) if i not in settled), max(0, parallelism - len(running)))
        made = [
            pod(
                job,
                template,
                present.claim(job.namespace, f"{job.name}-{i}"),
                labels={**labels, INDEX: str(i)},
                annotations={INDEX: str(i)},
            )
            for i in free
        ]
    else:
        done = max(len(succeeded), _whole(job.status.get("succeeded"), "status.succeeded") or 0)
        # Without completions it is a work queue: once one pod has succeeded, no new ones are started.
        left = completions - done if completions is not None else 0 if done else parallelism
        wanted = min(parallelism, left)
        names = present.number(job.namespace, job.name, max(0, wanted - len(running)))
        made = [pod(job, template, named, labels=labels) for named in names]
    if _suspended(job):
        made = [held(one, f"Suspended: job {job.namespace}/{job.name} is suspended") for one in made]
    return made


def _whole(value: Any, path: str) -> int | None:
    """A count that makes no pods by itself, so that it has no upper limit."""
    if value is not None and (type(value) is not int or value < 0):
        raise FieldError(path, f"is {value!r}: must be an integer >= 0")
    return value


def _suspended(one: Workload) -> bool:
    return one.group == "batch" and one.spec.get("suspend") is True


def _ranges(job: Workload, field: str) -> set[int]:
    """`status.completedIndexes` and `failedIndexes`: "1,3-5" = 1, 3, 4, 5."""
    out: set[int] = set()
    text = job.status.get(field)
    for part in str(text).split(",") if text else ():
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) > MAX_PODS:
            raise FieldError(f"status.{field}", f'is {text!r}: must be ranges like "1,3-5"')
        out.update(range(int(first), int(last or first) + 1))
    return out


def _index(one: Json) -> int:
    metadata = mapping(one.get("metadata"))
    text = mapping(metadata.get("annotations")).get(INDEX) or mapping(metadata.get("labels")).get(INDEX) or ""
    return int(text) if str(text).isdigit() else -1


def _replicated(owner: Workload, present: Present) -> list[Json]:
    """ReplicaSet and ReplicationController: as many active pods as `replicas`."""
    if any(
        ref.get("kind") == "Deployment" and present.has("Deployment", owner.namespace, str(ref.get("name")))
        for ref in items(mapping(owner.body.get("metadata")).get("ownerReferences"))
    ):
        return []  # the Deployment, which is in the input too, says how many
    return _replicas(owner, present, present.owned(owner, "Pod"), {})


def _deployment(owner: Workload, present: Present) -> list[Json]:
    """Deployment: as many active pods as `replicas` over all its ReplicaSets."""
    sets = present.owned(owner, "ReplicaSet")
    own = present.owned(owner, "Pod") + [p for rs in sets for p in present.owned(workload(rs), "Pod")]
    # The label tells apart the pods of two versions of a template; spread constraints select by it.
    template = json.dumps(owner.template(), sort_keys=True, default=str).encode()
    labels = {"pod-template-hash": hashlib.sha256(template).hexdigest()[:10]}
    return _replicas(owner, present, own, labels)


def _replicas(owner: Workload, present: Present, own: list[Json], labels: dict[str, str]) -> list[Json]:
    missing = owner.amount("spec.replicas", 1) - sum(active(p) for p in own)
    template = owner.template()
    names = present.number(owner.namespace, owner.name, max(0, missing))
    return [pod(owner, template, named, labels=labels) for named in names]


def _stateful_set(owner: Workload, present: Present) -> list[Json]:
    """StatefulSet: pods by ordinal, each with its own claims."""
    template = owner.template()
    start = owner.amount("spec.ordinals.start", 0)
    claims = items(owner.spec.get("volumeClaimTemplates"))
    made: list[Json] = []
    for ordinal in range(start, start + owner.amount("spec.replicas", 1)):
        named = f"{owner.name}-{ordinal}"
        if present.has("Pod", owner.namespace, named):
            continue
        spec = template["spec"]
        if claims:
            volumes = [{"name": name(c), "persistentVolumeClaim": {"claimName": f"{name(c)}-{named}"}} for c in claims]
            spec = {**spec, "volumes": [*items(spec.get("volumes")), *volumes]}
        labels = {"apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": named}
        made.append(pod(owner, template, present.claim(owner.namespace, named), spec=spec, labels=labels))
        made.extend(
            _claim(owner.namespace, f"{name(c)}-{named}", c.get("spec"))
            for c in claims
            if not present.has("PersistentVolumeClaim", owner.namespace, f"{name(c)}-{named}")
        )
    return made


CONTROLLERS: dict[tuple[str, str], Callable[[Workload, Present], list[Json]]] = {
    ("batch", "Job"): _job,
    (vcjobs.GROUP, "Job"): vcjobs.expand,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replicated,
    ("", "ReplicationController"): _replicated,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): daemons.expand,
}


def _grouped(owner: Workload, made: list[Json], present: Present) -> list[Json]:
    """Volcano's podgroup controller: pods whose owner says `group-min-member` become one gang, `podgroup-<uid>`.

    Without that annotation it would make a group with minimum 1, which starts pod by pod as pods without a group do.
    """
    minimum = owner.annotations.get(MIN_MEMBER)
    pods = [one for one in made if one["kind"] == "Pod"]
    if minimum is None or not pods or GROUP_NAME in pods[0]["metadata"]["annotations"]:
        return made
    if not (isinstance(minimum, str) and minimum.isdecimal()):
        raise FieldError(f"metadata.annotations[{MIN_MEMBER}]", f'is {minimum!r}: must be an integer like "4"')
    named = f"podgroup-{owner.uid or owner.name}"
    for one in pods:
        one["metadata"]["annotations"][GROUP_NAME] = named
    if present.has("PodGroup", owner.namespace, named):
        return made
    first = pods[0]
    spec: Json = {
        "minMember": int(minimum),
        "queue": first["metadata"]["annotations"].get("scheduling.volcano.sh/queue-name") or "default",
    }
    if first["spec"].get("priorityClassName"):
        spec["priorityClassName"] = first["spec"]["priorityClassName"]
    metadata = {key: value for key, value in first["metadata"].items() if key in ("namespace", "creationTimestamp")}
    inherited = {key: value for key, value in owner.annotations.items() if key.startswith("volcano.sh/")}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {**metadata, "name": named, "annotations": inherited},
        "spec": spec,
        "status": {"phase": "Pending"},
    }
    return [group, *made]


WORKLOAD_KINDS = frozenset(kind for _, kind in CONTROLLERS)


def _scheduler(one: Json) -> str:
    return str(mapping(one.get("spec")).get("schedulerName") or "default-scheduler")


def _node(one: Json) -> str:
    return str(mapping(one.get("spec")).get("nodeName") or "")


def _split(made: list[Json], scheduler_names: Collection[str]) -> tuple[list[Json], list[Json]]:
    """What to plan with, and the pods without a node that another scheduler is to place."""
    pods = [one for one in made if one["kind"] == "Pod" and not _node(one)]
    foreign = [one for one in pods if _scheduler(one) not in scheduler_names]
    dropped = {id(one) for one in foreign}
    return [one for one in made if id(one) not in dropped], foreign


def _elsewhere(owner: Workload, pods: list[Json]) -> Iterator[InputProblem]:
    if pods:
        theirs = _scheduler(pods[0])
        yield InputProblem(
            "",
            str(owner),
            "schedulerName",
            f"{len(pods)} pods that are not in the input are for {theirs}: not decided on, and they use no room here",
        )


def _admitted(owner: Workload, made: list[Json], by: admission.Rules) -> tuple[list[Json], list[InputProblem]]:
    """The objects with their pods admitted, each shared spec once."""
    specs: dict[int, Json] = {}
    problems: dict[tuple[str, str], InputProblem] = {}
    out: list[Json] = []
    for one in made:
        if one["kind"] != "Pod":
            out.append(one)
            continue
        given = one["spec"]
        if id(given) not in specs:
            specs[id(given)], missing = by.admit(owner.namespace, given)
            for path, message in missing:
                problems.setdefault((path, message), InputProblem("", str(owner), f"template.{path}", message))
        out.append({**one, "spec": specs[id(given)]})
    return out, list(problems.values())


def _claim(where: str, named: str, spec: Any) -> Json:
    metadata = {"name": named, "namespace": where}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": mapping(spec)}


def _ephemeral_claims(objects: list[Json]) -> list[Json]:
    """Claims `<pod>-<volume>` of generic ephemeral volumes, for pods whose controller has not made them yet."""
    claims: list[Json] = []
    existing: set[tuple[str, str]] | None = None
    for obj in objects:
        if obj.get("kind") != "Pod" or admission.dumped(obj):
            continue
        for volume in items(mapping(obj.get("spec")).get("volumes")):
            source = mapping(mapping(volume.get("ephemeral")).get("volumeClaimTemplate"))
            if not source:
                continue
            if existing is None:
                existing = {(namespace(o), name(o)) for o in objects if o.get("kind") == "PersistentVolumeClaim"}
            where, named = namespace(obj), f"{name(obj)}-{volume.get('name')}"
            if (where, named) not in existing:
                claims.append(_claim(where, named, source.get("spec")))
    return claims

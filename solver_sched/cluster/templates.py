"""A workload object, what the input already holds of it, and a pod made from its template. Raw dicts throughout."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from solver_sched.cluster.admission import Json, items, mapping, name, namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOLD = "solver-sched.io/hold"
"""Annotation on a made pod: a code and a sentence why it must not be decided on (`objects.Pod.hold`)."""

MAX_PODS = 200_000
"""Pods per workload: a mistyped count is reported instead of filling the memory. Kubernetes plans for 150,000."""

OwnerKey = tuple[str, str, str, str]
"""Namespace, API group, kind, name."""


class FieldError(ValueError):
    """A field of a workload that cannot be used; `path` names it, the message says what is allowed."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Workload:
    """A workload object with its identity. `uid` is "" for one that no API server has seen."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str
    body: Json

    @property
    def key(self) -> OwnerKey:
        return self.namespace, self.group, self.kind, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def spec(self) -> Json:
        return mapping(self.body.get("spec"))

    @property
    def status(self) -> Json:
        return mapping(self.body.get("status"))

    @property
    def annotations(self) -> Json:
        return mapping(mapping(self.body.get("metadata")).get("annotations"))

    def condition(self, *types: str) -> bool:
        """One of these conditions is true."""
        conditions = items(self.status.get("conditions"))
        return any(one.get("type") in types and one.get("status") == "True" for one in conditions)

    def amount(self, path: str, default: int) -> int:
        """The count of pods at the dotted `path`. Raises FieldError unless it is an integer from 0 to MAX_PODS."""
        return amount(_at(self.body, path), path, default)

    def template(self, path: str = "spec.template") -> Json:
        """The pod template at the dotted `path`. Raises FieldError if it has no containers."""
        return checked_template(_at(self.body, path), path)

    def owner_reference(self) -> Json:
        reference: Json = {
            "apiVersion": self.body.get("apiVersion"),
            "kind": self.kind,
            "name": self.name,
            "controller": True,
        }
        return {**reference, "uid": self.uid} if self.uid else reference


def workload(obj: Json) -> Workload:
    return Workload(api_group(obj), str(obj.get("kind")), namespace(obj), name(obj), _uid(obj), obj)


def api_group(obj: Json) -> str:
    """The API group of `apiVersion`, "" for the core group."""
    return str(obj.get("apiVersion") or "").rpartition("/")[0]


def amount(value: Any, path: str, default: int) -> int:
    """See `Workload.amount`; `value` None = not given."""
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= MAX_PODS:
        raise FieldError(path, f"is {value!r}: must be an integer from 0 to {MAX_PODS}")
    return value


def checked_template(value: Any, path: str) -> Json:
    """See `Workload.template`."""
    template = mapping(value)
    if not items(mapping(template.get("spec")).get("containers")):
        raise FieldError(f"{path}.spec.containers", "missing: must list at least one container")
    return template


class Present:
    """What the input already holds: names that are taken, and objects by their controller.

    A pod whose ReplicaSet is not in the input counts for the Deployment that its pod-template-hash leads to
    (ReplicaSets are named `<deployment>-<hash>`).
    """

    def __init__(self, objects: Iterable[Json]) -> None:
        self.nodes: list[Json] = []
        self.pod_groups: list[Json] = []
        self._priorities: dict[str, Any] = {}
        self._names: set[tuple[str, str, str]] = set()
        self._owned: dict[OwnerKey, list[tuple[str, Json]]] = defaultdict(list)
        by_replica_set: list[tuple[OwnerKey, Json]] = []
        for obj in objects:
            metadata = obj.get("metadata")
            if not isinstance(metadata, dict):
                continue
            kind = str(obj.get("kind"))
            if kind == "Node":
                self.nodes.append(obj)
            if kind == "PriorityClass":
                self._priorities[str(metadata.get("name"))] = obj.get("value")
            if kind == "PodGroup":
                self.pod_groups.append(obj)
            where = str(metadata.get("namespace") or "default")
            self._names.add((kind, where, str(metadata.get("name") or "")))
            if "ownerReferences" not in metadata:
                continue
            references = items(metadata["ownerReferences"])
            for reference in references:
                if len(references) > 1 and not reference.get("controller"):
                    continue
                key = (where, api_group(reference), str(reference.get("kind")), str(reference.get("name")))
                self._owned[key].append((str(reference.get("uid") or ""), obj))
                if kind == "Pod" and key[2] == "ReplicaSet":
                    by_replica_set.append((key, obj))
        for (where, group, kind, owner), obj in by_replica_set:
            suffix = f"-{mapping(obj['metadata'].get('labels')).get('pod-template-hash')}"
            if owner.endswith(suffix) and not self.has(kind, where, owner):
                self._owned[where, group, "Deployment", owner.removesuffix(suffix)].append(("", obj))

    def owned(self, by: Workload, kind: str) -> list[Json]:
        """Objects of `kind` that `by` controls. Two known uids that differ are two workloads of one name: the old
        one's pods are on their way out.
        """
        return [
            obj
            for uid, obj in self._owned.get(by.key, ())
            if obj.get("kind") == kind and (not uid or not by.uid or uid == by.uid)
        ]

    def has(self, kind: str, where: str, named: str) -> bool:
        return (kind, where, named) in self._names

    def priority(self, spec: Json) -> int:
        """The value of the class that a pod spec names, 0 if none."""
        value = self._priorities.get(str(spec.get("priorityClassName")))
        return value if type(value) is int else 0

    def claim(self, where: str, base: str) -> str:
        """`base`, or where a pod has that name already `base-0`, `base-1` ...; the name is taken from then on."""
        named = base
        suffix = count()
        while ("Pod", where, named) in self._names:
            named = f"{base}-{next(suffix)}"
        self._names.add(("Pod", where, named))
        return named

    def number(self, where: str, base: str, wanted: int) -> list[str]:
        """The first `wanted` free pod names of `base-0`, `base-1` ..., taken from then on."""
        free: list[str] = []
        for index in count():
            if len(free) == wanted:
                break
            named = f"{base}-{index}"
            if ("Pod", where, named) not in self._names:
                self._names.add(("Pod", where, named))
                free.append(named)
        return free


def pod(
    owner: Workload,
    template: Json,
    named: str,
    *,
    spec: Json | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pending pod from `template`, as old as its workload. Labels and annotations given go on top of the template's;
    `spec` replaces the template's.
    """
    own = mapping(template.get("metadata"))
    metadata: Json = {
        "name": named,
        "namespace": owner.namespace,
        "labels": {**mapping(own.get("labels")), **(labels or {})},
        "annotations": {**mapping(own.get("annotations")), **(annotations or {})},
        "ownerReferences": [owner.owner_reference()],
    }
    created = mapping(owner.body.get("metadata")).get("creationTimestamp")
    if created:
        metadata["creationTimestamp"] = created
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template["spec"] if spec is None else spec,
        "status": {"phase": "Pending"},
    }


def held(made: Json, reason: str) -> Json:
    """The pod with a hold annotation."""
    metadata = mapping(made.get("metadata"))
    return {
        **made,
        "metadata": {**metadata, "annotations": {**mapping(metadata.get("annotations")), HOLD: reason}},
    }


def phase(obj: Json) -> str:
    return str(mapping(obj.get("status")).get("phase") or "")


def active(obj: Json) -> bool:
    """A pod that its controller counts as there: neither finished nor being deleted."""
    return phase(obj) not in ("Succeeded", "Failed") and not obj["metadata"].get("deletionTimestamp")


def _uid(obj: Json) -> str:
    return str(mapping(obj.get("metadata")).get("uid") or "")


def _at(body: Json, path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        value = mapping(value).get(part)
    return value

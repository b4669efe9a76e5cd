"""Which kinds a cycle reads, and where an API server serves them."""

from __future__ import annotations

from msgspec import Struct

from solver_sched.cluster.dialects import DIALECTS


class Kind(Struct, frozen=True):
    """One kind in one API family. `versions`: its apiVersions, the preferred one first; the first served one is read.

    `built_in`: every API server has it, so that a server without it has not started yet.
    """

    kind: str
    versions: tuple[str, ...]
    plural: str
    namespaced: bool
    built_in: bool = True


def base(version: str) -> str:
    """The path under which an API server serves `version`: `/api/v1`, `/apis/policy/v1`."""
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def path(kind: Kind, version: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """The path of all objects of a kind, of those in a namespace, of one, or of a subresource of one."""
    within = f"/namespaces/{namespace}" if namespace and kind.namespaced else ""
    return f"{base(version)}{within}/{kind.plural}" + "".join(f"/{step}" for step in (name, part) if step)


POD = Kind("Pod", ("v1",), "pods", True)
NODE = Kind("Node", ("v1",), "nodes", False)

KINDS: tuple[Kind, ...] = (
    # What others are read by comes first: classes before pods, groups before their members.
    Kind("PriorityClass", ("scheduling.k8s.io/v1",), "priorityclasses", False),
    Kind("Namespace", ("v1",), "namespaces", False),
    NODE,
    *(Kind("PodGroup", (v,), "podgroups", True, False) for d in DIALECTS if d.queue for v in d.versions),
    *(Kind("PodGroup", d.versions, "podgroups", True, False) for d in DIALECTS if not d.queue),
    *(Kind("Queue", (v,), "queues", False, False) for d in DIALECTS if d.queue for v in d.versions),
    Kind("Job", ("batch/v1",), "jobs", True),
    Kind("Job", ("batch.volcano.sh/v1alpha1",), "jobs", True, False),
    Kind("PodDisruptionBudget", ("policy/v1",), "poddisruptionbudgets", True),
    Kind("ResourceQuota", ("v1",), "resourcequotas", True),
    Kind("StorageClass", ("storage.k8s.io/v1",), "storageclasses", False),
    Kind("CSINode", ("storage.k8s.io/v1",), "csinodes", False),
    Kind("PersistentVolume", ("v1",), "persistentvolumes", False),
    Kind("PersistentVolumeClaim", ("v1",), "persistentvolumeclaims", True),
    POD,
)
"""Families with queues are kube-batch's and Volcano's: there each version is an API group of its own."""

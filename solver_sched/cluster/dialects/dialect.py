"""What one API family of PodGroups and Queues tells: how its objects are read, and how its pods name their group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec import Raw

from solver_sched.cluster import wire
from solver_sched.cluster.objects import Pod, PodGroup, Queue, Resources
from solver_sched.cluster.requests import amounts
from solver_sched.cluster.wire import Meta, within
from solver_sched.errors import InputError

TASK_SPEC = "volcano.sh/task-spec"
"""Label or annotation of a pod: its role."""


@dataclass(frozen=True)
class Dialect:
    """`versions`: its apiVersions, the preferred one first. `misprints`: apiVersions seen in the wild -> what is meant.

    `group` and `queue` read one object of the given apiVersion; they raise InputError or msgspec.ValidationError.
    A group without a queue is read with queue "", priority stays None.
    `class_field`: groups of this family can name a priority class, so that one that does not has the default class;
    in other families a group ranks by its pods.
    `settle`: a second look at a held group, once its pods are known.
    """

    versions: tuple[str, ...]
    group: Callable[[Raw | bytes, str], PodGroup]
    queue: Callable[[Raw | bytes, str], Queue] | None = None
    class_field: bool = True
    settle: Callable[[Raw | bytes, PodGroup, Sequence[Pod]], PodGroup] | None = None
    misprints: Mapping[str, str] = field(default_factory=dict)


def read_amounts(path: str, quantities: Mapping[str, Raw] | None) -> Resources | None:
    """A resource map at `path`, None where it is absent."""
    if quantities is None:
        return None
    with within(path):
        return amounts(quantities)


def kept_annotations(meta: Meta) -> dict[str, str]:
    """Annotations that some scheduling rule may read. Others stay out of the snapshot: `last-applied-configuration`
    holds whole objects, environment included.
    """
    return {key: value for key, value in (meta.annotations or {}).items() if _read_by_rules(key)}


@lru_cache(maxsize=4096)
def _read_by_rules(key: str) -> bool:
    domain = key.partition("/")[0]
    return domain in _DOMAINS or domain.endswith(".volcano.sh")


_DOMAINS = frozenset({"volcano.sh", "scheduling.k8s.io", "solver-sched.io", "sla-waiting-time"})


def created(meta: Meta) -> int:
    """Creation time in seconds, 0 where unknown."""
    with within("metadata.creationTimestamp"):
        return wire.time(meta.creation_timestamp)


def named(meta: Meta) -> str:
    """The object's name; InputError where it has none, or one that no API server lets in."""
    return segment(wire.required(meta.name, "metadata.name"), "metadata.name")


def namespace(meta: Meta) -> str:
    """The object's namespace; absent means "default", as for kubectl without a context."""
    return segment(meta.namespace, "metadata.namespace") if meta.namespace else "default"


_NO_SEGMENT = re.compile(r"[/%\x00-\x1f\x7f]")


def segment(value: str, path: str) -> str:
    """`value`, or InputError: every name is part of a path (apimachinery pkg/api/validation/path), and of keys here."""
    if _NO_SEGMENT.search(value):
        raise InputError(f"{value[:60]!r} is no name: must be without /, % and control characters", field=path)
    return value

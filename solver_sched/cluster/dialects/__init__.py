"""The API families of PodGroups and Queues, one file each."""

from __future__ import annotations

from msgspec.structs import replace

from solver_sched.cluster.dialects import coscheduling, kube_batch, native, volcano
from solver_sched.cluster.dialects.dialect import Dialect
from solver_sched.cluster.objects import Queue

DIALECTS: tuple[Dialect, ...] = (volcano.DIALECT, kube_batch.DIALECT, coscheduling.DIALECT, native.DIALECT)
"""Where two families hold a group of the same namespace and name, the earlier one counts."""

BY_VERSION: dict[str, Dialect] = {
    version: dialect for dialect in DIALECTS for version in (*dialect.versions, *dialect.misprints)
}

MISPRINTS: dict[str, str] = {wrong: right for dialect in DIALECTS for wrong, right in dialect.misprints.items()}

ANNOTATED: tuple[str, ...] = volcano.DIALECT.versions + kube_batch.DIALECT.versions
"""Versions whose groups are named by the annotation `scheduling.k8s.io/group-name`."""

LABELLED: tuple[str, ...] = coscheduling.DIALECT.versions
NATIVE: tuple[str, ...] = native.DIALECT.versions

_RANK = {version: rank for rank, version in enumerate(v for dialect in DIALECTS for v in dialect.versions)}


def rank(version: str) -> int:
    """Which family counts where several hold an object of one name: the lowest."""
    return _RANK.get(version, len(_RANK))


def first_counts(first: str, second: str) -> tuple[bool, str]:
    """Of two groups of one name in these versions, whether the first one counts; and a complaint or ""."""
    kept, other = sorted((first, second), key=rank)
    same = BY_VERSION.get(kept) is BY_VERSION.get(other)
    return kept == first, "" if same else f"is given as {other} too: the one of {kept} is used"


def alike(first: object, second: object) -> bool:
    """Whether two objects of one name say the same. Of queues the age does not count: a default queue is made in each
    API that lacks it, one after the other.
    """
    if isinstance(first, Queue) and isinstance(second, Queue):
        second = replace(second, created=first.created)
    return first == second

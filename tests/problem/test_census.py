"""A census that takes over what has not changed equals one that is made of nothing."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.cluster.objects import Node, Pod, PodGroup
from solver_sched.problem.census import Census
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from tests.strategies import full_snapshot, random_snapshot

STEPS = 12


def same(mine: object, other: object) -> bool:
    """Values of equal arrays, field by field."""
    if isinstance(mine, np.ndarray):
        return bool(np.array_equal(mine, np.asarray(other)))
    if hasattr(mine, "__dataclass_fields__"):
        return all(same(getattr(mine, each.name), getattr(other, each.name)) for each in fields(mine))  # type: ignore[arg-type]
    if isinstance(mine, dict) and isinstance(other, dict):
        return list(mine) == list(other) and all(same(mine[key], other[key]) for key in mine)
    if isinstance(mine, tuple) and isinstance(other, tuple):
        return len(mine) == len(other) and all(same(*pair) for pair in zip(mine, other, strict=True))
    return mine == other


def later(snapshot: Snapshot, rng: Random) -> Snapshot:
    """Some seconds on: a few pods are bound, start, end, are marked for deletion or gone; now and then a group, a queue
    or a node changes.
    """
    now = snapshot.now + rng.randint(0, 40)
    nodes = [node.name for node in snapshot.nodes]
    changes: list[dict[str, Any]] = [
        {"node": rng.choice(nodes) if nodes else None},
        {"phase": "Running", "started": now},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"terminating": True},
        {"nominated": rng.choice(nodes) if nodes else None},
        {"scheduler": "default-scheduler"},
        {"hold": "Suspended: by its owner"},
    ]

    def pod(one: Pod) -> list[Pod]:
        if rng.random() > 0.2:
            return [one]
        return [replace(one, **rng.choice(changes))] if rng.random() < 0.8 else []

    def group(one: PodGroup) -> PodGroup:
        return replace(one, min_member=rng.randint(1, 3), phase="Inqueue") if rng.random() < 0.1 else one

    def node(one: Node) -> list[Node]:
        changed = rng.random()
        return [] if changed < 0.02 else [replace(one, unschedulable=changed < 0.04)]

    queues = snapshot.queues[1:] if rng.random() < 0.05 else snapshot.queues
    changed_nodes = tuple(new for old in snapshot.nodes for new in node(old)) if rng.random() < 0.2 else snapshot.nodes
    return replace(
        snapshot,
        now=now,
        nodes=changed_nodes,
        queues=queues,
        pods=tuple(new for old in snapshot.pods for new in pod(old)),
        groups=tuple(map(group, snapshot.groups)),
    )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_taken_over_is_what_would_be_counted(seed: int) -> None:
    rng = Random(seed)
    snapshot = full_snapshot(rng) if seed % 2 else random_snapshot(rng)
    census: Census | None = None
    for _ in range(STEPS):
        snapshot = later(snapshot, rng)
        census, fresh = Census(snapshot, census), Census(snapshot)
        assert same(encode(snapshot, evicting=True, census=census), encode(snapshot, evicting=True, census=fresh))
        ends = zip(
            census.ends().tolist(), [pod for b in (*census.bunches, census.others) for pod in b.standing], strict=True
        )
        assert all(end == census.times.end(pod) for end, pod in ends)
        mine, other = ({b.job.key: b.asked for b in one.bunches} for one in (census, fresh))
        assert mine == other


def test_only_what_changed_is_counted_anew() -> None:
    """Two gangs; a pod of one starts: the other's bunch is the same object, and nothing of the old snapshot is kept."""
    rng = Random(3)
    snapshot = full_snapshot(rng)
    before = Census(snapshot)
    first = next(pod for pod in snapshot.pods if pod.group is not None)
    changed = replace(first, phase="Succeeded")
    after = Census(replace(snapshot, pods=tuple(changed if pod is first else pod for pod in snapshot.pods)), before)
    kept = {id(bunch) for bunch in before.bunches}
    assert [bunch.job.key for bunch in after.bunches if id(bunch) not in kept] == [first.group]

"""Seeded clusters: a partly filled node mix and an over-subscribed queue of gangs, as Kubernetes objects.

Same arguments, same bytes. The proportions are those of large GPU clusters; at the defaults the pending gangs ask for
about twice the free GPUs and about the free CPUs, so which gangs start is a real choice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Json = dict[str, Any]
Load = Literal["pods", "gangs"]

NODE_KINDS = np.array([(96, 384, 8), (128, 1024, 8), (104, 512, 2), (64, 256, 0)])
"""CPUs, GiB, GPUs of each kind of node, (4, 3)."""
NODE_MIX = np.array([0.45, 0.20, 0.25, 0.10])

SHAPES = np.array([(2, 8, 0), (8, 32, 0), (8, 64, 0), (4, 24, 1), (8, 32, 1), (16, 64, 2), (32, 128, 4), (64, 256, 8)])
"""CPUs, GiB, GPUs that a pod asks, (8, 3)."""
SHAPE_MIX = np.array([0.15, 0.14, 0.09, 0.15, 0.15, 0.15, 0.11, 0.06])
"""Of pending pods: 1.5 GPUs and 13 CPUs on average."""
LOAD_MIX = np.array([0.00, 0.30, 0.00, 0.00, 0.30, 0.20, 0.12, 0.08])
"""Of running pods: only multiples of (8, 32, 0) and (8, 32, 1), so that nodes have 246 free vectors at most."""

GANG_SIZES = np.array([1, 2, 4, 8, 16, 32, 64])
GANG_MIX = np.array([0.30, 0.15, 0.15, 0.15, 0.12, 0.08, 0.05])
"""10 pods per gang on average."""

ODD_BELOW = np.array([1, 1, 0])
"""CPUs, GiB, GPUs that an odd-sized pod stays below."""

QUEUE_WEIGHTS = (1, 2, 4, 8)
RACK = 16
"""Nodes per rack (label `topology.kubernetes.io/rack`)."""
SLOTS = 110
START = datetime(2026, 1, 1, tzinfo=UTC)
"""Running work was created at START, the pending gangs one second after another from an hour later on."""


def generate(
    *,
    nodes: int,
    gangs: int,
    seed: int = 0,
    occupancy: float = 0.6,
    queues: int = 10,
    priorities: int = 4,
    load: Load = "pods",
    distinct: bool = False,
) -> list[Json]:
    """Queues, PriorityClasses, Nodes, then PodGroups (Volcano's dialect) and Pods of the running and the pending work.

    `occupancy`: up to which share of a node its load is filled in, on average; nodes vary from 0 to twice that, at
    most full. Whole pods leave a rest: 0.6 gives a cluster half full.
    `load`: running work as pods of default-scheduler ("pods": usage that nobody may move) or as running gangs of the
    same queues and priorities ("gangs": victims). `distinct`: one small odd-sized pod more on every node, so that no
    two nodes have the same free vector; without it all amounts are multiples of shapes and nodes fall into few
    classes. Raises ValueError on arguments out of range.
    """
    _check("nodes", nodes, 0, 10**6)
    _check("gangs", gangs, 0, 10**6)
    _check("queues", queues, 1, 10**4)
    _check("priorities", priorities, 1, 100)
    if not 0 <= occupancy <= 1:
        raise ValueError(f"occupancy {occupancy}: must be from 0 to 1")
    if load not in get_args(Load):
        raise ValueError(f"load {load!r}: must be one of {', '.join(get_args(Load))}")
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(NODE_KINDS), nodes, p=NODE_MIX)
    running_node, running_shape = _fill(rng, NODE_KINDS[kinds], occupancy, ODD_BELOW if distinct else 0 * ODD_BELOW)
    odd = _odd_sizes(rng, nodes) if distinct else np.zeros((0, 2), np.int64)

    objects: list[Json] = [
        _queue(q, QUEUE_WEIGHTS[int(w)]) for q, w in enumerate(rng.integers(0, len(QUEUE_WEIGHTS), queues))
    ]
    objects += [_priority_class(p) for p in range(priorities)]
    objects += [_node(n, NODE_KINDS[kind]) for n, kind in enumerate(kinds)]
    if load == "pods":
        for k, (n, s) in enumerate(zip(running_node.tolist(), running_shape.tolist(), strict=True)):
            objects.append(_pod(f"usage-{k:06d}", "usage", RESOURCES[s], _time(0), node=n))
    else:
        objects += _running_gangs(rng, running_node, running_shape, queues, priorities)
    for n, (milli_cpu, mib) in enumerate(odd.tolist()):
        resources = {"requests": {"cpu": f"{milli_cpu}m", "memory": f"{mib}Mi"}}
        objects.append(_pod(f"odd-{n:05d}", "usage", resources, _time(0), node=n))

    size = rng.choice(GANG_SIZES, gangs, p=GANG_MIX)
    shape = rng.choice(len(SHAPES), gangs, p=SHAPE_MIX)
    queue = rng.integers(0, queues, gangs)
    priority = rng.integers(0, priorities, gangs)
    for g, row in enumerate(zip(size.tolist(), shape.tolist(), queue.tolist(), priority.tolist(), strict=True)):
        pods, s, q, p = row
        objects += _gang(f"gang-{g:05d}", [-1] * pods, s, q, p, _time(3600 + g))
    return objects


def generate_json(**arguments: Any) -> bytes:
    """One `v1` List of what `generate` gives, as JSON."""
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": generate(**arguments)})


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} {value}: must be from {least} to {most}")


def _fill(rng: np.random.Generator, capacity: Ints, occupancy: float, spare: Ints) -> tuple[Ints, Ints]:
    """Running pods as (node, shape), sorted by node: each node takes shapes until its fullest resource is at a level
    drawn between 0 and twice `occupancy` (at most full but for `spare` (3,)). `capacity` (N, 3).
    """
    level = np.minimum(rng.uniform(0, 2 * occupancy, len(capacity)), 1.0)
    limit = np.minimum(np.floor(capacity * level[:, None]).astype(np.int64), capacity - spare)
    used = np.zeros_like(capacity)
    node: list[Ints] = []
    shape: list[Ints] = []
    # Every round offers each node one shape. A mean shape fills a seventh of a node: 40 rounds leave little undone.
    for _ in range(40):
        offer = rng.choice(len(SHAPES), len(capacity), p=LOAD_MIX)
        takes = (used + SHAPES[offer] <= limit).all(axis=1)
        used[takes] += SHAPES[offer[takes]]
        node.append(np.flatnonzero(takes))
        shape.append(offer[takes])
    nodes, shapes = np.concatenate(node), np.concatenate(shape)
    order = np.argsort(nodes, kind="stable")
    return nodes[order], shapes[order]


def _odd_sizes(rng: np.random.Generator, nodes: int) -> Ints:
    """(N, 2) milli-CPU below 1 CPU and MiB below 1 GiB, all pairs different: what else is free is whole CPUs and GiB,
    so free vectors differ too.
    """
    _check("nodes with distinct free vectors", nodes, 0, 999 * 1023)
    code = rng.choice(999 * 1023, nodes, replace=False)
    return np.stack([1 + code % 999, 1 + code // 999], axis=1)


def _running_gangs(rng: np.random.Generator, node: Ints, shape: Ints, queues: int, priorities: int) -> Iterator[Json]:
    """The running pods of each shape, dealt out to gangs of the usual sizes; a shape's last gang may be smaller."""
    number = 0
    for s in range(len(SHAPES)):
        where = rng.permutation(node[shape == s]).tolist()
        while where:
            size = int(rng.choice(GANG_SIZES, p=GANG_MIX))
            here, where = where[:size], where[size:]
            q, p = int(rng.integers(0, queues)), int(rng.integers(0, priorities))
            yield from _gang(f"running-{number:05d}", here, s, q, p, _time(0))
            number += 1


def _gang(named: str, nodes: list[int], shape: int, queue: int, priority: int, created: str) -> Iterator[Json]:
    """A PodGroup and one pod per entry of `nodes`; -1 = pending. All are needed: minMember is their number."""
    where = f"team-{queue:02d}"
    yield {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": _metadata(named, created, where),
        "spec": {
            "minMember": len(nodes),
            "queue": f"queue-{queue:02d}",
            "priorityClassName": f"priority-{priority}",
        },
        "status": {"phase": "Inqueue" if nodes[0] < 0 else "Running"},
    }
    for k, n in enumerate(nodes):
        yield _pod(f"{named}-{k}", where, RESOURCES[shape], created, node=n, group=named, priority=priority)


def _pod(
    named: str,
    where: str,
    resources: Json,
    created: str,
    *,
    node: int = -1,
    group: str = "",
    priority: int = 0,
) -> Json:
    metadata = _metadata(named, created, where)
    spec: Json = {"containers": [{"name": "main", "resources": resources}]}
    if group:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
        spec |= {
            "schedulerName": "solver-sched",
            "priorityClassName": f"priority-{priority}",
            "priority": _priority(priority),
        }
    if node >= 0:
        spec["nodeName"] = f"node-{node:05d}"
    phase = "Running" if node >= 0 else "Pending"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def _metadata(named: str, created: str, where: str = "") -> Json:
    # A uid marks objects of an API server: they are read as they are, without admission.
    uid = f"{where or 'cluster'}/{named}"
    metadata: Json = {"name": named, "uid": uid, "creationTimestamp": created}
    return metadata | ({"namespace": where} if where else {})


def _time(seconds: int) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _resources(cpus: int, gib: int, gpus: int) -> Json:
    requests = {"cpu": str(cpus), "memory": f"{gib}Gi"}
    if not gpus:
        return {"requests": requests}
    return {"requests": requests | {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}


RESOURCES = [_resources(*shape) for shape in SHAPES.tolist()]


def _node(row: int, capacity: Ints) -> Json:
    cpus, gib, gpus = capacity.tolist()
    named = f"node-{row:05d}"
    allocatable = {"cpu": str(cpus), "memory": f"{gib}Gi", "pods": str(SLOTS)}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    labels = {
        "kubernetes.io/hostname": named,
        "node.kubernetes.io/instance-type": f"c{cpus}-m{gib}-g{gpus}",
        "topology.kubernetes.io/rack": f"rack-{row // RACK:04d}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _metadata(named, _time(0)) | {"labels": labels},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _queue(row: int, weight: int) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": _metadata(f"queue-{row:02d}", _time(0)),
        "spec": {"weight": weight, "reclaimable": True},
        "status": {"state": "Open"},
    }


def _priority(rank: int) -> int:
    return 1000 * rank


def _priority_class(rank: int) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": _metadata(f"priority-{rank}", _time(0)),
        "value": _priority(rank),
    }

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
    Shares = NDArray[np.float64]

Json = dict[str, Any]
Load = Literal["pods", "gangs", "victims"]

NODE_KINDS = np.array([(96, 384, 8), (128, 1024, 8), (104, 512, 2), (64, 256, 0)])
"""CPUs, GiB, GPUs of each kind of node, (4, 3)."""
NODE_MIX = np.array([0.45, 0.20, 0.25, 0.10])

SHAPES = np.array([(2, 8, 0), (8, 32, 0), (8, 64, 0), (4, 24, 1), (8, 32, 1), (16, 64, 2), (32, 128, 4), (64, 256, 8)])
"""CPUs, GiB, GPUs that a pod asks, (8, 3)."""
SHAPE_MIX = np.array([0.15, 0.14, 0.09, 0.15, 0.15, 0.15, 0.11, 0.06])
"""Of pending pods: 1.5 GPUs and 13 CPUs on average."""
LOAD_MIX = np.array([0.00, 0.30, 0.00, 0.00, 0.30, 0.20, 0.12, 0.08])
"""Of running pods: only multiples of (8, 32, 0) and (8, 32, 1), so that nodes have 246 free vectors at most."""

COARSE_MIX = np.array([0.00, 0.10, 0.00, 0.00, 0.10, 0.20, 0.30, 0.30])
"""Of victims where few run on a node: then their GPUs are still full."""
COARSE_BELOW = 6
"""Pods per node."""

GANG_SIZES = np.array([1, 2, 4, 8, 16, 32, 64])
GANG_MIX = np.array([0.30, 0.15, 0.15, 0.15, 0.12, 0.08, 0.05])
"""10 pods per gang on average."""

ODD_BELOW = np.array([1, 1, 0])
"""CPUs, GiB, GPUs that an odd-sized pod stays below."""

QUEUE_WEIGHTS = (1, 2, 4, 8)
BUSY_QUEUES = 0.7
"""Of two queues next to each other the second has this share of the running work of the first: some hold too much."""
LONGEST_RUN = 3 * 24 * 3600
"""Seconds since the start of the victim that has run longest."""
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
    running: int | None = None,
    surplus: float = 0.3,
    claims: bool = True,
    budgets: bool = False,
) -> list[Json]:
    """Queues, PriorityClasses, Nodes, then PodGroups (Volcano's dialect) and Pods of the running and the pending work.

    `occupancy`: up to which share of a node its load is filled in, on average; nodes vary from 0 to twice that, at
    most full. Whole pods leave a rest: 0.6 gives a cluster half full.
    `load`: running work as pods of default-scheduler ("pods": usage that nobody may move) or as running gangs of the
    same queues and priorities ("gangs"), or as such gangs filling every node to `occupancy` ("victims", below).
    `distinct`: one small odd-sized pod more on every node, so that no two nodes have the same free vector; without it
    all amounts are multiples of shapes and nodes fall into few classes.

    Victims have started at different times, and some queues hold far more of them than others. `running`: about how
    many there are (default: as many as fit). `surplus`: share of the gangs that need only half of their pods.
    `claims`: whether pending gangs have somebody to take from; if not, all that runs has the highest priority, what is
    pending has not, and no queue is reclaimable. `budgets`: every fourth gang has a disruption budget of a quarter of
    its pods. Raises ValueError on arguments out of range.
    """
    _check("nodes", nodes, 0, 10**6)
    _check("gangs", gangs, 0, 10**6)
    _check("queues", queues, 1, 10**4)
    _check("priorities", priorities, 1, 100)
    for share, value in (("occupancy", occupancy), ("surplus", surplus)):
        if not 0 <= value <= 1:
            raise ValueError(f"{share} {value}: must be from 0 to 1")
    if load not in get_args(Load):
        raise ValueError(f"load {load!r}: must be one of {', '.join(get_args(Load))}")
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(NODE_KINDS), nodes, p=NODE_MIX)
    spare = ODD_BELOW if distinct else 0 * ODD_BELOW
    if load == "victims":
        level, most = np.full(nodes, occupancy), 10**9 if running is None else running
        mix = COARSE_MIX if most < COARSE_BELOW * nodes else LOAD_MIX
    else:
        level, most, mix = np.minimum(rng.uniform(0, 2 * occupancy, nodes), 1.0), 10**9, LOAD_MIX
    running_node, running_shape = _fill(rng, NODE_KINDS[kinds], level, spare, mix, most)
    odd = _odd_sizes(rng, nodes) if distinct else np.zeros((0, 2), np.int64)

    objects: list[Json] = [
        _queue(q, QUEUE_WEIGHTS[int(w)], reclaimable=claims)
        for q, w in enumerate(rng.integers(0, len(QUEUE_WEIGHTS), queues))
    ]
    objects += [_priority_class(p) for p in range(priorities)]
    objects += [_node(n, NODE_KINDS[kind]) for n, kind in enumerate(kinds)]
    if load == "pods":
        for k, (n, s) in enumerate(zip(running_node.tolist(), running_shape.tolist(), strict=True)):
            objects.append(_pod(f"usage-{k:06d}", "usage", RESOURCES[s], _time(0), node=n))
    elif load == "gangs":
        objects += _running_gangs(rng, running_node, running_shape, queues, priorities)
    else:
        lowest = 0 if claims else priorities - 1
        objects += _victims(rng, running_node, running_shape, queues, (lowest, priorities), surplus, budgets=budgets)
    for n, (milli_cpu, mib) in enumerate(odd.tolist()):
        resources = {"requests": {"cpu": f"{milli_cpu}m", "memory": f"{mib}Mi"}}
        objects.append(_pod(f"odd-{n:05d}", "usage", resources, _time(0), node=n))

    size = rng.choice(GANG_SIZES, gangs, p=GANG_MIX)
    shape = rng.choice(len(SHAPES), gangs, p=SHAPE_MIX)
    queue = rng.integers(0, queues, gangs)
    priority = rng.integers(0, priorities if claims else max(1, priorities - 1), gangs)
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


def _fill(
    rng: np.random.Generator, capacity: Ints, level: Shares, spare: Ints, mix: Shares, most: int
) -> tuple[Ints, Ints]:
    """Running pods as (node, shape), sorted by node: each node takes shapes of `mix` until its fullest resource is at
    its `level` (N,) (at most full but for `spare` (3,)), or until `most` pods run. `capacity` (N, 3).
    """
    limit = np.minimum(np.floor(capacity * level[:, None]).astype(np.int64), capacity - spare)
    used = np.zeros_like(capacity)
    node: list[Ints] = []
    shape: list[Ints] = []
    # Every round offers each node one shape. A mean shape fills a seventh of a node: 40 rounds leave little undone.
    for _ in range(40):
        offer = rng.choice(len(SHAPES), len(capacity), p=mix)
        takes = np.flatnonzero((used + SHAPES[offer] <= limit).all(axis=1))[: most - sum(map(len, node))]
        used[takes] += SHAPES[offer[takes]]
        node.append(takes)
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


def _victims(
    rng: np.random.Generator,
    node: Ints,
    shape: Ints,
    queues: int,
    priorities: tuple[int, int],
    surplus: float,
    *,
    budgets: bool,
) -> Iterator[Json]:
    """As `_running_gangs`, with start times, unequal queues and gangs that run more than they need."""
    weight = BUSY_QUEUES ** np.arange(queues)
    number = 0
    for s in range(len(SHAPES)):
        where = rng.permutation(node[shape == s]).tolist()
        while where:
            size = int(rng.choice(GANG_SIZES, p=GANG_MIX))
            here, where = where[:size], where[size:]
            q, p = int(rng.choice(queues, p=weight / weight.sum())), int(rng.integers(*priorities))
            least = (len(here) + 1) // 2 if rng.random() < surplus else len(here)
            started = _time(-int(rng.integers(0, LONGEST_RUN)))
            named = f"running-{number:05d}"
            for obj in _gang(named, here, s, q, p, started, least):
                if obj["kind"] == "Pod":
                    obj["status"]["startTime"] = started
                    obj["metadata"]["labels"] = {"app": named}
                yield obj
            if budgets and number % 4 == 0:
                yield _budget(named, q, len(here) // 4)
            number += 1


def _budget(app: str, queue: int, allowed: int) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(app, _time(0), f"team-{queue:02d}"),
        "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }


def _gang(
    named: str, nodes: list[int], shape: int, queue: int, priority: int, created: str, least: int | None = None
) -> Iterator[Json]:
    """A PodGroup and one pod per entry of `nodes`; -1 = pending. `least`: minMember, default all."""
    where = f"team-{queue:02d}"
    yield {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": _metadata(named, created, where),
        "spec": {
            "minMember": len(nodes) if least is None else least,
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


def _queue(row: int, weight: int, *, reclaimable: bool) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": _metadata(f"queue-{row:02d}", _time(0)),
        "spec": {"weight": weight, "reclaimable": reclaimable},
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

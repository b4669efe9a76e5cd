"""A workload from a seed: Poisson arrivals with a daily rhythm, log-normal run times, gangs, weighted queues, GPUs.

The proportions are those of the clusters that `generate.py` makes. Run times and sizes of archived workloads are about
log-normal and modal at powers of two (Feitelson, Workload Modeling, 2015, sections 3.2, 6.4).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.errors import InputError
from solver_sched.policy.conf import as_seconds
from solver_sched.simulate.generate import GANG_MIX, GANG_SIZES, NODE_KINDS, QUEUE_WEIGHTS, RACK, SHAPE_MIX, SHAPES
from solver_sched.simulate.generate import SLOTS as NODE_SLOTS
from solver_sched.simulate.trace import Job, NodeEvent, Pods, Trace

DAY = 24 * 3600
GIB = 2**30
GPU = "nvidia.com/gpu"
SPREAD = 1.2
"""Standard deviation of the logarithm of run times: the longest tenth takes half of the time."""
NIGHT = 0.6
"""How far the rate of arrivals goes up and down around its mean in a day."""
LEAST, MOST = 30, 2 * DAY
"""Seconds that a job runs, at least and at most."""
RETURNS = 2 * 3600
"""Seconds until a lost node is back."""
CPU_SHAPES = np.array([shape[2] == 0 for shape in SHAPES])


class Spec(Struct, frozen=True):
    """`load`: work of all jobs, of the resource that is asked for most, as a share of what the nodes give in `days`.

    `gpus`: share of the nodes that have 8. `estimates`: share of the jobs whose users say how long they run (1 to 5
    times as long as they do). `elastic`: share of the gangs that run with half of their pods. `failures`: share of the
    jobs of which a pod fails and is made anew once. `losses`: nodes that are lost and come back, at random times.
    """

    nodes: int = 50
    jobs: int = 1000
    days: float = 1.0
    queues: int = 4
    priorities: int = 2
    load: float = 0.9
    gpus: float = 0.5
    estimates: float = 0.7
    elastic: float = 0.1
    failures: float = 0.02
    losses: int = 0


_LIMITS: dict[str, tuple[float, float]] = {
    "nodes": (1, 10**5),
    "jobs": (0, 10**6),
    "days": (0.001, 3650),
    "queues": (1, 1000),
    "priorities": (1, 100),
    "load": (0.001, 100),
    "gpus": (0, 1),
    "estimates": (0, 1),
    "elastic": (0, 1),
    "failures": (0, 1),
    "losses": (0, 10**5),
}


def parsed(text: str) -> Spec:
    """A spec such as `nodes=100,jobs=2000,days=2`; what is not named has its default.

    Raises InputError naming the key, and what is allowed.
    """
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in _LIMITS or not equals:
            raise InputError(
                f"{part[:40]!r} is none of {', '.join(f'{name}=N' for name in _LIMITS)}", source="generate"
            )
        try:
            number = float(as_seconds(value)) / DAY if key == "days" and value[-1:].isalpha() else float(value)
        except ValueError:
            number = math.nan
        least, most = _LIMITS[key]
        whole = isinstance(getattr(Spec(), key), int)
        if not least <= number <= most or (whole and number != int(number)):
            kind = "a whole number" if whole else "a number"
            raise InputError(f"{value[:40]!r} is not {kind} from {least:g} to {most:g}", source="generate", field=key)
        given[key] = int(number) if whole else number
    return Spec(**given)  # type: ignore[arg-type]  # each of the type of its default, see above


def workload(spec: Spec, seed: int = 0) -> Trace:
    """Same spec and seed, same trace."""
    rng = np.random.default_rng(seed)
    with_gpus = rng.random(spec.nodes) < spec.gpus
    kinds = np.where(with_gpus, rng.choice(3, spec.nodes, p=np.array([9, 4, 5]) / 18), 3)
    nodes = tuple(_node(row, NODE_KINDS[kind].tolist()) for row, kind in enumerate(kinds))
    capacity = NODE_KINDS[kinds].sum(axis=0)

    usable = np.array([any((NODE_KINDS[kind] >= shape).all() for kind in set(kinds.tolist())) for shape in SHAPES])
    mix = SHAPE_MIX * usable
    shape = rng.choice(len(SHAPES), spec.jobs, p=mix / mix.sum())
    # a gang asks for a quarter of the cluster at most
    largest = np.maximum(1, (capacity / 4 / np.maximum(SHAPES, 1e-9)).min(axis=1, where=SHAPES > 0, initial=np.inf))
    size = np.minimum(rng.choice(GANG_SIZES, spec.jobs, p=GANG_MIX), largest[shape].astype(np.int64))
    seconds = rng.lognormal(0.0, SPREAD, spec.jobs)
    work = (SHAPES[shape] * (size * seconds)[:, None]).sum(axis=0)
    full = (work / np.maximum(capacity, 1e-9))[capacity > 0].max(initial=1e-9)
    run_time = np.clip(seconds * spec.load * spec.days * DAY / full, LEAST, MOST).astype(np.int64)

    submitted = _arrivals(rng, spec)
    queue = rng.choice(spec.queues, spec.jobs, p=_popularity(spec.queues))
    priority = rng.choice(spec.priorities, spec.jobs, p=_popularity(spec.priorities))
    estimate = (run_time * rng.uniform(1, 5, spec.jobs)).astype(np.int64) * (rng.random(spec.jobs) < spec.estimates)
    elastic = rng.random(spec.jobs) < spec.elastic
    failing = rng.random(spec.jobs) < spec.failures
    failure = (run_time * rng.random(spec.jobs)).astype(np.int64)
    user = rng.integers(0, 4, spec.jobs)
    needs = [_needs(shape) for shape in SHAPES.tolist()]
    jobs = [
        Job(
            namespace=f"team-{queue[j]:02d}",
            name=f"user{user[j]}-{j:06d}",
            pods=(Pods(int(size[j]), needs[shape[j]]),),
            submitted=int(submitted[j]),
            run_time=int(run_time[j]),
            minimum=int((size[j] + 1) // 2 if elastic[j] else size[j]),
            queue=f"queue-{queue[j]:02d}",
            priority=1000 * int(priority[j]),
            estimate=int(estimate[j]),
            failures=(int(failure[j]),) if failing[j] else (),
        )
        for j in range(spec.jobs)
    ]
    lost = zip(
        rng.integers(0, int(spec.days * DAY) + 1, spec.losses), rng.integers(0, spec.nodes, spec.losses), strict=True
    )
    events = [
        event
        for at, row in lost
        for event in (
            NodeEvent(int(at), nodes[row].name, "loss"),
            NodeEvent(int(at) + RETURNS, nodes[row].name, "return"),
        )
    ]
    return Trace(
        source=f"generated: {', '.join(f'{name}={getattr(spec, name):g}' for name in spec.__struct_fields__)}",
        nodes=nodes,
        queues=tuple(
            Queue(f"queue-{q:02d}", weight=QUEUE_WEIGHTS[int(w)])
            for q, w in enumerate(rng.integers(0, len(QUEUE_WEIGHTS), spec.queues))
        ),
        jobs=tuple(jobs),
        events=tuple(sorted(events, key=lambda event: event.at)),
        seed=seed,
    )


def _arrivals(rng: np.random.Generator, spec: Spec) -> NDArray[np.int64]:
    """Seconds of submission, sorted: of a Poisson process, given its number of events, they are independent draws from
    its rate, 1 - NIGHT cos(2 pi t / day); t where its integral reaches a uniform number, found by bisection.
    """
    end = spec.days * DAY
    grid = np.linspace(0, end, 10_000)
    passed = grid - NIGHT * DAY / (2 * math.pi) * np.sin(2 * math.pi * grid / DAY)
    return np.sort(np.interp(rng.random(spec.jobs) * passed[-1], passed, grid)).astype(np.int64)


def _popularity(number: int) -> NDArray[np.float64]:
    """The second is used 0.7 times as much as the first, and so on: some queues ask for more than their share."""
    weight = np.power(0.7, np.arange(number), dtype=np.float64)
    return np.asarray(weight / weight.sum(), np.float64)


def _needs(shape: list[int]) -> Needs:
    cpus, gib, gpus = shape
    request = [("cpu", 1000 * cpus), ("memory", gib * GIB), ("pods", 1)]
    return Needs(tuple(sorted(request + ([(GPU, gpus)] if gpus else []))))


def _node(row: int, kind: list[int]) -> Node:
    cpus, gib, gpus = kind
    name = f"node-{row:05d}"
    return Node(
        name,
        {"cpu": 1000 * cpus, "memory": gib * GIB, "pods": NODE_SLOTS, **({GPU: gpus} if gpus else {})},
        labels={"kubernetes.io/hostname": name, "topology.kubernetes.io/rack": f"rack-{row // RACK:04d}"},
    )

"""Small clusters that are just too full, as in "Priority Matters" (Christensen, Giallorenzo, Mauro, arXiv 2511.08373).

    python -m benchmarks.quality_priorities --results FILE [--instances 1] > benchmarks/quality_priorities.md

Instances as the authors describe and generate them (github.com/henrikdchristensen/scheduler-plugins, README and
scripts/kwok_workload_once): ReplicaSets of 1 to 4 equal pods, CPU 100 to 1,000 milli and memory 100 to 1,000 MB, each
with a priority, all drawn uniformly; 4, 8, 16 or 32 equal nodes, 4 or 8 pods for each, 1, 2 or 4 priorities; a node is
as large as the pods in sum / utilisation / nodes, rounded up, or as the largest pod. At a utilisation of 0.90 and 0.95
only instances count that the default scheduler (here: greedy) does not place whole, at 1.00 and 1.05 all do. The random
numbers are ours.

What is comparable. Theirs runs after kube-scheduler and may move and evict what that has placed; ours decides on all
pods at once, on empty nodes. What can run at best is the same. The bar is here our greedy stage, with kube-scheduler's
two main scores (least allocated, balanced), there kube-scheduler itself, pods arriving one after another. Theirs counts
pods, priority after priority; our levels count dominant shares, so both measures are reported. Their limit is wall
seconds on all cores, ours processor seconds of one (benchmarks/quality.py).

Outcomes, with the authors' names and by our levels:
- failure: the limit ends without any plan from the solver (here greedy's plan is returned then);
- no call: greedy places all pods;
- already optimal: greedy's plan, proven to be as good as any in every level;
- better; better and optimal: ahead of greedy in the first level that differs, without and with every level proven;
- other: not better and not proven.
An instance that is proven at 1 s is not solved once more at 10 s.

Demands, asserted as it runs: no plan breaks a rule, none returned is below greedy's. FILE as in benchmarks/quality.py.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice, product, takewhile
from random import Random
from typing import Any

from benchmarks.machine import machine
from benchmarks.quality import BEST_EFFORT, STAGES, first_difference, measuring, planned, resumed, table, used, values
from solver_sched import load_policy
from solver_sched.cluster.objects import Needs, Node, Pod
from solver_sched.cycle import CycleReport
from solver_sched.model.effort import Clock
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.snapshot import Snapshot

Json = dict[str, Any]
Cell = tuple[int, int, int, float]
"""Nodes, pods per node, priorities, utilisation."""

NODES, PER_NODE, PRIORITIES, UTILISATION = (4, 8, 16, 32), (4, 8), (1, 2, 4), (0.90, 0.95, 1.00, 1.05)
LIMITS = (1, 10)
REPLICAS, CPU, MEGABYTES = (1, 4), (100, 1000), (100, 1000)
CALLED_BELOW = 1.0
OUTCOMES = ("failure", "no call", "already optimal", "better", "better and optimal", "other")
PUBLISHED = {
    1: {"failure": 31.9, "better": 28.5, "better and optimal": 23.2},
    10: {"failure": 7.5, "better": 40.3, "better and optimal": 35.1},
}
"""% of instances, from the tables of the authors' repository: with theirs, all cores, wall seconds."""


def instance(nodes: int, per_node: int, priorities: int, utilisation: float, seed: int) -> Snapshot:
    """Pending pods and nodes that hold about `utilisation` of what they ask. Same arguments, same snapshot."""
    rng = Random(f"{nodes} {per_node} {priorities} {utilisation} {seed}")
    pods: list[Pod] = []
    left = nodes * per_node
    for number in count():
        if not left:
            break
        size = min(left, rng.randint(*REPLICAS))
        request = (("cpu", rng.randint(*CPU)), ("memory", 10**6 * rng.randint(*MEGABYTES)), ("pods", 1))
        needs, priority = Needs(request=request), rng.randint(1, priorities)
        pods += [
            Pod("test", f"rs-{number:03d}-{k}", needs, priority=priority, scheduler="solver-sched") for k in range(size)
        ]
        left -= size
    allocatable = {"pods": 110}
    for row, name in enumerate(("cpu", "memory")):
        asked = [pod.needs.request[row][1] for pod in pods]
        allocatable[name] = max(*asked, math.ceil(sum(asked) / utilisation / nodes))
    return Snapshot(nodes=tuple(Node(f"node-{n:02d}", allocatable) for n in range(nodes)), pods=tuple(pods))


def instances(nodes: int, per_node: int, priorities: int, utilisation: float) -> Iterator[Snapshot]:
    """The instances that count, in the order of their seeds."""
    for seed in count():
        snapshot = instance(nodes, per_node, priorities, utilisation, seed)
        if utilisation < CALLED_BELOW:
            greedy = planned(snapshot, load_policy(), LIMITS[0], solver="greedy")
            if greedy.plan.count.sum() == len(snapshot.pods):
                continue
        yield snapshot


def placed_by_priority(problem: Problem, plan: Plan) -> list[int]:
    """Pods placed of each priority, the highest first."""
    placed = Counter[int]()
    for priority, pods in zip(problem.job_priority.tolist(), plan.of_jobs(problem).tolist(), strict=True):
        placed[priority] += pods
    return [placed[priority] for priority in sorted(placed, reverse=True)]


def outcome(report: CycleReport, greedy: Mapping[str, int], ours: Mapping[str, int]) -> str:
    """One of OUTCOMES."""
    levels = [level for level in report.levels if level.name not in BEST_EFFORT]
    if report.greedy.count.sum() == report.problem.set_count.sum():
        return "no call"
    if not levels or levels[0].status.startswith("UNKNOWN"):
        return "failure"
    proven = all(level.gap == 0 for level in levels)
    if first_difference(greedy, ours) is None:
        return "already optimal" if proven else "other"
    return "better and optimal" if proven else "better"


def measure(snapshot: Snapshot, seconds: float) -> Json:
    """One instance under one limit. AssertionError where the plan returned is below greedy's."""
    report = planned(snapshot, load_policy(), seconds)
    greedy, ours = values(report, report.greedy), values(report, report.plan)
    differs = first_difference(greedy, ours)
    assert differs is None or differs[2] > differs[1], f"below greedy at {differs}"
    problem = report.problem
    return {
        "outcome": outcome(report, greedy, ours),
        "greedy_pods": placed_by_priority(problem, report.greedy),
        "pods": placed_by_priority(problem, report.plan),
        "greedy_cpu": used(problem, report.greedy, "cpu"),
        "cpu": used(problem, report.plan, "cpu"),
        "gap": max((min(1.0, level.gap) for level in report.levels if level.name not in BEST_EFFORT), default=1.0),
        "seconds": sum(report.seconds[stage] for stage in STAGES),
    }


def settled(row: Json) -> bool:
    """Whether more time cannot change the outcome."""
    return row["outcome"] in ("no call", "already optimal", "better and optimal")


# -- the report -------------------------------------------------------------------------------------------------------


def shares(rows: Sequence[Json]) -> list[str]:
    """% of each outcome, then by pods placed: more, as many, fewer in the first priority that differs."""
    of = Counter(row["outcome"] for row in rows)
    by_pods = Counter((row["pods"] > row["greedy_pods"]) - (row["pods"] < row["greedy_pods"]) for row in rows)
    cpu = statistics.mean(row["cpu"] - row["greedy_cpu"] for row in rows)
    pods = statistics.mean(sum(row["pods"]) - sum(row["greedy_pods"]) for row in rows)
    return [
        *(f"{100 * of[name] / len(rows):.1f}" for name in OUTCOMES),
        " / ".join(f"{100 * by_pods[sign] / len(rows):.1f}" for sign in (1, 0, -1)),
        f"{pods:+.2f}",
        f"{100 * cpu:+.1f}",
        f"{max(row['gap'] for row in rows):.2%}",
        f"{statistics.mean(row['seconds'] for row in rows):.2f}",
    ]


def report(rows: Mapping[int, Mapping[Cell, Sequence[Json]]], command: str) -> Iterator[str]:
    """The tables, as Markdown. `rows`: by limit and cell."""
    yield "# Decision quality: small clusters that are just too full\n"
    yield f"`{command}`, {machine()}.\n"
    yield "Method, outcomes, what is comparable: the head of [quality_priorities.py](quality_priorities.py). In %."
    yield "Every plan was verified, and none returned is below greedy's in the first level that differs.\n"
    by_pods = ["pods: more / as many / fewer", "pods, mean", "CPU, points"]
    head = ["", "instances", *OUTCOMES, *by_pods, "largest gap", "s, mean"]
    body = []
    for seconds, cells in rows.items():
        everything = [row for some in cells.values() for row in some]
        if everything:
            body.append([f"**{seconds} s**", str(len(everything)), *shares(everything)])
        known = PUBLISHED[seconds]
        body.append(
            [f"published, {seconds} s", "100 a cell", *(str(known.get(name, "")) for name in OUTCOMES), *[""] * 5]
        )
    yield from table(head, body)
    seconds, cells = next(iter(rows.items()))
    yield f"\nBy size, utilisation and priorities, {seconds} s:\n"
    sizes = {f"{nodes} nodes x {pods}": {(0, nodes), (1, pods)} for nodes, pods in product(NODES, PER_NODE)}
    groups = sizes | {f"utilisation {value}": {(3, value)} for value in UTILISATION}
    groups |= {f"priorities {value}": {(2, value)} for value in PRIORITIES}
    body = []
    for name, wanted in groups.items():
        some = [row for cell in cells if wanted <= set(enumerate(cell)) for row in cells[cell]]
        if some:
            body.append([name, str(len(some)), *shares(some)])
    yield from table(head, body)


def main() -> None:
    """Measure what is missing, print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring(parser)
    parser.add_argument("--instances", type=int, default=1, help="of each cell")
    arguments = parser.parse_args()
    cells, clock = list(product(NODES, PER_NODE, PRIORITIES, UTILISATION)), Clock(60 * arguments.minutes)
    Random(0).shuffle(cells)  # so that a run that is stopped has seen all kinds

    def measured(cell: Cell, number: int, seconds: int) -> Json:
        return measure(next(islice(instances(*cell), number, None)), seconds)

    names = {", ".join(map(str, (*cell, k))): (cell, k) for k in range(arguments.instances) for cell in cells}
    rows: dict[int, dict[Cell, list[Json]]] = {}
    known: dict[str, Json] = {}
    for seconds in LIMITS:
        done = {name: row for name, row in known.items() if settled(row)}
        left = [name for name in names if name not in done]
        parts = {f"{name}, {seconds} s": partial(measured, *names[name], seconds) for name in left}
        found = resumed(arguments.results, parts, clock)
        known = done | {name: found[f"{name}, {seconds} s"] for name in names if f"{name}, {seconds} s" in found}
        rows[seconds] = {cell: [] for cell in cells}
        # up to the first that is missing, so that what is settled early counts no more than the rest
        for name in takewhile(known.__contains__, names):
            rows[seconds][names[name][0]].append(known[name])
    command = f"python -m benchmarks.quality_priorities --results FILE --instances {arguments.instances}"
    print("\n".join(report(rows, command)))


if __name__ == "__main__":
    main()

"""How long a replay takes, in processor seconds.

    python -m benchmarks.simulate [--spec SPEC] [--minutes 30] > benchmarks/simulate.md

greedy, optimal  a week of a generated workload: 500 nodes, 20,000 jobs, a cycle every 60 s in which something changed
                 and somebody waits. Limits: 60 s and 15 min. A run that has not ended after so many minutes is cut off
                 there, and says at which day.
facts            PODS pods that are made, bound, end and are deleted, 20 at a time with a snapshot after each step:
                 through the service's cache, as JSON, and in the embedded cluster, as the frozen objects that come of
                 it. Beside it: the ratio.

Processor seconds depend on what else runs (cores share caches and clock): beside each stands how many times they are
those of a fixed loop of LOOP additions, run before and after. Exit 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from benchmarks.machine import machine
from solver_sched.cluster.binder import Placement
from solver_sched.cluster.cache import ClusterCache
from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.simulate.cluster import START, EmbeddedCluster
from solver_sched.simulate.replay import Run, Told, replay
from solver_sched.simulate.trace import Job, Pods, Trace
from solver_sched.simulate.workload import DAY, parsed, workload

SPEC = "nodes=500,jobs=20000,days=7,queues=5,load=0.7"
LIMITS = {"greedy": 60.0, "optimal": 900.0}
LOOP = 2_000_000
PODS, BATCH = 4_000, 20
BY_KIND = {(kind.kind, version): kind for kind in KINDS for version in kind.versions}


def loop() -> float:
    """Processor seconds of a fixed piece of work."""
    began, total = time.process_time(), 0
    for number in range(LOOP):
        total += number
    return time.process_time() - began


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, its processor seconds, and these in loops."""
    before, began = loop(), time.process_time()
    found = work()
    took = time.process_time() - began
    return found, took, 2 * took / (before + loop())


def through_the_cache() -> None:
    """Pods as the API server tells of them."""
    cache = ClusterCache(("solver-sched",), lambda: 0.0)

    def tell(thing: dict[str, Any], *, gone: bool = False) -> None:
        version = thing["apiVersion"]
        cache.apply(BY_KIND[thing["kind"], version], version, gone, msgspec.json.encode(thing))

    for first in range(0, PODS, BATCH):
        pods = [_pod(number) for number in range(first, first + BATCH)]
        for pod in pods:
            tell(pod)
        cache.snapshot(START)
        for pod in pods:
            pod["spec"]["nodeName"], pod["status"]["phase"] = "n", "Running"
            tell(pod)
        cache.snapshot(START)
        for pod in pods:
            pod["status"]["phase"] = "Succeeded"
            tell(pod)
            tell(pod, gone=True)
        cache.snapshot(START)


def _pod(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "ns",
            "uid": f"uid-{number}",
            "annotations": {"scheduling.k8s.io/group-name": f"job-{number}"},
            "ownerReferences": [{"kind": "Job", "name": f"job-{number}", "uid": "u", "controller": True}],
        },
        "spec": {
            "schedulerName": "solver-sched",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
        },
        "status": {"phase": "Pending"},
    }


def as_objects() -> None:
    """The same pods, each a job of its own, in the embedded cluster."""
    needs = Needs((("cpu", 1000), ("memory", 2**30), ("pods", 1)))
    jobs = tuple(Job("ns", f"job-{number}", (Pods(1, needs),), 10 * (number // BATCH), 5, 1) for number in range(PODS))
    nodes = (Node("n", {"cpu": 10**6, "memory": 2**50, "pods": 10**4}),)
    cluster = EmbeddedCluster(Trace("", nodes, (Queue("default"),), jobs))
    while cluster.next is not None:
        cluster.advance(cluster.next)
        waiting = [pod for pod in cluster.snapshot(START).pods if pod.node is None]
        cluster.bind([[Placement(pod, "n", "allocate")] for pod in waiting])
        cluster.snapshot(START)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--spec", default=SPEC)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--solvers", default="greedy,optimal")
    given = options.parse_args()
    trace = workload(parsed(given.spec))
    print(
        f"# Replays\n\n`python -m benchmarks.simulate --spec {given.spec} --minutes {given.minutes:g}`, {machine()}.\n"
    )
    print(f"{trace.source}: {len(trace.jobs):,} jobs, {trace.pods:,} pods.\n")
    print(
        "| what | processor seconds | limit, s | loops | cycles | ms a cycle | jobs ended | wait, mean s | GPUs used |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    passed: list[str] = []
    for solver in given.solvers.split(","):
        end = time.monotonic() + 60 * given.minutes

        def goes_on(so_far: Told, end: float = end) -> bool:
            if so_far.cycles % 500 == 0:
                print(so_far, file=sys.stderr, flush=True)
            return time.monotonic() < end

        (found, whole), took, loops = timed(partial(replay, trace, Run(solver), goes_on=goes_on))
        one = found["summary"]
        day = f" (cut off at day {found['series']['time'][-1] / DAY:.2f})" if not whole else ""
        print(
            f"| {solver}{day} | {took:.1f} | {LIMITS[solver]:g} | {loops:,.0f} | {one['cycles']:,} "
            f"| {1000 * took / max(1, one['cycles']):.1f} | {one['jobs']['ended']:,} | {one['wait']['mean']:,.0f} "
            f"| {one['utilisation'].get('nvidia.com/gpu', 0):.1%} |",
            flush=True,
        )
        if took > LIMITS[solver] or not whole:
            passed.append(f"- {solver}: {took:.1f} s{day}, limit {LIMITS[solver]:g} s")
    _, json, in_json = timed(through_the_cache)
    _, plain, in_plain = timed(as_objects)
    print(
        f"\nfacts: {PODS:,} pods through the service's cache {json:.2f} s ({in_json:.0f} loops), "
        f"as objects {plain:.2f} s ({in_plain:.0f} loops): x {json / plain:.1f}."
    )
    if passed:
        print("\n## Limits passed\n")
        print("\n".join(passed))
    sys.exit(bool(passed))


if __name__ == "__main__":
    main()

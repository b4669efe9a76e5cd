"""A day of churn: does anything grow that should not?

    python -m benchmarks.churn [--hours 24] > benchmarks/churn.md

The service's cache and loop, with hands that bind at once and kubelets that end pods, on a clock of their own: 50
nodes; every STEP seconds GANGS gangs of 4 pods arrive in QUEUES queues, run for half an hour and are deleted. Every pod
has labels and an owner of its own, so that whatever is remembered of each would show. Memory of this process after
collecting garbage, its threads and open files, each simulated hour. What a reader remembers goes up and down (it is
renewed now and then), so peaks are compared: exit 1 if that of the second half is more than GROWTH above that of the
first, or if threads or files grow at all.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import machine
from solver_sched.cluster.binder import Placement
from solver_sched.cluster.cache import ClusterCache
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.objects import Pod, PodGroup
from solver_sched.metrics import Metrics
from solver_sched.policy.watched import WatchedPolicy
from solver_sched.scheduler import Scheduler, Settings

BEGIN = 1_767_225_600
STEP, QUEUES, GANGS, SIZE, NODES, RUNS = 300, 20, 100, 4, 50, 1800
GROWTH = 0.05
BY_KIND = {(kind.kind, version): kind for kind in KINDS for version in kind.versions}
VOLCANO = "scheduling.volcano.sh/v1beta1"
Object = dict[str, Any]


class World:
    """A cluster on a clock of its own; also the hands of the scheduler."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.revision = 0
        self.cache = ClusterCache(("solver-sched",), lambda: float(self.now))
        self.pods: dict[str, Object] = {}
        self.running: deque[tuple[int, str]] = deque()
        self.bound = 0

    def tell(self, thing: Object, *, gone: bool = False) -> None:
        self.revision += 1
        thing["metadata"]["resourceVersion"] = str(self.revision)
        kind = BY_KIND[thing["kind"], thing["apiVersion"]]
        self.cache.apply(kind, thing["apiVersion"], gone, msgspec.json.encode(thing))

    def arrive(self, number: int) -> None:
        name = f"job-{number}"
        queue = f"queue-{number % QUEUES}"
        meta = {"name": name, "namespace": "ns", "uid": f"group-{number}", "creationTimestamp": stamp(self.now)}
        self.tell(
            {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": meta, "spec": {"minMember": SIZE, "queue": queue}}
        )
        for n in range(SIZE):
            pod: Object = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{n}",
                    "namespace": "ns",
                    "uid": f"pod-{number}-{n}",
                    "creationTimestamp": stamp(self.now),
                    "labels": {"app": name, "index": str(n)},
                    "annotations": {"scheduling.k8s.io/group-name": name},
                    "ownerReferences": [{"kind": "Job", "name": name, "uid": f"owner-{number}", "controller": True}],
                },
                "spec": {
                    "schedulerName": "solver-sched",
                    "priority": 0,
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": f"{1000 + number % 977}m"}}}],
                },
                "status": {"phase": "Pending"},
            }
            self.pods[f"ns/{name}-{n}"] = pod
            self.tell(pod)

    def end(self) -> None:
        """Pods whose time is over succeed and are deleted, and their groups with them."""
        while self.running and self.running[0][0] <= self.now:
            _, key = self.running.popleft()
            pod = self.pods.pop(key)
            pod["status"] |= {
                "phase": "Succeeded",
                "conditions": [{"type": "Ready", "lastTransitionTime": stamp(self.now)}],
            }
            self.tell(pod)
            self.tell(pod, gone=True)
            if key.endswith(f"-{SIZE - 1}"):
                name = pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
                meta = {"name": name, "namespace": "ns"}
                self.tell({"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": meta}, gone=True)

    # Hands

    def admit(self, group: PodGroup) -> None:
        """The phase is not read again here: an admitted group starts in the same cycle, or is admitted again."""

    def bind(self, gangs: Iterable[Sequence[Placement]]) -> None:
        for gang in gangs:
            for one in gang:
                self.cache.assume(one.pod, one.node)
                self.cache.bound(one.pod, one.node)
                pod = self.pods[one.pod.key]
                pod["spec"]["nodeName"] = one.node
                pod["status"] = {"phase": "Running", "startTime": stamp(self.now)}
                self.tell(pod)
                self.running.append((self.now + RUNS, one.pod.key))
                self.bound += 1

    def evict(self, evictions: Iterable[Eviction]) -> None:
        assert not list(evictions)

    def drain(self, seconds: float) -> bool:  # noqa: ARG002  # all is done at once
        return True

    def nominate(self, pod: Pod, node: str | None) -> None:
        self.cache.nominate(pod, node)


def stamp(seconds: int) -> str:
    """RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def resident() -> float:
    """MiB of this process, after collecting what is not used."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--hours", type=int, default=24)
    hours = options.parse_args().hours
    world = World()
    for n in range(NODES):
        # 2,400 pods of 1.5 CPUs run at a time: at 64 CPUs a node the queue would grow, and with it what is remembered
        status = {"allocatable": {"cpu": "96", "pods": "110"}}
        world.tell({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{n}"}, "status": status})
    for n in range(QUEUES):
        world.tell(
            {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": f"queue-{n}"}, "spec": {"weight": 1 + n % 3}}
        )
    scheduler = Scheduler(
        world.cache, world, WatchedPolicy("volcano"), Settings(time_limit=2.0), Metrics(), clock=lambda: world.now
    )
    rows, number, began = [], 0, time.monotonic()
    for hour in range(1, hours + 1):
        for _ in range(3600 // STEP):
            world.now += STEP
            world.end()
            for _ in range(GANGS):
                world.arrive(number)
                number += 1
            scheduler.cycle()
        files = len(list(Path("/proc/self/fd").iterdir()))
        rows.append((hour, number * SIZE, world.bound, resident(), threading.active_count(), files))
        print(f"hour {hour}: {rows[-1]}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    half = max(1, len(rows) // 2)
    first, second = (tuple(max(row[k] for row in part) for k in (3, 4, 5)) for part in (rows[:half], rows[-half:]))
    print(f"# {hours} simulated hours of churn\n\n{machine()}\n\n{time.monotonic() - began:.0f} s\n")
    print("| hour | pods made | bound | memory, MiB | threads | files |\n|---|---|---|---|---|---|")
    for row in rows:
        print("| {} | {:,} | {:,} | {:.1f} | {} | {} |".format(*row))
    sys.exit(second[0] > first[0] * (1 + GROWTH) or second[1] > first[1] or second[2] > first[2])


if __name__ == "__main__":
    main()

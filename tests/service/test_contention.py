"""Queues, priorities, budgets and elastic gangs that contend for too little room for half a minute (slow)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.controlplane.cluster import Cluster, gang
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.recorder import Recorder, Seen
from tests.service.service import Service
from tests.service.test_gangs import priority, queue

Start = Callable[..., Service]
CLASSES = {"low": 0, "middle": 10, "high": 100}


def fewest_available(recorder: Recorder, guarded: str, enough: int) -> int:
    """The least number of pods of the gang `guarded` that ran, once `enough` did."""
    running: dict[str, Seen] = {}
    least, begun = enough, False
    for seen in recorder.seen():
        if seen.kind == "pods" and seen.group == guarded:
            running[seen.uid] = seen
            count = sum(one.phase == "Running" and not one.leaving for one in running.values())
            begun |= count >= enough
            least = min(least, count) if begun else least
    assert begun, f"{enough} pods of {guarded} never ran"
    return least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whoever_gives_way_no_gang_is_broken_and_no_node_too_full(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start, seed: int
) -> None:
    """Six nodes of 8 CPUs. Six low pods under a budget that keeps four are there first; then 36 gangs of 1 to 5 pods,
    1 to 3 CPUs each, of three priorities and two queues 3:1. Some end by themselves, some take up to 4 s to go.
    """
    rng = random.Random(seed)
    cluster.nodes(6, {"cpu": 8})
    cluster.create(queue("wide", 3), queue("narrow", 1))
    cluster.apply(*(priority(name, value) for name, value in CLASSES.items()))
    spec = {"minAvailable": 4, "selector": {"matchLabels": {"app": "guarded"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "four"}, "spec": spec}
    cluster.create(budget, *gang("guarded", 6, {"cpu": 2}, 1, labels={"app": "guarded"}), namespace=namespace)
    minimums = {f"{namespace}/guarded": 1}
    with Recorder(cluster) as recorder:
        one = service(control_plane, scheduler_conf="preempting", time_limit="2s")
        cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 6, 40, "six run")
        cluster.wait_for(
            lambda: cluster.get("PodDisruptionBudget", "four", namespace, "policy/v1")["status"]["disruptionsAllowed"],
            20,
            "two of them may go",
        )
        for number in range(36):
            size = rng.randint(1, 5)
            minimum, level = rng.randint(1, size), rng.choice([*CLASSES])
            lasts = {"test/run-for": rng.choice(["3s", "6s", "12s"])} if rng.random() < 0.4 else {}
            ends = {"test/terminate-after": rng.choice(["0s", "2s", "4s"])}
            group, *pods = gang(
                f"g{number}",
                size,
                {"cpu": rng.randint(1, 3)},
                minimum,
                queue=rng.choice(["wide", "narrow"]),
                annotations=lasts | ends,
                priorityClassName=level,
            )
            group["spec"]["priorityClassName"] = level
            minimums[f"{namespace}/g{number}"] = minimum
            cluster.create(group, *pods, namespace=namespace)
            time.sleep(rng.random())
        recorder.wait_for_rest(12, within=120)
        assert recorder.broken(minimums) == []
        assert recorder.overcommits(rejected=True) == []
        assert recorder.moved() == []
        assert fewest_available(recorder, f"{namespace}/guarded", 4) >= 4
        ends_of = one.metrics("solver_sched_decisions_total")
        assert ends_of['kind="Evict",result="ok"'] == len([s for s in recorder.last().values() if s.leaving])
        assert [p for p in cluster.items("Pod", namespace) if p["status"].get("nominatedNodeName")] == []
        assert one.metrics("solver_sched_plan_refused_total") == {"": 0}
        assert one.metrics("solver_sched_broken_gangs") == {"": 0}
        assert one.metrics("solver_sched_cycles_total")['result="failed"'] == 0
    for name in CLASSES:
        cluster.delete("PriorityClass", name, api_version="scheduling.k8s.io/v1")

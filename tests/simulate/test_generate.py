from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from solver_sched.simulate.generate import GANG_MIX, GANG_SIZES, NODE_MIX, SHAPE_MIX, generate, generate_json

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]


def of(objects: Iterable[Json], kind: str) -> list[Json]:
    return [obj for obj in objects if obj["kind"] == kind]


def pods(objects: Iterable[Json], *, running: bool) -> list[Json]:
    return [pod for pod in of(objects, "Pod") if ("nodeName" in pod["spec"]) is running]


def amounts(quantities: Json) -> tuple[int, int, int]:
    """Milli-CPU, MiB, GPUs."""
    cpu, memory = quantities["cpu"], quantities["memory"]
    return (
        int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu),
        int(memory[:-2]) * (1024 if memory.endswith("Gi") else 1),
        int(quantities.get("nvidia.com/gpu", 0)),
    )


def request(pod: Json) -> tuple[int, int, int]:
    return amounts(pod["spec"]["containers"][0]["resources"]["requests"])


def free(objects: list[Json]) -> dict[str, tuple[int, ...]]:
    used: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for pod in pods(objects, running=True):
        used[pod["spec"]["nodeName"]].append(request(pod))
    out = {}
    for node in of(objects, "Node"):
        have, taken = amounts(node["status"]["allocatable"]), used[node["metadata"]["name"]]
        out[node["metadata"]["name"]] = tuple(h - sum(t[r] for t in taken) for r, h in enumerate(have))
    return out


def test_mixes_are_distributions() -> None:
    for mix in (NODE_MIX, SHAPE_MIX, GANG_MIX):
        assert sum(mix) == pytest.approx(1)


def test_same_seed_same_bytes_other_seed_others() -> None:
    one = generate_json(nodes=20, gangs=10, seed=7)
    assert one == generate_json(nodes=20, gangs=10, seed=7)
    assert one != generate_json(nodes=20, gangs=10, seed=8)
    assert json.loads(one)["items"] == generate(nodes=20, gangs=10, seed=7)


@pytest.mark.parametrize("load", ["pods", "gangs", "victims"])
@pytest.mark.parametrize("distinct", [False, True])
def test_no_node_is_over_full(load: Any, distinct: bool) -> None:
    objects = generate(nodes=100, gangs=5, occupancy=1.0, load=load, distinct=distinct)
    assert min(min(row) for row in free(objects).values()) >= 0


def test_distinct_nodes_have_distinct_free_vectors() -> None:
    # Loads are k units of 8 CPUs, g of them with a GPU: at most 81 + 117 + 39 + 9 = 246 free vectors of the four kinds.
    quantised = free(generate(nodes=1000, gangs=0))
    distinct = free(generate(nodes=1000, gangs=0, distinct=True))
    assert len(set(distinct.values())) == 1000
    assert len(set(quantised.values())) <= 246


def test_node_kinds_and_gang_sizes_follow_the_mix() -> None:
    objects = generate(nodes=2000, gangs=2000, occupancy=0.0)
    kinds = Counter(amounts(node["status"]["allocatable"])[2] for node in of(objects, "Node"))
    # 45 + 20 % have 8 GPUs, 25 % have 2, 10 % none; three standard deviations of 2,000 draws are below 3.4 points.
    assert kinds[8] / 2000 == pytest.approx(0.65, abs=0.034)
    assert kinds[2] / 2000 == pytest.approx(0.25, abs=0.034)
    sizes = Counter(group["spec"]["minMember"] for group in of(objects, "PodGroup"))
    assert set(sizes) == set(GANG_SIZES.tolist())
    assert sizes[1] / 2000 == pytest.approx(0.30, abs=0.034)


def test_pending_gangs_ask_for_about_twice_the_free_gpus() -> None:
    objects = generate(nodes=1000, gangs=500, seed=1)
    asked = sum(request(pod)[2] for pod in pods(objects, running=False))
    left = sum(row[2] for row in free(objects).values())
    assert 1.5 < asked / left < 2.8


def test_every_pod_of_a_gang_names_its_group_and_queue() -> None:
    objects = generate(nodes=10, gangs=8, queues=3, priorities=2, load="gangs")
    groups = {(g["metadata"]["namespace"], g["metadata"]["name"]): g for g in of(objects, "PodGroup")}
    members = Counter(
        (pod["metadata"]["namespace"], pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"])
        for pod in of(objects, "Pod")
    )
    assert members == {key: group["spec"]["minMember"] for key, group in groups.items()}
    assert {g["spec"]["queue"] for g in groups.values()} <= {q["metadata"]["name"] for q in of(objects, "Queue")}
    classes = {c["metadata"]["name"]: c["value"] for c in of(objects, "PriorityClass")}
    assert all(classes[p["spec"]["priorityClassName"]] == p["spec"]["priority"] for p in of(objects, "Pod"))


def test_load_of_pods_belongs_to_another_scheduler() -> None:
    objects = generate(nodes=10, gangs=2, load="pods")
    assert not any("schedulerName" in pod["spec"] for pod in pods(objects, running=True))
    assert {group["status"]["phase"] for group in of(objects, "PodGroup")} == {"Inqueue"}


def test_victims_fill_the_gpus_have_surplus_and_have_run_for_different_times() -> None:
    objects = generate(nodes=100, gangs=30, seed=1, load="victims", occupancy=1.0, budgets=True)
    have = sum(amounts(node["status"]["allocatable"])[2] for node in of(objects, "Node"))
    assert sum(row[2] for row in free(objects).values()) < 0.05 * have
    members = Counter(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in of(objects, "Pod"))
    running = [g for g in of(objects, "PodGroup") if g["status"]["phase"] == "Running"]
    above = [g for g in running if g["spec"]["minMember"] < members[g["metadata"]["name"]]]
    # 0.3 of the gangs, less those of one pod; three standard deviations
    many = [g for g in running if members[g["metadata"]["name"]] > 1]
    assert abs(len(above) / len(many) - 0.3) < 3 * (0.21 / len(many)) ** 0.5
    assert len({pod["status"]["startTime"] for pod in pods(objects, running=True)}) > 0.9 * len(running)
    assert len(of(objects, "PodDisruptionBudget")) == (len(running) + 3) // 4


def test_as_many_victims_as_asked_for() -> None:
    for number in (300, 800):
        objects = generate(nodes=100, gangs=0, load="victims", occupancy=1.0, running=number)
        assert len(pods(objects, running=True)) == number


def test_without_claims_nobody_may_take_from_anybody() -> None:
    objects = generate(nodes=10, gangs=20, load="victims", occupancy=1.0, claims=False)
    assert not any(queue["spec"]["reclaimable"] for queue in of(objects, "Queue"))
    lowest = min(pod["spec"]["priority"] for pod in pods(objects, running=True))
    assert max(pod["spec"]["priority"] for pod in pods(objects, running=False)) < lowest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": -1}, "nodes -1: must be from 0 to 1000000"),
        ({"occupancy": 1.5}, "occupancy 1.5: must be from 0 to 1"),
        ({"queues": 0}, "queues 0: must be from 1 to 10000"),
        ({"load": "heavy"}, "load 'heavy': must be one of pods, gangs, victims"),
        ({"surplus": -1.0}, "surplus -1.0: must be from 0 to 1"),
    ],
)
def test_arguments_out_of_range(arguments: Json, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_json(**({"nodes": 1, "gangs": 1} | arguments))


def test_an_empty_cluster_is_a_cluster() -> None:
    assert {obj["kind"] for obj in generate(nodes=0, gangs=0)} == {"Queue", "PriorityClass"}

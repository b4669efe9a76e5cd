"""The clusters of `models/instances`: worked out by hand, judged by the reference, planned by the scheduler."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import solver_sched
from tests import reference, tiny

FOLDER = Path(__file__).parent.parent / "models" / "instances"
INSTANCES = [tiny.read(path) for path in sorted(FOLDER.glob("*.yaml"))]
each = pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)


@pytest.mark.minizinc
@each
def test_reference_agrees_with_the_hand(instance: tiny.Instance) -> None:
    best = reference.decide(instance.cluster, instance.grain, instance.k)
    assert {name: best.levels.get(name) for name in instance.levels} == instance.levels
    assert {job: best.placed[job] for job in instance.placed} == instance.placed
    assert {job: pods for job, pods in best.evicted.items() if pods} == instance.evicted
    assert {job: pods for job, pods in best.moved.items() if pods} == instance.moved


@each
def test_plan_is_the_one_worked_out(instance: tiny.Instance) -> None:
    plan = solver_sched.plan(tiny.objects(instance.cluster), tiny.policy(instance.cluster))
    assert not plan["snapshot"]["problems"]
    placed, leaving = pods_per_job(plan, "Bind", "Nominate"), pods_per_job(plan, "Evict")
    moved = pods_per_job({"decisions": [d for d in plan["decisions"] if "to" in d]}, "Evict")
    assert {job: placed[job] for job in instance.placed} == instance.placed
    assert leaving - moved == instance.evicted
    assert moved == instance.moved
    # Gaps are for large clusters: on these every level is proven.
    assert {level["status"] for level in plan["levels"]} == {"OPTIMAL"}


def pods_per_job(plan: dict[str, Any], *kinds: str) -> Counter[str]:
    return Counter(d["podGroup"].removeprefix("default/") for d in plan["decisions"] if d["kind"] in kinds)


def test_instances_are_worked_out_in_full() -> None:
    assert len(INSTANCES) >= 25
    for instance in INSTANCES:
        pending = {name for name, job in instance.cluster.jobs.items() if any(not p.node for p in job.pods)}
        assert set(instance.placed) == pending, instance.name
        assert instance.levels, instance.name
        assert instance.cluster.evicting or not instance.evicted, instance.name
        assert instance.cluster.moving or not instance.moved, instance.name


def test_readme_lists_every_instance_under_its_scenes() -> None:
    rows = [line.split("|") for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("|")]
    table = {row[1].strip(): set(row[3].strip().split(", ")) for row in rows[2:]}
    covered = {scene: {i.name for i in INSTANCES if scene in i.covers.split(", ")} for scene in table}
    assert table == covered
    assert {i.name for i in INSTANCES} == set().union(*table.values())

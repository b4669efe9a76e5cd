"""The shipped examples hold what their comments promise."""

from __future__ import annotations

from collections import Counter
from importlib import resources
from typing import Any

import yaml

import solver_sched
from solver_sched.cluster.templates import HOLD
from solver_sched.cluster.workloads import expand

Json = dict[str, Any]


def text(named: str) -> str:
    return (resources.files("solver_sched") / "examples" / named).read_text(encoding="utf-8")


def example(named: str) -> list[Json]:
    """The objects of a shipped file after expansion, which must find nothing to complain about."""
    objects, problems = expand(list(yaml.safe_load_all(text(named))))
    assert problems == []
    return objects


def gang_of(pod: Json) -> str | None:
    name: str | None = pod["metadata"].get("annotations", {}).get("scheduling.k8s.io/group-name")
    return name


def test_the_job_of_the_talks_fills_its_group() -> None:
    objects = example("kube-batch-talk.yaml")
    (group,) = [obj for obj in objects if obj["kind"] == "PodGroup"]
    pods = [obj for obj in objects if obj["kind"] == "Pod"]
    assert [gang_of(pod) for pod in pods] == [group["metadata"]["name"]] * group["spec"]["minMember"]
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"kube-batch"}


def test_every_group_of_the_cluster_has_its_pods_and_one_pod_has_no_group() -> None:
    objects = example("cluster.yaml")
    groups = {obj["metadata"]["name"]: obj["spec"]["minMember"] for obj in objects if obj["kind"] == "PodGroup"}
    members = Counter(gang_of(obj) for obj in objects if obj["kind"] == "Pod")
    assert len([obj for obj in objects if obj["kind"] == "Node"]) == 12
    assert {name for name, least in groups.items() if members[name] < least} == set()
    assert set(members) - set(groups) == {None, "no-such-group"}


def test_the_suspended_job_of_the_cluster_is_held() -> None:
    pods = [obj for obj in example("cluster.yaml") if obj["kind"] == "Pod"]
    held = {pod["metadata"]["name"] for pod in pods if HOLD in pod["metadata"].get("annotations", {})}
    assert held == {"audit-0"}


def test_each_gang_of_the_cluster_starts_or_waits_for_the_reason_told() -> None:
    plan = solver_sched.plan(yaml.safe_load_all(text("cluster.yaml")))
    reasons = {g["name"]: g["reason"] and g["reason"]["code"] for g in plan["podGroups"] if g["pending"] or g["bound"]}
    assert reasons == {
        "production/audit-0": "Suspended",
        "production/etl": None,
        "production/reindex": "QueueClosed",
        "production/scale-out": "QueueCapability",
        "research/debug-shell": None,
        "research/embeddings": None,
        "research/llm-train": None,
        "research/no-such-group": "GroupMissing",
        "research/pretrain": "Resources",
        "research/render": "Predicates",
        "research/sweep": "Lost",
    }


def test_greedy_spreads_the_single_gpus_and_cannot_start_the_training() -> None:
    plan = solver_sched.plan(yaml.safe_load_all(text("cluster.yaml")), solver="greedy")
    bound = {group["name"]: group["bound"] for group in plan["podGroups"]}
    assert (bound["research/embeddings"], bound["research/llm-train"]) == (4, 0)


def test_all_six_pods_of_the_talks_start() -> None:
    plan = solver_sched.plan(yaml.safe_load_all(text("kube-batch-talk.yaml")))
    (group,) = plan["podGroups"]
    assert (group["name"], group["bound"], group["pending"]) == ("default/mygroup", 6, 0)

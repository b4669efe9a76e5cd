"""Each example can be planned without a cluster, and a real API server takes its objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import solver_sched
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.deploy.rendered import DEPLOY, Object, read

EXAMPLES = sorted(str(path.relative_to(DEPLOY)) for path in (DEPLOY / "examples").rglob("*.yaml"))
BORROWER, OWNER = "examples/reclaim/1-borrower.yaml", "examples/reclaim/2-owner.yaml"


def node(name: str) -> Object:
    room = {"cpu": "4", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


NODES = [node("n1"), node("n2")]


def running(plan: dict[str, Any], job: Object) -> list[Object]:
    """The pods of `job` that the plan binds, as its controller and kubelets leave them."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": "u", "controller": True}
    template = job["spec"]["template"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"]
            | {"namespace": "default", "name": decision["pod"].partition("/")[2], "ownerReferences": [owner]},
            "spec": template["spec"] | {"nodeName": decision["node"]},
            "status": {"phase": "Running"},
        }
        for decision in plan["decisions"]
        if decision["kind"] == "Bind"
    ]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if "reclaim" not in example])
def test_every_group_starts(example: str) -> None:
    """Two nodes of 4 CPUs and 2 GPUs have room for any one example."""
    plan = solver_sched.plan([*NODES, *read(example)])
    assert plan["snapshot"]["problems"] == []
    (group,) = plan["podGroups"]
    asked = sum(o["kind"] == "Pod" for o in read(example))
    asked += sum(o["spec"].get("parallelism", 1) for o in read(example) if o["kind"] == "Job")
    assert (group["bound"], group["pending"]) == (asked, 0)
    assert group["minMember"] <= asked
    assert plan["certificate"]["status"] == "optimal"


def test_the_owner_reclaims_its_half() -> None:
    # 8 CPUs, two queues of equal weight: 4 each. research holds 8 of them, 1 a pod, and needs 2.
    plan = solver_sched.plan([*NODES, *read(BORROWER)])
    pods = running(plan, next(o for o in read(BORROWER) if o["kind"] == "Job"))
    assert len(pods) == 8
    borrower = [o | {"metadata": o["metadata"] | {"uid": "u"}} if o["kind"] == "Job" else o for o in read(BORROWER)]

    plan = solver_sched.plan([*NODES, *borrower, *pods, *read(OWNER)], policy="preempting")
    assert plan["snapshot"]["problems"] == []
    groups = {group["name"]: group for group in plan["podGroups"]}
    assert groups["default/forecast"]["nominated"] == 4
    assert groups["default/sweep"]["running"] == 4
    evicted = [d for d in plan["decisions"] if d["kind"] == "Evict"]
    assert [(d["action"], d["for"]) for d in evicted] == [("reclaim", "default/forecast")] * 4


def test_without_an_action_that_evicts_the_owner_waits() -> None:
    plan = solver_sched.plan([*NODES, *read(BORROWER)])
    pods = running(plan, next(o for o in read(BORROWER) if o["kind"] == "Job"))
    queues = [o for o in read(BORROWER) if o["kind"] in ("Queue", "PodGroup")]
    plan = solver_sched.plan([*NODES, *queues, *pods, *read(OWNER)])
    groups = {group["name"]: group for group in plan["podGroups"]}
    assert groups["default/forecast"]["pending"] == 4


def test_the_manifests_of_kube_batch_are_for_kube_batch() -> None:
    (job,) = (o for o in read("examples/kube-batch-talk.yaml") if o["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["schedulerName"] == "kube-batch"
    apis = {o["apiVersion"] for o in read("examples/kube-batch-talk.yaml") if o["kind"] in ("Queue", "PodGroup")}
    assert apis == {"scheduling.sigs.dev/v1alpha2"}
    others = solver_sched.plan([*NODES, *read("examples/kube-batch-talk.yaml")], scheduler_names=["solver-sched"])
    assert [d for d in others["decisions"] if d["kind"] == "Bind"] == []


def test_the_table_names_every_example() -> None:
    table = (DEPLOY / "examples" / "README.md").read_text()
    for example in EXAMPLES:
        assert f"`{example.removeprefix('examples/').replace('reclaim/', '')}`" in table, example


def test_a_real_server_takes_them(start_control_plane: Callable[..., ControlPlane]) -> None:
    require("kubectl")
    cluster = start_control_plane(
        components=(),
        feature_gates={"GenericWorkload": True},
        runtime_config=("api/beta=true", "scheduling.k8s.io/v1beta1=true"),
    ).cluster
    cluster.kubectl("create", "-f", str(Path(__file__).with_name("scheduler-plugins.yaml")))
    cluster.kubectl("wait", "--for=condition=Established", "crd/podgroups.scheduling.x-k8s.io", "--timeout=20s")
    for example in EXAMPLES:
        cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(DEPLOY / example))

"""A control plane starts, serves what tests need, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.controlplane.cluster import Cluster, StatusError, gang, named, pod
from tests.controlplane.controlplane import ROOT, ControlPlane


def test_a_job_makes_pods_and_the_kinds_of_gangs_are_served(cluster: Cluster, namespace: str) -> None:
    template = {"spec": pod("x", {"cpu": 1})["spec"] | {"restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 2, "completions": 2, "template": template},
    }
    cluster.apply(job, *gang("g", 2, {"cpu": 1}), namespace=namespace)
    cluster.wait_for(lambda: len(cluster.items("Pod", namespace)) == 4, 20, "the pods of the job are made")
    assert list(named(cluster.items("PodGroup", namespace, "scheduling.volcano.sh/v1beta1"))) == ["g"]
    assert "g-0" in cluster.kubectl("get", "pods", "-n", namespace)


def test_a_disruption_budget_is_kept(cluster: Cluster, namespace: str) -> None:
    """Of two pods one may go: the first eviction is granted, the second refused."""
    cluster.nodes(1, {"cpu": 2})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
    }
    cluster.create(budget, *(pod(name, labels={"app": "x"}) for name in "ab"), namespace=namespace)
    for name in "ab":
        cluster.bind(name, "node-0", namespace)

    def allowed() -> bool:
        found = cluster.get("PodDisruptionBudget", "one", namespace, "policy/v1")
        return bool(found["status"].get("disruptionsAllowed") == 1)

    cluster.wait_for(allowed, 20, "one disruption is allowed")

    def evict(name: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    evict("a")
    with pytest.raises(StatusError, match="429"):
        evict("b")


def test_a_service_account_may_do_what_its_role_says(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    cluster.apply(account, role, binding, namespace=namespace)
    with control_plane.account("reader", namespace) as reader:
        cluster.wait_for(lambda: reader.request("GET", f"/api/v1/namespaces/{namespace}/pods"), 5, "it may list")
        with pytest.raises(StatusError, match="403 Forbidden"):
            reader.create(pod("x"), namespace=namespace)


def test_native_groups_are_served_where_they_are_asked_for(
    start_control_plane: Callable[..., ControlPlane],
) -> None:
    """With kube-scheduler, which places ordinary pods."""
    running = start_control_plane(
        components=("kube-controller-manager", "kube-scheduler", "kubelet"),
        feature_gates={"GenericWorkload": True},
        runtime_config=("api/beta=true", "scheduling.k8s.io/v1beta1=true"),
    )
    cluster = running.cluster
    cluster.nodes(1, {"cpu": 1})
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    cluster.create(group, pod("plain", {"cpu": 1}, schedulerName="default-scheduler"), namespace="default")
    cluster.wait_for(lambda: cluster.phases("default") == {"plain": "Running"}, 30, "kube-scheduler has placed it")


def test_nothing_survives_a_killed_test_run(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A process that has started a control plane is killed with SIGKILL: soon all of its programs are gone."""
    code = (
        "import sys, time; from pathlib import Path; from tests.controlplane.controlplane import ControlPlane\n"
        "with ControlPlane(Path(sys.argv[1]), components=('kubelet',)) as running:\n"
        "    print(*(p.pid for p in running.running.values()), running.watchdog.pid, flush=True); time.sleep(600)"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert runner.stdout is not None
    pids = [int(pid) for pid in runner.stdout.readline().split()]
    assert len(pids) == 4
    assert all(alive(pid) for pid in pids)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    runner.stdout.close()
    until = time.monotonic() + 10
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return told.strip() != "" and not told.startswith("Z")


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(binaries.MissingError, match=rf"^etcd is not in {tmp_path} \(make control-plane\)$"):
        binaries.binary("etcd")

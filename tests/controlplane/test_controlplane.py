"""A control plane starts, serves what tests need, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.controlplane.cluster import Cluster, StatusError, gang, named, pod
from tests.controlplane.controlplane import ROOT, ControlPlane
from tests.controlplane.fixtures import require


def test_a_job_makes_pods_and_the_kinds_of_gangs_are_served(cluster: Cluster, namespace: str) -> None:
    template = {"spec": pod("x", {"cpu": 1})["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 2, "completions": 2, "template": template},
    }
    cluster.apply(job, *gang("g", 2, {"cpu": 1}), namespace=namespace)
    cluster.wait_for(lambda: len(cluster.items("Pod", namespace)) == 4, 60, "the pods of the job are made")
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

    cluster.wait_for(allowed, 60, "one disruption is allowed")

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

        def may_list() -> bool:
            with suppress(StatusError):
                return bool(reader.request("GET", f"/api/v1/namespaces/{namespace}/pods"))
            return False

        cluster.wait_for(may_list, 30, "its role has come into force")
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


def test_a_missing_program_is_a_skip_and_in_ci_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    message = rf"^etcd is not in {tmp_path} \(make control-plane\)$"
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=message):
        require("etcd")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=message):
        require("etcd")


def test_a_build_appears_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `go` that fails leaves nothing; once one has built, it is not called again."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    compiler = tmp_path / "go"

    def write(install: str) -> None:
        compiler.write_text(f"#!/bin/sh\n[ $1 = env ] && echo go1.99.0 && exit 0\n{install}\n")
        compiler.chmod(0o755)

    write("touch $GOBIN/server; exit 1")
    monkeypatch.delenv("CI", raising=False)
    assert binaries.main() == 0
    assert "NOTE: the control plane could not be built" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    assert binaries.main() == 1
    assert list(binaries.cache().iterdir()) == []

    write("mkdir $GOBIN && touch $GOBIN/server && chmod +x $GOBIN/server")
    assert binaries.main() == 0
    assert binaries.binary("etcd").parent == binaries.folder()
    write("exit 1")
    assert binaries.main() == 0
    assert list(binaries.cache().iterdir()) == [binaries.folder()]

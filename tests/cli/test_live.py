"""Commands on a live cluster, which a loopback server plays: which one is read, and what is said if that fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from solver_sched.cli.app import app
from solver_sched.cluster.sources import load_snapshot
from solver_sched.snapshot import load
from tests.controlplane.binaries import binary
from tests.controlplane.cluster import Cluster, gang
from tests.controlplane.controlplane import ROOT, ControlPlane
from tests.lister import Json, Lister, kubeconfig

DIALECT = "scheduling.volcano.sh/v1beta1"
RBAC = "rbac.authorization.k8s.io/v1"
SECRET = "hunter2"


def node(name: str, cpu: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu}}}


def group(name: str, **status: Any) -> Json:
    meta = {"namespace": "ml", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": DIALECT, "kind": "PodGroup", "metadata": meta, "spec": {"minMember": 1}, "status": status}


def pod(name: str, of: str, cpu: str, **metadata: Any) -> Json:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}, "env": [{"name": "T", "value": SECRET}]}
    meta = {"name": name, "annotations": {"scheduling.k8s.io/group-name": of, "note": SECRET}, **metadata}
    spec = {"schedulerName": "volcano", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.fixture
def lister() -> Iterator[Lister]:
    """4 CPU; ml/train asks 3 of them, ml/wide 5."""
    live = {"namespace": "ml", "uid": "u"}
    objects = [node("n1", "4"), group("train"), group("wide")]
    with Lister([*objects, pod("train-0", "train", "3", **live), pod("wide-0", "wide", "5", **live)]) as running:
        yield running


@pytest.fixture
def here(lister: Lister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's kubeconfig, with namespace ml."""
    file = kubeconfig(tmp_path / "config", lister.url, namespace="ml")
    monkeypatch.setenv("KUBECONFIG", str(file))
    # the client reads the variable when it is imported
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return file


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def bound(result: Any) -> dict[str, str]:
    return {row["pod"]: row["node"] for row in json.loads(result.stdout)["decisions"] if row["kind"] == "Bind"}


GREEDY = ("--solver", "greedy", "-o", "json")


@pytest.mark.usefixtures("here")
def test_without_files_the_cluster_of_the_current_context_is_planned(lister: Lister) -> None:
    result = run("plan", *GREEDY)
    assert (result.exit_code, result.stderr) == (0, "")
    assert bound(result) == {"ml/train-0": "n1"}
    assert "/api/v1/pods?limit=500" in lister.asked
    assert not [line for line in lister.asked if "limitranges" in line or "secrets" in line]


@pytest.mark.usefixtures("here")
def test_a_live_cluster_is_compared_on_one_snapshot(lister: Lister) -> None:
    """Both policies see the pods as they were listed once."""
    result = run("compare", "--policies", "default,packing", "--solvers", "greedy", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [(one["name"], one["pods"]["bound"]) for one in json.loads(result.stdout)["runs"]] == [
        ("greedy default", 1),
        ("greedy packing", 1),
    ]
    assert lister.asked.count("/api/v1/pods?limit=500") == 1


def test_kubeconfig_and_context_name_the_cluster(lister: Lister, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "other", lister.url, context="prod")
    assert bound(run("plan", "--kubeconfig", str(file), *GREEDY)) == {"ml/train-0": "n1"}
    assert bound(run("plan", "--kubeconfig", str(file), "--context", "prod", *GREEDY)) == {"ml/train-0": "n1"}
    wrong = run("plan", "--kubeconfig", str(file), "--context", "dev", *GREEDY)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    (line,) = wrong.stderr.splitlines()
    assert str(file) in line
    assert "dev" in line


@pytest.mark.usefixtures("here")
def test_files_alone_ask_no_server(lister: Lister, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": [node("n2", "9"), group("g"), pod("g-0", "g", "1")]}))
    assert run("plan", "-f", str(file), *GREEDY).exit_code == 0
    assert lister.asked == []


@pytest.mark.usefixtures("here")
def test_what_if_puts_files_on_top_of_the_cluster(lister: Lister, tmp_path: Path) -> None:
    """A second node of 8 CPU: now ml/wide fits too. Its limit range would be read for pods of files."""
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump(node("n2", "8")))
    both = {"ml/train-0", "ml/wide-0"}
    for options in (["--what-if"], ["--context", "there"]):
        assert set(bound(run("plan", "-f", str(file), *options, *GREEDY))) == both
    assert "/api/v1/limitranges?limit=500" in lister.asked


@pytest.mark.usefixtures("here")
def test_new_objects_belong_to_the_namespace_of_the_context_or_of_the_option(tmp_path: Path) -> None:
    """A pod of a file that names no namespace, of a group of ml: kubectl apply would put it there."""
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod("new", "train", "1")))
    assert set(bound(run("plan", "-f", str(file), "--what-if", *GREEDY))) == {"ml/train-0", "ml/new"}
    elsewhere = run("plan", "-f", str(file), "--what-if", "-n", "web", *GREEDY)
    waits = {group["name"]: group["reason"] for group in json.loads(elsewhere.stdout)["podGroups"]}
    assert waits["web/train"]["code"] == "GroupMissing"


@pytest.mark.usefixtures("here")
def test_what_a_file_says_of_a_live_object_counts(tmp_path: Path) -> None:
    """n1 with 9 CPU instead of 4; and one line says that there are two of it."""
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(node("n1", "9")))
    result = run("plan", "-f", str(file), "--what-if", *GREEDY)
    assert set(bound(result)) == {"ml/train-0", "ml/wide-0"}
    (problem,) = json.loads(result.stdout)["snapshot"]["problems"]
    assert problem["message"] == "is given twice and differs: the first one is used"


@pytest.mark.usefixtures("here")
def test_explain_takes_the_name_in_the_namespace_of_the_context() -> None:
    result = run("explain", "wide", "--solver", "greedy")
    assert result.exit_code == 1
    assert result.stdout.startswith("Pod group ml/wide")
    other = run("explain", "wide", "-n", "web", "--solver", "greedy")
    assert (other.exit_code, other.stdout) == (2, "")
    assert "no pod group 'web/wide'" in other.stderr


@pytest.mark.usefixtures("here")
def test_the_present_of_a_live_cluster_is_now(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    before = int(time.time())
    assert run("snapshot", "-o", str(file)).exit_code == 0
    assert before <= load(file.read_bytes()).now <= time.time()
    run("snapshot", "-o", str(file), "--now", "2026-01-02T03:04:05Z")
    assert load(file.read_bytes()).now == 1767323045


@pytest.mark.usefixtures("here")
def test_a_snapshot_of_the_cluster_plans_like_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    written = run("snapshot", "-o", str(file))
    assert (written.exit_code, written.stdout) == (0, "")
    assert written.stderr == f"solver-sched: 1 node, 2 pods, 2 pod groups, 0 queues in {file}\n"
    assert SECRET not in file.read_text()
    assert load_snapshot(file) == load(file.read_bytes())
    planned, again = run("plan", *GREEDY), run("plan", "-f", str(file), *GREEDY)
    assert json.loads(planned.stdout)["decisions"] == json.loads(again.stdout)["decisions"]
    printed = run("snapshot", "--now", "1")
    run("snapshot", "--now", "1", "-o", str(file))
    assert load(printed.stdout.encode()) == load(file.read_bytes())
    assert printed.stderr == "solver-sched: 1 node, 2 pods, 2 pod groups, 0 queues\n"


@pytest.mark.usefixtures("here")
def test_what_may_not_be_listed_is_said_and_the_rest_is_done(lister: Lister, tmp_path: Path) -> None:
    lister.refusals["/apis/policy/v1/poddisruptionbudgets?limit=500"] = 403
    line = "cluster: PodDisruptionBudget: verb list on poddisruptionbudgets.policy is not granted"
    planned = run("plan", *GREEDY)
    assert planned.exit_code == 0
    (problem,) = json.loads(planned.stdout)["snapshot"]["problems"]
    assert problem["message"].startswith("verb list on poddisruptionbudgets.policy is not granted")
    for command in (["snapshot", "-o", str(tmp_path / "s.json")], ["queue", "list"], ["job", "list"]):
        result = run(*command)
        assert result.exit_code == 0
        assert result.stderr.startswith(f"solver-sched: warning: {line}")
    refused = run("plan", "--strict", *GREEDY)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"solver-sched: {line}")
    assert run("snapshot", "--strict").exit_code == 2


COMMANDS = (["plan"], ["explain", "a"], ["snapshot"], ["queue", "list"], ["job", "list"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_server_that_answers_nothing_useful_is_one_line(command: list[str], here: Path, lister: Lister) -> None:
    lister.instead = (401, {"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"})
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "solver-sched: cluster: cannot be read: 401 Unauthorized: Unauthorized\n"


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lister() as lister:
        file = kubeconfig(tmp_path / "config", lister.url)
    result = run("plan", "--kubeconfig", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("solver-sched: cluster: cannot be read: ")
    assert "Connection refused" in line


def test_ctrl_c_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    """It takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        file = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{hanging.getsockname()[1]}")
        command = [sys.executable, "-m", "solver_sched.cli", "snapshot", "--kubeconfig", str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        hanging.settimeout(20)
        with hanging.accept()[0]:
            for _ in range(10):  # one that comes in the wrong moment is lost, on a busy machine: it is pressed again
                process.send_signal(signal.SIGINT)
                try:
                    out, err = process.communicate(timeout=2)
                    break
                except subprocess.TimeoutExpired:
                    continue
            else:
                process.kill()
                pytest.fail("Ctrl-C did not end it")
    assert (out, err, process.returncode) == ("", "", 130)


def test_on_a_real_server_a_user_with_few_rights_reads_what_he_may(
    cluster: Cluster, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Nodes and pods, but no group: one line for each kind that is served, none for those that are not."""
    cluster.nodes(1, {"cpu": 4})
    cluster.apply(*gang("g", 2, {"cpu": 1}), namespace=namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer"}}
    cluster.apply(account, namespace=namespace)
    viewer = control_plane.account("viewer", namespace)
    may = {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["list"]}
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": f"few-{namespace}"}, "rules": [may]}
    binding = {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"few-{namespace}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"few-{namespace}"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}],
    }
    cluster.apply(role, binding)
    file = tmp_path / "snapshot.json"

    def done() -> Any:
        """The server learns of a binding a moment after it is made."""
        result = run("snapshot", "--kubeconfig", str(viewer.kubeconfig), "-o", str(file))
        return result if result.exit_code == 0 and load(file.read_bytes()).pods else None

    result = cluster.wait_for(done, 10, "the pods are read")
    *warnings, summary = result.stderr.splitlines()
    assert summary.startswith("solver-sched: 1 node, 2 pods, 0 pod groups")
    refused = {line.partition("verb list on ")[2].partition(" is not granted")[0] for line in warnings}
    assert {"podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh", "jobs.batch"} <= refused
    assert not refused & {"nodes", "pods", "namespaces", "jobs.batch.volcano.sh", "podgroups.scheduling.x-k8s.io"}
    assert len(warnings) == len(refused)


def test_kubectl_runs_and_completes_the_plugin(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The two scripts on PATH, as an installation puts them there."""
    cluster.nodes(1, {"cpu": 4})
    cluster.apply(*gang("g", 2, {"cpu": 1}), namespace=namespace)
    for name, entry in (("kubectl-solver_sched", "plugin"), ("kubectl_complete-solver_sched", "complete")):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom solver_sched.cli import {entry}\n{entry}()\n")
        script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "PYTHONPATH": str(ROOT),
    }

    def kubectl(*arguments: str) -> str:
        command = [str(binary("kubectl")), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    listed = kubectl("solver-sched", "job", "list", "-n", namespace, "--scheduler-name", "solver-sched")
    assert listed.split()[:9] == ["NAME", "QUEUE", "PRIORITY", "PHASE", "MIN", "RUNNING", "PENDING", "AGE", "POSITION"]
    assert listed.split()[9] == "g"
    planned = json.loads(kubectl("solver-sched", "plan", *GREEDY))
    assert {row["pod"] for row in planned["decisions"] if row["kind"] == "Bind"} == {
        f"{namespace}/g-0",
        f"{namespace}/g-1",
    }
    assert "list" in kubectl("__complete", "solver-sched", "queue", "").splitlines()

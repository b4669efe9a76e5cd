"""How the service ends, changes its policy, only looks, shows its work, and loses its solver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.controlplane.cluster import Cluster, gang, pod
from tests.controlplane.controlplane import ROOT, ControlPlane
from tests.controlplane.proxy import Faults, Proxy
from tests.controlplane.recorder import Recorder
from tests.service.service import COMMAND, Service

Start = Callable[..., Service]
POLICIES = ROOT / "models" / "policies"


def test_sigterm_lets_what_was_decided_end_and_decides_no_more(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """Thirty gangs of four, at 40 binds a second: it is told to end when most of them are decided on, and few bound.
    What was decided is sent all the same, so that no gang is left half bound, and pods that come later wait.
    """
    cluster.nodes(10, {"cpu": 16})
    with Recorder(cluster) as recorder:
        one = service(control_plane, kube_api_qps=40, kube_api_burst=4)
        cluster.create(*(o for i in range(30) for o in gang(f"g{i}", 4, {"cpu": 1})), namespace=namespace)
        one.wait_for(lambda: any(cycle["bound"] > 40 for cycle in one.cycles()), 40, "many are decided on")
        one.process.send_signal(signal.SIGTERM)
        one.wait_for(lambda: one.said("ending: no new cycle"), 10, "it ends")
        assert one.said("ending: no new cycle")[0]["inFlight"] > 0, "in the middle"
        cluster.create(*gang("late", 2, {"cpu": 1}), namespace=namespace)
        assert one.end() < 25
        lines = [line["msg"] for line in one.log()]
        assert "cycle" not in lines[lines.index("ending: no new cycle") :]
        recorder.wait_for_rest(2)
        assert recorder.broken({f"{namespace}/g{i}": 4 for i in range(30)}) == []
        assert all(bind.group != f"{namespace}/late" for bind in recorder.binds())


def test_a_changed_policy_is_taken_and_a_bad_one_refused(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start, tmp_path: Path
) -> None:
    """A node of 1 CPU with a low pod. A high one waits, as the default policy moves nobody; then the file becomes
    nonsense, which changes nothing; then one that preempts, and the high pod runs. All this without a restart.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text((POLICIES / "default.yaml").read_text())
    cluster.nodes(1, {"cpu": 1})
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    cluster.apply(high)
    one = service(control_plane, scheduler_conf=policy, expected=["the changed policy is refused"])
    cluster.create(pod("low", {"cpu": 1}), namespace=namespace)
    cluster.wait_for(lambda: cluster.phases(namespace) == {"low": "Running"}, 30, "the low one runs")
    cluster.create(pod("high", {"cpu": 1}, priorityClassName="high"), namespace=namespace)
    one.wait_for(lambda: one.cycles()[-1]["pending"] == 1, 20, "the high one waits")
    policy.write_text("actions: nonsense\n")
    reloads = partial(one.metrics, "solver_sched_policy_reloads_total")
    one.wait_for(lambda: one.said("the changed policy is refused"), 20, "nonsense is refused")
    assert "nonsense" in one.said("the changed policy is refused")[0]["msg"]
    time.sleep(2)
    assert cluster.phases(namespace) == {"low": "Running", "high": "Pending"}
    policy.write_text((POLICIES / "preempting.yaml").read_text())
    one.wait_for(lambda: one.said("the changed policy is in use"), 20, "the other is taken")
    cluster.wait_for(lambda: cluster.phases(namespace) == {"high": "Running"}, 30, "the high one runs")
    assert {labels: count for labels, count in reloads().items() if count} == {
        'result="ok"': 1,
        'result="refused"': 1,
    }
    cluster.delete("PriorityClass", "high", api_version="scheduling.k8s.io/v1")


def test_a_dry_run_decides_and_writes_nothing(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start, tmp_path: Path
) -> None:
    """Every request passes a proxy that writes them down: all are reads. What it decides is at /plan, and what it
    decided on at /snapshot: `solver-sched plan` makes the same of it.
    """
    cluster.nodes(3, {"cpu": 4})
    sizes = {"a": 3, "b": 2, "c": 5, "d": 4, "e": 9}
    with Proxy(control_plane.url, control_plane.authority, faults=[Faults()]) as proxy:
        through = control_plane.credentials(control_plane.folder / "dry.kubeconfig", control_plane.token, proxy.url)
        one = service(control_plane, through, dry_run=True)
        gangs = [o for name, size in sizes.items() for o in gang(name, size, {"cpu": 1})]
        cluster.create(*gangs, namespace=namespace)
        one.wait_for(lambda: one.cycles() and one.cycles()[-1]["pods"] == 23, 30, "all are seen")
        one.wait_for(lambda: one.page("debug", "plan"), 10, "there is a plan")
        plan = one.plan()
        # 12 CPUs for 23 pods; of whole gangs 3 + 5 + 4 fill them, and 3 + 9.
        binds = [decision for decision in plan["decisions"] if decision["kind"] == "Bind"]
        assert len(binds) == one.cycles()[-1]["bound"] == 12
        dumped = tmp_path / "snapshot.json"
        dumped.write_bytes(one.page("debug", "snapshot"))
        time.sleep(2)
        writes = [exchange for exchange in proxy.log if exchange.method != "GET"]
        assert writes == []
    assert set(cluster.phases(namespace).values()) == {"Pending"}
    assert cluster.items("Event", namespace, "events.k8s.io/v1") == []
    command = [*COMMAND, "plan", "-f", str(dumped), "-o", "json"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["decisions"] == plan["decisions"]
    assert again["levels"][0]["value"] == plan["levels"][0]["value"]


def test_a_solver_that_is_killed_costs_no_cycle(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """The solver is stopped before it gets the problem, so that it is killed in the middle of it. The cycle ends with
    the greedy plan and says so, and the next has another solver.
    """
    cluster.nodes(2, {"cpu": 4})
    one = service(control_plane)
    cluster.create(pod("first", {"cpu": 1}), namespace=namespace)
    cluster.wait_for(lambda: cluster.phases(namespace) == {"first": "Running"}, 40, "there is a solver")
    worker = one.worker()
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    cluster.create(*gang("g", 3, {"cpu": 1}), namespace=namespace)
    time.sleep(4)
    os.kill(worker, signal.SIGKILL)

    def greedy() -> list[str]:
        return [note for cycle in one.cycles() if cycle["winner"] == "greedy" for note in cycle.get("notes", [])]

    one.wait_for(greedy, 20, "a cycle says that it has the greedy plan")
    assert "the solver process died" in greedy()
    cluster.wait_for(lambda: set(cluster.phases(namespace).values()) == {"Running"}, 20, "the gang runs")
    assert one.metrics("solver_sched_solver_lost_total") == {"": 1}
    assert one.metrics("solver_sched_cycles_total")['result="greedy"'] == 1
    cluster.create(*gang("h", 3, {"cpu": 1}), namespace=namespace)
    cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 7, 40, "the next gang runs")
    assert one.worker() not in (None, worker)
    assert one.cycles()[-1]["winner"] == "solver"

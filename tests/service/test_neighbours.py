"""Others place pods on the same nodes at the same time: what the kubelet rejects is seen, and its gang repaired."""

from __future__ import annotations

from collections.abc import Callable

from tests.controlplane.cluster import Cluster, Object, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.controlplane.proxy import Faults, Proxy
from tests.controlplane.recorder import Recorder
from tests.service.service import Service

Start = Callable[..., Service]


def job(name: str, size: int, cpu: str = "1") -> list[Object]:
    """A gang whose pods a Job makes, and makes again."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size},
    }
    template = pod("", {"cpu": cpu}, annotations={"scheduling.k8s.io/group-name": name})
    template = {"metadata": {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]}
    spec = {"parallelism": size, "completions": size, "backoffLimit": 100, "template": template}
    return [group, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}]


def at_work(cluster: Cluster, namespace: str) -> int:
    return sum(phase == "Running" for phase in cluster.phases(namespace).values())


def test_a_member_that_the_kubelet_rejects_is_replaced(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """A gang of 4 CPUs is to have a node of 4. While its binds are on their way, somebody else binds a pod of 1 CPU to
    the node: one of the gang is one too many there. Its Job makes another pod, which runs on a node that comes later.
    """
    with (
        Proxy(
            control_plane.url, control_plane.authority, faults=[Faults(where="/binding$", stall=1, stall_seconds=9)]
        ) as proxy,
        Recorder(cluster) as recorder,
    ):
        through = control_plane.credentials(control_plane.folder / "slow.kubeconfig", control_plane.token, proxy.url)
        cluster.nodes(1, {"cpu": 4})
        one = service(control_plane, through)
        cluster.create(*job("g", 4), namespace=namespace)
        one.wait_for(lambda: any(cycle["bound"] == 4 for cycle in one.cycles()), 30, "the gang is decided on")
        proxy.faults = ()
        cluster.create(pod("agent", {"cpu": 1}, schedulerName="default-scheduler"), namespace=namespace)
        cluster.bind("agent", "node-0", namespace)
        cluster.wait_for(lambda: any(seen.rejected for seen in recorder.seen()), 30, "one is rejected")
        (rejected,) = {seen.name for seen in recorder.seen() if seen.rejected}
        assert rejected.startswith(f"{namespace}/g-"), "the agent came while the binds were on their way"
        cluster.nodes(1, {"cpu": 4}, prefix="spare")
        one.wait_for(lambda: at_work(cluster, namespace) == 5, 60, "four of the gang run, and the agent")
        recorder.wait_for_rest(2)
        assert recorder.broken({f"{namespace}/g": 4}) == []
        assert recorder.overcommits() == []
        assert recorder.moved() == []
        assert any(cycle.get("broken") == [f"{namespace}/g"] for cycle in one.cycles()), "it was said"
        assert one.metrics("solver_sched_broken_gangs") == {"": 0}, "and taken back"


def test_beside_the_default_scheduler(start_control_plane: Callable[..., ControlPlane], service: Start) -> None:
    """Four nodes of 8 CPUs. Six gangs of three and, at the same moment, twelve pods of kube-scheduler, a CPU each: 30
    of 32 CPUs, so that the two run into each other. Both schedulers' pods are of Jobs, and all run in the end.
    """
    require("kube-scheduler")
    plane = start_control_plane(components=["kube-controller-manager", "kubelet", "kube-scheduler"])
    cluster, namespace = plane.cluster, "default"
    cluster.nodes(4, {"cpu": 8})
    theirs = job("theirs", 12)[1]
    del theirs["spec"]["template"]["metadata"]
    theirs["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    gangs = [f"g{i}" for i in range(6)]
    with Recorder(cluster) as recorder:
        one = service(plane)
        cluster.create(*(o for name in gangs for o in job(name, 3)), theirs, namespace=namespace)
        cluster.wait_for(lambda: at_work(cluster, namespace) == 30, 120, "all run")
        recorder.wait_for_rest(3)
        assert at_work(cluster, namespace) == 30
        assert recorder.broken({f"{namespace}/{name}": 3 for name in gangs}) == []
        assert recorder.overcommits() == []
        assert recorder.moved() == []
        assert one.metrics("solver_sched_broken_gangs") == {"": 0}
        binds = one.metrics("solver_sched_decisions_total")['kind="Bind",result="ok"']
        assert binds == sum(bind.group != "" for bind in recorder.binds()), "each scheduler bound its own"

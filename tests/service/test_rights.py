"""With the account and the roles that deploy/ gives it the service does its work, and no more than that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import yaml

from tests.controlplane.cluster import Cluster, StatusError, gang, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.deploy.rendered import NAMESPACE, kustomized, objects, read
from tests.service.service import Service
from tests.service.test_examples import told

Start = Callable[..., Service]
ROLES = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
VOLCANO = "scheduling.volcano.sh/v1beta1"


@pytest.fixture
def account(control_plane: ControlPlane, cluster: Cluster) -> Iterator[Cluster]:
    """The service account of deploy/base, with its token."""
    require("kubectl")
    roles = [o for o in objects(kustomized("base")) if o["kind"] in ROLES]
    cluster.apply(*sorted(roles, key=lambda o: ROLES.index(o["kind"])))
    with control_plane.account("solver-sched", NAMESPACE) as user:
        yield user
    cluster.kubectl("delete", "--wait=true", "-f", "-", stdin=yaml.safe_dump_all(roles))


def test_its_own_account_is_enough(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, account: Cluster, service: Start
) -> None:
    """Binds, evictions, promises, statuses, events, the missing default queue and the Lease: no answer is 403. The two
    queues of the example have 8 CPUs; a pod of 9 waits and is told so.
    """
    cluster.nodes(2, {"cpu": 4, "memory": "16Gi"})
    one = service(
        control_plane,
        account.kubeconfig,
        scheduler_conf="preempting",
        leader_elect=True,
        leader_elect_resource_namespace=NAMESPACE,
    )
    cluster.apply(*read("examples/reclaim/1-borrower.yaml"), namespace=namespace)
    running = ["Running"] * 8
    cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == running, 60, "the borrower runs")
    cluster.create(pod("big", {"cpu": 9}), namespace=namespace)
    cluster.apply(*read("examples/reclaim/2-owner.yaml"), namespace=namespace)

    def at_work() -> int:
        return sum(name[:8] == "forecast" and phase == "Running" for name, phase in cluster.phases(namespace).items())

    cluster.wait_for(lambda: at_work() == 4, 60, "the owner runs")
    group = partial(cluster.get, "PodGroup", "forecast", namespace, VOLCANO)
    cluster.wait_for(lambda: group().get("status", {}).get("phase") == "Running", 20, "its group says so")
    said = partial(told, cluster, namespace)
    wanted = {"Scheduled", "Preempted", "FailedScheduling"}
    cluster.wait_for(lambda: wanted <= said().keys(), 20, f"events say {wanted}")
    cluster.wait_for(
        lambda: cluster.get("Pod", "big", namespace)["status"]["conditions"][0]["reason"] == "Unschedulable",
        20,
        "the pod of 9 CPUs is told",
    )
    cluster.get("Queue", "default", api_version=VOLCANO)
    holder = cluster.get("Lease", "solver-sched", NAMESPACE, "coordination.k8s.io/v1")["spec"]["holderIdentity"]
    assert holder
    codes = one.metrics("solver_sched_api_requests_total")
    assert {labels: count for labels, count in codes.items() if 'code="403"' in labels} == {}
    assert any('code="201"' in labels for labels in codes)


def test_its_token_is_good_for_nothing_else(cluster: Cluster, namespace: str, account: Cluster) -> None:
    cluster.create(*gang("g", 1, {"cpu": 1}), namespace=namespace)
    pods, groups = f"/api/v1/namespaces/{namespace}/pods", account.path("PodGroup", VOLCANO, namespace)
    assert account.request("GET", pods)["items"]
    for method, path in (
        ("DELETE", f"{pods}/g-0"),
        ("PATCH", f"{pods}/g-0"),
        ("POST", pods),
        ("POST", f"{pods}/g-0/exec"),
        ("DELETE", f"{groups}/g"),
        ("POST", groups),
        ("GET", f"/api/v1/namespaces/{namespace}/secrets"),
        ("GET", f"/api/v1/namespaces/{namespace}/configmaps"),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/solver-sched/token"),
        ("PUT", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/another"),
    ):
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        body: dict[str, str] | None = None if method in ("GET", "DELETE") else {}
        with pytest.raises(StatusError) as refused:
            account.request(method, path, body, content_type=content)
        assert refused.value.status == 403, (method, path)

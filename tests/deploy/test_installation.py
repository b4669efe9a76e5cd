"""What kustomize and Helm render, applied to a real API server that enforces pod security `restricted`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.controlplane import binaries
from tests.controlplane.cluster import Cluster, StatusError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.deploy.rendered import CHART, NAME, NAMESPACE, kustomized, objects, one, templated

RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
ENFORCED = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
WAYS: dict[str, Callable[[], str]] = {
    "base": lambda: kustomized("base"),
    "dev": lambda: kustomized("overlays/dev"),
    "ha": lambda: kustomized("overlays/ha"),
    "helm": templated,
    "helm-ha": lambda: templated("-f", str(CHART / "values-ha.yaml")),
}
REPLICAS = {"base": 2, "dev": 1, "ha": 3, "helm": 2, "helm-ha": 3}


@pytest.fixture(scope="module")
def prepared(control_plane: ControlPlane) -> Iterator[Cluster]:
    """A server with the namespace as an administrator prepares it."""
    require("kubectl", "helm")
    control_plane.cluster.apply(ENFORCED)
    yield control_plane.cluster
    control_plane.cluster.kubectl("delete", "namespace", NAMESPACE)


@pytest.fixture
def empty(prepared: Cluster) -> Iterator[Cluster]:
    """The same; what a test installs is gone after it."""
    yield prepared
    ours = [o for o in objects(kustomized("base")) if o["kind"] != "Namespace"]
    prepared.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(ours))
    prepared.wait_for(lambda: not prepared.items("Pod", NAMESPACE), 20, "the pods are gone")


def applied(cluster: Cluster, manifests: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.binary("kubectl")), f"--kubeconfig={cluster.kubeconfig}"]
    command += ["apply", "--server-side", f"--namespace={NAMESPACE}", "-f", "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_applied_without_a_warning_and_its_pods_are_admitted(empty: Cluster, way: str) -> None:
    done = applied(empty, WAYS[way]())
    assert (done.returncode, done.stderr) == (0, "")
    # Admitted by pod security, by the quota of its priority class, and by everything else on the way to a pod.
    pods = empty.wait_for(
        lambda: len(found := empty.items("Pod", NAMESPACE)) == REPLICAS[way] and found,
        20,
        "the Deployment has its pods",
    )
    assert isinstance(pods, list)
    for pod in pods:
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert pod["spec"]["priority"] == 2_000_000_000
    again = applied(empty, WAYS[way]())
    assert (again.returncode, again.stderr) == (0, "")


def test_pod_security_would_have_said_no(empty: Cluster) -> None:
    """The test above can fail: the same pod with one right more is refused."""
    applied(empty, kustomized("base"))
    empty.wait_for(
        lambda: empty.get("ResourceQuota", NAME, NAMESPACE).get("status", {}).get("hard"), 20, "the quota is in force"
    )
    template = one(objects(kustomized("base")), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    path = empty.path("Pod", "v1", NAMESPACE)
    empty.request("POST", path, pod, query={"dryRun": "All"})
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(StatusError, match=r'403 Forbidden: .*violates PodSecurity "restricted'):
        empty.request("POST", path, pod, query={"dryRun": "All"})


def test_a_change_of_the_policy_alone_keeps_the_pods(empty: Cluster) -> None:
    applied(empty, kustomized("base"))
    changed = kustomized("base").replace('actions: "enqueue, allocate, backfill"', 'actions: "allocate, backfill"')
    generation = empty.get("Deployment", NAME, NAMESPACE, "apps/v1")["metadata"]["generation"]
    assert applied(empty, changed).returncode == 0
    assert (
        "enqueue"
        not in empty.get("ConfigMap", "solver-sched-policy", NAMESPACE)["data"]["policy.yaml"].split("tiers")[0]
    )
    assert empty.get("Deployment", NAME, NAMESPACE, "apps/v1")["metadata"]["generation"] == generation


def test_helm_installs_upgrades_rolls_back_and_leaves(empty: Cluster) -> None:
    def helm(*arguments: str) -> None:
        command = [
            str(binaries.binary("helm")),
            f"--kubeconfig={empty.kubeconfig}",
            f"--namespace={NAMESPACE}",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr[:1] != "W", done.stderr  # klog's warnings, where kubectl says "Warning:"

    def replicas() -> int:
        return int(empty.get("Deployment", NAME, NAMESPACE, "apps/v1")["spec"]["replicas"])

    helm("install", NAME, str(CHART))
    assert replicas() == 2
    helm("upgrade", NAME, str(CHART), "-f", str(CHART / "values-ha.yaml"))
    assert replicas() == 3
    helm("rollback", NAME)
    assert replicas() == 2
    helm("uninstall", NAME)
    assert empty.items("Deployment", NAMESPACE, "apps/v1") == []
    assert [
        o
        for o in empty.items("ClusterRole", api_version="rbac.authorization.k8s.io/v1")
        if "solver" in o["metadata"]["name"]
    ] == []
    # CRDs, and with them everybody's groups and queues, stay.
    assert "podgroups.scheduling.volcano.sh" in empty.kubectl("get", "crds", "-o", "name")

"""Who may do what, asked of a real API server for every resource it serves and every verb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.live import RULES
from tests.controlplane.cluster import Cluster, StatusError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.fixtures import require
from tests.deploy.rendered import NAMESPACE, kustomized, objects, one

READ = {"get", "list", "watch"}
VERBS = (*READ, "create", "update", "patch", "delete", "deletecollection")
ROLES = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount", "Namespace")
SCHEDULER = {
    "user": f"system:serviceaccount:{NAMESPACE}:solver-sched",
    "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
}
VIEWER = {"user": "jane", "groups": ["system:authenticated"]}

# Beside reading. `*/status`, and podgroups where the status is no subresource.
WRITES = {
    ("", "pods/binding"): {"create"},
    ("", "pods/eviction"): {"create"},
    ("", "pods/status"): {"patch"},
    ("events.k8s.io", "events"): {"create", "patch"},
    ("scheduling.volcano.sh", "podgroups"): {"patch"},
    ("scheduling.volcano.sh", "queues"): {"create"},
    ("scheduling.volcano.sh", "queues/status"): {"patch"},
    ("scheduling.sigs.dev", "podgroups/status"): {"patch"},
    ("scheduling.sigs.dev", "queues"): {"create"},
    ("scheduling.sigs.dev", "queues/status"): {"patch"},
    ("scheduling.incubator.k8s.io", "podgroups/status"): {"patch"},
    ("scheduling.incubator.k8s.io", "queues"): {"create"},
    ("scheduling.incubator.k8s.io", "queues/status"): {"patch"},
}
# What every authenticated user may do (system:basic-user), and every account (system:cluster-trust-bundle-discovery).
EVERYBODY = {
    ("authentication.k8s.io", "selfsubjectreviews"): {"create"},
    ("authorization.k8s.io", "selfsubjectaccessreviews"): {"create"},
    ("authorization.k8s.io", "selfsubjectrulesreviews"): {"create"},
}
EVERY_ACCOUNT = EVERYBODY | {("certificates.k8s.io", "clustertrustbundles"): READ}


@pytest.fixture(scope="module")
def granting(control_plane: ControlPlane) -> Iterator[Cluster]:
    """The administrator of a server on which the roles are installed, and jane may view."""
    require("kubectl")
    found = [o for o in objects(kustomized("base")) if o["kind"] in ROLES]
    jane = one(found, "ClusterRoleBinding", "solver-sched-viewer") | {
        "metadata": {"name": "jane"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster = control_plane.cluster
    cluster.apply(*sorted([*found, jane], key=lambda o: ROLES.index(o["kind"]), reverse=True))
    yield cluster
    cluster.kubectl("delete", "--wait=true", "-f", "-", stdin=yaml.safe_dump_all([*found, jane]))


def served(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """(API group, resource) of everything, subresources included."""
    found = {("", resource["name"]) for resource in cluster.request("GET", "/api/v1")["resources"]}
    for group in cluster.request("GET", "/apis")["groups"]:
        for version in group["versions"]:
            resources = cluster.request("GET", f"/apis/{version['groupVersion']}")["resources"]
            found |= {(group["name"], resource["name"]) for resource in resources}
    yield from sorted(found)


def allowed(cluster: Cluster, who: dict[str, Any], **asked: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**who, "resourceAttributes": asked},
    }
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def granted(cluster: Cluster, who: dict[str, Any], namespace: str) -> dict[tuple[str, str], set[str]]:
    """(API group, resource) -> the verbs `who` may use on all its objects in a namespace."""
    found: dict[tuple[str, str], set[str]] = {}
    for group, resource in served(cluster):
        name, _, part = resource.partition("/")
        for verb in VERBS:
            if allowed(cluster, who, group=group, resource=name, subresource=part, verb=verb, namespace=namespace):
                found.setdefault((group, resource), set()).add(verb)
    return found


def reads(cluster: Cluster) -> dict[tuple[str, str], set[str]]:
    """What a snapshot is made of and what new pods are admitted by, of that what the server serves."""
    known = {(v.rpartition("/")[0], kind.plural) for kind in (*KINDS, *RULES) for v in kind.versions}
    return {key: set(READ) for key in served(cluster) if key in known}


def joined(*parts: dict[tuple[str, str], set[str]]) -> dict[tuple[str, str], set[str]]:
    return {key: set().union(*(part.get(key, set()) for part in parts)) for part in parts for key in part}


def test_the_scheduler_may_do_this_and_nothing_else(granting: Cluster) -> None:
    assert granted(granting, SCHEDULER, "default") == joined(EVERY_ACCOUNT, reads(granting), WRITES)


def test_a_viewer_may_read_and_nothing_else(granting: Cluster) -> None:
    assert granted(granting, VIEWER, "default") == joined(EVERYBODY, reads(granting))


def test_in_its_own_namespace_there_is_one_lease(granting: Cluster) -> None:
    leases = ("coordination.k8s.io", "leases")
    assert granted(granting, SCHEDULER, NAMESPACE) == joined(
        EVERY_ACCOUNT, reads(granting), WRITES, {leases: {"create"}}
    )
    lease = {"group": leases[0], "resource": leases[1], "namespace": NAMESPACE}
    mine = {verb for verb in VERBS if allowed(granting, SCHEDULER, **lease, verb=verb, name="solver-sched")}
    assert mine == {"create", "get", "update"}
    assert {verb for verb in VERBS if allowed(granting, SCHEDULER, **lease, verb=verb, name="another")} == {"create"}


def test_kinds_that_are_not_served_here_are_granted_too(granting: Cluster) -> None:
    for group, resource, verb in (
        ("scheduling.x-k8s.io", "podgroups", "list"),
        ("scheduling.k8s.io", "podgroups", "list"),
        ("batch.volcano.sh", "jobs", "list"),
    ):
        assert allowed(granting, SCHEDULER, group=group, resource=resource, verb=verb), group
        assert allowed(granting, VIEWER, group=group, resource=resource, verb=verb), group
    for group in ("scheduling.x-k8s.io", "scheduling.k8s.io"):
        assert allowed(granting, SCHEDULER, group=group, resource="podgroups", subresource="status", verb="patch")
        assert not allowed(granting, SCHEDULER, group=group, resource="podgroups", verb="patch")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/{own}/configmaps"),
        ("DELETE", "/api/v1/namespaces/default/pods/p"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("PATCH", "/api/v1/nodes/n"),
        ("PATCH", "/apis/scheduling.volcano.sh/v1beta1/queues/q"),
        ("DELETE", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups/g"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
        ("GET", "/logs/"),
        ("GET", "/api/v1/nodes/n/proxy/"),
    ],
)
def test_its_own_token_is_refused(granting: Cluster, control_plane: ControlPlane, method: str, path: str) -> None:
    user = control_plane.account("solver-sched", NAMESPACE)
    assert user.items("Namespace")  # the token is good for something
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    body: dict[str, str] | None = None if method in ("GET", "DELETE") else {}
    with pytest.raises(StatusError, match="403 Forbidden"):
        user.request(method, path.format(own=NAMESPACE), body, content_type=content)


def test_neither_may_become_somebody_else(granting: Cluster) -> None:
    # Verbs that go with a few resources only, so that the tests above do not ask for them.
    for group, resource, verb in (
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
        ("", "users", "impersonate"),
        ("", "serviceaccounts", "impersonate"),
        ("certificates.k8s.io", "signers", "approve"),
    ):
        assert not allowed(granting, SCHEDULER, group=group, resource=resource, verb=verb), verb
        assert not allowed(granting, VIEWER, group=group, resource=resource, verb=verb), verb


def test_no_role_has_a_wildcard(granting: Cluster) -> None:
    for kind, name in (
        ("ClusterRole", "solver-sched"),
        ("ClusterRole", "solver-sched-viewer"),
        ("Role", "solver-sched-lease"),
    ):
        for rule in one(objects(kustomized("base")), kind, name)["rules"]:
            assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}

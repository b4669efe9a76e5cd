"""Single objects: pods and how they find their group, the dialects of groups and queues, nodes, budgets."""

from __future__ import annotations

from typing import Any

import pytest

from solver_sched.cluster.objects import (
    HostPort,
    NodeTerm,
    Pod,
    PodGroup,
    PodTerm,
    Requirement,
    RunTime,
    Spread,
    Taint,
    Toleration,
)
from solver_sched.cluster.sources import read_objects
from solver_sched.snapshot import Snapshot

Json = dict[str, Any]
SIGS, VOLCANO = "scheduling.sigs.dev/v1alpha2", "scheduling.volcano.sh/v1beta1"
COSCHEDULING, NATIVE = "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"


def pod(name: str = "p", meta: Json | None = None, status: Json | None = None, **spec: Any) -> Json:
    spec.setdefault("containers", [{"name": "main"}])
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}, "spec": spec}
    return {**body, "status": status} if status else body


def group(version: str = VOLCANO, name: str = "g", meta: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name, **(meta or {})}, "spec": spec}


def priority_class(name: str, value: int, **more: Any) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


MEMBER = {"annotations": {"scheduling.k8s.io/group-name": "g"}}


def the_pod(*objects: Json) -> Pod:
    (found,) = clean(*objects).pods
    return found


def the_group(*objects: Json) -> PodGroup:
    (found,) = clean(*objects).groups
    return found


def clean(*objects: Json) -> Snapshot:
    snapshot = read_objects(objects)
    assert not snapshot.problems
    return snapshot


# How a pod finds its group


@pytest.mark.parametrize(
    ("version", "way"),
    [
        (SIGS, pod(meta=MEMBER)),
        ("scheduling.incubator.k8s.io/v1alpha1", pod(meta=MEMBER)),
        (VOLCANO, pod(meta=MEMBER)),
        (VOLCANO, pod(meta={"annotations": {"scheduling.volcano.sh/group-name": "g"}})),
        (COSCHEDULING, pod(meta={"labels": {"scheduling.x-k8s.io/pod-group": "g"}})),
        (NATIVE, pod(schedulingGroup={"podGroupName": "g"})),
        ("scheduling.k8s.io/v1alpha3", pod(schedulingGroup={"podGroupName": "g"})),
        ("scheduling.k8s.io/v1alpha2", pod(schedulingGroup={"podGroupName": "g"})),
    ],
)
def test_each_dialect_has_its_way_to_name_the_group(version: str, way: Json) -> None:
    found = the_pod(group(version), way)
    assert (found.group, found.member_of, found.hold) == ("default/g", version, "")


def test_a_group_that_does_not_exist_is_still_named() -> None:
    found = the_pod(pod(meta=MEMBER), group(meta={"namespace": "other"}))
    assert (found.group, found.member_of) == ("default/g", "")


def test_the_wrong_way_to_an_existing_group_holds_the_pod() -> None:
    """A label of coscheduling does not make a pod a member of Volcano's group of the same name."""
    found = the_pod(group(VOLCANO), pod(meta={"labels": {"scheduling.x-k8s.io/pod-group": "g"}}))
    assert found.member_of == ""
    assert found.hold.startswith(
        "Unmodelled: names group default/g in a way that does not lead to scheduling.volcano.sh"
    )


def test_of_two_ways_the_one_that_leads_to_a_group_counts() -> None:
    both = {**MEMBER, "labels": {"scheduling.x-k8s.io/pod-group": "h"}}
    assert the_pod(group(COSCHEDULING, "h"), pod(meta=both)).group == "default/h"


def test_pods_of_one_owner_with_a_minimum_are_a_gang_without_an_object() -> None:
    owned = {
        "annotations": {"scheduling.k8s.io/group-min-member": "2", "scheduling.volcano.sh/queue-name": "q"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}],
    }
    snapshot = clean(pod("a", owned), pod("b", owned), pod("c"))
    (shadow,) = snapshot.groups
    assert (shadow.key, shadow.min_member, shadow.queue, shadow.priority) == ("default/job-train", 2, "q", None)
    assert [p.group for p in snapshot.pods] == ["default/job-train", "default/job-train", None]


# What else a pod says


def test_role_index_and_flags() -> None:
    found = the_pod(pod("w-3", {"annotations": {"volcano.sh/task-spec": "worker"}}))
    assert (found.role, found.index, found.preemptable) == ("worker", 3, True)
    labels = {"volcano.sh/task-spec": "ps", "volcano.sh/task-index": "7", "volcano.sh/preemptable": "false"}
    found = the_pod(pod("w-3", {"labels": labels}))
    assert (found.role, found.index, found.preemptable) == ("ps", 7, False)
    found = the_pod(pod("w", {"labels": labels, "annotations": {"volcano.sh/preemptable": "T"}}))
    assert found.preemptable
    assert not the_pod(pod("w", {"annotations": {"volcano.sh/preemptable": "perhaps"}})).preemptable


def test_priority_comes_from_the_spec_then_the_class_then_the_default_class() -> None:
    classes = [priority_class("high", 7), priority_class("d2", 3, globalDefault=True), priority_class("d1", 2)]
    polite = priority_class("polite", 5, preemptionPolicy="Never")
    assert the_pod(*classes, pod(priority=9, priorityClassName="high")).priority == 9
    assert the_pod(*classes, pod(priorityClassName="high")).priority == 7
    assert the_pod(*classes, pod()).priority == 3
    assert the_pod(pod()).priority == 0
    assert the_pod(pod(priorityClassName="system-node-critical")).priority == 2_000_001_000
    assert not the_pod(polite, pod(priorityClassName="polite")).preempts
    assert the_pod(polite, pod(priorityClassName="polite", preemptionPolicy="PreemptLowerPriority")).preempts
    assert the_pod(*classes, pod(meta={"annotations": {"volcano.sh/task-priority": "-4"}}, priority=9)).priority == -4


def test_an_unknown_class_is_reported_once() -> None:
    snapshot = read_objects([pod("a", priorityClassName="x"), pod("b", priorityClassName="x")])
    assert [str(problem) for problem in snapshot.problems] == [
        "Pod default/a: spec.priorityClassName: PriorityClass x is not in the input: the default priority is assumed"
    ]


@pytest.mark.parametrize(
    ("held", "code"),
    [
        (pod(resourceClaims=[{"name": "gpu"}]), "Claims"),
        (pod(workloadRef={"name": "w", "podGroup": "g"}), "Unmodelled"),
        (pod(meta={"annotations": {"solver-sched.io/hold": "Suspended: job default/j is suspended"}}), "Suspended"),
    ],
)
def test_what_is_not_modelled_holds_the_pod(held: Json, code: str) -> None:
    assert the_pod(held).hold.startswith(f"{code}: ")


def test_a_bound_terminating_gated_pod() -> None:
    meta = {"deletionTimestamp": "2026-01-01T12:00:00Z"}
    status = {"phase": "Running", "startTime": "1970-01-01T00:01:00Z", "nominatedNodeName": "m"}
    found = the_pod(pod("p", meta, status, nodeName="n", schedulingGates=[{"name": "b"}, {"name": "a"}]))
    assert (found.node, found.terminating, found.started, found.nominated) == ("n", True, 60, "m")
    assert found.gates == ("a", "b")
    assert the_pod(pod(nodeName="")).node is None


def test_the_queue_of_a_pod_is_its_own_or_its_namespace_s() -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    space["metadata"] |= {"annotations": {"scheduling.volcano.sh/queue-name": "team"}}  # type: ignore[operator]
    assert the_pod(space, pod()).queue == "team"
    assert the_pod(space, pod(meta={"annotations": {"scheduling.volcano.sh/queue-name": "own"}})).queue == "own"
    assert the_group(space, group()).queue == "team"
    assert the_group(space, group(queue="q")).queue == "q"
    assert the_group(group()).queue == "default"


def test_equal_needs_are_one_object() -> None:
    def asking(name: str, cpu: str, order: int) -> Json:
        tolerations = [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}][::order]
        return pod(name, containers=[{"name": name, "resources": {"requests": {"cpu": cpu}}}], tolerations=tolerations)

    a, b, c = clean(asking("a", "1", 1), asking("b", "1000m", -1), asking("c", "2", 1)).pods
    assert a.needs is b.needs
    assert a.needs != c.needs


def test_constraints_with_api_defaults() -> None:
    required, preferred = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
    expression = {"key": "zone", "operator": "In", "values": ["b", "a"]}
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "x"}}}
    keyed = {**term, "namespaceSelector": {}, "matchLabelKeys": ["hash", "absent"], "mismatchLabelKeys": ["app"]}
    spread = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "Honor"}
    needs = the_pod(
        pod(
            meta={"namespace": "team", "labels": {"hash": "1", "app": "x"}},
            nodeSelector={"disk": "ssd"},
            affinity={
                "nodeAffinity": {
                    required: {"nodeSelectorTerms": [{"matchExpressions": [expression]}, {}]},
                    preferred: [{"weight": 3, "preference": {"matchFields": [expression]}}],
                },
                "podAffinity": {required: [{"topologyKey": "rack"}]},
                "podAntiAffinity": {required: [term], preferred: [{"weight": 9, "podAffinityTerm": keyed}]},
            },
            tolerations=[{"operator": "Exists"}, {"key": "k", "value": "v", "tolerationSeconds": 3}],
            topologySpreadConstraints=[{**spread, "labelSelector": {}, "matchLabelKeys": ["hash"]}],
            hostNetwork=True,
            containers=[{"ports": [{"containerPort": 80}, {"containerPort": 53, "hostPort": 5353, "protocol": "UDP"}]}],
        )
    ).needs
    zone, app = Requirement("zone", "In", ("a", "b")), Requirement("app", "In", ("x",))
    assert needs.node_selector == (("disk", "ssd"),)
    assert needs.node_affinity == (NodeTerm(expressions=(zone,)), NodeTerm())
    assert needs.preferred_nodes == ((3, NodeTerm(fields=(zone,))),)
    assert needs.affinity == (PodTerm("rack", None, ("team",)),)
    assert needs.anti_affinity == (PodTerm("host", (app,), ("team",)),)
    hashed, other = Requirement("hash", "In", ("1",)), Requirement("app", "NotIn", ("x",))
    assert needs.preferred_anti_affinity == (PodTerm("host", (app, hashed, other), (), (), 9),)
    assert needs.tolerations == (Toleration("", "Exists"), Toleration("k", "Equal", "v"))
    assert needs.spread == (Spread("zone", 2, False, (hashed,), honor_node_taints=True),)
    assert needs.ports == (HostPort("0.0.0.0", "TCP", 80), HostPort("0.0.0.0", "UDP", 5353))


def test_own_namespace_and_labels_keep_needs_apart_only_where_they_are_read() -> None:
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    a, b = clean(pod(meta={"namespace": "a"}, affinity=near), pod(meta={"namespace": "b"}, affinity=near)).pods
    assert (a.needs.affinity[0].namespaces, b.needs.affinity[0].namespaces) == (("a",), ("b",))
    a, b = clean(pod(meta={"namespace": "a", "labels": {"x": "1"}}), pod(meta={"namespace": "b"})).pods
    assert a.needs is b.needs


# Groups and queues


def test_a_group_of_kube_batch() -> None:
    found = the_group(priority_class("high", 7), group(SIGS, minMember=3, queue="q", priorityClassName="high"))
    assert (found.min_member, found.queue, found.priority, found.dialect) == (3, "q", 7, SIGS)
    assert the_group(group(SIGS)).min_member == 1


def test_the_misprint_of_the_slides_is_read_with_a_warning() -> None:
    wrong = "scheduling.sig.dev/v1alpha2"
    queue = {"apiVersion": wrong, "kind": "Queue", "metadata": {"name": "q"}, "spec": {"weight": 2}}
    snapshot = read_objects([group(wrong, minMember=3), queue, pod(meta=MEMBER)])
    assert snapshot.groups[0].dialect == SIGS
    assert snapshot.queues[0].weight == 2
    assert snapshot.pods[0].member_of == SIGS
    assert [str(problem) for problem in snapshot.problems] == [
        f"{kind}: apiVersion: {wrong} is a misprint of {SIGS}: read as that" for kind in ("PodGroup", "Queue")
    ]


def test_a_group_of_volcano() -> None:
    spec: Json = {"minMember": 0, "minTaskMember": {"ps": 1}, "minResources": {"cpu": "1.5", "memory": "1Ki"}}
    meta = {"annotations": {"volcano.sh/sla-waiting-time": "1h", "example.com/other": "x"}}
    found = the_group({**group(meta=meta, **spec), "status": {"phase": "Inqueue"}})
    assert (found.min_member, found.min_task_member, found.min_resources) == (
        0,
        {"ps": 1},
        {"cpu": 1500, "memory": 1024},
    )
    assert (found.phase, found.annotations) == ("Inqueue", {"volcano.sh/sla-waiting-time": "1h"})


@pytest.mark.parametrize(
    ("held", "hold"),
    [
        (group(networkTopology={"highestTierAllowed": 2}), "Topology: hard network topology up to tier 2"),
        (group(networkTopology={"mode": "hard"}), ""),
        (group(networkTopology={"mode": "soft", "highestTierAllowed": 2}), ""),
        (group(subGroupPolicy=[{"networkTopology": {"highestTierName": "rack"}}]), "Topology: hard network topology"),
        (group(subGroupPolicy=[{"name": "a", "minSubGroups": 2}]), "Unmodelled: spec.subGroupPolicy[0] needs 2"),
        (
            group(NATIVE, schedulingConstraints={"topology": [{"key": "rack"}]}),
            "Topology: all pods in one domain of rack",
        ),
        (group(NATIVE, parentCompositePodGroupName="c"), "Unmodelled: part of CompositePodGroup c"),
        (group(NATIVE, resourceClaims=[{"name": "c"}]), "Claims: device claim c of the group"),
    ],
)
def test_what_is_not_modelled_holds_the_group(held: Json, hold: str) -> None:
    found = the_group(held)
    assert found.hold.startswith(hold)
    assert bool(found.hold) == bool(hold)


@pytest.mark.parametrize(
    ("minimum", "roles", "hold"),
    [
        (2, ["a", "b"], ""),
        (2, ["a", "a"], "Unmodelled: spec.subGroupPolicy[0] needs 2 sub-groups and 1 are complete"),
        (1, ["a", "b"], "Unmodelled: spec.subGroupPolicy with minSubGroups is modelled only where"),
    ],
)
def test_sub_groups_of_a_gang_that_starts_whole(minimum: int, roles: list[str], hold: str) -> None:
    """Two sub-groups of one pod each, told apart by role: with both pods they are complete, whatever the placement."""
    policy = {"subGroupSize": 1, "minSubGroups": 2, "matchLabelKeys": ["volcano.sh/task-spec"]}
    pods = [pod(f"p{k}", {**MEMBER, "labels": {"volcano.sh/task-spec": role}}) for k, role in enumerate(roles)]
    found = the_group(group(minMember=minimum, subGroupPolicy=[policy]), *pods)
    assert found.hold.startswith(hold)
    assert bool(found.hold) == bool(hold)


def test_groups_of_kubernetes_and_of_coscheduling() -> None:
    gang = {"gang": {"minCount": 4}}
    assert the_group(group(NATIVE, schedulingPolicy=gang, priority=5)).min_member == 4
    assert the_group(group(NATIVE, schedulingPolicy=gang, priority=5)).priority == 5
    assert the_group(group(NATIVE, schedulingPolicy={"basic": {}})).min_member == 1
    found = the_group(priority_class("d", 3, globalDefault=True), group(COSCHEDULING, minMember=2))
    # it knows no class: it ranks by its pods
    assert (found.min_member, found.priority) == (2, None)
    assert the_group(priority_class("d", 3, globalDefault=True), group(VOLCANO)).priority == 3


def test_one_group_in_two_dialects() -> None:
    """Served in two versions of one family it is one object; in two families the second is reported."""
    assert the_group(group("scheduling.incubator.k8s.io/v1alpha1"), group(SIGS)).dialect == SIGS
    snapshot = read_objects([group(NATIVE), group(VOLCANO)])
    assert [found.dialect for found in snapshot.groups] == [VOLCANO]
    assert "is given as scheduling.k8s.io/v1beta1 too" in str(snapshot.problems[0])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (group(minMember=-1), "spec.minMember"),
        (group(minTaskMember={"a": -1}), "spec.minTaskMember.a"),
        (group(minMember="3"), "spec.minMember"),
        (group(minResources={"cpu": "x"}), "spec.minResources.cpu"),
        (group(SIGS, minMember=2**31), "spec.minMember"),
        (group(NATIVE, schedulingPolicy={"gang": {}}), "spec.schedulingPolicy.gang"),
        ({**group(), "kind": "Queue", "spec": {"weight": -1}}, "spec.weight"),
        (
            {**group(), "kind": "Queue", "spec": {"guarantee": {"resource": {"cpu": "-1"}}}},
            "spec.guarantee.resource.cpu",
        ),
    ],
)
def test_a_bad_group_or_queue_names_its_field(wrong: Json, field: str) -> None:
    (problem,) = read_objects([wrong]).problems
    assert problem.field == field


def test_a_queue_of_volcano() -> None:
    amounts = {"cpu": "2", "nvidia.com/gpu": 1}
    spec = {
        "weight": 3,
        "capability": amounts,
        "guarantee": {"resource": {"cpu": 1}},
        "parent": "root",
        "reclaimable": False,
    }
    body = {**group(), "kind": "Queue", "spec": spec, "status": {"state": "Closing"}}
    (found,) = clean(body).queues
    assert (found.weight, found.capability, found.deserved) == (3, {"cpu": 2000, "nvidia.com/gpu": 1}, None)
    assert (found.guarantee, found.parent, found.reclaimable, found.state) == ({"cpu": 1000}, "root", False, "Closing")


# Nodes and budgets


def node(status: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": spec, "status": status or {}}


def test_a_node() -> None:
    conditions = [{"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "False"}]
    status = {"allocatable": {"cpu": "1900m", "memory": "1Ki", "pods": "7"}, "capacity": {"cpu": "2"}}
    body = node({**status, "conditions": conditions}, unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}])
    (found,) = clean(body).nodes
    assert found.allocatable == {"cpu": 1900, "memory": 1024, "pods": 7}
    assert (found.ready, found.unschedulable, found.taints) == (False, True, (Taint("k", "", "NoSchedule"),))


def test_a_hand_written_node_is_ready_and_has_the_slots_of_the_kubelet() -> None:
    (found,) = clean(node({"capacity": {"cpu": "2"}})).nodes
    assert (found.ready, found.allocatable) == (True, {"cpu": 2000, "pods": 110})


@pytest.mark.parametrize(
    ("spec", "status", "allowed"),
    [
        ({"minAvailable": 2}, {"disruptionsAllowed": 0}, 0),
        ({"minAvailable": 2}, None, 1),
        ({"minAvailable": "50%"}, None, 1),  # ceil(1.5) = 2 stay
        ({"maxUnavailable": 1}, {}, 1),
        ({"maxUnavailable": "30%"}, None, 1),  # ceil(0.9) = 1 may go
        ({"maxUnavailable": 0}, None, 0),
        ({"minAvailable": 9}, None, 0),
        ({}, None, 0),
    ],
)
def test_what_a_budget_allows_of_three_running_pods(spec: Json, status: Json | None, allowed: int) -> None:
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "status": status}
    body["spec"] = {"selector": {"matchLabels": {"a": "b"}}, **spec}
    pods = [pod(f"p{k}", {"labels": {"a": "b"}}, {"phase": "Running"}, nodeName="n") for k in range(3)]
    (found,) = clean(body, *pods, pod("other")).budgets
    assert found.allowed == allowed


QUOTA: Json = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "rq", "namespace": "ns"}}


def test_a_quota_is_what_its_status_enforces_else_its_spec() -> None:
    spec = {"hard": {"requests.cpu": "1500m", "limits.memory": "1Gi", "count/pods": "3"}}
    (found,) = clean({**QUOTA, "spec": spec}).quotas
    assert (found.hard, found.used) == ({"requests.cpu": 1500, "limits.memory": 2**30, "count/pods": 3}, None)
    status = {"hard": {"cpu": "1"}, "used": {"cpu": "500m"}}
    (found,) = clean({**QUOTA, "spec": spec, "status": status}).quotas
    assert (found.namespace, found.name, found.hard, found.used) == ("ns", "rq", {"cpu": 1000}, {"cpu": 500})
    (found,) = clean({**QUOTA, "status": {}}).quotas
    assert (found.hard, found.used) == ({}, None)


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"scopes": ["BestEffort"]}, "spec.scopes", "a quota with scopes is not modelled"),
        ({"scopeSelector": {"matchExpressions": []}}, "spec.scopeSelector", "a quota with scopes is not modelled"),
        ({"hard": {"cpu": "-1"}}, "spec.hard.cpu", "negative"),
        ({"hard": {"cpu": True}}, "spec.hard.cpu", "quantity"),
        ({"hard": 3}, "spec.hard", "expected object"),
    ],
)
def test_a_quota_that_cannot_be_used_costs_one_line(spec: Json, field: str, says: str) -> None:
    found = read_objects([{**QUOTA, "spec": spec}])
    (problem,) = found.problems
    assert not found.quotas
    assert (problem.object, problem.field) == ("ResourceQuota ns/rq", field)
    assert says in problem.message


# Run times


def job(version: str, meta: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": "Job", "metadata": {"name": "j", "uid": "1", **(meta or {})}, "spec": spec}


OF_JOB = {"uid": "2", "ownerReferences": [{"kind": "Job", "name": "j", "uid": "1", "controller": True}]}
RUN_TIME = "solver-sched.io/run-time"


@pytest.mark.parametrize(
    ("given", "deadline", "run_time"),
    [
        ([pod(activeDeadlineSeconds=90)], 90, 0),
        ([pod(activeDeadlineSeconds=2**62)], 0, 0),
        ([pod(meta={"annotations": {RUN_TIME: "1h30m"}})], 0, 5400),
        ([pod(meta={"annotations": {RUN_TIME: "90"}})], 0, 90),
        ([pod(meta={"annotations": {RUN_TIME: "-5m"}})], 0, 0),
        ([pod(meta={"annotations": {RUN_TIME: "a while"}})], 0, 0),
        ([job("batch/v1", activeDeadlineSeconds=60, parallelism=0), pod(meta=OF_JOB)], 60, 0),
        ([job("batch/v1", activeDeadlineSeconds=60, parallelism=0), pod(meta=OF_JOB, activeDeadlineSeconds=5)], 5, 0),
        ([job("batch/v1", {"annotations": {RUN_TIME: "2m"}}, parallelism=0), pod(meta=OF_JOB)], 0, 120),
        ([job("batch.volcano.sh/v1alpha1", runningEstimate="3m0s"), pod(meta=OF_JOB)], 0, 180),
    ],
)
def test_how_long_a_pod_may_run(given: list[Json], deadline: int, run_time: int) -> None:
    found = next(one for one in read_objects(given).pods if one.name == "p")
    assert (found.deadline, found.run_time) == (deadline, run_time)


def test_pods_that_a_job_will_make_run_as_long() -> None:
    template = {"spec": {"containers": [{"name": "main"}], "restartPolicy": "Never", "schedulerName": "solver-sched"}}
    made = read_objects([job("batch/v1", activeDeadlineSeconds=60, parallelism=2, completions=2, template=template)])
    assert [one.deadline for one in made.pods] == [60, 60]


def test_what_finished_pods_show() -> None:
    """Three runs of `backup`: 10, 20 and 90 s. One that failed after 1 s and one without times show nothing."""

    def ran(name: str, seconds: int, phase: str = "Succeeded") -> Json:
        owner = {"ownerReferences": [{"kind": "Job", "name": f"backup-{name}", "controller": True}]}
        turned = [
            {
                "type": "Ready",
                "status": "False",
                "lastTransitionTime": f"2026-01-01T12:{seconds // 60:02}:{seconds % 60:02}Z",
            }
        ]
        return pod(
            f"backup-{name}-x7k2p", owner, {"phase": phase, "startTime": "2026-01-01T12:00:00Z", "conditions": turned}
        )

    given = [ran("1", 10), ran("2", 20), ran("3", 90), ran("4", 1, "Failed"), pod("q", status={"phase": "Succeeded"})]
    snapshot = read_objects(given)
    assert snapshot.run_times == (RunTime("default/Job/backup/", 3, 20),)
    assert snapshot.ignored == {"finished pods": 5}


def test_a_node_that_is_kept_for_a_group() -> None:
    meta = {"name": "n", "annotations": {"solver-sched.io/reserved-for": "default/g"}}
    (node,) = clean(
        {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": {"cpu": "1"}}}
    ).nodes
    assert node.reserved_for == "default/g"

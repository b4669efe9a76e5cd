from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver_sched.cluster.templates import HOLD
from solver_sched.cluster.workloads import expand

Json = dict[str, Any]


def workload(kind: str, named: str = "x", api: str = "apps/v1", uid: str = "", **spec: Any) -> Json:
    metadata = {"name": named} | ({"uid": uid} if uid else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {"template": template(), **spec}}


def template(scheduler: str | None = "solver-sched", **metadata: Any) -> Json:
    spec: Json = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    return {"metadata": metadata, "spec": spec | ({"schedulerName": scheduler} if scheduler else {})}


def job(named: str = "x", uid: str = "", **spec: Any) -> Json:
    return workload("Job", named, "batch/v1", uid, **spec)


def pod(named: str, owner: Json | None = None, phase: str = "Running", **metadata: Any) -> Json:
    references = []
    if owner is not None:
        own = owner["metadata"]
        references = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": own["name"]}]
        if "uid" in own:
            references[0]["uid"] = own["uid"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": named, "uid": f"uid-{named}", "ownerReferences": references, **metadata},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase},
    }


def made(*objects: Json, kind: str = "Pod") -> list[Json]:
    """What `expand` adds, with nothing to complain about."""
    before = {id(obj) for obj in objects}
    out, problems = expand(list(objects))
    assert problems == []
    return [obj for obj in out if id(obj) not in before and obj["kind"] == kind]


def names(objects: list[Json]) -> list[str]:
    return [obj["metadata"].get("name") for obj in objects]


def complaints(*objects: Json) -> list[str]:
    return [str(problem) for problem in expand(list(objects))[1]]


# batch/v1 Job


def test_a_job_without_pods_becomes_its_pods() -> None:
    pods = made(job(parallelism=3, completions=3))
    assert names(pods) == ["x-0", "x-1", "x-2"]
    assert pods[0]["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "controller": True}
    ]
    assert pods[0]["status"] == {"phase": "Pending"}
    assert pods[0]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "x"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, 1),  # neither given: one pod
        ({"completions": 5}, 1),  # parallelism is 1 unless given
        ({"parallelism": 5, "completions": 3}, 3),
        ({"parallelism": 4}, 4),  # a work queue
        ({"parallelism": 0, "completions": 3}, 0),
    ],
)
def test_active_pods_of_a_job(spec: Json, wanted: int) -> None:
    assert len(made(job(**spec))) == wanted


def test_pods_already_there_are_not_doubled_and_succeeded_ones_count() -> None:
    # 6 completions - 2 succeeded = 4 still wanted; 1 runs; 3 are missing. x-1 is taken by a pod of somebody else.
    one = job(parallelism=6, completions=6, uid="u1")
    there = [pod("x-a", one, "Succeeded"), pod("x-b", one, "Succeeded"), pod("x-c", one), pod("x-1")]
    assert names(made(one, *there)) == ["x-0", "x-2", "x-3"]


def test_succeeded_pods_that_are_gone_count_by_the_status() -> None:
    one = job(parallelism=6, completions=6) | {"status": {"succeeded": 4}}
    assert len(made(one)) == 2


def test_a_work_queue_with_a_succeeded_pod_starts_no_more() -> None:
    one = job(parallelism=4)
    assert made(one, pod("x-a", one, "Succeeded")) == []


def test_failed_pods_are_replaced() -> None:
    one = job(parallelism=2, completions=2)
    assert len(made(one, pod("x-a", one, "Failed"), pod("x-b", one))) == 1


def test_pods_of_an_earlier_job_of_the_same_name_do_not_count() -> None:
    assert len(made(job(uid="new"), pod("x-a", job(uid="old")))) == 1


def test_a_complete_job_makes_nothing() -> None:
    done = job(parallelism=3) | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert made(done) == []


def test_indexed_job_makes_the_lowest_open_indexes() -> None:
    # 8 indexes; 0, 2, 3 completed, 5 failed for good, 1 runs: 4 and 6 are next with parallelism 3.
    one = job(parallelism=3, completions=8, completionMode="Indexed")
    one["status"] = {"completedIndexes": "0,2-3", "failedIndexes": "5"}
    running = pod("x-1-abcde", one, annotations={"batch.kubernetes.io/job-completion-index": "1"})
    pods = made(one, running)
    assert names(pods) == ["x-4", "x-6"]
    assert pods[1]["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "6"


def test_a_suspended_job_is_held_with_its_pods() -> None:
    one = job(parallelism=2, completions=2, suspend=True, uid="u1")
    waiting = pod("x-a", one, "Pending")
    waiting["spec"] = {"schedulerName": "solver-sched"}
    pods = made(one, waiting)
    assert names(pods) == ["x-a", "x-0"]
    assert {p["metadata"]["annotations"][HOLD] for p in pods} == {"Suspended: job default/x is suspended"}


def test_the_job_of_the_kube_batch_talks_joins_its_group() -> None:
    group = {"apiVersion": "scheduling.sigs.dev/v1alpha2", "kind": "PodGroup", "metadata": {"name": "mygroup"}}
    talk = template("kube-batch", annotations={"scheduling.k8s.io/group-name": "mygroup"})
    pods = made(group, job("qj-1", parallelism=6, completions=6, template=talk))
    assert len(pods) == 6
    assert {p["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for p in pods} == {"mygroup"}
    assert {p["metadata"]["namespace"] for p in pods} == {"default"}


def test_generate_name_gives_a_name() -> None:
    jobs = [job() | {"metadata": {"generateName": "sample-"}} for _ in range(2)]
    assert names(made(*jobs)) == ["sample-0-0", "sample-1-0"]


# other workloads


def test_a_deployment_counts_its_pods_through_its_replica_sets() -> None:
    web = workload("Deployment", "web", uid="d", replicas=3)
    rs = workload("ReplicaSet", "web-7f", uid="r", replicas=3)
    rs["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d"}]
    assert names(made(web, rs, pod("web-7f-aa", rs))) == ["web-0", "web-1"]
    # The ReplicaSet was not dumped: the pod's hash leads to the Deployment.
    orphan = pod("web-7f-aa", rs, labels={"pod-template-hash": "7f"})
    assert names(made(web, orphan)) == ["web-0", "web-1"]


def test_a_replica_set_on_its_own_makes_its_pods() -> None:
    rs = workload("ReplicaSet", "rs", replicas=2)
    assert names(made(rs, pod("rs-zz", rs))) == ["rs-0"]


def test_a_stateful_set_makes_the_missing_ordinals_with_their_claims() -> None:
    claims = [{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}]
    db = workload("StatefulSet", "db", replicas=3, ordinals={"start": 1}, volumeClaimTemplates=claims)
    existing = pod("db-2", db)
    pods = made(db, existing)
    assert names(pods) == ["db-1", "db-3"]
    assert pods[0]["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}}]
    assert names(made(db, existing, kind="PersistentVolumeClaim")) == ["data-db-1", "data-db-3"]


def node(named: str, spec: Json | None = None, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": named, "labels": labels}, "spec": spec or {}}


def test_a_daemon_set_takes_room_on_every_node_that_admits_it() -> None:
    tainted = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    nodes = [
        node("a", disk="ssd"),
        node("b"),
        node("c", tainted, disk="ssd"),
        node("d", {"unschedulable": True}, disk="ssd"),
    ]
    agent = workload("DaemonSet", "agent", template=template(None))
    agent["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    # b lacks the label, c's taint is not tolerated; a cordoned node keeps its daemons.
    pods = made(*nodes, agent)
    assert [(p["metadata"]["name"], p["spec"]["nodeName"]) for p in pods] == [("agent-a", "a"), ("agent-d", "d")]
    there = pod("agent-xyz", agent)
    there["spec"]["nodeName"] = "a"
    assert names(made(*nodes, agent, there)) == ["agent-d"]


def test_node_affinity_says_where_a_daemon_set_runs() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    agent = workload("DaemonSet", "agent")
    agent["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    assert names(made(node("a"), node("b"), agent)) == ["agent-b"]
    terms[0]["matchFields"][0]["operator"] = "Near"
    assert complaints(node("a"), agent) == [
        (
            "DaemonSet default/agent: spec.template.spec.affinity.nodeAffinity: metadata.name: operator 'Near' is not "
            "one of In, NotIn, Exists, DoesNotExist, Gt, Lt"
        )
    ]


def test_a_dumped_daemon_set_with_pods_is_complete() -> None:
    agent = workload("DaemonSet", "agent", uid="u")
    assert made(node("a"), node("b"), agent, pod("agent-xyz", agent)) == []


def test_pods_for_another_scheduler_are_reported_not_made() -> None:
    web = workload("Deployment", "web", replicas=3, template=template(None))
    out, problems = expand([web, pod("web-7f-aa", labels={})])
    assert names(out) == ["web-7f-aa"]
    assert [str(p) for p in problems] == [
        (
            "Deployment default/web: schedulerName: 3 pods that are not in the input are for default-scheduler: not "
            "decided on, and they use no room here"
        )
    ]
    assert len(expand([web], ("default-scheduler",))[0]) == 3


def test_a_complete_dump_has_nothing_to_add_or_to_report() -> None:
    web = workload("Deployment", "web", uid="d", replicas=1, template=template(None))
    rs = workload("ReplicaSet", "web-7f", uid="r", replicas=1, template=template(None))
    rs["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d"}]
    old = workload("ReplicaSet", "web-6e", uid="s", replicas=0, template=template(None))
    one = pod("web-7f-aa", rs)
    assert expand([web, rs, old, one]) == ([one], [])


def test_unknown_kinds_pass_through() -> None:
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    assert expand([cron, node]) == ([cron, node], [])


def test_a_job_given_again_is_planned_as_edited() -> None:
    # The dump has the job with 2 pods running; the edited file asks for 4: two more, and the user is told.
    dump = job(parallelism=2, completions=2, uid="u1")
    running = [pod("x-a", dump), pod("x-b", dump)]
    out, problems = expand([dump, *running, job(parallelism=4, completions=4)])
    assert names(out) == ["x-a", "x-b", "x-0", "x-1"]
    assert [str(p) for p in problems] == ["Job default/x: metadata.name: given twice: the last one is planned"]


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (
            job(parallelism=-1),
            "Job default/x: spec.parallelism: is -1: must be an integer from 0 to 200000",
        ),
        (
            job(parallelism="three"),
            "Job default/x: spec.parallelism: is 'three': must be an integer from 0 to 200000",
        ),
        (
            job(template={}),
            "Job default/x: spec.template.spec.containers: missing: must list at least one container",
        ),
        (
            job(parallelism=2, completionMode="Indexed"),
            "Job default/x: spec.completions: missing: an Indexed job must say how many",
        ),
        (
            job(parallelism=1, completions=2, completionMode="Indexed") | {"status": {"completedIndexes": "a"}},
            "Job default/x: status.completedIndexes: is 'a': must be ranges like \"1,3-5\"",
        ),
        (
            workload("Deployment", "web", replicas=10**10),
            "Deployment default/web: spec.replicas: is 10000000000: must be an integer from 0 to 200000",
        ),
        (
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {}},
            "Job default/: metadata.name: missing: the workload is left out",
        ),
        (
            vc := {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}},
            "Job default/v: spec.tasks: missing: must list at least one task",
        ),
        (
            vc | {"spec": {"tasks": [{"template": template()}]}},
            "Job default/v: spec.tasks[0].replicas: missing: must be an integer >= 0",
        ),
        (
            vc | {"spec": {"tasks": [{"name": "a", "replicas": 1, "template": template()}] * 2}},
            "Job default/v: spec.tasks[1].name: a names two tasks: their pods would have one name",
        ),
        (
            vc | {"spec": {"minAvailable": 3, "tasks": [{"replicas": 2, "template": template()}]}},
            "Job default/v: spec.minAvailable: is 3: must be at most the 2 replicas of all tasks",
        ),
    ],
)
def test_a_broken_workload_is_one_line_and_the_rest_is_planned(broken: Json, line: str) -> None:
    out, problems = expand([broken, job("good")])
    assert [str(problem) for problem in problems] == [line]
    assert names(out) == ["good-0"]


# Volcano Job


def vcjob(uid: str = "", **spec: Any) -> Json:
    tasks = [
        {"name": "ps", "replicas": 1, "template": template(None)},
        {"name": "worker", "replicas": 3, "minAvailable": 2, "template": template(None)},
    ]
    metadata = {"name": "tf", "namespace": "ml"} | ({"uid": uid} if uid else {})
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"tasks": tasks, **spec},
    }


def test_a_volcano_job_becomes_its_group_and_pods() -> None:
    one = vcjob(uid="1234", minAvailable=2, queue="research", priorityClassName="high")
    both = [one, {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}]
    (group,) = made(*both, kind="PodGroup")
    assert group["metadata"]["name"] == "tf-1234"
    assert group["spec"] == {
        "minMember": 2,
        "minTaskMember": {"ps": 1, "worker": 2},
        "queue": "research",
        "priorityClassName": "high",
        "minResources": {"cpu": "2"},
    }
    pods = made(*both)
    assert names(pods) == ["tf-ps-0", "tf-worker-0", "tf-worker-1", "tf-worker-2"]
    assert {p["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for p in pods} == {"tf-1234"}
    assert {p["spec"]["schedulerName"] for p in pods} == {"volcano"}
    assert {p["spec"]["priority"] for p in pods} == {100}
    assert pods[3]["metadata"]["annotations"]["volcano.sh/task-index"] == "2"


def test_a_volcano_job_without_minimum_needs_the_minimum_of_every_task() -> None:
    (group,) = made(vcjob(), kind="PodGroup")
    assert group["metadata"]["name"] == "tf"
    assert group["spec"]["minMember"] == 1 + 2
    assert group["spec"]["queue"] == "default"


@pytest.mark.parametrize(
    ("minimum", "cpu"),
    [
        (1, "4"),  # below the tasks' minimums (1 + 2): the first by priority, one worker of 4 CPUs
        (3, "9"),  # their minimums: 1 * 1 + 2 * 4
        (4, "13"),  # and one more of the most important task
    ],
)
def test_min_resources_are_those_of_the_most_important_pods(minimum: int, cpu: str) -> None:
    one = vcjob(minAvailable=minimum)
    worker = one["spec"]["tasks"][1]["template"]["spec"]
    worker["priorityClassName"] = "high"
    worker["containers"][0]["resources"]["requests"]["cpu"] = "4"
    high = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    (group,) = made(high, one, kind="PodGroup")
    assert group["spec"]["minResources"] == {"cpu": cpu}


def test_group_and_pods_of_a_volcano_job_are_not_doubled() -> None:
    one = vcjob(uid="1234")
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": "tf-1234",
            "namespace": "ml",
            "ownerReferences": [{"apiVersion": one["apiVersion"], "kind": "Job", "name": "tf", "uid": "1234"}],
        },
    }
    there = pod("tf-worker-1", one, namespace="ml")
    assert names(made(one, group, there)) == ["tf-ps-0", "tf-worker-0", "tf-worker-2"]
    assert made(one, group, there, kind="PodGroup") == []


def test_an_aborted_volcano_job_is_held_and_a_completed_one_is_over() -> None:
    aborted = vcjob() | {"status": {"state": {"phase": "Aborted"}}}
    assert {p["metadata"]["annotations"][HOLD] for p in made(aborted)} == {"Suspended: job ml/tf is aborted"}
    assert made(vcjob() | {"status": {"state": {"phase": "Completed"}}}) == []


def test_a_kubernetes_job_and_a_volcano_job_of_one_name_are_two() -> None:
    theirs = vcjob()
    theirs["metadata"] = {"name": "x"}
    assert len(made(theirs, job())) == 4 + 1


def test_group_min_member_on_an_owner_makes_its_pods_one_gang() -> None:
    annotations = {"scheduling.volcano.sh/group-min-member": "2", "volcano.sh/preemptable": "true", "note": "mine"}
    one = job(
        "mpi", parallelism=3, template=template("volcano", annotations={"scheduling.volcano.sh/queue-name": "hpc"})
    )
    one["metadata"]["annotations"] = annotations
    (group,) = made(one, kind="PodGroup")
    assert group["metadata"] == {
        "name": "podgroup-mpi",
        "namespace": "default",
        "annotations": {"volcano.sh/preemptable": "true"},
    }
    assert group["spec"] == {"minMember": 2, "queue": "hpc"}
    assert {p["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for p in made(one)} == {"podgroup-mpi"}
    assert made(one, group, kind="PodGroup") == []
    annotations["scheduling.volcano.sh/group-min-member"] = "two"
    assert complaints(one) == [
        (
            "Job default/mpi: metadata.annotations[scheduling.volcano.sh/group-min-member]: is 'two': must be "
            'an integer like "4"'
        )
    ]


# admission of what was made


def test_made_pods_are_admitted_and_share_their_spec() -> None:
    ranges = {
        "kind": "LimitRange",
        "metadata": {"name": "lr"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]},
    }
    pods = made(ranges, job(parallelism=3))
    assert pods[0]["spec"]["containers"][0]["resources"]["requests"] == {"memory": "1Gi", "cpu": "1"}
    assert pods[0]["spec"] is pods[2]["spec"]


def test_a_missing_class_is_reported_for_the_workload() -> None:
    bad = template(annotations={})
    bad["spec"]["priorityClassName"] = "gold"
    assert complaints(job(parallelism=3, template=bad)) == [
        (
            "Job default/x: template.spec.priorityClassName: PriorityClass gold is not in the input: priority 0 is "
            "assumed"
        )
    ]


def test_ephemeral_volumes_of_made_pods_bring_their_claims() -> None:
    scratch = template()
    source = {"volumeClaimTemplate": {"spec": {"storageClassName": "s"}}}
    scratch["spec"]["volumes"] = [{"name": "tmp", "ephemeral": source}]
    (claim,) = made(job(template=scratch), kind="PersistentVolumeClaim")
    assert claim["metadata"] == {"name": "x-0-tmp", "namespace": "default"}
    assert claim["spec"] == {"storageClassName": "s"}


# whatever the input


JUNK: st.SearchStrategy[Any] = st.sampled_from([None, True, False, -2, 0, 3, 1.5, "", "x", "1", [], {}, [1], {"a": 1}])


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for step, inner in steps for found in [(*at, step), *paths(inner, (*at, step))]]


@given(st.data())
def test_no_field_of_a_wrong_type_stops_the_rest(data: st.DataObject) -> None:
    claims = [{"metadata": {"name": "data"}, "spec": {}}]
    one = job(uid="u", parallelism=2, completions=2, completionMode="Indexed") | {"status": {"completedIndexes": "0"}}
    given_objects = [
        node("n1", {"taints": [{"key": "k", "effect": "NoSchedule"}]}, disk="ssd"),
        one,
        job("many", parallelism=2, completions=9, suspend=True)
        | {"status": {"succeeded": 1, "conditions": [{"type": "x"}]}},
        pod("x-1", one, labels={"pod-template-hash": "h"}),
        vcjob(minAvailable=2, volumes=[{"mountPath": "/d", "volumeClaim": {}}]),
        workload("Deployment", "web", replicas=2),
        workload("StatefulSet", "db", replicas=2, volumeClaimTemplates=claims),
        workload("DaemonSet", "agent"),
        {
            "kind": "LimitRange",
            "metadata": {"name": "lr"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
        },
        {"kind": "RuntimeClass", "metadata": {"name": "r"}, "overhead": {"podFixed": {"cpu": "1"}}},
        {"kind": "PriorityClass", "metadata": {"name": "p"}, "value": 1, "globalDefault": True},
        {"kind": "Pod", "metadata": {"name": "raw"}, "spec": {"runtimeClassName": "r", "containers": [{"name": "c"}]}},
    ]
    objects: list[Json] = json.loads(json.dumps(given_objects))
    *way, last = data.draw(st.sampled_from([path for path in paths(objects) if len(path) > 1]))
    inner: Any = objects
    for step in way:
        inner = inner[step]
    inner[last] = data.draw(JUNK)
    out, _ = expand([*objects, job("good")])
    assert "good-0" in names([obj for obj in out if obj.get("kind") == "Pod" and isinstance(obj.get("metadata"), dict)])

"""What users see of a cycle: told in small clusters, worked out by hand.

Unless a test says otherwise there is one node n of 4 cpu, and a pod asks for 1 cpu.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solver_sched.actions.evict import Evict
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.cluster.status import Condition, GroupStatus
from solver_sched.conditions import OF_QUOTA, READY, VOTERS_OF_QUOTA, Shown
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.explain import Reason
from solver_sched.explain.reason import FOUND, HELD
from solver_sched.policy import load_policy
from solver_sched.policy.catalogue import PLUGINS
from solver_sched.snapshot import Snapshot

POLICY = load_policy("default")
VOLCANO = "scheduling.volcano.sh/v1beta1"
KUBE_BATCH = "scheduling.sigs.dev/v1alpha2"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
NATIVE = "scheduling.k8s.io/v1beta1"


def pod(name: str, group: str = "g", cpu: int = 1, **fields: Any) -> Pod:
    needs = Needs(request=(("cpu", cpu * 1000), ("pods", 1)))
    return Pod("ns", name, needs, group=f"ns/{group}" if group else None, **({"scheduler": "solver-sched"} | fields))


def runs(name: str, group: str = "g", **fields: Any) -> Pod:
    return pod(name, group, **({"node": "n", "phase": "Running"} | fields))


def group(name: str = "g", least: int = 1, dialect: str = VOLCANO, phase: str = "Inqueue", **fields: Any) -> PodGroup:
    return PodGroup("ns", name, dialect, least, **({"queue": "q", "phase": phase} | fields))


def cluster(*objects: Pod | PodGroup | Queue | Node) -> Snapshot:
    def of(kind: type) -> tuple[Any, ...]:
        return tuple(sorted((one for one in objects if isinstance(one, kind)), key=lambda one: str(one.name)))

    nodes = of(Node) or (Node("n", {"cpu": 4000, "pods": 110}),)
    return Snapshot(
        nodes=nodes, pods=of(Pod), groups=of(PodGroup), queues=of(Queue) or (Queue("q"),), now=1_767_268_800
    )


def plan(*objects: Pod | PodGroup | Queue | Node) -> CycleReport:
    return run_cycle(cluster(*objects), POLICY, Budget(2.0, apart=False))


def shown(*objects: Pod | PodGroup | Queue | Node, **options: Any) -> Shown:
    return Shown(plan(*objects), **options)


def one_group(found: Shown) -> GroupStatus:
    (only,) = found.groups
    return only


# Pods


def test_a_pod_that_lacks_room_is_unschedulable_with_numbers_and_one_that_is_placed_says_nothing() -> None:
    """`fits` is bound by this cycle; `big` asks for 5 cpu where the largest node has 4."""
    (status,) = shown(group(), pod("big", cpu=5), group("h"), pod("fits", "h")).pods()
    assert (status.pod.name, status.reason) == ("big", "Unschedulable")
    assert status.message == "Resources: asks 5 cpu, the largest eligible node has 4"


@pytest.mark.parametrize(("on", "word"), [(True, "QuotaExceeded"), (False, "Unschedulable")])
def test_a_pod_that_waits_for_quota_alone_does_not_ask_for_nodes(on: bool, word: str) -> None:
    """The queue may hold 1 cpu, the pod asks for 2; the node has 4 idle."""
    (status,) = shown(group(), pod("p", cpu=2), Queue("q", capability={"cpu": 1000}), quota_reason=on).pods()
    assert status.reason == word
    assert status.message.startswith("QueueCapability: queue q")


def test_who_is_kept_out_by_a_quota_and_who_for_want_of_nodes() -> None:
    """Both groups are Pending and refused, one by a vote about the cluster, one by a vote about its queue."""
    report = plan(group("a", phase="Pending"), pod("a-0", "a"), group("b", phase="Pending"), pod("b-0", "b"))
    reasons = {
        "ns/a": Reason("NotAdmitted", "overcommit: asks 20 cpu", {"voter": "overcommit"}),
        "ns/b": Reason("NotAdmitted", "capacity: asks 20 cpu", {"voter": "capacity"}),
    }
    found = Shown(replace(report, reasons=reasons, decisions=()))
    assert [(one.pod.name, one.reason) for one in found.pods()] == [("a-0", "Unschedulable"), ("b-0", "QuotaExceeded")]


def test_codes_and_voters_of_quota_exist() -> None:
    assert set(OF_QUOTA) <= {*FOUND, *HELD}
    assert set(VOTERS_OF_QUOTA) <= set(PLUGINS)


def test_of_a_group_that_grows_only_the_rest_waits() -> None:
    """Its minimum of one is bound by this cycle, the pod of 9 cpu is left over."""
    assert [one.pod.name for one in shown(group(), pod("a"), pod("b", cpu=9)).pods()] == ["b"]


def test_gated_pods_and_pods_of_others_are_not_written() -> None:
    found = shown(
        group(),
        pod("gated", "", gates=("x",)),
        pod("foreign", "", scheduler="default-scheduler", cpu=9),
        pod("ending", "", terminating=True),
        pod("alone", "", cpu=9),
    )
    assert [one.pod.name for one in found.pods()] == ["alone"]


def test_a_held_member_says_its_own_reason() -> None:
    """The gang of two lacks room; one of its pods must not be decided on at all."""
    found = shown(group(least=1), pod("a", cpu=9), pod("b", cpu=9, hold="Claims: device claim c is not modelled"))
    assert {one.pod.name: one.message.split(":")[0] for one in found.pods()} == {"a": "Resources", "b": "Claims"}


# Groups of Volcano and kube-batch


@pytest.mark.parametrize(
    ("pods", "phase", "counts"),
    [
        ([], "Inqueue", (None, None, None)),
        ([pod("a", cpu=9), pod("b")], "Inqueue", (None, None, None)),
        ([runs("a", phase="Pending"), runs("b")], "Running", (1, None, None)),
        ([runs("a"), runs("b", terminating=True)], "Running", (1, None, None)),
        ([runs("a"), pod("b", cpu=9)], "Unknown", (1, None, None)),
        ([runs("a"), pod("b", phase="Succeeded")], "Running", (1, 1, None)),
        ([pod("a", phase="Succeeded"), pod("b", phase="Succeeded")], "Completed", (None, 2, None)),
    ],
    ids=["no pods", "waits", "bound", "being deleted", "lost a member", "one done", "done"],
)
def test_the_phase_of_a_gang_of_two_in_volcano(
    pods: list[Pod], phase: str, counts: tuple[int | None, int | None, int | None]
) -> None:
    fields = one_group(shown(group(least=2), *pods)).fields
    assert fields["phase"] == phase
    assert (fields["running"], fields["succeeded"], fields["failed"]) == counts


def test_kube_batch_knows_no_completed_group() -> None:
    done = [pod(name, phase="Succeeded") for name in "ab"]
    assert one_group(shown(group(least=2, dialect=KUBE_BATCH), *done)).fields["phase"] == "Running"


def test_failed_pods_are_counted_from_outside() -> None:
    """Failed pods are no part of a snapshot. One of two has failed: one may run, two are needed."""
    status = one_group(shown(group(least=2), runs("a"), failed={"ns/g": 1}))
    assert (status.fields["failed"], status.fields["running"]) == (1, 1)


def test_a_group_that_is_let_in_is_inqueue() -> None:
    """Phase Pending, no pods yet: a Volcano Job makes them once the phase is Inqueue."""
    assert one_group(shown(group(phase="Pending"))).fields["phase"] == "Inqueue"


def test_why_a_gang_waits_as_volcano_says_it() -> None:
    status = one_group(shown(group(least=2), pod("a", cpu=9), pod("b")))
    (condition,) = status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Unschedulable", "True", "NotEnoughResources")
    assert condition.message.startswith("2/2 tasks in gang unschedulable: Resources: ")
    assert status.ended == ("Scheduled",)


def test_a_gang_without_all_its_members_is_told_so() -> None:
    (condition,) = one_group(shown(group(least=3), pod("a"), pod("b"))).conditions
    assert condition.reason == "NotEnoughTasks"
    assert condition.message == "2/2 tasks in gang unschedulable: GangIncomplete: 2 of 3 members exist"


def test_a_gang_that_runs_is_scheduled_and_no_longer_unschedulable() -> None:
    """It runs with its minimum of one; that a second pod waits does not make it unschedulable."""
    status = one_group(shown(group(), runs("a"), pod("b", cpu=9)))
    assert status.conditions == (Condition("Scheduled", "True", READY, "", numbered=True),)
    assert status.ended == ("Unschedulable",)
    assert status.fields["phase"] == "Running"


def test_a_group_of_another_scheduler_is_not_touched() -> None:
    assert (
        shown(
            group(), pod("a", scheduler="other"), group("h", phase="Running"), runs("b", "h", scheduler="other")
        ).groups
        == ()
    )


# Other dialects


@pytest.mark.parametrize(
    ("pods", "failed", "phase"),
    [
        ([pod("a", cpu=9)], 0, "Pending"),
        ([pod("a", cpu=9), pod("b")], 0, "Scheduling"),
        ([runs("a", phase="Pending"), runs("b")], 0, "Scheduled"),
        ([runs("a"), runs("b")], 0, "Running"),
        ([runs("a")], 1, "Failed"),
        ([pod("a", phase="Succeeded"), pod("b", phase="Succeeded")], 0, "Finished"),
    ],
)
def test_the_phase_of_a_gang_of_two_in_coscheduling(pods: list[Pod], failed: int, phase: str) -> None:
    found = shown(group(least=2, dialect=COSCHEDULING, phase=""), *pods, failed={"ns/g": failed} if failed else {})
    status = one_group(found)
    assert status.fields["phase"] == phase
    assert status.conditions == ()


def test_a_native_group_is_initially_scheduled_once() -> None:
    native = group(least=2, dialect=NATIVE, phase="")
    (waits,) = one_group(shown(native, pod("a", cpu=9), pod("b"))).conditions
    assert (waits.type, waits.status, waits.reason) == ("PodGroupInitiallyScheduled", "False", "Unschedulable")
    (stands,) = one_group(shown(native, runs("a"), runs("b"))).conditions
    assert (stands.type, stands.status, stands.once) == ("PodGroupInitiallyScheduled", "True", True)
    older = group(least=2, dialect="scheduling.k8s.io/v1alpha2", phase="")
    (condition,) = one_group(shown(older, runs("a"), runs("b"))).conditions
    assert condition.type == "PodGroupScheduled"


def test_a_native_group_that_makes_room_is_a_disruption_target() -> None:
    report = plan(group(dialect=NATIVE, phase=""), runs("a"))
    status = one_group(Shown(replace(report, reasons={"ns/g": Reason("Evicted", "preempt: gives way")})))
    assert [(one.type, one.reason) for one in status.conditions] == [
        ("PodGroupInitiallyScheduled", "Scheduled"),
        ("DisruptionTarget", "PreemptionByScheduler"),
    ]
    assert one_group(Shown(report)).ended == ("DisruptionTarget",)


# Queues


def test_a_queue_counts_its_groups_and_what_they_take_after_the_plan() -> None:
    """1 cpu runs and 1 is bound by this cycle; `w` waits for 9."""
    found = shown(group(), runs("a"), group("h"), pod("b", "h"), group("w"), pod("c", "w", cpu=9))
    (queue,) = found.queues()
    assert queue.fields == {
        "pending": 0,
        "inqueue": 2,
        "running": 1,
        "unknown": 0,
        "completed": 0,
        "allocated": {"cpu": "2", "pods": "2"},
    }
    assert queue.defaults == {"state": "Open"}


def test_a_queue_above_others_has_the_sum_of_them() -> None:
    found = shown(
        Queue("root"),
        Queue("left", parent="root"),
        Queue("right", parent="root"),
        group(queue="left"),
        runs("a"),
        group("h", queue="right"),
        runs("b", "h"),
    )
    allocated = {queue.name: queue.fields["allocated"].get("cpu") for queue in found.queues()}
    assert allocated == {"left": "1", "right": "1", "root": "2"}
    assert {queue.name: queue.fields["running"] for queue in found.queues()} == {"left": 1, "right": 1, "root": 2}


@pytest.mark.parametrize("state", ["Closing", "Closed"])
def test_a_queue_is_closed_when_its_last_group_is_gone(state: str) -> None:
    (busy,) = shown(Queue("q", state=state), group(), runs("a")).queues()
    (empty,) = shown(Queue("q", state=state)).queues()
    assert (busy.fields["state"], empty.fields["state"]) == ("Closing", "Closed")


def test_a_queue_that_is_its_own_parent_ends() -> None:
    queues = list(shown(Queue("q", parent="r"), Queue("r", parent="q"), group(), runs("a")).queues())
    assert [queue.fields["allocated"]["cpu"] for queue in queues] == ["1", "1"]


# Events


def test_events_of_a_gang_that_waits() -> None:
    told = [
        (one.regarding.kind, one.regarding.name, one.reason, one.type, one.about)
        for one in shown(group(least=2), pod("a", cpu=9), pod("b")).events()
    ]
    assert told == [
        ("Pod", "a", "FailedScheduling", "Warning", "Resources"),
        ("Pod", "b", "FailedScheduling", "Warning", "Resources"),
        ("PodGroup", "g", "Unschedulable", "Warning", "Resources"),
    ]


def test_a_gang_that_starts_is_told_once() -> None:
    """It stands; once its phase says so there is nothing to tell any more."""
    (event,) = shown(group(), runs("a")).events()
    assert (event.regarding.kind, event.reason, event.note) == ("PodGroup", "Scheduled", "pod group is ready")
    assert list(shown(group(phase="Running"), runs("a")).events()) == []
    assert list(shown(group(phase="Completed"), pod("a", phase="Succeeded")).events()) == []


def test_a_group_that_makes_room_is_told_once_for_all_its_pods() -> None:
    report = plan(group(phase="Running"), runs("a"), runs("b"))
    evictions = tuple(
        Evict("preempt", f"ns/{name}", "n", "ns/g", "q", "ns/big", "priority 0 gives way") for name in "ab"
    )
    (event,) = Shown(replace(report, decisions=evictions)).events()
    assert (event.regarding.name, event.reason, event.note) == ("g", "Evict", "preempt: priority 0 gives way")


def test_a_promised_pod_is_no_failure() -> None:
    """It waits for room that is on its way: a condition, and no event."""
    report = plan(group(), pod("a", cpu=9))
    found = Shown(replace(report, reasons={"ns/g": Reason("Nominated", "1 pod waits for room on n")}))
    assert [one.message for one in found.pods()] == ["Nominated: 1 pod waits for room on n"]
    assert list(found.events()) == []

"""Status patches: only what changed, nothing of anybody else's, the last word of several."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Pod, PodGroup
from solver_sched.cluster.rate import TokenBucket
from solver_sched.cluster.status import (
    CALM_SECONDS,
    Condition,
    GroupStatus,
    PodStatus,
    QueueStatus,
    StatusWriter,
    ensure_default_queue,
)
from tests.cluster.server import Answer, Fault, Request, Reset, Server, conflict, serving, status

VOLCANO = "scheduling.volcano.sh/v1beta1"
KUBE_BATCH = "scheduling.sigs.dev/v1alpha2"
NATIVE = "scheduling.k8s.io/v1beta1"
GROUP = f"/apis/{VOLCANO}/namespaces/ns/podgroups/g"
QUEUE = f"/apis/{VOLCANO}/queues/q"
OTHERS = {"type": "Other", "status": "True", "reason": "Theirs", "message": "stays"}


class Cache:
    """The watch is as fast as a test wants: texts are what was put here last."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.texts: dict[tuple[str, str], bytes] = {}

    def version(self, pod: Pod) -> str:
        return str(self.server.pods.get(pod.key, {}).get("metadata", {}).get("resourceVersion", ""))

    def raw(self, kind: str, key: str) -> bytes | None:
        return self.texts.get((kind, key))

    def see(self, path: str = GROUP) -> None:
        stored = self.server.objects[path]
        meta = stored["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
        self.texts[stored["kind"], key] = json.dumps(stored).encode()


class Clock:
    now = 1_767_268_800.0  # 2026-01-01T12:00:00Z

    def __call__(self) -> float:
        return self.now


@contextmanager
def writing(**options: Any) -> Iterator[tuple[Server, Cache, StatusWriter, Clock]]:
    clock = Clock()
    with serving() as (server, api):
        cache = Cache(server)
        writer = StatusWriter(api, cache, bucket=TokenBucket(0, 0), clock=clock, **({"workers": 2} | options))
        try:
            yield server, cache, writer, clock
        finally:
            writer.stop()


def pod(name: str, uid: str = "", created: int = 2**31) -> Pod:
    return Pod("ns", name, Needs(), uid=uid or f"uid-{name}", created=created)


def waits(name: str, message: str = "Resources: 1 free", reason: str = "Unschedulable", **fields: Any) -> PodStatus:
    return PodStatus(pod(name, **fields), reason, message)


def group(phase: str = "Pending", message: str = "no", dialect: str = VOLCANO, **fields: Any) -> GroupStatus:
    condition = Condition("Unschedulable", "True", "NotEnoughResources", message, numbered=True)
    return GroupStatus(PodGroup("ns", "g", dialect), {"phase": phase, **fields}, (condition,))


# Pods


def test_a_waiting_pod_gets_one_condition_with_uid_and_revision() -> None:
    with writing() as (server, _, writer, _):
        stored = server.pod("a", conditions=[OTHERS])
        writer.want([waits("a")])
        assert writer.drain(5)
        (request,) = server.requests
        assert request.type == "application/strategic-merge-patch+json"
        assert request.body == {
            "metadata": {"uid": "uid-a", "resourceVersion": "1"},
            "status": {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "Resources: 1 free",
                        "lastTransitionTime": "2026-01-01T12:00:00Z",
                    }
                ]
            },
        }
        assert OTHERS in stored["status"]["conditions"]


def test_nothing_is_written_that_says_nothing_new() -> None:
    with writing() as (server, _, writer, _):
        server.pod("a")
        for _ in range(5):
            writer.want([waits("a")])
            assert writer.drain(5)
        assert len(server.requests) == 1


def test_a_pod_that_changes_otherwise_is_not_told_again() -> None:
    with writing() as (server, _, writer, clock):
        server.pod("a")
        for label in ("1", "2", "3"):
            writer.want([PodStatus(replace(pod("a"), labels={"step": label}), "Unschedulable", "Resources: 1 free")])
            assert writer.drain(5)
            clock.now += 3600
        assert len(server.requests) == 1


def test_the_time_changes_with_the_status_alone() -> None:
    """Another cause an hour later is another message of the same condition, which is False all the time."""
    with writing() as (server, _, writer, clock):
        stored = server.pod("a")
        writer.want([waits("a")])
        assert writer.drain(5)
        clock.now += 3600
        writer.want([waits("a", "QueueShare: full", "QuotaExceeded")])
        assert writer.drain(5)
        (condition,) = stored["status"]["conditions"]
        assert (condition["reason"], condition["lastTransitionTime"]) == ("QuotaExceeded", "2026-01-01T12:00:00Z")


def test_other_numbers_in_the_sentence_can_wait() -> None:
    """Told at once would be a write for each pod and cycle. Another reason is."""
    with writing() as (server, _, writer, clock):
        server.pod("a")
        writer.want([waits("a", "Resources: 1 free")])
        assert writer.drain(5)
        clock.now += 1
        writer.want([waits("a", "Resources: 2 free")])
        assert not writer.drain(0.2)
        assert len(server.requests) == 1
    with writing() as (server, _, writer, clock):
        server.pod("a")
        writer.want([waits("a", "Resources: 1 free")])
        assert writer.drain(5)
        clock.now += CALM_SECONDS
        writer.want([waits("a", "Resources: 2 free")])
        assert writer.drain(5)
        assert len(server.requests) == 2


def test_another_reason_does_not_wait_behind_other_numbers() -> None:
    with writing() as (server, _, writer, clock):
        stored = server.pod("a")
        writer.want([waits("a", "Resources: 1 free")])
        assert writer.drain(5)
        clock.now += 1
        writer.want([waits("a", "Resources: 2 free")])
        assert not writer.drain(0.2)
        writer.want([waits("a", "QueueShare: full", "QuotaExceeded")])
        writer.drain(0.5)
        assert len(server.requests) == 2
        assert stored["status"]["conditions"][0]["reason"] == "QuotaExceeded"


def test_the_more_objects_the_longer_numbers_can_wait() -> None:
    """2,000 pods: a minute. All but one are of no interest here, and already said what they say."""
    with writing(workers=0) as (_, _, writer, clock):
        crowd = [waits(f"p{i}") for i in range(2000)]
        writer.want(crowd)
        memory = writer._memory["Pod", "uid-p0"]
        memory.settled, memory.at = crowd[0], clock.now
        clock.now += 45
        assert writer._calm(memory, waits("p0", "Resources: 2 free")) == 15
        assert writer._calm(memory, waits("p0", "QueueShare: full", "QuotaExceeded")) is None
        clock.now += 15
        assert writer._calm(memory, waits("p0", "Resources: 2 free")) is None


def test_a_pod_that_was_bound_in_the_meantime_is_not_said_to_wait() -> None:
    """The cache has revision 1; the pod has been bound since."""
    with writing() as (server, cache, writer, _):
        stored = server.pod("a")
        cache.version = lambda pod: "1"  # type: ignore[method-assign]
        stored["spec"]["nodeName"] = "n1"
        stored["metadata"]["resourceVersion"] = "2"
        writer.want([waits("a")])
        assert writer.drain(5)
        assert [request.method for request in server.requests] == ["PATCH", "GET"]
        assert "conditions" not in stored["status"]


def test_a_pod_that_somebody_else_patched_is_written_all_the_same() -> None:
    with writing() as (server, cache, writer, _):
        stored = server.pod("a")
        cache.version = lambda pod: "0"  # type: ignore[method-assign]
        writer.want([waits("a")])
        assert writer.drain(5)
        assert [request.method for request in server.requests] == ["PATCH", "GET", "PATCH"]
        assert stored["status"]["conditions"][0]["type"] == "PodScheduled"


def test_a_condition_of_an_earlier_scheduler_is_read_before_it_is_changed() -> None:
    """Two pods older than this process; one says already what we would say, the other something else since 11:00."""
    theirs = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    with writing() as (server, _, writer, _):
        server.pod("a", conditions=[theirs | {"message": "Resources: 1 free", "lastTransitionTime": "11:00"}])
        other = server.pod("b", conditions=[theirs | {"message": "old", "lastTransitionTime": "11:00"}])
        writer.want([waits("a", created=1), waits("b", created=1)])
        assert writer.drain(5)
        assert len(server.sent("PATCH")) == 1
        (condition,) = other["status"]["conditions"]
        assert (condition["message"], condition["lastTransitionTime"]) == ("Resources: 1 free", "11:00")


def test_a_new_leader_reads_what_the_last_one_wrote() -> None:
    """The pod came after this process had started, and another one led then."""
    theirs = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "11:00"}
    with writing() as (server, _, writer, clock):
        stored = server.pod("a", conditions=[theirs | {"message": "old"}])
        clock.now += 3600
        writer.begin()
        writer.want([waits("a", created=int(clock.now) - 1800)])
        assert writer.drain(5)
        assert [request.method for request in server.requests] == ["GET", "PATCH"]
        (condition,) = stored["status"]["conditions"]
        assert (condition["message"], condition["lastTransitionTime"]) == ("Resources: 1 free", "11:00")


def test_what_is_not_wanted_any_more_is_not_written() -> None:
    """a is to be told while the server is busy; then it is not among those that wait."""
    with writing(workers=1) as (server, _, writer, _):
        server.pod("a")
        server.script = lambda request: status(429, "TooManyRequests", Retry_After="1")
        writer.want([waits("a")])
        time.sleep(0.3)
        assert len(server.requests) == 1
        server.script = lambda request: None
        writer.want([])
        assert writer.drain(5)
        assert len(server.requests) == 1
        assert writer._memory == {}


def test_a_newer_value_takes_the_place_of_one_that_waits() -> None:
    with writing(workers=1) as (server, _, writer, _):
        stored = server.pod("a")
        server.script = lambda r: status(429, "TooManyRequests") if len(server.requests) == 1 else None
        writer.want([waits("a", "old")])
        time.sleep(0.02)
        writer.want([waits("a", "new", "QuotaExceeded")])
        assert writer.drain(5)
        assert stored["status"]["conditions"][0]["message"] == "new"
        assert len(server.requests) == 2


def test_a_successor_of_the_same_name_is_not_touched() -> None:
    with writing() as (server, _, writer, _):
        stored = server.pod("a", uid="successor")
        writer.want([waits("a", uid="old")])
        assert writer.drain(5)
        assert "conditions" not in stored["status"]


def test_nothing_is_written_without_the_lease_or_in_a_dry_run() -> None:
    for options in ({"may_send": lambda: False}, {"dry_run": True}):
        with writing(**options) as (server, _, writer, _):
            server.pod("a")
            writer.want([waits("a")])
            assert writer.drain(5)
            assert server.requests == []


# Groups


@pytest.mark.parametrize("whole", [True, False], ids=["without subresource", "with subresource"])
def test_a_group_is_patched_where_its_status_is_served(whole: bool) -> None:
    with writing() as (server, cache, writer, _):
        server.whole = (GROUP,) if whole else ()
        server.put(GROUP, VOLCANO, spec={"minMember": 2}, status={"phase": "Pending", "theirs": 1})
        cache.see()
        writer.want([group("Inqueue", running=1)])
        assert writer.drain(5)
        stored = server.objects[GROUP]
        assert {key: value for key, value in stored["status"].items() if key != "conditions"} == {
            "phase": "Inqueue",
            "theirs": 1,
            "running": 1,
        }
        assert stored["spec"] == {"minMember": 2}


def test_conditions_of_others_are_carried_over() -> None:
    """A list in a merge patch replaces the whole list."""
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO, status={"phase": "Pending", "conditions": [OTHERS]})
        cache.see()
        writer.want([group()])
        assert writer.drain(5)
        first, second = server.objects[GROUP]["status"]["conditions"]
        assert first == OTHERS
        assert (second["type"], second["status"], second["message"]) == ("Unschedulable", "True", "no")
        assert second["lastTransitionTime"] == "2026-01-01T12:00:00Z"
        assert second["transitionID"]


@pytest.mark.parametrize(
    ("there", "kept"),
    [("none", []), ({"a": 1}, []), ([7, None], [7, None]), ([{"type": 5}, OTHERS], [{"type": 5}, OTHERS])],
    ids=["text", "object", "no objects", "no type"],
)
def test_conditions_that_nobody_can_read_are_no_trouble(there: object, kept: list[object]) -> None:
    """A definition without schema lets anything in. Entries are kept; what is no list gives way to one."""
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO, status={"phase": "Pending", "conditions": there})
        cache.see()
        writer.want([group()])
        assert writer.drain(5)
        *others, ours = server.objects[GROUP]["status"]["conditions"]
        assert others == kept
        assert ours["type"] == "Unschedulable"


def test_a_condition_that_came_in_between_is_not_overwritten() -> None:
    """The cache does not know it yet: the first patch is refused, the second is made on what is there now."""
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        server.objects[GROUP]["status"]["conditions"] = [OTHERS]
        server.objects[GROUP]["metadata"]["resourceVersion"] = "77"
        writer.want([group()])
        assert writer.drain(5)
        assert [request.method for request in server.requests] == ["PATCH", "GET", "PATCH"]
        assert OTHERS in server.objects[GROUP]["status"]["conditions"]
        assert len(server.objects[GROUP]["status"]["conditions"]) == 2


def test_the_time_of_a_group_condition_changes_with_its_status_alone() -> None:
    with writing() as (server, cache, writer, clock):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        for message in ("no", "still no"):
            cache.see()
            writer.want([group(message=message)])
            assert writer.drain(5)
            clock.now += 3600
        (condition,) = server.objects[GROUP]["status"]["conditions"]
        assert (condition["message"], condition["lastTransitionTime"]) == ("still no", "2026-01-01T12:00:00Z")


def test_a_group_that_says_it_already_is_left_alone_before_and_after_the_watch_shows_it() -> None:
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        for _ in range(3):
            writer.want([group()])
            assert writer.drain(5)
        cache.see()
        for _ in range(3):
            writer.want([group()])
            assert writer.drain(5)
        assert len(server.requests) == 1


def test_two_changes_in_a_row_are_both_written_though_the_watch_is_late() -> None:
    with writing() as (server, cache, writer, clock):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        writer.want([group("Inqueue")])
        assert writer.drain(5)
        clock.now += 5
        writer.want([GroupStatus(PodGroup("ns", "g", VOLCANO), {"phase": "Running"}, (), ("Unschedulable",))])
        assert writer.drain(5)
        assert [request.method for request in server.requests] == ["PATCH", "PATCH"]
        stored = server.objects[GROUP]["status"]
        (condition,) = stored["conditions"]
        assert (stored["phase"], condition["status"], condition["lastTransitionTime"]) == (
            "Running",
            "False",
            "2026-01-01T12:00:05Z",
        )


def test_a_field_that_somebody_else_holds_otherwise_is_not_fought_over() -> None:
    """Another controller sets the phase back each time: one write in half a minute, not one a cycle."""
    with writing() as (server, cache, writer, clock):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        writer.want([group("Inqueue")])
        assert writer.drain(5)
        for _ in range(5):
            clock.now += 1
            server.objects[GROUP]["status"]["phase"] = "Pending"
            server.objects[GROUP]["metadata"]["resourceVersion"] = str(clock.now)
            cache.see()
            writer.want([group("Inqueue")])
            writer.drain(0.1)
        assert len(server.requests) == 1


def test_the_native_condition_never_goes_back() -> None:
    path = f"/apis/{NATIVE}/namespaces/ns/podgroups/g"
    initially = "PodGroupInitiallyScheduled"

    def native(value: str, word: str) -> GroupStatus:
        return GroupStatus(PodGroup("ns", "g", NATIVE), {}, (Condition(initially, value, word, "", once=True),))

    with writing() as (server, cache, writer, _):
        server.put(path, NATIVE, status={"conditions": [OTHERS]})
        cache.see(path)
        for value, word in (("False", "Unschedulable"), ("True", "Scheduled"), ("False", "Unschedulable")):
            writer.want([native(value, word)])
            assert writer.drain(5)
            cache.see(path)
        assert {request.type for request in server.requests} == {"application/strategic-merge-patch+json"}
        others, ours = server.objects[path]["status"]["conditions"]
        assert (others, ours["status"], ours["reason"]) == (OTHERS, "True", "Scheduled")
        assert len(server.requests) == 2


def test_an_answer_that_is_no_object_is_none() -> None:
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        answers: list[Fault | None] = [Answer(200, b"<html>"), conflict(), Answer(200, b"[]")]
        server.script = lambda request: answers.pop(0) if answers else None
        writer.want([group("Inqueue")])
        assert writer.drain(5)
        assert server.objects[GROUP]["status"]["phase"] == "Inqueue"


def test_a_group_that_is_gone_is_no_trouble() -> None:
    with writing() as (server, cache, writer, _):
        server.put(GROUP, VOLCANO)
        cache.see()
        del server.objects[GROUP]
        writer.want([group()])
        assert writer.drain(5)
        assert len(server.sent("PATCH")) == 2


# Queues


def test_a_queue_says_what_is_allocated_and_no_more() -> None:
    """cpu changes, memory is not used any longer, the state is somebody else's."""
    with writing() as (server, cache, writer, _):
        server.put(QUEUE, VOLCANO, status={"state": "Closing", "allocated": {"cpu": "1", "memory": "1Gi"}})
        cache.see(QUEUE)
        writer.want([QueueStatus("q", {"pending": 2, "allocated": {"cpu": "2"}}, {"state": "Open"})])
        assert writer.drain(5)
        assert server.objects[QUEUE]["status"] == {"state": "Closing", "allocated": {"cpu": "2"}, "pending": 2}


def test_a_queue_without_a_state_is_open_and_one_of_kube_batch_has_none() -> None:
    other = f"/apis/{KUBE_BATCH}/queues/r"
    with writing() as (server, cache, writer, _):
        server.put(QUEUE, VOLCANO)
        server.put(other, KUBE_BATCH)
        cache.see(QUEUE)
        cache.see(other)
        writer.want([QueueStatus(name, {"pending": 1, "inqueue": 2}, {"state": "Open"}) for name in "qr"])
        assert writer.drain(5)
        assert server.objects[QUEUE]["status"] == {"pending": 1, "inqueue": 2, "state": "Open"}
        assert server.objects[other]["status"] == {"pending": 1}


def test_a_queue_that_is_only_implied_is_not_written() -> None:
    with writing() as (server, _, writer, _):
        writer.want([QueueStatus("default", {"pending": 1})])
        assert writer.drain(5)
        assert server.requests == []


def test_the_default_queue_is_made_where_queues_are_served() -> None:
    """Volcano's is there, kube-batch's first API is served, its second is not."""
    with serving() as (server, api):
        server.put(f"/apis/{VOLCANO}/queues/default", VOLCANO)

        def script(request: Request) -> Fault | None:
            return status(404, "NotFound") if "incubator" in request.path else None

        server.script = script
        assert ensure_default_queue(api) == [KUBE_BATCH]
        made = server.objects[f"/apis/{KUBE_BATCH}/queues/default"]
        assert (made["metadata"]["name"], made["spec"]) == ("default", {"weight": 1})


FAULTS: list[Fault | None] = [None, conflict(), status(503, "ServiceUnavailable"), Reset(), Reset(acts=True)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FAULTS), st.booleans()), max_size=6), st.lists(st.booleans(), max_size=3))
def test_two_writers_keep_what_each_has_written(answers: list[tuple[Fault | None, bool]], seen: list[bool]) -> None:
    """Before some of our requests another writer adds a condition and counts. Both end with their last word."""
    with pytest.MonkeyPatch.context() as patch, writing() as (server, cache, writer, clock):
        patch.setattr("solver_sched.cluster.rate._FIRST", 0.002)
        server.put(GROUP, VOLCANO, status={"phase": "Pending"})
        cache.see()
        rest, theirs = iter(answers), [0]

        def script(_request: Request) -> Fault | None:
            fault, writes = next(rest, (None, False))
            if writes:
                theirs[0] += 1
                stored = server.objects[GROUP]
                stored["status"].setdefault("conditions", []).append(OTHERS | {"type": f"Other-{theirs[0]}"})
                stored["status"]["theirs"] = theirs[0]
                server._changed(stored["metadata"])
            return fault

        server.script = script
        phases = ["Inqueue", "Running", "Completed", "Inqueue"][: len(seen) + 1]
        for phase, shows in zip(phases, [*seen, True], strict=True):
            writer.want([group(phase, message=phase)])
            assert writer.drain(10)
            clock.now += CALM_SECONDS
            if shows:
                cache.see()
        found = server.objects[GROUP]["status"]
        by_type = {one["type"]: one for one in found["conditions"]}
        assert by_type.keys() == {"Unschedulable", *(f"Other-{i + 1}" for i in range(theirs[0]))}
        assert (found["phase"], by_type["Unschedulable"]["message"]) == (phases[-1], phases[-1])
        assert found.get("theirs", 0) == theirs[0]


def test_what_fails_on_and_on_is_tried_more_rarely_and_written_in_the_end() -> None:
    """Eight conflicts in a row; then a pause, here of half a second, after which nobody else has written."""
    with pytest.MonkeyPatch.context() as patch, writing() as (server, cache, writer, _):
        patch.setattr("solver_sched.cluster.rate._FIRST", 0.001)
        patch.setattr("solver_sched.cluster.status.AGAIN_SECONDS", 0.5)
        server.put(GROUP, VOLCANO, status={"phase": "Inqueue"})
        cache.see()
        server.script = lambda request: (
            conflict() if request.method == "PATCH" and len(server.sent("PATCH")) <= 8 else None
        )
        writer.want([group()])
        assert writer.drain(10)
        *_, eighth, ninth = server.sent("PATCH")
        assert len(server.sent("PATCH")) == 9
        assert ninth.at - eighth.at >= 0.5
        assert server.objects[GROUP]["status"]["phase"] == "Pending"

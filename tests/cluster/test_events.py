"""Events: what is sent, what is counted instead, and what is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from solver_sched.cluster.events import LONGEST_NOTE, Event, Events, Ref, shortened
from solver_sched.cluster.rate import TokenBucket
from tests.cluster.server import Request, Reset, Server, serving, status

BASE = "/apis/events.k8s.io/v1/namespaces/ns/events"
POD = Ref("v1", "Pod", "ns", "a", "uid-a")


class Clock:
    def __init__(self) -> None:
        self.now = 1_767_268_800.25  # 2026-01-01T12:00:00.25Z

    def __call__(self) -> float:
        return self.now


@contextmanager
def telling(**options: Any) -> Iterator[tuple[Server, Events, Clock]]:
    clock = Clock()
    with serving() as (server, api):
        events = Events(api, bucket=TokenBucket(0, 0), clock=clock, **({"workers": 1} | options))
        try:
            yield server, events, clock
        finally:
            events.stop()


def failed(note: str, about: str = "Resources", regarding: Ref = POD) -> Event:
    return Event(regarding, "FailedScheduling", "Scheduling", note, "Warning", about=about)


def test_an_event_as_the_api_server_wants_it() -> None:
    with telling() as (server, events, _):
        group = Ref("scheduling.volcano.sh/v1beta1", "PodGroup", "ns", "g", "uid-g")
        events.tell(Event(POD, "Preempted", "Preempting", "gives way", related=group))
        assert events.drain(5)
        (request,) = server.requests
        assert request.path == BASE
        body = request.body
        assert body.pop("metadata")["namespace"] == "ns"
        assert body.pop("reportingInstance").startswith("solver-sched-")
        assert body == {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "eventTime": "2026-01-01T12:00:00.250000Z",
            "reportingController": "solver-sched",
            "action": "Preempting",
            "reason": "Preempted",
            "type": "Normal",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"},
            "related": {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "namespace": "ns",
                "name": "g",
                "uid": "uid-g",
            },
            "note": "gives way",
        }


def test_the_same_again_is_counted_and_written_every_three_minutes() -> None:
    """Told every second for 400 s with other numbers: one event, then its series at 181 s and 362 s."""
    with telling() as (server, events, clock):
        for second in range(400):
            clock.now += 1
            events.tell(failed(f"Resources: {second} free"))
            assert events.drain(5)
        created, *series = server.requests
        assert created.method == "POST"
        assert [(request.method, request.body["series"]["count"]) for request in series] == [
            ("PATCH", 181),
            ("PATCH", 361),
        ]
        assert {request.path.rsplit("/", 1)[1] for request in series} == {created.body["metadata"]["name"]}


def test_another_cause_another_pod_and_a_long_silence_are_events_of_their_own() -> None:
    with telling() as (server, events, clock):
        events.tell(failed("1 free"))
        events.tell(failed("queue full", about="QueueCapability"))
        events.tell(failed("1 free", regarding=Ref("v1", "Pod", "ns", "b", "uid-b")))
        assert events.drain(5)
        clock.now += 601
        events.tell(failed("1 free"))
        assert events.drain(5)
        assert len(server.sent("POST")) == 4
        assert len(server.objects) == 4


def test_a_full_queue_drops_the_oldest_and_counts_it() -> None:
    """Nothing gets through while nobody leads; of five, the two newest are kept waiting, then given up as well."""
    with telling(limit=2, workers=0) as (server, events, _):
        for name in "abcde":
            events.tell(failed("no", regarding=Ref("v1", "Pod", "ns", name, name)))
        assert events.dropped == 3
        events.stop()
        assert events.dropped == 5
        assert server.requests == []


def test_the_newest_get_through_when_the_queue_was_full() -> None:
    with telling(limit=2, workers=0) as (server, events, _):
        for name in "abc":
            events.tell(failed("no", regarding=Ref("v1", "Pod", "ns", name, name)))
        events._lane._start()
        assert events.drain(5)
        assert [request.body["regarding"]["name"] for request in server.requests] == ["b", "c"]


def test_what_made_room_while_it_was_sent_is_told_again() -> None:
    """Two may wait. While a is on its way b and c come, so that a is dropped; then it is told of again, and b goes."""
    with telling(limit=2) as (server, events, _):
        told = {name: failed("no", regarding=Ref("v1", "Pod", "ns", name, name)) for name in "abc"}

        def script(request: Request) -> None:
            if len(server.requests) == 1:
                for name in "bca":
                    events.tell(told[name])

        server.script = script
        events.tell(told["a"])
        assert events.drain(5)
        assert [request.body["regarding"]["name"] for request in server.requests] == ["a", "c", "a"]
        assert not any(series.queued for series in events._series.values())


def test_a_lost_answer_makes_no_second_event() -> None:
    with telling() as (server, events, _):
        server.script = lambda request: Reset(acts=True) if len(server.requests) == 1 else None
        events.tell(failed("no"))
        assert events.drain(5)
        assert len(server.objects) == 1
        assert events.dropped == 0


def test_an_event_that_has_expired_is_told_anew() -> None:
    with telling() as (server, events, clock):
        events.tell(failed("no"))
        assert events.drain(5)
        server.objects.clear()
        clock.now += 200
        events.tell(failed("no"))
        assert events.drain(5)
        assert [request.method for request in server.requests] == ["POST", "PATCH", "POST"]
        assert len(server.objects) == 1


def test_what_is_refused_is_dropped_and_the_next_one_gets_through() -> None:
    with telling() as (server, events, _):
        server.script = lambda request: status(403, "Forbidden") if len(server.requests) == 1 else None
        events.tell(failed("one", about="1"))
        events.tell(failed("two", about="2"))
        assert events.drain(5)
        assert events.dropped == 1
        assert [body["note"] for body in server.objects.values()] == ["two"]


def test_the_uid_of_a_group_is_looked_up() -> None:
    """`kubectl describe` asks for events of the uid."""
    text = b'{"metadata":{"name":"g","namespace":"ns","uid":"uid-g"}}'
    with telling(raw=lambda kind, key: text if (kind, key) == ("PodGroup", "ns/g") else None) as (server, events, _):
        events.tell(failed("no", regarding=Ref("scheduling.volcano.sh/v1beta1", "PodGroup", "ns", "g")))
        assert events.drain(5)
        assert server.requests[0].body["regarding"]["uid"] == "uid-g"


def test_nothing_is_told_without_the_lease() -> None:
    with telling(may_send=lambda: False) as (server, events, _):
        events.tell(failed("no"))
        assert events.drain(5)
        assert (server.requests, events.dropped) == ([], 1)


@pytest.mark.parametrize("note", ["x" * 5000, "ä" * 5000, "x" + "ä" * 5000])
def test_a_long_note_is_cut_at_a_character(note: str) -> None:
    cut = shortened(note)
    assert LONGEST_NOTE - 2 <= len(cut.encode()) <= LONGEST_NOTE
    assert cut.endswith("...")
    assert note.startswith(cut[:-3])


def test_memory_does_not_grow_with_time() -> None:
    """A pod each second for 1,000 s: the series of the last 600 s are known."""
    with telling() as (_, events, clock):
        for second in range(1000):
            clock.now += 1
            events.tell(failed("no", regarding=Ref("v1", "Pod", "ns", f"p{second}", f"u{second}")))
        assert events.drain(20)
        clock.now += 1
        events.tell(failed("no"))
        assert len(events._series) <= 602

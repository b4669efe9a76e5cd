"""List, then watch, against a server that breaks off, repeats, forgets and refuses: what the cache is told of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from kubernetes.client import Configuration
from msgspec import Raw

from solver_sched.cluster import watch
from solver_sched.cluster.api import Api
from solver_sched.cluster.kinds import POD, Kind
from solver_sched.cluster.watch import Watches
from tests.cluster.server import Answer, Fault, Request, Reset, serving, status

BOUND = 20.0
"""Seconds within which a thread of this machine gets its turn."""
LIST, CORE = "/api/v1/pods", "/api/v1"
BATCH = Kind("PodGroup", ("scheduling.sigs.dev/v1alpha2",), "podgroups", True, built_in=False)
EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version", "metadata": {}}


def pod(name: str, revision: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(revision)}}


def listed(revision: int, *pods: dict[str, Any], more: str | None = None) -> Answer:
    return Answer(200, {"metadata": {"resourceVersion": str(revision), "continue": more}, "items": list(pods)})


def event(kind: str, what: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


def bookmark(revision: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(revision)}})


def watched(*chunks: bytes) -> Answer:
    """A watch that ends in good order after these."""
    return Answer(200, chunks=chunks)


def torn(*chunks: bytes) -> Answer:
    """A watch whose connection breaks after these."""

    def parts() -> Iterator[bytes]:
        yield from chunks
        raise ConnectionError

    return Answer(200, chunks=parts())


@dataclass
class Told:
    """What the cache was told: `("list", names...)` or `(type, name)`, in order; `pods` as it follows from that."""

    said: list[tuple[str, ...]] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    alive_at: list[float] = field(default_factory=list)
    fails: int = 0

    def replace(self, kind: Kind, version: str, objects: Sequence[bytes | Raw]) -> None:
        found = [json.loads(bytes(one))["metadata"] for one in objects]
        self.versions.append(version)
        self.pods = {one["name"]: one["resourceVersion"] for one in found}
        self.said.append(("list", *(one["name"] for one in found)))

    def apply(self, kind: Kind, version: str, gone: bool, raw: bytes | Raw) -> None:
        if self.fails:
            self.fails -= 1
            raise LookupError("a defect of ours")
        one = json.loads(bytes(raw))["metadata"]
        if gone:
            self.pods.pop(one["name"], None)
        else:
            self.pods[one["name"]] = one["resourceVersion"]
        self.said.append(("gone" if gone else "put", one["name"]))

    def alive(self, kind: Kind, at: float) -> None:
        self.alive_at.append(at)


@dataclass
class Story:
    """The server's answers to lists and to watches, one after the other; then lists repeat and watches stay silent."""

    told: Told
    watches: Watches
    requests: list[Request]
    relisted: list[tuple[str, str]]

    def until(self, true: Callable[[], bool], what: str = "") -> None:
        end = time.monotonic() + BOUND
        while not true():
            assert time.monotonic() < end, (what, self.told, [str(one) for one in self.requests])
            time.sleep(0.005)

    def asked(self, *, watching: bool) -> list[Request]:
        return [one for one in list(self.requests) if one.path == LIST and ("watch" in one.query) is watching]


@contextmanager
def story(
    lists: Sequence[Fault], watches: Sequence[Fault] = (), discovery: Sequence[Fault] = (), kind: Kind = POD
) -> Iterator[Story]:
    told, over = Told(), threading.Event()
    left = {"list": list(lists), "watch": list(watches), "discovery": list(discovery)}
    served = Answer(200, {"resources": [{"name": kind.plural}]})
    relisted: list[tuple[str, str]] = []

    def silent() -> Iterator[bytes]:
        over.wait(30)
        yield from ()

    def script(request: Request) -> Fault:
        if request.path.endswith(kind.plural):
            if "watch" in request.query:
                return left["watch"].pop(0) if left["watch"] else Answer(200, chunks=silent())
            return left["list"].pop(0) if len(left["list"]) > 1 else left["list"][0]
        return left["discovery"].pop(0) if left["discovery"] else served

    with serving() as (server, api):
        server.script = script
        watching = Watches(api, told, [kind], lambda plural, why: relisted.append((plural, why)))
        watching.start()
        try:
            yield Story(told, watching, server.requests, relisted)
        finally:
            over.set()
            watching.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off from 10 ms to 80 ms; absent kinds are looked for every 50 to 100 ms."""
    monkeypatch.setattr(watch, "BACK_OFF", (0.01, 0.08))
    monkeypatch.setattr(watch, "ABSENT_SECONDS", 0.05)


def test_pages_are_one_list() -> None:
    pages = [listed(7, pod("a", 1), pod("b", 2), more="next"), listed(7, pod("c", 3))]
    with story(pages) as told:
        told.until(lambda: told.told.said == [("list", "a", "b", "c")])
        first, second = told.asked(watching=False)
        assert (first.query["limit"], second.query["continue"]) == ("500", "next")
        told.until(lambda: len(told.asked(watching=True)) == 1)
        (request,) = told.asked(watching=True)
        assert (request.query["resourceVersion"], request.query["allowWatchBookmarks"]) == ("7", "true")
        assert 300 <= int(request.query["timeoutSeconds"]) <= 600
        assert told.watches.wait_synced(0)
        assert told.watches.missing() == ()


def test_a_page_that_came_too_late_begins_the_list_again() -> None:
    """What the first page held counts for nothing: `a` may be gone by now."""
    pages = [listed(7, pod("a", 1), more="next"), status(410, "Expired"), listed(9, pod("b", 8))]
    with story(pages) as told:
        told.until(lambda: told.told.said == [("list", "b")])
        assert "continue" not in told.asked(watching=False)[2].query


def test_events_are_told_in_order_and_bookmarks_move_on() -> None:
    """The first watch ends after the bookmark 20: the second one begins there."""
    events = event("ADDED", pod("a", 8)) + event("MODIFIED", pod("a", 9)), event("DELETED", pod("a", 10)), bookmark(20)
    with story([listed(7)], [watched(*events)]) as told:
        told.until(lambda: len(told.asked(watching=True)) == 2)
        assert told.told.said == [("list",), ("put", "a"), ("put", "a"), ("gone", "a")]
        assert told.asked(watching=True)[1].query["resourceVersion"] == "20"
        assert len(told.asked(watching=False)) == 1


@pytest.mark.parametrize("end", [watched, torn])
def test_half_a_line_is_read_again(end: Callable[..., Answer]) -> None:
    """Whole after 8, half of 9: the next watch begins after 8, and nothing is told twice."""
    whole, half = event("ADDED", pod("a", 8)), event("ADDED", pod("b", 9))
    with story([listed(7)], [end(whole + half[:20]), watched(half)]) as told:
        told.until(lambda: ("put", "b") in told.told.said)
        assert told.asked(watching=True)[1].query["resourceVersion"] == "8"
        assert told.told.said == [("list",), ("put", "a"), ("put", "b")]


def test_a_line_may_come_in_any_pieces() -> None:
    line = event("ADDED", pod("a", 8)) + event("ADDED", pod("b", 9))
    with story([listed(7)], [watched(*(line[i : i + 1] for i in range(len(line))))]) as told:
        told.until(lambda: told.told.said == [("list",), ("put", "a"), ("put", "b")])


def test_an_object_nested_as_deeply_as_a_server_lets_it_be_costs_nobody_else() -> None:
    """Two of 9,900 levels: one in the list, one in a line of the watch; a and b come with them."""

    def deep(name: str, revision: int) -> bytes:
        meta = json.dumps(pod(name, revision)["metadata"])
        return f'{{"metadata": {meta}, "spec": {"[" * 9900}{"]" * 9900}}}'.encode()

    items = b",".join([deep("x", 5), json.dumps(pod("a", 6)).encode()])
    list_of_both = Answer(200, b'{"metadata": {"resourceVersion": "7"}, "items": [' + items + b"]}")
    line = b'{"type": "ADDED", "object": ' + deep("y", 8) + b"}\n"
    with story([list_of_both], [watched(line, event("ADDED", pod("b", 9)))]) as told:
        told.until(lambda: told.told.pods.keys() == {"a", "b", "x", "y"})
        assert len(told.asked(watching=False)) == 1


def test_a_line_that_is_no_event_is_asked_for_again() -> None:
    with story([listed(7)], [watched(b'{"type": 3}\n'), watched(event("ADDED", pod("a", 8)))]) as told:
        told.until(lambda: told.told.said == [("list",), ("put", "a")])
        assert [one.query["resourceVersion"] for one in told.asked(watching=True)][:2] == ["7", "7"]


def test_a_repeated_event_does_not_undo_a_later_one() -> None:
    """a is at 9; the late copy of 8 and the copy of its deletion before it was made anew count for nothing."""
    old, gone, new = event("ADDED", pod("a", 8)), event("DELETED", pod("a", 9)), event("ADDED", pod("a", 10))
    with story([listed(7)], [watched(old, old, gone, new, gone, old, bookmark(11))]) as told:
        told.until(lambda: len(told.asked(watching=True)) == 2)
        assert told.told.said == [("list",), ("put", "a"), ("gone", "a"), ("put", "a")]
        assert told.told.pods == {"a": "10"}


@pytest.mark.parametrize("expired", [status(410, "Expired"), watched(event("ERROR", EXPIRED))], ids=["asked", "told"])
def test_a_place_in_history_that_is_lost_is_a_new_list(expired: Answer) -> None:
    with story([listed(7, pod("a", 6)), listed(50, pod("b", 49))], [expired]) as told:
        told.until(lambda: told.told.pods == {"b": "49"})
        told.until(lambda: len(told.asked(watching=True)) == 2)
        assert told.asked(watching=True)[1].query["resourceVersion"] == "50"
        assert told.relisted == [("pods", "expired")]


def test_a_silent_connection_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENCE", 1.5)
    over = threading.Event()

    def silent() -> Iterator[bytes]:
        yield event("ADDED", pod("a", 8))
        over.wait(30)

    with story([listed(7)], [Answer(200, chunks=silent()), watched(event("ADDED", pod("b", 9)))]) as told:
        told.until(lambda: told.told.pods == {"a": "8", "b": "9"})
        over.set()
        assert told.asked(watching=True)[1].query["resourceVersion"] == "8"


def test_what_a_watch_cannot_say_a_list_settles() -> None:
    """An error in the stream that is no 410: the same place again may meet it for ever."""
    wrong = {"kind": "Status", "code": 500, "message": "etcd event received with PrevKv=nil", "metadata": {}}
    with story([listed(7), listed(9, pod("a", 9))], [watched(event("ERROR", wrong))]) as told:
        told.until(lambda: told.told.pods == {"a": "9"})
        assert told.relisted == [("pods", "failed")]


def test_retry_after_is_kept_to() -> None:
    busy = status(429, "TooManyRequests", Retry_After="1")
    with story([listed(7)], [busy, watched(event("ADDED", pod("a", 8)))]) as told:
        told.until(lambda: told.told.pods == {"a": "8"})
        first, second = told.asked(watching=True)[:2]
        assert second.at - first.at >= 1
        assert second.query["resourceVersion"] == "7"
        assert len(told.asked(watching=False)) == 1


@pytest.mark.parametrize("fault", [status(500, "InternalError"), Reset()], ids=["500", "reset"])
def test_back_off_grows_and_is_bounded(fault: Fault) -> None:
    """10, 20, 40, 80, 80 ms and up to as much again; eight in a row take at least 470 ms, at most 940 and some."""
    with story([listed(7)], [fault] * 8) as told:
        told.until(lambda: len(told.asked(watching=True)) == 9)
        gaps = [then.at - now.at for now, then in pairwise(told.asked(watching=True))]
        assert all(gap >= 0.01 * 2 ** min(number, 3) for number, gap in enumerate(gaps)), gaps
        assert len(told.asked(watching=False)) == 1


def test_a_watch_that_was_served_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens to this kind and each watch breaks after a while: no reason to look ever more rarely."""
    monkeypatch.setattr(watch, "SERVED_SECONDS", 0.02)
    monkeypatch.setattr(watch, "BACK_OFF", (0.01, 30.0))

    def quiet() -> Iterator[bytes]:
        time.sleep(0.05)
        raise ConnectionError
        yield b""

    with story([listed(7)], [Answer(200, chunks=quiet()) for _ in range(12)]) as told:
        told.until(lambda: len(told.asked(watching=True)) == 13)
        gaps = [then.at - now.at for now, then in pairwise(told.asked(watching=True))]
        assert max(gaps[6:]) < 1, "the twelfth waits as long as the first: without that it were 20 s"


def test_a_server_that_ends_watches_at_once_is_not_asked_all_the_time() -> None:
    """20 watches end at once: 10, 20, 40, then 17 times 80 ms at least."""
    with story([listed(7)], [watched()] * 20) as told:
        told.until(lambda: len(told.asked(watching=True)) == 21)
        asked = told.asked(watching=True)
        assert asked[-1].at - asked[0].at >= 0.07 + 17 * 0.08


def test_a_kind_that_is_not_served_is_found_when_it_is() -> None:
    absent, without = status(404, "NotFound"), Answer(200, {"resources": [{"name": "others"}]})
    with story([listed(7, pod("g", 6))], discovery=[absent, without], kind=BATCH) as told:
        assert told.watches.wait_synced(BOUND), "an absent kind is no reason to wait"
        told.until(lambda: told.told.said == [("list",), ("list",), ("list", "g")])
        assert told.told.versions == ["", "", BATCH.versions[0]]


def test_a_kind_whose_definition_goes_is_empty() -> None:
    """The watch ends, the next one is refused: the definition is gone, and comes again later."""
    served = Answer(200, {"resources": [{"name": "podgroups"}]})
    gone = status(404, "NotFound", "the server could not find the requested resource")
    with story(
        [listed(7, pod("g", 6)), listed(20, pod("h", 19))],
        [watched(bookmark(8)), gone],
        discovery=[served, gone],
        kind=BATCH,
    ) as told:
        told.until(lambda: told.told.pods == {"h": "19"})
        assert told.told.said == [("list", "g"), ("list",), ("list", "h")]


def test_a_built_in_kind_that_is_not_there_yet_is_waited_for() -> None:
    """A server that has not started yet must not pass for an empty cluster."""
    with story([listed(7, pod("a", 6))], discovery=[status(404, "NotFound")] * 2) as told:
        told.until(lambda: told.told.pods == {"a": "6"})
        assert told.told.said == [("list", "a")]


def test_a_built_in_kind_is_not_gone_because_a_server_that_starts_again_does_not_know_it() -> None:
    """The watch ends with the server, and the next answers are of one that is not up yet: a is bound and runs on."""
    served, absent = Answer(200, {"resources": [{"name": "pods"}]}), status(404, "NotFound")
    with story([listed(7, pod("a", 6)), listed(20, pod("a", 6))], [absent], discovery=[served, absent, absent]) as told:
        told.until(lambda: len(told.asked(watching=False)) == 2)
        told.until(lambda: told.relisted == [("pods", "failed")])
        assert told.told.said == [("list", "a"), ("list", "a")]


def test_a_list_that_fails_is_told_as_missing() -> None:
    """403 stands until somebody gives the right: it is said which kind is missing, and why."""
    with story([status(403, "Forbidden", "pods is forbidden")]) as told:
        told.until(lambda: told.watches.missing() == ("pods (403 Forbidden: pods is forbidden)",))
        assert not told.watches.wait_synced(0)
        assert told.told.said == []


def test_a_defect_costs_one_list() -> None:
    """What the cache cannot take must not end the thread: the kind would stand still for ever."""
    with story([listed(7), listed(9, pod("a", 9))], [watched(event("ADDED", pod("a", 8)))]) as told:
        told.told.fails = 1
        told.until(lambda: told.told.pods == {"a": "9"})


def test_silence_does_not_hold_up_the_end() -> None:
    with story([listed(7)]) as told:
        told.until(lambda: len(told.asked(watching=True)) == 1)
        begun = time.monotonic()
        told.watches.stop()
        assert time.monotonic() - begun < 2


def test_a_server_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds wait for an answer: their threads are waited for together, 0.2 s, not one after the other."""
    monkeypatch.setattr(watch, "STOP_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Configuration()
        settings.host = "http://{}:{}".format(*silent.getsockname())
        api = Api(settings)
        watches = Watches(api, Told(), [POD] * 40)
        watches.start()
        begun = time.monotonic()
        watches.stop()
        assert 0.2 <= time.monotonic() - begun < 6, "40 kinds, 0.2 s each, were 8 s"
    api.close()

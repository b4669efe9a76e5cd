"""Binds, nominations and admissions against a server that answers as a test scripts it.

The cache stands by as a list of what it was told: a pod is assumed once, and then bound or forgotten once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.cluster.api import Api
from solver_sched.cluster.binder import Binder, Placement
from solver_sched.cluster.events import Event
from solver_sched.cluster.objects import Needs, Pod, PodGroup
from tests.cluster.server import Answer, Fault, Request, Reset, Server, conflict, serving, status

VOLCANO = "scheduling.volcano.sh/v1beta1"


class Notebook:
    """Cache, events and metrics in one: everything that the binder says, in order."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.lock = threading.Lock()

    def say(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)

    def version(self, pod: Pod) -> str:
        return str(self.server.pods.get(pod.key, {}).get("metadata", {}).get("resourceVersion", ""))

    def assume(self, pod: Pod, node: str) -> None:
        self.say(f"assume {pod.name} {node}")

    def sent(self, pod: Pod) -> None:
        pass

    def bound(self, pod: Pod, node: str) -> None:
        self.say(f"bound {pod.name} {node}")

    def forget(self, pod: Pod) -> None:
        self.say(f"forget {pod.name}")

    def evicting(self, pod: Pod) -> None:
        self.say(f"evicting {pod.name}")

    def evicted(self, pod: Pod) -> None:
        self.say(f"evicted {pod.name}")

    def spared(self, pod: Pod, seconds: float) -> None:
        self.say(f"spared {pod.name} {seconds:.0f}")

    def nominate(self, pod: Pod, node: str | None) -> None:
        self.say(f"nominate {pod.name} {node}")

    def tell(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)

    def told(self, kind: str, result: str) -> None:
        self.say(f"{kind} {result}")


@contextmanager
def binding(server: Server | None = None, **options: Any) -> Iterator[tuple[Server, Notebook, Binder]]:
    with serving(server) as (state, api), working(state, api, **options) as (book, binder):
        yield state, book, binder


@contextmanager
def working(server: Server, api: Api, **options: Any) -> Iterator[tuple[Notebook, Binder]]:
    book = Notebook(server)
    told: dict[str, Any] = {
        "qps": 0,
        "burst": 0,
        "may_send": lambda: True,
        "workers": 4,
        "events": book,
        "told": book.told,
    }
    binder = Binder(api, book, **(told | options))
    try:
        yield book, binder
    finally:
        binder.stop()


def pod(name: str, uid: str = "", **fields: Any) -> Pod:
    return Pod("ns", name, Needs(), uid=uid or f"uid-{name}", scheduler="solver-sched", **fields)


def place(*pairs: tuple[str, str]) -> list[Placement]:
    return [Placement(pod(name), node, "allocate") for name, node in pairs]


def nth(answers: dict[int, Fault], kind: str = "/binding") -> Callable[[Request], Fault | None]:
    """Faults by the number of the request that ends with `kind`, from 0."""
    seen: list[Request] = []

    def script(request: Request) -> Fault | None:
        if not request.path.endswith(kind):
            return None
        seen.append(request)
        return answers.get(len(seen) - 1)

    return script


def test_a_gang_is_assumed_whole_and_then_bound_in_order_with_preconditions() -> None:
    with binding(workers=1) as (server, book, binder):
        server.pod("a"), server.pod("b")
        binder.bind([place(("a", "n1"), ("b", "n2"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "assume b n2", "bound a n1", "Bind ok", "bound b n2", "Bind ok"]
        (first, _) = server.sent("POST .*/binding")
        assert first.body["metadata"] == {"namespace": "ns", "name": "a", "uid": "uid-a", "resourceVersion": "1"}
        assert [(event.regarding.name, event.reason, event.action) for event in book.events] == [
            ("a", "Scheduled", "Binding"),
            ("b", "Scheduled", "Binding"),
        ]
        assert binder.in_flight == 0


def test_no_bind_of_a_gang_is_sent_before_all_of_it_is_assumed() -> None:
    """The cache takes its time; the first request must find both members in it."""
    with binding() as (server, book, binder):
        server.pod("a"), server.pod("b")
        assumed: list[list[str]] = []

        def assume(pod: Pod, node: str) -> None:
            time.sleep(0.1)
            book.say(f"assume {pod.name} {node}")

        def script(_request: Request) -> None:
            assumed.append(list(book.lines))

        book.assume, server.script = assume, script  # type: ignore[method-assign]
        binder.bind([place(("a", "n1"), ("b", "n2"))])
        assert binder.drain(5)
        assert assumed[0] == ["assume a n1", "assume b n2"]


def test_a_status_write_in_between_costs_one_more_try() -> None:
    """The decision was made on revision 1; somebody has patched the pod since. It is still the same pending pod."""
    with binding() as (server, book, binder):
        server.pod("a")
        book.version = lambda pod: "0"  # type: ignore[method-assign]
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "bound a n1", "Bind ok"]
        assert [str(request) for request in server.requests] == [
            "POST /api/v1/namespaces/ns/pods/a/binding",
            "GET /api/v1/namespaces/ns/pods/a",
            "POST /api/v1/namespaces/ns/pods/a/binding",
        ]


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (lambda pod: pod["spec"].update(nodeName="n2"), "conflict"),
        (lambda pod: pod["metadata"].update(uid="another"), "conflict"),
        (lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T12:00:00Z"), "conflict"),
        (lambda pod: pod["spec"].update(schedulingGates=[{"name": "g"}]), "refused"),
    ],
    ids=["bound elsewhere", "another uid", "being deleted", "gated"],
)
def test_a_pod_that_has_changed_is_given_up(change: Callable[[Any], None], result: str) -> None:
    with binding() as (server, book, binder):
        change(server.pod("a"))
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", f"Bind {result}"]
        assert len(server.sent("/binding")) == 1


def test_already_assigned_to_the_planned_node_is_success() -> None:
    with binding() as (server, book, binder):
        server.pod("a")["spec"]["nodeName"] = "n1"
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "bound a n1", "Bind ok"]


def test_a_lost_answer_is_looked_up_before_anything_is_sent_again() -> None:
    """a: the server acted, then the answer was lost. b: lost before the server acted."""
    with binding() as (server, book, binder):
        server.pod("a"), server.pod("b")
        seen: set[str] = set()

        def script(request: Request) -> Fault | None:
            if not request.path.endswith("/binding") or request.path in seen:
                return None
            seen.add(request.path)
            return Reset(acts="/a/" in request.path)

        server.script = script
        binder.bind([place(("a", "n1"), ("b", "n2"))])
        assert binder.drain(5)
        assert sorted(book.lines[2:]) == ["Bind ok", "Bind ok", "bound a n1", "bound b n2"]
        assert [str(request).split("/")[0] for request in server.sent("/pods/a")] == ["POST ", "GET "]
        assert [str(request).split("/")[0] for request in server.sent("/pods/b")] == ["POST ", "GET ", "POST "]


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"metadata": 1}'])
def test_an_answer_that_is_no_pod_is_none(body: bytes) -> None:
    """Something between us and the server answers in its stead, with 200."""
    with binding() as (server, book, binder):
        server.pod("a")
        answers: list[Fault | None] = [conflict(), Answer(200, body)]
        server.script = lambda request: answers.pop(0) if answers else None
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "bound a n1", "Bind ok"]
        assert [request.method for request in server.requests] == ["POST", "GET", "GET", "POST"]


def test_a_busy_server_is_asked_again_not_before_it_said_and_the_room_stays_taken() -> None:
    with binding() as (server, book, binder):
        server.pod("a")
        server.script = nth({0: status(429, "TooManyRequests", Retry_After="1")})
        binder.bind([place(("a", "n1"))])
        assert not binder.drain(0.5)
        assert book.lines == ["assume a n1"]
        assert binder.drain(5)
        first, second = server.sent("/binding")
        assert second.at - first.at >= 1
        assert not server.sent("GET")


def test_an_internal_error_may_have_acted() -> None:
    with binding() as (server, book, binder):
        server.pod("a")
        server.script = nth({0: status(500, "InternalError", "etcdserver: request timed out")})
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert [request.method for request in server.requests] == ["POST", "GET", "POST"]
        assert book.lines == ["assume a n1", "bound a n1", "Bind ok"]


@pytest.mark.parametrize("code", [400, 403, 422])
def test_what_the_server_does_not_want_is_said_by_an_event(code: int) -> None:
    with binding() as (server, book, binder):
        server.pod("a")
        server.script = nth({0: status(code, "No", "because")})
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "Bind refused"]
        (event,) = book.events
        assert (event.reason, event.type) == ("FailedScheduling", "Warning")
        assert "because" in event.note


def test_a_deleted_pod_is_forgotten_in_silence() -> None:
    with binding() as (_, book, binder):
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "Bind conflict"]
        assert book.events == []


def test_a_server_that_stays_busy_is_given_up_after_the_limit() -> None:
    with binding(expire=0.3) as (server, book, binder):
        server.pod("a")
        server.script = lambda request: status(429, "TooManyRequests")
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "Bind failed"]


def test_room_is_not_given_free_while_a_lost_bind_may_still_arrive() -> None:
    """The answers are lost until the limit. Before the pod is forgotten its resourceVersion changes, so that the bind
    that was lost cannot act any more.
    """
    with binding(expire=0.2) as (server, book, binder):
        server.pod("a")
        server.script = lambda request: Reset() if request.path.endswith("/binding") else None
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "Bind lost"]
        late = server.sent("/binding")[-1]
        server.script = lambda request: None
        answer = server.answer(late)
        assert isinstance(answer, Answer)
        assert answer.status == 409
        (condition,) = server.pods["ns/a"]["status"]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "SchedulerError",
        )


def test_nothing_is_sent_without_the_lease() -> None:
    """The lease ends while the server is busy: the second try is not sent."""
    leading = [True]
    with binding(may_send=lambda: leading[0]) as (server, book, binder):
        server.pod("a"), server.pod("b")

        def script(request: Request) -> Fault | None:
            leading[0] = False
            return status(429, "TooManyRequests")

        server.script = script
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        binder.bind([place(("b", "n1"))])
        binder.nominate(pod("b"), "n2")
        binder.admit(PodGroup("ns", "g", VOLCANO))
        assert binder.drain(5)
        assert [str(request) for request in server.requests] == ["POST /api/v1/namespaces/ns/pods/a/binding"]
        assert [line for line in book.lines if line.startswith("forget")] == ["forget a", "forget b"]


def test_a_dry_run_sends_and_assumes_nothing() -> None:
    with binding(dry_run=True) as (server, book, binder):
        server.pod("a")
        binder.bind([place(("a", "n1"))])
        binder.nominate(pod("a"), "n1")
        binder.admit(PodGroup("ns", "g", VOLCANO))
        binder.evict([])
        assert binder.drain(1)
        assert (server.requests, book.lines) == ([], [])


def test_a_gang_begun_is_finished_before_the_next_one() -> None:
    """One worker; the first bind of gang a has to be tried again, and goes before what is left of gang b."""
    with binding(workers=1) as (server, _, binder):
        for name in ("a0", "a1", *(f"b{i}" for i in range(200))):
            server.pod(name)
        server.script = nth({0: conflict()})
        binder.bind([place(("a0", "n"), ("a1", "n")), place(*((f"b{i}", "n") for i in range(200)))])
        assert binder.drain(10)
        order = [request.path.split("/")[6] for request in server.sent("/binding")]
        assert order[0] == "a0"
        assert order.index("a0", 1) < 20


def test_a_pod_in_flight_is_not_bound_a_second_time() -> None:
    with binding() as (server, book, binder):
        server.pod("a")
        server.script = nth({0: status(503, "ServiceUnavailable")})
        binder.bind([place(("a", "n1"))])
        binder.bind([place(("a", "n2"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "bound a n1", "Bind ok"]


def test_a_pod_is_decided_on_anew_from_the_moment_its_room_is_free() -> None:
    """Its bind is refused. A cycle that looks at the cache at once, before anything else is done, binds it to n2."""
    with binding(workers=1) as (server, book, binder):
        server.pod("a")
        server.script = nth({0: status(403, "Forbidden")})
        forget = book.forget

        def decided(pod: Pod) -> None:
            forget(pod)
            binder.bind([place(("a", "n2"))])

        book.forget = decided  # type: ignore[method-assign]
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "assume a n2", "Bind refused", "bound a n2", "Bind ok"]


def test_a_conflict_that_has_no_cause_in_the_pod_is_asked_again_ever_more_rarely() -> None:
    """An admission webhook that says 409 for half a second: at once, after 0.1 s, 0.2 s, 0.4 s, jittered by half."""
    with binding(expire=0.5) as (server, book, binder):
        server.pod("a")
        server.script = lambda request: conflict() if request.path.endswith("/binding") else None
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert book.lines == ["assume a n1", "forget a", "Bind failed"]
        assert 2 <= len(server.sent("/binding")) <= 8


def test_binds_keep_to_the_rate() -> None:
    """10 at once, then 50 a second: 30 binds take at least 0.4 s."""
    with binding(qps=50, burst=10) as (server, _, binder):
        names = [f"p{i}" for i in range(30)]
        for name in names:
            server.pod(name)
        start = time.monotonic()
        binder.bind([place(*((name, "n") for name in names))])
        assert binder.drain(10)
        assert time.monotonic() - start >= 0.39


def test_the_limit_counts_from_the_first_try() -> None:
    """Six binds at ten a second: the last one waits longer for its turn than a bind is tried."""
    with binding(qps=10, burst=1, expire=0.2, workers=1) as (server, book, binder):
        names = [f"p{i}" for i in range(6)]
        for name in names:
            server.pod(name)
        binder.bind([place(*((name, "n") for name in names))])
        assert binder.drain(10)
        assert book.lines.count("Bind ok") == 6


def test_an_unexpected_error_of_one_decision_does_not_stop_the_others() -> None:
    with binding(workers=1) as (server, book, binder):
        server.pod("a"), server.pod("b")
        seen: list[Any] = []
        told = threading.Event()

        def note(wrong: Any) -> None:
            seen.append(wrong)
            told.set()

        hook, threading.excepthook = threading.excepthook, note
        try:
            book.bound = lambda pod, node: 1 / 0 if pod.name == "a" else None  # type: ignore[assignment, method-assign]
            binder.bind([place(("a", "n1"), ("b", "n1"))])
            assert binder.drain(5)
            assert told.wait(5)  # the thread ends after what it did counts as done
        finally:
            threading.excepthook = hook
        assert [wrong.exc_type for wrong in seen] == [ZeroDivisionError]
        assert len(server.sent("/b/binding")) == 1


# Nominations and admissions


def test_a_nomination_is_set_with_the_uid_and_cleared() -> None:
    with binding(workers=1) as (server, book, binder):
        stored = server.pod("a")
        binder.nominate(pod("a"), "n1")
        assert binder.drain(5)
        assert stored["status"]["nominatedNodeName"] == "n1"
        assert server.requests[0].body["metadata"] == {"uid": "uid-a"}
        binder.nominate(pod("a", nominated="n1"), None)
        assert binder.drain(5)
        assert "nominatedNodeName" not in stored["status"]
        assert book.lines == ["nominate a n1", "Nominate ok", "nominate a None", "Nominate ok"]


def test_a_promise_that_the_pod_shows_is_not_sent_again() -> None:
    with binding() as (server, book, binder):
        binder.nominate(pod("a", nominated="n1"), "n1")
        binder.nominate(pod("b"), None)
        assert binder.drain(1)
        assert (server.requests, book.lines) == ([], [])


def test_a_promise_that_waits_is_dropped_when_the_pod_is_bound() -> None:
    with binding(workers=1) as (server, book, binder):
        stored = server.pod("a")
        server.script = nth({0: status(429, "TooManyRequests", Retry_After="1")}, "/status")
        binder.nominate(pod("a"), "n1")
        time.sleep(0.2)
        binder.bind([place(("a", "n1"))])
        assert binder.drain(5)
        assert len(server.sent("/status")) == 1
        assert "nominatedNodeName" not in stored["status"]
        assert book.lines[1:] == ["assume a n1", "bound a n1", "Bind ok"]


def test_the_last_nomination_counts_and_another_pod_of_the_name_is_left_alone() -> None:
    with binding(workers=1) as (server, book, binder):
        stored = server.pod("a")
        server.script = nth({0: status(503, "ServiceUnavailable", Retry_After="1")}, "/status")
        binder.nominate(pod("a"), "n1")
        time.sleep(0.2)
        binder.nominate(pod("a"), "n2")
        assert binder.drain(5)
        assert stored["status"]["nominatedNodeName"] == "n2"
        binder.nominate(pod("a", uid="old"), "n3")
        assert binder.drain(5)
        assert stored["status"]["nominatedNodeName"] == "n2"
        assert book.lines[-2:] == ["nominate a None", "Nominate conflict"]


def test_a_promise_that_fails_does_not_take_back_the_one_that_replaced_it() -> None:
    """While the server refuses n1 the next cycle promises n2."""
    with binding(workers=1) as (server, book, binder):
        stored = server.pod("a")

        def script(request: Request) -> Fault | None:
            if request.body["status"]["nominatedNodeName"] == "n2":
                return None
            binder.nominate(pod("a"), "n2")
            return status(403, "Forbidden")

        server.script = script
        binder.nominate(pod("a"), "n1")
        assert binder.drain(5)
        assert book.lines == ["nominate a n1", "nominate a n2", "Nominate refused", "Nominate ok"]
        assert stored["status"]["nominatedNodeName"] == "n2"


@pytest.mark.parametrize("whole", [True, False])
def test_a_group_is_admitted_with_or_without_a_status_subresource(whole: bool) -> None:
    """Two groups: the second request knows what the first one found out."""
    base = f"/apis/{VOLCANO}/namespaces/ns/podgroups"
    with binding(workers=1) as (server, book, binder):
        server.whole = (base,) if whole else ()
        for name in "gh":
            server.put(f"{base}/{name}", VOLCANO, status={"phase": "Pending", "running": 1})
            binder.admit(PodGroup("ns", name, VOLCANO))
            assert binder.drain(5)
            assert server.objects[f"{base}/{name}"]["status"] == {"phase": "Inqueue", "running": 1}
        parts = [request.path.removeprefix(base) for request in server.requests]
        assert parts == (["/g/status", "/g", "/h"] if whole else ["/g/status", "/h/status"])
        assert book.lines == ["Admit ok", "Admit ok"]


def test_a_group_of_a_dialect_without_admission_keeps_its_phase() -> None:
    with binding() as (server, book, binder):
        binder.admit(PodGroup("ns", "g", "scheduling.x-k8s.io/v1alpha1"))
        assert binder.drain(1)
        assert (server.requests, book.lines) == ([], [])


def test_a_status_subresource_that_appears_later_is_found() -> None:
    """The definition was replaced by one with the subresource: there a patch of the whole object drops the status."""
    base = f"/apis/{VOLCANO}/namespaces/ns/podgroups"
    with binding(workers=1) as (server, _, binder):
        server.whole = (base,)
        for name in "gh":
            server.put(f"{base}/{name}", VOLCANO)
            binder.admit(PodGroup("ns", name, VOLCANO))
            assert binder.drain(5)
            server.whole = ()
        assert server.objects[f"{base}/h"]["status"]["phase"] == "Inqueue"


# Whatever happens


FAULTS: list[Fault | None] = [
    None,
    None,
    conflict(),
    Reset(),
    Reset(acts=True),
    status(429, "TooManyRequests"),
    status(500, "InternalError"),
    status(503, "ServiceUnavailable"),
    status(504, "Timeout"),
    status(404, "NotFound"),
    status(403, "Forbidden"),
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(FAULTS), max_size=12), st.lists(st.booleans(), min_size=4, max_size=4))
def test_every_pod_ends_bound_once_or_forgotten_whatever_is_answered(
    answers: list[Fault | None], rivals: list[bool]
) -> None:
    """Four pods of two gangs; a rival has bound some. Each request takes the next answer, then all is well."""
    with pytest.MonkeyPatch.context() as patch, binding(Server()) as (server, book, binder):
        patch.setattr("solver_sched.cluster.rate._FIRST", 0.002)
        names = ["a0", "a1", "b0", "b1"]
        for name, taken in zip(names, rivals, strict=True):
            server.pod(name)["spec"] |= {"nodeName": "other"} if taken else {}
        rest = iter(answers)

        def script(request: Request) -> Fault | None:
            fault = next(rest, None)
            final = isinstance(fault, Answer) and fault.status in (403, 404)
            return None if final and request.method == "GET" else fault  # a server does not lie about what it has

        server.script = script
        binder.bind([place(("a0", "n1"), ("a1", "n2")), place(("b0", "n1"), ("b1", "n2"))])
        assert binder.drain(20)
        for name in names:
            said = [line for line in book.lines if f" {name}" in line]
            node = server.pods[f"ns/{name}"]["spec"].get("nodeName")
            assert len(said) == 2, said
            if said[1].startswith("bound"):
                assert said[1] == f"bound {name} {node}"
            else:
                assert node in (None, "other"), "forgotten, but bound"
        targets = {(request.path, request.body["target"]["name"]) for request in server.sent("/binding")}
        assert len(targets) == len({path for path, _ in targets})

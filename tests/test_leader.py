"""Never two leaders: elections on a scripted server in simulated time, where every delay and loss is chosen.

One candidate runs at a time: it gives way where it sends a request or waits, and goes on when the simulated clock says.
At the end two elections on a real API server, in real time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import logging
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.cluster.api import Api, Lost, Refused, Unsent
from solver_sched.errors import ConfigError
from solver_sched.leader import AGENT, JITTER, Alone, Durations, Leader, boot_time
from tests.controlplane.cluster import StatusError
from tests.controlplane.controlplane import ControlPlane

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
DEFAULT = Durations()
LAST = 15.0 + JITTER * 2.0
"""A candidate looks every 2.4 s and waits 15 s from what it saw last."""


class Over(BaseException):
    """Ends a candidate's thread."""


@dataclass
class Trip:
    """What happens to one request: seconds to the server and back, whether it gets there, whether its answer gets back,
    and the status of a server that fails, before or after it has acted.
    """

    there: float = 0.01
    back: float = 0.01
    arrives: bool = True
    answered: bool = True
    status: int = 0
    acts: bool = True


class Server:
    """Leases as kube-apiserver keeps them: checked by uid and resourceVersion."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.revision = itertools.count(1)
        self.log: list[tuple[str, str]] = []

    def apply(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        if method == "GET":
            if self.lease is None:
                raise Refused(404, "NotFound")
        elif method == "POST":
            assert path == LEASES
            if self.lease is not None:
                raise Refused(409, "AlreadyExists")
            assert body is not None
            self.lease = json.loads(json.dumps(body))
            self.lease["metadata"]["uid"] = f"uid-{next(self.revision)}"
            self.store()
        else:
            assert (method, path) == ("PUT", f"{LEASES}/lock")
            assert body is not None
            wanted = ("uid", "resourceVersion")
            if self.lease is None or any(self.lease["metadata"][key] != body["metadata"][key] for key in wanted):
                raise Refused(409, "Conflict")
            self.lease = json.loads(json.dumps(body))
            self.store()
        return json.dumps(self.lease).encode()

    def store(self) -> None:
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(next(self.revision))
        self.log.append((self.lease["spec"]["holderIdentity"], self.lease["spec"]["renewTime"]))


class World:
    """Simulated time; `trips` chooses what happens to a request of a candidate. With `ticks` it looks who leads every
    0.1 s, otherwise only when something happens: nobody begins to lead in between.
    """

    def __init__(self, trips: Callable[[str], Trip] = lambda _: Trip(), ticks: bool = True) -> None:
        self.ticks = ticks
        self.now = 0.0
        self.trips = trips
        self.server = Server()
        self.candidates: dict[str, Candidate] = {}
        self.leaders: list[tuple[float, str]] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.turn = threading.Semaphore(0)

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (max(when, self.now), next(self.order), event))

    def run(self, until: float) -> None:
        """Everything up to `until`. At every moment at most one candidate may send."""
        for tenth in range(int(self.now * 10) + 1, int(until * 10) + 1) if self.ticks else ():
            self.at(tenth / 10, lambda: None)
        while self.events and self.events[0][0] <= until:
            self.now, _, event = heapq.heappop(self.events)
            event()
            self.check()
        self.now = until
        self.check()

    def check(self) -> None:
        leading = [name for name, one in self.candidates.items() if one.leader.may_send()]
        assert len(leading) <= 1, f"at {self.now:.2f} s both {leading} may send"
        name = leading[0] if leading else ""
        if not self.leaders or self.leaders[-1][1] != name:
            self.leaders.append((self.now, name))

    def leader(self) -> str:
        return self.leaders[-1][1]

    def add(self, name: str, start: float = 0.0, **arguments: Any) -> Candidate:
        one = Candidate(self, name, **arguments)
        self.candidates[name] = one
        self.at(start, one.resume)
        return one

    def delete(self) -> None:
        self.server.lease = None


class Candidate:
    """A process with a leader in it. `offset`: what its clock is ahead; `wall`: its wall clock."""

    def __init__(
        self,
        world: World,
        name: str,
        durations: Durations = DEFAULT,
        offset: float = 0.0,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self.world, self.name = world, name
        self.leader = Leader(
            self, "lock", "ns", name, durations, clock=lambda: world.now + offset, wall=wall or (lambda: world.now)
        )
        self.asked: list[tuple[float, str, float]] = []
        self.changes: list[tuple[float, bool]] = []
        self.leader.on_change(lambda leads: self.changes.append((world.now, leads)))
        self.paused_until = 0.0
        self.releasing = self.ended = self.over = False
        self.my_turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()

    def live(self) -> None:
        try:
            self.my_turn.acquire()
            while not self.over and not self.releasing:
                self.leader.attempt()
                self.wait(self.leader.interval())
            self.leader.release()
        except Over:
            pass
        finally:
            self.ended = True
            self.world.turn.release()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10.0) -> bytes:
        self.asked.append((self.world.now, method, timeout))
        trip, start, answer = self.world.trips(self.name), self.world.now, dict[str, Any]()

        def arrive() -> None:
            try:
                if trip.acts:
                    answer["body"] = self.world.server.apply(method, path, body)
            except Refused as refused:
                answer["refused"] = refused
            if trip.status:
                answer["refused"] = Refused(trip.status)

        if trip.arrives:
            self.world.at(start + trip.there, arrive)
        seconds = trip.there + trip.back
        if not trip.arrives or not trip.answered or seconds >= timeout:
            self.wait(timeout)
            raise Lost("timed out") if trip.arrives else Unsent("no connection")
        self.wait(seconds)
        if "refused" in answer:
            raise answer["refused"]
        return bytes(answer["body"])

    def wait(self, seconds: float) -> None:
        """Give way until `seconds` have passed, and until a pause is over."""
        self.world.at(self.world.now + seconds, self.resume)
        self.world.turn.release()
        self.my_turn.acquire()
        if self.over:
            raise Over

    def resume(self) -> None:
        if self.ended:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, self.resume)
            return
        self.my_turn.release()
        self.world.turn.acquire()

    def pause(self, start: float, seconds: float) -> None:
        """SIGSTOP at `start`, SIGCONT `seconds` later."""

        def stop() -> None:
            self.paused_until = max(self.paused_until, start + seconds)

        self.world.at(start, stop)

    def release(self) -> None:
        self.releasing = True


@contextlib.contextmanager
def world(trips: Callable[[str], Trip] = lambda _: Trip(), ticks: bool = True) -> Iterator[World]:
    made = World(trips, ticks)
    try:
        yield made
    finally:
        for one in made.candidates.values():
            one.over = True
            if not one.ended:
                one.my_turn.release()
                made.turn.acquire()
            one.thread.join()


def test_the_first_leads_at_once_and_the_second_when_the_first_has_been_silent_for_the_lease() -> None:
    with world() as w:
        a, b = w.add("a"), w.add("b", start=1)
        w.run(20)
        assert w.leaders == [(0, ""), (0.04, "a")]  # a GET and a POST of 20 ms each
        a.pause(20, 40)
        w.run(60)
        # a's last renewal was sent in the 2.4 s before 20 and holds for 10 s; b saw it in the 2.4 s after it was sent
        (_, _), (_, _), (ends, nobody), (begins, second) = w.leaders
        assert (nobody, second) == ("", "b")
        assert 20 + 10 - 2.4 <= ends <= 30 + 0.1
        assert 20 + 15 - 2.4 <= begins <= 20 + LAST + 0.1
        assert not a.leader.may_send()
        w.run(200)
        assert w.leader() == "b"
        assert [leads for _, leads in a.changes] == [True, False]
        assert [leads for _, leads in b.changes] == [True]


def test_of_two_that_find_no_lease_one_creates_it() -> None:
    with world() as w:
        w.add("a")
        w.add("b")
        w.run(30)
        assert w.leader() in ("a", "b")
        assert w.server.lease is not None
        assert w.server.lease["spec"]["leaseTransitions"] == 0


def test_a_renewal_that_meets_another_writer_is_done_again() -> None:
    """Somebody labels the Lease: the renewal is a conflict, and the second one carries the label on."""
    with world() as w:
        a = w.add("a")
        w.run(10)
        assert w.server.lease is not None
        w.server.lease["metadata"]["labels"] = {"team": "batch"}
        w.server.lease["spec"]["preferredHolder"] = "c"
        w.server.store()
        w.run(60)
        assert w.leaders[-1] == (0.04, "a")
        assert w.server.lease["metadata"]["labels"] == {"team": "batch"}
        assert w.server.lease["spec"]["preferredHolder"] == "c"
        assert [leads for _, leads in a.changes] == [True]
        # PUT, refused; GET; PUT: the only reads after the first
        assert [method for _, method, _ in a.asked].count("GET") == 2


def test_what_stands_in_the_lease() -> None:
    with world() as w:
        a = w.add("a", wall=lambda: 1_000_000_000.5 + w.now)
        w.add("b", start=1, wall=lambda: 1_000_000_000.5 + w.now)
        w.run(5)
        assert w.server.lease is not None
        spec = w.server.lease["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
        assert spec["acquireTime"] == "2001-09-09T01:46:40.520000Z"  # the POST leaves after a GET of 20 ms
        assert spec["renewTime"] > spec["acquireTime"]
        a.pause(5, 30)
        w.run(30)
        spec = w.server.lease["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)
        assert spec["acquireTime"] > "2001-09-09T01:46:55"


def test_one_that_was_released_is_taken_at_the_next_look() -> None:
    with world() as w:
        a = w.add("a")
        w.add("b", start=1)
        w.run(20)
        w.at(20, a.release)
        w.run(25)
        assert w.leader() == "b"
        # at most 2.4 s until a wakes up, 2.4 s until b looks
        assert w.leaders[-1][0] <= 20 + 2 * 2.4 + 0.1
        released = next(i for i, (holder, _) in enumerate(w.server.log) if holder == "")
        assert {holder for holder, _ in w.server.log[:released]} == {"a"}
        assert {holder for holder, _ in w.server.log[released + 1 :]} == {"b"}
        assert a.ended
        assert not a.leader.may_send()


def test_a_lost_answer_costs_nothing_and_a_silent_server_the_lead() -> None:
    """Renewals arrive, their answers do not, for 7 s: the leader keeps on. For 15 s: it ends itself after 10 s."""
    deaf: list[tuple[float, float]] = []
    with world(lambda _: Trip(answered=not any(a <= w.now < b for a, b in deaf))) as w:
        a = w.add("a")
        deaf.append((20, 27))  # the last answer came after 17.6
        w.run(40)
        assert [leads for _, leads in a.changes] == [True]
        deaf.append((40, 55))
        w.run(70)
        assert [leads for _, leads in a.changes] == [True, False, True]
        told = a.changes[1][0]
        assert 47.5 <= told <= 50.1  # the last answer came in the 2.4 s before 40: told at once, not at the next try
        assert a.leader.term == 2
        assert (a.leader.may_send(), a.leader.may_send(2), a.leader.may_send(1)) == (True, True, False)


def test_an_answer_that_takes_long_does_not_lengthen_the_lead() -> None:
    """The renewal of 20 s is done at once and its answer takes 3.5 s; then a stands still. b takes over 11 s after it
    saw that renewal, at 31 s at the earliest: a must have ended at 30, not at 33.5.
    """
    short = Durations(11, 10, 2)
    with world(lambda name: Trip(back=3.5 if name == "a" and 20 <= w.now < 22.5 else 0.01)) as w:
        a = w.add("a", durations=short)
        w.add("b", start=1, durations=short)
        w.run(23)
        renewal = next(at for at, method, _ in a.asked if at >= 20 and method == "PUT")
        a.pause(renewal + 3.6, 60)
        w.run(60)
        ends, begins = (at for at, _ in w.leaders[2:4])
        assert renewal + 10 <= ends <= renewal + 10 + 0.1
        assert renewal + 11 <= begins <= renewal + 11 + JITTER * 2 + 0.1


def test_half_of_what_is_left_is_the_time_out() -> None:
    """Connecting and the answer may take it each, so that no request outlives the deadline."""
    with world(lambda _: Trip(answered=w.now < 10)) as w:
        a = w.add("a")
        w.run(25)
        ends = next(at for at, leads in a.changes if not leads)
        renewals = [(at, timeout) for at, _, timeout in a.asked if 10 <= at < ends]
        assert len(renewals) >= 2
        assert all(at + 2 * timeout <= ends + 1e-6 for at, timeout in renewals)


def test_clocks_that_are_wrong_do_not_matter() -> None:
    """a's wall clock stands still in 1999, b's is in 2100 and its monotonic clock a week ahead."""
    with world() as w:
        w.add("a", wall=lambda: 9.3e8)
        w.add("b", start=1, wall=lambda: 4.1e9 + w.now, offset=604800.0)
        w.run(300)
        assert w.leaders == [(0, ""), (0.04, "a")]


def test_who_saw_the_holder_of_a_deleted_lease_waits_as_long_as_before() -> None:
    with world() as w:
        a, b = w.add("a"), w.add("b", start=1)
        w.run(20)
        a.pause(20, 60)
        w.at(21, w.delete)
        w.run(32)
        assert w.server.lease is None
        assert w.leader() == ""
        w.run(60)
        assert w.leader() == "b"
        assert b.changes[0][0] >= 20 + 15 - 2.4


def test_a_leader_whose_lease_is_deleted_makes_it_again_in_a_new_term() -> None:
    with world() as w:
        a = w.add("a")
        w.add("b", start=1)
        w.run(20)
        w.at(20, w.delete)
        w.run(60)
        assert w.leader() == "a"
        assert [leads for _, leads in a.changes] == [True, False, True]


def test_a_leader_whose_lease_names_another_ends_at_its_next_renewal() -> None:
    """Somebody writes another holder into the Lease; b, which does not exist, may act from then on."""
    with world() as w:
        a = w.add("a")
        w.run(20)
        assert w.server.lease is not None
        w.server.lease["spec"]["holderIdentity"] = "b"
        w.server.store()
        w.run(34)
        assert w.leader() == ""
        assert 20 <= a.changes[-1][0] <= 20 + JITTER * 2 + 0.1
        w.run(40)
        assert w.leader() == "a"  # b was silent for 15 s


def test_a_candidate_without_rights_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), world(lambda _: Trip(status=403, acts=False)) as w:
        w.add("a")
        w.run(150)
        assert w.leader() == ""
    # at 0 s, and at the first tries after 60 and 120 s
    assert [record.message for record in caplog.records] == [
        "may not use its lease: its role needs get, create and update of leases in coordination.k8s.io"
    ] * 3


def test_an_answer_that_is_no_lease_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    class Portal:
        def request(self, *_: Any, **__: Any) -> bytes:
            return b"<html>please log in</html>"

    one = Leader(Portal(), "lock", "ns", "a")
    one.attempt()
    assert not one.may_send()
    assert "could not reach the server for the lease" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("no credential plugin"), Refused(500), Unsent("refused")])
def test_no_failure_ends_the_election(error: Exception) -> None:
    """The first request fails, later ones do not: 0.1 s later the lead is taken."""
    server, failed = Server(), threading.Event()

    class Flaky:
        def request(
            self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10
        ) -> bytes:
            if not failed.is_set():
                failed.set()
                raise error
            return server.apply(method, path, body)

    told: list[bool] = []
    one = Leader(Flaky(), "lock", "ns", durations=Durations(2, 1, 0.1))
    one.on_change(told.append)
    one.start()
    assert one.wait_for_lead(threading.Event())
    assert one.may_send()
    one.stop()
    assert told == [True, False]
    assert not one.may_send()
    assert server.log[-1][0] == ""
    assert server.lease is not None
    assert server.lease["spec"]["leaseDurationSeconds"] == 1


def test_waiting_for_the_lead_ends_with_the_process() -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert not Leader(Server(), "lock", "ns").wait_for_lead(stop)  # type: ignore[arg-type]  # is never asked


def test_without_election_one_leads_from_start_to_stop() -> None:
    alone, told = Alone(), list[bool]()
    alone.on_change(told.append)
    assert not alone.may_send()
    alone.start()
    assert alone.wait_for_lead(threading.Event())
    assert (alone.may_send(), alone.term, alone.may_send(1), alone.may_send(0)) == (True, 1, True, False)
    alone.stop()
    alone.stop()
    assert not alone.may_send()
    assert told == [True, False]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((10, 10, 2), "--leader-elect-lease-duration 10s: must be above --leader-elect-renew-deadline 10s"),
        ((15, 2.4, 2), "--leader-elect-renew-deadline 2.4s: must be above 1.2 x --leader-elect-retry-period 2s"),
        ((15, 10, 0), "--leader-elect-retry-period 0s: must be above 0"),
        ((0.9, 0.5, 0.1), "--leader-elect-lease-duration 0.9s: must be at least 1s"),
        ((float("nan"), 10, 2), "--leader-elect-lease-duration nans: must be above 0"),
    ],
)
def test_durations_that_cannot_be_kept_are_refused(seconds: tuple[float, float, float], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        Durations(*seconds)


@dataclass
class Life:
    """One candidate of the property: when it starts, is stopped and goes on, and ends, in seconds."""

    start: float
    durations: Durations
    offset: float
    pauses: list[tuple[float, float]] = field(default_factory=list)
    release: float | None = None


seconds = st.floats(0, 100, allow_nan=False).map(lambda x: round(x, 2))
lives = st.builds(
    Life,
    start=seconds,
    # 11 s and 10 s leave 1 s between who ends and who begins
    durations=st.sampled_from([Durations(), Durations(11, 10, 2), Durations(6, 5, 1), Durations(12, 11, 3)]),
    offset=st.sampled_from([0.0, 1e6, -1e3]),
    pauses=st.lists(st.tuples(seconds, st.sampled_from([1.0, 4.0, 11.0, 16.0, 30.0])), max_size=3),
    release=st.none() | seconds,
)


@settings(max_examples=150)
@given(st.lists(lives, min_size=2, max_size=4), st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 3.0, 8.0]))
def test_never_two_may_send_whatever_is_slow_lost_or_stopped(some: list[Life], seed: int, slow: float) -> None:
    """100 s of trouble, 60 s without: no two at any moment, and one at the end unless all have been released."""
    dice = random.Random(seed)

    def trip(_: str) -> Trip:
        if w.now > 100:
            return Trip()
        status = dice.choice([0] * 8 + [409, 500, 503])
        return Trip(
            there=dice.choice([0.01, slow * dice.random(), slow]),
            back=dice.choice([0.01, slow * dice.random(), slow]),
            arrives=dice.random() > 0.1,
            answered=dice.random() > 0.2,
            status=status,
            acts=not status or dice.random() > 0.5,
        )

    with world(trip, ticks=False) as w:
        for number, life in enumerate(some):
            one = w.add(f"c{number}", life.start, durations=life.durations, offset=life.offset)
            for start, length in life.pauses:
                one.pause(start, length)
            if life.release is not None:
                w.at(life.release, one.release)
        w.run(160)
        if any(life.release is None for life in some):
            assert w.leader()


CANDIDATE = """
import signal, sys, time
from pathlib import Path
from solver_sched.cluster.api import Api
from solver_sched.leader import AGENT, Leader, boot_time

leader = Leader(Api.load(Path(sys.argv[1]), agent=AGENT), "lock", "default", sys.argv[2])
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
leader.start()
with open(sys.argv[3], "w") as out:
    while not ends:
        before = boot_time()
        print(before, int(leader.may_send()), file=out, flush=True)
        time.sleep(0.01)
leader.stop()
"""


class Process:
    """A candidate in a process of its own, which asks every 10 ms whether it may send and writes down the answer with
    the time before it asked, on the clock that all processes of a machine share.
    """

    def __init__(self, control_plane: ControlPlane, name: str, folder: Path) -> None:
        self.answers = folder / name
        kubeconfig = str(control_plane.cluster.kubeconfig)
        self.process = subprocess.Popen([sys.executable, "-c", CANDIDATE, kubeconfig, name, str(self.answers)])

    def asked(self) -> list[tuple[float, bool]]:
        lines = self.answers.read_text().split("\n")[:-1] if self.answers.exists() else []
        return [(float(at), may == "1") for at, may in (line.split() for line in lines)]

    def led(self) -> list[float]:
        return [at for at, may in self.asked() if may]

    def wait_for_lead(self, seconds: float, after: float = 0.0) -> float:
        """When it led first after `after`."""
        for _ in range(int(seconds * 20)):
            for at in self.led():
                if at > after:
                    return at
            time.sleep(0.05)
        raise TimeoutError(f"no lead within {seconds} s")


def test_a_stopped_leader_is_followed_within_20_s_and_knows_it_at_once(
    start_control_plane: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    """a leads, is stopped past its lease and goes on, while b leads. Then b ends, and a need not wait for its lease."""
    plane = start_control_plane(components=[])
    with contextlib.ExitStack() as stack:

        def start(name: str) -> Process:
            one = Process(plane, name, tmp_path)
            stack.callback(one.process.wait)
            stack.callback(one.process.kill)
            return one

        a = start("a")
        a.wait_for_lead(20)
        b = start("b")
        time.sleep(4)  # b has seen that a holds the lease
        stopped = boot_time()
        a.process.send_signal(signal.SIGSTOP)
        begins = b.wait_for_lead(25)
        assert begins - stopped <= 20
        resumed = boot_time()
        a.process.send_signal(signal.SIGCONT)
        time.sleep(5)
        after = [may for at, may in a.asked() if at >= resumed]
        assert len(after) > 50
        assert not any(after)
        assert max(a.led()) <= stopped
        assert max(b.led()) >= resumed + 4
        ended = boot_time()
        b.process.terminate()
        assert b.process.wait(10) == 0
        assert a.wait_for_lead(5, after=ended) - ended <= JITTER * 2 + 1
        lease = plane.cluster.get("Lease", "lock", api_version="coordination.k8s.io/v1", namespace="default")
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("a", 2)


def role(name: str, *rules: dict[str, list[str]]) -> list[dict[str, Any]]:
    """A service account and what it may do, in the namespace that it is applied to."""
    rbac = "rbac.authorization.k8s.io"
    reference = {"apiGroup": rbac, "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": name}, "rules": list(rules)},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": reference,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
    ]


def test_with_no_more_rights_than_it_says_it_leads_and_a_deleted_lease_comes_back(
    start_control_plane: Callable[..., ControlPlane], caplog: pytest.LogCaptureFixture
) -> None:
    """A real server refuses a service account without rights; with create, and get and update of its one Lease, it
    leads. The Lease is deleted: the next renewal makes another one, in a new term.
    """
    plane = start_control_plane(components=[])
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    plane.cluster.apply(*role("candidate"), namespace="default")
    where = "/apis/coordination.k8s.io/v1/namespaces/default/leases/lock"
    with plane.account("candidate", "default") as account:
        api = Api.load(account.kubeconfig, agent=AGENT)
    one, told = Leader(api, "lock", "default", durations=Durations(retry=0.5)), list[bool]()
    one.on_change(told.append)
    one.attempt()
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.message.startswith("may not use its lease")
    assert 'cannot get resource "leases"' in vars(record)["error"]
    allowed = (
        {**leases, "verbs": ["create"]},
        {**leases, "verbs": ["get", "update"], "resourceNames": ["lock"]},
    )
    plane.cluster.apply(*role("candidate", *allowed), namespace="default")
    one.start()
    assert one.wait_for_lead(threading.Event())
    first = plane.cluster.request("GET", where)
    assert first["metadata"]["managedFields"][0]["manager"] == "solver-sched"
    plane.cluster.request("DELETE", where)

    def comes_back() -> bool:
        with contextlib.suppress(StatusError):
            found = plane.cluster.request("GET", where)
            return bool(found["spec"]["holderIdentity"] == one.identity and one.term == 2)
        return False

    plane.cluster.wait_for(comes_back, 10, "the lease is there again")
    assert not one.may_send(1)
    one.stop()
    assert told == [True, False, True, False]
    spec = plane.cluster.request("GET", where)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)

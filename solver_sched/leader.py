"""Leader election by a Lease: at most one of several schedulers sends anything.

What stands in the Lease is what client-go's tools/leaderelection writes, so that kubectl and other tools read it. Who
may act is told more strictly. A leader leads until `renew` seconds after the moment *before* it sent the last renewal
that succeeded; another candidate takes over no earlier than `lease` seconds after it saw the record change. Each reads
its own clock only: as long as these run at the same rate, two never lead at the same time. Wall times are written for
people and never read.

A Lease that somebody deletes is the one hole. Candidates that saw its holder wait as long as before, but one that
starts in that moment cannot know that there was a holder, who finds out at its next renewal.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from solver_sched.cluster.api import ApiError, Lost, Refused
from solver_sched.cluster.kinds import Kind, path
from solver_sched.errors import ConfigError

LEASE = Kind("Lease", ("coordination.k8s.io/v1",), "leases", True)
AGENT = "solver-sched/leader-election"
"""Name of the client that renews. It has its own, as in kube-scheduler: a throttled binder must delay no renewal."""
JITTER = 1.2
"""A candidate tries again after 1 to JITTER retry periods."""
QUIET_SECONDS = 60.0
"""The same complaint is made at most this often."""
NARROW_SECONDS = 0.1
"""The shortest time between two attempts of a leader whose deadline is near."""
RELEASES = 3

Changed = Callable[[bool], None]
"""Told True when leading begins and False when it ends, on the election's thread: it must not block."""
log = logging.getLogger(__name__)


def boot_time() -> float:
    """Seconds on a clock that never goes back, and goes on while the machine sleeps where there is such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_identity() -> str:
    """`hostname_uuid`, another one for each process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Requests(Protocol):
    """What of `cluster.api.Api` an election uses."""

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10.0
    ) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds: how long others wait for a silent leader, how long a leader acts without a renewal, between two tries.

    Raises ConfigError.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        for flag, seconds in (
            ("lease-duration", self.lease),
            ("renew-deadline", self.renew),
            ("retry-period", self.retry),
        ):
            if not 0 < seconds < math.inf:
                raise ConfigError(f"--leader-elect-{flag} {seconds:g}s: must be above 0")
        if self.lease < 1:
            raise ConfigError(f"--leader-elect-lease-duration {self.lease:g}s: must be at least 1s")
        if self.lease <= self.renew:
            raise ConfigError(
                f"--leader-elect-lease-duration {self.lease:g}s: must be above --leader-elect-renew-deadline"
                f" {self.renew:g}s"
            )
        if self.renew <= JITTER * self.retry:
            raise ConfigError(
                f"--leader-elect-renew-deadline {self.renew:g}s: must be above {JITTER} x --leader-elect-retry-period"
                f" {self.retry:g}s"
            )


class Alone:
    """No election: leads from start to stop."""

    def __init__(self) -> None:
        self._callbacks: list[Changed] = []
        self._leads = False

    def on_change(self, callback: Changed) -> None:
        """Call `callback` at every change."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Lead."""
        self._leads = True
        for callback in self._callbacks:
            callback(True)

    def stop(self) -> None:
        """Lead no more."""
        was, self._leads = self._leads, False
        for callback in self._callbacks if was else ():
            callback(False)

    @property
    def term(self) -> int:
        """Which time of leading this is, from 1; 0 while it does not lead."""
        return int(self._leads)

    def may_send(self, term: int | None = None) -> bool:
        """As `Leader.may_send`."""
        return self._leads and term in (None, 1)

    def wait_for_lead(self, stop: threading.Event) -> bool:
        """As `Leader.wait_for_lead`."""
        return self._leads and not stop.is_set()


class Leader:
    """A candidate for the Lease `namespace/name`. One thread tries, waits and tries again; any may ask and wait."""

    def __init__(
        self,
        api: Requests,
        name: str,
        namespace: str,
        identity: str = "",
        durations: Durations = Durations(),
        *,
        clock: Callable[[], float] = boot_time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity or own_identity()
        self.durations = durations
        self._api, self._clock, self._wall = api, clock, wall
        self._name, self._namespace = name, namespace
        self._callbacks: list[Changed] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # one tuple, so that every thread reads a deadline and the term that it belongs to
        self._lead: tuple[int, float] = (0, -math.inf)
        self._terms = 0
        self._told = False
        self._lead_begins = threading.Event()
        # the record as last read: None = there is none, or what there is has to be read before it can be replaced
        self._record: dict[str, Any] | None = None
        self._version = ""
        self._holder = ""
        self._holder_until = -math.inf
        self._complained: dict[str, float] = {}

    def on_change(self, callback: Changed) -> None:
        """Call `callback` at every change. To be set before `start`."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Stand for election."""
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Lead no more, and say so in the Lease, so that another candidate need not wait.

        Call it when nothing is on its way any more: whoever takes over starts at once. With a server that does not
        answer it takes as long as the renewal that is on its way, at most the renew deadline, and 4 retry periods.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def term(self) -> int:
        """Which time of leading this is, from 1; 0 while it does not lead."""
        term, until = self._lead
        return term if self._clock() < until and not self._stopping.is_set() else 0

    def may_send(self, term: int | None = None) -> bool:
        """Whether what was decided in `term` (None = at any time) may still be sent. Ask right before each send.

        It looks at the clock, not at what the election's thread found out: a process that was stopped and goes on after
        its deadline gets False at once. What was decided before another one led is void even if this one leads again.
        """
        now = self.term
        return now > 0 and term in (None, now)

    def wait_for_lead(self, stop: threading.Event) -> bool:
        """Block until it leads (True) or `stop` is set (False)."""
        while not stop.is_set():
            if self._lead_begins.wait(0.5) and self.may_send():
                return not stop.is_set()
            if self._lead_begins.is_set():  # past the deadline, which the election's thread is about to find out
                stop.wait(0.05)
        return False

    def attempt(self) -> None:
        """Try once to take the Lease or to keep it. The election's thread does nothing but this and `interval`."""
        self._check_deadline()
        try:
            for _ in range(2):  # a conflict means that the record has changed: read it and judge again
                if self._record is None or not self.may_send():
                    self._read()
                if self._holder not in ("", self.identity) and self._clock() < self._holder_until:
                    return
                if self._write():
                    return
        except ApiError as wrong:
            self._complain(wrong)

    def interval(self) -> float:
        """Seconds from one attempt to the next: about a retry period, less where a deadline is near.

        A candidate wakes up when the record that it saw expires, a leader half way to its own deadline.
        """
        now = self._clock()
        seconds = self.durations.retry * random.uniform(1.0, JITTER)  # noqa: S311  # spreads load, hides nothing
        if self.may_send():
            return min(seconds, max(NARROW_SECONDS, (self._lead[1] - now) / 2))
        if self._holder != self.identity and self._holder_until > now:
            return min(seconds, self._holder_until - now)
        return seconds

    def release(self) -> None:
        """Lead no more, and write into the Lease that nobody holds it, as client-go does."""
        self._stopping.set()
        self._resign("released")
        if self._holder != self.identity:
            return
        try:
            for _ in range(RELEASES):
                if self._record is None:
                    self._read()
                if self._record is None or self._holder != self.identity:
                    return
                now = self._micro_time()
                spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
                if self._put(self._record, spec, self.durations.retry):
                    return
        except ApiError as wrong:
            log.warning(
                "could not release the lease: others wait until it runs out",
                extra={"lease": self._where, "seconds": self.durations.lease, "error": str(wrong)},
            )

    @property
    def _where(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _run(self) -> None:
        log.info("stands for election", extra={"lease": self._where, "identity": self.identity})
        while not self._stopping.is_set():
            try:
                self.attempt()
            except Exception as wrong:  # noqa: BLE001  # a thread's edge: a bad credential plugin must not end it
                self._complain(wrong)
            self._stopping.wait(self.interval())
        self.release()

    def _read(self) -> None:
        """What the Lease says now, and whether that is something new."""
        self._record = None
        try:
            answer = self._api.request("GET", self._path(self._name), timeout=self._timeout())
        except Refused as refused:
            if refused.status != 404:
                raise
            # Whoever held the Lease that is gone may still act: `_holder` and `_holder_until` stay.
            self._resign("the lease was deleted")
            return
        self._take_in(answer)
        if self._holder != self.identity:
            self._resign(f"{self._holder or 'nobody'} holds the lease")

    def _write(self) -> bool:
        """Whether the Lease now says that we hold it. False: it has changed, or is gone, since it was read."""
        sent = self._clock()
        now = self._micro_time()
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.durations.lease),
            "acquireTime": now,
            "renewTime": now,
        }
        if self._record is None:
            written = self._post({**spec, "leaseTransitions": 0})
        else:
            old = self._record["spec"]
            if self._holder == self.identity:
                spec["acquireTime"] = old.get("acquireTime") or now
            else:
                spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + 1
            written = self._put(self._record, spec, self._timeout())
        if written:
            self._leads_from(sent)
        return written

    def _post(self, spec: Mapping[str, Any]) -> bool:
        meta = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": LEASE.versions[0], "kind": LEASE.kind, "metadata": meta, "spec": spec}
        return self._send("POST", self._path(), body, self._timeout(), 409)

    def _put(self, record: Mapping[str, Any], spec: Mapping[str, Any], timeout: float) -> bool:
        """Replace `record`, whose uid and resourceVersion the server compares with what it has.

        The uid matters: without it a PUT of a deleted Lease makes a new one (Kubernetes
        pkg/registry/coordination/lease/strategy.go, AllowCreateOnUpdate).
        """
        body = {**record, "spec": {**record["spec"], **spec}}
        return self._send("PUT", self._path(self._name), body, timeout, 404, 409)

    def _send(self, method: str, where: str, body: Mapping[str, Any], timeout: float, *changed: int) -> bool:
        """False where the server answers with one of `changed`. After any failure the record has to be read again."""
        self._record = None
        try:
            answer = self._api.request(method, where, body, timeout=timeout)
        except Refused as refused:
            # creating in a namespace that is not there is a 404 as well, and no race
            if refused.status not in changed:
                raise
            return False
        self._take_in(answer)
        return True

    def _take_in(self, answer: bytes) -> None:
        """Remember the record. One that is new to us is valid from now on, whatever the times in it say.

        Any change counts, not that of `renewTime` alone: the clock of a holder may stand still.
        """
        try:
            record = msgspec.json.decode(answer, type=dict[str, Any])
            version = str(record["metadata"]["resourceVersion"])
            spec = dict(record.get("spec") or {})
            seconds = float(spec.get("leaseDurationSeconds") or self.durations.lease)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as wrong:
            raise Lost(f"an answer that is no Lease: {type(wrong).__name__}: {wrong}") from None
        record["spec"] = spec
        record["metadata"].pop("managedFields", None)
        if version != self._version:
            self._version = version
            holder = str(spec.get("holderIdentity") or "")
            if holder != self._holder and holder not in ("", self.identity):
                log.info("another one leads", extra={"lease": self._where, "holder": holder})
            self._holder, self._holder_until = holder, self._clock() + seconds
        self._record = record

    def _leads_from(self, sent: float) -> None:
        """The renewal that was sent at `sent` has succeeded."""
        if not self.may_send():  # the last term is over, though nobody else may have had one
            self._resign("the renewal came too late")
            self._terms += 1
        self._lead = (self._terms, sent + self.durations.renew)
        if self.may_send() and not self._told:
            self._told = True
            log.info("leads", extra={"lease": self._where, "identity": self.identity, "term": self._terms})
            self._lead_begins.set()
            self._tell(True)

    def _check_deadline(self) -> None:
        if self._told and not self.may_send():
            self._resign(f"no renewal for {self.durations.renew:g} s")

    def _resign(self, why: str) -> None:
        self._lead = (self._lead[0], -math.inf)
        if self._told:
            self._told = False
            self._lead_begins.clear()
            said = {"lease": self._where, "identity": self.identity, "reason": why}
            log.log(logging.INFO if self._stopping.is_set() else logging.WARNING, "leads no more", extra=said)
            self._tell(False)

    def _tell(self, leads: bool) -> None:
        for callback in self._callbacks:
            callback(leads)

    def _timeout(self) -> float:
        """Half of the time left: connecting and the answer may take this long each, and another try should be left."""
        if self._stopping.is_set():
            return self.durations.retry
        left = self._lead[1] - self._clock()
        return (left if left > 0 else self.durations.renew) / 2

    def _complain(self, wrong: Exception) -> None:
        """Log what went wrong, the same thing once a minute."""
        status = wrong.status if isinstance(wrong, Refused) else 0
        key = f"{type(wrong).__name__} {status}"
        now = self._clock()
        if now < self._complained.get(key, -math.inf):
            return
        self._complained[key] = now + QUIET_SECONDS
        if status == 403:
            text = "may not use its lease: its role needs get, create and update of leases in coordination.k8s.io"
        elif isinstance(wrong, ApiError):
            text = "the server refused the lease" if status else "could not reach the server for the lease"
        else:
            text = "the election failed"
        said = {"lease": self._where, "identity": self.identity, "error": f"{type(wrong).__name__}: {wrong}"}
        log.error(text, extra=said, exc_info=not isinstance(wrong, ApiError))

    def _path(self, name: str = "") -> str:
        return path(LEASE, LEASE.versions[0], self._namespace, name)

    def _micro_time(self) -> str:
        """Wall time as a MicroTime."""
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

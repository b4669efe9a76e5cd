"""Decisions on their way to the API server: binds, evictions, nominations, admissions.

What the server says decides, not what was sent:

    answer to a bind                     what is done
    201                                  bound
    409                                  read the pod: on our node = bound; elsewhere, ending, gated, another uid =
                                         given up; still pending = sent again with the resourceVersion that was read
    no answer, 5xx                       read the pod before anything is sent again
    429, no connection                   sent again later, not before Retry-After
    404, 400, 403, 422                   given up

A pod keeps its room in the cache until it is bound or given up, so that a gang cannot lose the rest of its room while
one of its binds is tried again.

Each bind names the pod's uid and the resourceVersion that was known when it was decided. Neither is asked for by
kube-scheduler; here a scheduler that was stopped between its last look at its lease and the send cannot bind a pod that
another leader has changed since (Binding preconditions: kubernetes pkg/registry/core/pod/storage/storage.go).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from solver_sched.cluster.api import Api, ApiError, Lost, Refused, Unsent
from solver_sched.cluster.dialects import DIALECTS
from solver_sched.cluster.events import Event, Events, Ref
from solver_sched.cluster.evictor import Eviction, Evictions, Evictor, Result, Told, Victims
from solver_sched.cluster.kinds import POD, path
from solver_sched.cluster.objects import Pod, PodGroup
from solver_sched.cluster.patches import POD_GROUP, PODS, StatusPatches, patch_pod, read_pod
from solver_sched.cluster.rate import Lane, TokenBucket, backoff


class Cache(Victims, Protocol):
    """What of the cache is needed here; all of it may be called from any thread."""

    def version(self, pod: Pod) -> str:
        """The resourceVersion of the pod as it was seen last, "" if unknown."""

    def assume(self, pod: Pod, node: str) -> None:
        """The pod counts as on `node` from now on."""

    def sent(self, pod: Pod) -> None:
        """Its bind is on the way."""

    def bound(self, pod: Pod, node: str) -> None:
        """The server has bound it."""

    def nominate(self, pod: Pod, node: str | None) -> None:
        """Room on `node` is promised to it; None = no more."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod and the node that it is to be bound to. `action`: the action of the policy that placed it."""

    pod: Pod
    node: str
    action: str


End = tuple[Result, str]
"""How a bind ended, and why if a user is to know."""


@dataclass(slots=True)
class _Bind:
    """`until`: when it is given up, 0 = not sent yet. `unsure`: the last request may have acted. `fence`: one may still
    act.
    """

    pod: Pod
    node: str
    version: str
    until: float = 0.0
    tries: int = 0
    unsure: bool = False
    fence: bool = False


@dataclass(slots=True)
class _Nominate:
    pod: Pod
    node: str | None
    tries: int = 0


@dataclass(slots=True)
class _Admit:
    group: PodGroup
    tries: int = 0


ADMITTED = tuple(version for dialect in DIALECTS if dialect.queue for version in dialect.versions)
"""Dialects in which a group is let in: those with queues. Elsewhere the phase is another's, or there is none."""
TRIES = 8
"""Of a nomination or admission, which a later cycle repeats if need be."""


class Binder:
    """Sends decisions from `workers` threads, at most `qps` a second and `burst` at once.

    `may_send` is asked just before every request that changes something: whether this process still leads. `expire`:
    seconds for which a bind or eviction is tried again. `dry_run`: nothing is assumed, and nothing sent.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        *,
        qps: float,
        burst: float,
        may_send: Callable[[], bool],
        events: Events,
        told: Told = lambda _kind, _result: None,
        dry_run: bool = False,
        workers: int = 16,
        expire: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._cache, self._may_send, self._events, self._told = api, cache, may_send, events, told
        self._dry_run, self._expire, self._clock = dry_run, expire, clock
        self._status = StatusPatches(api)
        self._evictor = Evictor(api, cache, may_send, events, told, expire, clock)
        self._lock = threading.Lock()
        self._flying: set[str] = set()
        self._nominations: dict[str, _Nominate] = {}
        self._admissions: set[str] = set()
        bucket = TokenBucket(qps, burst)
        self.lane: Lane[_Bind | Evictions | _Nominate | _Admit] = Lane(
            "binder", self._do, workers=workers, bucket=bucket
        )

    @property
    def in_flight(self) -> int:
        """Decisions that have no answer yet."""
        return self.lane.depth

    def bind(self, gangs: Iterable[Sequence[Placement]]) -> None:
        """Bind pods to nodes, gang by gang in the given order; returns at once.

        A gang is assumed as a whole before the first of its binds is sent.
        """
        if self._dry_run:
            return
        for gang in gangs:
            binds = []
            for pod, node in ((one.pod, one.node) for one in gang):
                with self._lock:
                    if _id(pod) in self._flying:
                        continue
                    self._flying.add(_id(pod))
                    self._nominations.pop(_id(pod), None)  # the server clears what it says when it binds
                binds.append(_Bind(pod, node, self._cache.version(pod)))
                self._cache.assume(pod, node)
            self.lane.put(binds)

    def evict(self, evictions: Iterable[Eviction]) -> None:
        """Ask for evictions: those for one beneficiary one after the other, those that a disruption budget guards
        first; returns at once.
        """
        if not self._dry_run:
            self.lane.put(self._evictor.queues(evictions))

    def nominate(self, pod: Pod, node: str | None) -> None:
        """Say in the pod's status which node is promised to it; None = none any more. A later call replaces it; nothing
        is sent where the pod says so already.
        """
        wish = _Nominate(pod, node)
        with self._lock:
            if self._dry_run or ((pod.nominated or None) == node and _id(pod) not in self._nominations):
                return
            self._nominations[_id(pod)] = wish
        self._cache.nominate(pod, node)
        self.lane.put([wish])

    def admit(self, group: PodGroup) -> None:
        """Set the phase Inqueue; nothing if that is on its way, or if groups of the dialect have no such phase."""
        if group.dialect not in ADMITTED:
            return
        with self._lock:
            known = group.key in self._admissions
            self._admissions.add(group.key)
        if known or self._dry_run:
            return
        self.lane.put([_Admit(group)])

    def drain(self, seconds: float) -> bool:
        """Wait until every decision has its answer, at most `seconds`; whether all have."""
        return self.lane.drain(seconds)

    def stop(self) -> None:
        """Send nothing any more."""
        self.lane.stop()

    def _do(self, one: _Bind | Evictions | _Nominate | _Admit) -> float | None:
        match one:
            case _Bind():
                return self._bind(one)
            case _Nominate():
                return self._nominate(one)
            case _Admit():
                return self._admit(one)
            case _:
                return self._evictor.step(one)

    # -- binds ---------------------------------------------------------------------------------------------------

    def _bind(self, one: _Bind) -> float | None:
        end = self._attempt(one)
        if isinstance(end, float):
            return end
        result, why = end
        with self._lock:  # before its room is free: a cycle that then decides on it anew must find it landed
            self._flying.discard(_id(one.pod))
        if result == "ok":
            self._cache.bound(one.pod, one.node)
            note = f"Successfully assigned {one.pod.key} to {one.node}"
            self._events.tell(Event(Ref.of(one.pod), "Scheduled", "Binding", note))
        else:
            self._cache.forget(one.pod)
        if why:
            note = f"not bound to {one.node}: {why}"
            self._events.tell(Event(Ref.of(one.pod), "FailedScheduling", "Binding", note, "Warning", about=result))
        self._told("Bind", result)
        return None

    def _attempt(self, one: _Bind) -> float | End:
        """Send once; how it ended, or the seconds after which it is to be tried again."""
        if one.unsure and (found := self._look(one)) is not None:
            return found
        if not self._may_send():
            return "failed", ""
        now = self._clock()
        if one.until and now > one.until:
            return self._expired(one)
        one.until = one.until or now + self._expire
        self._cache.sent(one.pod)
        try:
            self._api.request("POST", path(POD, PODS, one.pod.namespace, one.pod.name, "binding"), _binding(one))
        except Unsent:
            return self._later(one)
        except Lost:
            one.unsure = one.fence = True
            return self._later(one)
        except Refused as wrong:
            return self._refused(one, wrong)
        return "ok", ""

    def _refused(self, one: _Bind, wrong: Refused) -> float | End:
        if wrong.status == 409:
            one.unsure = True
            wait = self._later(one)
            return wait if one.tries > 1 else 0.0  # at first somebody has written to the pod, most often
        if wrong.status >= 500:
            one.unsure = one.fence = True
            return self._later(one, wrong)
        if _again(wrong):
            return self._later(one, wrong)
        return ("conflict", "") if wrong.status == 404 else ("refused", str(wrong))

    def _look(self, one: _Bind) -> float | End | None:
        """Read the pod: how it ended, the seconds after which to read it again, or None: the bind is to be sent."""
        try:
            now = read_pod(self._api, one.pod)
        except ApiError as wrong:
            return self._later(one, wrong)  # it may be bound: its room stays taken, however long that is
        if now is None:
            return "conflict", ""
        if now.node:
            return ("ok", "") if now.node == one.node else ("conflict", f"it is on {now.node}")
        if now.ending:
            return "conflict", ""
        if now.spec.scheduling_gates:
            return "refused", "it has scheduling gates"
        if now.metadata.resource_version != one.version:
            one.fence = False  # what may still be on its way names the old one
        one.version, one.unsure = now.metadata.resource_version, False
        return None

    def _expired(self, one: _Bind) -> float | End:
        """Give up, but not before a bind that may still be on its way cannot act any more: a write to the pod changes
        its resourceVersion.
        """
        message = f"no answer to its binding within {self._expire:.0f} s"
        if not one.fence:
            return "failed", message
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulerError",
            "message": f"{message}, {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        one.unsure = True
        try:
            patch_pod(self._api, one.pod, {"conditions": [condition]}, one.version)
        except ApiError as wrong:
            return self._later(one, wrong)
        return "lost", message

    def _later(self, one: _Bind | _Nominate | _Admit, wrong: ApiError | None = None) -> float:
        one.tries += 1
        return backoff(one.tries, wrong.retry_after if isinstance(wrong, Refused) else None)

    # -- nominations and admissions ------------------------------------------------------------------------------

    def _nominate(self, one: _Nominate) -> float | None:
        with self._lock:
            if self._nominations.get(_id(one.pod)) is not one:
                return None  # another has taken its place
        end = self._written(one, lambda: patch_pod(self._api, one.pod, {"nominatedNodeName": one.node}))
        if isinstance(end, float):
            return end
        with self._lock:
            latest = self._nominations.get(_id(one.pod)) is one
            if latest:
                del self._nominations[_id(one.pod)]
        if latest and end != "ok":
            self._cache.nominate(one.pod, one.pod.nominated)
        self._told("Nominate", end)
        return None

    def _admit(self, one: _Admit) -> float | None:
        group, body = one.group, {"status": {"phase": "Inqueue"}}
        end = self._written(
            one, lambda: self._status.patch(POD_GROUP, group.dialect, group.namespace, group.name, body)
        )
        if isinstance(end, float):
            return end
        with self._lock:
            self._admissions.discard(group.key)
        self._told("Admit", end)
        return None

    def _written(self, one: _Nominate | _Admit, send: Callable[[], object]) -> float | Result:
        """Send once; how it ended, or the seconds after which it is to be tried again."""
        if not self._may_send():
            return "failed"
        try:
            send()
        except ApiError as wrong:
            return self._later(one, wrong) if _again(wrong) and one.tries < TRIES else _result(wrong)
        return "ok"


def _id(pod: Pod) -> str:
    return pod.uid or pod.key


def _binding(one: _Bind) -> bytes:
    metadata = {"namespace": one.pod.namespace, "name": one.pod.name}
    if one.pod.uid:
        metadata["uid"] = one.pod.uid
    if one.version:
        metadata["resourceVersion"] = one.version
    target = {"apiVersion": "v1", "kind": "Node", "name": one.node}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})


def _again(wrong: ApiError) -> bool:
    """Whether the server may take the same request later."""
    return not isinstance(wrong, Refused) or wrong.status in (401, 408, 429) or wrong.status >= 500


def _result(wrong: ApiError) -> Result:
    if isinstance(wrong, Lost):
        return "lost"
    if isinstance(wrong, Refused):
        return "conflict" if wrong.status in (404, 409, 422) else "failed" if _again(wrong) else "refused"
    return "failed"

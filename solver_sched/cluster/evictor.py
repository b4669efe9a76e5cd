"""Evictions on their way to the API server, through `pods/eviction`, so that disruption budgets hold.

What one group is to start on is asked for pod by pod, those under a budget first: what the budget refuses ends the rest
before anybody has gone in vain. A refusal is told and planned around, it is not sent again.

The uid alone is a precondition. A resourceVersion would tell nothing of another leader, who leaves running pods as they
are until he evicts them, and the server looks at it after it has taken the eviction off the budget: a pod whose status
has changed would use up the budget for two minutes and stay (kubernetes pkg/registry/core/pod/storage/eviction.go).

The condition `DisruptionTarget` is set by the eviction itself, with the reason EvictionByEvictionAPI, over whatever
stood there (same file). Our reason is written after it, while the pod ends: before it, it would be overwritten, and
would stay on pods that a budget keeps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from solver_sched.cluster.api import Api, ApiError, Lost, Refused, Unsent
from solver_sched.cluster.events import Event, Events, Ref, shortened
from solver_sched.cluster.kinds import POD, path
from solver_sched.cluster.objects import Pod
from solver_sched.cluster.patches import PODS, patch_pod, read_pod
from solver_sched.cluster.rate import backoff

SPARED_SECONDS = 30.0
"""How long a pod is no victim after a refusal without Retry-After: a budget's controller counts within seconds."""
TWO_BUDGETS = "more than one PodDisruptionBudget"
"""Part of the message of the 500 that stands for ever: the eviction API serves no pod that two budgets match."""
SPARED_FOR_TWO = 600.0

Result = Literal["ok", "conflict", "refused", "lost", "failed"]
"""What became of a decision. ok: the server has it. conflict: the object has changed, and it is moot. refused: the
server does not want it. lost: no answer came in time. failed: not sent, or the server was too busy for too long.
"""
Told = Callable[[str, Result], None]
"""Told of every decision's end: Bind, Evict, Nominate or Admit, and the result."""


class Victims(Protocol):
    """What of the cache is needed here; all of it may be called from any thread."""

    def evicting(self, pod: Pod) -> None:
        """Its eviction is going to be asked for: it counts as ending."""

    def evicted(self, pod: Pod) -> None:
        """The server ends it."""

    def forget(self, pod: Pod) -> None:
        """It is where the server shows it: nothing is being done to it."""

    def spared(self, pod: Pod, seconds: float) -> None:
        """Its eviction was refused: it is no victim for so long."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """`beneficiary`: the group ("namespace/name") that starts because of it, "" if none. `action`: preempt, reclaim or
    consolidate. `guarded`: a PodDisruptionBudget matches the pod.
    """

    pod: Pod
    beneficiary: str
    action: str
    reason: str
    guarded: bool = False


@dataclass(slots=True)
class Evictions:
    """Those for one beneficiary that are still to be asked for. `until`: when the first of them is given up, 0 = not
    asked for yet. `unsure`: the last request may have acted.
    """

    rest: deque[Eviction]
    until: float = 0.0
    tries: int = 0
    unsure: bool = False


@dataclass(slots=True)
class Evictor:
    """Asks for evictions, one at each step. `expire`: seconds after which one that has no answer is given up."""

    api: Api
    victims: Victims
    may_send: Callable[[], bool]
    events: Events
    told: Told
    expire: float
    clock: Callable[[], float] = field(default=time.monotonic)

    def queues(self, evictions: Iterable[Eviction]) -> list[Evictions]:
        """One queue for each beneficiary, guarded pods first, else in the given order. All count as ending from now on:
        a cycle that begins between two of them must not choose others in their place.
        """
        each: dict[str, list[Eviction]] = {}
        for number, one in enumerate(evictions):
            self.victims.evicting(one.pod)
            each.setdefault(one.beneficiary or f"#{number}", []).append(one)
        return [Evictions(deque(sorted(some, key=lambda one: not one.guarded))) for some in each.values()]

    def step(self, some: Evictions) -> float | None:
        """Ask for the next one. None when there is nothing left to do, else the seconds to the next step."""
        one = some.rest[0]
        if not self.may_send():
            self._end(some.rest, "failed")
            return None
        try:
            if some.unsure and self._is_going(one.pod):
                return self._accepted(some)
            some.unsure = False
            now = self.clock()
            if some.until and now > some.until:
                self._refuse(some, "lost", "no answer to its eviction in time", SPARED_SECONDS)
                return None
            some.until = some.until or now + self.expire
            self.api.request("POST", path(POD, PODS, one.pod.namespace, one.pod.name, "eviction"), _eviction(one.pod))
        except Refused as wrong:
            return self._refused(some, wrong)
        except Lost:
            some.unsure = True
            return self._later(some)
        except Unsent:
            return self._later(some)
        return self._accepted(some)

    def _refused(self, some: Evictions, wrong: Refused) -> float | None:
        if wrong.status == 404:
            return self._next(some, "ok")  # it has gone already
        if wrong.status == 409:  # another uid, or the server lost a race
            some.unsure = True
            return self._later(some)
        if "DisruptionBudget" in wrong.causes:
            self._refuse(some, "refused", wrong.message, wrong.retry_after or SPARED_SECONDS)
            return None
        if TWO_BUDGETS in wrong.message:
            self._refuse(some, "refused", wrong.message, SPARED_FOR_TWO)
            return None
        if wrong.status in (401, 408, 429) or wrong.status >= 500:
            some.unsure = wrong.status >= 500
            return self._later(some, wrong.retry_after)
        self._refuse(some, "refused", wrong.message or str(wrong), SPARED_SECONDS)
        return None

    def _is_going(self, pod: Pod) -> bool:
        now = read_pod(self.api, pod)
        return now is None or now.ending

    def _later(self, some: Evictions, least: float | None = None) -> float:
        some.tries += 1
        return backoff(some.tries, least)

    def _accepted(self, some: Evictions) -> float | None:
        one = some.rest[0]
        self.victims.evicted(one.pod)
        related = None
        if one.beneficiary:
            namespace, _, name = one.beneficiary.partition("/")
            related = Ref("", "PodGroup", namespace, name)
        note = f"{one.action}: {one.reason}"
        self.events.tell(Event(Ref.of(one.pod), "Preempted", "Preempting", note, related=related))
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": shortened(note),
        }
        if self.may_send():
            with suppress(ApiError):  # it has gone by now, or goes without our words
                patch_pod(self.api, one.pod, {"conditions": [condition]})
        return self._next(some, "ok")

    def _next(self, some: Evictions, result: Result) -> float | None:
        some.rest.popleft()
        self.told("Evict", result)
        some.tries, some.unsure, some.until = 0, False, 0.0
        return 0.0 if some.rest else None

    def _refuse(self, some: Evictions, result: Result, why: str, seconds: float) -> None:
        """The first is refused; the rest would go in vain."""
        one = some.rest.popleft()
        self.victims.spared(one.pod, seconds)
        self.told("Evict", result)
        who = f" for {one.beneficiary}" if one.beneficiary else ""
        left = f"; {len(some.rest)} more evictions{who} are not asked for" if some.rest else ""
        note = f"not evicted{who}: {why}{left}"
        self.events.tell(
            Event(Ref.of(one.pod), "EvictionRefused", "Preempting", note, "Warning", about=one.beneficiary)
        )
        self._end(some.rest, "failed")

    def _end(self, rest: deque[Eviction], result: Result) -> None:
        for one in rest:
            self.victims.forget(one.pod)
            self.told("Evict", result)
        rest.clear()


def _eviction(pod: Pod) -> bytes:
    """Without a grace period: the pod's own counts."""
    options = {"preconditions": {"uid": pod.uid}} if pod.uid else {}
    metadata = {"namespace": pod.namespace, "name": pod.name}
    return msgspec.json.encode(
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    )

"""What users see, written to the status of pods, pod groups and queues: patches that cannot undo what others wrote.

- Pods and Kubernetes' own PodGroups: strategic merge patches, in which the server merges conditions by their type.
- Custom resources have no such merge: a list in a JSON merge patch replaces the whole list (RFC 7386), and server-side
  apply needs `x-kubernetes-list-type: map`, which the definitions of Volcano and kube-batch do not have: there the list
  belongs to one manager alone. So a patch carries the entries of others over, and names the resourceVersion that it was
  made on: if anybody has written since, the server refuses it (409), and it is made again on what is there now.

Each object has one value that is wanted; a newer one takes its place, also while it waits. It is written when it says
something else than the object does.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from solver_sched.cluster.api import STRATEGIC_PATCH, Api, ApiError, Refused
from solver_sched.cluster.dialects import DIALECTS, NATIVE
from solver_sched.cluster.dialects.volcano import DIALECT as VOLCANO
from solver_sched.cluster.events import shortened
from solver_sched.cluster.kinds import Kind, path
from solver_sched.cluster.objects import Pod, PodGroup
from solver_sched.cluster.patches import POD_GROUP, QUEUE, StatusPatches, patch_pod, read_object, read_pod
from solver_sched.cluster.rate import Lane, TokenBucket, backoff
from solver_sched.cluster.wire import Head

CALM_SECONDS = 30.0
"""Between two writes to one object that differ in nothing but numbers in a sentence, or that were the same before: then
somebody else holds another view of the field. For each thousand objects, so that they are 33 writes a second at most.
"""
KUBE_BATCH_QUEUE = ("unknown", "pending", "running")
"""All that a Queue's status has there (kube-batch pkg/apis/scheduling/v1alpha2/types.go)."""
TRIES = 8
AGAIN_SECONDS = 30.0
"""Between two writes after TRIES have failed: where nothing changes nobody would ask for it a second time."""
Json = dict[str, Any]


class Cache(Protocol):
    """What of the cache is needed here; all of it may be called from any thread."""

    def version(self, pod: Pod) -> str:
        """The resourceVersion of the pod as it was seen last, "" if unknown."""

    def raw(self, kind: str, key: str) -> bytes | None:
        """The last text of a PodGroup ("namespace/name") or Queue ("name")."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`once`: it stays as it is when it has become True. `numbered`: it has a transitionID, as Volcano's have."""

    type: str
    status: str
    reason: str
    message: str
    once: bool = False
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class PodStatus:
    """PodScheduled=False of a pod that waits."""

    pod: Pod = field(compare=False)
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """`fields`: plain fields of the status; None = to be absent. `ended`: types of conditions that hold no more: they
    become False where they are there.
    """

    group: PodGroup = field(compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """`defaults`: fields that are written only where there are none, for they are another's to change."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


Wanted = PodStatus | GroupStatus | QueueStatus
Key = tuple[str, str]


@dataclass(slots=True)
class _Memory:
    """What is wanted of one object, and what was done. `seen`: the cache's text when `text` was answered to a patch.
    `stale`: the server has something newer than the cache. `calm`: it is queued, and not in a hurry.
    """

    wanted: Wanted
    settled: Wanted | None = None
    seen: bytes | None = None
    text: bytes | None = None
    at: float = 0.0
    tries: int = 0
    queued: bool = False
    stale: bool = False
    calm: bool = False


class StatusWriter:
    """Writes with `workers` threads, behind the lane `ahead`."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        *,
        bucket: TokenBucket,
        ahead: Lane[Any] | None = None,
        workers: int = 4,
        may_send: Callable[[], bool] = lambda: True,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._cache, self._may_send, self._clock = api, cache, may_send, clock
        self._dry_run = dry_run
        self._began = clock()
        self._patches = StatusPatches(api)
        self._lock = threading.Lock()
        self._memory: dict[Key, _Memory] = {}
        self._lane: Lane[Key] = Lane("status", self._write, workers=workers, bucket=bucket, ahead=ahead)

    def want(self, all_of: Iterable[Wanted]) -> None:
        """All that is to be seen now; returns at once. What was wanted of other objects is not written any more."""
        if self._dry_run:
            return
        wanted = {_key(one): one for one in all_of}
        due: list[Key] = []
        with self._lock:
            for key in self._memory.keys() - wanted.keys():
                del self._memory[key]
            for key, one in wanted.items():
                memory = self._memory.get(key)
                if memory is None:
                    memory = self._memory[key] = _Memory(one)
                memory.wanted = one
                waits = memory.queued and not (memory.calm and self._calm(memory, one) is None)
                if not waits and not self._is_settled(memory):
                    memory.queued, memory.calm = True, False
                    due.append(key)
        self._lane.put(due)

    def begin(self) -> None:
        """This process leads from now on: what it wrote before may have been written over by another, and pods that
        exist already may hold a condition.
        """
        with self._lock:
            self._memory.clear()
            self._began = self._clock()

    def drain(self, seconds: float) -> bool:
        """Wait until all is written, at most `seconds`; whether it is."""
        return self._lane.drain(seconds)

    def stop(self) -> None:
        """Write nothing any more."""
        self._lane.stop()

    def _is_settled(self, memory: _Memory) -> bool:
        if memory.settled != memory.wanted:
            return False
        return isinstance(memory.wanted, PodStatus) or self._raw(memory.wanted) == memory.seen

    def _raw(self, wanted: GroupStatus | QueueStatus) -> bytes | None:
        if isinstance(wanted, GroupStatus):
            return self._cache.raw("PodGroup", wanted.group.key)
        return self._cache.raw("Queue", wanted.name)

    def _write(self, key: Key) -> float | None:
        with self._lock:
            memory = self._memory.get(key)
            if memory is None:
                return None
            wanted = memory.wanted
        wait: float | None = None
        good = False
        if self._may_send():
            try:
                wait = self._write_pod(memory, wanted) if isinstance(wanted, PodStatus) else self._merge(memory, wanted)
                good = wait is None
            except ApiError as wrong:
                wait = self._again(memory, wrong)
        with self._lock:
            if wait is None:
                memory.tries, memory.stale = 0, False
                if good:
                    memory.settled = wanted
                if memory.wanted != wanted and good:
                    return 0.0
                memory.queued = False
            return wait

    def _calm(self, memory: _Memory, wanted: Wanted) -> float | None:
        """Seconds for which a write has to wait that is not worth a hurry."""
        left = memory.at + CALM_SECONDS * max(1.0, len(self._memory) / 1000) - self._clock()
        hurry = memory.settled != wanted and not _differs_in_words_only(memory.settled, wanted)
        memory.calm = not hurry and left > 0
        return left if memory.calm else None

    def _again(self, memory: _Memory, wrong: ApiError) -> float | None:
        """The seconds after which to try again, None = not at all."""
        memory.tries += 1
        least = None
        if isinstance(wrong, Refused):
            memory.stale = wrong.status == 409
            if not (memory.stale or wrong.status in (401, 408, 429) or wrong.status >= 500):
                return None
            least = wrong.retry_after
        return backoff(memory.tries, least) if memory.tries < TRIES else AGAIN_SECONDS

    # -- pods ----------------------------------------------------------------------------------------------------

    def _write_pod(self, memory: _Memory, wanted: PodStatus) -> float | None:
        """None when it is written; else the seconds for which it has to wait.

        The pod must be as it was: one that has been bound in the meantime must not be said to wait.
        """
        if memory.settled == wanted:
            return None
        calm = self._calm(memory, wanted)
        if calm is not None:
            return calm
        pod, version = wanted.pod, self._cache.version(wanted.pod)
        known = isinstance(memory.settled, PodStatus)
        there: Mapping[str, Any] = {}
        if memory.stale or not version or not (known or pod.created > self._began):
            now = read_pod(self._api, pod)
            if now is None or now.node or now.ending:
                return None
            version, there = now.metadata.resource_version, now.condition("PodScheduled")
        if there.get("reason") == wanted.reason and there.get("message") == wanted.message:
            return None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": wanted.reason,
            "message": wanted.message,
        }
        if there.get("status") != "False" and not known:
            condition["lastTransitionTime"] = _time(self._clock())
        patch_pod(self._api, pod, {"conditions": [condition]}, version)
        memory.at = self._clock()
        return None

    # -- groups and queues ---------------------------------------------------------------------------------------

    def _merge(self, memory: _Memory, wanted: GroupStatus | QueueStatus) -> float | None:
        """None when it is written; else the seconds for which it has to wait."""
        raw = self._raw(wanted)
        if raw is None:
            return None  # gone, or implied: nobody is there to be told
        text = memory.text if memory.text is not None and memory.seen == raw else raw
        kind, version, namespace, name = _address(wanted, raw)
        if memory.stale:
            text = self._api.request("GET", path(kind, version, namespace, name))
        found = read_object(text)
        native = version in NATIVE
        there = found.get("status")
        there = there if isinstance(there, dict) else {}
        patch = _patch(wanted, there, _time(self._clock()), whole_lists=not native)
        if kind is QUEUE and version not in VOLCANO.versions:
            patch = {key: value for key, value in patch.items() if key in KUBE_BATCH_QUEUE}
        if patch:
            calm = self._calm(memory, wanted)
            if calm is not None:
                return calm
            body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "status": patch}
            how = (STRATEGIC_PATCH,) if native else ()
            text = self._patches.patch(kind, version, namespace, name, body, *how)
            read_object(text)
            memory.at = self._clock()
        memory.seen, memory.text = raw, text
        return None


def ensure_default_queue(api: Api, name: str = "default") -> list[str]:
    """Create the queue in every API that serves queues and lacks it, as kube-batch and Volcano do when they start; the
    apiVersions in which it was created. Raises ApiError.
    """
    made = []
    for version in (version for dialect in DIALECTS if dialect.queue for version in dialect.versions):
        queue = {"apiVersion": version, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1}}
        try:
            api.request("POST", path(QUEUE, version), msgspec.json.encode(queue))
        except Refused as wrong:
            if wrong.status not in (404, 409):  # not served; there already
                raise
        else:
            made.append(version)
    return made


def _key(one: Wanted) -> Key:
    match one:
        case PodStatus(pod):
            return "Pod", pod.uid or pod.key
        case GroupStatus(group):
            return "PodGroup", f"{group.dialect} {group.key}"
        case _:
            return "Queue", one.name


def _address(wanted: GroupStatus | QueueStatus, raw: bytes) -> tuple[Kind, str, str, str]:
    """Kind, apiVersion, namespace and name. Items of lists of built-in kinds do not say their apiVersion, queues do."""
    if isinstance(wanted, GroupStatus):
        return POD_GROUP, wanted.group.dialect, wanted.group.namespace, wanted.group.name
    return QUEUE, msgspec.json.decode(raw, type=Head).api_version or "", "", wanted.name


def _differs_in_words_only(before: Wanted | None, wanted: Wanted) -> bool:
    """The same but for the messages of conditions."""
    if isinstance(before, PodStatus) and isinstance(wanted, PodStatus):
        return before.reason == wanted.reason
    if isinstance(before, GroupStatus) and isinstance(wanted, GroupStatus):
        same = [(one.type, one.status, one.reason) for one in before.conditions]
        return (
            same == [(one.type, one.status, one.reason) for one in wanted.conditions]
            and before.fields == wanted.fields
            and before.ended == wanted.ended
        )
    return False


def _patch(wanted: GroupStatus | QueueStatus, there: Json, now: str, *, whole_lists: bool) -> Json:
    """What of a status is to be merged so that it says what is wanted; {} = nothing. `whole_lists`: with all
    conditions, else only those that change.
    """
    fields = dict(wanted.fields)
    if isinstance(wanted, QueueStatus):
        fields |= {key: value for key, value in wanted.defaults.items() if not there.get(key)}
    patch = {key: _merging(there.get(key), value) for key, value in fields.items() if there.get(key) != value}
    if isinstance(wanted, GroupStatus):
        listed = there.get("conditions")
        entries = listed if isinstance(listed, list) else []
        by_type = {one["type"]: one for one in entries if _is_condition(one)}
        changed = _conditions(wanted, by_type, now)
        if changed:
            kept = [changed.get(one["type"], one) if _is_condition(one) else one for one in entries]
            new = [one for name, one in changed.items() if name not in by_type or not whole_lists]
            patch["conditions"] = (kept if whole_lists else []) + new
    return patch


def _is_condition(one: Any) -> bool:
    """What a definition without schema lets in may be anything."""
    return isinstance(one, dict) and isinstance(one.get("type"), str)


def _merging(there: Any, value: Any) -> Any:
    """A merge patch from one value to another: what is gone from a mapping is null."""
    if isinstance(there, Mapping) and isinstance(value, Mapping):
        return {**{key: None for key in there if key not in value}, **value}
    return value


def _conditions(wanted: GroupStatus, by_type: Mapping[str, Json], now: str) -> dict[str, Json]:
    """The conditions that are to change, by type. The time changes with the status alone (API conventions)."""
    out: dict[str, Json] = {}
    for one in wanted.conditions:
        old = by_type.get(one.type, {})
        if one.once and old.get("status") == "True":
            continue
        new = {"type": one.type, "status": one.status, "reason": one.reason, "message": shortened(one.message)}
        if any(old.get(key, "") != value for key, value in new.items()):
            turned = {"lastTransitionTime": now} if old.get("status") != one.status else {}
            if turned and one.numbered:
                turned["transitionID"] = str(uuid.uuid4())
            out[one.type] = {**old, **new, **turned}
    for name in wanted.ended:
        old = by_type.get(name, {})
        if old.get("status") == "True":
            turned = {"lastTransitionTime": now} | (
                {"transitionID": str(uuid.uuid4())} if "transitionID" in old else {}
            )
            out[name] = {**old, "status": "False", "message": "", **turned}
    return out


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"

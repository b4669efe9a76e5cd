"""Events of events.k8s.io/v1: bounded, aggregated, behind everything else that is sent.

What is said again of the same object within ten minutes becomes a `series` of the first event, as client-go's recorder
does it (tools/events/event_broadcaster.go), and that is written every few minutes, not each time.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from solver_sched.cluster.api import MERGE_PATCH, Api, Lost, Refused, Unsent
from solver_sched.cluster.objects import Pod, PodGroup
from solver_sched.cluster.rate import Lane, TokenBucket, backoff
from solver_sched.cluster.wire import Named

CONTROLLER = "solver-sched"
SERIES_SECONDS = 600
"""How long after the last time the same words belong to the same series."""
WRITTEN_EVERY = 180
"""Seconds between two writes of one series."""
LONGEST_NOTE = 1024
"""Bytes; what the API server lets in (pkg/apis/core/validation/events.go)."""
REMEMBERED = 50_000
"""Series that are remembered; the one that was silent longest is forgotten first."""
TRIES = 5


@dataclass(frozen=True, slots=True)
class Ref:
    """The object that an event is about. `uid` "" is looked up when the event is sent."""

    version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @classmethod
    def of(cls, one: Pod | PodGroup) -> Ref:
        """The reference to a pod or group."""
        if isinstance(one, Pod):
            return cls("v1", "Pod", one.namespace, one.name, one.uid)
        return cls(one.dialect, "PodGroup", one.namespace, one.name)


@dataclass(frozen=True, slots=True)
class Event:
    """`note`: what a user reads. `about`: what of the note makes it another event, for notes whose numbers change."""

    regarding: Ref
    reason: str
    action: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"
    related: Ref | None = None
    about: str = ""


Key = tuple[Ref, str, str]


@dataclass(slots=True)
class _Series:
    """What was said of one object with one reason. `name`: of the event; `there`: the server has it."""

    event: Event
    name: str
    first: float
    last: float
    count: int = 1
    there: bool = False
    written: float = 0.0
    queued: bool = True
    tries: int = 0


class Events:
    """Tells the API server what happened, at most `limit` events behind; when more wait the oldest are dropped.

    `raw(kind, key)` gives the last text of an object, for its uid. `dropped` counts events that were never sent.
    """

    def __init__(
        self,
        api: Api,
        *,
        bucket: TokenBucket,
        limit: int = 20_000,
        workers: int = 2,
        raw: Callable[[str, str], bytes | None] = lambda _kind, _key: None,
        may_send: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._raw, self._may_send, self._clock, self._limit = api, raw, may_send, clock, limit
        self._instance = f"{CONTROLLER}-{os.environ.get('HOSTNAME') or socket.gethostname()}"[:128]
        self._lock = threading.Lock()
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._waiting: OrderedDict[Key, None] = OrderedDict()
        self._number = 0
        self.dropped = 0
        self._lane: Lane[Key] = Lane("events", self._send, workers=workers, bucket=bucket)

    def tell(self, event: Event) -> None:
        """Queue an event, or count it to the series it belongs to. Never blocks."""
        now = self._clock()
        key = (event.regarding, event.reason, event.about or event.note)
        with self._lock:
            series = self._series.get(key)
            if series is None or (now - series.last > SERIES_SECONDS and not series.queued):
                series = self._series[key] = _Series(event, self._name(event, now), now, now)
            else:
                series.event, series.last, series.count = event, now, series.count + 1
                if series.queued or now - series.written < WRITTEN_EVERY:
                    self._series.move_to_end(key)
                    return
                series.queued = True
            self._series.move_to_end(key)
            self._waiting[key] = None
            self._make_room(now)
        self._lane.put([key])

    def behind(self, lane: Lane[Any]) -> None:
        """From now on the due work of `lane` comes first."""
        self._lane.behind(lane)

    def drain(self, seconds: float) -> bool:
        """Wait until all are sent, at most `seconds`; whether they are."""
        return self._lane.drain(seconds)

    def stop(self) -> None:
        """Send nothing any more; what waits is counted as dropped."""
        self._lane.stop()
        with self._lock:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    def _name(self, event: Event, now: float) -> str:
        self._number += 1
        return f"{event.regarding.name[:200]}.{self._number:x}{int(now * 1e6):x}"

    def _make_room(self, now: float) -> None:
        while len(self._waiting) > self._limit:
            oldest, _ = self._waiting.popitem(last=False)
            series = self._series[oldest]
            series.queued = False
            if not series.there:
                del self._series[oldest]  # never sent: the next time is the first
            self.dropped += 1
        while self._series:
            key, series = next(iter(self._series.items()))
            over = len(self._series) > max(REMEMBERED, self._limit)
            if series.queued or not (over or now - series.last > SERIES_SECONDS):
                break
            del self._series[key]

    def _send(self, key: Key) -> float | None:
        with self._lock:
            if key not in self._waiting:
                return None  # dropped for a newer one
            series = self._series[key]
            event, count, last = series.event, series.count, series.last
        ended = self._attempt(series, event, count, last) if self._may_send() else "dropped"
        if isinstance(ended, float):
            return ended
        with self._lock:
            if self._series.get(key) is series:  # else it made room meanwhile, and what waits now is another one
                self._waiting.pop(key, None)
            series.queued, series.tries, series.written = False, 0, self._clock()
            series.there |= ended == "sent"
            self.dropped += ended == "dropped"
        return None

    def _attempt(self, series: _Series, event: Event, count: int, last: float) -> Literal["sent", "dropped"] | float:
        """What became of it, or the seconds after which it is to be tried again."""
        try:
            if series.there:
                self._write_series(series.name, event, count, last)
            else:
                self._create(series.name, event, series.first)
        except (Unsent, Lost):
            least = None
        except Refused as wrong:
            if wrong.status == 409 and not series.there:
                return "sent"  # the answer to an earlier try was lost
            if wrong.status == 404 and series.there:  # the server has let it expire
                with self._lock:
                    series.there, series.name = False, self._name(event, last)
                    series.first, series.count = last, 1
                return 0.0
            if wrong.status != 429 and wrong.status < 500:
                return "dropped"
            least = wrong.retry_after
        else:
            return "sent"
        series.tries += 1
        return backoff(series.tries, least) if series.tries < TRIES else "dropped"

    def _create(self, name: str, event: Event, first: float) -> None:
        namespace = event.regarding.namespace or "default"
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": _micro(first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "type": event.type,
            "regarding": self._identified(event.regarding),
            "note": shortened(event.note),
        }
        if event.related is not None:
            body["related"] = self._identified(event.related)
        self._api.request("POST", _of(namespace), msgspec.json.encode(body))

    def _write_series(self, name: str, event: Event, count: int, last: float) -> None:
        body = {"series": {"count": count, "lastObservedTime": _micro(last)}}
        where = f"{_of(event.regarding.namespace or 'default')}/{name}"
        self._api.request("PATCH", where, msgspec.json.encode(body), content_type=MERGE_PATCH)

    def _identified(self, ref: Ref) -> dict[str, str]:
        """As an ObjectReference; without its uid `kubectl describe` would not show the event."""
        uid = ref.uid
        if not uid:
            text = self._raw(ref.kind, f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name)
            found = msgspec.json.decode(text, type=Named).metadata if text else None
            uid = (found.uid if found else None) or ""
        out = {"apiVersion": ref.version, "kind": ref.kind, "namespace": ref.namespace, "name": ref.name, "uid": uid}
        return {key: value for key, value in out.items() if value}


def shortened(note: str, most: int = LONGEST_NOTE) -> str:
    """The note in at most `most` bytes, cut at a character."""
    data = note.encode()
    return note if len(data) <= most else data[: most - 3].decode(errors="ignore") + "..."


def _of(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def _micro(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

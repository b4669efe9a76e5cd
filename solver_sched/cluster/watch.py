"""List, then watch: one thread per kind keeps a cache in step with the API server.

Pages of a list and lines of a watch go to the cache as JSON text. The connection may break, fall silent, end half way
through a line, repeat old events or lose its place (410): what was missed is read again, nothing is lost. A kind that
the server does not serve (a CRD that is not installed) counts as empty and is looked for again.

Conventions: k8s.io/client-go tools/cache/reflector.go; API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from solver_sched.cluster.api import Api, ApiError, Lost, Refused, Stream
from solver_sched.cluster.kinds import KINDS, Kind, base, path

PAGE = 500
"""Objects per page of a list, as kubectl and client-go ask."""
WATCH_SECONDS = (300, 600)
"""How long a watch is asked to last: drawn anew for each, so that they do not all end at once."""
SILENCE = 90.0
"""Seconds without a byte after which a watch counts as dead. The server sends a bookmark about once a minute."""
BACK_OFF = (0.2, 30.0)
"""Seconds before the first and the latest repetition of what failed; doubled each time, plus up to as much again."""
SERVED_SECONDS = 1.0
"""A watch that was open for so long was served: what ends it then is no repetition of what ended the last one."""
STOP_SECONDS = 5.0
"""How long all threads together may take to end."""
ABSENT_SECONDS = 20.0
"""How often a kind that is not served is looked for, plus up to as much again."""

Relisted = Callable[[str, str], None]
"""Told when a kind (its plural name) is listed again: the place in its history was `expired`, or the watch `failed`."""

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Who is kept in step."""

    def replace(self, kind: Kind, version: str, objects: Sequence[bytes | Raw]) -> None:
        """These and no others are all objects of the kind; `version`: as which they are served, "" if not at all."""

    def apply(self, kind: Kind, version: str, gone: bool, raw: bytes | Raw) -> None:
        """The newest text of one object, or the last one of an object that is gone."""

    def alive(self, kind: Kind, at: float) -> None:
        """The server was heard of at `at` (monotonic): what the cache holds was true then."""


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    cont: str | None = msgspec.field(name="continue", default=None)


class _List(Struct):
    metadata: _ListMeta
    items: list[Raw] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(Struct):
    """An object, or the Status of an ERROR event, as far as its revision."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    code: int = 0
    message: str | None = None


class _Resource(Struct):
    name: str


class _Served(Struct):
    resources: list[_Resource] | None = None


class _Expired(Exception):  # an answer, not a fault
    """The revision that was asked for is no longer kept: list again."""


_decode_list = msgspec.json.Decoder(_List).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_versioned = msgspec.json.Decoder(_Versioned).decode
_decode_served = msgspec.json.Decoder(_Served).decode


def served(api: Api, kind: Kind) -> str:
    """The first version of the kind that the server serves, "" if none. Raises ApiError."""
    for version in kind.versions:
        try:
            found = _decode_served(api.get(base(version)))
        except Refused as refusal:
            if refusal.status != 404:
                raise
            continue
        if any(one.name == kind.plural for one in found.resources or ()):
            return version
    return ""


def pages(api: Api, kind: Kind, version: str) -> Iterator[tuple[list[Raw], str]]:
    """Page after page of all objects, and the revision that the list is of. Raises ApiError; Refused 410 where a page
    was asked for too late: then what came before counts for nothing.
    """
    query: dict[str, str | int] = {"limit": PAGE}
    while True:
        found = _decode_list(api.get(path(kind, version), query))
        yield found.items or [], found.metadata.resource_version
        if not found.metadata.cont:
            return
        query["continue"] = found.metadata.cont


class Watches:
    """All kinds of `kinds`, each by a thread of its own."""

    def __init__(
        self, api: Api, sink: Sink, kinds: Sequence[Kind] = KINDS, relisted: Relisted = lambda _kind, _why: None
    ) -> None:
        self._stop = threading.Event()
        self._watches = [_Watch(api, sink, kind, self._stop, relisted) for kind in kinds]

    def start(self) -> None:
        """Begin; returns at once."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """End all threads, streams in the middle included."""
        self._stop.set()
        for watch in self._watches:
            watch.shut()
        until = time.monotonic() + STOP_SECONDS
        for watch in self._watches:
            watch.join(max(0.0, until - time.monotonic()))

    def wait_synced(self, seconds: float) -> bool:
        """Whether every kind has been listed once, or is known not to be served, within `seconds`."""
        until = time.monotonic() + seconds
        return all(watch.synced.wait(max(0.0, until - time.monotonic())) for watch in self._watches)

    def missing(self) -> tuple[str, ...]:
        """Kinds that have not been listed yet, with what the server last said."""
        return tuple(
            f"{w.kind.plural} ({w.trouble or 'not listed yet'})" for w in self._watches if not w.synced.is_set()
        )


class _Watch(threading.Thread):
    def __init__(self, api: Api, sink: Sink, kind: Kind, stop: threading.Event, relisted: Relisted) -> None:
        super().__init__(name=f"watch-{kind.plural}", daemon=True)
        self.kind = kind
        self.synced = threading.Event()
        self.trouble = ""
        self._api, self._sink, self._stop_event, self._relisted = api, sink, stop, relisted
        self._why = "failed"
        self._stream: Stream | None = None
        self._failures = 0

    def shut(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.shut()

    def run(self) -> None:
        while not self._stop_event.is_set():
            try:
                version = served(self._api, self.kind)
                if version:
                    self._follow(version)
                    continue
                if self.kind.built_in:  # an empty cluster it is not: what the cache holds is the best there is
                    self._wait(
                        Refused(404, "NotFound", f"{self.kind.plural} of {self.kind.versions[0]} are not served")
                    )
                    continue
                self._sink.replace(self.kind, "", ())
                self._in_step()
                self._stop_event.wait(ABSENT_SECONDS * (1 + random.random()))  # noqa: S311
            except (ApiError, msgspec.MsgspecError) as wrong:
                if isinstance(wrong, Refused) and wrong.status == 410:
                    self._why = "expired"
                self._wait(wrong)
            except Exception as wrong:  # noqa: BLE001  # a thread's edge: else the kind would stand still for ever
                _log.exception("watch of %s: a defect", self.kind.plural)
                self._wait(wrong)

    def _follow(self, version: str) -> None:
        """List and watch until the list must be read again."""
        objects: list[Raw] = []
        revision = ""
        for items, of in pages(self._api, self.kind, version):
            objects += items
            revision = of
            if self._stop_event.is_set():
                return
        self._sink.replace(self.kind, version, objects)
        objects.clear()
        if self.synced.is_set():
            self._relisted(self.kind.plural, self._why)
        self._in_step()
        self._why = "failed"
        try:
            while not self._stop_event.is_set():
                revision = self._watch(version, revision)
        except _Expired:
            self._why = "expired"

    def _watch(self, version: str, revision: str) -> str:
        """One watch from `revision`: the revision after its last event. Raises _Expired, or ApiError for what a new
        list must settle.
        """
        query: dict[str, str | int] = {
            "watch": 1,
            "resourceVersion": revision,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": random.randint(*WATCH_SECONDS),  # noqa: S311
        }
        try:
            stream = self._api.watch(path(self.kind, version), query, silence=SILENCE)
        except Refused as refusal:
            if refusal.status == 410:
                raise _Expired from None
            if refusal.status == 404:
                raise
            self._wait(refusal)
            return revision
        except ApiError as wrong:
            self._wait(wrong)
            return revision
        ended: Exception | None = None
        opened = time.monotonic()
        self._stream = stream
        try:
            if self._stop_event.is_set():  # `shut` may have come before there was a stream
                return revision
            for line in stream:
                revision = self._event(version, revision, line)
                if self._stop_event.is_set():
                    return revision
        except (Lost, msgspec.MsgspecError) as wrong:  # a broken line is read again from the last whole one
            ended = wrong
        finally:
            self._stream = None
        served = time.monotonic() - opened >= SERVED_SECONDS
        if served:
            self._failures = 0
        if ended is not None or not served:
            self._wait(ended)  # nor may a server that ends watches at once be asked a thousand times a second
        return revision

    def _event(self, version: str, revision: str, line: bytes) -> str:
        event = _decode_event(line)
        head = _decode_versioned(event.object)
        if event.type == "ERROR":
            if head.code == 410:
                raise _Expired
            raise Refused(head.code, message=head.message or "")
        self._in_step()
        new = head.metadata.resource_version
        if event.type == "BOOKMARK":
            return new or revision
        if not _later(new, revision):
            return revision  # told before: a repeated event must not undo what came after it
        self._sink.apply(self.kind, version, event.type == "DELETED", event.object)
        return new

    def _in_step(self) -> None:
        self._failures = 0
        self.trouble = ""
        self._sink.alive(self.kind, time.monotonic())
        self.synced.set()

    def _wait(self, wrong: Exception | None) -> None:
        """Back off; say what went wrong when it first does and then ever more rarely."""
        if self._stop_event.is_set():
            return
        self._failures += 1
        if wrong is not None and not (isinstance(wrong, Lost) and self._failures == 1):
            self.trouble = " ".join(str(wrong).split())[:200]
            if self._failures & (self._failures - 1) == 0:
                _log.warning("watch of %s: %s", self.kind.plural, self.trouble)
        first, longest = BACK_OFF
        delay = min(longest, first * 2 ** min(self._failures - 1, 16))
        asked = wrong.retry_after if isinstance(wrong, Refused) and wrong.retry_after else 0.0
        self._stop_event.wait(max(asked, delay * (1 + random.random())))  # noqa: S311


def _later(new: str, old: str) -> bool:
    """Whether revision `new` comes after `old`, as far as that can be told (numbers can be compared: KEP-5504)."""
    return not (new.isdecimal() and old.isdecimal()) or int(new) > int(old)

"""How fast requests may leave, and in which order: token buckets, and lanes of work for threads.

Binds, evictions and admissions share one lane. Status writes and events each have a slower one that stands back while a
bind can be sent.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds for which one worker of a lane stands back before it sends one request all the same."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds of the first back-off, and of the longest."""


class TokenBucket:
    """At most `rate` tokens a second in the long run, `burst` at once. A rate of 0 or less does not limit."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._lock = threading.Lock()
        self._tokens, self._seen = self._burst, clock()

    def take(self) -> float:
        """Take a token that may still have to come; the seconds after which it may be used."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate) - 1
            self._seen = now
            return max(0.0, -self._tokens / self._rate)


def backoff(tries: int, least: float | None = None) -> float:
    """Seconds to wait before the next try, after `tries` that failed: doubled each time, jittered by half, never less
    than `least`, what a server asked for in `Retry-After`.
    """
    longest: float = min(_LONGEST, _FIRST * 2 ** min(tries, 16))
    return max(least or 0.0, longest * random.uniform(0.5, 1.5))  # noqa: S311  jitter is no secret


class Lane(Generic[T]):
    """Work for threads, done in the order in which it was put in.

    `work(item)` returns None when the item is done, else the seconds after which it is to be done again. Then it comes
    before all that was put in later: who was begun is finished first. A thread that dies of an exception tells
    `threading.excepthook` and is replaced.

    `ahead`: a lane whose due work comes first.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[T], float | None],
        *,
        workers: int,
        bucket: TokenBucket,
        ahead: Lane[Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._work, self._bucket, self._ahead, self._clock = name, work, bucket, ahead, clock
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._ready: list[tuple[int, T]] = []
        self._later: list[tuple[float, int, T]] = []
        self._count = self._running = 0
        self._stopped = threading.Event()
        self._quiet = threading.Event()
        self._quiet.set()
        for _ in range(workers):
            self._start()

    def put(self, items: Iterable[T]) -> None:
        """Add work behind all that is there."""
        with self._lock:
            if self._stopped.is_set():
                return
            before = self._count
            for item in items:
                self._count += 1
                heapq.heappush(self._ready, (self._count, item))
            if self._ready:
                self._quiet.clear()
                self._wake.notify(self._count - before)

    @property
    def depth(self) -> int:
        """Items that are not done, those being worked on and those waiting for another try included."""
        with self._lock:
            return len(self._ready) + len(self._later) + self._running

    def behind(self, lane: Lane[Any]) -> None:
        """From now on the due work of `lane` comes first."""
        self._ahead = lane

    def wait_quiet(self, seconds: float) -> None:
        """Return when no work of this lane is due, at the latest after `seconds`."""
        self._quiet.wait(seconds)

    def drain(self, seconds: float) -> bool:
        """Wait until all is done, at most `seconds`; whether it is."""
        with self._lock:
            return self._empty.wait_for(lambda: not (self._ready or self._later or self._running), seconds)

    def stop(self) -> None:
        """Begin nothing any more."""
        with self._lock:
            self._stopped.set()
            self._ready, self._later = [], []
            self._quiet.set()
            self._wake.notify_all()
            self._empty.notify_all()

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            number, item = entry
            again: float | None = None
            ended = False
            try:
                self._stopped.wait(self._bucket.take())
                if self._ahead is not None:
                    self._ahead.wait_quiet(PATIENCE)
                if not self._stopped.is_set():
                    again = self._work(item)
                ended = True
            finally:
                self._done(number, item, again)
                if not ended:
                    self._start()

    def _next(self) -> tuple[int, T] | None:
        with self._lock:
            while not self._stopped.is_set():
                now = self._clock()
                while self._later and self._later[0][0] <= now:
                    _, number, item = heapq.heappop(self._later)
                    heapq.heappush(self._ready, (number, item))
                    self._quiet.clear()
                if self._ready:
                    self._running += 1
                    return heapq.heappop(self._ready)
                self._wake.wait(self._later[0][0] - now if self._later else None)
            return None

    def _done(self, number: int, item: T, again: float | None) -> None:
        with self._lock:
            self._running -= 1
            if again is not None and not self._stopped.is_set():
                heapq.heappush(self._later, (self._clock() + again, number, item))
                self._wake.notify()
            if not self._ready and not self._running:
                self._quiet.set()
                if not self._later:
                    self._empty.notify_all()

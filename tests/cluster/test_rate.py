"""The token bucket, the back-off, and the order of a lane."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from solver_sched.cluster.rate import Lane, TokenBucket, backoff

FREE = TokenBucket(0, 0)


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    """Three at once, then one every half second; an idle time fills it to three again, not beyond."""
    now = [0.0]
    bucket = TokenBucket(2, 3, clock=lambda: now[0])
    assert [bucket.take() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    now[0] = 100
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_no_rate_is_no_limit() -> None:
    assert [FREE.take() for _ in range(1000)] == [0.0] * 1000


@pytest.mark.parametrize(("tries", "middle"), [(1, 0.1), (3, 0.4), (7, 5.0), (1000, 5.0)])
def test_back_off_doubles_up_to_five_seconds_jittered_by_half(tries: int, middle: float) -> None:
    waits = [backoff(tries) for _ in range(200)]
    assert middle * 0.5 <= min(waits) < max(waits) <= middle * 1.5


def test_back_off_is_never_shorter_than_the_server_asks() -> None:
    assert min(backoff(1, 7.0) for _ in range(50)) == 7.0


def test_what_was_begun_comes_before_what_came_later() -> None:
    order: list[str] = []
    gate = threading.Event()

    def work(item: str) -> float | None:
        gate.wait(5)
        order.append(item)
        return 0.0 if item == "a" and order.count("a") == 1 else None

    lane = Lane("test", work, workers=1, bucket=FREE)
    lane.put("abc")
    gate.set()
    assert lane.drain(5)
    assert order == ["a", "a", "b", "c"]


def test_the_lane_behind_waits_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver_sched.cluster.rate.PATIENCE", 0.3)
    gate, done = threading.Event(), threading.Event()

    def work(_item: object) -> None:
        gate.wait(5)

    first: Lane[Any] = Lane("first", work, workers=1, bucket=FREE)
    second: Lane[Any] = Lane("second", lambda _item: done.set(), workers=1, bucket=FREE, ahead=first)
    first.put([1])
    start = time.monotonic()
    second.put([1])
    assert done.wait(5)
    assert time.monotonic() - start >= 0.29
    gate.set()
    assert first.drain(5)
    waits = []
    for _ in range(5):  # the shortest of five: a busy machine holds up one, not all
        done.clear()
        start = time.monotonic()
        second.put([1])
        assert done.wait(5)
        waits.append(time.monotonic() - start)
    assert min(waits) < 0.29


def test_nothing_is_begun_after_the_end() -> None:
    gate = threading.Event()
    started = threading.Event()
    begun: list[str] = []

    def work(item: str) -> None:
        begun.append(item)
        started.set()
        gate.wait(5)

    lane: Lane[str] = Lane("test", work, workers=1, bucket=FREE)
    lane.put("abc")
    assert started.wait(5)
    lane.stop()
    lane.put("d")
    gate.set()
    assert lane.drain(5)
    assert (lane.depth, begun) == (0, ["a"])

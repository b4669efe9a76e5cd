"""A replay of a trace: what must hold of every one, and a few that can be worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings

from solver_sched.cycle import CycleReport
from solver_sched.model.effort import Effort, beats
from solver_sched.model.levels import evaluate
from solver_sched.simulate import replay as module
from solver_sched.simulate.cluster import EmbeddedCluster
from solver_sched.simulate.replay import Run, Told, replay
from solver_sched.simulate.trace import Trace
from tests.simulate.traces import job, needs, node, trace, traces


class Watched(EmbeddedCluster):
    """Looks at everything that happens."""

    all: ClassVar[list[Watched]] = []

    def __init__(self, given: Trace) -> None:
        super().__init__(given)
        self.seen = 0
        self.done: Counter[tuple[str, int]] = Counter()
        self.all.append(self)

    def _happen(self, kind: int, what: object) -> None:
        assert self.now >= self.seen
        self.seen = self.now
        super()._happen(kind, what)
        self.within_capacity()

    def bind(self, gangs: Any) -> None:
        super().bind(gangs)
        self.within_capacity()

    def _ran(self, life: Any, seconds: int) -> None:
        super()._ran(life, seconds)
        assert seconds == life.course.job.run_time
        self.done[life.course.job.key, life.index] += 1

    def within_capacity(self) -> None:
        used: Counter[tuple[str, str]] = Counter()
        snapshot = self.snapshot(0)
        for pod in snapshot.pods:
            for name, amount in pod.needs.request if pod.node is not None and not pod.finished else ():
                used[pod.node or "", name] += amount
        rooms = {one.name: one.allocatable for one in snapshot.nodes}
        assert all(amount <= rooms[where].get(name, 0) for (where, name), amount in used.items())
        total = Counter(name for (_, name) in used)
        for name in total:
            assert self.used[name] == sum(amount for (_, of), amount in used.items() if of == name)
        waiting = [pod for pod in snapshot.pods if pod.node is None and not pod.finished]
        assert len(waiting) == self.pending


def conserved(cluster: Watched) -> None:
    """Every pod of a job that is done has run its time once; of others once at most."""
    for course in cluster.courses.values():
        for index in range(course.job.size):
            times = cluster.done[course.job.key, index]
            assert times == 1 if course.ended >= 0 and not course.failed else times <= 1
    ended = sum(course.ended >= 0 for course in cluster.courses.values())
    assert ended == cluster.ended
    if ended == len(cluster.courses):
        assert not any(cluster.used.values())
        assert not cluster.snapshot(0).groups
        for sums in (*cluster.held.values(), *cluster.asked.values()):
            assert not any(sums.values())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    monkeypatch.setattr(module, "EmbeddedCluster", Watched)
    return Watched.all


@pytest.mark.parametrize("policy", ["default", "preempting"])
def test_a_replay_conserves(watched: list[Watched], policy: str) -> None:
    """No node is ever over its capacity, the clock never runs back, every pod ends once or is reported as left."""

    @settings(max_examples=15)
    @given(traces())
    def holds(given_trace: Trace) -> None:
        watched.clear()
        found, whole = replay(given_trace, Run("greedy", policy))
        assert whole
        assert found["notes"] == []
        (cluster,) = watched
        conserved(cluster)
        counts = found["summary"]["jobs"]
        assert sum(counts.values()) == len(given_trace.jobs)
        assert counts["left"] == sum(one["ended"] is None for one in found["jobs"])
        assert found["series"]["time"] == sorted(found["series"]["time"])

    holds()


def apart_from_the_clock(found: dict[str, Any]) -> dict[str, Any]:
    """Without the only thing that depends on the machine: wall seconds of cycles."""
    return found | {"summary": found["summary"] | {"cycle": None}}


@settings(max_examples=4)
@given(traces())
def test_same_seed_same_document(given_trace: Trace) -> None:
    first, second = (replay(given_trace, Run("optimal", "preempting", seed=3), budget=0.2) for _ in range(2))
    assert apart_from_the_clock(first[0]) == apart_from_the_clock(second[0])


@settings(max_examples=6)
@given(traces())
def test_on_no_snapshot_of_a_run_is_optimal_below_greedy(given_trace: Trace) -> None:
    """In the first level that differs: of the plan that was carried out and of greedy's, evaluated apart."""

    def judge(report: CycleReport) -> None:
        effort = Effort(1.0, 0.0)
        greedy = {one.name: one.value for one in evaluate(report.problem, report.rules, report.greedy, effort)}
        assert not beats(greedy, evaluate(report.problem, report.rules, report.plan, effort))
        assert report.winner == "greedy" or not beats(report.greedy_levels, report.levels)

    replay(given_trace, Run("optimal"), budget=0.5, see=judge)


@settings(max_examples=4)
@given(traces())
def test_nor_where_running_work_may_have_to_go(given_trace: Trace) -> None:
    def judge(report: CycleReport) -> None:
        assert report.winner == "greedy" or not beats(report.greedy_levels, report.levels)

    replay(given_trace, Run("optimal", "preempting"), budget=0.5, see=judge)


@pytest.mark.parametrize("solver", ["greedy", "optimal"])
def test_a_queue_of_jobs_by_hand(solver: str) -> None:
    """One node of 4 CPUs. a (4 pods, 100 s) is seen at 60 and ends at 160; b (4 pods, 50 s) came at 61: the first cycle
    after a has gone is at 180, so b runs 180 to 230. Waits: 60 - 1 = 59 s and 180 - 61 = 119 s. Slowdowns: 159/100 and
    169/50. Used: 4 CPUs for 150 s of the 230 s until all has ended.
    """
    found, whole = replay(trace(job("a", 4, 100, at=1), job("b", 4, 50, at=61), nodes=(node("n1"),)), Run(solver))
    assert whole
    summary = found["summary"]
    assert [(one["started"], one["ended"]) for one in found["jobs"]] == [(60, 160), (180, 230)]
    assert summary["wait"] == {"mean": 89.0, "p50": 89.0, "p95": 116.0, "max": 119.0}
    assert summary["slowdown"]["mean"] == round((1.59 + 3.38) / 2, 2) == summary["slowdown"]["p50"]
    assert summary["makespan"] == 230
    assert summary["jain"] == 1.0  # one queue
    assert found["waiting"] == {"seconds": [59, 119], "share": [0.5, 1.0]}
    assert [size["jobs"] for size in found["sizes"]] == [0, 2, 0, 0]
    # at 240, the end of the period in which b ended: 600 of 960 CPU seconds
    assert summary["utilisation"]["cpu"] == 0.625


def test_there_is_no_cycle_where_nothing_changed_or_nobody_waits() -> None:
    """A day between two jobs: one cycle each."""
    found, _ = replay(trace(job("a", runs=10), job("b", runs=10, at=86_400)), Run("greedy"))
    assert found["summary"]["cycles"] == 2


def test_what_can_never_start_is_left_and_ends_no_replay() -> None:
    found, whole = replay(trace(job("huge", 1, needs=needs(cpu=64_000)), job("small")), Run("greedy"))
    assert whole
    assert found["summary"]["jobs"] == {"ended": 1, "failed": 0, "left": 1}
    assert found["jobs"][0] == {
        "name": "ns/huge",
        "queue": "default",
        "pods": 1,
        "submitted": 0,
        "started": None,
        "ended": None,
        "evictions": 0,
    }


def test_higher_priority_takes_the_room_where_the_policy_lets_it() -> None:
    """low runs from 0; high comes at 100 and is let in at 120: low's two pods go, 2 x 120 s of work are lost, and
    its successors wait until high is done.
    """
    given_trace = trace(job("low", 4, 1000), job("high", 4, 300, at=100, priority=100), nodes=(node("n1"),))
    found, _ = replay(given_trace, Run("greedy", "preempting"))
    low, high = found["jobs"]
    assert found["summary"]["evictions"] == low["evictions"] == 4
    assert found["summary"]["lost"] == {"podSeconds": 4 * 120}
    assert high["started"] == 180  # evicted at 120, gone at 150
    assert low["ended"] == high["started"] + 300 + 1000
    assert replay(given_trace, Run("greedy"))[0]["summary"]["evictions"] == 0


def test_a_replay_in_which_nothing_gets_done_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here after the first cycle in which no job has ended; it takes 5,000 else, as where jobs evict each other."""
    monkeypatch.setattr(module, "FUTILE", 0)
    found, whole = replay(trace(job("a", runs=1000)), Run("greedy"))
    assert whole
    assert found["notes"] == ["1 cycles without a job that ended: the rest is left"]
    assert found["summary"]["jobs"]["left"] == 1


def test_a_replay_that_is_stopped_says_what_there_is() -> None:
    seen: list[Told] = []

    def once(so_far: Told) -> bool:
        seen.append(so_far)
        return len(seen) < 2

    found, whole = replay(trace(job("a"), job("b", at=500)), Run("greedy"), goes_on=once)
    assert not whole
    assert found["summary"]["jobs"] == {"ended": 1, "failed": 0, "left": 1}
    assert seen[-1] == Told(now=540, cycles=1, ended=1, left=1, pending=1)

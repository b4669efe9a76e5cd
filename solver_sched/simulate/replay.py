"""Replay of a trace: the service's own loop, cycle by cycle, on an embedded cluster in virtual time.

A cycle takes place at a multiple of the period, where something has changed since the last one or time has brought what
it was waiting for, and somebody waits. Everything but the wall seconds of cycles follows from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from solver_sched.cycle import CycleReport
from solver_sched.due import seconds_until
from solver_sched.policy.watched import WatchedPolicy
from solver_sched.scheduler import Scheduler, Settings
from solver_sched.simulate.cluster import START, EmbeddedCluster
from solver_sched.simulate.measures import Measures
from solver_sched.simulate.trace import Trace

PERIOD = 60
FUTILE = 5_000
"""Cycles without a job that ends after which a replay is over: work is evicted again and again, and none gets done."""
BUDGET = 1.0
"""Deterministic seconds of a solve."""


class Run(Struct, frozen=True):
    """Who schedules. `policy`: a shipped policy or a file, None = the default. `seed`: of the solver."""

    solver: str = "optimal"
    policy: str | None = None
    seed: int = 0


class Told(Struct, frozen=True):
    """How far a replay is. `now`: seconds of the trace."""

    now: int
    cycles: int
    ended: int
    left: int
    pending: int


class Counts:
    """The `Observer` of a replay. `seconds`: wall seconds of each cycle; `see`: is shown each report. `futile`: cycles
    since a job has ended.
    """

    def __init__(self, see: Callable[[CycleReport], None] = lambda _: None) -> None:
        self.seconds: list[float] = []
        self.failed = self.refused = self.futile = 0
        self._see = see

    def observe_cycle(self, report: CycleReport, snapshot_seconds: float = 0.0, bind_seconds: float = 0.0) -> None:  # noqa: ARG002
        self.seconds.append(report.seconds["total"])
        self.refused += bool(report.refused)
        self._see(report)

    def cycle_failed(self) -> None:
        self.failed += 1

    def broken_gangs(self, count: int) -> None:
        """Nobody looks."""


def replay(
    trace: Trace,
    run: Run,
    *,
    period: int = PERIOD,
    budget: float = BUDGET,
    goes_on: Callable[[Told], bool] = lambda _: True,
    see: Callable[[CycleReport], None] = lambda _: None,
) -> tuple[dict[str, Any], bool]:
    """One entry of `runs` of the simulation document, and whether it came to its end.

    `period`: virtual seconds between cycles. `budget`: deterministic seconds of each solve. `goes_on`: is told before
    each cycle; False stops the replay. `see`: is shown each cycle's report. Raises InputError and ConfigError where the
    policy cannot be used.
    """
    cluster = EmbeddedCluster(trace)
    measures, counts = Measures(cluster), Counts(see)
    policy = WatchedPolicy(run.policy)
    settings = Settings(time_limit=budget, solver=run.solver, apart=False, walled=False, seed=run.seed, explained=False)
    scheduler = Scheduler(cluster, cluster, policy, settings, counts, clock=lambda: START + cluster.now)
    whole = _until_rest(cluster, scheduler, counts, measures, period, goes_on)
    notes = [
        f"{number} {what}"
        for number, what in (
            (counts.failed, "cycles failed"),
            (counts.refused, "solved plans broke a rule and were discarded"),
            (cluster.refused, "binds did not fit"),
            (counts.futile * (counts.futile > FUTILE), "cycles without a job that ended: the rest is left"),
        )
        if number
    ]
    return {
        "name": f"{run.solver} {policy.policy.name}",
        "solver": run.solver,
        "policy": policy.policy.name,
        "seed": run.seed,
        "summary": measures.summary(counts.seconds),
        "queues": measures.queues(),
        "sizes": measures.sizes(),
        "series": measures.series(),
        "waiting": measures.waiting(),
        "jobs": measures.jobs(),
        "notes": notes,
    }, whole


def _until_rest(
    cluster: EmbeddedCluster,
    scheduler: Scheduler,
    counts: Counts,
    measures: Measures,
    period: int,
    goes_on: Callable[[Told], bool],
) -> bool:
    """Until nothing more will happen; False where it was stopped before."""
    measures.look()
    due: float = float("inf")
    seen = ended = 0
    while True:
        upcoming = cluster.next
        first = min(due, float("inf") if upcoming is None else upcoming)
        if first == float("inf"):
            return True
        cluster.advance(max(cluster.now, -(-int(first) // period) * period))
        changed, brought = cluster.changes() != seen, cluster.now >= due
        due = float("inf")
        if cluster.pending and (changed or brought):
            if not goes_on(_told(cluster, counts)):
                return False
            seen = cluster.changes()
            report = scheduler.cycle(again=brought)
            acted = cluster.changes() != seen
            if report is not None:
                due = cluster.now + (period if acted else max(period, seconds_until(report)))
            # nothing runs, nothing arrives and nothing was done: nothing will be, whatever the time brings
            if cluster.next is None and not acted:
                due = float("inf")
            counts.futile = 0 if cluster.ended > ended else counts.futile + 1
            ended = cluster.ended
            if counts.futile > FUTILE:
                return True
        else:
            seen = cluster.changes()
        measures.look()


def _told(cluster: EmbeddedCluster, counts: Counts) -> Told:
    left = len(cluster.trace.jobs) - cluster.ended
    return Told(cluster.now, len(counts.seconds), cluster.ended, left, cluster.pending)

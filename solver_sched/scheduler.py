r"""The service's loop: wait for a change, decide, hand the decisions over, say what users are to see.

    changes --> snapshot --> run_cycle --> binder: admissions, binds, evictions, promises
                                       \-> status, events, metrics, one log line

It works on a cache and on hands (`Hands`) that it is given: those of a live cluster, or of an embedded one.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_report
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from solver_sched import logs
from solver_sched.actions.decide import Admit, Bind, Nominate
from solver_sched.actions.evict import Evict
from solver_sched.cluster.binder import Placement
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.objects import Budget, Pod, PodGroup
from solver_sched.cluster.selectors import selects
from solver_sched.conditions import Shown
from solver_sched.cycle import Budget as Effort
from solver_sched.cycle import CycleReport, run_cycle
from solver_sched.due import seconds_until
from solver_sched.overtaken import overtaken
from solver_sched.policy.watched import WatchedPolicy
from solver_sched.problem.arrays import Member
from solver_sched.problem.census import Census
from solver_sched.snapshot import InputProblem, Snapshot, dump

WINDOW = 0.05
"""Seconds for which changes are gathered after the first one: what is created together is decided together."""
FAILED_SECONDS = 10.0
"""How long after a cycle that failed the next one is tried, if nothing changes before."""
POLICY_SECONDS = 10.0
"""How often the policy's file is looked at while nothing happens."""
IN_FLIGHT_SECONDS = 5.0
"""How long the next cycle waits for the decisions of the last one to be answered: they need the processor more."""
TRANSIT_SECONDS = 10.0
"""How long a bind may be under way after its sender has died: the time-out of our requests (cluster/api.py)."""
DUMPS_KEPT = 10
STUCK = 5.0
"""The loop counts as stuck when it has shown no life for this many hard time limits, and a minute."""

_log = logging.getLogger(__name__)


class Cache(Protocol):
    """Where the facts come from."""

    def snapshot(self, now: int) -> Snapshot: ...
    def changes(self) -> int: ...
    def wait_changed(self, since: int, seconds: float) -> bool: ...
    def next_end(self) -> float: ...
    def last_word(self) -> float: ...
    def failed(self) -> Mapping[str, int]: ...


class Hands(Protocol):
    """Where the decisions go."""

    def admit(self, group: PodGroup) -> None: ...
    def bind(self, gangs: Iterable[Sequence[Placement]]) -> None: ...
    def evict(self, evictions: Iterable[Eviction]) -> None: ...
    def nominate(self, pod: Pod, node: str | None) -> None: ...
    def drain(self, seconds: float) -> bool: ...


class Observer(Protocol):
    """Who counts (`metrics.Metrics`)."""

    def observe_cycle(self, report: CycleReport, snapshot_seconds: float = 0.0, bind_seconds: float = 0.0) -> None: ...
    def cycle_failed(self) -> None: ...
    def broken_gangs(self, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """`period`: seconds from the start of one cycle to the earliest start of the next. `time_limit`: of a cycle, None =
    the policy's. `quota_reason`, see `conditions.Shown`. `dump_dir`: where the snapshot of a cycle goes that failed
    or whose plan was refused, None = nowhere. `apart`, `walled`, `seed`: of the solver, see `cycle.Budget`.
    `explained`: False where nobody may read the reasons of a cycle, see `run_cycle`.
    """

    period: float = 1.0
    time_limit: float | None = None
    quota_reason: bool = True
    dump_dir: Path | None = None
    solver: str = "optimal"
    apart: bool = True
    walled: bool = True
    seed: int | None = None
    explained: bool = True


class Scheduler:
    """One loop. `term`: which time of leading this is, 0 = this replica does not lead: then nothing is decided. Its own
    `term` is that of the last decisions: nothing may be sent in another one.

    `show`: is given what users are to see after each cycle. `complain`: is told of objects that cannot be used, once.
    `clock`: seconds since the epoch.
    """

    def __init__(
        self,
        cache: Cache,
        hands: Hands,
        policy: WatchedPolicy,
        settings: Settings,
        observer: Observer,
        *,
        show: Callable[[Shown], None] | None = None,
        complain: Callable[[InputProblem], None] = lambda _: None,
        term: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache, self._hands, self._policy, self._settings = cache, hands, policy, settings
        self._observer, self._show, self._complain = observer, show, complain
        self._term, self._clock = term, clock
        self.term = 0
        self._last: Snapshot | None = None
        self._census: Census | None = None
        self._due = float("inf")
        self._problems: frozenset[InputProblem] = frozenset()
        self.report: CycleReport | None = None
        self.beat = time.monotonic()

    # The loop

    def run(
        self, stop: threading.Event, lead: Callable[[threading.Event], bool] = lambda stop: not stop.is_set()
    ) -> None:
        """Cycle after cycle until `stop` is set. `lead` waits until this replica leads, False = stopped."""
        while lead(stop):
            self._last = None  # another one may have led in between
            self._let_arrive(stop)
            self.beat = time.monotonic()
            self._serve(stop)

    def _let_arrive(self, stop: threading.Event) -> None:
        """Where pods of ours were bound just now, or told that they wait, whoever did that may have died with binds
        under way, whose room looks free until they arrive: nothing is decided before. Only the first time: later a
        Lease had to expire.
        """
        begun, told = time.monotonic(), False
        while self.report is None and not stop.is_set() and self._term() and time.monotonic() - begun < TRANSIT_SECONDS:
            try:
                snapshot = self._cache.snapshot(int(self._clock()))
            except Exception:  # noqa: BLE001  # a cycle meets the same, and goes on from there
                return
            if snapshot.now - max(_last_bound(snapshot), self._cache.last_word()) >= TRANSIT_SECONDS:
                return
            if not told:
                told = True
                _log.info("a scheduler was at work just now: waiting for binds of it that may be under way")
            self.beat = time.monotonic()
            stop.wait(0.2)

    def _serve(self, stop: threading.Event) -> None:
        again = False
        while not stop.is_set() and self._term():
            if self.term not in (0, self._term()) and not self._hands.drain(0.5):
                # What an earlier term decided may not be sent, and `term` is what tells it apart: it has to end first.
                # No sign of life here: a loop that waits without end is stuck, and better begun anew.
                continue
            begun = time.monotonic()
            again |= self._policy.refresh() or begun >= self._due
            seen = self._cache.changes()
            report = self.cycle(again=again)
            if report is not None:
                self._due = time.monotonic() + seconds_until(report)
            took = time.monotonic() - begun
            # on a large cluster cycles take half of the time at most: what they decide has to be sent, too
            stop.wait(max(self._settings.period - took, took))
            until = time.monotonic() + IN_FLIGHT_SECONDS
            while not stop.is_set() and time.monotonic() < until and not self._hands.drain(0.5):
                self.beat = time.monotonic()
            again = self._wait(seen, stop)

    def _wait(self, seen: int, stop: threading.Event) -> bool:
        """Return when something has changed, time brings something, or `stop` is set; whether to decide in any case."""
        looked = time.monotonic()
        while not stop.is_set() and self._term():
            self.beat = now = time.monotonic()
            until = min(self._due - now, self._cache.next_end())
            if until <= 0:
                return False
            # short waits, so that `stop` and a lost lead are noticed
            if self._cache.wait_changed(seen, min(until, 1.0)):
                stop.wait(WINDOW)
                return False
            if now - looked > POLICY_SECONDS:
                looked = now
                if self._policy.refresh():
                    return True
        return False

    def stuck(self) -> str:
        """What is wrong if the loop shows no life, "" if nothing is. Where another one leads there is none to show."""
        if not self._term():
            self.beat = time.monotonic()
        limit = STUCK * (self._limit() + 2) + 60
        silent = time.monotonic() - self.beat
        return f"the loop has shown no life for {silent:.0f} s" if silent > limit else ""

    # One cycle

    def cycle(self, *, again: bool = False) -> CycleReport | None:
        """Decide once; None where nothing has changed that a decision could rest on, another one leads, or the cycle
        failed. `again`: even if nothing has changed.
        """
        term = self._term()
        if not term:
            return None
        self.term = term
        snapshot: Snapshot | None = None
        begun = time.perf_counter()
        try:
            seen = self._cache.changes()
            snapshot = self._cache.snapshot(int(self._clock()))
            last, self._last = self._last, snapshot
            if last is not None and self.report is not None and not again:
                if not self._acted_on(last) and replace(snapshot, now=last.now) == last:
                    return None
                if _went_on(last, snapshot, self.report):
                    # nothing to decide: what was bound has started, and users are to see that
                    bound = Counter(one.pod_group for one in self.report.decisions if isinstance(one, Bind))
                    self._see(replace_report(self.report, snapshot=snapshot, decisions=()), bound)
                    return None
            took = time.perf_counter() - begun
            self._census = census = Census(snapshot, self._census)
            settings = self._settings
            report = run_cycle(
                *(snapshot, self._policy.policy, self._effort(), settings.solver),
                census=census,
                explained=settings.explained,
            )
            late = self._overtaken(report, seen)
            if late:
                self._last = (
                    None  # decided again even where all is soon as it was: a node that is back, a pod that ends
                )
                kept = (one for one in report.decisions if not (isinstance(one, Bind) and one.pod_group in late))
                (gang, why), more = next(iter(late.items())), f" and {len(late) - 1} more" if len(late) > 1 else ""
                said = f"overtaken, to be decided again: {gang} ({why}){more}"
                report = replace_report(report, decisions=tuple(kept), notes=(*report.notes, said))
            self.report = report
            if report.refused:
                self._dumped(snapshot, f"a plan was refused: {report.refused[0].message}")
            before = time.perf_counter()
            if self._term() == self.term:
                self._carry_out(report, late)
            self._observer.observe_cycle(report, took, time.perf_counter() - before)
            self._see(report)
            self._log(report)
        except Exception as wrong:  # noqa: BLE001  # whatever one cycle stumbles over, the next one has to be tried
            self._observer.cycle_failed()
            self._last = self._census = None
            self._due = time.monotonic() + FAILED_SECONDS
            path = self._dumped(snapshot, f"{type(wrong).__name__}: {wrong}") if snapshot is not None else None
            _log.exception("the cycle failed", extra={"snapshot": str(path) if path else None})
            return None
        return report

    def _acted_on(self, last: Snapshot) -> bool:
        """Whether binds or evictions were decided on `last`: if all is as it was then, they have failed."""
        report = self.report
        return (
            report is not None
            and report.snapshot is last
            and any(isinstance(d, Bind | Evict) for d in report.decisions)
        )

    def _limit(self) -> float:
        return self._settings.time_limit or self._policy.policy.solve.time_limit_seconds or Effort().seconds

    def _effort(self) -> Effort:
        settings = self._settings
        return Effort(self._limit(), settings.apart, settings.seed, settings.walled)

    def _overtaken(self, report: CycleReport, seen: int) -> dict[str, str]:
        """Gangs that are not bound, with why, as the cluster has changed since. `seen`: the changes that the snapshot
        has.
        """
        binds = [one for one in report.decisions if isinstance(one, Bind)]
        if not binds or self._cache.changes() == seen:
            return {}
        return overtaken(report.snapshot, self._cache.snapshot(report.snapshot.now), binds)

    def _carry_out(self, report: CycleReport, late: Container[str]) -> None:
        """Decisions in the order in which they may be carried out; a gang's binds go together. `late`: gangs that the
        next cycle decides on; what is promised to them stays.
        """
        jobs = {one.pod_group for one in report.decisions if not isinstance(one, Admit)}
        named = {one.pod for one in report.decisions if not isinstance(one, Admit)}
        lone = (pod for pod in report.snapshot.pods if pod.group is None)
        # a key is made of each pod only where its job is one of those decided on
        mine = [pod for pod in report.snapshot.pods if pod.group in jobs] if jobs else []
        pods = {key: pod for pod in (*mine, *(lone if jobs else ())) if (key := pod.key) in named}
        admits = any(isinstance(one, Admit) for one in report.decisions)
        groups = {group.key: group for group in report.snapshot.groups} if admits else {}
        admitted: list[PodGroup] = []
        binds: dict[str, list[Placement]] = {}
        evictions: list[Eviction] = []
        promised: dict[str, str] = {}
        budgets: dict[str, list[Budget]] = {}
        for budget in report.snapshot.budgets:
            budgets.setdefault(budget.namespace, []).append(budget)
        for one in report.decisions:
            match one:
                case Admit() if one.pod_group in groups:
                    admitted.append(groups[one.pod_group])
                case Bind():
                    binds.setdefault(one.pod_group, []).append(Placement(pods[one.pod], one.node, one.action))
                case Evict():
                    pod = pods[one.pod]
                    guarded = any(selects(b.selector, pod.labels) for b in budgets.get(pod.namespace, ()))
                    evictions.append(Eviction(pod, one.beneficiary, one.action, one.reason, guarded))
                case Nominate():
                    promised[one.pod] = one.node
        for group in admitted:
            if group.key not in binds:  # else its status says Running at once, with half as many writes
                self._hands.admit(group)
        self._hands.bind(binds.values())
        self._hands.evict(evictions)
        ours = frozenset(report.snapshot.scheduler_names)
        everybody = report.snapshot.pods
        for pod in everybody if promised else [pod for pod in everybody if pod.nominated is not None]:
            node = promised.get(pod.key)
            gang = pod.group or pod.key
            waits = pod.node is None and pod.scheduler in ours and gang not in binds and gang not in late
            if node != pod.nominated and (node is not None or waits):
                self._hands.nominate(pod, node)

    def _see(self, report: CycleReport, bound: Mapping[str, int] = {}) -> None:
        """What users and dashboards see of the cluster as it is now. `bound`: by group, pods bound since the report."""
        self._observer.broken_gangs(sum(_broken(job, bound.get(job.name, 0)) for job in report.index.members))
        if self._show is not None:
            self._show(Shown(report, quota_reason=self._settings.quota_reason, failed=self._cache.failed()))

    def _log(self, report: CycleReport) -> None:
        problems = frozenset(report.snapshot.problems)
        for problem in sorted(problems - self._problems, key=str):
            _log.warning("cannot be used: %s", problem)
            self._complain(problem)
        self._problems = problems
        if not _log.isEnabledFor(logging.INFO):
            return
        fields = logs.of_cycle(report)
        broken = [job.name for job in report.index.members if _broken(job)]
        if broken:
            fields["broken"] = broken[: logs.FIRST]
        _log.info("cycle", extra=fields)

    def _dumped(self, snapshot: Snapshot, why: str) -> Path | None:
        """Where the snapshot of a cycle that went wrong lies now. The folder holds the latest DUMPS_KEPT."""
        folder = self._settings.dump_dir
        if folder is None:
            return None
        data = dump(snapshot)
        digest = hashlib.sha256(data).hexdigest()[:8]
        path = folder / f"cycle-{datetime.now(UTC):%Y%m%dT%H%M%S}-{digest}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            for old in sorted(folder.glob("cycle-*.json"))[:-DUMPS_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as wrong:
            _log.error("the snapshot could not be written: %s", wrong)
            return None
        _log.error("%s: the snapshot is kept", why, extra={"path": str(path)})
        return path

    # For whoever debugs

    def last_snapshot(self) -> bytes | None:
        """JSON of the last cycle's snapshot: `solver-sched plan -f` of it gives the same plan."""
        report = self.report
        return dump(report.snapshot) if report is not None else None

    def last_plan(self) -> bytes | None:
        """JSON of the last cycle's plan."""
        report = self.report
        return msgspec.json.encode(report.as_dict()) if report is not None else None


def _last_bound(snapshot: Snapshot) -> float:
    """When a pod of ours came to its node last, in seconds since the epoch. One that its kubelet has not seen yet came
    just now.
    """
    ours = frozenset(snapshot.scheduler_names)
    return max(
        (
            pod.started or (snapshot.now if pod.phase == "Pending" else pod.created)
            for pod in snapshot.pods
            if pod.node is not None and pod.scheduler in ours
        ),
        default=-math.inf,
    )


def _broken(job: Member, bound: int = 0) -> bool:
    return 0 < job.ready + bound < job.minimum


def _went_on(last: Snapshot, now: Snapshot, report: CycleReport) -> bool:
    """Whether all that happened is that pods which `report` bound are bound, and pods on nodes have begun to run: then
    nobody who waits has got room, or lost any.
    """
    if len(last.pods) != len(now.pods) or replace(now, now=last.now, pods=last.pods) != last:
        return False
    bound = {one.pod: one.node for one in report.decisions if isinstance(one, Bind)}
    for before, after in zip(last.pods, now.pods, strict=True):
        if before.key in bound and after.node is None:
            return False
        if before is after or before == after:
            continue
        if before.uid != after.uid or after.phase not in ("Pending", "Running"):
            return False
        same = replace(after, phase=before.phase, started=before.started)
        node = bound.get(before.key)
        if node is not None and before.node in (None, node):
            before, same = (
                replace(before, node=node, preemptable=True, nominated=None),
                replace(same, preemptable=True, nominated=None),
            )
        if before != same or after.node is None:
            return False
    return True

"""What Prometheus reads of the service, in a registry of its own.

Names that dashboards of kube-batch and Volcano read are kept where the meaning is the same
(Volcano pkg/scheduler/metrics). Gauges of the last cycle and of the caches are one value that is replaced as a whole: a
queue, level or group that is gone takes its series with it, and a scrape never sees half a cycle.
"""

from __future__ import annotations

from collections import Counter as Count
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from solver_sched.actions.decide import Bind
from solver_sched.actions.evict import Evict
from solver_sched.document import certificate
from solver_sched.logs import waiting

if TYPE_CHECKING:
    from solver_sched.cycle import CycleReport
    from solver_sched.problem.arrays import Ints

LISTED = 200
"""Groups with a series of their own, those that lack most first."""
DECISIONS = ("Bind", "Evict", "Nominate", "Admit")
RESULTS = ("ok", "conflict", "refused", "lost", "failed")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MILLISECONDS = tuple(5.0 * 2**k for k in range(14))
"""Volcano's buckets, carried on from 2.5 s to 41 s."""

_QUEUE = ("queue_name",)
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "solver_sched_level_value": ("Value of a level in the last plan, larger is better.", ("level",)),
    "solver_sched_level_bound": ("What no plan can exceed in a level of the last cycle.", ("level",)),
    "solver_sched_level_gap": ("Relative distance of value and bound of a level; 0 is proven.", ("level",)),
    "solver_sched_gain_over_greedy": ("Value of a level less what the greedy plan reaches.", ("level",)),
    "solver_sched_pending_pod_groups": ("Groups with pods that the last plan leaves waiting.", ("reason",)),
    "solver_sched_pending_pods": ("Pods that the last plan leaves waiting.", ("reason",)),
    **{
        f"volcano_queue_{what}_{unit}": (f"{words} of a queue, {of}.", labels)
        for what, words in (
            ("allocated", "What the pods hold, those that the last plan binds included,"),
            ("request", "What the pods hold and ask for,"),
            ("deserved", "What is due to the pods"),
        )
        for unit, of, labels in (
            ("milli_cpu", "in milli-CPU", _QUEUE),
            ("memory_bytes", "in bytes", _QUEUE),
            ("scalar_resources", "of other resources, in thousandths", (*_QUEUE, "resource")),
        )
    },
    "volcano_queue_share": ("Largest ratio of allocated and deserved over the resources of a queue.", _QUEUE),
    "volcano_queue_weight": ("Weight of a queue.", _QUEUE),
    "volcano_unschedule_job_count": ("Groups that lack members of their minimum after the last plan.", ()),
    "volcano_unschedule_task_count": (
        f"Members that a group lacks of its minimum, for the {LISTED} groups that lack most.",
        ("job_id",),
    ),
    "volcano_pod_preemption_victims": ("Pods that the last plan evicts.", ()),
    "solver_sched_cache_objects": ("Objects in the cache.", ("kind",)),
    "solver_sched_cache_lag_seconds": ("How old the news of a kind is.", ("kind",)),
    "solver_sched_pods": ("Pods of this scheduler by what they are doing, in Volcano's words.", ("state",)),
    "solver_sched_events_dropped": ("Events that were never sent, since the start.", ()),
}
Series = dict[str, dict[tuple[str, ...], float]]
"""Metric -> label values -> value."""


class Metrics:
    """All metrics of one scheduler. Methods are cheap and may be called from any thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and no dashboard reads them
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._latest = _Latest()
        self._counts = True
        registry.register(self._latest)
        self._cycle_seconds = Histogram(
            "solver_sched_cycle_seconds",
            "From the snapshot until the binder has all decisions.",
            buckets=SECONDS,
            registry=registry,
        )
        self._phase_seconds = Histogram(
            "solver_sched_phase_seconds", "Parts of a cycle.", ["phase"], buckets=SECONDS, registry=registry
        )
        self._cycles = Counter(
            "solver_sched_cycles_total",
            "Cycles by what is known of their plan; failed: without one; refused: the solved plan broke a rule.",
            ["result"],
            registry=registry,
        )
        self._decisions = Counter(
            "solver_sched_decisions_total", "Decisions by what became of them.", ["kind", "result"], registry=registry
        )
        self._broken_gangs = Gauge(
            "solver_sched_broken_gangs", "Gangs that were started and run less than their minimum.", registry=registry
        )
        self._api_requests = Counter(
            "solver_sched_api_requests_total",
            "Requests to the API server by HTTP status, lost or unsent.",
            ["verb", "code"],
            registry=registry,
        )
        self._api_seconds = Histogram(
            "solver_sched_api_seconds",
            "Until an answer of the API server came.",
            ["verb"],
            buckets=SECONDS,
            registry=registry,
        )
        self._relists = Counter(
            "solver_sched_cache_relists_total", "Lists after the first.", ["kind", "reason"], registry=registry
        )
        self._leader = Gauge("solver_sched_leader", "1 while this replica leads.", registry=registry)
        self._plans_refused = Counter(
            "solver_sched_plan_refused_total", "Solved plans that the verifier refused.", registry=registry
        )
        self._solver_lost = Counter(
            "solver_sched_solver_lost_total", "Solves that crashed, overran or failed.", registry=registry
        )
        self._policy_reloads = Counter(
            "solver_sched_policy_reloads_total", "Changed policy files by outcome.", ["result"], registry=registry
        )
        self._e2e = Histogram(
            "volcano_e2e_scheduling_latency_milliseconds",
            "From the snapshot until the binder has all decisions, in ms.",
            buckets=MILLISECONDS,
            registry=registry,
        )
        self._attempts = Counter(
            "volcano_schedule_attempts_total",
            "Pods by what a cycle did: scheduled, unschedulable, or error where a bind failed.",
            ["result"],
            registry=registry,
        )
        # a counter in all but its name, to which the library would add `_total`
        self._preemptions = Gauge(
            "volcano_total_preemption_attempts", "Groups for which others were evicted.", registry=registry
        )
        for result in ("optimal", "gap", "greedy", "failed", "refused"):
            self._cycles.labels(result)
        for kind in DECISIONS:
            for result in RESULTS:
                self._decisions.labels(kind, result)
        for result in ("scheduled", "unschedulable", "error"):
            self._attempts.labels(result)
        for result in ("ok", "refused"):
            self._policy_reloads.labels(result)

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and body for a scraper that sends the header `Accept: accept`."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self.registry)

    def observe_cycle(self, report: CycleReport, snapshot_seconds: float = 0.0, bind_seconds: float = 0.0) -> None:
        """One cycle that has come to a plan. `snapshot_seconds`, `bind_seconds`: what it took before and after."""
        seconds = {"snapshot": snapshot_seconds, **report.seconds, "bind": bind_seconds}
        total = snapshot_seconds + seconds.pop("total", 0.0) + bind_seconds
        self._cycle_seconds.observe(total)
        self._e2e.observe(total * 1000)
        for phase, taken in seconds.items():
            self._phase_seconds.labels(phase).observe(taken)
        self._cycles.labels("refused" if report.refused else certificate(report)["status"]).inc()
        if report.refused:
            self._plans_refused.inc()
        if any(note.startswith("the solver ") for note in report.notes):  # model/process.py, solve_apart
            self._solver_lost.inc()
        series: Series = defaultdict(dict)
        _levels(report, series)
        evictions = [one for one in report.decisions if type(one) is Evict]
        _groups(report, evictions, series)
        _queues(report, series)
        series["volcano_pod_preemption_victims"][()] = len(evictions)
        self._preemptions.inc(len({one.beneficiary for one in evictions}))
        self._attempts.labels("unschedulable").inc(sum(series["solver_sched_pending_pods"].values()))
        if self._counts:
            self._latest.cycle = series

    def cycle_failed(self) -> None:
        """A cycle has ended without a plan."""
        self._cycles.labels("failed").inc()

    def decision(self, kind: str, result: str) -> None:
        """One decision has been carried out, or not. `kind`: one of DECISIONS, `result`: one of RESULTS."""
        self._decisions.labels(kind, result).inc()
        if kind == "Bind":
            self._attempts.labels("scheduled" if result == "ok" else "error").inc()

    def broken_gangs(self, count: int) -> None:
        """How many gangs are broken now; of one that does not lead, none."""
        self._broken_gangs.set(count if self._counts else 0)

    def api(self, verb: str, code: str, seconds: float) -> None:
        """One request; fits `Api.seen`."""
        self._api_requests.labels(verb, code).inc()
        self._api_seconds.labels(verb).observe(seconds)

    def now(
        self, objects: Mapping[str, int], lag: Mapping[str, float], pods: Mapping[str, int], events_dropped: int
    ) -> None:
        """Objects and age of the news in s, by kind; pods by state. What is not named loses its series."""
        self._latest.now = {
            "solver_sched_cache_objects": {(kind,): float(count) for kind, count in objects.items()},
            "solver_sched_cache_lag_seconds": {(kind,): seconds for kind, seconds in lag.items()},
            "solver_sched_pods": {(state,): float(count) for state, count in pods.items()},
            "solver_sched_events_dropped": {(): float(events_dropped)},
        }

    def relist(self, kind: str, reason: str) -> None:
        """A kind was listed anew. `reason`: a word of few, such as expired."""
        self._relists.labels(kind, reason).inc()

    def leader(self, leads: bool) -> None:
        """Fits `Leader.on_change`. A plan of one that leads no more, be it one just being made, does not count."""
        self._leader.set(leads)
        self._counts = leads
        if not leads:
            self._latest.cycle = {}
            self._broken_gangs.set(0)

    def policy_reloaded(self, taken: bool) -> None:
        """A changed policy file was taken, or refused."""
        self._policy_reloads.labels("ok" if taken else "refused").inc()


class _Latest(Collector):
    """Gauges that are replaced as a whole."""

    def __init__(self) -> None:
        self.cycle: Series = {}
        self.now: Series = {}

    def collect(self) -> Iterator[Metric]:
        series = {**self.cycle, **self.now}
        for name, (text, labels) in _GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in series.get(name, {}).items():
                family.add_metric(values, value)
            yield family


def _levels(report: CycleReport, series: Series) -> None:
    for level in report.levels:
        key, greedy = (level.name,), report.greedy_levels.get(level.name)
        value = level.value if report.winner == "solver" else greedy or 0
        series["solver_sched_level_value"][key] = value
        if greedy is not None:
            series["solver_sched_gain_over_greedy"][key] = value - greedy
        if level.bound is not None:
            series["solver_sched_level_bound"][key] = level.bound
            series["solver_sched_level_gap"][key] = replace(level, value=value).gap


def _groups(report: CycleReport, evictions: Sequence[Evict], series: Series) -> None:
    change = Count([one.pod_group for one in report.decisions if type(one) is Bind])
    change.subtract([one.pod_group for one in evictions if not one.to])  # a pod that moves runs on elsewhere
    groups: Count[str] = Count()
    pods: Count[str] = Count()
    for reason, count in waiting(report).values():
        groups[reason] += 1
        pods[reason] += count
    lacking: list[tuple[int, str]] = []
    for job in report.index.members:
        lacks = job.minimum - job.ready - change[job.name]
        if lacks > 0 and (job.pending or job.ready):
            lacking.append((lacks, job.name))
    series["solver_sched_pending_pod_groups"] = {(reason,): count for reason, count in groups.items()}
    series["solver_sched_pending_pods"] = {(reason,): count for reason, count in pods.items()}
    series["volcano_unschedule_job_count"] = {(): len(lacking)}
    lacking.sort(key=lambda one: (-one[0], one[1]))
    series["volcano_unschedule_task_count"] = {(name,): lacks for lacks, name in lacking[:LISTED]}


def _queues(report: CycleReport, series: Series) -> None:
    """In Volcano's units: milli-CPU, bytes, and thousandths of everything else."""
    problem, rules, plan = report.problem, report.rules, report.plan
    allocated = problem.after(plan).queue_used + plan.of_queues(problem)
    request = problem.queue_used.copy()
    np.add.at(
        request, problem.job_queue[problem.set_job], problem.set_count[:, None] * problem.request[problem.set_shape]
    )
    slots = problem.slots
    columns = [(r, name) for r, name in enumerate(problem.resources) if not slots[r]]
    for what, amounts in (("allocated", allocated), ("request", request), ("deserved", rules.deserved)):
        if amounts is not None:
            _amounts(f"volcano_queue_{what}", report.index.queues, columns, amounts, series)
    whole = problem.total if rules.deserved is None else rules.deserved
    counts = ~slots & (problem.total > 0) & (whole > 0)
    ratios = np.where(counts, allocated / np.maximum(whole, 1), 0.0)
    for q, name in enumerate(report.index.queues):
        series["volcano_queue_share"][name,] = float(ratios[q].max(initial=0.0))
        series["volcano_queue_weight"][name,] = int(problem.queue_weight[q])


def _amounts(
    metric: str, queues: Sequence[str], columns: Sequence[tuple[int, str]], amounts: Ints, series: Series
) -> None:
    """`amounts` (Q, R), of which `columns` are told. A scalar resource that a queue has nothing of is left out."""
    for name, row in zip(queues, amounts.tolist(), strict=True):
        have = {resource: row[r] for r, resource in columns}
        series[f"{metric}_milli_cpu"][name,] = have.pop("cpu", 0)
        series[f"{metric}_memory_bytes"][name,] = have.pop("memory", 0)
        scalars = series[f"{metric}_scalar_resources"]
        scalars.update({(name, resource): amount * 1000 for resource, amount in have.items() if amount})


_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
NAMES: frozenset[str] = frozenset(
    metric.name + suffix for metric in Metrics().registry.collect() for suffix in _SUFFIXES.get(metric.type, ("",))
)
"""Every series name that a scrape can show, `_bucket`, `_sum` and `_count` of histograms included."""

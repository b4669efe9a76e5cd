"""What a run is measured by: waiting, slowdown, use, fairness, work lost; and its courses over time for plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver_sched.cluster.objects import Queue
from solver_sched.simulate.cluster import Course, EmbeddedCluster

Floats = NDArray[np.float64]

POINTS = 500
"""Of each series at most so many are kept, evenly over the moments at which something changed."""
QUANTILES = 200
"""Points of the distribution of waiting times."""
SHORT = 10
"""Seconds that a run counts as at least in a slowdown (Feitelson et al., Theory and practice in parallel job
scheduling, 1997, section 4: bounded slowdown).
"""
SIZES = ((1, 1, "1"), (2, 8, "2-8"), (9, 32, "9-32"), (33, 10**9, "33+"))
UNCOUNTED = "pods"
"""Pod slots are never what a queue is measured by."""


class Measures:
    """Looks at the cluster after each moment at which something happened (`look`); what it saw holds until the next."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._queues = cluster.trace.queues
        named = {name for node in cluster.trace.nodes for name in node.allocatable} - {UNCOUNTED}
        self.resources = tuple(sorted(named, key=lambda name: (name != "cpu", name != "memory", name)))
        self._weight = np.array([max(queue.weight, 0) for queue in self._queues], np.float64)
        self._limit = np.array([[_limit(queue, name) for name in self.resources] for queue in self._queues])
        self._rows: list[tuple[int, int, int, int]] = []
        self._use: list[Floats] = []
        self._share: list[Floats] = []
        self._deserved: list[Floats] = []
        self._jain: list[float] = []

    def look(self) -> None:
        cluster = self._cluster
        row = (cluster.now, cluster.pending, cluster.running, cluster.evictions)
        total = np.array([cluster.capacity[name] for name in self.resources], np.float64)
        used = np.array([cluster.used[name] for name in self.resources], np.float64)
        held, asked = self._of_queues(cluster.held), self._of_queues(cluster.asked)
        room = np.maximum(total, 1.0)
        share = (held / room).max(axis=1, initial=0.0)
        due = (fair(total, self._weight, np.minimum(asked, self._limit)) / room).max(axis=1, initial=0.0)
        with_demand = (asked > 0).any(axis=1) & (due > 0)
        if self._rows and self._rows[-1][0] == cluster.now:
            for column in (self._rows, self._use, self._share, self._deserved, self._jain):
                column.pop()
        self._rows.append(row)
        self._use.append(used / room)
        self._share.append(share)
        self._deserved.append(due)
        self._jain.append(jain(share[with_demand] / due[with_demand]))

    def _of_queues(self, amounts: Mapping[str, Mapping[str, int]]) -> Floats:
        return np.array(
            [[amounts[queue.name][name] for name in self.resources] for queue in self._queues], np.float64
        ).reshape(len(self._queues), len(self.resources))

    def summary(self, cycles: Sequence[float]) -> dict[str, Any]:
        """`cycles`: wall seconds of each; nothing else here depends on the machine."""
        cluster = self._cluster
        courses = list(cluster.courses.values())
        missing = len(cluster.trace.jobs) - len(courses)
        ended = [course for course in courses if course.ended >= 0]
        seconds = self._held_for()
        fair_time = seconds * ~np.isnan(self._jain)
        return {
            "makespan": max((course.ended for course in ended), default=0),
            "jobs": {
                "ended": sum(not course.failed for course in ended),
                "failed": sum(course.failed for course in ended),
                "left": len(courses) - len(ended) + missing,
            },
            "wait": spread(waits(courses)),
            "completion": spread(course.ended - course.job.submitted for course in ended),
            "slowdown": spread(slowdowns(courses)),
            "utilisation": {
                name: round(cluster.spent[name] / cluster.offered[name], 4)
                for name in self.resources
                if cluster.offered[name]
            },
            "jain": _mean(np.nan_to_num(np.array(self._jain)), fair_time),
            "evictions": cluster.evictions,
            "lost": {"podSeconds": cluster.lost},
            "cycles": len(cycles),
            "cycle": spread(cycles, digits=4),
        }

    def _held_for(self) -> Floats:
        """Seconds for which each row was true."""
        times = np.array([row[0] for row in self._rows] + [self._cluster.now], np.float64)
        return np.diff(times)

    def queues(self) -> list[dict[str, Any]]:
        """Per queue its jobs, their waits, and shares of the cluster: had and deserved, on average over time."""
        seconds = self._held_for()
        rows = []
        for q, queue in enumerate(self._queues):
            courses = [one for one in self._cluster.courses.values() if one.job.queue == queue.name]
            rows.append(
                {
                    "name": queue.name,
                    "jobs": len(courses),
                    "wait": spread(waits(courses)),
                    "share": _mean(np.array([row[q] for row in self._share]), seconds),
                    "deserved": _mean(np.array([row[q] for row in self._deserved]), seconds),
                }
            )
        return rows

    def sizes(self) -> list[dict[str, Any]]:
        """Waits and slowdowns by number of pods."""
        rows = []
        for least, most, name in SIZES:
            courses = [one for one in self._cluster.courses.values() if least <= one.job.size <= most]
            rows.append(
                {
                    "pods": name,
                    "jobs": len(courses),
                    "wait": spread(waits(courses)),
                    "slowdown": spread(slowdowns(courses)),
                }
            )
        return rows

    def series(self) -> dict[str, Any]:
        """How things stood at up to POINTS moments."""
        keep = _evenly(len(self._rows), POINTS)
        times, pending, running, evictions = ([int(self._rows[i][column]) for i in keep] for column in range(4))

        def column(of: Sequence[Floats], row: int) -> list[float]:
            return [round(float(of[i][row]), 4) for i in keep]

        return {
            "time": times,
            "utilisation": {name: column(self._use, r) for r, name in enumerate(self.resources)},
            "pending": pending,
            "running": running,
            "evictions": evictions,
            "queues": {
                queue.name: {"share": column(self._share, q), "deserved": column(self._deserved, q)}
                for q, queue in enumerate(self._queues)
            },
        }

    def waiting(self) -> dict[str, list[float]]:
        """The distribution of waiting times: which share of the jobs that started waited at most so many seconds."""
        found = sorted(waits(self._cluster.courses.values()))
        keep = _evenly(len(found), QUANTILES)
        return {
            "seconds": [found[i] for i in keep],
            "share": [round((i + 1) / len(found), 4) for i in keep],
        }

    def jobs(self) -> list[dict[str, Any]]:
        """Each job in order of submission; seconds of the trace, None where it has not come to it."""
        return [
            {
                "name": course.job.key,
                "queue": course.job.queue,
                "pods": course.job.size,
                "submitted": course.job.submitted,
                "started": course.started if course.started >= 0 else None,
                "ended": course.ended if course.ended >= 0 else None,
                "evictions": course.evictions,
            }
            for course in self._cluster.courses.values()
        ]


def waits(courses: Iterable[Course]) -> list[int]:
    """Seconds from submission until the minimum ran, of the jobs that have started."""
    return [course.started - course.job.submitted for course in courses if course.started >= 0]


def slowdowns(courses: Iterable[Course]) -> list[float]:
    """Bounded slowdown of the jobs that have started and ended."""
    return [
        max(1.0, (course.ended - course.job.submitted) / max(course.ended - course.started, SHORT))
        for course in courses
        if course.started >= 0 and course.ended >= 0
    ]


def spread(values: Iterable[float], digits: int = 2) -> dict[str, float]:
    """Mean, median, 95th percentile and maximum; zeros where there is nothing."""
    found = np.array(list(values), np.float64)
    if not len(found):
        return {"mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    half, most = np.percentile(found, [50, 95])
    return {
        name: round(float(value), digits)
        for name, value in (("mean", found.mean()), ("p50", half), ("p95", most), ("max", found.max()))
    }


def jain(ratios: Floats) -> float:
    """Jain's index of fairness: 1 = all equal, 1/n = one has all; nan of nothing (Jain, Chiu, Hawe, 1984)."""
    squares = float((ratios**2).sum())
    if not len(ratios):
        return float("nan")
    return float(ratios.sum()) ** 2 / (len(ratios) * squares) if squares else 1.0


def fair(total: Floats, weight: Floats, ask: Floats) -> Floats:
    """(Q, R) weighted max-min shares of `total` (R,) by what is asked (Q, R): the same measure for all policies.

    A resource of which there is enough is given as asked.
    """
    out = ask.copy()
    for r in np.flatnonzero(ask.sum(axis=0) > total):
        per_weight = np.where(weight > 0, ask[:, r] / np.maximum(weight, 1e-12), np.inf)
        order = np.argsort(per_weight, kind="stable")
        left, weights = float(total[r]), float(weight.sum())
        for q in order.tolist():
            given = min(float(ask[q, r]), left * float(weight[q]) / weights) if weights > 0 else 0.0
            out[q, r] = given
            left, weights = left - given, weights - float(weight[q])
    return out


def _limit(queue: Queue, resource: str) -> float:
    return float((queue.capability or {}).get(resource, np.inf))


def _mean(values: Floats, seconds: Floats) -> float:
    """Mean over time; 0 where no time has passed."""
    total = float(seconds.sum())
    return round(float((values * seconds).sum()) / total, 4) if total else 0.0


def _evenly(number: int, most: int) -> list[int]:
    """At most so many of the rows 0 .. number - 1, the first and the last among them."""
    if number <= most:
        return list(range(number))
    return sorted({round(row) for row in np.linspace(0, number - 1, most).tolist()})

"""Sla: a job that has waited longer than its limit is let in, unless a voter of the same or an earlier tier refuses it,
and ranks just above its own priority (formulation.md 1, ranks).

The limit is the job's annotation `sla-waiting-time`, else the argument of that name. In Volcano such a job is called
pipelined too, so that preempt and reclaim evict for it before it can start: here nothing is evicted for a gang that
does not start. Volcano pkg/scheduler/plugins/sla/sla.go.
"""

from __future__ import annotations

import math

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.entrance import PERMIT, Applicant, Entrance, Vote, Voter


class Sla(Plugin):
    name = "sla"

    def age_limit(self) -> int:
        return self.limit if self.conf.on("jobOrder") else 0

    def voter(self, entrance: Entrance) -> Voter:
        return _Overdue(self.limit)

    @property
    def limit(self) -> int:
        """Seconds; 0 = none."""
        return math.ceil(self.conf.seconds("sla-waiting-time"))


class _Overdue:
    def __init__(self, limit: int) -> None:
        self._limit = limit

    def vote(self, group: Applicant) -> Vote:
        limit = group.limit or self._limit
        return PERMIT if limit and group.waited >= limit else None

    def admitted(self, group: Applicant) -> None:
        """Others wait no less for it."""

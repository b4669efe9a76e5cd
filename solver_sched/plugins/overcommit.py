"""Overcommit: groups are let in until what is used and promised reaches `overcommit-factor` times the cluster.

A group that was let in counts with what its minimum still lacks, so its bound pods are not counted twice, and only as
far as pending pods of it exist that could start (`Applicant.reserves`, `Reserve`).
Volcano pkg/scheduler/plugins/overcommit/overcommit.go.
"""

from __future__ import annotations

from fractions import Fraction

from solver_sched.cluster.objects import Resources
from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.entrance import PERMIT, Applicant, Entrance, Reserve, Vote, Voter, refusal
from solver_sched.quantity import format as format_quantity


class Overcommit(Plugin):
    name = "overcommit"

    def voter(self, entrance: Entrance) -> Voter:
        return _Promises(self.conf.number("overcommit-factor"), entrance)


class _Promises:
    def __init__(self, factor: Fraction, entrance: Entrance) -> None:
        self._factor, self._entrance = factor, entrance
        # what it is compared with is an integer, so that rounding down loses nothing
        self._most = {name: int(factor * amount) for name, amount in entrance.total.items()}
        self._reserve = Reserve(self._of_pool)
        for group in entrance.inside:
            self.admitted(group)

    def vote(self, group: Applicant) -> Vote:
        for name, asks in group.lacks.items():
            most, used, reserved = self._most.get(name, 0), self._entrance.used.get(name, 0), self._reserve.sum[name]
            if used + reserved + asks > most:
                total = format_quantity(name, self._entrance.total.get(name, 0))
                return refusal(f"{float(self._factor):g} x {total} is", name, asks, most, used, reserved)
        return PERMIT

    def admitted(self, group: Applicant) -> None:
        self._reserve.add(group)

    def _of_pool(self, row: int) -> Resources:
        pool = self._entrance.pools[row]
        return {name: int(self._factor * amount) - pool.used.get(name, 0) for name, amount in pool.total.items()}

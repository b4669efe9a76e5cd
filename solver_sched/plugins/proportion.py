"""Proportion: every queue is entitled to its weighted max-min share of what is contended (formulation.md 3, C6 to C8).

The share decides who comes first and, later, who may take from whom; it is never a ceiling. Capability and what the
guarantees of other queues leave are (Volcano pkg/scheduler/plugins/proportion/proportion.go, realCapability).
"""

from __future__ import annotations

from collections.abc import Iterator

from solver_sched.plugins.plugin import Plugin, QueueCeiling, Violation
from solver_sched.problem.arrays import Ints, Plan, Problem
from solver_sched.problem.entrance import Entrance, QueueRoom, Voter
from solver_sched.problem.shares import Demand, ceiling_excess, ceiling_room, proportional


class Proportion(Plugin):
    name = "proportion"

    def deserved(self, problem: Problem, wanted: Demand) -> Ints | None:
        """(Q, R) weighted max-min shares, rounded down."""
        return proportional(problem, wanted)

    def ceiling(self, problem: Problem) -> QueueCeiling | None:
        return QueueCeiling(ceiling_room(problem), problem.queue_guarantee)

    def reclaims(self) -> bool:
        return self.conf.on("reclaimable")

    def voter(self, entrance: Entrance) -> Voter:
        return QueueRoom(entrance)

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        for queue, message in ceiling_excess(problem, plan):
            yield Violation(self.name, message, queue=queue)

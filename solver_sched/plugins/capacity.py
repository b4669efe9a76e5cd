"""Capacity: every queue is entitled to what it names as deserved, and kept under its capability
(formulation.md 3, C6 to C8).

Guarantees are never lent away: new pods may use only what the guarantees of the other queues, idle ones included,
leave (Volcano pkg/scheduler/plugins/capacity/capacity.go, realCapability). A resource that `deserved` does not name
entitles to nothing; one that `capability` does not name is not limited.
"""

from __future__ import annotations

from collections.abc import Iterator

from solver_sched.plugins.plugin import Plugin, QueueCeiling, Violation
from solver_sched.problem.arrays import Ints, Plan, Problem
from solver_sched.problem.entrance import Entrance, QueueRoom, Voter
from solver_sched.problem.shares import Demand, ceiling_excess, ceiling_room, explicit


class Capacity(Plugin):
    name = "capacity"

    def deserved(self, problem: Problem, wanted: Demand) -> Ints | None:
        """(Q, R) `spec.deserved` between guarantee and real capability, at most what the queue asks."""
        return explicit(problem, wanted)

    def ceiling(self, problem: Problem) -> QueueCeiling | None:
        return QueueCeiling(ceiling_room(problem), problem.queue_guarantee)

    def reclaims(self) -> bool:
        return self.conf.on("reclaimable")

    def voter(self, entrance: Entrance) -> Voter:
        return QueueRoom(entrance)

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        for queue, message in ceiling_excess(problem, plan):
            yield Violation(self.name, message, queue=queue)

"""What stands between a queue and its next pods: its capability, the guarantees of others, its deserved share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver_sched.explain.amounts import Amounts
from solver_sched.explain.reason import Found
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import NO_LIMIT, Index, Ints, Plan, Problem


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a queue may not start some pods: the code, and the clause of the message."""

    code: Found
    clause: str


class Quota:
    """The queues before the plan and after it."""

    def __init__(self, problem: Problem, index: Index, rules: Rules, plan: Plan, amounts: Amounts) -> None:
        self.problem, self.index, self.rules, self.amounts = problem, index, rules, amounts
        # of the problem given, from which victims have gone
        self.ceilings = [ceiling for plugin in rules.plugins if (ceiling := plugin.ceiling(problem)) is not None]
        self.new = plan.of_queues(problem)
        self.used = problem.queue_used + self.new
        self._numbers: dict[int, dict[str, Any]] = {}

    def refuses(self, q: int, ask: Ints, *, before: bool = False, given: Ints | int = 0) -> Refusal | None:
        """Whether a ceiling keeps `ask` (R,) out beside the plan, or already `before` anything is placed (C7, C8).

        `given` (R,): what the queue itself would give up on top.
        """
        new = np.zeros_like(self.new) if before else self.new
        # a queue above its ceiling has to come down to it before it gains room
        given = np.maximum(0, given - np.maximum(0, self.problem.queue_used[q] - self.problem.queue_capability[q]))
        for ceiling in self.ceilings:
            over = (ask > 0) & (ceiling.room[q] < NO_LIMIT) & (new[q] + ask > ceiling.room[q] + given)
            if over.any():
                r = int(over.argmax())
                used, capability = self.problem.queue_used[q, r] + new[q, r], self.problem.queue_capability[q, r]
                held = f"{self.amounts.plain(r, used)} of {self.amounts.text(r, capability)} used"
                asks = f"asks {self.amounts.plain(r, ask[r])} more"
                return Refusal("QueueCapability", f"queue {self.index.queues[q]}: {held}, {asks}")
            if ceiling.guarantee.any():
                refusal = self._guaranteed(q, ask, new, ceiling.guarantee)
                if refusal is not None:
                    return refusal
        return None

    def at_share(self, q: int, ask: Ints) -> int:
        """The contended resource in which the queue, after the plan, would pass its deserved with `ask`; -1 if none."""
        deserved = self.rules.deserved
        if deserved is None:
            return -1
        over = np.flatnonzero(self.rules.contended & (ask > 0) & (self.used[q] + ask > deserved[q])).tolist()
        return max(over, key=lambda r: float(self.used[q, r]) / max(1.0, float(deserved[q, r])), default=-1)

    def within_share(self, queues: Iterable[int], r: int) -> bool:
        """Every one of the queues holds at most its deserved of the resource after the plan."""
        deserved = self.rules.deserved
        return deserved is not None and all(self.used[q, r] <= deserved[q, r] for q in queues)

    def numbers(self, q: int) -> dict[str, Any]:
        """The queue after the plan, for `detail`."""
        if q not in self._numbers:
            limited = np.where(self.problem.queue_capability[q] < NO_LIMIT, self.problem.queue_capability[q], -1)
            self._numbers[q] = {
                "name": self.index.queues[q],
                "used": self.amounts.mapping(self.used[q]),
                "deserved": {} if self.rules.deserved is None else self.amounts.mapping(self.rules.deserved[q]),
                "capability": self.amounts.mapping(limited, present=limited >= 0),
            }
        return self._numbers[q]

    def _guaranteed(self, q: int, ask: Ints, new: Ints, guarantee: Ints) -> Refusal | None:
        p = self.problem
        now = p.queue_used + new
        after = now.copy()
        after[q] += ask
        limit = np.maximum(p.total - p.foreign, np.maximum(p.queue_used, guarantee).sum(axis=0))
        unspent = np.maximum(guarantee - now, 0)
        others = unspent.sum(axis=0) - unspent[q]
        # without unspent guarantees the sum is the cluster's capacity, which is for Resources to tell
        over = (ask > 0) & (others > 0) & (np.maximum(after, guarantee).sum(axis=0) > limit)
        if not over.any():
            return None
        r = int(over.argmax())
        left = max(0, int(limit[r] - now[:, r].sum() - others[r]))
        text, plain = self.amounts.text, self.amounts.plain
        return Refusal(
            "QueueGuarantee",
            f"queue {self.index.queues[q]} asks {text(r, ask[r])} more, {plain(r, left)} is left beside "
            f"{plain(r, others[r])} guaranteed to other queues",
        )

"""C15 of formulation.md while jobs start one by one: room that a queue gives up by preempt is its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RECLAIM, Ints, Plan, Problem
from solver_sched.rights import Rights, rights


class Balance:
    """What has started, per queue and set of contended resources it asks for, and what victims gave."""

    def __init__(self, problem: Problem, rules: Rules, begun: Plan, allowed: Rights | None = None) -> None:
        self.problem, self.rules = problem, rules
        self.allowed = rights(problem, rules) if allowed is None else allowed
        self.gave = np.zeros_like(problem.queue_used)
        self.lent = np.zeros_like(problem.queue_used)
        self.whole: dict[bytes, Ints] = {}
        self.polite: dict[bytes, Ints] = {}
        for s, pods, cause in zip(begun.victim.tolist(), begun.out.tolist(), begun.cause.tolist(), strict=True):
            self.evict(s, pods, cause)
        placed = begun.placed(problem)
        started = (rules.need > 0) & (np.bincount(problem.set_job, weights=placed, minlength=len(rules.need)) > 0)
        for j in np.flatnonzero(started).tolist():
            self._add(j, self._minimum(j, placed), 1)

    def evict(self, s: int, pods: int, cause: int) -> None:
        """`pods` of a victim set go; negative: they stay after all."""
        v = self.problem.victims
        (self.lent if cause == RECLAIM else self.gave)[v.queue[v.holder[s]]] += pods * v.request[s]

    def start(self, j: int, pods: Sequence[int]) -> bool:
        """Whether the job may start with these pods (their sets); if not it has not."""
        self._add(j, Counter(pods), 1)
        if self._holds(None) and self._holds(self.allowed.asks[j].tobytes()):
            return True
        self._add(j, Counter(pods), -1)
        return False

    def _add(self, j: int, pods: Counter[int], sign: int) -> None:
        p = self.problem
        key = self.allowed.asks[j].tobytes()
        for sums in (self.whole, self.polite) if p.job_polite[j] else (self.whole,):
            out = sums.setdefault(key, np.zeros_like(p.queue_used))
            for t, count in pods.items():
                out[p.job_queue[j]] += sign * count * p.request[p.set_shape[t]]

    def _minimum(self, j: int, placed: Ints) -> Counter[int]:
        """The pods of a placed job that are its minimum: the roles' needs first, then the task order."""
        p, out, missing = self.problem, Counter[int](), int(self.rules.need[j])
        for o in np.flatnonzero(p.role_job == j).tolist():
            wanted = int(self.rules.role_need[o])
            for t in np.flatnonzero(p.set_role == o).tolist():
                take = min(wanted, int(placed[t]))
                out[t] += take
                wanted -= take
                missing -= take
        for t in np.flatnonzero(p.set_job == j).tolist():
            take = max(0, min(missing, int(placed[t]) - out[t]))
            out[t] += take
            missing -= take
        return out

    def _holds(self, key: bytes | None) -> bool:
        """C15 for all jobs, or for those of one set of resources with what queues lend that are over in one of them."""
        nothing = np.zeros_like(self.gave)
        lends = np.ones(len(self.gave), bool)
        if key is None:
            whole, polite = sum(self.whole.values(), nothing), sum(self.polite.values(), nothing)
        else:
            lends = (self.allowed.over & np.frombuffer(key, bool)).any(axis=1)
            whole, polite = self.whole.get(key, nothing), self.polite.get(key, nothing)
        need = np.maximum(np.maximum(0, whole - self.gave), polite).sum(axis=0)
        idle = self.allowed.idle
        return bool((need <= idle + self.lent[lends].sum(axis=0)).all() and (polite.sum(axis=0) <= idle).all())

"""A plan on real nodes that comes near to one that knows no nodes: which jobs start, and who had better go for them.

Jobs start in order, each pod on the tightest node that takes it, or on the one that is cleared with most of those who
go anyway. Where that does not suffice others of lower rank go, under the same rights, or the job is left out.
"""

from __future__ import annotations

import numpy as np

from solver_sched.greedy.evict import Evicting
from solver_sched.greedy.fill import greedy_plan
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, PREEMPT, RECLAIM, Ints, Plan, Problem
from solver_sched.rights import rights


def towards(problem: Problem, rules: Rules, jobs: Ints, going: Ints, gone: Ints) -> Plan:
    """`jobs`: rows of those that start, in the order in which they find nodes. `going` (H,): pods of each holder that
    should go. `gone` (.., 3): set, pods and cause of those who go before anybody starts. Nobody asks whether there is a
    right to that: where no job starts that may take from them, the plan breaks C18.
    """
    plan = _Towards(problem, rules, going)
    for s, pods, cause in gone.tolist():
        plan._evict(s, pods, cause)
    return plan.run_through(jobs)


class _Towards(Evicting):
    def __init__(self, problem: Problem, rules: Rules, going: Ints) -> None:
        super().__init__(problem, rules, EMPTY_PLAN, rights(problem, rules))
        v = problem.victims
        self.tries = len(problem.node_free)
        self.left_to_go = going.copy()
        self.wanted, self.ending = (going > 0)[v.holder], going >= v.running
        self.kept = np.zeros(len(going), bool)
        for sets in self.on_node.values():
            sets.sort(key=lambda s: not self.wanted[s])
        self.largest = np.maximum(problem.node_alloc.max(axis=0, initial=0), 1)

    def run_through(self, jobs: Ints) -> Plan:
        p, v, rules = self.problem, self.problem.victims, self.rules
        for j in jobs.tolist():
            if j in self.touched:
                continue
            (own, outright), (others, reclaimed) = self._by_preempt(j), self._by_reclaim(j)
            mine = v.queue == p.job_queue[j]
            # what stays of its rank and above counts before its start: of these no more go than should
            self.kept = rules.surplus_rank <= rules.rank[j]
            below = rules.holder_rank > rules.rank[j]
            self.why = np.where(mine[v.holder], PREEMPT, RECLAIM)
            self.may = np.where(mine[v.holder], own, others) & (self.wanted | (below | ~self.kept)[v.holder])
            self.ends = np.where(mine, outright, reclaimed) & (below | self.ending)
            if self.start(j):
                self.started.add(j)
        return greedy_plan(p, rules, self.plan())

    def _take(self, s: int) -> bool:
        h = int(self.problem.victims.holder[s])
        if self.kept[h] and self.left_to_go[h] <= 0:
            return False
        return super()._take(s)

    def _evict(self, s: int, pods: int, cause: int) -> None:
        self.left_to_go[self.problem.victims.holder[s]] -= pods
        super()._evict(s, pods, cause)

    def _idle(self, shape: int) -> int:
        """The tightest node that takes the pod as it is, -1 if none does; of all nodes one where least is idle of what
        is contended and the pod does not ask for.
        """
        asked = self.problem.request[shape] > 0
        fits = (self.free[:, asked] >= self.problem.request[shape, asked]).all(axis=1)
        fits &= ~self.rules.forbidden[shape, self.problem.node_kind] & ~self.loads.shut(shape)
        if not fits.any():
            return -1
        room, spared = np.maximum(self.free, 0) / self.largest, self.rules.contended & ~asked
        if spared.any():
            idle = room[:, spared].sum(axis=1)
            fits &= idle == idle[fits].min()
        return int(np.where(fits, room[:, asked].sum(axis=1), np.inf).argmin())

    def _nodes(self, shape: int, order: Ints) -> Ints:
        """Where those who should go make room enough, the tightest first; then where they come nearest to it."""
        asked = self.problem.request[shape] > 0
        room = (np.maximum(self.free, 0) + self._potential(self.wanted))[order][:, asked]
        times = room / self.problem.request[shape, asked]
        nearest: Ints = order[np.lexsort((times.sum(axis=1), -np.minimum(times, 1.0).sum(axis=1)))]
        return nearest

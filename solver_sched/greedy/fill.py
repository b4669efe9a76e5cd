"""Place what fits: queue by share, job by tiers, task by task, node by score, as kube-batch and Volcano place.

It reads the same rules as the model and never the solver: the bar that a solved plan must reach, its hint, and the
answer when the budget ends. A gang that does not reach its minimum is taken back whole; beyond its minimum a job gets
one pod a turn (Volcano pkg/scheduler/actions/allocate/allocate.go). Deserved shares order the queues; they are no
ceiling here either.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np

from solver_sched.greedy.balance import Balance
from solver_sched.loads import Loads, placement_score
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, NO_LIMIT, Plan, Problem

NO_SHARE = Fraction(0)


def greedy_plan(problem: Problem, rules: Rules, begun: Plan = EMPTY_PLAN, rank: int | None = None) -> Plan:
    """Place what fits, in order. `begun`: a feasible plan that is kept and added to; `rank`: only jobs of this rank
    and higher.
    """
    return Greedy(problem, rules, begun).run(rank)


def start(problem: Problem, rules: Rules, j: int) -> Plan:
    """The missing minimum of one job with nothing else placed; empty where it does not fit."""
    greedy = Greedy(problem, rules, EMPTY_PLAN)
    greedy.start(j)
    return greedy.plan()


def settle(problem: Problem, rules: Rules, plan: Plan) -> Plan:
    """The same pods on the nodes that score best, if that places them all and scores higher; else the plan itself."""
    problem = problem.after(plan)
    loads = Loads(problem, rules)
    left = plan.placed(problem)
    table: dict[tuple[int, int], int] = defaultdict(int)
    size = problem.request[problem.set_shape] / np.maximum(problem.total, 1)
    for t in sorted(np.flatnonzero(left).tolist(), key=lambda t: (-float(size[t].max()), t)):
        shape = int(problem.set_shape[t])
        pods = int(left[t])
        nodes = loads.fill(shape, pods)
        if len(nodes) < pods:
            return plan
        for node in nodes:
            table[t, node] += 1
    other = _plan(table, plan)
    if all(np.array_equal(*pair) for pair in ((other.pod_set, plan.pod_set), (other.node, plan.node))) and (
        np.array_equal(other.count, plan.count)
    ):
        return plan
    return other if placement_score(problem, rules, other) > placement_score(problem, rules, plan) else plan


def _plan(table: dict[tuple[int, int], int], begun: Plan) -> Plan:
    """The placements of `table` with the victims of `begun`."""
    rows = np.array([(t, node, pods) for (t, node), pods in sorted(table.items()) if pods], np.int64).reshape(-1, 3)
    return replace(begun, pod_set=rows[:, 0], node=rows[:, 1], count=rows[:, 2])


class Greedy:
    """A plan in the making. Of `begun` the victims are gone: their jobs place nothing (formulation.md C16), and what
    starts beside them keeps C15.
    """

    batches = True
    """Whether nothing but room and ceilings decides where a pod goes."""

    def __init__(self, problem: Problem, rules: Rules, begun: Plan) -> None:
        self.problem, self.rules, self.begun = problem, rules, begun
        after = problem.after(begun)
        self.loads = Loads(after, rules)
        self.used = after.queue_used.copy()
        self.balance = Balance(problem, rules, begun) if len(begun.victim) else None
        self.touched = {int(problem.victims.job[problem.victims.holder[s]]) for s in begun.victim.tolist()}
        self.left: list[int] = problem.set_count.tolist()
        self.shape: list[int] = problem.set_shape.tolist()
        self.queue: list[int] = problem.job_queue[problem.set_job].tolist()
        self.table: dict[tuple[int, int], int] = defaultdict(int)
        self.short: dict[int, int] = {}
        self.new = np.zeros_like(problem.queue_used)
        self.held = rules.start_value.tolist()
        self.contended = rules.contended.tolist()
        self.entitling = any(self.contended)
        self.ceilings = [one for one in rules.ceilings if (one.room < NO_LIMIT).any() or one.guarantee.any()]
        self.sets: dict[int, list[int]] = defaultdict(list)
        for t, j in enumerate(problem.set_job.tolist()):
            self.sets[j].append(t)
        self.roles: dict[int, list[int]] = defaultdict(list)
        for o, j in enumerate(problem.role_job.tolist()):
            self.roles[j].append(o)
        self.started = {int(j) for j in np.flatnonzero(rules.need == 0)}
        for t, node, pods in zip(begun.pod_set.tolist(), begun.node.tolist(), begun.count.tolist(), strict=True):
            j, shape = int(problem.set_job[t]), int(problem.set_shape[t])
            self.loads.move(shape, node, pods)
            self.new[problem.job_queue[j]] += pods * problem.request[shape]
            self.left[t] -= pods
            self.table[t, node] += pods
            self.started.add(j)

    def run(self, rank: int | None) -> Plan:
        p = self.problem
        rows = [
            j
            for j in self.sets
            if self.rules.demand.starts[j] and j not in self.touched and (rank is None or self.rules.rank[j] <= rank)
        ]
        # gangs that broke just now, before all shares
        broken = [j for j in rows if self.rules.rank[j] < self.rules.first_claims and j not in self.started]
        for j in sorted(broken, key=lambda j: self._key(j, started=False)):
            if self.start(j):
                self.started.add(j)
        waiting: dict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for j in rows:
            waiting[int(p.job_queue[j])].append(self._key(j, started=j in self.started))
        for jobs in waiting.values():
            heapq.heapify(jobs)
        order = [(self._share(q), q) for q in waiting]
        heapq.heapify(order)
        while order:
            share, q = heapq.heappop(order)
            jobs = waiting[q]
            if not jobs:
                continue
            key = heapq.heappop(jobs)
            j = key[4]
            placed = self._grow(j) if j in self.started else self.start(j)
            if placed:
                self.started.add(j)
            if placed and any(self.left[t] for t in self.sets[j]):
                heapq.heappush(jobs, self._key(j, started=True))
            heapq.heappush(order, (self._share(q) if placed else share, q))
        return self.plan()

    def plan(self) -> Plan:
        return _plan(self.table, self.begun)

    def _key(self, j: int, *, started: bool) -> tuple[int, int, int, int, int]:
        """Rank, starting before growing, smallest share first among growing, oldest, row."""
        p = self.problem
        grown = self.held[j] if started else 0
        return (int(self.rules.rank[j]), int(started), grown, int(p.job_created[j]), j)

    def _share(self, q: int) -> Fraction:
        """Largest use / deserved over entitled resources; 0 without entitlement.

        Volcano pkg/scheduler/plugins/proportion/proportion.go, updateShare.
        """
        deserved = self.rules.deserved
        if deserved is None or not self.entitling:
            return NO_SHARE
        used = (self.used[q] + self.new[q]).tolist()
        part, whole, over, entitled = 0, 1, False, False
        for r, due in enumerate(deserved[q].tolist()):
            if not self.contended[r]:
                continue
            entitled |= due > 0
            over |= used[r] > 0 >= due
            if due > 0 and used[r] * whole > part * due:
                part, whole = used[r], due
        return Fraction(2) if over and not entitled else Fraction(part, whole)

    def _allowed(self, q: int, shape: int) -> bool:
        """Ceilings of the queue with one more pod (C7, C8)."""
        if not self.ceilings:
            return True
        p, request = self.problem, self.problem.request[shape]
        for ceiling in self.ceilings:
            limited = (request > 0) & (ceiling.room[q] < NO_LIMIT)
            if limited.any():
                # what has gone makes room, once the queue is back below its ceiling
                back = np.maximum(p.queue_used[q] - p.queue_capability[q], 0)
                room = np.maximum(ceiling.room[q] + p.queue_used[q] - self.used[q] - back, 0)
                if ((self.new[q] + request > room) & limited).any():
                    return False
            if ceiling.guarantee.any():
                now = self.used + self.new
                now[q] += request
                before = np.maximum(self.used, ceiling.guarantee).sum(axis=0)
                after = np.maximum(now, ceiling.guarantee).sum(axis=0)
                over = after > np.maximum(p.total - p.foreign, before)
                if (over & (request > 0) & (ceiling.guarantee.sum(axis=0) > 0)).any():
                    return False
        return True

    def _place(self, t: int) -> int:
        """One pod of the set on the best node, or -1."""
        if not self._allowed(self.queue[t], self.shape[t]):
            return -1
        node = self._idle(self.shape[t])
        if node >= 0:
            self._move(t, node, 1)
        return node

    def _several(self, t: int, most: int) -> list[int]:
        """Up to so many pods of the set, one after the other."""
        nodes: list[int] = []
        if self.batches and not self.ceilings:
            nodes = self.loads.fill(self.shape[t], most) if most > 0 else []
            self.new[self.queue[t]] += len(nodes) * self.problem.request[self.shape[t]]
            self.left[t] -= len(nodes)
            for node in nodes:
                self.table[t, node] += 1
            return nodes
        while len(nodes) < most and (node := self._place(t)) >= 0:
            nodes.append(node)
        return nodes

    def _idle(self, shape: int) -> int:
        """The node for one more pod as it is, -1 if none takes it."""
        return self.loads.best(shape)

    def _undo(self, t: int, node: int) -> None:
        self._move(t, node, -1)

    def _move(self, t: int, node: int, pods: int) -> None:
        shape = self.shape[t]
        self.loads.move(shape, node, pods)
        self.new[self.queue[t]] += pods * self.problem.request[shape]
        self.left[t] -= pods
        self.table[t, node] += pods

    def start(self, j: int) -> bool:
        """The whole minimum: the roles' needs first, then whatever sets still place, or nothing."""
        if self._in_vain(j):
            return False
        done: list[tuple[int, int]] = []
        missing = int(self.rules.need[j])
        complete = True
        for o in self.roles[j]:
            wanted = int(self.rules.role_need[o])
            for t in self.sets[j]:
                while wanted and self.problem.set_role[t] == o and self.left[t]:
                    node = self._place(t)
                    if node < 0:
                        break
                    done.append((t, node))
                    wanted -= 1
                    missing -= 1
            complete &= wanted == 0
        for t in self.sets[j] if complete else ():
            nodes = self._several(t, min(missing, self.left[t]))
            missing -= len(nodes)
            done += [(t, node) for node in nodes]
        if complete and missing <= 0 and (self.balance is None or self.balance.start(j, [t for t, _ in done])):
            return True
        for t, node in reversed(done):
            self._undo(t, node)
        if self._plain(j):
            self.short[self.shape[self.sets[j][0]]] = int(self.rules.need[j])
        return False

    def _plain(self, j: int) -> bool:
        """Whether the job starts exactly where there is room for enough pods of one shape."""
        if not self.batches or self.balance is not None or self.ceilings or self.roles[j] or len(self.sets[j]) != 1:
            return False
        t = self.sets[j][0]
        return self.left[t] >= self.rules.need[j] and not self.loads.coupled(self.shape[t])

    def _in_vain(self, j: int) -> bool:
        """Whether a job that asked for no more of the same has found no room: there is only ever less of it."""
        most = self.short.get(self.shape[self.sets[j][0]]) if self.short else None
        return most is not None and self._plain(j) and bool(self.rules.need[j] >= most)

    def _grow(self, j: int) -> bool:
        """One more pod of a running job, in task order."""
        for t in self.sets[j]:
            if self.left[t] and self._place(t) >= 0:
                self.held[j] += int(self.rules.pod_value[t])
                return True
        return False

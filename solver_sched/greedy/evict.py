"""Preempt and reclaim in Volcano's order, under the rights of formulation.md 8.

Starving jobs one by one, their tasks one by one, on the best node that can be cleared: its victims go from the lowest
up until the task fits (Volcano pkg/scheduler/actions/preempt/preempt.go and reclaim/reclaim.go). Other than there a
gang goes whole, on all its nodes, or down to its minimum, and a job that does not reach its own minimum is taken back
with its evictions. A job takes from its own queue in `preempt` and from others in `reclaim`, never both.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solver_sched.greedy.balance import Balance
from solver_sched.greedy.fill import Greedy, greedy_plan
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import CAUSES, PREEMPT, RECLAIM, Bools, Ints, Plan, Problem
from solver_sched.rights import Rights, rights

TRIES = 64
"""Nodes that are tried for one pod; Volcano too looks at a part of a large cluster only."""


def evicting_plan(problem: Problem, rules: Rules, begun: Plan) -> Plan:
    """`begun`, a plan that evicts nobody, and the starving jobs that start because others give way; `begun` itself
    where none does.
    """
    causes = list(dict.fromkeys(CAUSES[action] for action in rules.policy.actions if action in CAUSES))
    if not causes or not len(problem.victims.holder):
        return begun
    allowed = rights(problem, rules, begun)
    if not allowed.claimants.any():
        return begun
    greedy = Evicting(problem, rules, begun, allowed)
    for cause in causes:
        greedy.take_all(cause)
    plan = greedy.plan()
    return greedy_plan(problem, rules, plan) if len(plan.victim) else begun


class Evicting(Greedy):
    """A plan in the making in which others give way. `tries`: nodes that are looked at for one pod."""

    tries = TRIES
    batches = False

    def __init__(self, problem: Problem, rules: Rules, begun: Plan, allowed: Rights) -> None:
        super().__init__(problem, rules, begun)
        v = problem.victims
        self.free = problem.after(begun).node_free - begun.on_nodes(problem).T @ problem.request
        self.allowed = allowed
        self.balance = Balance(problem, rules, begun, self.allowed)
        self.out = {cause: np.zeros(len(v.holder), np.int64) for cause in (PREEMPT, RECLAIM)}
        self.surplus, self.role_surplus = self.allowed.surplus.copy(), self.allowed.role_surplus.copy()
        self.budget, self.room = np.maximum(v.allowed, 0), self.allowed.room.copy()
        # a job that places pods loses none (C16); a remainder that may be completed is left alone
        placed = begun.of_jobs(problem) > 0
        spared = np.append(placed, False)[v.job] | (v.broken & np.append(rules.demand.starts, False)[v.job])
        self.open = self.allowed.open & ~spared[v.holder]
        order = np.lexsort(
            (
                v.seconds,
                v.pod_priority,
                self.allowed.held[v.holder],
                ~v.broken[v.holder],
                problem.queue_priority[v.queue[v.holder]],
            )
        )
        self.on_node: dict[int, list[int]] = defaultdict(list)
        self.of_holder: dict[int, list[int]] = defaultdict(list)
        for s in order.tolist():
            self.on_node[int(v.node[s])].append(s)
            self.of_holder[int(v.holder[s])].append(s)
        self.log: list[tuple[int, int, int]] = []
        self.order: dict[int, Ints] = {}
        # of the job at hand: from whom it may take (V,), and why, and who may end whole (H,)
        self.why = np.full(len(v.holder), PREEMPT)
        self.may = np.zeros(len(v.holder), bool)
        self.ends = np.zeros(len(v.queue), bool)

    def plan(self) -> Plan:
        rows = [(s, int(gone[s]), cause) for cause, gone in self.out.items() for s in np.flatnonzero(gone).tolist()]
        table = np.array(rows, np.int64).reshape(-1, 3)
        return replace(super().plan(), victim=table[:, 0], out=table[:, 1], cause=table[:, 2])

    def take_all(self, cause: int) -> None:
        """One action: every claimant once, queue by share, job by rank and age."""
        self.why[:] = cause
        failed: set[tuple[object, ...]] = set()
        for j in self._turns():
            alike = self._alike(j)
            if alike in failed or j in self.touched or not self._claim(j, cause):
                continue
            if self.start(j):
                self.started.add(j)
                failed.clear()
            else:
                failed.add(alike)

    def _turns(self) -> Iterator[int]:
        waiting: dict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for j in np.flatnonzero(self.allowed.claimants).tolist():
            if j not in self.started:
                waiting[int(self.problem.job_queue[j])].append(self._key(j, started=False))
        order = [(self._share(q), q) for q in waiting]
        heapq.heapify(order)
        for jobs in waiting.values():
            heapq.heapify(jobs)
        while order:
            _, q = heapq.heappop(order)
            yield heapq.heappop(waiting[q])[4]
            if waiting[q]:
                heapq.heappush(order, (self._share(q), q))

    def _alike(self, j: int) -> tuple[object, ...]:
        """Jobs that agree in this fail alike as long as nobody else has started."""
        p = self.problem
        sets = [(int(p.set_shape[t]), int(p.set_count[t]), int(p.set_role[t]) >= 0) for t in self.sets[j]]
        return int(p.job_queue[j]), int(self.allowed.key[j]), int(self.rules.need[j]), *sets, *p.job_held[j].tolist()

    def _claim(self, j: int, cause: int) -> bool:
        """Whom the job may take from (`may`, `ends`); False = nobody, or its share could not hold it."""
        self.may, self.ends = self._by_preempt(j) if cause == PREEMPT else self._by_reclaim(j)
        return bool(self.may.any())

    def _by_preempt(self, j: int) -> tuple[Bools, Bools]:
        p, v, allowed, rules = self.problem, self.problem.victims, self.allowed, self.rules
        higher = v.broken | (allowed.key[j] > allowed.held)
        same = (allowed.key[j] == allowed.held) & ~v.broken & rules.equals
        holders = (v.queue == p.job_queue[j]) & (higher | same) & (v.job != j)
        return self.open & allowed.preempt & holders[v.holder], higher & allowed.ends_by_preempt

    def _by_reclaim(self, j: int) -> tuple[Bools, Bools]:
        p, v, allowed, rules = self.problem, self.problem.victims, self.allowed, self.rules
        q, nobody = int(p.job_queue[j]), np.zeros_like(self.open)
        if rules.deserved is None:
            return nobody, allowed.ends_by_reclaim
        ask = sum((rules.canonical[t] * p.request[p.set_shape[t]] for t in self.sets[j]), p.job_held[j] * 0)
        counted = rules.contended & (ask + p.job_held[j] > 0)
        if ((self.used[q] + self.new[q] + ask > rules.deserved[q]) & counted).any():
            return nobody, allowed.ends_by_reclaim
        lends = p.queue_reclaimable & (allowed.over & allowed.asks[j]).any(axis=1)
        lends[q] = False
        return self.open & allowed.reclaim & lends[v.queue[v.holder]], allowed.ends_by_reclaim.copy()

    def start(self, j: int) -> bool:
        mark = len(self.log)
        if super().start(j):
            return True
        self._give_back(mark)
        return False

    def _move(self, t: int, node: int, pods: int) -> None:
        super()._move(t, node, pods)
        self.free[node] -= pods * self.problem.request[self.shape[t]]

    def _place(self, t: int) -> int:
        node = super()._place(t)
        return node if node >= 0 else self._make_room(t)

    def _make_room(self, t: int) -> int:
        """One pod of the set on the first node that can be cleared for it, or -1."""
        p = self.problem
        shape = int(p.set_shape[t])
        request = p.request[shape]
        if shape not in self.order:
            self.order[shape] = self.loads.ranking(shape)
        order = self.order[shape]
        asked = request > 0
        could = ((self.free + self._potential())[:, asked] >= request[asked]).all(axis=1) & ~self.loads.shut(shape)
        for node in self._nodes(shape, order[could[order]])[: self.tries].tolist():
            if self._clear(t, node):
                self._move(t, node, 1)
                return int(node)
        return -1

    def _nodes(self, _: int, order: Ints) -> Ints:
        """Nodes on which room could be made for a pod of a shape, by score: in the order in which they are tried."""
        return order

    def _potential(self, among: Bools | None = None) -> Ints:
        """(N, R) at most this much room can be made, if only some go."""
        v = self.problem.victims
        left = v.count - self.out[PREEMPT] - self.out[RECLAIM]
        may = self.may if among is None else self.may & among
        pods = np.where(self.ends[v.holder], left, np.minimum(left, np.maximum(self.surplus, 0)[v.holder])) * may
        rows = np.flatnonzero(pods)
        out = np.zeros_like(self.free)
        for r in range(out.shape[1]):
            freed = np.bincount(v.node[rows], weights=pods[rows] * v.request[rows, r], minlength=len(out))
            out[:, r] = freed.astype(np.int64)
        return out

    def _clear(self, t: int, node: int) -> bool:
        """Victims of the node go, lowest first, until one pod of the set fits; if it never does, nobody has gone."""
        mark = len(self.log)
        for s in self.on_node[node]:
            if self.may[s]:
                while self._helps(s, t, node) and self._take(s):
                    pass
        if self._lacks(t, node).any() or not self._may_add(t):
            self._give_back(mark)
            return False
        return True

    def _lacks(self, t: int, node: int) -> Bools:
        request = self.problem.request[self.problem.set_shape[t]]
        lacks: Bools = (request > 0) & (self.free[node] < request)
        return lacks

    def _may_add(self, t: int) -> bool:
        return self._allowed(int(self.problem.job_queue[self.problem.set_job[t]]), int(self.problem.set_shape[t]))

    def _helps(self, s: int, t: int, node: int) -> bool:
        """A pod of the victim set makes room on the node, or under the ceiling of the queue."""
        p, v = self.problem, self.problem.victims
        held = v.request[s] > 0
        if (held & self._lacks(t, node)).any():
            return True
        same = v.queue[v.holder[s]] == p.job_queue[p.set_job[t]]
        return bool(same and (held & (p.request[p.set_shape[t]] > 0)).any() and not self._may_add(t))

    def _take(self, s: int) -> bool:
        """One pod of the set if its gang runs more than its minimum, else the whole gang where that may end."""
        v, h = self.problem.victims, int(self.problem.victims.holder[s])
        if v.count[s] <= self.out[PREEMPT][s] + self.out[RECLAIM][s]:
            return False
        if self.surplus[h] > 0 and (v.role[s] < 0 or self.role_surplus[v.role[s]] > 0):
            if not self._within_limits([(s, 1)]):
                return False
            self._evict(s, 1, int(self.why[s]))
            return True
        cause = int(self.why[s])
        other = self.out[RECLAIM if cause == PREEMPT else PREEMPT]
        rest = [(i, int(v.count[i] - self.out[cause][i])) for i in self.of_holder[h]]
        if not self.ends[h] or any(other[i] for i, _ in rest) or not self._within_limits(rest):
            self.ends[h] = False
            return False
        for i, pods in rest:
            if pods:
                self._evict(i, pods, cause)
        return True

    def _within_limits(self, going: list[tuple[int, int]]) -> bool:
        """Disruption budgets, and what reclaim may take from the queue (C13, C14)."""
        v = self.problem.victims
        rows, pods = (np.array(column, np.int64) for column in zip(*going, strict=True))
        if (pods @ v.member[rows] > self.budget).any():
            return False
        q = int(v.queue[v.holder[rows[0]]])
        return self.why[rows[0]] == PREEMPT or bool((pods @ v.request[rows] <= self.room[q]).all())

    def _evict(self, s: int, pods: int, cause: int) -> None:
        """Pods of a set go; negative: they stay after all."""
        v = self.problem.victims
        h, node, freed = int(v.holder[s]), int(v.node[s]), pods * v.request[s]
        self.out[cause][s] += pods
        self.surplus[h] -= pods
        if v.role[s] >= 0:
            self.role_surplus[v.role[s]] -= pods
        self.budget -= pods * v.member[s]
        if cause == RECLAIM:
            self.room[v.queue[h]] -= freed
        self.used[v.queue[h]] -= freed
        self.free[node] += freed
        self.loads.take(node, (-freed).tolist())
        assert self.balance is not None
        self.balance.evict(s, pods, cause)
        if v.job[h] >= 0:
            lost = any(gone[self.of_holder[h]].any() for gone in self.out.values())
            (self.touched.add if lost else self.touched.discard)(int(v.job[h]))
        if pods > 0:
            self.log.append((s, pods, cause))

    def _give_back(self, mark: int) -> None:
        """Nobody has gone since the log was so long."""
        while len(self.log) > mark:
            s, pods, cause = self.log.pop()
            self._evict(s, -pods, cause)

"""Which blocked jobs get a reservation, from when, and on which nodes (formulation.md 10; EASY backfill).

A job that waits for room which running pods hold is given the nodes that will be free first. Until then they serve
whatever ends in time, or fits beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from solver_sched.greedy import start
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import ATTACH_PREFIX, RESERVED_PREFIX, Bools, Index, Ints, Plan, Problem
from solver_sched.problem.census import Census
from solver_sched.problem.domain_rules import touched
from solver_sched.problem.reservations import Reservation
from solver_sched.problem.runtimes import NEVER
from solver_sched.problem.vectors import Wide

DEPTH = 32
"""Blocked jobs that are looked at in one cycle, as Flux's queue-depth; a search costs some twelve first fits."""


def reservations(
    census: Census, problem: Problem, index: Index, rules: Rules, plan: Plan, most: int
) -> tuple[Reservation, ...]:
    """Reservations for the first `most` blocked jobs that have a time. `plan`: greedy's, which says who is blocked."""
    promised = _promised(problem, index) if most else frozenset()
    blocked = _blocked(problem, rules, plan, promised)[:DEPTH] if most else []
    if not blocked or not (promised or census.times.known(census.snapshot.pods)):
        return ()
    calendar = _Calendar(census, problem, index, rules, plan)
    out: list[Reservation] = []
    for j in blocked:
        if len(out) == most:
            break
        one = calendar.reserve(j, promised=j in promised)
        if one is not None:
            out.append(one)
    return tuple(out)


def respected(census: Census, problem: Problem, index: Index, plan: Plan, reserved: Sequence[Reservation]) -> bool:
    """Whether a plan that was made without the reservations leaves the room that they keep (C17)."""
    ends, rows = _ends(census, problem, index, plan), {name: n for n, name in enumerate(index.nodes)}
    jobs = problem.set_job[plan.pod_set]
    asked = plan.count[:, None] * problem.request[problem.set_shape[plan.pod_set]]
    for one in reserved:
        unbound = [j for j, key in enumerate(index.jobs) if key == one.job or key in one.ahead]
        late = (ends > one.at) & ~np.isin(jobs, unbound)
        for node, left in one.left.items() if late.any() else ():
            there = asked[late & (plan.node == rows[node])].sum(axis=0)
            if any(there[index.resources.index(name)] > amount for name, amount in left.items()):
                return False
    return True


def _ends(census: Census, problem: Problem, index: Index, plan: Plan) -> Ints:
    """When the last pod of each row of the plan ends, in seconds since the epoch."""
    t = plan.pod_set.tolist()
    lasts: dict[int, int] = {}
    for i in set(t):
        runs = [(census.times.of(pod), keys) for pod, keys in census.bunch(index.jobs[problem.set_job[i]]).runs]
        last, first = max(seconds for seconds, _ in runs), min(seconds for seconds, _ in runs)
        if last > first:
            of_set = set(index.set_pods[i])
            last = max(seconds for seconds, keys in runs if not of_set.isdisjoint(keys))
        lasts[i] = last
    return np.minimum(problem.now + np.array([lasts[i] for i in t], np.int64), NEVER)


def _promised(problem: Problem, index: Index) -> frozenset[int]:
    """Jobs with a nominated pod."""
    of_set = ((t, any(key in index.nominated for key in keys)) for t, keys in enumerate(index.set_pods))
    return (
        frozenset(int(problem.set_job[t]) for t, nominated in of_set if nominated) if index.nominated else frozenset()
    )


def _blocked(problem: Problem, rules: Rules, plan: Plan, promised: frozenset[int]) -> list[int]:
    """Jobs that can start and do not in `plan`, by rank, then age; promised ones too: the solver may pass them by."""
    left = plan.of_jobs(problem) == 0
    left[list(promised)] = True
    rows = np.flatnonzero((rules.need > 0) & rules.demand.starts & left).tolist()
    return sorted(rows, key=lambda j: (int(rules.rank[j]), int(problem.job_created[j]), j))


class _Calendar:
    """What holds room until when: running pods, greedy's pods, and the reservations made so far. Axis V: the first two,
    in this order; `job` is -1 for running pods.
    """

    def __init__(self, census: Census, problem: Problem, index: Index, rules: Rules, plan: Plan) -> None:
        self.problem, self.index, self.rules, self.shared = problem, index, rules, rules.shared
        bunches = [*census.bunches, census.others]
        wide = Wide(census.names, {name: r for r, name in enumerate(index.resources)})
        on_nodes, running = np.concatenate([bunch.places for bunch in bunches], axis=1)
        held = wide.of(census.vectors.all[running])
        t = plan.pod_set
        self.end = np.concatenate([census.ends(), _ends(census, problem, index, plan)])
        self.node = np.concatenate([on_nodes, plan.node])
        self.request = np.concatenate([held, plan.count[:, None] * problem.request[problem.set_shape[t]]])
        self.queue = np.concatenate([_queues_of(census, index), problem.job_queue[problem.set_job[t]]])
        self.job = np.concatenate([np.full(len(running), -1, np.int64), problem.set_job[t]])
        self._sets: dict[int, list[int]] = defaultdict(list)
        for number, job in enumerate(problem.set_job.tolist()):
            self._sets[job].append(number)
        self.kept = np.zeros_like(problem.node_free)
        self.kept_of = np.zeros_like(problem.queue_used)
        self.ask = np.zeros_like(problem.job_held)
        np.add.at(self.ask, problem.set_job, rules.canonical[:, None] * problem.request[problem.set_shape])
        # attachments and room that is kept by hand do not come free by themselves
        fixed = [name.startswith((ATTACH_PREFIX, RESERVED_PREFIX)) for name in problem.resources]
        self.fixed = np.array(fixed, bool)
        self.own = np.array([not name.startswith(RESERVED_PREFIX) for name in problem.resources], bool)

    def reserve(self, j: int, *, promised: bool) -> Reservation | None:
        """The reservation of a blocked job, None if there is no time for it."""
        ahead = self._ahead(j)
        if promised:
            ahead &= self.rules.need > 0  # others may have given way for this start: growth is no reason to go
        there = (self.job < 0) | ahead[self.job]
        now = self.problem.now
        times = np.unique(self.end[there & (self.end > now) & (self.end < NEVER)]).tolist()
        plan, room = self._fit(j, there, now)
        if plan is not None:
            return self._made(j, ahead, room, now, plan) if promised else None
        if not times or not self._fits(j, there, times[-1]):
            return None
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if self._fits(j, there, times[middle]):
                high = middle
            else:
                low = middle + 1
        plan, room = self._fit(j, there, times[high])
        return None if plan is None else self._made(j, ahead, room, times[high], plan)

    def _ahead(self, j: int) -> Bools:
        """(J,) jobs that come before `j`: room that they may use is not kept for it."""
        p, rules = self.problem, self.rules
        older = (rules.rank == rules.rank[j]) & (p.job_created < p.job_created[j]) & (rules.need > 0)
        # gangs that broke just now come before shares
        may = self._within_share | (rules.rank < rules.first_claims)
        ahead: Bools = ((rules.rank < rules.rank[j]) | older) & may
        return ahead

    @cached_property
    def _within_share(self) -> Bools:
        """(J,) whether the start of the job, or its next pod, is inside its queue's share now."""
        p, deserved = self.problem, self.rules.deserved
        if not self.shared or deserved is None:
            return np.ones(len(p.job_min), bool)
        ask = self.ask.copy()
        for t in reversed(range(len(p.set_job))):
            if self.rules.need[p.set_job[t]] == 0:
                ask[p.set_job[t]] = p.request[p.set_shape[t]]
        fits = p.queue_used[p.job_queue] + ask <= deserved[p.job_queue]
        within: Bools = (fits | ~self.rules.contended | (ask == 0)).all(axis=1)
        return within

    def _room(self, there: Bools, t: int) -> Ints:
        """(N, R) room at time `t`."""
        stays = there & (self.end > t)
        held = self.kept.copy()
        # on one axis numpy adds much faster
        cells = self.node[stays, None] * held.shape[1] + np.arange(held.shape[1])
        np.add.at(held.reshape(-1), cells.reshape(-1), self.request[stays].reshape(-1))
        return np.where(self.fixed, self.problem.node_free - self.kept, self.problem.node_alloc - held)

    def _fit(self, j: int, there: Bools, t: int) -> tuple[Plan | None, Ints]:
        """The minimum of the job on the nodes as they are at time `t`, None if it fits not, or not into its share; and
        the room (N, R) that there is then.
        """
        room = self._room(there, t)
        if not self._in_share(j, there, t) or self._most(j, room) < self.rules.need[j]:
            return None, room
        plan = start(replace(self.problem, node_free=room), self.rules, j)
        return plan if len(plan.count) else None, room

    def _fits(self, j: int, there: Bools, t: int) -> bool:
        """Whether there is such a plan. Pods of one shape that no rule couples are only counted: what else may keep
        them out, ceilings, does so at any time.
        """
        if self._counted(j):
            return self._in_share(j, there, t) and self._most(j, self._room(there, t)) >= int(self.rules.need[j])
        return self._fit(j, there, t)[0] is not None

    def _in_share(self, j: int, there: Bools, t: int) -> bool:
        deserved, q = self.rules.deserved, int(self.problem.job_queue[j])
        if not self.shared or deserved is None:
            return True
        stays = there & (self.end > t) & (self.queue == q)
        use = self.request[stays].sum(axis=0) + self.kept_of[q] + self.ask[j]
        return not ((use > deserved[q]) & self.rules.contended & (self.ask[j] > 0)).any()

    def _counted(self, j: int) -> bool:
        """Whether the job's minimum fits exactly where enough of its pods fit, each node looked at alone."""
        p = self.problem
        (first, *others) = self._sets[j]
        coupled = any(int(p.set_shape[first]) in touched(rule).tolist() for rule in self.rules.domain_rules)
        return not others and not coupled and p.set_role[first] < 0

    def _most(self, j: int, room: Ints) -> int:
        """At most so many pods of the job fit: as if no two of its sets met on a node."""
        p, possible = self.problem, 0
        for t in self._sets[j]:
            shape = int(p.set_shape[t])
            asked = np.flatnonzero(p.request[shape])
            fits = (room[:, asked] // p.request[shape][asked]).min(axis=1, initial=2**31).clip(min=0)
            fits[self.rules.forbidden[shape, p.node_kind]] = 0
            possible += min(int(p.set_count[t]), int(fits.sum()))
        return possible

    def _made(self, j: int, ahead: Bools, room: Ints, t: int, plan: Plan) -> Reservation:
        p, index = self.problem, self.index
        takes = plan.on_nodes(p).T @ p.request * self.own
        left = np.maximum(room - takes, 0)
        self.kept += takes
        self.kept_of[p.job_queue[j]] += takes.sum(axis=0)
        pods = np.bincount(plan.node, weights=plan.count, minlength=len(index.nodes)).astype(np.int64)
        nodes = np.flatnonzero(pods).tolist()
        return Reservation(
            index.jobs[j],
            t,
            {index.nodes[n]: int(pods[n]) for n in nodes},
            {
                index.nodes[n]: {index.resources[r]: int(left[n, r]) for r in np.flatnonzero(takes[n]).tolist()}
                for n in nodes
            },
            frozenset(index.jobs[i] for i in np.flatnonzero(ahead).tolist()),
        )


def _queues_of(census: Census, index: Index) -> Ints:
    """Queue row of each pod that stands on a node, -1 = none; in the order of `Census.ends`."""
    row = {name: q for q, name in enumerate(index.queues)}
    bunches = [*census.bunches, census.others]
    queues = [row.get(bunch.job.queue, -1) if bunch.member is not None else -1 for bunch in bunches]
    return np.repeat(np.array(queues, np.int64), [len(bunch.at) for bunch in bunches])

"""Who went, and whether anybody had the right to it: formulation.md 8 once more, on the numbers of a finished plan.

Written from the text and without `rights.py` or the model. Two things cannot be told from a finished plan. Whether a
remainder would have been completed without evictions: it is taken for broken. And which pods are the minimum of a job
that also grows: C15 counts the smallest that would do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from solver_sched import quantity
from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Bools, Ints, Plan, Problem


def unknown_victims(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Rows that no cluster could execute."""
    if not len(plan.victim):
        return
    if (plan.out <= 0).any():
        yield Violation("base", "a plan row evicts no pod")
    if plan.victim.min() < 0 or plan.victim.max() >= len(problem.victims.holder):
        yield Violation("base", "a plan row names no victims")
        return
    gone = plan.evicted(problem)
    for s in np.flatnonzero(gone > problem.victims.count).tolist():
        yield Violation("base", f"{gone[s]} pods go of the {problem.victims.count[s]} that run")


def eviction_faults(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    """Every rule of section 8 that belongs to no plugin."""
    judge = _Judge(problem, rules, plan)
    yield from judge.actions()
    yield from judge.gangs()
    yield from judge.budgets()
    yield from judge.swaps()
    yield from judge.preempted()
    if (plan.cause == RECLAIM).any() and rules.deserved is not None:
        yield from judge.reclaimed(rules.deserved)
        yield from judge.beyond_share(rules.deserved)
    yield from judge.balance()


class _Judge:
    def __init__(self, problem: Problem, rules: Rules, plan: Plan) -> None:
        self.problem, self.rules, self.plan = problem, rules, plan
        self.v = problem.victims
        self.gone = {cause: plan.evicted(problem, cause) for cause in (PREEMPT, RECLAIM)}
        self.out = plan.evicted(problem)
        self.of_holder = self.v.of_holders(self.out)
        self.placed = plan.placed(problem)
        self.new = plan.of_jobs(problem) > 0
        self.starters = np.flatnonzero(self.new & (rules.need > 0))
        self.claimants = self.starters[~problem.job_polite[self.starters]]
        self.asks = np.zeros((len(problem.job_min), len(problem.total)), bool)
        for t, j in enumerate(problem.set_job.tolist()):
            self.asks[j] |= (problem.request[problem.set_shape[t]] > 0) & rules.contended
        self.over: Bools = np.zeros_like(problem.queue_used, bool)
        if rules.deserved is not None:
            self.over = (problem.queue_used > rules.deserved) & rules.contended

    def _fault(self, message: str, holder: int = -1, *, job: int = -1, queue: int = -1) -> Violation:
        queue = int(self.v.queue[holder]) if holder >= 0 else queue
        return Violation("base", message, job=job, queue=queue, holder=holder)

    def actions(self) -> Iterator[Violation]:
        """A listed action takes, because a starving job starts."""
        policy, shares = self.rules.policy, ("proportion", "capacity")
        if not set(self.plan.cause.tolist()) <= {PREEMPT, RECLAIM}:
            yield self._fault("no action evicts for this cause")
        for cause, listed, name in ((PREEMPT, policy.preempts, "preempt"), (RECLAIM, policy.reclaims, "reclaim")):
            if self.gone[cause].any() and not listed:
                yield self._fault(f"{self.gone[cause].sum()} pods go by {name}, which is not listed")
        if self.gone[RECLAIM].any() and not any(policy.on(name, "reclaimable") for name in shares):
            yield self._fault(f"{self.gone[RECLAIM].sum()} pods are reclaimed, and no plugin knows shares")
        if not any(policy.on(name, "jobStarving") for name in ("gang", "priority")):
            yield self._fault(f"{self.out.sum()} pods go, and no job may starve")
        if not len(self.claimants):
            yield self._fault(f"{self.out.sum()} pods go, and no job starts that may take from others")

    def gangs(self) -> Iterator[Violation]:
        """C11: the whole gang goes, for one cause, or its minimum stays; a remainder that is not stale stays too."""
        v = self.v
        for h in np.flatnonzero(self.of_holder).tolist():
            left = int(v.running[h] - self.of_holder[h])
            if v.broken[h]:
                if not v.stale[h]:
                    yield self._fault(f"{self.of_holder[h]} pods of a remainder go before its grace period ends", h)
                continue
            if left == 0 and v.minimum[h] > 0:
                causes = [c for c, gone in self.gone.items() if gone[v.holder == h].any()]
                if len(causes) > 1:
                    yield self._fault("a gang ends by two actions at once", h)
            elif left < v.minimum[h]:
                yield self._fault(f"{left} of at least {v.minimum[h]} pods would be left", h)
            elif left:
                for o in np.flatnonzero(v.role_holder == h).tolist():
                    stay = int(v.role_running[o] - self.out[v.role == o].sum())
                    if stay < v.role_min[o]:
                        yield self._fault(f"{stay} of at least {v.role_min[o]} pods of a role would be left", h)

    def budgets(self) -> Iterator[Violation]:
        """C13."""
        for b, allowed in enumerate(self.v.allowed.tolist()):
            gone = int(self.out[self.v.member[:, b]].sum())
            if gone > max(0, allowed):
                yield self._fault(f"{gone} pods go under a disruption budget of {allowed}")

    def swaps(self) -> Iterator[Violation]:
        """C16."""
        for h in np.flatnonzero(self.of_holder).tolist():
            j = int(self.v.job[h])
            if j >= 0 and self.new[j]:
                yield self._fault(f"{self.of_holder[h]} pods go, and the job places others", h, job=j)

    def preempted(self) -> Iterator[Violation]:
        """A job of the queue starts that may take from the holder."""
        v, policy = self.v, self.rules.policy
        gone = v.of_holders(self.gone[PREEMPT])
        ranked, equals = policy.on("priority", "jobOrder"), policy.on("drf", "preemptable")
        for h in np.flatnonzero(gone).tolist():
            held = int(v.priority[h]) if ranked else 0
            highest = max(
                (
                    int(self.problem.job_priority[j]) if ranked else 0
                    for j in self.claimants.tolist()
                    if self.problem.job_queue[j] == v.queue[h] and j != v.job[h]
                ),
                default=None,
            )
            if highest is None:
                yield self._fault(f"{gone[h]} pods are preempted, and no job of their queue starts", h)
            elif not v.broken[h] and highest <= held:
                whole = self.of_holder[h] == v.running[h] and v.minimum[h] > 0
                if whole or highest < held or not equals:
                    yield self._fault(f"{gone[h]} pods of priority {held} give way to one of {highest}", h)

    def reclaimed(self, deserved: Ints) -> Iterator[Violation]:
        """A queue gives only beyond its share, to a job that asks for that and that its own queue's share could hold.

        Necessary, not sufficient: which starts are inside the share together is a choice that the plan does not show.
        """
        p, v = self.problem, self.v
        for q in np.unique(v.queue[v.holder[self.gone[RECLAIM] > 0]]).tolist():
            if not p.queue_reclaimable[q]:
                yield self._fault("reclaimed from, and not reclaimable", queue=q)
            for_whom = [
                j
                for j in self.claimants.tolist()
                if p.job_queue[j] != q
                and (self.asks[j] & self.over[q]).any()
                and ((self._least_minimum(j) + p.job_held[j] <= deserved[p.job_queue[j]]) | ~self.rules.contended).all()
            ]
            if not for_whom:
                gone = int(self.gone[RECLAIM][v.queue[v.holder] == q].sum())
                yield self._fault(
                    f"{gone} pods are reclaimed, and nobody starts within a share who asks for what it has too much of",
                    queue=q,
                )

    def beyond_share(self, deserved: Ints) -> Iterator[Violation]:
        """C14."""
        p, v = self.problem, self.v
        for q in np.unique(v.queue[v.holder[self.gone[RECLAIM] > 0]]).tolist():
            of_queue = v.queue[v.holder] == q
            gone = (self.gone[RECLAIM] * of_queue) @ v.request
            own = self._inside(q, deserved[q])
            room = np.where(self.rules.contended, p.queue_used[q] - own, p.queue_used[q])
            room = np.minimum(room, p.queue_used[q] - np.minimum(p.queue_used[q], p.queue_guarantee[q]))
            for r in np.flatnonzero(gone > np.maximum(0, room)).tolist():
                name, most = p.resources[r], quantity.format(p.resources[r], max(0, int(room[r])))
                yield self._fault(f"{quantity.format(name, int(gone[r]))} {name} reclaimed, {most} to give", queue=q)

    def _inside(self, q: int, deserved: Ints) -> Ints:
        """(R,) what the running units that fit the queue's share hold, one after the other."""
        p, v, rules = self.problem, self.v, self.rules
        stays: defaultdict[int, int] = defaultdict(int)
        for u in np.flatnonzero(p.unit_queue == q).tolist():
            stays[u] = int(p.unit_count[u])
        goes: list[tuple[int, int]] = []
        for h in np.flatnonzero((v.queue == q) & ~v.broken).tolist():
            mine = v.holder == h
            protected = int(v.count[mine & rules.spared].sum())
            if v.unit_row[h] >= 0 and v.count[mine].sum() - protected == v.running[h]:
                stays[int(v.unit_row[h])] -= 1
                goes.append((int(rules.holder_rank[h]), int(v.unit_row[h])))
            for x in np.flatnonzero(v.beyond_holder == h).tolist() if not protected else ():
                stays[int(v.beyond_unit[x])] -= int(v.beyond_open[x])
                goes += [(int(rules.surplus_rank[h]), int(v.beyond_unit[x]))] * int(v.beyond_open[x])
        first = sorted((int(rules.unit_rank[u]), u) for u, n in stays.items() for _ in range(n))
        own = np.zeros_like(deserved)
        for _, u in [*first, *sorted(goes)]:
            after = own + p.unit_request[u]
            if ((after <= deserved) | ~rules.contended | (p.unit_request[u] == 0)).all():
                own = after
        return own

    def balance(self) -> Iterator[Violation]:
        """C15."""
        p, v = self.problem, self.v
        starts = {j: self._least_minimum(j) for j in self.starters.tolist()}
        everybody = np.ones(len(p.queue_used), bool)
        yield from self._balance(starts, everybody, "")
        kinds = {self.asks[j].tobytes(): self.asks[j] for j in starts}
        for key, asks in kinds.items():
            lends = (self.over & asks).any(axis=1)
            given = self.gone[RECLAIM] > 0
            if not lends[v.queue[v.holder[given]]].all():
                alike = {j: minimum for j, minimum in starts.items() if self.asks[j].tobytes() == key}
                yield from self._balance(alike, lends, " by jobs that ask for the same")

    def _balance(self, starts: dict[int, Ints], lends: Bools, whose: str) -> Iterator[Violation]:
        p, v = self.problem, self.v
        idle = np.maximum(p.node_free, 0).sum(axis=0)
        lent = (self.gone[RECLAIM] * lends[v.queue[v.holder]]) @ v.request
        need = np.zeros_like(idle)
        polite = np.zeros_like(idle)
        for q in {int(p.job_queue[j]) for j in starts}:
            mine = [j for j in starts if p.job_queue[j] == q]
            whole = np.sum([starts[j] for j in mine], axis=0)
            politely = np.sum([starts[j] for j in mine if p.job_polite[j]] or [np.zeros_like(idle)], axis=0)
            gave = (self.gone[PREEMPT] * (v.queue[v.holder] == q)) @ v.request
            need += np.maximum(np.maximum(0, whole - gave), politely)
            polite += politely
        for r in np.flatnonzero(need > idle + lent).tolist():
            name = p.resources[r]
            asked, there, given = (quantity.format(name, int(amounts[r])) for amounts in (need, idle, lent))
            yield self._fault(
                f"{asked} {name} started on room that no queue gave for itself{whose}, "
                f"{there} idle and {given} reclaimed"
            )
        for r in np.flatnonzero(polite > idle).tolist():
            name = p.resources[r]
            asked, there = (quantity.format(name, int(amounts[r])) for amounts in (polite, idle))
            yield self._fault(f"{asked} {name} started by jobs that must not preempt, {there} idle")

    def _least_minimum(self, j: int) -> Ints:
        """(R,) the least of each resource that what the job lacked can be made up of."""
        p, out = self.problem, np.zeros_like(self.problem.total)
        sets = [t for t in np.flatnonzero(p.set_job == j).tolist() if self.placed[t]]
        for r in range(len(out)):
            by_size = sorted(
                (int(p.request[p.set_shape[t], r]), int(p.set_role[t]))
                for t in sets
                for _ in range(int(self.placed[t]))
            )
            rest, missing = [], int(self.rules.need[j])
            wanted = {o: int(self.rules.role_need[o]) for o in np.flatnonzero(p.role_job == j).tolist()}
            for size, role in by_size:
                if wanted.get(role, 0) > 0:
                    wanted[role] -= 1
                    missing -= 1
                    out[r] += size
                else:
                    rest.append(size)
            out[r] += sum(rest[: max(0, missing)])
        return out

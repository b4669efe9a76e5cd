"""Which rules keep running work from making room for a gang that waits (formulation.md 8, docs/reasons.md).

Every running pod on a node that the gang may use is kept back by no rule, by one, or by several. Told is the first rule
that would make room if it alone gave way. What may go is counted set by set, so it is never less than what may go at
once: that it does not suffice is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from solver_sched.explain.amounts import Amounts, names
from solver_sched.explain.ladder import Ladder
from solver_sched.explain.quota import Quota
from solver_sched.explain.room import Room, Want, open_kinds
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RECLAIM, Bools, Index, Ints, Plan, Problem
from solver_sched.problem.jobs import DEFAULT_QUEUE
from solver_sched.problem.vectors import requests
from solver_sched.rights import rights, takers
from solver_sched.snapshot import Snapshot

NEVER = "its pods have preemptionPolicy Never"
NOT_STARVING = "enableJobStarving is off, so nobody makes room"


class _Rule(NamedTuple):
    """`lets` (M,): pods of each row that it lets go; `partly` (M,): of its holder no more than runs above the minimum.
    `words`: what it says of so many pods that it keeps back, given the rows where it does.
    """

    name: str
    lets: Ints
    words: Callable[[int, Bools], str]
    partly: Bools | None = None


@dataclass(frozen=True, eq=False, slots=True)
class _Running:
    """Running pods by node: victim sets less what goes already, then pods that are in none. All (M,), request (M, R).

    `holder`: row in H, -1 = none. `queue` -1 = none (other schedulers). The first rows are the victim sets.
    """

    holder: Ints
    queue: Ints
    priority: Ints
    node: Ints
    count: Ints
    request: Ints


class Claims:
    """Asked gang by gang, after the plan."""

    def __init__(
        self,
        snapshot: Snapshot,
        problem: Problem,
        index: Index,
        rules: Rules,
        plan: Plan,
        quota: Quota,
        ladder: Ladder,
        amounts: Amounts,
    ) -> None:
        self.snapshot, self.problem, self.index, self.rules, self.plan = snapshot, problem, index, rules, plan
        self.after, self.quota, self.ladder, self.amounts = problem.after(plan), quota, ladder, amounts
        self.rights = rights(problem, rules)
        self.gone = plan.evicted(problem)
        self._takes = np.zeros(len(problem.job_queue), bool)
        for h, cause in set(zip(problem.victims.holder[plan.victim].tolist(), plan.cause.tolist(), strict=True)):
            self._takes |= takers(problem, rules, self.rights, h, cause)
        self.beside = Room(self.after, rules, plan)
        self._rows: _Running | None = None
        self._known: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
        self._rooms: dict[bytes, tuple[Room, Ints]] = {}
        self._partly: dict[tuple[bytes, bytes], Ints] = {}
        self._together_known: dict[tuple[int, bytes, bytes], Ints] = {}

    def takes_from_plan(self, j: int) -> bool:
        """Whether the job may use room that the plan frees, as far as rights go."""
        return bool(self._takes[j])

    def of(self, j: int, want: Want, ask: Ints) -> tuple[str, dict[str, Any]]:
        """The end of the message and `evictions` of the detail, for a gang that could start and waits."""
        p, q = self.problem, int(self.problem.job_queue[j])
        rank, priority = int(self.rules.rank[j]), int(p.job_priority[j])
        # one that runs already is not among those who could make room for it
        runs = j if (p.victims.job == j).any() else -1
        key = (want, q, rank, priority, bool(p.job_polite[j]), ask.tobytes(), runs)
        if key not in self._known:
            self._known[key] = self._told(j, q, rank, priority, want, ask)
        return self._known[key]

    def _told(self, j: int, q: int, rank: int, priority: int, want: Want, ask: Ints) -> tuple[str, dict[str, Any]]:
        rows = self._running()
        listed = [(rule, self._kept(rows, rule)) for rule in self._rules(j, q, rank, priority, ask)]
        listed = [(rule, back) for rule, back in listed if back.any()]
        near = open_kinds(self.rules, want.shapes)[self.problem.node_kind[rows.node]] | (rows.queue == q)
        near &= (rows.count > 0) & ~np.append(self.problem.victims.job == j, False)[rows.holder]
        may, limit = self._together(rows, [rule for rule, _ in listed])
        fits = self._fits(may, want, ask, q)
        kept: list[dict[str, Any]] = []
        # what keeps everybody back is told also where others have taken all that could go
        first = NEVER if self.problem.job_polite[j] else ""
        if not self.rules.starving:
            first = NOT_STARVING
        for rule, back in listed:
            held = near & (back > 0)
            pods = int(back[held].sum())
            if not pods:
                continue
            alone, _ = self._together(rows, [other for other, _ in listed if other is not rule])
            would = self._fits(alone, want, ask, q) if (alone > may).any() else fits
            room = (back[held, None] * rows.request[held]).sum(axis=0)
            kept.append({"rule": rule.name, "pods": pods, "room": self.amounts.mapping(room), "fitsWithout": would})
            if not first and fits < want.need <= would:
                first = rule.words(pods, held)
        detail: dict[str, Any] = {"mayGo": int(may[near].sum()), "fits": fits, "needs": want.need, "keptBack": kept}
        if not first and fits >= want.need:
            at_once = self._fits(self._at_once(rows, may, limit, q), want, ask, q)
            if at_once < want.need:
                first = f"those who may go may not all go at once, and then {at_once} of {want.need} pods fit"
        return first or self._otherwise(want, fits, kept, detail["mayGo"], near=bool(near.any())), detail

    def _otherwise(self, want: Want, fits: int, kept: Sequence[dict[str, Any]], may: int, *, near: bool) -> str:
        """No rule alone is in the way. `may`: pods that may go; `near`: somebody runs where the gang may."""
        if not near:
            return "nobody runs who could make room"
        if fits >= want.need:
            if self.ladder.first_open is not None or not self.ladder.levels:
                return f"room could be made for it, {self.ladder.why_unsolved()}"
            return "what could make room for it is worth more at a level above"
        most = sorted(kept, key=lambda one: -one["pods"])
        held = names([f"{one['rule']} ({_pods(one['pods'])})" for one in most])
        enough = f"with all that may go {fits} of {want.need} pods fit" if may else "nobody else may go"
        return f"{enough}; kept back by {held}" if held else enough

    # -- what goes ------------------------------------------------------------------------------------------------

    def _together(self, rows: _Running, listed: Sequence[_Rule]) -> tuple[Ints, Ints]:
        """(M,) pods of each row that may go under all of some rules, and (H,) the most of each holder: what does not
        end whole keeps its minimum.
        """
        v = self.problem.victims
        may = np.min([rows.count, *(rule.lets for rule in listed)], axis=0)
        known = rows.holder >= 0
        going = np.bincount(rows.holder[known], weights=may[known], minlength=len(v.queue)).astype(np.int64)
        whole = going >= self._left
        for rule in listed:
            if rule.partly is not None:
                whole[rows.holder[rule.partly & known]] = False
        limit = np.where(whole | v.broken, self._left, self._surplus)
        return np.where(known, np.minimum(may, np.append(limit, 0)[rows.holder]), may), limit

    def _kept(self, rows: _Running, rule: _Rule) -> Ints:
        """(M,) pods of each row that the rule keeps back."""
        out: Ints = rows.count - rule.lets
        if rule.partly is None:
            return out
        key = rule.lets.tobytes(), rule.partly.tobytes()
        if key not in self._partly:
            # of all that the rule lets go of a holder, its surplus goes, the last rows stay
            last_first, known = self._by_holder[::-1], rows.holder >= 0
            h, lets = rows.holder[last_first], rule.lets[last_first]
            over = np.zeros(len(self._surplus), bool)
            over[rows.holder[rule.partly & known]] = True
            so_far = _within(h, lets)
            most = np.where(over, np.maximum(0, np.bincount(h, lets, len(over)).astype(np.int64) - self._surplus), 0)[h]
            out[last_first] += np.minimum(so_far, most) - np.minimum(so_far - lets, most)
            self._partly[key] = out
        return self._partly[key]

    @cached_property
    def _by_holder(self) -> Ints:
        """Rows that have a holder, holder by holder."""
        holder = self._running().holder
        order: Ints = np.argsort(holder, kind="stable")
        return order[holder[order] >= 0]

    @cached_property
    def _surplus(self) -> Ints:
        """(H,) pods above the minimum after the plan."""
        out: Ints = np.maximum(0, self._left - self.problem.victims.minimum)
        return out

    def _at_once(self, rows: _Running, may: Ints, limit: Ints, q: int) -> Ints:
        """(M,) of those that may go one by one, some that may go together: minimums, budgets and what a queue gives up
        count for all of them. Taken first from the nodes on which most may go.
        """
        key = q, may.tobytes(), limit.tobytes()
        if key not in self._together_known:
            self._together_known[key] = self._taken(rows, may, limit, q)
        return self._together_known[key]

    def _taken(self, rows: _Running, may: Ints, limit: Ints, q: int) -> Ints:
        p, v = self.problem, self.problem.victims
        on_node = np.bincount(
            rows.node, may * (rows.request / np.maximum(p.total, 1)).max(axis=1), minlength=len(p.node_free)
        )
        order = np.lexsort((np.arange(len(may)), -on_node[rows.node]))
        order = order[(may[order] > 0) & (rows.holder[order] >= 0)]
        out = np.zeros_like(may)
        if not v.member.any():
            # of its own queue nothing but the minimums limits what goes
            own = order[rows.queue[order] == q]
            own = own[np.argsort(rows.holder[own], kind="stable")]
            h, pods = rows.holder[own], may[own]
            so_far = _within(h, pods)
            out[own] = np.minimum(so_far, limit[h]) - np.minimum(so_far - pods, limit[h])
            order = order[rows.queue[order] != q]
        # plain integers: one row after another, each takes of what the others leave
        holder, room = limit.tolist(), (self.rights.room - self._reclaimed).tolist()
        budget = (v.allowed - (v.member * self.gone[:, None]).sum(axis=0)).tolist()
        full: set[tuple[int, int]] = set()
        columns = may[order], rows.holder[order], rows.queue[order], self._kind[order]
        for i, take, h, k, kind in zip(order.tolist(), *(column.tolist() for column in columns), strict=True):
            if (k, kind) in full:
                continue
            take = min(take, holder[h])
            under = self._budgets_of[i] if budget and i < len(v.holder) else []
            for b in under:
                take = min(take, budget[b])
            if k != q and take > 0:
                left, asked = room[k], self._asked[kind]
                take = min(take, max(0, min(left[r] // amount for r, amount in asked))) if asked else take
                if not take:
                    full.add((k, kind))  # what is left for a queue only shrinks
                for r, amount in asked:
                    left[r] -= take * amount
            if take > 0:
                out[i] = take
                holder[h] -= take
                for b in under:
                    budget[b] -= take
        return out

    @cached_property
    def _kind(self) -> Ints:
        """(M,) row of `_asked`."""
        kind: Ints = np.unique(self._running().request, axis=0, return_inverse=True)[1].reshape(-1)
        return kind

    @cached_property
    def _asked(self) -> list[list[tuple[int, int]]]:
        """The different requests of what runs, as (resource, amount)."""
        different = np.unique(self._running().request, axis=0).tolist()
        return [[(r, amount) for r, amount in enumerate(request) if amount] for request in different]

    @cached_property
    def _budgets_of(self) -> list[list[int]]:
        """Disruption budgets of each victim set."""
        return [np.flatnonzero(member).tolist() for member in self.problem.victims.member]

    @cached_property
    def _left(self) -> Ints:
        """(H,) pods that run after the plan."""
        v = self.problem.victims
        out: Ints = v.running - v.of_holders(self.gone)
        return out

    def _fits(self, may: Ints, want: Want, ask: Ints, q: int) -> int:
        """Pods of the gang that fit, 0 if the ceiling of its queue refuses it all the same."""
        room, given = self._without(may)
        if self.quota.refuses(q, ask, given=given[q]) is not None:
            return 0
        return min(want.need, room.gang(want))

    def _without(self, may: Ints) -> tuple[Room, Ints]:
        """The nodes when `may` (M,) pods have gone, and (Q + 1, R) what each queue has given."""
        key = may.tobytes()
        if key not in self._rooms:
            rows, p = self._running(), self.problem
            free = self.after.node_free.copy()
            given = np.zeros((len(p.queue_used) + 1, len(p.total)), np.int64)
            some = np.flatnonzero(may)
            pods = may[some, None] * rows.request[some]
            # the last row is for pods of no queue
            np.add.at(given, rows.queue[some], pods)
            np.add.at(free, rows.node[some], pods)
            room = Room(replace(self.after, node_free=free), self.rules, self.plan, self.beside.coupling)
            self._rooms[key] = (room if len(some) else self.beside), given
        return self._rooms[key]

    def _running(self) -> _Running:
        if self._rows is None:
            v = self.problem.victims
            fixed = _fixed(self.snapshot, self.index)
            self._rows = _Running(
                holder=np.append(v.holder, fixed.holder),
                queue=np.append(v.queue[v.holder], fixed.queue),
                priority=np.append(v.priority[v.holder], fixed.priority),
                node=np.append(v.node, fixed.node),
                count=np.append(v.count - self.gone, fixed.count),
                request=np.concatenate([v.request, fixed.request]),
            )
        return self._rows

    # -- rules ----------------------------------------------------------------------------------------------------

    def _rules(self, j: int, q: int, rank: int, priority: int, ask: Ints) -> list[_Rule]:
        """What stands between the gang and the room of running pods. The first are those that an operator set for these
        pods, the last those of the policy as a whole.
        """
        p, v, rows, rules = self.problem, self.problem.victims, self._running(), self.rules
        policy, count = rules.policy, rows.count
        sets = len(v.holder)
        is_set = np.arange(len(count)) < sets
        own, others = rows.queue == q, (rows.queue >= 0) & (rows.queue != q)

        def of_holder(values: Ints | Bools, otherwise: int) -> Ints:
            return np.append(values, otherwise).astype(np.int64)[np.where(rows.holder >= 0, rows.holder, len(v.queue))]

        def of_set(values: Any, otherwise: int) -> Ints:
            return np.append(values, np.full(len(count) - sets, otherwise)).astype(np.int64)

        def lets(kept: Bools, at_most: Ints | int = 0) -> Ints:
            return np.where(kept, np.minimum(count, np.maximum(0, at_most)), count)

        broken = of_holder(v.broken, 0) > 0
        out = [_Rule("itself", lets(of_holder(v.job == j, 0) > 0), lambda *_: "")]
        if p.job_polite[j]:
            out.append(_Rule("preemptionPolicy", lets(count > 0), lambda *_: NEVER))
        if not rules.starving:
            out.append(_Rule("jobStarving", lets(count > 0), lambda *_: NOT_STARVING))
        if v.member.any():
            left = v.allowed - (v.member * self.gone[:, None]).sum(axis=0)
            under = np.where(v.member, left, 2**62).min(axis=1, initial=2**62)
            budgeted = of_set(v.member.any(axis=1), 0) > 0
            few = self._of_holders(v.member * (v.count - self.gone)[:, None]) > left
            short = budgeted & (of_holder(few.any(axis=1), 0) > 0)
            out.append(_Rule("budget", lets(budgeted, of_set(under, 2**62)), self._budgets, short & ~broken))
        for plugin in rules.plugins:
            spared = plugin.spares(p)
            if spared is not None:
                name = plugin.name
                out.append(_Rule(name, lets(of_set(spared, 0) > 0), partial(_spared, name)))
        pinned = ~is_set & (rows.queue >= 0)
        out.append(_Rule("preemptable", lets(pinned), lambda n, _: f"{_are(n)} marked preemptable: false"))
        grace = broken & (of_holder(v.stale, 1) == 0)
        out.append(_Rule("gracePeriod", lets(grace), self._in_grace))
        # C16: a job that loses a pod places none
        grows = self.plan.of_jobs(p) > 0
        growing = of_holder((v.job >= 0) & np.append(grows, False)[v.job], 0) > 0
        out.append(_Rule("placed", lets(growing), lambda n, _: f"{_are(n)} of gangs that get more in this plan"))
        lower = own & ((rows.priority < priority) & rules.ranked | broken)
        equal = own & ~lower & ((rows.priority == priority) | (not rules.ranked)) & rules.equals
        if not rules.ends_gangs:
            out.append(_Rule("minimum", count, self._minimums, lower & ~broken))
        not_lower = partial(self._priorities, q, priority)
        out.append(_Rule("priority", lets(own & ~lower & ~equal), not_lower, equal))
        if not policy.preempts:
            out.append(_Rule("preempt", lets(own), lambda *_: "the policy does not list action preempt"))
        out += self._of_other_queues(j, q, rank, ask, others, lets)
        out.append(
            _Rule("schedulers", lets(rows.queue < 0), lambda n, _: f"pods of other schedulers never go: {_pods(n)}")
        )
        return out

    def _of_other_queues(
        self, j: int, q: int, rank: int, ask: Ints, others: Bools, lets: Callable[..., Ints]
    ) -> list[_Rule]:
        p, rows, rules = self.problem, self._running(), self.rules
        deserved, out = rules.deserved, []
        if not rules.policy.reclaims:
            out.append(_Rule("reclaim", lets(others), lambda *_: "the policy does not list action reclaim"))
        if deserved is None:
            return [*out, _Rule("deserved", lets(others), lambda *_: "no plugin of the policy entitles queues")]
        if not rules.reclaims:
            out.append(_Rule("reclaimable", lets(others), lambda *_: "enableReclaimable is off"))
        closed = others & ~p.queue_reclaimable[rows.queue]
        out.append(_Rule("queueReclaimable", lets(closed), self._not_reclaimable))
        used = self._own_use(q, rank)
        passed = np.flatnonzero(rules.contended & (ask > 0) & (used + ask > deserved[q])).tolist()
        if passed:
            said = self._own_share(q, passed[0], used, ask)
            out.append(_Rule("ownShare", lets(others), lambda *_: said))
        over = (p.queue_used > deserved) & rules.contended & self.rights.asks[j]
        lends = over.any(axis=1)
        if rules.policy.reclaims and rules.reclaims:
            # of what a queue may give the guarantee keeps a part back, the share the rest
            pods, large = self._within_guarantees
            out.append(_Rule("guarantee", lets(others, pods), self._guarantees, others & large))
            pods, large = self._within_shares
            share = np.where(lends[rows.queue], pods, 0)
        else:
            share, large = np.where(lends[rows.queue], rows.count, 0), np.zeros(len(rows.count), bool)
        others_hold = self._shares(q, ask)
        out.append(_Rule("share", lets(others, share), lambda *_: others_hold, others & large))
        return out

    @cached_property
    def _within_guarantees(self) -> tuple[Ints, Bools]:
        return self._pods_in(self._guarded - self._reclaimed)

    @cached_property
    def _within_shares(self) -> tuple[Ints, Bools]:
        return self._pods_in(np.where(self.rights.room < self._guarded, self.rights.room - self._reclaimed, 2**60))

    @cached_property
    def _guarded(self) -> Ints:
        """(Q, R) what each queue holds beyond its guarantee."""
        p = self.problem
        out: Ints = p.queue_used - np.minimum(p.queue_used, p.queue_guarantee)
        return out

    @cached_property
    def _reclaimed(self) -> Ints:
        """(Q, R) what the plan takes of each queue by reclaim."""
        v, out = self.problem.victims, np.zeros_like(self.problem.queue_used)
        np.add.at(out, v.queue[v.holder], self.plan.evicted(self.problem, RECLAIM)[:, None] * v.request)
        return out

    def _pods_in(self, room: Ints) -> tuple[Ints, Bools]:
        """(M,) pods of each row that fit a room of its queue (Q, R), and whether its gang does not fit whole."""
        rows, v = self._running(), self.problem.victims
        request = np.maximum(rows.request, 1)
        quotients = np.where(rows.request > 0, room[rows.queue] // request, 2**62)
        whole = self._of_holders((v.count - self.gone)[:, None] * v.request)
        large = ((whole > room[v.queue]) & (whole > 0)).any(axis=1) & ~v.broken
        return quotients.min(axis=1, initial=2**62), np.append(large, False)[
            np.where(rows.holder >= 0, rows.holder, len(v.queue))
        ]

    def _of_holders(self, values: Ints) -> Ints:
        """(H, X) sum of rows of victim sets (V, X)."""
        v = self.problem.victims
        out = np.zeros((len(v.queue), values.shape[1]), np.int64)
        np.add.at(out, v.holder, values)
        return out

    def _own_use(self, q: int, rank: int) -> Ints:
        """(R,) what the queue holds after the plan for jobs of this rank and higher: the others come second in it."""
        p, rules, plan = self.problem, self.rules, self.plan
        units = (p.unit_queue == q) & (rules.unit_rank <= rank)
        job = p.set_job[plan.pod_set]
        new = (p.job_queue[job] == q) & (rules.rank[job] <= rank)
        placed = plan.count[new, None] * p.request[p.set_shape[plan.pod_set[new]]]
        out: Ints = (p.unit_count[units, None] * p.unit_request[units]).sum(axis=0) + placed.sum(axis=0)
        return out

    # -- words ----------------------------------------------------------------------------------------------------

    def _budgets(self, pods: int, held: Bools) -> str:
        member = self.problem.victims.member
        rows = np.flatnonzero(member[held[: len(member)]].any(axis=0)).tolist()
        gone = (member * self.gone[:, None]).sum(axis=0)
        said = [
            f"{self.snapshot.budgets[b].namespace}/{self.snapshot.budgets[b].name} "
            f"allows {max(0, int(self.problem.victims.allowed[b] - gone[b]))} more"
            for b in rows
        ]
        return f"{_pods(pods)} may not go: disruption budget {names(said)}"

    def _holders(self, held: Bools) -> str:
        rows = np.unique(self._running().holder[held])
        return names([self.index.holders[h] for h in rows[rows >= 0].tolist()])

    def _queues(self, held: Bools) -> list[int]:
        found: list[int] = np.unique(self._running().queue[held]).tolist()
        return found

    def _in_grace(self, pods: int, held: Bools) -> str:
        return f"{_pods(pods)} of {self._holders(held)}, which waits for members that it lost, are in its grace period"

    def _minimums(self, pods: int, held: Bools) -> str:
        return f"gang (enablePreemptable) keeps the minimum of {self._holders(held)}: {_pods(pods)}"

    def _priorities(self, q: int, priority: int, pods: int, _: Bools) -> str:
        queue = self.index.queues[q]
        if not self.rules.ranked:
            return f"the policy knows no priorities: {_pods(pods)} of queue {queue} count as equal"
        return f"nobody of lower priority than {priority} in queue {queue} would do; {_are(pods)} not lower"

    def _not_reclaimable(self, pods: int, held: Bools) -> str:
        listed = names([self.index.queues[k] for k in self._queues(held)])
        return f"queue {listed} is not reclaimable: {_pods(pods)}"

    def _guarantees(self, _: int, held: Bools) -> str:
        p, k = self.problem, self._queues(held)[0]
        r = int((self.after.queue_used[k] - p.queue_guarantee[k] - 2**61 * (p.queue_guarantee[k] == 0)).argmax())
        holds = f"holds {self.amounts.plain(r, self.after.queue_used[k, r])}"
        return f"queue {self.index.queues[k]} is guaranteed {self.amounts.text(r, p.queue_guarantee[k, r])}, {holds}"

    def _shares(self, q: int, ask: Ints) -> str:
        """What the other queues hold of their shares, in the contended resource that the gang asks most of."""
        p, deserved = self.problem, self.rules.deserved
        rows = np.flatnonzero(self.rules.contended & (ask > 0)).tolist()
        if deserved is None or not rows:
            return "nothing that it asks for is contended, so no queue is over its share"
        r = max(rows, key=lambda r: float(ask[r]) / max(1.0, float(p.total[r])))
        used, plain = self.after.queue_used, self.amounts.plain
        others = [k for k in range(len(used)) if k != q and used[k, r] > 0]
        held = names([f"{self.index.queues[k]} {plain(r, used[k, r])} of {plain(r, deserved[k, r])}" for k in others])
        said = f"no other queue has that much {self.index.resources[r]} beyond its share"
        return f"{said} ({held})" if held else said

    def _own_share(self, q: int, r: int, used: Ints, ask: Ints) -> str:
        deserved, plain = self.rules.deserved, self.amounts.plain
        assert deserved is not None
        uses = f"uses {plain(r, used[r])} of its share of {self.amounts.text(r, deserved[q, r])}"
        return f"queue {self.index.queues[q]} {uses}, asks {plain(r, ask[r])} more: it may not reclaim"


def _fixed(snapshot: Snapshot, index: Index) -> _Running:
    """Each running pod that is in no victim set: marked `preemptable: false`, or of another scheduler (queue -1)."""
    node_row = {name: n for n, name in enumerate(index.nodes)}
    queue_row = {name: q for q, name in enumerate(index.queues)}
    holder_row = {name: h for h, name in enumerate(index.holders)}
    groups = {group.key: group for group in snapshot.groups}
    ours, rows, pods = frozenset(snapshot.scheduler_names), [], []
    for pod in snapshot.pods:
        mine = pod.scheduler in ours
        if pod.node not in node_row or pod.finished or pod.terminating or (mine and pod.preemptable):
            continue
        group = groups.get(pod.group or "")
        queue = (group.queue if group is not None else pod.queue) or DEFAULT_QUEUE
        priority = pod.priority if group is None or group.priority is None else group.priority
        at = queue_row.get(queue, -1) if mine else -1
        rows.append((holder_row.get(pod.group or pod.key, -1), at, priority, node_row[pod.node]))
        pods.append(pod)
    holder, queues, priorities, nodes = np.array(rows, np.int64).reshape(-1, 4).T
    return _Running(holder, queues, priorities, nodes, np.ones(len(pods), np.int64), requests(snapshot, index, pods))


def _within(groups: Ints, amounts: Ints) -> Ints:
    """Sum of the amounts so far, each included, in every run of equal groups."""
    total = np.cumsum(amounts)
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    out: Ints = total - np.repeat((total - amounts)[first], np.diff(first, append=len(groups)))
    return out


def _spared(plugin: str, pods: int, _: Bools) -> str:
    if plugin == "cdp":
        return f"cdp keeps {_pods(pods)} still in the cool-down"
    return f"{plugin} keeps {_pods(pods)} of the system" if plugin == "conformance" else f"{plugin} keeps {_pods(pods)}"


def _pods(number: int) -> str:
    return f"{number} pod" if number == 1 else f"{number} pods"


def _are(number: int) -> str:
    return f"{_pods(number)} {'is' if number == 1 else 'are'}"

"""Who may take room from whom: the rights behind C11, C12, C13, C14, C15, C16 and C18 of formulation.md.

Read by solver, greedy and explainer.

A right never depends on where a pod would go. The verifier states the same rules once more on the finished plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, NO_LIMIT, PREEMPT, RECLAIM, Bools, Ints, Plan, Problem


@dataclass(frozen=True, eq=False, slots=True)
class Rights:
    """claimants (J,): jobs that could start if others gave way. preempt, reclaim (V,): sets that may go so.
    ends_by_preempt, ends_by_reclaim (H,): the holder may end whole. surplus (H,), role_surplus (W,): pods above the
    minimum. room (Q, R): the most that reclaim may take from a queue. idle (R,): room without any eviction.
    open (V,): sets that some action could touch, whoever claims. asks (J, R): contended resources the job asks for.
    over (Q, R): the queue holds more than its share. key (J,), held (H,): priorities of jobs and holders, as far as the
    policy has any. moves (V,): sets that may move in this solve (C19). everywhere: also sets that could help nobody are
    looked at.
    """

    claimants: Bools
    preempt: Bools
    reclaim: Bools
    ends_by_preempt: Bools
    ends_by_reclaim: Bools
    surplus: Ints
    role_surplus: Ints
    room: Ints
    idle: Ints
    open: Bools
    asks: Bools
    over: Bools
    key: Ints
    held: Ints
    moves: Bools
    everywhere: bool = False


def rights(problem: Problem, rules: Rules, base: Plan = EMPTY_PLAN) -> Rights:
    """The rights of all jobs that could start. `base`: a plan that evicts nobody; what it completes is not broken."""
    v, policy = problem.victims, rules.policy
    could = rules.demand.starts & (rules.need > 0) & ~problem.job_polite & rules.starving
    completed = (v.job >= 0) & np.append(base.of_jobs(problem) > 0, False)[v.job]
    may = rules.starving & ~rules.spared & (~v.broken | (v.stale & ~completed))[v.holder]
    has_open = v.of_holders(may) > 0
    whole = v.of_holders(v.count * may) == v.running

    # preempt, by kinds of holders: the highest claimant of the queue that is not the holder itself
    held, key = _priority(rules, v.priority), _priority(rules, problem.job_priority)
    claimants = np.zeros_like(could)
    outright = np.zeros(len(v.queue), bool)
    by_surplus = np.zeros(len(v.queue), bool)
    if policy.preempts:
        loose = rules.equals & ~v.broken & (v.running > v.minimum)
        kinds, kind = np.unique(
            np.column_stack([v.queue, v.job, held, v.broken, loose])[has_open], axis=0, return_inverse=True
        )
        above, beside = np.zeros(len(kinds), bool), np.zeros(len(kinds), bool)
        for i, (q, own, priority, broken, surplus) in enumerate(kinds.tolist()):
            mine = could & (problem.job_queue == q)
            if own >= 0:
                mine[own] = False
            higher = mine & (bool(broken) | (key > priority))
            same = mine & (key == priority) & bool(surplus)
            above[i], beside[i] = higher.any(), same.any()
            claimants |= higher | same
        outright[has_open], by_surplus[has_open] = above[kind.reshape(-1)], beside[kind.reshape(-1)]
    preempt = may & (outright | by_surplus)[v.holder]

    # reclaim, queue by queue
    over = np.zeros(problem.queue_used.shape, bool)
    asks = _asked(problem) & rules.contended
    reclaim = np.zeros_like(may)
    room = np.zeros_like(problem.queue_used)
    if policy.reclaims and rules.shared and rules.reclaims:
        assert rules.deserved is not None
        over = (problem.queue_used > rules.deserved) & rules.contended
        room = _beyond_share(problem, rules, has_open, whole)
        for q in np.flatnonzero(problem.queue_reclaimable & over.any(axis=1)).tolist():
            theirs = may & (v.queue[v.holder] == q)
            jobs = could & (problem.job_queue != q) & asks[:, over[q]].any(axis=1)
            if theirs.any() and jobs.any():
                reclaim |= theirs
                claimants |= jobs

    return Rights(
        claimants=claimants,
        preempt=preempt,
        reclaim=reclaim,
        ends_by_preempt=whole & outright & rules.ends_gangs,
        ends_by_reclaim=whole,
        surplus=np.where(v.broken, v.running, v.running - v.minimum),
        role_surplus=np.where(v.broken[v.role_holder], v.role_running, v.role_running - v.role_min),
        room=room,
        idle=np.maximum(problem.node_free, 0).sum(axis=0),
        open=may,
        asks=asks,
        over=over,
        key=key,
        held=held,
        moves=np.zeros_like(may),
    )


def movable(problem: Problem, rules: Rules) -> Bools:
    """(V,) sets whose pods may be placed again elsewhere, whatever their priority or queue (formulation.md 11)."""
    v = problem.victims
    on = rules.policy.consolidates and rules.starving
    return (v.shape >= 0) & ~rules.spared & ~v.broken[v.holder] & on


def wait_for_moves(problem: Problem, rules: Rules, allowed: Rights, plan: Plan) -> Bools:
    """(J,) jobs that `plan` leaves pending although they can start, and that moves could help: the room that is idle or
    may be evicted holds their minimum, if not on one node. A move adds no room.
    """
    v, least = problem.victims, np.full(problem.job_held.shape, NO_LIMIT)
    np.minimum.at(least, problem.set_job, problem.request[problem.set_shape])
    going = allowed.preempt | allowed.reclaim
    room = allowed.idle + (v.count[going, None] * v.request[going]).sum(axis=0)
    out: Bools = rules.demand.starts & (rules.need > 0) & ~problem.job_polite & (plan.of_jobs(problem) == 0)
    out[out] = (least[out] <= room // rules.need[out, None]).all(axis=1)
    return out


def lifted(problem: Problem, allowed: Rights, plan: Plan) -> tuple[Problem, Rights, Plan]:
    """Problem, rights and plan with which the levels of any plan can be valued, whatever it breaks: nothing limits what
    goes, and of a gang that is left below its minimum nothing counts as staying. What goes for two causes of such a
    gang goes for the more frequent one.
    """
    v = problem.victims
    out = plan.evicted(problem)
    per_holder = v.of_holders(out)
    per_role = np.bincount(v.role[v.role >= 0], weights=out[v.role >= 0], minlength=len(v.role_min)).astype(np.int64)
    half = (per_holder > 0) & ~v.broken & (v.running - per_holder < v.minimum)
    half[v.role_holder[(per_role > 0) & (v.role_running - per_role < v.role_min)]] = True
    half[v.role_holder[v.broken[v.role_holder]]] = False
    rows: list[tuple[int, int, int]] = []
    for h in np.flatnonzero(half).tolist():
        causes = plan.cause[v.holder[plan.victim] == h]
        rows += [
            (s, int(v.count[s]), int(np.bincount(causes).argmax())) for s in np.flatnonzero(v.holder == h).tolist()
        ]
    rest = ~half[v.holder[plan.victim]]
    table = np.array(rows, np.int64).reshape(-1, 3)
    whole = replace(
        plan,
        victim=np.append(plan.victim[rest], table[:, 0]),
        out=np.append(plan.out[rest], table[:, 1]),
        cause=np.append(plan.cause[rest], table[:, 2]),
    )
    open_pods = v.of_holders(v.count)
    running = np.where(half, open_pods, v.running)
    asked = (problem.set_count[:, None] * problem.request[problem.set_shape]).sum(axis=0)
    ends = whole.evicted(problem)
    victims = replace(v, running=running, allowed=np.full_like(v.allowed, v.count.sum()))
    return (
        replace(problem, victims=victims),
        replace(
            allowed,
            preempt=allowed.preempt | (whole.evicted(problem, PREEMPT) > 0),
            reclaim=allowed.reclaim | (whole.evicted(problem, RECLAIM) > 0),
            ends_by_preempt=open_pods == running,
            ends_by_reclaim=open_pods == running,
            surplus=np.where(v.broken, running, np.maximum(0, running - v.minimum)),
            role_surplus=np.where(half[v.role_holder], v.role_running, allowed.role_surplus),
            room=problem.queue_used,
            idle=problem.total + asked,
            open=allowed.open | (ends > 0),
            moves=allowed.moves | (plan.leaving(problem) > 0),
            everywhere=True,
        ),
        whole,
    )


def takers(problem: Problem, rules: Rules, allowed: Rights, h: int, cause: int) -> Bools:
    """(J,) jobs, claimants or not, for whom pods of holder `h` may go. No plan depends on it, words do."""
    v = problem.victims
    own = problem.job_queue == v.queue[h]
    able = ~problem.job_polite & (np.arange(len(own)) != v.job[h])
    if cause == RECLAIM:
        lends: Bools = able & ~own & (allowed.asks & allowed.over[v.queue[h]]).any(axis=1)
        return lends
    loose = v.running[h] > v.minimum[h] and rules.equals
    mine, theirs = _priority(rules, problem.job_priority), _priority(rules, v.priority)[h]
    gives: Bools = able & own & (v.broken[h] | (mine > theirs) | ((mine == theirs) & loose))
    return gives


def _priority(rules: Rules, priority: Ints) -> Ints:
    """Priorities as far as the policy has any."""
    return priority if rules.ranked else np.zeros_like(priority)


def _asked(problem: Problem) -> Bools:
    """(J, R) resources that pending pods of the job ask for."""
    out = np.zeros((len(problem.job_queue), len(problem.total)), bool)
    np.logical_or.at(out, problem.set_job, problem.request[problem.set_shape] > 0)
    return out


def _beyond_share(problem: Problem, rules: Rules, has_open: Bools, whole: Bools) -> Ints:
    """(Q, R) what each queue holds beyond its share and its guarantee: `room` of formulation.md 8.

    Units of one kind are one row; those that nobody may evict come first.
    """
    assert rules.deserved is not None
    v, used = problem.victims, problem.queue_used
    fixed = problem.unit_count.copy()
    spared = v.of_holders(rules.spared) > 0
    order: list[tuple[int, int, int, int]] = []
    for h in np.flatnonzero(has_open & whole & (v.unit_row >= 0)).tolist():
        order.append((1, int(rules.holder_rank[h]), int(v.unit_row[h]), 1))
        fixed[v.unit_row[h]] -= 1
    for x, h in enumerate(v.beyond_holder.tolist()):
        if has_open[h] and not spared[h]:
            order.append((1, int(rules.surplus_rank[h]), int(v.beyond_unit[x]), int(v.beyond_open[x])))
            fixed[v.beyond_unit[x]] -= v.beyond_open[x]
    order += [(0, int(rules.unit_rank[u]), u, int(n)) for u, n in enumerate(fixed)]
    taken = np.zeros_like(used)
    for _, _, u, n in sorted(order):
        q, request = int(problem.unit_queue[u]), problem.unit_request[u]
        asked = rules.contended & (request > 0)
        left = (rules.deserved[q] - taken[q])[asked]
        fit = n if not asked.any() else max(0, min(n, int((left // request[asked]).min())))
        taken[q] += fit * request
    beyond = np.where(rules.contended, used - taken, used)
    return np.maximum(0, np.minimum(beyond, used - np.minimum(used, problem.queue_guarantee)))

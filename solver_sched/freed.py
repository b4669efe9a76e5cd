"""Now or later, and for whom: which placed pods stand on idle room, and which job each victim makes room for.

A job whose minimum stands on idle room starts now; else all its new pods are nominated (formulation.md 8).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import NO_LIMIT, Ints, Plan, Problem, Require, SpreadRule
from solver_sched.problem.domain_rules import broken
from solver_sched.rights import rights, takers


def bound_now(problem: Problem, rules: Rules, plan: Plan) -> Ints:
    """(P,) pods of each row of the plan that fit what is idle, jobs of high rank and old ones first."""
    out = np.zeros_like(plan.count)
    if not rules.policy.runs("allocate") and not rules.policy.runs("backfill"):
        return out
    if not plan.frees and not problem.node_releasing.any() and rules.policy.runs("allocate"):
        return plan.count.copy()
    # who moves finds its place ready: what is idle there is not for others
    idle = problem.node_free - problem.node_releasing - plan.arriving(problem)
    # what is idle under a ceiling is idle too: who needs a victim of its own queue to go waits for it
    quota = np.min([np.full_like(problem.queue_used, NO_LIMIT), *(c.room for c in rules.ceilings)], axis=0)
    used = problem.queue_used.copy()
    blocked = {(s, n) for s, n, _ in problem.victims.blocks.tolist()}
    rows: dict[int, list[int]] = defaultdict(list)
    for row, t in enumerate(plan.pod_set.tolist()):
        rows[int(problem.set_job[t])].append(row)
    for j in sorted(rows, key=lambda j: (int(rules.rank[j]), int(problem.job_created[j]), j)):
        taken: list[tuple[int, int, int]] = []
        left = quota[problem.job_queue[j]]
        for row in rows[j]:
            t, n = int(plan.pod_set[row]), int(plan.node[row])
            request = problem.request[problem.set_shape[t]]
            asked = request > 0
            if not rules.policy.runs("backfill" if problem.shape_best_effort[problem.set_shape[t]] else "allocate"):
                continue
            room = np.minimum(idle[n], left)
            fit = int((room[asked] // request[asked]).min()) if asked.any() else int(plan.count[row])
            if (int(problem.set_shape[t]), n) in blocked:
                fit = 0  # until a victim that is in the way has gone
            fit = max(0, min(fit, int(plan.count[row])))
            if fit:
                idle[n] -= fit * request
                left -= fit * request
                taken.append((row, fit, t))
        new = sum((fit * problem.request[problem.set_shape[t]] for _, fit, t in taken), np.zeros_like(left))
        q = int(problem.job_queue[j])
        if (rules.need[j] and not _reaches(problem, rules, j, taken)) or _promised_away(problem, rules, used, q, new):
            for row, fit, t in taken:
                idle[plan.node[row]] += fit * problem.request[problem.set_shape[t]]
                left += fit * problem.request[problem.set_shape[t]]
            continue
        used[q] += new
        for row, fit, _ in taken:
            out[row] = fit
    return _by_themselves(problem, rules, plan, out)


def _by_themselves(problem: Problem, rules: Rules, plan: Plan, bound: Ints) -> Ints:
    """(P,) `bound` without the jobs that stand only beside, or evened out by, pods which still wait for room."""
    leaning = [rule for rule in rules.domain_rules if isinstance(rule, Require | SpreadRule)]
    shape, job = problem.set_shape[plan.pod_set], problem.set_job[plan.pod_set]
    while leaning:
        standing = replace(plan, count=bound).on_nodes(problem)
        rule = next((rule for rule in leaning if any(broken([rule], standing))), None)
        if rule is None:
            break
        bound = np.where(np.isin(job, job[(bound > 0) & np.isin(shape, rule.shapes)]), 0, bound)
    return bound


def served(problem: Problem, rules: Rules, plan: Plan) -> Ints:
    """(E,) for each row of victims the job that starts because of it, -1 if nobody starts.

    Of the jobs that may take from the victim, first those that could not start on what is idle or on its way; of these
    one that starts on the victim's node, else where others of its holder go (a gang ends whole, also on nodes where
    nobody starts; and where a ceiling is short and no node, the node says nothing); then the highest.
    """
    out = np.full(len(plan.victim), -1, np.int64)
    if not len(out):
        return out
    v, allowed = problem.victims, rights(problem, rules)
    everywhere, short = _starting(problem, rules, plan)
    lost: dict[int, set[int]] = defaultdict(set)
    for s in plan.victim.tolist():
        lost[int(v.holder[s])].add(int(v.node[s]))
    order = sorted(everywhere, key=lambda j: (int(rules.rank[j]), int(problem.job_created[j]), j))
    at: dict[int, list[int]] = defaultdict(list)
    for j in order:
        for n in short.get(j) or everywhere[j]:
            at[n].append(j)
    place = {j: i for i, j in enumerate(order)}
    pools: dict[tuple[int, int], tuple[set[int], int]] = {}
    for row, (s, cause) in enumerate(zip(plan.victim.tolist(), plan.cause.tolist(), strict=True)):
        h = int(v.holder[s])
        if (h, cause) not in pools:
            may = takers(problem, rules, allowed, h, cause)
            able = [j for j in order if may[j]] or order
            pool = [j for j in able if j in short] or able
            near = {j for n in lost[h] for j in at[n]} & set(pool)
            pools[h, cause] = set(pool), min(near or pool, key=place.__getitem__, default=-1)
        among, beside = pools[h, cause]
        out[row] = next((j for j in at[int(v.node[s])] if j in among), beside)
    return out


def moved_for(problem: Problem, rules: Rules, plan: Plan) -> Ints:
    """(M,) for each row of moves the job that starts because of it: one that could not start without moves, on the node
    that is left if there is one; else others move there in turn.
    """
    everywhere, short = _starting(problem, rules, plan)
    starting = [j for j in everywhere if not problem.job_polite[j]]

    out = np.full(len(plan.moved), -1, np.int64)
    for row, n in enumerate(problem.victims.node[plan.moved].tolist()):

        def nearness(j: int, n: int = n) -> tuple[bool, bool, int, int, int]:
            return (j not in short, n not in short[j], int(rules.rank[j]), int(problem.job_created[j]), j)

        out[row] = min(starting, key=nearness, default=-1)
    return out


def _starting(problem: Problem, rules: Rules, plan: Plan) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Job that starts -> nodes that it gets pods on; the same for pods that need more than is idle or on its way."""
    late = plan.count - bound_now(replace(problem, node_releasing=np.zeros_like(problem.node_releasing)), rules, plan)
    everywhere: dict[int, set[int]] = defaultdict(set)
    short: dict[int, set[int]] = defaultdict(set)
    for t, n, waits in zip(plan.pod_set.tolist(), plan.node.tolist(), late.tolist(), strict=True):
        j = int(problem.set_job[t])
        if rules.need[j]:
            everywhere[j].add(n)
            if waits:
                short[j].add(n)
    return everywhere, short


def _reaches(problem: Problem, rules: Rules, job: int, taken: list[tuple[int, int, int]]) -> bool:
    """Whether the pods (row, pods, pod set) make up what the job's minimum lacks."""
    if sum(pods for _, pods, _ in taken) < rules.need[job]:
        return False
    return all(
        sum(pods for _, pods, t in taken if problem.set_role[t] == o) >= rules.role_need[o]
        for o in np.flatnonzero(problem.role_job == job)
    )


def _promised_away(problem: Problem, rules: Rules, used: Ints, q: int, new: Ints) -> bool:
    """Whether `new` of queue `q` takes what is guaranteed to others while who makes room is still there (C8)."""
    after = used.copy()
    after[q] += new
    for ceiling in rules.ceilings:
        least = ceiling.guarantee
        limit = np.maximum(problem.total - problem.foreign, np.maximum(problem.queue_used, least).sum(axis=0))
        over = np.maximum(after, least).sum(axis=0) > limit
        if (over & (new > 0) & (least.sum(axis=0) > 0)).any():
            return True
    return False

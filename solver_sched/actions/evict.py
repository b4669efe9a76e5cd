"""Evictions of a plan by name: who goes, for whom, and the arithmetic that allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import MOVE, PREEMPT, RECLAIM, Index, Ints, Plan, Problem
from solver_sched.quantity import format as format_quantity

ACTIONS = {PREEMPT: "preempt", RECLAIM: "reclaim", MOVE: "consolidate"}


@dataclass(frozen=True, slots=True)
class Evict:
    """`beneficiary`: the group that starts because of it."""

    action: str
    pod: str
    node: str
    pod_group: str
    queue: str
    beneficiary: str
    reason: str


def evictions(problem: Problem, index: Index, rules: Rules, plan: Plan, now: Ints) -> Iterator[Evict]:
    """Holder by holder, in the order in which their pods would be given up. `now` (P,): pods bound at once."""
    v = problem.victims
    starting = _starting(problem, rules, plan, now)
    gone = plan.evicted(problem)
    for s, out, cause in sorted(zip(plan.victim.tolist(), plan.out.tolist(), plan.cause.tolist(), strict=True)):
        h = int(v.holder[s])
        job = _beneficiary(problem, rules, starting, s, cause)
        held = int(gone[v.holder == h].sum())
        for pod in index.victim_pods[s][:out]:
            yield Evict(
                ACTIONS[cause],
                pod,
                index.nodes[int(v.node[s])],
                index.holders[h],
                index.queues[int(v.queue[h])],
                index.jobs[job] if job >= 0 else "",
                _reason(problem, index, rules, h, job, cause, held),
            )


def _starting(problem: Problem, rules: Rules, plan: Plan, now: Ints) -> dict[int, set[int]]:
    """Node rows of each job that starts and waits for room."""
    out: dict[int, set[int]] = {}
    for row in np.flatnonzero(now < plan.count).tolist():
        j = int(problem.set_job[plan.pod_set[row]])
        if rules.need[j]:
            out.setdefault(j, set()).add(int(plan.node[row]))
    return out


def _beneficiary(problem: Problem, rules: Rules, starting: dict[int, set[int]], s: int, cause: int) -> int:
    """The highest job that starts on the victim's node, else anywhere, and may take from it; -1 = none."""
    v = problem.victims
    queue = v.queue[v.holder[s]]
    jobs = [
        j
        for j in starting
        if not problem.job_polite[j] and (cause == MOVE or (problem.job_queue[j] == queue) == (cause == PREEMPT))
    ]
    return min(jobs, key=lambda j: (v.node[s] not in starting[j], int(rules.rank[j]), j), default=-1)


def _reason(problem: Problem, index: Index, rules: Rules, h: int, job: int, cause: int, held: int) -> str:
    v = problem.victims
    going = f"{held} of its {v.running[h]} pods go" if held < v.running[h] else f"all its {held} pods go"
    if v.broken[h]:
        return f"{index.holders[h]} runs {v.running[h]} of at least {v.minimum[h]} pods: a remainder; {going}"
    kept = f", its minimum of {v.minimum[h]} stays" if held < v.running[h] and v.minimum[h] else ""
    who = index.jobs[job] if job >= 0 else "a job"
    if cause == PREEMPT:
        rank = int(problem.job_priority[job]) if job >= 0 else 0
        return f"priority {v.priority[h]} gives way to {who} of priority {rank}; {going}{kept}"
    q = int(v.queue[h])
    owner = index.queues[int(problem.job_queue[job])] if job >= 0 else "another queue"
    assert rules.deserved is not None
    over = [
        f"{format_quantity(name, int(problem.queue_used[q, r]))} {name} of deserved "
        f"{format_quantity(name, int(rules.deserved[q, r]))}"
        for r, name in enumerate(index.resources)
        if rules.contended[r] and problem.queue_used[q, r] > rules.deserved[q, r]
    ]
    return f"queue {index.queues[q]} holds {', '.join(over)}; {who} starts within the share of {owner}; {going}{kept}"

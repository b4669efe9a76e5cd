"""Replay the moves of a plan on exact numbers: C19, C20 and what C12, C13 and C16 say of pods that move.

Written from formulation.md 11 and without `rights.py` or the model. No domain rule is asked: what a rule between pods
could speak of never moves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver_sched import quantity
from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Plan, Problem


def unknown_moves(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    """Rows that no cluster could execute, and pods that never move."""
    if not len(plan.moved):
        return
    v, policy = problem.victims, rules.policy
    if (plan.moves <= 0).any() or plan.moved.min() < 0 or plan.moved.max() >= len(v.holder):
        yield Violation("base", "a row of moves moves no pod of a victim set")
        return
    if plan.to.min() < 0 or plan.to.max() >= len(problem.node_free):
        yield Violation("base", "a row of moves names no node")
        return
    if not policy.consolidates or not any(policy.on(name, "jobStarving") for name in ("gang", "priority")):
        yield Violation("base", f"{plan.moves.sum()} pods move, and no action moves them")
    fixed = (v.shape < 0) | rules.spared | v.broken[v.holder]
    for s in np.unique(plan.moved[fixed[plan.moved]]).tolist():
        yield Violation("base", "pods move that may not", node=int(v.node[s]))


def move_faults(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    """Every rule about moves that the plan breaks."""
    if not len(plan.moved):
        return
    yield from _counts(problem, rules, plan)
    yield from _places(problem, rules, plan)
    started = problem.set_job[plan.pod_set]
    if not ((rules.need[started] > 0) & ~problem.job_polite[started]).any():
        yield Violation("base", "pods move and nothing starts")


def _counts(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    v, most = problem.victims, rules.policy.solve.moves
    leaving = plan.leaving(problem)
    gone = plan.evicted(problem) + leaving
    if leaving.sum() > most:
        yield Violation("base", f"{leaving.sum()} pods move, at most {most} may")
    for s in np.flatnonzero((gone > v.count) & (leaving > 0)).tolist():
        yield Violation("base", f"{gone[s]} pods go or move of {v.count[s]} that run", node=int(v.node[s]))
    for b, allowed in enumerate(v.allowed.tolist()):
        if leaving[v.member[:, b]].any() and gone[v.member[:, b]].sum() > allowed:
            yield Violation("base", f"{gone[v.member[:, b]].sum()} pods go or move, a budget allows {allowed}")
    placing = np.unique(problem.set_job[plan.pod_set])
    for j in np.intersect1d(v.job[v.holder[leaving > 0]], placing).tolist():
        yield Violation("base", "a job of which a pod moves places others", job=j)


def _places(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    v = problem.victims
    for s, n in zip(plan.moved.tolist(), plan.to.tolist(), strict=True):
        if n == v.node[s]:
            yield Violation("base", "a pod moves to its own node", node=n)
        if rules.forbidden[v.shape[s], problem.node_kind[n]]:
            yield Violation("base", "a pod moves to a node that refuses it", node=n)
    arriving = plan.arriving(problem)
    load = plan.on_nodes(problem).T @ problem.request + arriving
    room = np.maximum(problem.node_free + plan.freed(problem), 0)
    for n, r in np.argwhere((load > room) & (arriving > 0)).tolist():
        name, free = problem.resources[r], quantity.format(problem.resources[r], int(room[n, r]))
        message = f"{quantity.format(name, int(load[n, r]))} {name} placed or moved there, {free} free"
        yield Violation("base", message, node=n)

"""What no cluster could execute: more than there is, or what no listed action does (formulation.md C1, C2, C10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver_sched import quantity
from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Plan, Problem


def unknown_places(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Rows that name nothing there is."""
    if len(plan.count) == 0:
        return
    if (plan.count <= 0).any():
        yield Violation("base", "a plan row places no pod")
    if plan.pod_set.min() < 0 or plan.pod_set.max() >= len(problem.set_count):
        yield Violation("base", "a plan row names no pod set")
    if plan.node.min() < 0 or plan.node.max() >= len(problem.node_free):
        yield Violation("base", "a plan row names no node")


def place_faults(problem: Problem, rules: Rules, plan: Plan) -> Iterator[Violation]:
    """`problem`: with its victims gone."""
    placed = plan.placed(problem)
    for t in np.flatnonzero(placed > problem.set_count).tolist():
        message = f"{placed[t]} pods placed of {problem.set_count[t]} pending"
        yield Violation("base", message, job=int(problem.set_job[t]))
    on_nodes = plan.on_nodes(problem)
    load = on_nodes.T @ problem.request
    for n, r in np.argwhere((load > np.maximum(problem.node_free, 0)) & (load > 0)).tolist():
        name, free = problem.resources[r], int(problem.node_free[n, r])
        message = f"{quantity.format(name, int(load[n, r]))} {name} placed, {quantity.format(name, free)} free"
        yield Violation("base", message, node=n)
    for s, n in np.argwhere(on_nodes > 0).tolist():
        best_effort = bool(problem.shape_best_effort[s])
        if not rules.policy.places(best_effort=best_effort):
            yield Violation("base", f"no action places {'request-less' if best_effort else 'these'} pods", node=n)

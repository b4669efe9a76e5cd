"""Replay a plan on the problem's exact numbers: what no cluster could execute, and what a plugin's rule forbids.

Nothing here knows the model; a plan that fails is never executed.
"""

from __future__ import annotations

from dataclasses import replace

from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Problem
from solver_sched.verify.evictions import eviction_faults, unknown_victims
from solver_sched.verify.moves import move_faults, unknown_moves
from solver_sched.verify.places import place_faults, unknown_places


def violations(problem: Problem, rules: Rules, plan: Plan) -> list[Violation]:
    """Every broken rule, base rules first; empty = the plan may be executed."""
    out = [*unknown_victims(problem, plan), *unknown_moves(problem, rules, plan), *unknown_places(problem, plan)]
    if out:
        return out
    out += [*place_faults(problem.after(plan), rules, plan), *move_faults(problem, rules, plan)]
    if len(plan.victim):
        out += eviction_faults(problem, rules, plan)
        without = replace(plan, victim=EMPTY_PLAN.victim, out=EMPTY_PLAN.out, cause=EMPTY_PLAN.cause)
        if not out and not violations(problem, rules, without):
            out.append(Violation("base", f"{plan.out.sum()} pods go, and all that is placed would fit without"))
    if len(plan.moved):
        without = replace(plan, moved=EMPTY_PLAN.moved, to=EMPTY_PLAN.to, moves=EMPTY_PLAN.moves)
        if not out and not violations(problem, rules, without):
            out.append(Violation("base", f"{plan.moves.sum()} pods move, and all that is placed would fit without"))
    for plugin in rules.plugins:
        out.extend(plugin.violations(problem.after(plan), plan))
    return out

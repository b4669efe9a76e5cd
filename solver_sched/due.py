"""When the passing of time alone may change what a cycle decides. Else only a change of the cluster does."""

from __future__ import annotations

import numpy as np

from solver_sched.cycle import CycleReport
from solver_sched.plugins.cdp import Cdp
from solver_sched.plugins.rules import age_limit

LOOK_AGAIN = 60
"""Seconds after which reserved rooms and rests of gangs are looked at again: what they wait for has no exact time."""


def seconds_until(report: CycleReport) -> float:
    """Seconds from `report.snapshot.now` to the next decision that time brings; infinity = none will.

    Where somebody waits: a job comes to the age at which it ranks higher, a victim's cool-down ends. Where room is kept
    for somebody, or the rest of a gang may have to go, run times are estimates.
    """
    problem, rules = report.problem, report.rules
    if not _somebody_waits(report):
        return float("inf")
    out = [float("inf")]
    limit = np.where(problem.job_age_limit > 0, problem.job_age_limit, age_limit(report.policy, rules.plugins))
    left = problem.job_created + limit + 1 - problem.now
    out += left[(problem.job_created > 0) & (rules.need > 0) & (left > 0)].tolist()
    if report.policy.evicts:
        v = problem.victims
        for plugin in rules.plugins:
            if isinstance(plugin, Cdp):
                cooldown = plugin.cooldown(problem)
                out += (cooldown - v.seconds)[v.seconds < cooldown].tolist()
        if v.broken.any():
            out.append(LOOK_AGAIN)
    if report.reservations:
        out.append(LOOK_AGAIN)
    return float(min(out))


def _somebody_waits(report: CycleReport) -> bool:
    """Whether there is a reason for anybody, without finding any."""
    problem, plan = report.problem, report.plan
    left = plan.placed(problem) < problem.set_count
    return bool(left.any() or report.index.held or plan.frees or problem.node_releasing.any())

"""When the passing of time alone may change what a cycle decides. Else only a change of the cluster does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver_sched.actions.enqueue import WAITING
from solver_sched.cycle import CycleReport
from solver_sched.plugins.cdp import Cdp
from solver_sched.plugins.rules import age_limit
from solver_sched.plugins.sla import Sla
from solver_sched.problem.jobs import age_limit as limit_of

LOOK_AGAIN = 60
"""Seconds after which reserved rooms and rests of gangs are looked at again: what they wait for has no exact time."""


def seconds_until(report: CycleReport) -> float:
    """Seconds from `report.snapshot.now` to the next decision that time brings; infinity = none will.

    Where somebody waits: a job comes to the age at which it ranks higher, a victim's cool-down ends. Where room is kept
    for somebody, or the rest of a gang may have to go, run times are estimates.
    """
    problem, rules = report.problem, report.rules
    out = [float("inf"), *_at_the_entrance(report)]
    if not _somebody_waits(report):
        return min(out)
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


def _at_the_entrance(report: CycleReport) -> Iterator[int]:
    """When groups that wait to be let in come to the age at which `sla` lets them in, pods or not."""
    snapshot = report.snapshot
    limits = [one.limit for one in report.rules.plugins if isinstance(one, Sla)]
    if limits and report.policy.runs("enqueue"):
        for group in snapshot.groups:
            limit = limit_of(group) or limits[0]
            left = group.created + limit - snapshot.now
            if group.phase in WAITING and group.created and limit and left > 0:
                yield left


def _somebody_waits(report: CycleReport) -> bool:
    """Whether pods are left, held, nominated or on their way out: only for them running work may have to go, or jobs
    rank higher in time.
    """
    problem, plan = report.problem, report.plan
    left = plan.placed(problem) < problem.set_count
    return bool(left.any() or report.index.held or plan.frees or problem.node_releasing.any())

"""Who may ask for what: demand that could start, contended resources, weighted max-min shares, ceilings.

Pure functions of a problem; `plugins/proportion.py` and `plugins/capacity.py` turn them into their rules.
formulation.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver_sched import quantity
from solver_sched.problem.arrays import NO_LIMIT, AtMostOne, Bools, DomainRule, Ints, Plan, Problem
from solver_sched.problem.vectors import alike

FEW = 8
"""Shapes up to which it takes longer to tell nodes apart than to ask each."""


@dataclass(frozen=True, eq=False, slots=True)
class Demand:
    """What pending work could ask of an empty cluster.

    shape_room (S,): pods of the shape that fit when every node is empty. starts (J,): the job's need can be met, or it
    has started. counts (T,): pods of the set that ask, 0 where none can run. ask (Q, R): used plus those requests.
    avail (R,): total minus what pods outside all queues hold. contended (R,): asked for beyond avail; never `pods`.
    """

    shape_room: Ints
    starts: Bools
    counts: Ints
    ask: Ints
    avail: Ints
    contended: Bools


def demand(
    problem: Problem, forbidden: Bools, domain_rules: Sequence[DomainRule], need: Ints, role_need: Ints
) -> Demand:
    """Demand under the predicates `forbidden` (S, K), the domain rules and minimums `need` (J,), `role_need` (O,)."""
    room = _shape_room(problem, forbidden, domain_rules)
    counts = np.minimum(problem.set_count, room[problem.set_shape])
    jobs = len(problem.job_min)
    possible = np.bincount(problem.set_job, weights=counts, minlength=jobs)
    starts = possible >= need
    for o, job in enumerate(problem.role_job):
        if counts[problem.set_role == o].sum() < role_need[o]:
            starts[job] = False
    counts = counts * starts[problem.set_job]
    ask = problem.queue_used.copy()
    np.add.at(ask, problem.job_queue[problem.set_job], counts[:, None] * problem.request[problem.set_shape])
    avail = np.maximum(problem.total - problem.foreign, 0)
    contended = ask.sum(axis=0) > avail
    contended[problem.slots] = False
    return Demand(room, starts, counts, ask, avail, contended)


def _shape_room(problem: Problem, forbidden: Bools, domain_rules: Sequence[DomainRule]) -> Ints:
    """(S,) pods of each shape that fit on the nodes when empty, one per node where they repel each other."""
    out = np.zeros(len(problem.request), np.int64)
    if not len(problem.node_alloc):
        return out
    key = np.column_stack([problem.node_kind, problem.node_alloc])
    kinds, size = key, np.ones(len(key), np.int64)
    if len(out) > FEW:
        first, which = alike(key)
        kinds, size = key[first], np.bincount(which)
    single = {int(s) for rule in domain_rules if isinstance(rule, AtMostOne) and rule.per_node for s in rule.shapes}
    for s, request in enumerate(problem.request):
        asked = request > 0
        fits = (kinds[:, 1:][:, asked] // request[asked]).min(axis=1) if asked.any() else np.full(len(kinds), 2**31)
        fits = np.where(forbidden[s, kinds[:, 0]], 0, np.maximum(fits, 0))
        out[s] = (np.minimum(fits, 1 if s in single else 2**31) * size).sum()
    return out


def real_capability(problem: Problem, avail: Ints) -> Ints:
    """(Q, R) min of the queue's capability and what the other queues' guarantees leave of `avail`."""
    others = problem.queue_guarantee.sum(axis=0) - problem.queue_guarantee
    room: Ints = np.minimum(problem.queue_capability, np.maximum(avail - others, 0))
    return room


def waiting_for_backfill(problem: Problem, backfill: bool) -> Ints:
    """(J,) request-less pods that no listed action places: they count as ready.

    Volcano pkg/scheduler/api/job_info.go, IsReady.
    """
    waiting = problem.set_count * problem.shape_best_effort[problem.set_shape] * (not backfill)
    return np.bincount(problem.set_job, weights=waiting, minlength=len(problem.job_min)).astype(np.int64)


def water_fill(avail: int, weight: list[int], floor: list[int], cap: list[int]) -> list[int]:
    """Weighted max-min shares: everybody at max(floor, min(cap, weight x level)), level as high as `avail` allows.

    Rounded down. Exact: the level is found between breakpoints, in whole parts of the weights' common multiple.
    """
    cap = [max(f, c) for f, c in zip(floor, cap, strict=True)]
    full = [c if w > 0 else f for w, f, c in zip(weight, floor, cap, strict=True)]
    if sum(full) <= avail:
        return full  # nearly always: few resources are contended
    unit = math.lcm(*(w for w in weight if w > 0))

    def at(level: int) -> list[int]:
        """Shares times `unit` at a level that is given in parts of 1 / unit."""
        return [max(unit * f, min(unit * c, w * level)) for w, f, c in zip(weight, floor, cap, strict=True)]

    points = sorted({x * (unit // w) for w, f, c in zip(weight, floor, cap, strict=True) if w > 0 for x in (f, c)})
    low = 0
    for point in points:
        if sum(at(point)) > unit * avail:
            flat = [w * low < unit * f or w * low >= unit * c for w, f, c in zip(weight, floor, cap, strict=True)]
            slope = sum(w for w, still in zip(weight, flat, strict=True) if not still)
            rest = unit * avail - sum(at(low))
            if not slope or rest <= 0:
                break
            # the level is low + rest / slope
            return [
                max(f, min(c, w * (low * slope + rest) // (slope * unit)))
                for w, f, c in zip(weight, floor, cap, strict=True)
            ]
        low = point
    return [x // unit for x in at(low)]


def proportional(problem: Problem, wanted: Demand) -> Ints:
    """(Q, R) weighted max-min fair share of each queue per resource (formulation.md 3, proportion)."""
    out = np.zeros_like(problem.queue_used)
    limit = np.minimum(wanted.ask, real_capability(problem, wanted.avail))
    weight = problem.queue_weight.tolist()
    for r, avail in enumerate(wanted.avail.tolist()):
        floor = np.minimum(problem.queue_guarantee[:, r], avail).tolist()
        out[:, r] = water_fill(max(0, avail), weight, floor, limit[:, r].tolist())
    return out


def explicit(problem: Problem, wanted: Demand) -> Ints:
    """(Q, R) `spec.deserved` between guarantee and real capability, at most what is asked (formulation.md 3)."""
    given = np.maximum(problem.queue_deserved, 0)
    capped = np.minimum(given, real_capability(problem, wanted.avail))
    return np.minimum(np.maximum(capped, problem.queue_guarantee), wanted.ask)


def ceiling_room(problem: Problem) -> Ints:
    """(Q, R) what new pods of a queue may add under its capability, NO_LIMIT without one (formulation.md C7)."""
    limited = problem.queue_capability < NO_LIMIT
    return np.where(limited, np.maximum(problem.queue_capability - problem.queue_used, 0), NO_LIMIT)


def ceiling_excess(problem: Problem, plan: Plan) -> Iterator[tuple[int, str]]:
    """(queue, message) for every capability and joint guarantee that the new pods of `plan` break (C7, C8)."""
    new = plan.of_queues(problem)
    for q, r in np.argwhere((new > 0) & (problem.queue_capability < NO_LIMIT)):
        have = int(problem.queue_used[q, r] + new[q, r])
        if have > problem.queue_capability[q, r]:
            name = problem.resources[r]
            most = quantity.format(name, int(problem.queue_capability[q, r]))
            yield int(q), f"{quantity.format(name, have)} {name} in use, capability {most}"
    before = np.maximum(problem.queue_used, problem.queue_guarantee).sum(axis=0)
    after = np.maximum(problem.queue_used + new, problem.queue_guarantee).sum(axis=0)
    limit = np.maximum(problem.total - problem.foreign, before)
    guaranteed = problem.queue_guarantee.sum(axis=0) > 0
    for r in np.flatnonzero((after > limit) & (new.sum(axis=0) > 0) & guaranteed):
        name = problem.resources[r]
        asked, there = quantity.format(name, int(after[r])), quantity.format(name, int(limit[r]))
        yield int(new[:, r].argmax()), f"{asked} {name} used or guaranteed, {there} there are"

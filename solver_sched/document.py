"""The plan as a document: the one dict that `plan -o json` prints and `solver_sched.plan` returns.

Quantities are canonical strings, names `namespace/name`, decisions in the order in which they may be executed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from solver_sched.actions.decide import Admit, Bind, Decision, Nominate
from solver_sched.actions.evict import Evict
from solver_sched.problem.arrays import RESERVED_PREFIX
from solver_sched.quantity import format as format_quantity

if TYPE_CHECKING:
    from solver_sched.cycle import CycleReport
    from solver_sched.model.effort import LevelResult
    from solver_sched.plugins.rules import Rules
    from solver_sched.problem.arrays import Index, Ints, Plan, Problem
    from solver_sched.snapshot import Snapshot

HIDDEN = 1e-6
"""A relative gap that six decimals would print as nothing."""
ENDS = ("disruption", "disruption.time", "disruption.moved-time")
"""Levels with which a certificate is complete: the last of them that there is."""
API_VERSION = "solver-sched.io/v1alpha1"


def plan_document(report: CycleReport) -> dict[str, Any]:
    """The plan dict, plain JSON types only."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "snapshot": facts(report),
        "policy": {
            "name": report.policy.name,
            "actions": list(report.policy.actions),
            "tiers": [[conf.name for conf in tier] for tier in report.policy.tiers],
        },
        "decisions": [_decision(decision) for decision in report.decisions],
        "podGroups": _groups(report),
        "queues": queue_rows(report.problem, report.index, report.rules, report.plan),
        "reservations": [
            {"podGroup": one.job, "at": one.begins, "nodes": list(one.nodes)}
            for one in report.reservations
            if one.job in report.reasons
        ],
        "levels": _levels(report),
        "certificate": certificate(report),
        "notes": list(report.notes),
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }


def facts(report: CycleReport) -> dict[str, Any]:
    """What was read, in numbers, and what of it could not be used."""
    return {
        "nodes": len(report.snapshot.nodes),
        "pods": len(report.snapshot.pods),
        "podGroups": len(report.snapshot.groups),
        "queues": len(report.index.queues),
        "ignored": {**report.snapshot.ignored, **_of_others(report.snapshot)},
        "problems": [
            {"source": p.source, "object": p.object, "field": p.field, "message": p.message}
            for p in report.snapshot.problems
        ],
    }


def node_rows(report: CycleReport) -> list[dict[str, Any]]:
    """Per node what there is, what is used when the plan is carried out and those who leave have gone, and how many
    pods `arrive` and `leave` by it; sorted by name.
    """
    problem, plan = report.problem, report.plan
    used = problem.node_alloc - problem.after(plan).node_free
    np.add.at(used, plan.node, plan.count[:, None] * problem.request[problem.set_shape[plan.pod_set]])
    size = len(report.index.nodes)
    arrive = np.bincount(plan.node, plan.count, size) + np.bincount(plan.to, plan.moves, size)
    node = problem.victims.node
    leave = np.bincount(node[plan.victim], plan.out, size) + np.bincount(node[plan.moved], plan.moves, size)
    return [
        {
            "name": name,
            "allocatable": _resources(report.index, problem.node_alloc[n]),
            "used": _resources(report.index, used[n]),
            "arrive": int(arrive[n]),
            "leave": int(leave[n]),
        }
        for n, name in enumerate(report.index.nodes)
    ]


def _decision(decision: Decision) -> dict[str, Any]:
    match decision:
        case Admit():
            return {"kind": "Admit", "podGroup": decision.pod_group}
        case Evict():
            return {
                "kind": "Evict",
                "action": decision.action,
                "pod": decision.pod,
                "node": decision.node,
                **({"to": decision.to} if decision.to else {}),
                "podGroup": decision.pod_group,
                "queue": decision.queue,
                "for": decision.beneficiary,
                "reason": decision.reason,
            }
        case Bind() | Nominate():
            return {
                "kind": type(decision).__name__,
                "action": decision.action,
                "pod": decision.pod,
                "node": decision.node,
                "podGroup": decision.pod_group,
                "queue": decision.queue,
            }


def _of_others(snapshot: Snapshot) -> Counter[str]:
    """Pods that wait for a scheduler whose pods are not decided on, by cause."""
    return Counter(
        f"pending pods of scheduler {pod.scheduler} (see --scheduler-name)"
        for pod in snapshot.pods
        if pod.scheduler not in snapshot.scheduler_names and pod.node is None and pod.phase == "Pending"
    )


def _groups(report: CycleReport) -> list[dict[str, Any]]:
    """One entry per job with pods or a PodGroup object, held ones included, sorted by name."""
    # a group runs on with a pod that moves
    count = Counter((type(one), one.pod_group) for one in report.decisions if not (isinstance(one, Evict) and one.to))
    out = []
    for job in report.index.members:
        placed, promised = count[Bind, job.name], count[Nominate, job.name]
        ready = job.ready - count[Evict, job.name]
        started = ready + placed >= job.minimum and ready + placed > 0
        if started:
            phase = "Running"
        elif count[Admit, job.name]:
            phase = "Inqueue"
        else:
            phase = "Pending" if count[Evict, job.name] else job.phase or "Pending"
        reason = report.reasons.get(job.name)
        out.append(
            {
                "name": job.name,
                "queue": job.queue,
                "phase": phase,
                "minMember": job.minimum,
                "running": ready,
                "bound": placed,
                "nominated": promised,
                "pending": job.pending - placed - promised,
                "reason": None
                if reason is None
                else {"code": reason.code, "message": reason.message, "detail": dict(reason.detail)},
            }
        )
    return out


def queue_rows(problem: Problem, index: Index, rules: Rules, plan: Plan) -> list[dict[str, Any]]:
    """Deserved, allocated after the plan, requested, and the largest share of what is deserved (else of all)."""
    allocated = problem.after(plan).queue_used + plan.of_queues(problem)
    requested = problem.queue_used.copy()
    queue_of = problem.job_queue[problem.set_job]
    np.add.at(requested, queue_of, problem.set_count[:, None] * problem.request[problem.set_shape])
    out = []
    for q, name in enumerate(index.queues):
        deserved = rules.deserved[q] if rules.deserved is not None else None
        out.append(
            {
                "name": name,
                "weight": int(problem.queue_weight[q]),
                "deserved": _resources(index, deserved) if deserved is not None else {},
                "allocated": _resources(index, allocated[q]),
                "request": _resources(index, requested[q]),
                "share": _share(problem, allocated[q], deserved),
            }
        )
    return out


def _share(problem: Problem, allocated: Ints, deserved: Ints | None) -> float:
    slots = problem.slots
    ratios = [
        float(allocated[r]) / float(deserved[r] if deserved is not None and deserved[r] > 0 else problem.total[r])
        for r in range(len(allocated))
        if not slots[r] and problem.total[r] > 0 and (deserved is None or deserved[r] > 0)
    ]
    return round(max(ratios, default=0.0), 4)


def _resources(index: Index, vector: Ints) -> dict[str, str]:
    """Non-zero resources as canonical quantities."""
    return {
        name: format_quantity(name, int(amount))
        for name, amount in zip(index.resources, vector, strict=True)
        if amount and not name.startswith(RESERVED_PREFIX)
    }


def _reached(report: CycleReport) -> list[LevelResult]:
    """The levels with the values of the plan that stands."""
    if report.winner == "solver":
        return list(report.levels)
    return [replace(one, value=report.greedy_levels.get(one.name, 0), status="GREEDY") for one in report.levels]


def _levels(report: CycleReport) -> list[dict[str, Any]]:
    return [
        {
            "name": level.name,
            "value": level.value,
            "bound": level.bound,
            "status": level.status,
            "seconds": round(level.seconds, 4),
            "greedy": report.greedy_levels.get(level.name),
        }
        for level in _reached(report)
    ]


def certificate(report: CycleReport) -> dict[str, Any]:
    """optimal = every level to Disruption proven; gap = the first open level's; greedy = no bound.

    A level that is open by no more than a rounding error (HIDDEN) is named only if no other is open. Levels that a lost
    solver did not come to have no bound.
    """
    if not report.levels:
        return {"status": "greedy", "gap": None, "winner": "greedy"}
    levels = list(_reached(report))
    names = [level.name for level in levels]
    ends = [at for at, name in enumerate(names) if name in ENDS]
    complete = bool(ends)
    counted = levels[: ends[-1] + 1] if complete else levels
    open_levels = [level for level in counted if level.bound != level.value]
    if not open_levels and not complete:
        return {"status": "gap", "gap": None, "level": "disruption", "winner": report.winner}
    if not open_levels:
        return {"status": "optimal", "gap": 0.0, "winner": report.winner}
    worse = [level for level in open_levels if level.bound is None or level.gap > HIDDEN]
    level = (worse or open_levels)[0]
    gap = None if level.bound is None else round(level.gap, 6)
    return {"status": "gap", "gap": gap, "level": level.name, "winner": report.winner}

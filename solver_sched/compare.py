"""One snapshot under several solvers and policies: what each plan comes to, and who fares differently, with why.

    comparison([Run("greedy", report), Run("optimal", report), ...]) -> the dict that `compare -o json` prints

All runs are of one snapshot. What is measured here is measured on the cluster, not by a policy, so that any two runs
can be compared; levels are the exception, and stand under the policy whose they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from solver_sched.actions.decide import Bind, Nominate
from solver_sched.actions.evict import Evict
from solver_sched.cluster.objects import Pod
from solver_sched.cycle import CycleReport
from solver_sched.document import API_VERSION, facts, node_rows, plan_document
from solver_sched.model.effort import Clock, Effort, LevelResult
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RESERVED_PREFIX, Bools, Ints, Plan, Problem
from solver_sched.quantity import format as format_quantity
from solver_sched.rights import lifted, rights
from solver_sched.snapshot import Snapshot

NODE, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
FIXED = ("DaemonSet/", "Node/")
"""Owners of pods that belong to their node: of daemons, and static ones, whose owner is the node itself."""
SECONDS, MOST = 5.0, 20.0
"""For the values of a plan that was not solved for: deterministic seconds of a level, wall seconds after which none is
begun.
"""
FATES = ("running", "bound", "nominated", "pending", "evicted")


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A cycle and who decided in it: "greedy" or "optimal"."""

    solver: str
    report: CycleReport

    @property
    def name(self) -> str:
        """`optimal default`."""
        return f"{self.solver} {self.report.policy.name}"


def comparison(runs: Sequence[Run], *, nodes: bool = False) -> dict[str, Any]:
    """The Comparison document of at least one run, all of one snapshot; plain JSON types only.

    `runs`: measures of each, in the given order (see `_run`). `levels`: of each policy, the values of its runs.
    `differences`: groups whose pods fare differently. `nodes`: with the use of each node, as `node_rows` gives it.
    """
    snapshot = runs[0].report.snapshot
    plans = {run.name: plan_document(run.report) for run in runs}
    return {
        "apiVersion": API_VERSION,
        "kind": "Comparison",
        "snapshot": facts(runs[0].report),
        "runs": [
            _run(snapshot, run, plans[run.name]) | ({"nodes": node_rows(run.report)} if nodes else {}) for run in runs
        ],
        "levels": list(_levels(runs)),
        "differences": list(_differences(runs, plans)),
    }


def _run(snapshot: Snapshot, run: Run, plan: Mapping[str, Any]) -> dict[str, Any]:
    """groups: `started` reach their minimum by this plan, now or once their room is free; `broken` had it and lose it.
    pods: `moved` are evicted to be placed again elsewhere, and not among `evicted`.
    resources: see `_resources`. deficit: see `_deficit`. whole: `nodes` that run nothing but daemons, of `usable` ones
    (ready, not cordoned). span: see `_spans`. seconds: wall time of the cycle's stages.
    """
    report = run.report
    kinds = Counter(type(one) for one in report.decisions)
    moved = sum(isinstance(one, Evict) and bool(one.to) for one in report.decisions)
    started, broken = _turned(report)
    usable = [node.name for node in snapshot.nodes if node.ready and not node.unschedulable]
    return {
        "name": run.name,
        "solver": run.solver,
        "policy": report.policy.name,
        "groups": {"started": started, "broken": broken},
        "pods": {
            "bound": kinds[Bind],
            "nominated": kinds[Nominate],
            "pending": sum(group["pending"] for group in plan["podGroups"]),
            "evicted": kinds[Evict] - moved,
            "moved": moved,
        },
        "resources": _resources(report),
        "queues": plan["queues"],
        "deficit": _deficit(report),
        "whole": {"nodes": len(set(usable) - _busy(snapshot, report)), "usable": len(usable)},
        "span": _spans(snapshot, report),
        "certificate": plan["certificate"],
        "notes": plan["notes"],
        "seconds": plan["seconds"],
    }


def _turned(report: CycleReport) -> tuple[int, int]:
    """Groups that reach their minimum by the plan, and groups that lose it. A group of minimum 0 counts as one of 1."""
    change: Counter[str] = Counter()
    for one in report.decisions:
        if isinstance(one, Bind | Nominate):
            change[one.pod_group] += 1
        elif isinstance(one, Evict) and not one.to:
            change[one.pod_group] -= 1
    ran = {member.name: member.ready >= max(1, member.minimum) for member in report.index.members}
    runs = {
        member.name: member.ready + change[member.name] >= max(1, member.minimum) for member in report.index.members
    }
    return sum(runs[name] and not ran[name] for name in ran), sum(ran[name] and not runs[name] for name in ran)


def _resources(report: CycleReport) -> list[dict[str, Any]]:
    """Per resource, on nodes that take pods: `total`, `used` after the plan by whoever stays, `idle`, and `stranded`:
    what of `idle` is on nodes where none of the shapes fits that ask for the resource and were pending before the plan.
    One yardstick for all runs of a policy: that a plan places all there is does not strand anything.
    """
    problem, idle = report.problem, _idle(report)
    usable = _usable(report)
    stranded = idle * ~_of_use(report, idle)
    return [
        {
            "name": name,
            **{
                # sums as Python's integers: of the largest amounts int64 holds one
                key: format_quantity(name, sum(amounts[usable, r].tolist()))
                for key, amounts in (
                    ("total", problem.node_alloc),
                    ("used", problem.node_alloc - idle),
                    ("idle", idle),
                    ("stranded", stranded),
                )
            },
        }
        for r, name in enumerate(problem.resources)
        if not name.startswith(RESERVED_PREFIX) and problem.total[r] > 0
    ]


def _idle(report: CycleReport) -> Ints:
    """(N, R) what is free when the plan is carried out and those who leave have gone; 0 where a node is over-full."""
    problem, plan = report.problem, report.plan
    free = problem.after(plan).node_free.copy()
    np.subtract.at(free, plan.node, plan.count[:, None] * problem.request[problem.set_shape[plan.pod_set]])
    return np.maximum(free, 0)


def _usable(report: CycleReport) -> Bools:
    """(N,) ready and not cordoned."""
    takes = {node.name for node in report.snapshot.nodes if node.ready and not node.unschedulable}
    return np.array([name in takes for name in report.index.nodes], bool)


def _of_use(report: CycleReport, idle: Ints) -> Bools:
    """(N, R) nodes where a shape fits that was pending and asks for the resource. Rules between pods are left aside."""
    problem = report.problem
    forbidden = report.rules.forbidden.copy()
    pairs = problem.unblocked(report.plan.evicted(problem) == problem.victims.count)
    forbidden[pairs[:, 0], problem.node_kind[pairs[:, 1]]] = False
    real = np.array([not name.startswith(RESERVED_PREFIX) for name in problem.resources], bool)
    out = np.zeros(idle.shape, bool)
    for s in sorted(set(problem.set_shape.tolist())):
        request = problem.request[s]
        fits = ~forbidden[s, problem.node_kind] & (idle[:, real] >= request[real]).all(axis=1)
        out |= fits[:, None] & (request > 0)
    return out


def _deficit(report: CycleReport) -> dict[str, Any] | None:
    """The largest (deserved - used) / deserved after the plan, over contended resources that the queue asks for; None
    where no queue is entitled to anything contended.
    """
    problem, rules = report.problem, report.rules
    if rules.deserved is None:
        return None
    used = problem.after(report.plan).queue_used + report.plan.of_queues(problem)
    worst: tuple[float, str, str] | None = None
    for q, r in np.argwhere((rules.deserved > 0) & rules.contended[None, :] & (rules.demand.ask > 0)).tolist():
        deserved = int(rules.deserved[q, r])
        found = (max(0, deserved - int(used[q, r])) / deserved, report.index.queues[q], problem.resources[r])
        worst = found if worst is None or found[0] > worst[0] else worst
    return None if worst is None else {"value": round(worst[0], 4), "queue": worst[1], "resource": worst[2]}


def _busy(snapshot: Snapshot, report: CycleReport) -> set[str]:
    """Nodes with a pod, when the plan is carried out, that could also run elsewhere."""
    gone = {one.pod for one in report.decisions if isinstance(one, Evict)}
    stays = {pod.node for pod in snapshot.pods if _stays(pod, gone) and not pod.owner.startswith(FIXED)}
    return {node for node in stays if node} | {node for _, node in _arrivals(report)}


def _stays(pod: Pod, gone: set[str]) -> bool:
    """Whether it runs, and still does when the plan is carried out."""
    return bool(pod.node) and not pod.finished and not pod.terminating and pod.key not in gone


def _arrivals(report: CycleReport) -> Iterator[tuple[str, str]]:
    """Group and node of every pod that is placed, again or for the first time."""
    for one in report.decisions:
        if isinstance(one, Bind | Nominate):
            yield one.pod_group, one.node
        elif isinstance(one, Evict) and one.to:
            yield one.pod_group, one.to


def _spans(snapshot: Snapshot, report: CycleReport) -> list[dict[str, Any]]:
    """Over how many nodes, and zones if nodes say theirs, the groups stand that get a pod and then have several: `mean`
    and `max` over these groups. Empty without such a group.
    """
    gone = {one.pod for one in report.decisions if isinstance(one, Evict)}
    pods: dict[str, list[str]] = defaultdict(list)
    for group, node in _arrivals(report):
        pods[group].append(node)
    placed = {one.pod_group for one in report.decisions if isinstance(one, Bind | Nominate)}
    for pod in snapshot.pods:
        if pod.group in placed and pod.node and _stays(pod, gone):
            pods[pod.group].append(pod.node)
    gangs = [nodes for group, nodes in sorted(pods.items()) if group in placed and len(nodes) > 1]
    zone = {node.name: node.labels[ZONE] for node in snapshot.nodes if ZONE in node.labels}
    counts = {NODE: [len(set(nodes)) for nodes in gangs]}
    if zone:
        counts[ZONE] = [len({zone.get(node, "") for node in nodes}) for nodes in gangs]
    return [
        {"key": key, "groups": len(found), "mean": round(fmean(found), 2), "max": max(found)}
        for key, found in counts.items()
        if found
    ]


def _levels(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """Per policy its levels, most important first: each with `values` per run, None where the run does not have it, and
    the bound, which holds for all plans that are as good in the levels above; None where nothing was solved. Where a
    level was left open, what the solve says is at least the value, so it is found anew.
    """
    by_policy: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_policy[run.report.policy.name].append(run)
    for policy, mine in by_policy.items():
        solved = next((run.report for run in mine if run.report.levels), None)
        evicting = solved.plan.frees if solved is not None else any(run.report.plan.frees for run in mine)
        values: dict[str, dict[str, int]] = {}
        for run in mine:
            report = run.report
            known = {level["name"]: level["value"] for level in plan_document(report)["levels"]}
            if report is not solved or any(level.value != level.bound for level in report.levels):
                # who is ended counts in other levels than those of a cycle that ends nobody
                alike = evicting or not report.plan.frees
                known = (_found_anew(report, evicting=evicting) if alike else {}) or known
            values[run.name] = known
        bounds = {level.name: (level.bound, level.status) for level in (solved.levels if solved is not None else ())}
        names = list(bounds) or list(dict.fromkeys(name for found in values.values() for name in found))
        yield {
            "policy": policy,
            "levels": [
                {
                    "name": name,
                    "bound": bounds[name][0] if name in bounds else None,
                    "status": bounds[name][1] if name in bounds else "GIVEN",
                    "values": {run: found.get(name) for run, found in values.items()},
                }
                for name in names
            ],
        }


def _found_anew(report: CycleReport, *, evicting: bool) -> dict[str, int]:
    effort = Effort(SECONDS, report.policy.solve.gap)
    problem, rules, plan = report.problem, report.rules, report.plan
    return {
        level.name: level.value
        for level in values_of(problem, rules, plan, effort, evicting=evicting, clock=Clock(MOST))
    }


def values_of(
    problem: Problem,
    rules: Rules,
    plan: Plan,
    effort: Effort,
    *,
    evicting: bool,
    clock: Clock | None = None,
) -> tuple[LevelResult, ...]:
    """What a plan reaches at the levels of formulation.md 8 if `evicting`, else of 6; none where a plan that breaks
    rules has no values. Solves: which of a queue's work counts as in its share is still to be chosen. `clock`: no
    further level is begun when it is over.
    """
    from solver_sched.model.levels import evaluate

    if not evicting:
        return evaluate(problem, rules, plan, effort, clock=clock)
    none = plan.victim[:0]
    stays = replace(plan, victim=none, out=none, cause=none, moved=none, to=none, moves=none)
    # whoever the plan completes is no remainder
    wide, allowed, whole = lifted(problem, rights(problem, rules, stays), plan)
    levels = evaluate(wide, rules, whole, effort, allowed=allowed, clock=clock)
    return () if any(level.status.startswith("UNKNOWN") for level in levels) else levels


def _differences(runs: Sequence[Run], plans: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Groups of which not as many pods run, are bound, nominated, pending and evicted in all runs; for each run these
    counts, the phase, and the reason if it gives one.
    """
    gone = {
        run.name: Counter(one.pod_group for one in run.report.decisions if isinstance(one, Evict) and not one.to)
        for run in runs
    }
    by_name: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for name, plan in plans.items():
        for group in plan["podGroups"]:
            by_name[group["name"]][name] = group
    for key in sorted(by_name):
        found = by_name[key]
        fates = {
            name: {**{fate: group[fate] for fate in FATES if fate in group}, "evicted": gone[name][key]}
            for name, group in found.items()
        }
        if len({tuple(fate.values()) for fate in fates.values()}) == 1:
            continue
        first = next(iter(found.values()))
        yield {
            "name": key,
            "queue": first["queue"],
            "minMember": first["minMember"],
            "runs": {
                name: {
                    **fates[name],
                    "phase": group["phase"],
                    "reason": group["reason"] and {part: group["reason"][part] for part in ("code", "message")},
                }
                for name, group in found.items()
            },
        }

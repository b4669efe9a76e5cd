"""Plan -> decisions: which pod goes to which node, in the order in which they may be executed.

Pods of a set are taken in task order; one that a node was promised to (`nominatedNodeName`) gets it where the plan has
a place of its set there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from solver_sched.policy import Policy
from solver_sched.problem.arrays import Index, Plan, Problem
from solver_sched.snapshot import Snapshot

ADMITTED_FROM = ("", "Pending")
"""PodGroup phases that `enqueue` may move on (Volcano pkg/scheduler/api/job_info.go, IsPending)."""


@dataclass(frozen=True, slots=True)
class Admit:
    pod_group: str


@dataclass(frozen=True, slots=True)
class Bind:
    action: str
    pod: str
    node: str
    pod_group: str
    queue: str


Decision = Admit | Bind


def decide(snapshot: Snapshot, policy: Policy, problem: Problem, index: Index, plan: Plan) -> tuple[Decision, ...]:
    """Admissions first, then binds, job by job in row order."""
    return (*_admissions(snapshot, policy, index), *_binds(problem, index, plan))


def _admissions(snapshot: Snapshot, policy: Policy, index: Index) -> Iterator[Admit]:
    if not policy.runs("enqueue"):
        return
    for group in snapshot.groups:
        if group.phase in ADMITTED_FROM and group.key not in index.held:
            yield Admit(group.key)


def _binds(problem: Problem, index: Index, plan: Plan) -> Iterator[Bind]:
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for t, node, count in zip(plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        places[t][node] = places[t].get(node, 0) + count
    for t in sorted(places):
        job = int(problem.set_job[t])
        action = "backfill" if problem.shape_best_effort[problem.set_shape[t]] else "allocate"
        for pod, node in _assign(index, t, dict(sorted(places[t].items()))):
            queue = index.queues[int(problem.job_queue[job])]
            yield Bind(action, pod, index.nodes[node], index.jobs[job], queue)


def _assign(index: Index, t: int, free: dict[int, int]) -> list[tuple[str, int]]:
    """(pod key, node row) for the placed pods of a set, in task order."""
    pods = index.set_pods[t][: sum(free.values())]
    promised = {}
    for pod in pods:
        node = index.nominated.get(pod, -1)
        if free.get(node, 0) > 0:
            free[node] -= 1
            promised[pod] = node
    rest = iter([node for node, count in free.items() for _ in range(count)])
    return [(pod, promised[pod] if pod in promised else next(rest)) for pod in pods]

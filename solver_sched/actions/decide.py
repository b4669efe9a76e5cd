"""Plan -> decisions: which pod goes to which node, in the order in which they may be executed.

Pods of a set are taken in task order; one that a node was promised to (`nominatedNodeName`) gets it where the plan has
a place of its set there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver_sched.policy import Policy
from solver_sched.problem.arrays import DomainRule, Index, Plan, Problem, Require, SpreadRule
from solver_sched.problem.domain_rules import blocked
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


def decide(
    snapshot: Snapshot, policy: Policy, problem: Problem, index: Index, plan: Plan, rules: Sequence[DomainRule] = ()
) -> tuple[Decision, ...]:
    """Admissions first, then binds: job by job in row order, but no pod before `rules` let it onto its node."""
    return (*_admissions(snapshot, policy, index), *_in_turn(rules, problem, _binds(problem, index, plan)))


def _admissions(snapshot: Snapshot, policy: Policy, index: Index) -> Iterator[Admit]:
    if not policy.runs("enqueue"):
        return
    for group in snapshot.groups:
        if group.phase in ADMITTED_FROM and group.key not in index.held:
            yield Admit(group.key)


def _binds(problem: Problem, index: Index, plan: Plan) -> Iterator[tuple[int, int, Bind]]:
    """Shape, node row and bind of every placed pod, in row order."""
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for t, node, count in zip(plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        places[t][node] = places[t].get(node, 0) + count
    for t in sorted(places):
        job, shape = int(problem.set_job[t]), int(problem.set_shape[t])
        action = "backfill" if problem.shape_best_effort[shape] else "allocate"
        for pod, node in _assign(index, t, dict(sorted(places[t].items()))):
            queue = index.queues[int(problem.job_queue[job])]
            yield shape, node, Bind(action, pod, index.nodes[node], index.jobs[job], queue)


def _in_turn(rules: Iterable[DomainRule], problem: Problem, binds: Iterable[tuple[int, int, Bind]]) -> Iterator[Bind]:
    """Every bind as soon as kube-scheduler would allow it: after the pod that it requires, lowest spread domain first.

    Pods that require each other have no such order: they come last, in row order.
    """
    own: dict[int, list[DomainRule]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule, Require | SpreadRule):
            for shape in rule.shapes.tolist():
                own[shape].append(rule)
    on_nodes = np.zeros((len(problem.request), len(problem.node_alloc)), np.int64)
    waiting: dict[int, dict[int, deque[Bind]]] = defaultdict(lambda: defaultdict(deque))
    for shape, node, bind in binds:
        if shape in own and blocked(own[shape], on_nodes, shape)[node]:
            waiting[shape][node].append(bind)
            continue
        on_nodes[shape, node] += 1
        yield bind
    moved = True
    while moved:
        moved = False
        for shape, left in waiting.items():
            while left:
                shut = blocked(own[shape], on_nodes, shape)
                node = next((node for node in left if not shut[node]), -1)
                if node < 0:
                    break
                moved = True
                on_nodes[shape, node] += 1
                yield left[node].popleft()
                if not left[node]:
                    del left[node]
    for left in waiting.values():
        for rest in left.values():
            yield from rest


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

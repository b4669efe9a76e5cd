"""Plan -> decisions: which pod goes to which node, in the order in which they may be executed.

Pods of a set are taken in task order; one that a node was promised to (`nominatedNodeName`) gets it where the plan has
a place of its set there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from solver_sched.actions.evict import Evict, evictions
from solver_sched.freed import bound_now
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import DomainRule, Index, Ints, Plan, Problem, Require, SpreadRule
from solver_sched.problem.domain_rules import blocked


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


@dataclass(frozen=True, slots=True)
class Nominate:
    """Placed on room that is still being freed: to be bound when it is."""

    action: str
    pod: str
    node: str
    pod_group: str
    queue: str


Decision = Admit | Bind | Evict | Nominate


def decide(admitted: Iterable[str], problem: Problem, index: Index, plan: Plan, rules: Rules) -> tuple[Decision, ...]:
    """Admissions, binds, evictions, nominations; pods job by job in row order, but none before domain rules let it onto
    its node.
    """
    now = bound_now(problem, rules, plan)
    placed = [*_in_turn(rules.domain_rules, problem, _places(problem, index, plan, now))]
    return (
        *(Admit(key) for key in admitted),
        *(one for one in placed if isinstance(one, Bind)),
        *evictions(problem, index, rules, plan),
        *(one for one in placed if isinstance(one, Nominate)),
    )


def _places(problem: Problem, index: Index, plan: Plan, now: Ints) -> Iterator[tuple[int, int, Bind | Nominate]]:
    """Shape, node row and decision for every placed pod, in row order; `now` (P,): pods that are bound at once."""
    places: dict[int, dict[int, int]] = defaultdict(dict)
    idle: dict[tuple[int, int], int] = defaultdict(int)
    for row, (t, node) in enumerate(zip(plan.pod_set.tolist(), plan.node.tolist(), strict=True)):
        places[t][node] = places[t].get(node, 0) + int(plan.count[row])
        idle[t, node] += int(now[row])
    for t in sorted(places):
        job, shape = int(problem.set_job[t]), int(problem.set_shape[t])
        action = "backfill" if problem.shape_best_effort[shape] else "allocate"
        for pod, node in _assign(index, t, dict(sorted(places[t].items()))):
            kind = Bind if idle[t, node] > 0 else Nominate
            idle[t, node] -= 1
            yield (
                shape,
                node,
                kind(action, pod, index.nodes[node], index.jobs[job], index.queues[int(problem.job_queue[job])]),
            )


def _in_turn(
    rules: Iterable[DomainRule], problem: Problem, binds: Iterable[tuple[int, int, Bind | Nominate]]
) -> Iterator[Bind | Nominate]:
    """Every bind as soon as kube-scheduler would allow it: after the pod that it requires, lowest spread domain first.

    Pods that require each other have no such order: they come last, in row order.
    """
    own: dict[int, list[DomainRule]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule, Require | SpreadRule):
            for shape in rule.shapes.tolist():
                own[shape].append(rule)
    on_nodes = np.zeros((len(problem.request), len(problem.node_alloc)), np.int64)
    waiting: dict[int, dict[int, deque[Bind | Nominate]]] = defaultdict(lambda: defaultdict(deque))
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

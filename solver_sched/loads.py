"""Node loads while pods are placed one by one: what still fits where, and how good each node would be.

Scores are those of kube-scheduler (NodeResourcesFit: LeastAllocated, MostAllocated; NodeResourcesBalancedAllocation)
and of Volcano (pkg/scheduler/plugins/binpack/binpack.go), in integers: 0..100 per term, times the term's weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Bools, DomainRule, Ints, Plan, Problem
from solver_sched.problem.domain_rules import blocked, touched
from solver_sched.problem.vectors import distinct

State = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kind, allocatable, used, and what of the rest is still being freed."""
BASIC = ("cpu", "memory")
BALANCED = ("cpu", "memory", "nvidia.com/gpu")


class NodeScore:
    """The score of one more pod of a shape on a node, without what does not depend on the load (`static`)."""

    def __init__(self, problem: Problem, rules: Rules, shape: int) -> None:
        w = rules.scores
        request = problem.request[shape].tolist()
        self.request: list[int] = request
        self.asked = [(r, amount) for r, amount in enumerate(request) if amount]
        self.static: list[int] = w.static[shape].tolist()
        self._least, self._most, self._balanced = w.least, w.most, w.balanced
        self._basic = [r for r, name in enumerate(problem.resources) if name in BASIC]
        self._even = [r for r, name in enumerate(problem.resources) if name in BALANCED]
        shares = w.binpack_shares.tolist()
        self._packed = [(r, shares[r]) for r, _ in self.asked if w.binpack and shares[r] > 0]
        self._binpack, self._share_sum = w.binpack, sum(share for _, share in self._packed)

    def of(self, alloc: Sequence[int], used: Sequence[int]) -> int:
        """`alloc`, `used` (R,) of the node, `used` without the pod. Loop and not arrays: one node changes at a time."""
        request, total = self.request, 0
        if self._least or self._most:
            least = most = 0
            for r in self._basic:
                if alloc[r]:
                    full = 100 * (used[r] + request[r])
                    least += max(0, (100 * alloc[r] - full) // alloc[r])
                    most += min(100, full // alloc[r])
            total += self._least * (least // len(self._basic)) + self._most * (most // len(self._basic))
        if self._balanced:
            parts = [min(1.0, (used[r] + request[r]) / alloc[r]) for r in self._even if alloc[r]]
            if parts:
                mean = sum(parts) / len(parts)
                deviation = math.sqrt(sum((part - mean) ** 2 for part in parts) / len(parts))
                total += self._balanced * int(100.0 - 100.0 * deviation)
        if self._packed:
            full = sum(share * (100 * (used[r] + request[r]) // alloc[r]) for r, share in self._packed if alloc[r])
            total += self._binpack * full // self._share_sum
        return total


FEW = 16
"""Nodes that are looked at one by one rather than as arrays."""
NO_ROOM = -1
IDLE = 2**40
"""What idle room scores above room that is still being freed: a pod that can be bound now does not wait for a better
node.
"""


class Loads:
    """Free room per node and, per shape, the score of every node that would take one more pod.

    Nodes of equal kind, size, load and room being freed are in one *state*; a state is scored once per shape, however
    many nodes pass through it, and a shape's scores are renewed only for the nodes that changed since it was last asked
    for.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        self._states: list[State] = []
        self._row: dict[State, int] = {}
        alloc, used = problem.node_alloc, problem.node_alloc - problem.node_free
        self._waits = bool(problem.node_releasing.any())
        freed = problem.node_releasing
        first, self.state = distinct(np.column_stack([problem.node_kind, alloc, used, freed]))
        for n in first.tolist():
            kind = int(problem.node_kind[n])
            self._state_row((kind, tuple(alloc[n].tolist()), tuple(used[n].tolist()), tuple(freed[n].tolist())))
        self._log: list[int] = []
        self._view: dict[int, tuple[int, Ints]] = {}
        self._known: dict[int, dict[int, int]] = defaultdict(dict)
        self._score: dict[int, NodeScore] = {}
        self._coupled: dict[int, list[DomainRule]] = defaultdict(list)
        for rule in rules.domain_rules:
            for s in touched(rule):
                self._coupled[int(s)].append(rule)

    @cached_property
    def placed(self) -> Ints:
        """(S, N) pods placed so far; kept only where domain rules read it."""
        return np.zeros((len(self.problem.request), len(self.problem.node_free)), np.int64)

    def best(self, shape: int) -> int:
        """The node of highest score for one more pod, lowest row among equals; -1 if none takes it."""
        score = self._scores(shape)
        if not len(score):
            return -1
        if shape in self._coupled:
            score = np.where(self.shut(shape), NO_ROOM, score)
        node = int(score.argmax())
        return node if score[node] >= 0 else -1

    def ranking(self, shape: int) -> Ints:
        """The nodes that no predicate forbids, highest score of one more pod first, whether there is room or not."""
        rows, inverse = np.unique(self.state, return_inverse=True)
        scorer, score = self._scorer(shape), np.full(len(rows), NO_ROOM, np.int64)
        for i, (kind, alloc, used, _) in enumerate(self._states[row] for row in rows.tolist()):
            if not self.rules.forbidden[shape, kind]:
                score[i] = max(0, scorer.static[kind] + scorer.of(alloc, used))
        of_node = score[inverse.reshape(-1)]
        order: Ints = np.argsort(-of_node, kind="stable")
        return order[of_node[order] >= 0]

    def shut(self, shape: int) -> Bools:
        """(N,) nodes that a rule between pods keeps from one more pod."""
        if shape not in self._coupled:
            return np.zeros(len(self.state), bool)
        return blocked(self._coupled[shape], self.placed, shape)

    def move(self, shape: int, node: int, pods: int) -> None:
        """Place (or take back, pods < 0) pods of a shape on a node."""
        self.take(node, [pods * a for a in self._scorer(shape).request])
        if self._coupled:
            self.placed[shape, node] += pods

    def take(self, node: int, amounts: Sequence[int]) -> None:
        """Room of a node that is used from now on; negative = is free."""
        kind, alloc, used, freed = self._states[self.state[node]]
        after = tuple(u + a for u, a in zip(used, amounts, strict=True))
        self.state[node] = self._state_row((kind, alloc, after, freed))
        self._log.append(node)

    def _state_row(self, state: State) -> int:
        row = self._row.setdefault(state, len(self._states))
        if row == len(self._states):
            self._states.append(state)
        return row

    def _scorer(self, shape: int) -> NodeScore:
        if shape not in self._score:
            self._score[shape] = NodeScore(self.problem, self.rules, shape)
        return self._score[shape]

    def _scores(self, shape: int) -> Ints:
        """(N,) score per node, NO_ROOM where the pod does not go."""
        seen, score = self._view.get(shape, (-1, np.zeros(0, np.int64)))
        if seen == len(self._log):
            return score
        known, fresh = self._known[shape], self._log[seen:]
        if seen >= 0 and len(fresh) <= FEW:
            for node in fresh:
                score[node] = self._of_state(known, shape, int(self.state[node]))
        else:
            nodes = np.array(fresh, np.int64) if seen >= 0 else np.arange(len(self.state))
            rows, inverse = np.unique(self.state[nodes], return_inverse=True)
            values = [self._of_state(known, shape, row) for row in rows.tolist()]
            score = score if seen >= 0 else np.full(len(self.state), NO_ROOM, np.int64)
            score[nodes] = np.array(values, np.int64)[inverse.reshape(-1)]
        self._view[shape] = (len(self._log), score)
        return score

    def _of_state(self, known: dict[int, int], shape: int, row: int) -> int:
        value = known.get(row)
        if value is None:
            value = known[row] = self._one(shape, row)
        return value

    def _one(self, shape: int, row: int) -> int:
        """Score of one state."""
        scorer = self._scorer(shape)
        kind, alloc, used, freed = self._states[row]
        if self.rules.forbidden[shape, kind]:
            return NO_ROOM
        for r, amount in scorer.asked:
            if used[r] + amount > alloc[r]:
                return NO_ROOM
        score = max(0, scorer.static[kind] + scorer.of(alloc, used))
        if self._waits and all(used[r] + freed[r] + amount <= alloc[r] for r, amount in scorer.asked):
            score += IDLE
        return score


def placement_score(problem: Problem, rules: Rules, plan: Plan) -> int:
    """O11: sum over placed pods of their node's score in the end state; before that, pods on idle room."""
    on_nodes = plan.on_nodes(problem)
    used = problem.node_alloc - problem.node_free + on_nodes.T @ problem.request
    idle = problem.node_free - problem.node_releasing
    total = 0
    for s in np.flatnonzero(on_nodes.any(axis=1)).tolist():
        scorer = NodeScore(problem, rules, s)
        for n in np.flatnonzero(on_nodes[s]).tolist():
            one = scorer.of(problem.node_alloc[n].tolist(), (used[n] - problem.request[s]).tolist())
            total += int(on_nodes[s, n]) * (scorer.static[problem.node_kind[n]] + one)
            if problem.node_releasing.any():
                fit = [int(on_nodes[s, n]), *(int(idle[n, r]) // amount for r, amount in scorer.asked)]
                total += IDLE * max(0, min(fit))
                idle[n] -= max(0, min(fit)) * problem.request[s]
    return total

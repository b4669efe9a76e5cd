"""Node loads while pods are placed one by one: what still fits where, and how good each node would be.

Scores follow volcano-semantics 2.18 and 2.19, in integers: 0..100 per term, times the term's weight.
"""

from __future__ import annotations

import numpy as np

from solver_sched.plugins.plugin import NodeScores
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Plan, Problem
from solver_sched.problem.domain_rules import blocked

BALANCED = ("cpu", "memory", "nvidia.com/gpu")


def node_scores(problem: Problem, scores: NodeScores, shape: int, nodes: Ints, used: Ints) -> Ints:
    """(M,) score of one more pod of `shape` on each of `nodes`, whose load without it is `used` (M, R)."""
    alloc = problem.node_alloc[nodes]
    after = used + problem.request[shape]
    out = scores.static[shape, problem.node_kind[nodes]].copy()
    basic = [r for r, name in enumerate(problem.resources) if name in ("cpu", "memory")]
    fraction = np.minimum(100 * after // np.maximum(alloc, 1), 100)
    if scores.least:
        left = np.where(alloc > 0, 100 * np.maximum(alloc - after, 0) // np.maximum(alloc, 1), 0)
        out += scores.least * (left[:, basic].sum(axis=1) // len(basic))
    if scores.most:
        out += scores.most * (np.where(alloc > 0, fraction, 0)[:, basic].sum(axis=1) // len(basic))
    if scores.balanced:
        out += scores.balanced * _balanced(problem, alloc, after)
    weighed = (scores.binpack > 0) & (problem.request[shape] > 0)
    if weighed.any():
        weights = scores.binpack[weighed]
        full = np.where(alloc[:, weighed] > 0, 100 * after[:, weighed] // np.maximum(alloc[:, weighed], 1), 0)
        over = (after[:, weighed] > alloc[:, weighed]).any(axis=1)
        # weights carry binpack.weight as a common factor; the mean is over the weights without it
        common = int(np.gcd.reduce(weights))
        out += np.where(over, 0, common * (full @ (weights // common)) // int((weights // common).sum()))
    return out


def _balanced(problem: Problem, alloc: Ints, after: Ints) -> Ints:
    """100 x (1 - standard deviation of the used fractions of cpu, memory and GPUs), over the resources a node has."""
    columns = [r for r, name in enumerate(problem.resources) if name in BALANCED]
    have = alloc[:, columns] > 0
    fraction = np.where(have, np.minimum(after[:, columns] / np.maximum(alloc[:, columns], 1), 1.0), 0.0)
    number = np.maximum(have.sum(axis=1), 1)
    mean = fraction.sum(axis=1) / number
    deviation = np.sqrt((np.where(have, fraction - mean[:, None], 0.0) ** 2).sum(axis=1) / number)
    return (100 * (1 - deviation)).astype(np.int64)


class Loads:
    """Free room per node and, per shape, the score of every node that would take one more pod (-1 = none).

    Scores are kept per shape and renewed only for the nodes that changed since the shape was last asked for.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        self.free = problem.node_free.copy()
        self.used = problem.node_alloc - problem.node_free
        self.placed = np.zeros((len(problem.request), len(problem.node_free)), np.int64)
        self._coupled = {int(s) for rule in rules.domain_rules for s in _touched(rule)}
        self._log: list[int] = []
        self._view: dict[int, tuple[int, Ints]] = {}

    def best(self, shape: int) -> int:
        """The node of highest score for one more pod, lowest row among equals; -1 if none takes it."""
        score = self._scores(shape)
        if shape in self._coupled:
            score = np.where(blocked(self.rules.domain_rules, self.placed, shape), -1, score)
        if not len(score):
            return -1
        node = int(score.argmax())
        return node if score[node] >= 0 else -1

    def move(self, shape: int, node: int, pods: int) -> None:
        """Place (or take back, pods < 0) pods of a shape on a node."""
        amount = pods * self.problem.request[shape]
        self.free[node] -= amount
        self.used[node] += amount
        self.placed[shape, node] += pods
        self._log.append(node)

    def _scores(self, shape: int) -> Ints:
        seen, score = self._view.get(shape, (-1, np.zeros(0, np.int64)))
        if seen == len(self._log):
            return score
        if seen < 0:
            nodes = np.arange(len(self.free))
            score = np.full(len(nodes), -1, np.int64)
        else:
            nodes = np.array(sorted(set(self._log[seen:])), np.int64)
        request = self.problem.request[shape]
        asked = request > 0
        fits = (self.free[nodes][:, asked] >= request[asked]).all(axis=1)
        fits &= ~self.rules.forbidden[shape, self.problem.node_kind[nodes]]
        score[nodes] = -1
        good = nodes[fits]
        if len(good):
            score[good] = np.maximum(node_scores(self.problem, self.rules.scores, shape, good, self.used[good]), 0)
        self._view[shape] = (len(self._log), score)
        return score


def _touched(rule: object) -> list[int]:
    """Shapes whose placement a domain rule reads or restricts."""
    out: list[int] = []
    for name in ("shapes", "left", "right", "targets", "counted"):
        out += np.atleast_1d(getattr(rule, name, np.zeros(0, np.int64))).tolist()
    return out


def placement_score(problem: Problem, rules: Rules, plan: Plan) -> int:
    """O11: sum over placed pods of their node's score in the end state."""
    on_nodes = plan.on_nodes(problem)
    used = problem.node_alloc - problem.node_free + on_nodes.T @ problem.request
    total = 0
    for s in np.flatnonzero(on_nodes.any(axis=1)).tolist():
        nodes = np.flatnonzero(on_nodes[s])
        score = node_scores(problem, rules.scores, s, nodes, used[nodes] - problem.request[s])
        total += int((score * on_nodes[s, nodes]).sum())
    return total

"""Node loads while pods are placed one by one: what still fits where, and how good each node would be.

Scores are those of kube-scheduler (NodeResourcesFit: LeastAllocated, MostAllocated; NodeResourcesBalancedAllocation)
and of Volcano (pkg/scheduler/plugins/binpack/binpack.go), in integers: 0..100 per term, times the term's weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial, reduce
from operator import add, itemgetter, mul, sub
from typing import NamedTuple

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Bools, DomainRule, Ints, Plan, Problem
from solver_sched.problem.domain_rules import blocked, touched
from solver_sched.problem.vectors import alike

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
        shares = w.binpack_shares.tolist()
        packed = [r for r, _ in self.asked if w.binpack and shares[r] > 0]
        basic, even = ([r for r, name in enumerate(problem.resources) if name in named] for named in (BASIC, BALANCED))
        # only what is read: all else, such as what reservations leave, changes from cycle to cycle
        read = sorted({*basic, *even, *packed})
        place = {r: i for i, r in enumerate(read)}
        terms = _Terms(
            tuple(request[r] for r in read),
            w.least,
            w.most,
            tuple(place[r] for r in basic),
            w.balanced,
            tuple(place[r] for r in even),
            w.binpack,
            tuple((place[r], shares[r]) for r in packed),
        )
        self._terms, self._columns = terms, read
        self._score, self._read = _scorer(terms), itemgetter(*read)

    def of_all(self, alloc: Ints, used: Ints) -> Ints:
        """(M,) `of` of many nodes, (M, R) each."""
        alloc, used = alloc[:, self._columns], used[:, self._columns]
        if max(alloc.max(initial=0), used.max(initial=0) + max(self._terms.request)) < EXACT:
            return _scores(self._terms, alloc, used)
        pairs = zip(alloc.tolist(), used.tolist(), strict=True)
        return np.array([self._score(tuple(a), tuple(u)) for a, u in pairs], np.int64)

    def of(self, alloc: Sequence[int], used: Sequence[int]) -> int:
        """`alloc`, `used` (R,) of the node, `used` without the pod."""
        return self._score(self._read(alloc), self._read(used))


class _Terms(NamedTuple):
    """The request of a pod in the resources that are read; weights of the terms, and the resources that each reads;
    `packed`: with their shares.
    """

    request: tuple[int, ...]
    least: int
    most: int
    basic: tuple[int, ...]
    balanced: int
    even: tuple[int, ...]
    binpack: int
    packed: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def _scorer(terms: _Terms) -> Callable[[tuple[int, ...], tuple[int, ...]], int]:
    """The score by what there is and what is used. Kept, as most nodes stay as they were from cycle to cycle."""
    return lru_cache(maxsize=1 << 12)(partial(_score, terms))


def _score(terms: _Terms, alloc: tuple[int, ...], used: tuple[int, ...]) -> int:
    """Loop and not arrays: one node changes at a time. Sums from left to right, as in `_scores`."""
    request, total = terms.request, 0
    if terms.least or terms.most:
        least = most = 0
        for r in terms.basic:
            if alloc[r]:
                full = 100 * (used[r] + request[r])
                least += max(0, (100 * alloc[r] - full) // alloc[r])
                most += min(100, full // alloc[r])
        total += terms.least * (least // len(terms.basic)) + terms.most * (most // len(terms.basic))
    if terms.balanced:
        parts = [min(1.0, (used[r] + request[r]) / alloc[r]) for r in terms.even if alloc[r]]
        if parts:
            mean = reduce(add, parts) / len(parts)
            apart = [part - mean for part in parts]
            deviation = math.sqrt(reduce(add, map(mul, apart, apart)) / len(parts))
            total += terms.balanced * int(100.0 - 100.0 * deviation)
    if terms.packed:
        full = sum(share * (100 * (used[r] + request[r]) // alloc[r]) for r, share in terms.packed if alloc[r])
        total += terms.binpack * full // sum(share for _, share in terms.packed)
    return total


def _scores(terms: _Terms, alloc: Ints, used: Ints) -> Ints:
    """`_score` of every row, while all amounts are exact as doubles."""
    total = np.zeros(len(alloc), np.int64)
    there, size, after = alloc > 0, np.maximum(alloc, 1), used + terms.request
    full = 100 * after // size * there
    if terms.least:
        left = np.maximum(0, (100 * alloc - 100 * after) // size) * there
        total += terms.least * (left[:, terms.basic].sum(axis=1) // len(terms.basic))
    if terms.most:
        total += terms.most * (np.minimum(100, full)[:, terms.basic].sum(axis=1) // len(terms.basic))
    if terms.balanced:
        parts = np.where(there, np.minimum(1.0, after / size), 0.0).T[list(terms.even)]
        kinds = there.T[list(terms.even)]
        count = np.maximum(1, kinds.sum(axis=0))
        apart = (parts - reduce(add, parts) / count) * kinds
        deviation = np.sqrt(reduce(add, apart * apart) / count)
        total += terms.balanced * (100.0 - 100.0 * deviation).astype(np.int64) * kinds.any(axis=0)
    if terms.packed:
        shares = np.array([share for _, share in terms.packed], np.int64)
        total += terms.binpack * (full[:, [r for r, _ in terms.packed]] @ shares) // shares.sum()
    return total


EXACT = 2**52
"""Amounts below this, and their quotients, are the same as integers and as doubles; a hundred times as much fits 64
bits.
"""
UNKNOWN = -1
"""State of a node that nobody has asked for."""
NO_ROOM = -1
IDLE = 2**40
"""What idle room scores above room that is still being freed: a pod that can be bound now does not wait for a better
node.
"""


class Loads:
    """Free room per node and, per shape, the score of every node that would take one more pod.

    A shape's scores are found for all nodes at once, and renewed only for those that changed since it was last asked
    for. Of these, nodes of equal kind, size, load and room being freed are in one *state*, which is scored once per
    shape, however many nodes pass through it.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        self._states: list[State] = []
        self._row: dict[State, int] = {}
        self._waits = bool(problem.node_releasing.any())
        self.state = np.full(len(problem.node_free), UNKNOWN)
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

    def fill(self, shape: int, pods: int) -> list[int]:
        """Place up to so many pods of a shape one after the other, each on its best node; the nodes."""
        out: list[int] = []
        if shape in self._coupled:
            while len(out) < pods and (node := self.best(shape)) >= 0:
                self.move(shape, node, 1)
                out.append(node)
            return out
        # as above, but for what would be looked up each time
        score, known, request = self._scores(shape), self._known[shape], self._scorer(shape).request
        for _ in range(pods if len(score) else 0):
            node = int(score.argmax())
            if score[node] < 0:
                break
            self.take(node, request)
            score[node] = self._of_state(known, shape, int(self.state[node]))
            out.append(node)
        if self._coupled and out:
            np.add.at(self.placed[shape], out, 1)
        self._view[shape] = (len(self._log), score)
        return out

    def coupled(self, shape: int) -> bool:
        """Whether a rule between pods speaks of the shape."""
        return shape in self._coupled

    def ranking(self, shape: int) -> Ints:
        """The nodes that no predicate forbids, highest score of one more pod first, whether there is room or not."""
        rows, inverse = np.unique(self._states_of(np.arange(len(self.state))), return_inverse=True)
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
        request = self._scorer(shape).request
        self.take(node, request if pods == 1 else [pods * amount for amount in request])
        if self._coupled:
            self.placed[shape, node] += pods

    def take(self, node: int, amounts: Sequence[int]) -> None:
        """Room of a node that is used from now on; negative = is free."""
        if self.state[node] == UNKNOWN:
            p = self.problem
            alloc, free, freed = (of[node].tolist() for of in (p.node_alloc, p.node_free, p.node_releasing))
            state = (int(p.node_kind[node]), tuple(alloc), tuple(map(sub, alloc, free)), tuple(freed))
            self.state[node] = self._state_row(state)
        kind, alloc, used, freed = self._states[self.state[node]]
        after = tuple(map(add, used, amounts))
        self.state[node] = self._state_row((kind, alloc, after, freed))
        self._log.append(node)

    def _states_of(self, nodes: Ints) -> Ints:
        """Row of the state of each node. Those that nobody has asked for so far are told apart together."""
        fresh = nodes[self.state[nodes] == UNKNOWN]
        if len(fresh):
            p = self.problem
            kind, alloc, freed = p.node_kind[fresh], p.node_alloc[fresh], p.node_releasing[fresh]
            used = alloc - p.node_free[fresh]
            first, inverse = alike(np.column_stack([kind, alloc, used, freed] if self._waits else [kind, alloc, used]))
            columns = (kind[first], alloc[first], used[first], freed[first])
            states = zip(*(column.tolist() for column in columns), strict=True)
            rows = [self._state_row((k, tuple(a), tuple(u), tuple(f))) for k, a, u, f in states]
            self.state[fresh] = np.array(rows)[inverse]
        out: Ints = self.state[nodes]
        return out

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
        if seen < 0:
            score, seen = self._at_first(shape), 0
        known = self._known[shape]
        for node in set(self._log[seen:]):
            score[node] = self._of_state(known, shape, int(self.state[node]))
        self._view[shape] = (len(self._log), score)
        return score

    def _at_first(self, shape: int) -> Ints:
        """(N,) score per node as long as nothing has been placed."""
        p, scorer = self.problem, self._scorer(shape)
        asked = [r for r, _ in scorer.asked]
        fits = (p.node_free[:, asked] >= p.request[shape, asked]).all(axis=1)
        nodes = np.flatnonzero(fits & ~self.rules.forbidden[shape, p.node_kind])
        alloc, free = p.node_alloc[nodes], p.node_free[nodes]
        score = np.full(len(self.state), NO_ROOM, np.int64)
        score[nodes] = np.maximum(0, np.array(scorer.static)[p.node_kind[nodes]] + scorer.of_all(alloc, alloc - free))
        if self._waits:
            idle = (free - p.node_releasing[nodes])[:, asked] >= p.request[shape, asked]
            score[nodes] += IDLE * idle.all(axis=1)
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
    used = problem.node_alloc - problem.node_free
    np.add.at(used, plan.node, plan.count[:, None] * problem.request[problem.set_shape[plan.pod_set]])
    waits = problem.node_releasing.any()
    idle = problem.node_free - problem.node_releasing
    total, scorer = 0, {}
    for s, n in np.argwhere(on_nodes).tolist():
        if s not in scorer:
            scorer[s] = NodeScore(problem, rules, s)
        one = scorer[s].of(problem.node_alloc[n].tolist(), (used[n] - problem.request[s]).tolist())
        pods = int(on_nodes[s, n])
        total += pods * (scorer[s].static[problem.node_kind[n]] + one)
        if waits:
            fit = max(0, min([pods, *(int(idle[n, r]) // amount for r, amount in scorer[s].asked)]))
            total += IDLE * fit
            idle[n] -= fit * problem.request[s]
    return total

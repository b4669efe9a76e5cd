"""Pods that take most of a node, in a model of pooled nodes: where each stands, and who has to go from there.

Of pooled room a pod of eight GPUs takes one of each of eight nodes; of nodes it takes one that is cleared. Where an
empty node has room for one pod of a shape and no more, the pairs of this shape and such nodes have variables of their
own, with rows that hold for every plan. So the model says what clearing nodes costs, and is still a relaxation: of
smaller pods it knows the pool alone (formulation.md 8, docs/adr/0027).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.floor import Floor
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms, at_most
from solver_sched.model.pooled import Pooled
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Ints, Problem

MOST = 1
"""Pods of a shape that an empty node has room for, up to which the pair has a variable. With 2 all levels inside shares
had the same values on 1,000 nodes, in three times the time.
"""
UNLIMITED = 2**31
"""Pods of a shape that asks for nothing that there is room for."""


class Cleared:
    """Variables and rows of single nodes in the model of `ledger`, which is that of the pooled problem `of`. `own`:
    pods of a set that go; `single`: by shape and node, pods that stand there; `gone`: pods of each pooled set that go.

    Raises OutOfTimeError where the clock of the evictions runs out.
    """

    def __init__(self, ledger: Ledger, floor: Floor, problem: Problem, rules: Rules, of: Pooled) -> None:
        assert ledger.evictions is not None
        self.ledger, self.problem, self.rules, self.of = ledger, problem, rules, of
        self.model, self.evictions = ledger.model, ledger.evictions
        v = problem.victims
        self._ending = {var.index for ends in self.evictions.end.values() for terms in ends for var in terms.variables}
        self.gone = [self.evictions.gone(t) for t in range(len(of.problem.victims.holder))]
        able = np.array([bool(gone.variables) for gone in self.gone], bool)[of.set_of]
        self.own: dict[int, cp_model.IntVar] = {}
        self.single: dict[int, dict[int, cp_model.IntVar]] = defaultdict(dict)
        self._on_node: dict[int, list[int]] = defaultdict(list)
        for s in np.flatnonzero(able).tolist():
            self._on_node[int(v.node[s])].append(s)
        self._most = np.maximum(problem.node_free, 0)
        np.add.at(self._most, v.node[able], v.count[able, None] * v.request[able])
        self.floor = floor
        self._rows()

    def _rows(self) -> None:
        """Of every pair of a pooled node and a shape: its pods stand where a node has a variable, or elsewhere."""
        shapes = sorted({s for s, _ in self.floor.placement.var})
        most = {s: self.fits(s, self._most) for s in shapes}
        near = {s: (self.fits(s, self.problem.node_alloc) <= MOST) & (most[s] > 0) for s in shapes}
        on_node: dict[int, dict[int, cp_model.IntVar]] = defaultdict(dict)
        for s in shapes:
            for n in np.flatnonzero(near[s]).tolist():
                on_node[n][s] = self.single[s][n] = self.ledger.int_var(int(most[s][n]))
        for n, pods in on_node.items():
            self.evictions.clock.check()
            self._node(n, pods, {s: int(most[s][n]) for s in pods})
        self._link()
        for (s, c), var in self.floor.placement.var.items():
            here = self.of.node_of == c
            row = Terms.of(var)
            for n in np.flatnonzero(here & near[s]).tolist():
                row.add(self.single[s][n], -1)
            at_most(self.model, row, int(most[s][here & ~near[s]].sum()))

    def fits(self, shape: int, room: Ints) -> Ints:
        """(N,) pods of the shape for which there is room."""
        request = self.problem.request[shape]
        asked = request > 0
        fits = (room[:, asked] // request[asked]).min(axis=1, initial=UNLIMITED)
        out: Ints = np.where(self.rules.forbidden[shape, self.problem.node_kind], 0, np.maximum(fits, 0))
        return out

    def _node(self, n: int, pods: dict[int, cp_model.IntVar], most: dict[int, int]) -> None:
        """Pods with a variable on one node find room there. That each does beside every set that stays whole follows
        for whole numbers; it sharpens the relaxation.
        """
        p, v = self.problem, self.problem.victims
        leaves = {s: self._leaving(s) for s in self._on_node[n]}
        room = np.maximum(p.node_free[n], 0)
        for r in range(len(p.total)):
            row = Terms()
            for shape, var in pods.items():
                row.add(var, int(p.request[shape, r]))
            for s, terms in leaves.items() if row.variables else ():
                row.extend(terms, -int(v.request[s, r]))
            at_most(self.model, row, int(room[r]))
        for shape, var in pods.items():
            request = p.request[shape]
            asked = request > 0
            for s, terms in leaves.items():
                count = int(v.count[s])
                if s in self.own and count > 1:
                    continue
                beside = int(((self._most[n] - count * v.request[s])[asked] // request[asked]).min())
                if beside < most[shape]:
                    row = Terms.of(var, count)
                    row.extend(terms, beside - most[shape])
                    at_most(self.model, row, count * beside)

    def _leaving(self, s: int) -> Terms:
        """Pods of a set that go: of a gang that goes whole or not at all they are no variable of their own."""
        count, gone = int(self.problem.victims.count[s]), self.gone[self.of.set_of[s]]
        if all(var.index in self._ending for var in gone.variables):
            return self.evictions.ended(int(self.problem.victims.holder[s])).times(count)
        self.own[s] = self.ledger.int_var(count)
        return Terms.of(self.own[s])

    def _link(self) -> None:
        """What goes of a pooled set goes from its nodes."""
        elsewhere: dict[int, int] = defaultdict(int)
        known: dict[int, Terms] = defaultdict(Terms)
        for s, (t, count) in enumerate(zip(self.of.set_of.tolist(), self.problem.victims.count.tolist(), strict=True)):
            if s in self.own:
                known[t].add(self.own[s], 1)
            else:
                elsewhere[t] += count
        for t, here in known.items():
            if elsewhere[t]:
                here.add(self.ledger.int_var(elsewhere[t]), 1)
            here.extend(self.gone[t], -1)
            self.model.add(here.linear() == 0)

    def going(self, value: Callable[[Terms], int]) -> list[tuple[int, int, int]]:
        """(set, pods, cause) of everybody who goes in a solution, on single nodes."""
        rest = [s for s in range(len(self.of.set_of)) if s not in self.own]
        pods = [(s, value(Terms.of(var))) for s, var in self.own.items()]
        return self.by_cause(value, pods + [(s, int(self.problem.victims.count[s])) for s in rest])

    def by_cause(self, value: Callable[[Terms], int], most: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """(set, pods, cause) of everybody who goes in a solution, of each set at most so many pods."""
        left = {(t, cause): pods for t, pods, cause in self.evictions.causes(value)}
        out: list[tuple[int, int, int]] = []
        for s, pods in most:
            for cause in (PREEMPT, RECLAIM):
                some = min(pods, left.get((int(self.of.set_of[s]), cause), 0))
                if some:
                    out.append((s, some, cause))
                    left[int(self.of.set_of[s]), cause] -= some
                    pods -= some
        return out

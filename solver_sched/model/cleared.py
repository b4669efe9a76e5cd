"""Pods that take most of a node, in a model of pooled nodes: where each stands, and who has to go from there.

Of pooled room a pod of eight GPUs takes one of each of eight nodes; of nodes it takes one that is cleared. Where an
empty node has room for one pod of a shape and no more, the pairs of this shape and such nodes have variables of their
own, with rows that hold for every plan. So the model says what clearing nodes costs, and is still a relaxation: of
smaller pods it knows the pool alone (formulation.md 7, docs/adr/0027).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.floor import Floor
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms, at_most
from solver_sched.model.pooled import Pooled
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Ints, Problem

MOST = 1
"""Pods of a shape that an empty node has room for, up to which the pair has a variable."""


class Cleared:
    """Variables and rows of single nodes in the model of `ledger`, which is that of the pooled problem `of`.

    Raises OutOfTimeError where the clock of the evictions runs out.
    """

    def __init__(self, ledger: Ledger, floor: Floor, problem: Problem, rules: Rules, of: Pooled) -> None:
        assert ledger.evictions is not None
        self.ledger, self.problem, self.rules, self.of = ledger, problem, rules, of
        self.model, self.evictions = ledger.model, ledger.evictions
        v = problem.victims
        self._ending = {var.index for ends in self.evictions.end.values() for terms in ends for var in terms.variables}
        self._gone = [self.evictions.gone(t) for t in range(len(of.problem.victims.holder))]
        self._leaves: dict[int, Terms] = {}
        self._own: dict[int, cp_model.IntVar] = {}
        self._on_node: dict[int, list[int]] = defaultdict(list)
        for s, (n, t) in enumerate(zip(v.node.tolist(), of.set_of.tolist(), strict=True)):
            if self._gone[t].variables:
                self._on_node[n].append(s)
        room = np.maximum(problem.node_free, 0)
        able = np.array([bool(self._gone[t].variables) for t in of.set_of.tolist()], bool)
        self._most = room.copy()
        np.add.at(self._most, v.node[able], v.count[able, None] * v.request[able])
        self._rows(floor)

    def _rows(self, floor: Floor) -> None:
        shapes = sorted({s for s, _ in floor.placement.var})
        empty = {s: self._fits(s, self.problem.node_alloc) for s in shapes}
        most = {s: self._fits(s, self._most) for s in shapes}
        single: dict[int, dict[int, cp_model.IntVar]] = defaultdict(dict)
        for s in shapes:
            for n in np.flatnonzero((empty[s] <= MOST) & (most[s] > 0)).tolist():
                self.evictions.clock.check()
                single[n][s] = self.ledger.int_var(int(most[s][n]))
        for n, pods in single.items():
            self.evictions.clock.check()
            self._node(n, pods, {s: int(most[s][n]) for s in pods})
        self._link()
        for (s, c), var in floor.placement.var.items():
            of_class = self.of.node_of == c
            rest = int(most[s][of_class & (empty[s] > MOST)].sum())
            row = Terms.of(var)
            for n in np.flatnonzero(of_class).tolist():
                if s in single.get(n, ()):
                    row.add(single[n][s], -1)
            at_most(self.model, row, rest)

    def _fits(self, shape: int, room: Ints) -> Ints:
        """(N,) pods of the shape for which there is room."""
        request = self.problem.request[shape]
        asked = request > 0
        fits = (room[:, asked] // request[asked]).min(axis=1, initial=2**31)
        out: Ints = np.where(self.rules.forbidden[shape, self.problem.node_kind], 0, np.maximum(fits, 0))
        return out

    def _node(self, n: int, pods: dict[int, cp_model.IntVar], most: dict[int, int]) -> None:
        """Pods with a variable on one node find room: in sum, and each beside everybody who stays."""
        p, v, sets = self.problem, self.problem.victims, self._on_node[n]
        leaves = {s: self._leaving(s) for s in sets}
        room = np.maximum(p.node_free[n], 0)
        for r in range(len(p.total)):
            row = Terms()
            for shape, var in pods.items():
                row.add(var, int(p.request[shape, r]))
            for s in sets if row.variables else ():
                row.extend(leaves[s], -int(v.request[s, r]))
            at_most(self.model, row.collected(), int(room[r]))
        for shape, var in pods.items():
            request = p.request[shape]
            asked = request > 0
            for s in sets:
                count = int(v.count[s])
                if s in self._own and count > 1:
                    continue
                beside = int(((self._most[n] - count * v.request[s])[asked] // request[asked]).min())
                if beside < most[shape]:
                    row = Terms.of(var, count)
                    row.extend(leaves[s], beside - most[shape])
                    at_most(self.model, row, count * beside)

    def _leaving(self, s: int) -> Terms:
        """Pods of a set that go, or move: in a gang that goes whole or not at all they are no variable of their own."""
        if s not in self._leaves:
            count, gone = int(self.problem.victims.count[s]), self._gone[self.of.set_of[s]]
            if all(var.index in self._ending for var in gone.variables):
                self._leaves[s] = self.evictions.ended(int(self.problem.victims.holder[s])).times(count)
            else:
                self._own[s] = self.ledger.int_var(count)
                self._leaves[s] = Terms.of(self._own[s])
        return self._leaves[s]

    def _link(self) -> None:
        """What goes of a pooled set goes from its nodes."""
        v = self.problem.victims
        elsewhere: dict[int, int] = defaultdict(int)
        known: dict[int, Terms] = defaultdict(Terms)
        for s, t in enumerate(self.of.set_of.tolist()):
            if s in self._own:
                known[t].add(self._own[s], 1)
            else:
                elsewhere[t] += int(v.count[s])
        for t, here in known.items():
            if elsewhere[t]:
                here.add(self.ledger.int_var(elsewhere[t]), 1)
            here.extend(self._gone[t], -1)
            self.model.add(here.linear() == 0)

    def going(self, value: Callable[[Terms], int]) -> list[tuple[int, int, int]]:
        """(set, pods, cause) of everybody who goes in a solution, on single nodes."""
        v, evictions = self.problem.victims, self.evictions
        left = {
            (t, cause): value(terms)
            for cause in (PREEMPT, RECLAIM)
            for t, terms in enumerate(evictions.out[cause])
            if terms.variables
        }
        out: list[tuple[int, int, int]] = []

        def take(s: int, pods: int) -> None:
            t = int(self.of.set_of[s])
            for cause in (PREEMPT, RECLAIM):
                some = min(pods, left.get((t, cause), 0))
                if some:
                    out.append((s, some, cause))
                    left[t, cause] -= some
                    pods -= some

        for s, var in self._own.items():
            take(s, value(Terms.of(var)))
        for s in range(len(v.holder)):
            if s not in self._own:
                take(s, int(v.count[s]))
        return out

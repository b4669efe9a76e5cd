"""Where pods go: counts per shape and node class, their capacity, and the rules that couple domains.

formulation.md C1, C2, C9. A class with several nodes is a relaxation; `cuts` and pattern columns tighten it where a
split has failed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.linear import Terms, at_most, total, upper, weighted
from solver_sched.model.packing import Bin, Cut, Packing, maximal_patterns
from solver_sched.problem.arrays import AtMostOne, DomainRule, Exclude, Ints, Require, SpreadRule

if TYPE_CHECKING:
    from solver_sched.model.floor import Totals
    from solver_sched.model.ledger import Ledger

NODE_LIMIT = 2**31
KEPT, FEWEST_NODES, ROOMY = 0.15, 60, 3
"""Of the nodes that a shape could use: the part that a sample keeps, how many at least, for how many times its pods.

On 1,000 nodes, 60 shapes and 3,900 running pods a fifth of the pairs gave the same values as all (docs/adr/0011)."""


class Placement:
    """place[s, c] for every allowed pair, as `var[s, c]`; `limit` (S, C): its upper bound, 0 = no variable.

    `sample`: seed of a choice of pairs on nodes where somebody may go, None = all pairs. `absent` (S, C): upper bound
    of the pairs left out; `rows`: (class, resource) -> row of C12 and the unit it is divided by.
    """

    def __init__(self, ledger: Ledger | Totals, sample: int | None = None) -> None:
        self.ledger = ledger
        self.problem, self.rules, self.model = ledger.problem, ledger.rules, ledger.model
        self.evictions = ledger.evictions
        self.node_of: dict[int, int] = {}
        if self.evictions is not None:
            for n in np.flatnonzero(self.evictions.usable).tolist():
                self.node_of[int(self.problem.node_class[n])] = n
        self.limit = self._limits()
        self.absent = np.zeros_like(self.limit)
        self.rows: dict[tuple[int, int], tuple[int, int]] = {}
        self.conserved: dict[int, int] = {}
        if sample is not None and not self.rules.domain_rules:
            self._leave_out(sample)
        self.var: dict[tuple[int, int], cp_model.IntVar] = {
            (int(s), int(c)): self.model.new_int_var(0, int(self.limit[s, c]), "")
            for s, c in np.argwhere(self.limit > 0)
        }
        self.of_class: dict[int, list[int]] = defaultdict(list)
        for s, c in self.var:
            self.of_class[c].append(s)
        self.single = [rule for rule in self.rules.domain_rules if isinstance(rule, AtMostOne) and rule.per_node]
        self.patterns: dict[int, tuple[list[cp_model.IntVar], Ints]] = {}
        self._conservation()
        self._capacity()
        self._unblock()
        self._leave_first()
        for rule in self.rules.domain_rules:
            self._domain_rows(rule)

    def _leave_out(self, seed: int) -> None:
        """Keep some nodes for each shape: there are many ways to place it, and the relaxation prices the others."""
        rng = np.random.default_rng(seed)
        single = np.array(
            sorted(c for c, n in self.node_of.items() if (self.problem.node_free[n] >= 0).all()), np.int64
        )
        wanted = self._wanted()
        open_now = np.ones_like(self.limit, bool)
        for s, n, _ in self.problem.victims.blocks.tolist():
            open_now[s, self.problem.node_class[n]] = False  # a pair with a row of its own (`_unblock`) stays
        for s in np.flatnonzero(self.limit[:, single].any(axis=1)).tolist():
            nodes = rng.permutation(single[(self.limit[s, single] > 0) & open_now[s, single]])
            enough = int(np.searchsorted(np.cumsum(self.limit[s, nodes]), ROOMY * wanted[s])) + 1
            out = nodes[max(FEWEST_NODES, int(KEPT * len(nodes)), enough) :]
            self.absent[s, out], self.limit[s, out] = self.limit[s, out], 0

    def _wanted(self) -> Ints:
        """(S,) pods of each shape that may be placed at most."""
        return np.array([terms.span() for terms in self.ledger.pods_of_shape()], np.int64)

    def _limits(self) -> Ints:
        """(S, C) most pods of a shape that the class holds, by itself."""
        p = self.problem
        wanted = self._wanted()
        out = np.zeros((len(p.request), len(p.class_size)), np.int64)
        room = p.class_free.copy()
        if self.evictions is not None:
            for c, n in self.node_of.items():
                room[c] += self.evictions.potential(n)
        for s, request in enumerate(p.request):
            if wanted[s] <= 0 or not len(p.class_size):
                continue
            asked = request > 0
            per_node = (
                (np.maximum(room[:, asked], 0) // request[asked]).min(axis=1)
                if asked.any()
                else np.full(len(p.class_size), NODE_LIMIT)
            )
            for rule in self.rules.domain_rules:
                if isinstance(rule, AtMostOne) and rule.per_node and s in rule.shapes:
                    per_node = np.minimum(per_node, 1)
            allowed = ~self.rules.forbidden[s, p.class_kind]
            if self.evictions is not None and self.rules.policy.places(best_effort=bool(p.shape_best_effort[s])):
                there = p.node_class[p.victims.blocks[p.victims.blocks[:, 0] == s, 1]]
                allowed[[c for c in there.tolist() if c in self.node_of]] = True
            out[s] = np.where(allowed, np.minimum(per_node * p.class_size, wanted[s]), 0)
        return out

    def _conservation(self) -> None:
        for s, terms in enumerate(self.ledger.pods_of_shape()):
            columns = [self.var[s, c] for c in np.flatnonzero(self.limit[s]).tolist()]
            if terms.variables or columns:
                self.conserved[s] = len(self.model.proto.constraints)
                # one expression: of an equation of two CP-SAT may turn the signs, and `add_pair` counts on them
                row = terms.times(1)
                for var in columns:
                    row.add(var, -1)
                self.model.add(row.linear() == 0)

    def _capacity(self) -> None:
        """C1 summed over each class, and what follows from it for whole pods on single nodes.

        For any step d, floor(request / d) pods' worth per pod sums to at most floor(free / d) on every node (a
        superadditive function of the row); with d the requests themselves this cuts off most sums that do not pack.
        """
        p, implied = self.problem, self.problem.implied
        for c in self.node_of:
            if self.evictions is not None:
                self.evictions.clock.check()
            self._freed_capacity(c, self.of_class.get(c, []))
        for c, shapes in self.of_class.items():
            if c in self.node_of:
                continue
            size = int(p.class_size[c])
            for r in np.flatnonzero(~implied[c]).tolist():
                free = int(p.class_free[c, r])
                requests = p.request[shapes, r].tolist()
                rows: dict[tuple[int, ...], int] = {}
                for step in sorted({1, *(a for a in requests if a > 1)}):
                    counts = tuple(a // step for a in requests)
                    rows[counts] = min(free // step, rows.get(counts, free))
                for counts, most in rows.items():
                    row = Terms()
                    for s, count in zip(shapes, counts, strict=True):
                        row.add(self.var[s, c], count)
                    at_most(self.model, row, size * most)

    def _freed_capacity(self, c: int, shapes: list[int]) -> None:
        """C12 of one node."""
        assert self.evictions is not None
        if not shapes and not self.absent[:, c].any():
            return
        p, going = self.problem, self.evictions.on_node(self.node_of[c])
        for r in range(len(p.resources)):
            free, row, left_out = int(p.class_free[c, r]), Terms(), p.request[:, r] * self.absent[:, c]
            for s in shapes:
                row.add(self.var[s, c], int(p.request[s, r]))
            if row.span() + int(left_out.sum()) <= free:
                continue
            if free < 0:
                something = self._presence([self.var[s, c] for s in shapes if p.request[s, r]])
                row.add(something, -free)
            for v, gone in going:
                row.extend(gone, -int(p.victims.request[v, r]))
            if left_out.any():
                unit = math.gcd(*row.coefficients, *p.request[left_out > 0, r].tolist())
                self.rows[c, r] = len(self.model.proto.constraints), unit
                terms = weighted(row.variables, [a // unit for a in row.coefficients])
                self.model.add(terms <= (max(free, 0) - row.constant) // unit)
            else:
                at_most(self.model, row, max(free, 0))

    def _unblock(self) -> None:
        """Pairs that only victims forbid (C9 in formulation.md 8)."""
        if self.evictions is None:
            return
        for s, n, v in self.problem.victims.blocks.tolist():
            var = self.var.get((s, int(self.problem.node_class[n])))
            if var is None:
                continue
            count, gone = int(self.problem.victims.count[v]), self.evictions.gone(v)
            if not gone.variables:
                self.model.add(var == 0)
            elif count == 1:
                self.model.add(var <= gone.times(upper(var)).linear())
            else:
                whole = self.model.new_bool_var("")
                self.model.add(count * whole <= gone.linear())
                self.model.add(var <= upper(var) * whole)

    def _leave_first(self) -> None:
        """Where not one pod of a shape fits what is free, somebody leaves first. It follows from C12; with moves the
        relaxation would else halve what waits onto the halves that are free, and its bound would be all of it.
        """
        if self.evictions is None or not self.evictions.rights.moves.any():
            return
        leaving: dict[int, Terms] = defaultdict(Terms)
        for c, n in self.node_of.items():
            for _, gone in self.evictions.on_node(n):
                leaving[c].extend(gone)
        for (s, c), var in self.var.items():
            if c in self.node_of and (self.problem.request[s] > np.maximum(self.problem.class_free[c], 0)).any():
                self.model.add(var <= leaving[c].times(upper(var)).linear())

    def add_pair(self, s: int, c: int) -> tuple[cp_model.IntVar, list[tuple[int, int]]]:
        """Bring in a pair that the sample left out: its variable, and (row, coefficient) of its column."""
        var = self.model.new_int_var(0, int(self.absent[s, c]), "")
        self.var[s, c] = var
        self.of_class[c].append(s)
        self.limit[s, c], self.absent[s, c] = self.absent[s, c], 0
        column = [(self.conserved[s], -1)]
        column += [
            (row, int(self.problem.request[s, r]) // unit)
            for r, row, unit in self._rows_of[c]
            if self.problem.request[s, r]
        ]
        for row, coefficient in column:
            linear = self.model.proto.constraints[row].linear
            linear.vars.append(var.index)
            linear.coeffs.append(coefficient)
        return var, column

    @cached_property
    def _rows_of(self) -> dict[int, list[tuple[int, int, int]]]:
        """(resource, row, unit) of each class in `rows`."""
        out: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for (c, r), (row, unit) in self.rows.items():
            out[c].append((r, row, unit))
        return out

    # -- domain rules -------------------------------------------------------------------------------------------

    def _domain_rows(self, rule: DomainRule) -> None:
        match rule:
            case AtMostOne():
                self._at_most_one(rule)
            case Exclude():
                self._exclude(rule)
            case Require():
                self._require(rule)
            case SpreadRule():
                self._spread(rule)

    def _by_domain(self, shapes: Ints, domain: Ints) -> dict[int, list[cp_model.IntVar]]:
        """Placement variables of the shapes per domain; every class lies in one domain (`class_columns`)."""
        first = self._class_domain(domain)
        out: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for s in shapes.tolist():
            for c in np.flatnonzero(self.limit[s]).tolist():
                out[int(first[c])].append(self.var[s, c])
        return out

    def _class_domain(self, domain: Ints) -> Ints:
        """(C,) domain of each class."""
        out = np.full(len(self.problem.class_size), -1, np.int64)
        inside = self.problem.node_class >= 0
        out[self.problem.node_class[inside]] = domain[inside]
        return out

    def _at_most_one(self, rule: AtMostOne) -> None:
        if rule.per_node:
            for c, present in self.of_class.items():
                inside = [self.var[s, c] for s in rule.shapes.tolist() if s in present]
                if len(inside) > 1:
                    self.model.add(total(inside) <= int(self.problem.class_size[c]))
            return
        for d, columns in self._by_domain(rule.shapes, rule.domain).items():
            if d >= 0:
                self.model.add(total(columns) <= 1)

    def _presence(self, columns: list[cp_model.IntVar]) -> cp_model.IntVar:
        """A Boolean that is 1 when any of the columns is positive."""
        out = self.model.new_bool_var("")
        for var in columns:
            self.model.add(var <= upper(var) * out)
        return out

    def _exclude(self, rule: Exclude) -> None:
        left, right = self._by_domain(rule.left, rule.domain), self._by_domain(rule.right, rule.domain)
        for d in left.keys() & right.keys():
            if d >= 0:
                self.model.add(self._presence(left[d]) + self._presence(right[d]) <= 1)

    def _require(self, rule: Require) -> None:
        helpers = np.setdiff1d(rule.targets, rule.shapes)
        present = {int(d) for d in np.unique(rule.domain[rule.present]) if d >= 0}
        able = self._by_domain(helpers, rule.domain)
        openers = self._by_domain(np.intersect1d(rule.targets, rule.shapes), rule.domain)
        seeds = []
        for d, columns in self._by_domain(rule.shapes, rule.domain).items():
            if d in present:
                continue
            support = list(able.get(d, []))
            if d >= 0 and rule.seed:
                # only a pod that matches its own term may open a domain
                seed = self.model.new_bool_var("")
                self.model.add(seed <= total(openers.get(d, [])))
                seeds.append(seed)
                support.append(seed)
            if d < 0 or not support:
                for var in columns:
                    self.model.add(var == 0)
                continue
            self.model.add(self._presence(columns) <= total(support))
        if seeds:
            self.model.add(total(seeds) <= 1)

    def _spread(self, rule: SpreadRule) -> None:
        eligible = [int(d) for d in np.unique(rule.domain) if d >= 0]
        counted = self._by_domain(rule.counted, rule.domain)
        most = int(self.limit[rule.counted].sum() + rule.existing.max(initial=0))
        fewest = self.model.new_int_var(0, most if len(eligible) >= rule.min_domains else 0, "")
        for d in eligible:
            self.model.add(fewest <= total(counted.get(d, [])) + int(rule.existing[d]))
        for d, columns in self._by_domain(rule.shapes, rule.domain).items():
            if d < 0:
                for var in columns:
                    self.model.add(var == 0)
                continue
            here = total(counted.get(d, [])) + int(rule.existing[d])
            self.model.add(here - fewest <= rule.max_skew + most * (1 - self._presence(columns)))

    # -- split --------------------------------------------------------------------------------------------------

    def bin(self, c: int) -> tuple[Bin, list[int]]:
        """A node of the class for `packing.pack`, and the shapes it speaks of."""
        shapes = self.of_class[c]
        single = np.zeros((len(self.single), len(shapes)), bool)
        for a, rule in enumerate(self.single):
            single[a] = np.isin(shapes, rule.shapes)
        single = single[single.any(axis=1)] if len(single) else single
        return Bin(self.problem.class_free[c], self.problem.request[shapes], single), shapes

    def add_cut(self, c: int, cut: Cut) -> None:
        shapes = self.of_class[c]
        row = Terms()
        for s, weight in zip(shapes, cut.weight, strict=True):
            row.add(self.var[s, c], weight)
        at_most(self.model, row, cut.bound)

    def refine(self, c: int, most: int) -> bool:
        """Give the class exact pattern columns: each node uses one maximal pattern or a part of it; False: too many."""
        if c in self.patterns:
            return False
        node, shapes = self.bin(c)
        patterns = maximal_patterns(node, self.limit[shapes, c], most)
        if patterns is None:
            return False
        size = int(self.problem.class_size[c])
        use = [self.model.new_int_var(0, size, "") for _ in patterns]
        self.model.add(total(use) <= size)
        for i, s in enumerate(shapes):
            self.model.add(self.var[s, c] <= weighted(use, [int(pattern[i]) for pattern in patterns]))
        self.patterns[c] = (use, np.array(patterns, np.int64))
        return True

    def pattern_use(self, c: int, packing: Packing) -> Iterator[tuple[int, int]]:
        """(variable index, nodes) of the pattern columns of a class under a packing of it."""
        if c not in self.patterns:
            return
        use, patterns = self.patterns[c]
        total = np.zeros(len(use), np.int64)
        for pattern, nodes in packing:
            total[int((patterns >= pattern).all(axis=1).argmax())] += nodes
        yield from zip((var.index for var in use), total.tolist(), strict=True)

"""Where the pods of a solution stand: the exact check behind every incumbent, in two arrangements.

`Joint` keeps the placement in the model of the levels: best while the model is small and room is what decides. `Apart`
keeps it in a model of its own that sees only how many pods of each shape are to be placed (logic-based Benders): best
for hundreds of job classes, as no level then carries the nodes. Both give packings of whole nodes, or rows that
exclude what does not pack; formulation.md 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.effort import Clock
from solver_sched.model.engine import engine
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Model, Terms, at_most, upper, weighted
from solver_sched.model.packing import (
    Cut,
    Packing,
    Packings,
    Pattern,
    held,
    maximal_patterns,
    pack,
    pack_by_columns,
    pack_most,
)
from solver_sched.model.placement import Placement
from solver_sched.model.stock import Stock
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import AtMostOne, Ints, Problem

MOST_PATTERNS = 2000
"""A class that no cut settles gets its maximal patterns as columns, if there are no more than this."""
FEW_PATTERNS = 300
"""Up to this many maximal patterns of a class are listed; beyond, the best is searched for (pricing)."""
PLACE_SECONDS = 0.3
"""Deterministic seconds for one placement of given totals."""
PLACE_ROUNDS = 40
WEIGHT = 1000
"""Prices of shapes become integers of at most this in a cut; its right side is computed for them."""


class Floor(Protocol):
    """What the search asks of either arrangement. `pack` remembers what failed, for the two that follow it."""

    placement: Placement

    def pack(self, solution: list[int]) -> Packings | None:
        """How the solution stands on real nodes, or None."""

    def narrow(self) -> AbstractContextManager[None]:
        """While it lasts, the model allows only what is known to pack of the solution that failed."""

    def pinned(self, counts: Ints) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Variables of the ledger's model and the values that fix pods per shape and class (S, C)."""

    def tighten(self) -> bool:
        """Add rows that exclude the solution that failed. False: nothing was proven against it."""

    def complete(self, values: list[int], packings: Packings) -> None:
        """Write the values of columns that only packings know into a solution."""


class Joint:
    """Placement variables in the ledger's own model."""

    def __init__(self, ledger: Ledger | Totals, sample: int | None = None, clock: Clock | None = None) -> None:
        self._clock = Clock() if clock is None else clock
        self.placement = Placement(ledger, sample)
        self._ledger = ledger
        # whether each node by itself says what it may hold
        self._by_node = ledger.evictions is None and all(
            isinstance(rule, AtMostOne) and rule.per_node for rule in ledger.rules.domain_rules
        )
        self._size = ledger.problem.class_size
        self._known: dict[tuple[int, tuple[int, ...]], Packing] = {}
        self._fitting: dict[int, Packing] = {}
        self._listed: dict[tuple[int, tuple[int, ...]], list[Pattern] | None] = {}
        self._failed: dict[int, list[int]] = {}

    def pack(self, solution: list[int]) -> Packings | None:
        out: Packings = {}
        self._failed = {}
        for c, shapes in self.placement.of_class.items():
            count = [solution[self.placement.var[s, c].index] for s in shapes]
            if not any(count):
                continue
            if c in self.placement.node_of:
                out[c] = (count, [(np.array(count, np.int64), 1)])  # one node, whose rows are exact
                continue
            key = (c, tuple(count))
            if key not in self._known:
                packed = pack(self.placement.bin(c)[0], int(self._size[c]), np.array(count, np.int64))
                if packed is None and c in self._fitting:
                    packed = part_of(self._fitting[c], count)
                if packed is None:
                    self._failed[c] = count
                    continue
                self._known[key] = packed
            out[c] = (count, self._known[key])
        if self._failed:
            pods = [terms.at(solution) for terms in self._ledger.pods_of_shape()]
            return self.rearranged(self.packed_part(solution), pods)
        return out

    def rearranged(self, packings: Packings, pods: list[int]) -> Packings | None:
        """These pods per shape by hand, whatever their classes, starting from other packings; None where that fails."""
        if not self._by_node:
            return None
        stock = Stock(self.placement, packings)
        return stock.packings() if stock.reach(pods) else None

    def packed_part(self, solution: list[int]) -> Packings:
        """As much of the solution as its classes hold by hand."""
        out: Packings = {}
        for c, shapes in self.placement.of_class.items():
            count = [solution[self.placement.var[s, c].index] for s in shapes]
            if any(count):
                wanted = np.array(count, np.int64)
                packing = self._known.get((c, tuple(count)))
                if packing is None:
                    packing = pack_most(self.placement.bin(c)[0], int(self._size[c]), wanted, wanted)
                out[c] = (held(packing, len(count)).tolist(), packing)
        return out

    @contextmanager
    def narrow(self) -> Iterator[None]:
        saved: list[tuple[cp_model.IntVar, int]] = []
        for c, count in self._failed.items():
            node, shapes = self.placement.bin(c)
            limit = self.placement.limit[shapes, c]
            self._fitting[c] = packing = pack_most(node, int(self._size[c]), np.array(count, np.int64), limit)
            for s, most in zip(shapes, held(packing, len(shapes)).tolist(), strict=True):
                var = self.placement.var[s, c]
                saved.append((var, upper(var)))
                var.proto.domain[1] = min(most, upper(var))
        failed = self._failed
        try:
            yield
        finally:
            for var, most in saved:
                var.proto.domain[1] = most
            self._failed = failed

    def pinned(self, counts: Ints) -> Iterator[tuple[cp_model.IntVar, int]]:
        for (s, c), var in self.placement.var.items():
            yield var, int(counts[s, c])

    def tighten(self) -> bool:
        added = False
        for c, count in self._failed.items():
            node, shapes = self.placement.bin(c)
            limit = self.placement.limit[shapes, c]
            found = pack_by_columns(
                node, int(self._size[c]), np.array(count, np.int64), limit, self._patterns(c, count), self._clock
            )
            if self._clock.over():
                break
            if isinstance(found, Cut):
                self.placement.add_cut(c, found)
                added = True
            elif found is None:
                added |= self.placement.refine(c, MOST_PATTERNS)
            else:
                self._known[c, tuple(count)] = found
                added = True
        return added

    def _patterns(self, c: int, count: list[int]) -> list[Pattern] | None:
        """All maximal patterns of the class in the shapes that are counted, or None if there are many."""
        shapes = tuple(i for i, pods in enumerate(count) if pods)
        if (c, shapes) not in self._listed:
            node, present = self.placement.bin(c)
            limit = np.where(np.array(count) > 0, self.placement.limit[present, c], 0)
            self._listed[c, shapes] = maximal_patterns(node, limit, FEW_PATTERNS)
        return self._listed[c, shapes]

    def complete(self, values: list[int], packings: Packings) -> None:
        if self._by_node:  # pods may stand in other classes than the solution said
            for c, shapes in self.placement.of_class.items():
                counts = packings[c][0] if c in packings else []
                for i, s in enumerate(shapes):
                    values[self.placement.var[s, c].index] = counts[i] if i < len(counts) else 0
        for c, (_, packing) in packings.items():
            for index, value in self.placement.pattern_use(c, packing):
                values[index] = value


class Totals:
    """Pods per shape as free variables: what `Placement` needs of a ledger, and nothing else."""

    def __init__(self, problem: Problem, rules: Rules, most: list[int]) -> None:
        self.problem, self.rules = problem, rules
        self.evictions = None
        self.model = Model()
        self.pods = [self.model.new_int_var(0, count, "") for count in most]

    def pods_of_shape(self) -> list[Terms]:
        return [Terms.of(var) for var in self.pods]


class Apart:
    """Placement in a model of its own; the ledger's model gets rows on the pods per shape only."""

    def __init__(self, ledger: Ledger, clock: Clock | None = None) -> None:
        self._ledger, self._clock = ledger, Clock() if clock is None else clock
        self._pods = ledger.pods_of_shape()
        self._most = [terms.span() for terms in self._pods]
        # a bound per shape that the search can hold down while it repairs
        self._caps = [ledger.int_var(most) for most in self._most]
        for terms, cap in zip(self._pods, self._caps, strict=True):
            ledger.model.add(terms.linear() <= cap)
        self._totals = Totals(ledger.problem, ledger.rules, self._most)
        self._nodes = Joint(self._totals, clock=self._clock)
        self.placement = self._nodes.placement
        self._failed: list[int] = []
        self._known: dict[tuple[int, ...], Packings] = {}
        self._last: Packings = {}
        self._surrogates()

    def _surrogates(self) -> None:
        """Steps of every request summed over all classes: what `Placement` says of each class, said of the cluster."""
        p = self._ledger.problem
        for r in range(len(p.total)):
            amounts = p.request[:, r].tolist()
            for step in sorted({1, *(a for a in amounts if a > 1)}):
                row = Terms()
                for terms, amount in zip(self._pods, amounts, strict=True):
                    row.extend(terms, amount // step)
                at_most(self._ledger.model, row, int((p.class_size * (p.class_free[:, r] // step)).sum()))

    def pack(self, solution: list[int]) -> Packings | None:
        pods = [terms.at(solution) for terms in self._pods]
        key = tuple(pods)
        if key not in self._known:
            packings = self._nodes.rearranged(self._last, pods) or self._place(pods, exactly=True)
            if packings is None:
                self._failed = pods
                return None
            self._known[key] = packings
        self._last = self._known[key]
        return self._last

    def _place(self, pods: list[int], *, exactly: bool) -> Packings | None:
        """Stand these pods (or as much of them as fits, by size) on real nodes."""
        model = self._totals.model
        for var, count in zip(self._totals.pods, pods, strict=True):
            var.proto.domain[0], var.proto.domain[1] = (count if exactly else 0), count
        model.clear_objective()  # type: ignore[no-untyped-call]  # not annotated in OR-Tools 9.15
        if not exactly:
            p = self._ledger.problem
            size = (p.request / np.maximum(p.total, 1)).max(axis=1)
            size = np.maximum(1, (WEIGHT * size / max(size.max(initial=0.0), 1e-12)).astype(np.int64))
            model.maximize(weighted(self._totals.pods, size.tolist()))
        for _ in range(PLACE_ROUNDS):
            if self._clock.over():
                return None
            solution = _quick(model, self._clock.left)
            if solution is None:
                return None
            packings = self._nodes.pack(solution)
            if packings is not None:
                return packings
            if not exactly:
                return self._nodes.packed_part(solution)
            if not self._nodes.tighten():
                return None
        return None

    @contextmanager
    def narrow(self) -> Iterator[None]:
        packings = self._place(self._failed, exactly=False) or {}
        held = [0] * len(self._most)
        for c, (count, _) in packings.items():
            for s, pods in zip(self.placement.of_class[c], count, strict=True):
                held[s] += pods
        for cap, most in zip(self._caps, held, strict=True):
            cap.proto.domain[1] = most
        failed = self._failed
        try:
            yield
        finally:
            for cap, most in zip(self._caps, self._most, strict=True):
                cap.proto.domain[1] = most
            self._failed = failed

    def pinned(self, counts: Ints) -> Iterator[tuple[cp_model.IntVar, int]]:
        yield from zip(self._caps, counts.sum(axis=1).tolist(), strict=True)

    def tighten(self) -> bool:
        """A price per shape at which the failed totals cost more than the whole cluster can hold (LP dual)."""
        for var, most in zip(self._totals.pods, self._failed, strict=True):
            var.proto.domain[0], var.proto.domain[1] = 0, most
        prices = mip.prices(self._totals.model, self._totals.pods, WEIGHT, self._clock.left)
        for var, most in zip(self._totals.pods, self._most, strict=True):
            var.proto.domain[1] = most
        if prices is None:
            return False
        objective = Terms()
        for var, price in zip(self._totals.pods, prices, strict=True):
            objective.add(var, price)
        room = mip.relaxed_bound(self._totals.model, objective, self._clock.left)
        row = Terms()
        for terms, price in zip(self._pods, prices, strict=True):
            row.extend(terms, price)
        if sum(price * pods for price, pods in zip(prices, self._failed, strict=True)) <= room:
            return False
        at_most(self._ledger.model, row, room)
        return True

    def complete(self, values: list[int], packings: Packings) -> None:
        """Nothing of the placement is in the ledger's model."""


def _quick(model: cp_model.CpModel, seconds: float) -> list[int] | None:
    """A solution of a placement model within its small budget and these wall seconds, or None."""
    solver = engine()
    solver.parameters.cp_model_presolve = False
    solver.parameters.linearization_level = 1
    solver.parameters.max_deterministic_time = PLACE_SECONDS
    if seconds < math.inf:
        solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return list(solver.response_proto.solution)


def part_of(packing: Packing, count: list[int]) -> Packing | None:
    """A packing within the same patterns that holds exactly `count`, or None if they do not hold so much."""
    left: Ints = np.array(count, np.int64)
    out: Packing = []
    for pattern, nodes in packing:
        while nodes and left.any():
            take = np.minimum(pattern, left)
            if not take.any():
                break
            same = min(nodes, int((left[take > 0] // take[take > 0]).min())) if (take == pattern).all() else 1
            out.append((take, same))
            left = left - same * take
            nodes -= same
    return None if left.any() else out

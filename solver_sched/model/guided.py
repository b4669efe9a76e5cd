"""Large eviction models: the linear relaxation says nearly everything, CP-SAT decides the rest (formulation.md 8).

Where running work may go, every node is a class of its own and CP-SAT alone finds nothing in time, yet the relaxation
is almost integral: two of a thousand values are fractional. So: solve the relaxation, keep every node on which it is
integral, give the others to HiGHS, and let more of them go until the result is within the gap of the relaxation's
value, which is the bound (docs/adr/0011).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver_sched.model import mip
from solver_sched.model.effort import Clock
from solver_sched.model.floor import Floor
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms
from solver_sched.problem.arrays import Bools, Floats, Ints

INTEGRAL = 1e-6
ROUNDED = 1e-9
TOLERANCE = 1e-7
"""Relative width by which a bound is loosened: GLOP's default tolerances."""
PRICED_OUT, PRICED_IN, PRICINGS = 1e-6, 4, 4
ROUNDS = 5
GAP = 2e-5
"""A repair stops this close to the best it could reach."""
GROW = 1.0
"""More nodes are freed in each round, as a part of those it had."""


@dataclass(frozen=True, eq=False, slots=True)
class Relaxed:
    """`reached`: value of an objective over the relaxation, rounded down; `bound`: the same for all pairs and with the
    tolerance of GLOP; `values` (variables,) that reach it.
    """

    reached: int
    bound: int
    values: Floats


@dataclass(frozen=True, slots=True)
class Repaired:
    solution: list[int] | None
    effort: float


class Guided(mip.Relaxation):
    """Repairs guided by the relaxation."""

    def __init__(self, ledger: Ledger, floor: Floor, seed: int) -> None:
        super().__init__(ledger.model)
        self._ledger, self._seed = ledger, seed
        self._placement = floor.placement
        self._nodes = self._nodes_of(floor)
        self._admissions = np.array(
            [
                var.index
                for terms in ledger.terms
                for part in (terms.own, terms.over)
                for sums in (part.started, *part.minimum)
                for var in sums.variables
            ],
            np.int64,
        )

    def _nodes_of(self, floor: Floor) -> list[list[int]]:
        """Variables of each node class; what belongs to several (the end of a gang) is listed with each."""
        evictions = self._ledger.evictions
        assert evictions is not None
        p, v = self._ledger.problem, self._ledger.problem.victims
        of_class: dict[int, set[int]] = defaultdict(set, {c: set() for c in floor.placement.node_of})
        for (_, c), var in floor.placement.var.items():
            of_class[c].add(var.index)
        for out in evictions.out.values():
            for s, terms in enumerate(out):
                c = int(p.node_class[v.node[s]])
                if c in of_class:
                    of_class[c].update(var.index for var in terms.variables)
        self._node_row = {c: row for row, c in enumerate(sorted(of_class))}
        return [sorted(indices) for _, indices in sorted(of_class.items())]

    # -- relaxation ---------------------------------------------------------------------------------------------

    def relax(self, objective: Terms, clock: Clock) -> Relaxed | None:
        """The level without integrality; None if GLOP does not solve it, or not in time."""
        self._sync()
        goal = self._solver.Objective()
        goal.Clear()
        whole = objective.collected()
        for variable, coefficient in zip(whole.variables, whole.coefficients, strict=True):
            goal.SetCoefficient(self._columns[variable.index], coefficient)
        goal.SetMaximization()
        for last in (*[False] * (PRICINGS - 1), True):
            if clock.over():
                return None
            if not self._solved(clock.left):
                return None
            if last or not self._price_in():
                break  # what has a column now and had none in the solve would be in neither value nor bound
        value = goal.Value()
        step = math.gcd(*whole.coefficients) or 1
        reached, bound = (
            objective.constant + step * math.floor((value + more + width * max(1.0, abs(value))) / step)
            for more, width in ((0.0, ROUNDED), (self._left_out(), TOLERANCE))
        )
        return Relaxed(reached, bound, np.array([column.solution_value() for column in self._columns]))

    def _left_out(self) -> float:
        """What the pairs that have no column could add at the prices of the relaxation: nearly always nothing."""
        return float((self._worth() * self._placement.absent).sum())

    def _worth(self) -> Floats:
        """(S, C) what one pod more of a pair without a column is worth at the prices of the relaxation."""
        place, p = self._placement, self._ledger.problem
        worth = np.zeros(place.absent.shape)
        if place.absent.any():
            for s, row in place.conserved.items():
                worth[s] = self._duals[row].dual_value()
            for (c, r), (row, unit) in place.rows.items():
                worth[:, c] -= self._duals[row].dual_value() * (p.request[:, r] // unit)
        return np.where((place.absent > 0) & (worth > PRICED_OUT), worth, 0.0)

    def _price_in(self) -> bool:
        """Give a column to the pairs that are worth one, a few on each node. False: there is none."""
        place, worth = self._placement, self._worth()
        best = np.argsort(-worth, axis=0)[:PRICED_IN]
        found = False
        for c in np.flatnonzero(worth.any(axis=0)).tolist():
            for s in best[:, c].tolist():
                if worth[s, c] <= 0:
                    break
                found = True
                var, column = place.add_pair(s, c)
                self._columns.append(self._solver.NumVar(0.0, float(place.limit[s, c]), ""))
                for row, coefficient in column:
                    indices, values, low, high = self._rows[row]
                    self._rows[row] = mip.Row(np.append(indices, var.index), np.append(values, coefficient), low, high)
                    self._duals[row].SetCoefficient(self._columns[-1], coefficient)
                self._nodes[self._node_row[c]].append(var.index)
                self._domain = np.vstack([self._domain, [0, int(place.limit[s, c])]])
        return found

    # -- repair -------------------------------------------------------------------------------------------------

    def repair(self, objective: Terms, relaxed: Relaxed, enough: int, seconds: float, clock: Clock) -> Repaired:
        """An integral solution of value `enough` or near it, within the seconds and what the clock leaves."""
        rounded: Ints = np.rint(relaxed.values).astype(np.int64)
        fractional = np.abs(relaxed.values - rounded) > INTEGRAL
        free = [bool(fractional[indices].any()) for indices in self._nodes]
        order = np.random.default_rng(self._seed).permutation(len(self._nodes)).tolist()
        best: list[int] | None = None
        reached: int | None = None
        spent = 0.0
        # at first the jobs are those of the relaxation, where it starts them whole: few shapes are then left to place
        admitted = np.zeros(len(rounded), bool)
        admitted[self._admissions] = ~fractional[self._admissions]
        for _ in range(ROUNDS):
            found = self._rest(objective, rounded, free, admitted, max(0.05, min(seconds - spent, clock.left)))
            spent += found.effort
            if found.solution is not None:
                value = objective.at(found.solution)
                if reached is None or value > reached:
                    best, reached = found.solution, value
                if value >= enough:
                    break
            if spent >= seconds or clock.over():
                break
            if admitted.any():
                admitted[:] = False
                continue
            if all(free):
                break
            more = max(4, int(GROW * sum(free)))
            for node in [node for node in order if not free[node]][:more]:
                free[node] = True
        return Repaired(best, spent)

    def _rest(
        self,
        objective: Terms,
        rounded: Ints,
        free: Sequence[bool],
        admitted: Bools,
        seconds: float,
    ) -> Repaired:
        """The level with nodes that are not `free`, and the variables `admitted`, held at the rounded relaxation."""
        held = np.zeros(len(rounded), bool)
        open_again = np.zeros(len(rounded), bool)
        for of_node, is_free in zip(self._nodes, free, strict=True):
            (open_again if is_free else held)[of_node] = True
        held = (held & ~open_again) | admitted
        value = np.clip(rounded, self._domain[:, 0], self._domain[:, 1])
        rows: list[mip.Row] = []
        for indices, coefficients, low, high in self._rows:
            fixed = held[indices]
            rest = int((coefficients[fixed] * value[indices[fixed]]).sum()) if fixed.any() else 0
            if fixed.all():
                if not low <= rest <= high:
                    return Repaired(None, 0.0)
            elif low > -mip.INFINITE or high < mip.INFINITE:
                low = low - rest if low > -mip.INFINITE else low
                high = high - rest if high < mip.INFINITE else high
                rows.append(mip.Row(indices[~fixed], coefficients[~fixed], low, high))
        began = time.perf_counter()
        found = mip.Part(np.flatnonzero(~held), rows).maximise(objective, self._domain, seconds, GAP)
        effort = time.perf_counter() - began
        if found.solution is None:
            return Repaired(None, effort)
        value[~held] = found.solution
        return Repaired(value.tolist(), effort)

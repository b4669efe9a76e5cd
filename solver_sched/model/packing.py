"""Exact split of a node class: counts per shape onto its equal nodes, or a proof that they do not fit.

The class model sums equal nodes, which is a relaxation (10 nodes of 8 hold 16 shapes of 5 in sum, 10 in truth). Here
the counts are packed; where that fails, the dual of the fractional packing is a row that the next solve must respect
(Gilmore and Gomory 1961).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # no py.typed in OR-Tools 9.15
from ortools.sat.python import cp_model

from solver_sched.model.effort import Clock
from solver_sched.model.engine import engine
from solver_sched.model.linear import total, weighted
from solver_sched.problem.arrays import Bools, Ints

VISITS = 8
"""Steps of the walk per pattern that is wanted, before it is given up."""
MOST_COLUMNS = 60
"""Pricing rounds of one column generation; each is a knapsack of a few milliseconds."""

Pattern = tuple[int, ...]
"""Pods per shape on one node, for the shapes of one packing call."""

CUT_SCALE = 1000
"""Dual weights become integers of at most this; the right side is exact for them, so any rounding is valid."""


@dataclass(frozen=True, eq=False, slots=True)
class Bin:
    """One node of a class: `free` (R,), the `request` (S', R) of the shapes concerned, and `single` (A, S'): sets of
    shapes of which a node takes at most one pod.
    """

    free: Ints
    request: Ints
    single: Bools


@dataclass(frozen=True, slots=True)
class Cut:
    """sum over shapes of weight[s] * count[s] <= bound holds for every packing of the class."""

    weight: tuple[int, ...]
    bound: int


Packing = list[tuple[Ints, int]]
"""Pods per shape on a node (S',), with the number of nodes that look so."""

Packings = dict[int, tuple[list[int], Packing]]
"""Per node class: pods per shape of `Placement.of_class`, and how they stand on its nodes."""


def held(packing: Packing, shapes: int) -> Ints:
    """(S',) pods per shape."""
    return sum((pattern * nodes for pattern, nodes in packing), np.zeros(shapes, np.int64))


def pack(node: Bin, size: int, count: Ints) -> Packing | None:
    """Pack `count` (S',) pods onto `size` nodes like `node` by hand. A packing is exact; None proves nothing."""
    for order in _orders(node, count):
        for fit in (_first_fit, _spread_fit):
            packed, left = fit(node, size, count, order)
            if not left.any():
                return packed
            if int((left > 0).sum()) > 4:
                break  # far from fitting: spreading will not save it
    return None


def pack_most(node: Bin, size: int, count: Ints, limit: Ints) -> Packing:
    """As many of the pods as fit by hand, then whatever else of `limit` (S',) still fits beside them."""
    share = (node.request / np.maximum(node.free, 1)).sum(axis=1)
    best = min(
        (_first_fit(node, size, count, order) for order in _orders(node, count)),
        key=lambda found: float(found[1] @ share),
    )
    packed = best[0]
    used = sum(nodes for _, nodes in packed)
    groups = [*packed, *([(np.zeros_like(count), size - used)] if used < size else [])]
    room = limit - held(packed, len(count))
    for s in sorted(range(len(count)), key=lambda s: (-float(share[s]), s)):
        for g, (pattern, nodes) in enumerate(groups):
            more = min(room_for(node, s, pattern), int(room[s]) // nodes)
            if more > 0:
                pattern = pattern.copy()
                pattern[s] += more
                groups[g] = (pattern, nodes)
                room[s] -= more * nodes
    return [(pattern, nodes) for pattern, nodes in groups if pattern.any()]


def room_for(node: Bin, s: int, pattern: Ints) -> int:
    """Pods of shape s that a node holds beside `pattern`."""
    if len(node.single) and _clash(node, s, pattern):
        return 0
    asked = node.request[s] > 0
    if not asked.any():
        return 0
    fits = int(((node.free - pattern @ node.request)[asked] // node.request[s][asked]).min())
    return min(fits, 1) if len(node.single) and node.single[:, s].any() else fits


def _orders(node: Bin, count: Ints) -> list[list[int]]:
    """Orders for first fit: by largest share of the node, by each scarce resource, by sum of shares; largest first."""
    shapes = [int(s) for s in np.flatnonzero(count)]
    free = np.maximum(node.free, 1)
    share = node.request / free
    keys = [share.max(axis=1), share.sum(axis=1)]
    load = (count @ node.request) / free
    keys += [share[:, r] + 1e-6 * share.sum(axis=1) for r in np.argsort(-load)[:2]]
    seen: dict[tuple[int, ...], None] = {}
    for key in keys:
        seen[tuple(sorted(shapes, key=lambda s: (-float(key[s]), s)))] = None
    return [list(order) for order in seen]


def _first_fit(node: Bin, size: int, count: Ints, order: list[int]) -> tuple[Packing, Ints]:
    """First fit decreasing over groups of equally filled nodes, fullest group first; (packing, pods left over)."""
    over = np.zeros_like(count)
    free = node.free[None, :].copy()
    pattern = np.zeros((1, len(count)), np.int64)
    nodes = np.array([size], np.int64)
    weight = 1.0 / np.maximum(node.free, 1)
    for s in order:
        left = int(count[s])
        request = node.request[s]
        asked = request > 0
        room = (free[:, asked] // request[asked]).min(axis=1) if asked.any() else np.full(len(nodes), left)
        if len(node.single):
            for row in node.single[node.single[:, s]]:
                room = np.minimum(room, (pattern[:, row].sum(axis=1) == 0).astype(np.int64))
        split: list[tuple[int, int, int]] = []
        for g in np.lexsort((np.arange(len(nodes)), free @ weight)).tolist():
            if left == 0:
                break
            if room[g] <= 0:
                continue
            full = min(int(nodes[g]), left // int(room[g]))
            left -= full * int(room[g])
            if full:
                split.append((g, full, int(room[g])))
            if left and full < nodes[g]:
                split.append((g, 1, left))
                left = 0
        over[s] = left
        for g, some, pods in split:
            if some == nodes[g]:
                free[g] -= pods * request
                pattern[g, s] += pods
                continue
            nodes[g] -= some
            free = np.vstack([free, free[g] - pods * request])
            pattern = np.vstack([pattern, pattern[g]])
            pattern[-1, s] += pods
            nodes = np.append(nodes, some)
    return [(pattern[g], int(nodes[g])) for g in range(len(nodes)) if nodes[g] and pattern[g].any()], over


def _spread_fit(node: Bin, size: int, count: Ints, order: list[int]) -> tuple[Packing, Ints]:
    """Largest first, each pod to the node whose free room is most like its request (Panigrahy et al. 2011)."""
    weight = 1.0 / np.maximum(node.free, 1).astype(float)
    groups: dict[bytes, tuple[Ints, Ints, int]] = {}
    over = np.zeros_like(count)
    empty = np.zeros(len(count), np.int64)
    groups[empty.tobytes()] = (empty, node.free, size)
    for s in order:
        left = int(count[s])
        request = node.request[s]
        asked = request > 0
        aim = request * weight * weight
        while left:
            best, chosen = -1.0, b""
            for key, (pattern, free, _) in groups.items():
                if (free[asked] < request[asked]).any() or (len(node.single) and _clash(node, s, pattern)):
                    continue
                likeness = float(free @ aim)
                if likeness > best:
                    best, chosen = likeness, key
            if best < 0:
                over[s] = left
                break
            pattern, free, nodes = groups.pop(chosen)
            some = min(nodes, left)
            left -= some
            if nodes > some:
                groups[chosen] = (pattern, free, nodes - some)
            more = pattern.copy()
            more[s] += 1
            key = more.tobytes()
            known = groups.get(key)
            groups[key] = (more, free - request, some + (known[2] if known else 0))
    return [(pattern, nodes) for pattern, _, nodes in groups.values() if pattern.any()], over


def _clash(node: Bin, s: int, pattern: Ints) -> bool:
    return any(pattern[row].any() for row in node.single[node.single[:, s]])


def pack_by_columns(
    node: Bin, size: int, count: Ints, limit: Ints, listed: list[Pattern] | None, clock: Clock | None = None
) -> Packing | Cut | None:
    """Column generation on the number of nodes needed: a packing, or a cut if even a fractional one needs more than
    `size` (it excludes the counts and holds for all counts up to `limit`), or None: nothing found within the effort or
    before the clock was over.

    `listed`: all maximal patterns of the shapes counted, if they are few enough to be known; then no pricing is needed.
    """
    shapes = [int(s) for s in np.flatnonzero(count)]
    columns: dict[Pattern, None] = dict.fromkeys(listed or ())
    for s in () if listed else shapes:
        only = tuple(int(i == s) for i in range(len(count)))
        alone = best_pattern(node, only, limit)
        if not any(alone):
            return Cut(only, 0)
        columns[alone] = None
    for _ in range(MOST_COLUMNS):
        if clock is not None and clock.over():
            return None
        duals, _ = _master(list(columns), shapes, count)
        scaled = [0] * len(count)
        top = max(duals) or 1.0
        for s, dual in zip(shapes, duals, strict=True):
            scaled[s] = round(CUT_SCALE * dual / top)
        best = _heaviest(listed, scaled) if listed else best_pattern(node, scaled, limit)
        most = sum(w * x for w, x in zip(scaled, best, strict=True))
        weighed = int(np.array(scaled, np.int64) @ count)
        if weighed > size * most:
            return Cut(tuple(scaled), size * most)
        if best in columns or most * top <= CUT_SCALE * (1 + 1e-6):
            break
        columns[best] = None
    _, use = _master(list(columns), shapes, count)
    return _rounded(node, list(columns), use, size, count) or _integral(list(columns), size, count)


def _rounded(node: Bin, columns: list[Pattern], use: list[float], size: int, count: Ints) -> Packing | None:
    """The whole part of a fractional packing, the rest by hand."""
    left, nodes, out = count.copy(), size, []
    for column, x in zip(columns, use, strict=True):
        for _ in range(min(int(x + 1e-9), nodes)):
            pattern = np.minimum(np.array(column, np.int64), left)
            if pattern.any():
                out.append((pattern, 1))
                left = left - pattern
                nodes -= 1
    rest = pack(node, nodes, left) if nodes else None
    if rest is None:
        return None if left.any() else out
    return out + rest


def _master(columns: list[Pattern], shapes: list[int], count: Ints) -> tuple[list[float], list[float]]:
    """LP: fewest nodes that hold the counts with these columns; (dual per shape, use per column)."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    use = [solver.NumVar(0, solver.infinity(), "") for _ in columns]
    rows = []
    for s in shapes:
        row = solver.Constraint(float(count[s]), solver.infinity())
        for var, column in zip(use, columns, strict=True):
            row.SetCoefficient(var, column[s])
        rows.append(row)
    objective = solver.Objective()
    for var in use:
        objective.SetCoefficient(var, 1)
    objective.SetMinimization()
    solver.Solve()
    return [max(0.0, row.dual_value()) for row in rows], [var.solution_value() for var in use]


def _heaviest(patterns: list[Pattern], weight: Sequence[int]) -> Pattern:
    return max(patterns, key=lambda pattern: sum(w * x for w, x in zip(weight, pattern, strict=True)))


def best_pattern(node: Bin, weight: Sequence[int], most: Ints) -> Pattern:
    """The pattern of one node of largest weight, at most `most` pods of each shape; proven optimal."""
    shapes = [s for s, w in enumerate(weight) if w > 0]
    model = cp_model.CpModel()
    out = [0] * len(weight)
    vars_: dict[int, cp_model.IntVar] = {}
    for s in shapes:
        asked = node.request[s] > 0
        limit = int(min(most[s], (node.free[asked] // node.request[s][asked]).min() if asked.any() else most[s]))
        if limit > 0:
            vars_[s] = model.new_int_var(0, limit, "")
    if not vars_:
        return tuple(out)
    for r in range(len(node.free)):
        coefficients = {s: int(node.request[s, r]) for s in vars_ if node.request[s, r] > 0}
        if coefficients:
            divisor = math.gcd(*coefficients.values())
            model.add(
                weighted([vars_[s] for s in coefficients], [c // divisor for c in coefficients.values()])
                <= int(node.free[r]) // divisor
            )
    for row in node.single:
        inside = [vars_[s] for s in np.flatnonzero(row).tolist() if s in vars_]
        if len(inside) > 0:
            model.add(total(inside) <= 1)
    model.maximize(weighted(list(vars_.values()), [int(weight[s]) for s in vars_]))
    solver = engine()
    if solver.solve(model) != cp_model.OPTIMAL:
        raise AssertionError("a bounded knapsack has an optimum")
    for s, var in vars_.items():
        out[s] = solver.value(var)
    return tuple(out)


def _integral(columns: list[Pattern], size: int, count: Ints) -> Packing | None:
    """An integral packing with these columns, or None."""
    model = cp_model.CpModel()
    use = [model.new_int_var(0, size, "") for _ in columns]
    model.add(total(use) <= size)
    for s in np.flatnonzero(count).tolist():
        model.add(weighted(use, [column[s] for column in columns]) >= int(count[s]))
    solver = engine()
    solver.parameters.max_deterministic_time = 1.0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    left = count.copy()
    out: dict[Pattern, int] = {}
    for column, var in zip(columns, use, strict=True):
        for _ in range(solver.value(var)):
            pattern = tuple(min(int(c), int(rest)) for c, rest in zip(column, left, strict=True))
            left -= np.array(pattern, np.int64)
            if any(pattern):
                out[pattern] = out.get(pattern, 0) + 1
    return [(np.array(pattern, np.int64), nodes) for pattern, nodes in out.items()]


def maximal_patterns(node: Bin, limit: Ints, most: int) -> list[Pattern] | None:
    """Every maximal pattern of one node, or None if there are more than `most`.

    Depth first, largest shapes first; the last shape takes all that is left. Plain integers: the walk is all overhead.
    """
    share = (node.request / np.maximum(node.free, 1)).max(axis=1)
    order = sorted(range(len(limit)), key=lambda s: (-float(share[s]), s))
    asked = [[(r, a) for r, a in enumerate(node.request[s].tolist()) if a] for s in range(len(limit))]
    rivals = [
        sorted({i for row in node.single[node.single[:, s]] for i in np.flatnonzero(row).tolist()} - {s})
        if len(node.single)
        else []
        for s in range(len(limit))
    ]
    alone = [bool(len(node.single)) and bool(node.single[:, s].any()) for s in range(len(limit))]
    count, free, bound = [0] * len(limit), node.free.tolist(), limit.tolist()
    out: list[Pattern] = []
    visits = 0

    def room(s: int) -> int:
        """More pods of the shape beside what is counted."""
        if alone[s] and (count[s] or any(count[i] for i in rivals[s])):
            return 0
        fits = min((free[r] // a for r, a in asked[s]), default=bound[s])
        return int(min(fits, 1, bound[s] - count[s]) if alone[s] else min(fits, bound[s] - count[s]))

    def walk(depth: int) -> bool:
        nonlocal visits
        visits += 1
        if visits > VISITS * most or len(out) > most:
            return False
        if depth == len(order):
            if not any(room(s) > 0 for s in order):
                out.append(tuple(count))
            return True
        s = order[depth]
        top = room(s)
        for pods in range(top, -1 if depth + 1 < len(order) else top - 1, -1):
            count[s] = pods
            for r, a in asked[s]:
                free[r] -= pods * a
            done = walk(depth + 1)
            for r, a in asked[s]:
                free[r] += pods * a
            count[s] = 0
            if not done:
                return False
        return True

    return out if walk(0) and len(out) <= most else None

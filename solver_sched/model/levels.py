"""The levels of formulation.md 6, solved one after another: lock with >=, hint with the whole incumbent, split, cut.

The incumbent is always a solution whose classes have been packed onto real nodes. A level that runs out of budget
leaves it in place; its bound, from a relaxation, stays valid.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.effort import Effort, LevelResult, Progress, Solution
from solver_sched.model.ledger import Ledger, Terms, fix, span
from solver_sched.model.packing import Cut, Packing, pack
from solver_sched.model.placement import Placement
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, Plan, Problem

CUT_ROUNDS = 12
WALL_SAFETY = 3.0
"""The deterministic budget is the limit; the wall clock stops a solve only at this multiple of it."""


class Search:
    """The state of one lexicographic solve. `placement` None: admissions are fixed and only values are wanted."""

    def __init__(self, ledger: Ledger, placement: Placement | None, effort: Effort, progress: Progress | None) -> None:
        self.ledger, self.placement, self.effort = ledger, placement, effort
        self.model = ledger.model
        self.progress = progress
        self.incumbent: list[int] | None = None
        self.packings: dict[int, tuple[list[int], Packing]] = {}
        self.results: list[LevelResult] = []
        self.spent = 0.0
        self.started = time.perf_counter()
        self.levels_left = 1
        self.after_level: Callable[[], None] | None = None
        self._cut_count = 0

    # -- one level ----------------------------------------------------------------------------------------------

    def maximise(self, name: str, objective: Terms, unit: int = 0) -> LevelResult:
        """Solve one level and lock it."""
        began, effort = time.perf_counter(), 0.0
        if self.incumbent is not None:
            self.incumbent = self._derived(self.incumbent)
        best = self.value(objective) if self.incumbent is not None else None
        bound: int | None = span(objective)
        status = "OPTIMAL" if best is not None and bound is not None and best >= bound else ""
        walled = False
        allowance = self._allowance()
        rounds = 0
        while not status:
            outcome = self._solve(objective, allowance - effort, unit)
            effort += outcome.effort
            walled |= outcome.walled
            if outcome.bound is not None:
                bound = min(bound, outcome.bound) if bound is not None else outcome.bound
            if outcome.solution is None:
                status = "OPTIMAL" if outcome.proven and best is not None else "UNKNOWN"
                break
            reached = objective.constant + _weigh(objective, outcome.solution)
            if best is not None and reached <= best:
                status = "OPTIMAL" if bound is not None and best >= bound else "FEASIBLE"
                break
            failed = self._accept(outcome.solution)
            if failed is None:
                best = reached
                status = "OPTIMAL" if bound is not None and best >= bound else "FEASIBLE"
                break
            rounds += 1
            if not failed or rounds > CUT_ROUNDS or effort >= allowance:
                status = "FEASIBLE" if best is not None else "UNKNOWN"
                break
        if best is None:
            best, status = 0, "UNKNOWN"
        if status == "OPTIMAL":
            bound = best
        result = LevelResult(
            name, best, bound, status + (" (wall limit)" if walled else ""), time.perf_counter() - began, effort, unit
        )
        self.spent += effort
        self.levels_left = max(1, self.levels_left - 1)
        self.results.append(result)
        if self.progress is not None:
            self.progress(result)
        if objective.variables and self.incumbent is not None:
            self.lock(objective, best)
        if self.after_level is not None:
            self.after_level()
        return result

    def lock(self, objective: Terms, value: int) -> None:
        self.model.add(cp_model.LinearExpr.weighted_sum(objective.variables, objective.coefficients) >= value - objective.constant)

    def value(self, terms: Terms) -> int:
        """Value of an expression in the incumbent."""
        assert self.incumbent is not None
        return terms.constant + _weigh(terms, self.incumbent)

    def _allowance(self) -> float:
        """Deterministic seconds of this level: a floor of its own, and half of what others have not used."""
        left = max(0.05, self.effort.seconds - self.spent)
        return max(0.05, left / min(self.levels_left, 3))

    @dataclass(frozen=True, slots=True)
    class Outcome:
        solution: list[int] | None
        bound: int | None
        proven: bool
        effort: float
        walled: bool

    def _solve(self, objective: Terms, seconds: float, unit: int) -> Outcome:
        model = self.model
        model.clear_objective()
        model.clear_hints()
        if objective.variables:
            divisor = math.gcd(*objective.coefficients)
            model.maximize(
                cp_model.LinearExpr.weighted_sum(objective.variables, [c // divisor for c in objective.coefficients])
            )
        else:
            divisor = 1
        if self.incumbent is not None:
            hint = model.proto.solution_hint
            assert len(self.incumbent) == len(model.proto.variables)
            hint.vars.extend(range(len(self.incumbent)))
            hint.values.extend(self.incumbent)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = self.effort.seed
        parameters.max_deterministic_time = max(0.05, seconds)
        parameters.max_time_in_seconds = WALL_SAFETY * max(0.05, seconds) + 0.5
        parameters.presolve_inclusion_work_limit = 0
        parameters.linearization_level = 2
        parameters.symmetry_level = 0
        parameters.cp_model_probing_level = 0
        parameters.relative_gap_limit = self.effort.gap
        if unit:
            parameters.absolute_gap_limit = max(0.0, float(unit // divisor) - 0.5)
        status = solver.solve(model)
        response = solver.response_proto
        effort = float(response.deterministic_time)
        walled = status in (cp_model.UNKNOWN, cp_model.FEASIBLE) and response.wall_time >= parameters.max_time_in_seconds
        match status:
            case cp_model.OPTIMAL | cp_model.FEASIBLE:
                bound = objective.constant + divisor * int(np.floor(solver.best_objective_bound + 1e-6))
                return self.Outcome(list(response.solution), bound, status == cp_model.OPTIMAL, effort, walled)
            case cp_model.UNKNOWN:
                return self.Outcome(None, None, False, effort, walled)
            case cp_model.INFEASIBLE:
                if self.incumbent is not None and self._cut_count == 0:
                    raise AssertionError("the model excludes its own incumbent")
                return self.Outcome(None, None, True, effort, walled)
            case _:
                raise AssertionError(f"CP-SAT calls the model invalid: {model.validate()}")

    # -- split --------------------------------------------------------------------------------------------------

    def _accept(self, solution: list[int]) -> bool | None:
        """Pack every class. None: the solution is the new incumbent. Else whether a row was added that excludes it."""
        if self.placement is None:
            self.incumbent = self._derived(solution)
            return None
        placement = self.placement
        packings: dict[int, tuple[list[int], Packing]] = {}
        failed, excluded = False, False
        for c, shapes in placement.of_class.items():
            count = [solution[placement.var[s, c].index] for s in shapes]
            if not any(count):
                continue
            known = self.packings.get(c)
            if known is not None and known[0] == count:
                packings[c] = known
                continue
            node, _ = placement.bin(c)
            limit = placement.limit[shapes, c]
            packed = pack(node, int(self.ledger.problem.class_size[c]), np.array(count, np.int64), limit)
            if isinstance(packed, Cut):
                placement.add_cut(c, packed)
                excluded = failed = True
            elif packed is None:
                excluded |= placement.refine(c)
                failed = True
            else:
                packings[c] = (count, packed)
        if failed:
            return excluded
        self.packings = packings
        self.incumbent = self._derived(solution)
        return None

    def _derived(self, solution: list[int]) -> list[int]:
        """The solution with every derived variable at its tight value, new ones included."""
        out = solution + [0] * (len(self.model.proto.variables) - len(solution))
        for var, formula in self.ledger.derived:
            out[var.index] = formula(lambda terms: terms.constant + _weigh(terms, out))
        if self.placement is not None:
            for c, (_, packing) in self.packings.items():
                for index, value in self.placement.pattern_use(c, packing):
                    out[index] = value
        return out

    def adopt(self, plan: Plan) -> None:
        """Make a feasible plan the incumbent: its admissions and counts fixed, everything else completed."""
        assert self.placement is not None
        problem = self.ledger.problem
        placed, on_nodes = plan.placed(problem), plan.on_nodes(problem)
        inside = problem.node_class >= 0
        counts = np.zeros(self.placement.limit.shape, np.int64)
        np.add.at(counts.T, problem.node_class[inside], on_nodes.T[inside])
        if (counts > self.placement.limit).any():
            return
        model = self.model
        model.clear_hints()
        model.clear_objective()
        for (s, c), var in self.placement.var.items():
            model.add_hint(var, int(counts[s, c]))
        for cls, terms in zip(self.ledger.classes, self.ledger.terms, strict=True):
            if cls.need:
                model.add_hint(terms.admitted.variables[0], int((placed[cls.sets].sum(axis=1) > 0).sum()))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.effort.seed
        solver.parameters.presolve_inclusion_work_limit = 0
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.max_deterministic_time = max(0.05, self.effort.seconds / 10)
        if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return
        self.spent += float(solver.response_proto.deterministic_time)
        self.packings = {}
        for c, shapes in self.placement.of_class.items():
            nodes = np.flatnonzero(problem.node_class == c)
            patterns, uses = np.unique(on_nodes[shapes][:, nodes], axis=1, return_counts=True)
            packing = [(patterns[:, i], int(uses[i])) for i in range(len(uses)) if patterns[:, i].any()]
            if packing:
                self.packings[c] = (counts[shapes, c].tolist(), packing)
        self.incumbent = self._derived(list(solver.response_proto.solution))

def _weigh(terms: Terms, solution: list[int]) -> int:
    return sum(c * solution[v.index] for c, v in zip(terms.coefficients, terms.variables, strict=True))


def solve(
    problem: Problem,
    rules: Rules,
    effort: Effort,
    progress: Progress | None = None,
    greedy: Plan | None = None,
    improved: Callable[[Solution], None] | None = None,
) -> Solution:
    """The best plan found for the levels up to O9, with value, bound and status of each.

    `greedy` is the floor and the first incumbent; `improved` gets the incumbent after every level (a caller that may
    have to kill this process keeps the last).
    """
    ledger = Ledger(problem, rules)
    values = {level.name: level.value for level in evaluate(problem, rules, greedy, effort)} if greedy is not None else {}
    search = Search(ledger, Placement(ledger), effort, progress)
    if greedy is not None:
        search.adopt(greedy)
    if improved is not None:
        search.after_level = lambda: improved(Solution(_plan(search), tuple(search.results), values))
    run_levels(search)
    return Solution(_plan(search), tuple(search.results), values)


def evaluate(problem: Problem, rules: Rules, plan: Plan, effort: Effort) -> tuple[LevelResult, ...]:
    """The levels' values of a given plan that keeps the rules: its admissions fixed, the best reading of `own`."""
    ledger = Ledger(problem, rules)
    placed = plan.placed(problem)
    for cls, terms in zip(ledger.classes, ledger.terms, strict=True):
        counts = placed[cls.sets]
        if cls.need:
            started = int((counts.sum(axis=1) > 0).sum())
            fix(terms.admitted.variables[0], started)
        if not (cls.need and cls.rigid):
            for i in range(len(cls.shape)):
                ledger.model.add(terms.minimum[i].linear() + terms.growth[i].linear() == int(counts[:, i].sum()))
    search = Search(ledger, None, effort, None)
    run_levels(search)
    return tuple(search.results)


def run_levels(search: Search) -> None:
    """Every level of the skeleton, in order."""
    ledger = search.ledger
    ranks = sorted({cls.rank for cls in ledger.classes})
    names = ledger.rules.rank_names
    search.levels_left = len(ranks) * (8 if ledger.owned else 2) + 2
    if ledger.owned:
        for d in ranks:
            if any(ledger.rules.unit_rank[u] <= d for u, _ in ledger.kept):
                search.maximise(f"in-share.keep>={names[d]}", ledger.keep_value(d))
            _deficits(search, d, names[d])
            search.maximise(f"in-share.start>={names[d]}", ledger.start_value(d, own=True))
            worth = ledger.growth_worth(d, own=True)
            if worth.variables:
                search.maximise(f"in-share.grow>={names[d]}", worth)
    for d in ranks:
        search.maximise(f"start>={names[d]}", ledger.start_value(d, own=False))
        load = ledger.largest_load() if ledger.owned else None
        if load is not None:
            search.maximise(f"balance>={names[d]}", Terms.of(load, -1))
        worth = ledger.growth_worth(d, own=False)
        if worth.variables:
            search.maximise(f"grow>={names[d]}", worth)
    search.maximise("disruption", Terms())
    search.maximise("order", ledger.order_value())


def _deficits(search: Search, rank: int, name: str) -> None:
    """O2: the largest deficit, then the two largest together, ... until what is left is below one unit of each queue."""
    parts = search.ledger.deficits(rank)
    deficits = [Terms.of(var) for var, _ in parts]
    for k in range(1, len(parts) + 1):
        objective = Terms()
        objective.extend(search.ledger.largest_sum([var for var, _ in parts], k), -1)
        search.maximise(f"in-share.deficit[{k}]>={name}", objective, unit=min(unit for _, unit in parts))
        if search.incumbent is None:
            return
        left = sorted((search.value(terms), unit) for terms, (_, unit) in zip(deficits, parts, strict=True))
        if all(value == 0 or value < unit for value, unit in left[: len(left) - k]):
            return


def _plan(search: Search) -> Plan:
    """The incumbent on real nodes: class patterns onto the class's nodes in name order, pod sets in their order."""
    problem = search.ledger.problem
    if search.incumbent is None or search.placement is None:
        return EMPTY_PLAN
    slots: dict[int, list[list[int]]] = defaultdict(list)
    for c, (_, packing) in sorted(search.packings.items()):
        nodes = iter(np.flatnonzero(problem.node_class == c).tolist())
        for pattern, uses in packing:
            for node in islice(nodes, uses):
                for s, pods in zip(search.placement.of_class[c], pattern.tolist(), strict=True):
                    if pods:
                        slots[s].append([node, pods])
    rows: list[tuple[int, int, int]] = []
    placed = search.ledger.per_set(search.value)
    for t in np.flatnonzero(placed).tolist():
        left, queue = int(placed[t]), slots[int(problem.set_shape[t])]
        while left:
            node, pods = queue[-1]
            take = min(left, pods)
            rows.append((t, node, take))
            left -= take
            if take == pods:
                queue.pop()
            else:
                queue[-1][1] = pods - take
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Plan(table[:, 0], table[:, 1], table[:, 2])

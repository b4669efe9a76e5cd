"""The levels of formulation.md 6, 8, 11 (O1 O2 O3 O5 O6 O9 O12 O13 O14 O15 O16): lock with >=, hint, split, cut.

The incumbent is always a solution whose classes have been packed onto real nodes. A level that runs out of budget
leaves it in place; its bound, from a relaxation, stays valid.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.effort import Effort, Fill, LevelResult, Progress, Solution, beats
from solver_sched.model.evictions import opened
from solver_sched.model.floor import Apart, Floor, Joint, Packings
from solver_sched.model.guided import Guided
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms, weighted
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, MOVE, RECLAIM, Plan, Problem, Require, SpreadRule
from solver_sched.rights import Rights, movable, rights, wait_for_moves

CUT_ROUNDS = 12
CLOSE_ENOUGH = 5e-4
"""Cuts are bought only while an incumbent that packs is further than this from the bound."""
CHEAP = 0.02
"""Deterministic seconds up to which a level is closed to the last unit; beyond, the gaps count."""
NEVER = -(2**62)
"""Below every value: a row that no longer binds, a value that any solution reaches."""
WALL_LIMIT = " (wall limit)"
GRACE_FACTOR, GRACE_EXTRA = 1.5, 1.0
"""After this many budgets and seconds the levels left get not even the bound of their relaxation: the worker would be
killed before it has told its plan (process.HARD_FACTOR)."""
LEXIMIN_DEPTH = 2
"""Deficits are minimised largest first to this depth, then in sum: exact leximin for up to three queues."""
SMALL_CLASSES = 500
"""Job classes up to which a level is locked at its exact value. Beyond, at its value less the gap: one exact sum of
hundreds of values is met by few plans, and the levels below would spend their time looking for one of them.
"""
LARGE = 4_000
"""Victim sets, and pairs of a node class and a shape, from which the relaxation guides an eviction model."""
SMALL = 20_000
"""Jobs x levels up to which another plan is evaluated at every level."""
BEST_EFFORT = 0.1
"""Part of the budget left that a best-effort level may use."""
WALL_SAFETY = 3.0
"""The deterministic budget is the limit; the wall clock stops a solve only at this multiple of it."""


class Stage(Enum):
    """How a level is attempted, in this order; the value is the most seconds one attempt gets. GUIDED only in large
    models with evictions.
    """

    GUIDED = 3.0
    DIRECT = 0.1
    PRESOLVED = 0.25
    MIP = 1.0
    LAST = 60.0


class Search:
    """The state of one lexicographic solve. `floor` None: admissions are fixed and only values are wanted."""

    def __init__(self, ledger: Ledger, floor: Floor | None, effort: Effort, progress: Progress | None) -> None:
        self.ledger, self.floor, self.effort = ledger, floor, effort
        self.model = ledger.model
        self.progress = progress
        self.incumbent: list[int] | None = None
        self.packings: Packings = {}
        self.results: list[LevelResult] = []
        self.spent = 0.0
        self.started = time.perf_counter()
        self.levels_left = 1
        self.small = len(ledger.classes) <= SMALL_CLASSES
        self._objectives: list[Terms | None] = []
        self.spans: list[int] = []
        self.after_level: Callable[[], None] | None = None
        self.fill: Fill | None = None
        self.guided: Guided | None = None
        self.owed: list[tuple[str, Terms, int]] = []

    def outcome(self) -> tuple[LevelResult, ...]:
        """The levels with the values that the last incumbent reaches; a lower level may have used a lock's slack."""
        if self.incumbent is None:
            return tuple(self.results)
        self.incumbent = self._completed(self.incumbent, tight=True)
        out = []
        for result, objective in zip(self.results, self._objectives, strict=True):
            value = result.value if objective is None else self.value(objective)
            if value != result.value or result.status.startswith("UNKNOWN"):
                _, limit, _ = result.status.partition(WALL_LIMIT)
                status = "OPTIMAL" if value == result.bound else "FEASIBLE"
                result = replace(result, value=value, status=status + limit)
            out.append(result)
        return tuple(out)

    # -- one level ----------------------------------------------------------------------------------------------

    def maximise(
        self, name: str, objective: Terms, unit: int = 0, *, best_effort: bool = False, rank: int | None = None
    ) -> LevelResult:
        """Solve one level and lock it. A best-effort level gets little time and no cuts.

        `rank`: the level counts all that jobs of this rank and higher start or grow, so filling room can only help it.
        """
        began, effort = time.perf_counter(), 0.0
        most = objective.span()
        if self.owed:
            effort, most = self._redeem(objective)
        if self.incumbent is not None:
            self.incumbent = self._completed(self.incumbent)
        best = self.value(objective) if self.incumbent is not None else None
        bound = most
        allowance = self._allowance(best_effort)
        stages = [Stage.DIRECT] if best_effort else list(Stage)
        if self.guided is not None:
            stages = [] if best_effort else [Stage.GUIDED]
        elif not best_effort:
            stages.remove(Stage.GUIDED)
        cheap = CHEAP if self.guided is None else -1.0
        rounds, walled, filled = 0, False, rank is None or self.fill is None
        while stages and best != bound:
            if best is not None and effort > cheap and self._closed(best, bound, unit):
                break
            late = self.late()
            walled |= late
            if self.late(GRACE_FACTOR, GRACE_EXTRA):
                break
            if not filled and (late or stages[0] is not Stage.DIRECT):
                filled = True
                if self._fill(rank):
                    best = self.value(objective)
                    continue
            if late and objective.variables:
                if self.guided is None:  # a large relaxation takes too long for every level left
                    bound = min(bound, mip.relaxed_bound(self.model, objective))
                break
            if effort >= allowance or rounds > CUT_ROUNDS:
                break
            stage = stages[0]
            outcome = self._solve(objective, min(allowance - effort, stage.value), unit, stage)
            effort += outcome.effort
            walled |= outcome.walled
            if outcome.bound is not None:
                bound = min(bound, outcome.bound)
            reached = None if outcome.solution is None else objective.at(outcome.solution)
            if outcome.solution is None or reached is None or (best is not None and reached <= best):
                stages.pop(0)
                continue
            if self._accept(outcome.solution):
                best = reached
                stages.pop(0)
                continue
            rounds += 1
            repaired, more = self._repair(objective, best, allowance - effort, unit)
            effort += more
            best = repaired if best is None else max(best, repaired or best)
            if best is not None and effort > CHEAP and self._closed(best, bound, unit, CLOSE_ENOUGH):
                break
            if best_effort and effort > CHEAP:
                break
            if self.floor is None or not self.floor.tighten():
                stages.pop(0)  # nothing excludes the solution that failed: another engine or the fill may find one
                continue
            if self.incumbent is not None:
                self.incumbent = self._completed(self.incumbent)  # tightening may bring columns
        status = "UNKNOWN" if best is None else "OPTIMAL" if best == bound else "FEASIBLE"
        if best is None:
            best = 0
        seconds = time.perf_counter() - began
        result = LevelResult(name, best, bound, status + (WALL_LIMIT if walled else ""), seconds, effort, unit)
        self.spent += effort
        self._record(result, objective)
        if self.progress is not None:
            self.progress(result)
        if objective.variables and self.incumbent is not None:
            slack = 0 if self.small else unit - 1 if unit else int(self.effort.gap * abs(best))
            self.lock(objective, best - slack)
        if self.after_level is not None:
            self.after_level()
        return result

    def promise(self, name: str, objective: Terms) -> None:
        """Lock a level at the value of its relaxation, which is nearly always reached; the next level that is solved
        must find a plan that keeps all such promises. Without a relaxation to go by: `maximise`.
        """
        began = time.perf_counter()
        relaxed = self.guided.relax(objective) if self.guided is not None and objective.variables else None
        if relaxed is None or self.incumbent is not None or self.late():
            self.maximise(name, objective)
            return
        self.owed.append((name, objective, len(self.model.proto.constraints)))
        self.lock(objective, relaxed.reached)
        self._record(LevelResult(name, 0, relaxed.bound, "UNKNOWN", time.perf_counter() - began), objective)

    def _record(self, result: LevelResult, objective: Terms) -> None:
        self.results.append(result)
        self._objectives.append(objective if objective.variables else None)
        self.spans.append(objective.span())
        self.levels_left = max(1, self.levels_left - 1)

    def _redeem(self, objective: Terms) -> tuple[float, int]:
        """Find a plan that keeps the promises; where none is found, solve their levels one by one. Effort and bound."""
        assert self.guided is not None
        owed, self.owed = self.owed, []
        relaxed, effort = self.guided.relax(objective), 0.0
        if relaxed is not None:
            found = self.guided.repair(objective, relaxed, NEVER, self._allowance(best_effort=False))
            effort = found.effort
            if found.solution is not None and self._accept(found.solution):
                return effort, relaxed.bound
        for _, _, row in owed:
            self.model.proto.constraints[row].linear.domain[0] = NEVER
        del self.results[-len(owed) :], self._objectives[-len(owed) :], self.spans[-len(owed) :]
        assert self.floor is not None
        self.guided = Guided(self.ledger, self.floor, self.effort.seed)
        for name, goal, _ in owed:
            self.maximise(name, goal)
        return effort, objective.span()

    def tighten_derived(self) -> None:
        """Bring every derived variable of the incumbent to its least value."""
        if self.incumbent is not None:
            self.incumbent = self._completed(self.incumbent, tight=True)

    def lock(self, objective: Terms, value: int) -> None:
        self.model.add(weighted(objective.variables, objective.coefficients) >= value - objective.constant)

    def value(self, terms: Terms) -> int:
        """Value of an expression in the incumbent."""
        assert self.incumbent is not None
        return terms.at(self.incumbent)

    def _allowance(self, best_effort: bool) -> float:
        """Deterministic seconds of this level: a fair part of what is left."""
        left = max(0.05, self.effort.seconds - self.spent)
        return max(0.05, left * BEST_EFFORT if best_effort else left / min(self.levels_left, 3))

    def late(self, factor: float = 1.0, extra: float = 0.0) -> bool:
        """The wall clock has passed the budget: no further round is begun."""
        return self.elapsed > factor * self.effort.seconds + extra

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def _closed(self, value: int, bound: int, unit: int, gap: float | None = None) -> bool:
        """Below one unit apart; a level without a unit may be a share of its bound apart."""
        apart = abs(bound - value)
        gap = gap if gap is not None else self.effort.gap if self.small else CLOSE_ENOUGH
        return apart < max(1, unit) or (not unit and apart <= gap * abs(bound))

    @dataclass(frozen=True, slots=True)
    class Outcome:
        solution: list[int] | None
        bound: int | None
        effort: float
        walled: bool

    def _solve(self, objective: Terms, seconds: float, unit: int, stage: Stage) -> Outcome:
        """One attempt at the level. Seconds are deterministic for CP-SAT and wall for HiGHS."""
        if stage is Stage.GUIDED:
            return self._guided(objective, seconds, unit)
        if stage is Stage.MIP:
            began = time.perf_counter()
            answer = mip.maximise(self.model, objective, seconds)
            took = time.perf_counter() - began
            return self.Outcome(answer.solution, answer.bound, min(took, seconds) / 4, took >= seconds)
        model = self.model
        _clear(model)
        divisor = math.gcd(*objective.coefficients) if objective.variables else 1
        if objective.variables:
            model.maximize(weighted(objective.variables, [c // divisor for c in objective.coefficients]))
        if self.incumbent is not None:
            hint = model.proto.solution_hint
            if len(self.incumbent) < len(model.proto.variables):  # pairs have come in since
                self.incumbent = self._completed(self.incumbent)
            hint.vars.extend(range(len(self.incumbent)))
            hint.values.extend(self.incumbent)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = self.effort.seed
        parameters.max_deterministic_time = max(0.02, seconds)
        parameters.max_time_in_seconds = WALL_SAFETY * max(0.02, seconds) + 0.5
        parameters.presolve_inclusion_work_limit = 0
        parameters.symmetry_level = 0
        parameters.cp_model_probing_level = 0
        if stage is Stage.DIRECT:
            # these models are small and tight: without presolve and with a light relaxation they close twice as fast
            parameters.cp_model_presolve = False
            parameters.linearization_level = 1
        else:
            parameters.linearization_level = 2
            parameters.relative_gap_limit = self.effort.gap
            if unit:
                parameters.absolute_gap_limit = max(0.0, float(unit // divisor) - 0.5)
        status = solver.solve(model)
        response = solver.response_proto
        effort = float(response.deterministic_time)
        late = response.wall_time >= parameters.max_time_in_seconds
        match status:
            case cp_model.OPTIMAL | cp_model.FEASIBLE:
                bound = objective.constant + divisor * int(np.floor(solver.best_objective_bound + 1e-6))
                return self.Outcome(list(response.solution), bound, effort, late and status != cp_model.OPTIMAL)
            case cp_model.UNKNOWN:
                return self.Outcome(None, None, effort, late)
            case cp_model.INFEASIBLE:
                return self.Outcome(None, None, effort, False)
            case _:
                raise AssertionError(f"CP-SAT calls the model invalid: {model.validate()}")

    def _guided(self, objective: Terms, seconds: float, unit: int) -> Outcome:
        assert self.guided is not None
        relaxed = self.guided.relax(objective)
        if relaxed is None:
            return self.Outcome(None, None, 0.0, False)
        if self.incumbent is not None and self._closed(self.value(objective), relaxed.bound, unit):
            return self.Outcome(None, relaxed.bound, 0.0, False)
        slack = unit - 1 if unit else int(self.effort.gap * abs(relaxed.bound))
        found = self.guided.repair(objective, relaxed, relaxed.bound - slack, seconds)
        return self.Outcome(found.solution, relaxed.bound, found.effort, False)

    # -- split --------------------------------------------------------------------------------------------------

    def _accept(self, solution: list[int]) -> bool:
        """Make the solution the incumbent if its pods stand on real nodes."""
        packings = self.floor.pack(solution) if self.floor is not None else {}
        if packings is None:
            return False
        self.packings = packings
        self.incumbent = self._completed(solution)
        return True

    def _repair(self, objective: Terms, best: int | None, seconds: float, unit: int) -> tuple[int | None, float]:
        """Solve again within room that is known to pack. Returns the value of a better incumbent, or None; effort."""
        assert self.floor is not None
        with self.floor.narrow():
            outcome = self._solve(objective, min(seconds, Stage.PRESOLVED.value), unit, Stage.PRESOLVED)
            reached = None if outcome.solution is None else objective.at(outcome.solution)
            if outcome.solution is None or reached is None or (best is not None and reached <= best):
                return None, outcome.effort
            return (reached if self._accept(outcome.solution) else None), outcome.effort

    def _completed(self, solution: list[int], *, tight: bool = False) -> list[int]:
        """The solution with the derived variables it does not know yet; `tight`: all of them at their least."""
        out = solution + [0] * (len(self.model.proto.variables) - len(solution))
        for var, formula in self.ledger.derived:
            if tight or var.index >= len(solution):
                out[var.index] = formula(lambda terms: terms.at(out))
        if self.floor is not None:
            self.floor.complete(out, self.packings)
        return out

    def _fill(self, rank: int | None) -> bool:
        """Let the baseline fill the room that the incumbent leaves. True: there is a fuller incumbent."""
        assert self.fill is not None
        problem = self.ledger.problem
        plan = _plan(self)
        fuller = self.fill(problem, self.ledger.rules, plan, rank)
        return fuller.count.sum() > plan.count.sum() and self.adopt(fuller)

    def adopt(self, plan: Plan) -> bool:
        """Make a feasible plan the incumbent: its admissions and places fixed, `own` as it is, the rest completed."""
        assert self.floor is not None
        placement = self.floor.placement
        problem, model = self.ledger.problem, self.model
        placed, on_nodes = plan.placed(problem), plan.on_nodes(problem)
        inside = problem.node_class >= 0
        counts = np.zeros(placement.limit.shape, np.int64)
        np.add.at(counts.T, problem.node_class[inside], on_nodes.T[inside])
        if (counts > placement.limit).any():
            return False
        _clear(model)
        for var, pods in self.floor.pinned(counts):
            model.add_hint(var, pods)
        for cls, terms in zip(self.ledger.classes, self.ledger.terms, strict=True):
            started = int((placed[cls.sets].sum(axis=1) > 0).sum())
            inside_share = terms.own.started.at(self.incumbent) if self.incumbent is not None else 0
            if self.incumbent is not None:
                for var in terms.own.variables():
                    model.add_hint(var, self.incumbent[var.index])
            for var in terms.over.started.variables:
                model.add_hint(var, started - inside_share)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.effort.seed
        solver.parameters.presolve_inclusion_work_limit = 0
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.max_deterministic_time = max(0.05, self.effort.seconds / 10)
        everything = Terms()
        for pods_of_shape in self.ledger.pods_of_shape():
            everything.extend(pods_of_shape)
        model.maximize(everything.linear())
        if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return False
        self.spent += float(solver.response_proto.deterministic_time)
        packings: Packings = {}
        for c, shapes in placement.of_class.items():
            nodes = np.flatnonzero(problem.node_class == c)
            patterns, uses = np.unique(on_nodes[shapes][:, nodes], axis=1, return_counts=True)
            packing = [(patterns[:, i], int(uses[i])) for i in range(len(uses)) if patterns[:, i].any()]
            if packing:
                packings[c] = (counts[shapes, c].tolist(), packing)
        self.packings = packings
        self.incumbent = self._completed(list(solver.response_proto.solution))
        return True


def _clear(model: cp_model.CpModel) -> None:
    """Take the objective and the hints of the last solve out of the model."""
    model.clear_objective()  # type: ignore[no-untyped-call]  # not annotated in OR-Tools 9.15
    model.clear_hints()  # type: ignore[no-untyped-call]


def solve(
    problem: Problem,
    rules: Rules,
    effort: Effort,
    progress: Progress | None = None,
    greedy: Plan | None = None,
    improved: Callable[[Solution], None] | None = None,
    fill: Fill | None = None,
    evicting: Plan | None = None,
) -> Solution:
    """The best plan found for the levels up to O9, with value, bound and status of each.

    `greedy`, a plan that evicts nobody, is the first incumbent where one level counts all of it; `improved` gets the
    incumbent after every level (a caller that may have to kill this process keeps the last); `fill` adds to a plan what
    still fits. `evicting`: the greedy plan in which others give way.

    The greedy plan without evictions is compared in the levels of section 6 as long as nobody is evicted here. Where
    section 8 has a say, the one with evictions is compared in its levels, with the best plan that these have.
    """
    ledger = Ledger(problem, rules)
    apart = len(ledger.classes) > SMALL_CLASSES
    search = Search(ledger, Apart(ledger) if apart else Joint(ledger), effort, progress)
    if greedy is not None and not ledger.owned and len(_ranks(ledger)) == 1:
        search.adopt(greedy)
    search.fill = fill
    if improved is not None:
        search.after_level = lambda: improved(Solution(_plan(search), tuple(search.results)))
    run_levels(search)
    plan, levels, best = _plan(search), search.outcome(), None
    # what the levels so far have taken by either clock: the second search has a grace of its own
    allowed, spent = rights(problem, rules, plan), max(search.spent, search.elapsed)
    other = greedy if evicting is None else evicting
    if (allowed.claimants & (plan.of_jobs(problem) == 0)).any():
        freeing, more = _freeing(problem, rules, allowed, _rest(effort, spent), progress, improved)
        spent += more
        if other is not None and (len(freeing.plan.victim) or len(other.victim)):
            values = _values(problem, rules, other, effort, freeing.levels, allowed, late=search.late())
            freeing = replace(freeing, greedy=values, evicting=True)
        if len(freeing.plan.victim) or beats(freeing.greedy, freeing.levels):
            best = freeing
        else:
            levels = _at_least_as_open(levels, freeing.levels)
    if best is None:
        given = {} if greedy is None else _values(problem, rules, greedy, effort, levels, late=search.late())
        best = Solution(plan, levels, given)
    moving = replace(allowed, moves=movable(problem, rules))
    waiting = wait_for_moves(problem, rules, allowed, best.plan)
    if moving.moves.any() and waiting.any() and not beats(best.greedy, best.levels):
        if improved is not None:
            improved(best)
        found, _ = _freeing(problem, rules, moving, _rest(effort, spent), progress, None)
        if len(found.plan.moved) and _starts_more(found.levels, best.levels):
            values = _values(problem, rules, other, effort, found.levels, moving) if other is not None else {}
            return replace(found, greedy=values, evicting=True)
    return best


def _rest(effort: Effort, spent: float) -> Effort:
    return replace(effort, seconds=max(0.1, effort.seconds - spent))


def _starts_more(levels: Sequence[LevelResult], others: Sequence[LevelResult]) -> bool:
    """Whether the first start level that differs is higher: only then anybody moves (formulation.md 11)."""
    values = {level.name: level.value for level in levels}
    return beats(values, [level for level in others if "start>=" in level.name])


def _freeing(
    problem: Problem,
    rules: Rules,
    allowed: Rights,
    effort: Effort,
    progress: Progress | None,
    improved: Callable[[Solution], None] | None,
) -> tuple[Solution, float]:
    """The best plan when running work may have to make room or to move (formulation.md 8, 11), and the effort."""
    wide, usable, whole = opened(problem, rules, allowed)
    ledger = Ledger(wide, rules, allowed, usable)
    shapes = np.union1d(problem.set_shape, problem.victims.shape[allowed.moves])
    large = len(wide.class_size) * len(shapes) + len(problem.victims.holder) > LARGE
    # with moves it is rows on single nodes that bound a level, and pairs that are left out have none
    floor = Joint(ledger, effort.seed if large and not allowed.moves.any() else None)
    search = Search(ledger, floor, effort, progress)
    if large:
        search.guided = Guided(ledger, floor, effort.seed)
    if improved is not None:
        search.after_level = lambda: _tell_evictions(search, improved)
    for _ in _evicting_levels(search):
        pass
    levels = search.outcome()
    if not whole:
        levels = tuple(map(_bounded_by_all, levels, search.spans))
    return Solution(_plan(search), levels), max(search.spent, search.elapsed)


def _tell_evictions(search: Search, improved: Callable[[Solution], None]) -> None:
    """A plan that evicts nobody is told by the levels without evictions, which count growth too."""
    if search.incumbent is not None and len((plan := _plan(search)).victim):
        improved(Solution(plan, search.outcome()))


def _bounded_by_all(level: LevelResult, most: int) -> LevelResult:
    """A level of a part of the cluster: only the most that it could ever reach is a bound for the whole."""
    bound = level.value if level.value == most else most
    status = level.status.replace("OPTIMAL", "FEASIBLE") if bound != level.value else level.status
    return replace(level, bound=bound, status=status)


def _at_least_as_open(levels: Sequence[LevelResult], freeing: Sequence[LevelResult]) -> tuple[LevelResult, ...]:
    """Levels without evictions, where evictions were looked for and none was found: what these might reach is open."""
    bounds = {level.name: level.bound for level in freeing if "start" in level.name}
    out = []
    for level in levels:
        bound = bounds.get(level.name)
        if bound is not None and level.bound is not None and bound > level.bound:
            level = replace(level, bound=bound, status=level.status.replace("OPTIMAL", "FEASIBLE"))
        out.append(level)
    return tuple(out)


def _values(
    problem: Problem,
    rules: Rules,
    plan: Plan,
    effort: Effort,
    levels: Sequence[LevelResult],
    allowed: Rights | None = None,
    *,
    late: bool = False,
) -> dict[str, int]:
    """What another plan reaches at these levels: all of them in a small model, else, and where it is `late`, up to the
    first that differs.
    """
    until = () if len(problem.job_min) * len(levels) <= SMALL and not late else levels
    found = {level.name: level.value for level in evaluate(problem, rules, plan, effort, until, allowed)}
    if beats(found, levels) and len(found) < len(levels):
        found = {level.name: level.value for level in evaluate(problem, rules, plan, effort, (), allowed)}
    return found


def evaluate(
    problem: Problem,
    rules: Rules,
    plan: Plan,
    effort: Effort,
    until: Sequence[LevelResult] = (),
    allowed: Rights | None = None,
) -> tuple[LevelResult, ...]:
    """The levels' values of a given plan that keeps the rules: its admissions fixed, the best reading of `own`.

    `until`: stop after the first level whose value differs from that of the same name here. `allowed`: the levels are
    those of a cycle that evicts.
    """
    ledger = Ledger(problem, rules, allowed, np.ones(len(problem.node_free), bool))
    if ledger.evictions is not None:
        ledger.evictions.hold(plan)
    placed = plan.placed(problem)
    for cls, terms in zip(ledger.classes, ledger.terms, strict=True):
        counts = placed[cls.sets]
        if cls.need:
            ledger.model.add(terms.whole.started.linear() == int((counts.sum(axis=1) > 0).sum()))
        if not (cls.need and cls.rigid):
            for i in range(len(cls.shape)):
                held = terms.whole.minimum[i].linear() + terms.whole.growth[i].linear()
                ledger.model.add(held == int(counts[:, i].sum()))
    search = Search(ledger, None, effort, None)
    wanted = {level.name: level.value for level in until}
    for result in _levels(search) if allowed is None else _evicting_levels(search):
        if result.status.startswith("UNKNOWN"):
            return tuple(search.results[:-1])
        if result.name in wanted and wanted[result.name] != result.value:
            break
    return tuple(search.results)


def run_levels(search: Search) -> None:
    """Every level of the skeleton, in order."""
    for _ in _levels(search):
        pass


def _ranks(ledger: Ledger) -> list[int]:
    return sorted({cls.rank for cls in ledger.classes})


def _levels(search: Search) -> Iterator[LevelResult]:
    ledger = search.ledger
    ranks, names = _ranks(ledger), ledger.rules.rank_names
    last = ranks[-1] if ranks else -1
    # affinity and spread let a pod stand because another does: then even what a level does not count may serve it
    enabling = any(isinstance(rule, Require | SpreadRule) for rule in ledger.rules.domain_rules)
    steered = search.floor is not None and not enabling
    search.levels_left = max(1, len(ranks) * (4 if ledger.owned else 1))
    for d in ranks if ledger.owned else ():
        if steered:
            ledger.open(d, -1)
        if any(rank <= d for _, _, rank in ledger.kept):
            yield search.maximise(f"in-share.keep>={names[d]}", ledger.keep_value(d))
        yield from _deficits(search, d, names[d])
        yield search.maximise(f"in-share.start>={names[d]}", ledger.start_value(d, own=True))
        worth = ledger.growth_worth(d, own=True)
        if worth.variables:
            yield search.maximise(f"in-share.grow>={names[d]}", worth)
    for d in ranks:
        if steered:
            ledger.open(last, d)
        yield search.maximise(f"start>={names[d]}", ledger.start_value(d, own=False), rank=d)
        worth = ledger.growth_worth(d, own=False)
        if worth.variables:
            yield search.maximise(f"grow>={names[d]}", worth, rank=d)
    yield search.maximise("disruption", Terms())
    yield from _preferences(search)


def _evicting_levels(search: Search) -> Iterator[LevelResult]:
    """The skeleton of formulation.md 8 and 11: whoever starts first, then the least harm, growth last.

    No job is kept out of a level that does not count it: its claim may make the room that another starts on (C18).
    """
    ledger, evictions = search.ledger, search.ledger.evictions
    assert evictions is not None
    starting, names = _ranks(ledger), ledger.rules.rank_names
    keeping = evictions.ranks()
    ranks = sorted({*starting, *keeping})
    search.levels_left = len(ranks) * (3 if ledger.owned else 2) + len(starting)
    if search.floor is not None:  # of a given plan the growth is given
        ledger.close_growth()

    def solve(name: str, objective: Terms) -> Iterator[LevelResult]:
        if search.guided is None:
            yield search.maximise(name, objective)
        else:
            search.promise(name, objective)

    for d in ranks if ledger.owned else ():
        if any(rank <= d for _, _, rank in ledger.kept):
            yield search.maximise(f"in-share.keep>={names[d]}", ledger.keep_value(d))
        if d in starting:
            yield from _deficits(search, d, names[d])
            yield search.maximise(f"in-share.start>={names[d]}", ledger.start_value(d, own=True))
    for d in evictions.ranks(RECLAIM):
        yield from solve(f"in-share.spare>={names[d]}", evictions.keep_value(d, RECLAIM))
    for d in ranks:
        if d in keeping:
            yield from solve(f"keep>={names[d]}", evictions.keep_value(d))
        if d in starting:
            yield from solve(f"start>={names[d]}", ledger.start_value(d, own=False))
    yield search.maximise("disruption.gangs", evictions.gangs())
    one = np.ones(len(ledger.problem.victims.holder), np.int64)
    yield search.maximise("disruption.pods", evictions.pods(one))
    yield search.maximise("disruption.whom", evictions.pods(evictions.whom()))
    yield search.maximise("disruption.time", evictions.pods(ledger.problem.victims.minutes))
    if evictions.rights.moves.any():
        yield search.maximise("disruption.moves", evictions.moves(one))
        yield search.maximise("disruption.moved-time", evictions.moves(ledger.problem.victims.minutes))
    if search.floor is not None:
        ledger.open_growth()
    for d in starting:
        for own in (True, False) if ledger.owned else (False,):
            worth = ledger.growth_worth(d, own=own)
            if worth.variables:
                yield search.maximise(f"{'in-share.' * own}grow>={names[d]}", worth)
    yield from _preferences(search)


def _preferences(search: Search) -> Iterator[LevelResult]:
    """What decides between plans that are equal in all that matters."""
    ledger = search.ledger
    load = ledger.largest_load() if ledger.owned else None
    if load is not None:
        yield search.maximise("balance", Terms.of(load, -1), best_effort=True)
    promised = ledger.promised_value()
    if promised.variables:
        yield search.maximise("promised", promised, best_effort=True)
    yield search.maximise("order", ledger.order_value(), best_effort=True)


def _deficits(search: Search, rank: int, name: str) -> Iterator[LevelResult]:
    """O2: the largest deficit, the two largest together, then all; until what is left is below one unit."""
    parts = search.ledger.deficits(rank)
    deficits = [Terms.of(var) for var, _ in parts]
    for k in sorted({*range(1, min(len(parts), LEXIMIN_DEPTH) + 1), len(parts)} - {0}):
        objective = search.ledger.largest_sum([var for var, _ in parts], k).times(-1)
        unit = min(unit for _, unit in parts)
        yield search.maximise(f"in-share.deficit[{k}]>={name}", objective, unit=unit)
        if search.incumbent is None:
            return
        search.tighten_derived()
        left = sorted((search.value(terms), unit) for terms, (_, unit) in zip(deficits, parts, strict=True))
        if all(value == 0 or value < unit for value, unit in left[: len(left) - k]):
            return


def _plan(search: Search) -> Plan:
    """The incumbent on real nodes: class patterns onto the class's nodes in name order, pod sets in their order."""
    problem = search.ledger.problem
    if search.incumbent is None or search.floor is None:
        return EMPTY_PLAN
    slots: dict[int, list[list[int]]] = defaultdict(list)
    for c, (_, packing) in sorted(search.packings.items()):
        nodes = iter(np.flatnonzero(problem.node_class == c).tolist())
        for pattern, uses in packing:
            for node in islice(nodes, uses):
                # not strict: shapes that the class got since have no pod there
                for s, pods in zip(search.floor.placement.of_class[c], pattern.tolist(), strict=False):
                    if pods:
                        slots[s].append([node, pods])
    moves = np.array(list(_moved(search, slots)), np.int64).reshape(-1, 3)
    rows: list[tuple[int, int, int]] = []
    placed = search.ledger.per_set(search.value)
    for t in np.flatnonzero(placed).tolist():
        rows += [(t, node, pods) for node, pods in _take(slots[int(problem.set_shape[t])], int(placed[t]))]
    table = np.array(rows, np.int64).reshape(-1, 3)
    evictions = search.ledger.evictions
    going = np.array(evictions.causes(search.value) if evictions is not None else [], np.int64).reshape(-1, 3)
    return Plan(*table.T, *going.T, *moves.T)


def _take(queue: list[list[int]], left: int) -> Iterator[tuple[int, int]]:
    """(node, pods) of places for `left` pods, the last in the queue first; they are used up."""
    while left:
        node, pods = queue[-1]
        take = min(left, pods)
        yield node, take
        left -= take
        if take == pods:
            queue.pop()
        else:
            queue[-1][1] = pods - take


def _moved(search: Search, slots: Mapping[int, list[list[int]]]) -> Iterator[tuple[int, int, int]]:
    """(set, node, pods) of everything that moves. Who would leave a node for which an equal is placed there stays."""
    evictions, v = search.ledger.evictions, search.ledger.problem.victims
    if evictions is None:
        return
    left = {s: pods for s, terms in enumerate(evictions.out[MOVE]) if (pods := search.value(terms))}
    for s, pods in left.items():
        for place in slots[int(v.shape[s])]:
            if place[0] == v.node[s]:
                stay = min(pods, place[1])
                left[s], place[1] = pods - stay, place[1] - stay
    for s, pods in left.items():
        queue = slots[int(v.shape[s])]
        queue[:] = [place for place in queue if place[1]]
        yield from ((s, node, take) for node, take in _take(queue, pods))

"""One level: hint, attempts in turn, split, cut, then locked with >=. Which levels there are: `model/levels.py`.

The incumbent is always a solution whose classes have been packed onto real nodes. A level that runs out of budget
leaves it in place; its bound, from a relaxation, stays valid.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model import mip
from solver_sched.model.effort import Clock, Effort, Fill, LevelResult, Progress
from solver_sched.model.engine import engine
from solver_sched.model.floor import Floor
from solver_sched.model.guided import Guided
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import Terms, weighted
from solver_sched.model.packing import Packings
from solver_sched.model.reduced import Priced, Proof, Reduced, Step
from solver_sched.problem.arrays import EMPTY_PLAN, MOVE, Ints, Plan

CUT_ROUNDS = 12
REPAIRS = 6
"""Solves in ever less room, for a solution that does not pack, before the level goes on without it."""
CLOSE_ENOUGH = 5e-4
"""Cuts are bought only while an incumbent that packs is further than this from the bound."""
CHEAP = 0.02
"""Deterministic seconds up to which a level is closed to the last unit; beyond, the gaps count. With a relaxation that
bounds levels before they are solved the gaps count from the start: to close hundreds of units takes most of the time.
"""
NEAR = 0.5
"""Seconds of wall time to look between an incumbent and the relaxation: 10 to 25 ms on 1,000 nodes, 20 to 90 on 5,000.
"""
NEVER = -(2**62)
"""Below every value: a row that no longer binds, a value that any solution reaches."""
WALL_LIMIT = " (wall limit)"
TAIL = 0.1
"""Part of the time that is left for the bounds of levels that no attempt is made at any more; with a relaxation that
rules out values there is a time for bounds after a plan (`rebound`).
"""
LEAST_SECONDS = 0.01
"""No solver is called with less."""
SMALL_CLASSES = 500
"""Job classes up to which a level is locked at its exact value. Beyond, at its value less the gap: one exact sum of
hundreds of values is met by few plans, and the levels below would spend their time looking for one of them.
"""
SHORT, LONG = 0.03, 0.3
"""What the first attempt gets in a large model: most levels close in that, the others after presolve only; and with a
relaxation that has ruled out most: to presolve once more takes longer.
"""
BEST_EFFORT, GLANCE = 0.1, 0.02
"""Part of the budget left that a best-effort level may use; deterministic seconds of it in a large model, which gains
little by more: at 5,000 nodes and 2,000 gangs `order` went from 10,673 to 10,674 with three times as much.
"""
WALL_SAFETY = 3.0
"""The deterministic budget is the limit; the wall clock stops a solve only at this multiple of it."""


def small(ledger: Ledger) -> bool:
    """Few enough job classes for exact locks, and for one model of levels and nodes together."""
    return len(ledger.classes) <= SMALL_CLASSES


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

    def __init__(
        self,
        ledger: Ledger,
        floor: Floor | None,
        effort: Effort,
        progress: Progress | None,
        clock: Clock | None = None,
    ) -> None:
        self.ledger, self.floor, self.effort = ledger, floor, effort
        self.clock = effort.clock() if clock is None else clock
        self.model = ledger.model
        self.progress = progress
        self.incumbent: list[int] | None = None
        self.packings: Packings = {}
        self.results: list[LevelResult] = []
        self.spent = 0.0
        self.levels_left = 1
        self.small = small(ledger)
        self._objectives: list[Terms | None] = []
        self._locks: dict[str, tuple[int, int]] = {}
        self._proofs: dict[str, Proof] = {}
        self.settled: Callable[[str], bool] = lambda _: False
        self.asked: frozenset[str] = frozenset()
        self.mostly_known = False  # the values of most variables
        self.spans: list[int] = []
        self.after_level: Callable[[], None] | None = None
        self.fill: Fill | None = None
        self.baseline: Plan | None = None
        self.ahead = False  # of the baseline, in a level that it could have led
        self.guided: Guided | None = None
        self.reduced: Reduced | None = None
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
                status = "OPTIMAL" if value == result.bound else "FEASIBLE" + limit
                result = replace(result, value=value, status=status)
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
            self.incumbent = self._completed(self.incumbent, tight=self.settled(name))
        least = None
        if rank is not None and self.baseline is not None:
            least = self._begin_at(self.baseline, objective, rank)
        best = self.value(objective) if self.incumbent is not None else None
        bound = best if best is not None and self.settled(name) else most
        proof = self._proof(objective) if best != bound else None
        if proof is not None:
            bound = min(bound, proof.bound)
        allowance = self._allowance(best_effort)
        stages = [Stage.DIRECT] if best_effort else list(Stage)
        if self.guided is not None:
            stages = [] if best_effort else [Stage.GUIDED]
        elif not best_effort:
            stages.remove(Stage.GUIDED)
            if self.reduced is not None:
                stages = [Stage.DIRECT, Stage.LAST]  # what is in between takes longer than it saves
            elif not self.effort.walled:
                stages.remove(Stage.MIP)
        if proof is not None and best is not None and best != bound and not best_effort:
            best = self._near(objective, proof, best)
        cheap = CHEAP if self.guided is None and self.reduced is None else -1.0
        rounds, walled, filled = 0, False, rank is None or self.fill is None
        while stages and best != bound:
            if best is not None and effort > cheap and self._closed(best, bound, unit):
                break
            late = self.late()
            walled |= late
            if self.clock.over():
                break
            done = effort >= allowance or rounds > CUT_ROUNDS
            # by hand when CP-SAT has done what it can: placing again what it has found takes as long as an attempt
            if not filled and (late or done or stages[0] in (Stage.MIP, Stage.LAST)):
                filled = True
                if self._fill(rank):
                    best = self.value(objective)
                    continue
            if late and objective.variables:
                if self.guided is None and proof is None:  # a large relaxation takes too long for every level left
                    bound = min(bound, mip.relaxed_bound(self.model, objective, self.clock.left))
                break
            if done:
                break
            stage = stages[0]
            glance = best_effort and not self.small
            longest = stage.value
            if stage is Stage.DIRECT and self.reduced is not None:
                longest = LONG
            elif stage is Stage.DIRECT and not self.small:
                longest = SHORT
            outcome = self._solve(objective, min(allowance - effort, longest), unit, stage, glance=glance)
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
        if walled and status != "OPTIMAL":
            status += WALL_LIMIT
        if best is None:
            best = 0
        seconds = time.perf_counter() - began
        result = LevelResult(name, best, bound, status, seconds, effort, unit)
        self.spent += effort
        self._record(result, objective)
        if self.progress is not None:
            self.progress(result)
        if objective.variables and self.incumbent is not None:
            slack = 0 if self.small else unit - 1 if unit else int(self.effort.gap * abs(best))
            at = len(self.model.proto.constraints)
            # of a unit the levels below get what the level has not used itself
            lock = min(best, bound - slack) if unit else best - slack
            if least is not None and not self.ahead:
                # nor must it cost more than all below can bring: a plan under the baseline is of no use
                lock = max(lock, min(best, least))
            self.ahead |= least is not None and best > least
            self.lock(objective, lock)
            self._locks[name] = at, lock
            if proof is not None and self.reduced is not None:
                self.reduced.keep(proof, lock)
                self.reduced.cap(at, bound - objective.constant)
                self._proofs[name] = proof
        if self.after_level is not None:
            self.after_level()
        return result

    def begin_at_nothing(self) -> None:
        """Make the plan that changes nothing the incumbent, if the model has it, and if that can be told at once."""
        if self.reduced is None:
            return
        solution = self._completed([], tight=True)
        domain = self.reduced.domains()
        values = np.array(solution, np.int64)
        inside = ((values >= domain[:, 0]) & (values <= domain[:, 1])).all()
        if inside and self.reduced.matrix().holds(values):
            self._accept(solution)

    def go_back(self, solution: list[int]) -> None:
        """Make a solution of all that the nodes are asked for the incumbent."""
        accepted = self._accept(self._completed(solution))
        assert accepted, "no pods on nodes that do not hold them"

    def _proof(self, objective: Terms) -> Proof | None:
        """What the relaxation says of a level."""
        if self.reduced is None or not objective.variables or self.clock.over():
            return None
        return self.reduced.prove(objective, self.clock.left)

    def _near(self, objective: Terms, proof: Proof, value: int) -> int:
        """Look between the incumbent, of that value, and the relaxation; leave out what no plan has that is as good as
        what is found. Its value. Where the clock has no say, HiGHS has as long as it needs.
        """
        assert self.reduced is not None
        assert self.incumbent is not None
        seconds = self._wall(NEAR) if self.effort.walled else Stage.LAST.value
        found = self.reduced.near(objective, proof, self.incumbent, seconds)
        if found is not None and objective.at(found) > value and self._accept(found):
            value = objective.at(found)
        if self.small:
            self.reduced.keep(proof, value)
        return value

    def promise(self, name: str, objective: Terms) -> None:
        """Lock a level at the value of its relaxation, which is nearly always reached; the next level that is solved
        must find a plan that keeps all such promises. Without a relaxation to go by: `maximise`.
        """
        began = time.perf_counter()
        wanted = self.guided is not None and objective.variables and self.incumbent is None and not self.late()
        relaxed = self.guided.relax(objective, self.clock) if wanted and self.guided is not None else None
        if relaxed is None:
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
        relaxed, effort = self.guided.relax(objective, self.clock), 0.0
        if relaxed is not None:
            found = self.guided.repair(objective, relaxed, NEVER, self._allowance(best_effort=False), self.clock)
            effort = found.effort
            if found.solution is not None and self._accept(found.solution):
                return effort, relaxed.bound
        for _, _, row in owed:
            self.model.proto.constraints[row].linear.domain[0] = NEVER
        del self.results[-len(owed) :], self._objectives[-len(owed) :], self.spans[-len(owed) :]
        assert self.floor is not None
        if not self.late():
            self.guided = Guided(self.ledger, self.floor, self.effort.seed)
        for name, goal, _ in owed:
            self.maximise(name, goal)
        return effort, objective.span()

    def rebound(self, values: Mapping[str, int], priced: Mapping[str, Priced]) -> dict[str, int]:
        """Upper bounds of the levels for a plan of other values, each given that plan's values above: as far as these
        reach what the levels were locked at, its own, where one was looked for; else what the prices of its relaxation
        say (`priced`), and where that is far from the value, those of a new one, as long as the clock allows.
        """
        out: dict[str, int] = {}
        relaxation: mip.Relaxation | None = self.reduced
        looked = [
            result.bound is not None and result.bound < span
            for result, span in zip(self.results, self.spans, strict=True)
        ]
        pruned = (at for at, result in enumerate(self.results) if looked[at] or result.name in self._proofs)
        last = max(pruned, default=-1)
        same, ruled_out = True, self.reduced
        kept = dict.fromkeys(self.locks(), NEVER)
        for at, (result, objective, span) in enumerate(zip(self.results, self._objectives, self.spans, strict=True)):
            name, bound = result.name, result.bound
            if not same or bound is None or not (looked[at] or bound == result.value):
                if ruled_out is not None and (not same or at < last):
                    ruled_out.undo()  # by levels below this one, or for plans of other values
                    ruled_out = None
                most = span if objective is None else objective.span()
                told = priced[name].bound if name in priced else None
                bound = most if told is None else min(told, most)
                far = name not in values or not self._closed(values[name], bound, result.unit)
                if objective is not None and far and not self.clock.over():
                    if relaxation is None:
                        relaxation = mip.Relaxation(self.model)
                    for row, low in kept.items():
                        relaxation.at_least(row, low)
                    kept.clear()
                    bound = min(bound, relaxation.bound(objective, self.clock.left))
            out[name] = bound
            row, least = self._locks.get(name, (-1, result.value))
            same &= name in values and values[name] >= least
            if row >= 0 and name in values and objective is not None:
                kept[row] = values[name] - objective.constant
        return out

    def priced(self, values: Mapping[str, int]) -> dict[str, Priced]:
        """By name what the prices that levels were proven with say of a plan of other values."""
        if self.reduced is None:
            return {}
        steps: dict[str, Step] = {}
        for result, objective in zip(self.results, self._objectives, strict=True):
            name = result.name
            if name in self._locks and name in values and objective is not None:
                low = values[name] - objective.constant
                steps[name] = Step(self._proofs.get(name), self._locks[name][0], low)
        return dict(zip(steps, self.reduced.bounds(list(steps.values()), self.locks()), strict=True))

    def locks(self) -> list[int]:
        """The rows that lock levels."""
        return [row for row, _ in self._locks.values()]

    def tighten_derived(self) -> None:
        """Bring every derived variable of the incumbent to its least value."""
        if self.incumbent is not None:
            self.incumbent = self._completed(self.incumbent, tight=True)

    def objective(self, name: str) -> Terms | None:
        """What a level counts; None where that is nothing, or it was not solved."""
        names = [result.name for result in self.results]
        return self._objectives[names.index(name)] if name in names else None

    def locked(self, name: str) -> tuple[int, int] | None:
        """The row that locks a level, and at what; None where the level counts nothing, or was not solved."""
        return self._locks.get(name)

    def lock(self, objective: Terms, value: int) -> None:
        self.model.add(weighted(objective.variables, objective.coefficients) >= value - objective.constant)

    def value(self, terms: Terms) -> int:
        """Value of an expression in the incumbent."""
        assert self.incumbent is not None
        return terms.at(self.incumbent)

    def _allowance(self, best_effort: bool) -> float:
        """Deterministic seconds of this level: a fair part of what is left."""
        left = max(0.05, self.effort.seconds - self.spent)
        if best_effort and not self.small:
            return GLANCE
        return max(0.05, left * BEST_EFFORT if best_effort else left / min(self.levels_left, 3))

    def late(self) -> bool:
        """The wall clock is nearly over: no further round is begun."""
        return self.clock.seconds < math.inf and self.clock.over(TAIL if self.reduced is None else 0.0)

    def _wall(self, seconds: float) -> float:
        """As many of the seconds as the clock leaves."""
        return max(LEAST_SECONDS, min(seconds, self.clock.left))

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

    def _solve(self, objective: Terms, seconds: float, unit: int, stage: Stage, *, glance: bool = False) -> Outcome:
        """One attempt at the level. Seconds are deterministic for CP-SAT and wall for HiGHS; at a `glance` without
        presolve.
        """
        if stage is Stage.GUIDED:
            return self._guided(objective, seconds, unit)
        if stage is Stage.MIP:
            began = time.perf_counter()
            answer = mip.maximise(self.model, objective, self._wall(seconds))
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
        solver = engine()
        parameters = solver.parameters
        parameters.random_seed = self.effort.seed
        parameters.max_deterministic_time = max(0.02, seconds)
        if self.effort.walled:
            parameters.max_time_in_seconds = self._wall(WALL_SAFETY * max(0.02, seconds) + 0.5)
        parameters.symmetry_level = 0
        parameters.cp_model_probing_level = 0
        if stage is Stage.DIRECT:
            # with a light relaxation these close twice as fast; without presolve too, as long as they carry the nodes
            parameters.cp_model_presolve = (not self.small or self.mostly_known) and not glance
            parameters.max_presolve_iterations = 1
            parameters.linearization_level = 2 if self.reduced is not None else 1
            if self.reduced is not None and not unit:
                parameters.relative_gap_limit = self.effort.gap
        else:
            parameters.linearization_level = 2
            if not unit:
                parameters.relative_gap_limit = self.effort.gap
            else:
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
        relaxed = self.guided.relax(objective, self.clock)
        if relaxed is None:
            return self.Outcome(None, None, 0.0, False)
        if self.incumbent is not None and self._closed(self.value(objective), relaxed.bound, unit):
            return self.Outcome(None, relaxed.bound, 0.0, False)
        slack = unit - 1 if unit else int(self.effort.gap * abs(relaxed.bound))
        found = self.guided.repair(objective, relaxed, relaxed.bound - slack, seconds, self.clock)
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

    def _repair(
        self, objective: Terms, best: int | None, seconds: float, unit: int, rounds: int = REPAIRS
    ) -> tuple[int | None, float]:
        """Solve again within room that is known to pack; where what comes of that does not pack elsewhere, once more
        within less. Returns the value of a better incumbent, or None; effort.
        """
        assert self.floor is not None
        with self.floor.narrow():
            outcome = self._solve(objective, min(seconds, Stage.PRESOLVED.value), unit, Stage.PRESOLVED)
            reached = None if outcome.solution is None else objective.at(outcome.solution)
            if outcome.solution is None or reached is None or (best is not None and reached <= best):
                return None, outcome.effort
            if self._accept(outcome.solution):
                return reached, outcome.effort
            left = seconds - outcome.effort
            if rounds <= 1 or left <= 0 or self.late():
                return None, outcome.effort
            repaired, more = self._repair(objective, best, left, unit, rounds - 1)
            return repaired, outcome.effort + more

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
        plan = plan_of(self)
        fuller = self.fill(problem, self.ledger.rules, plan, rank)
        return fuller.count.sum() > plan.count.sum() and self.adopt(fuller)

    def _begin_at(self, baseline: Plan, objective: Terms, rank: int) -> int | None:
        """Start a level from the jobs of this rank and higher that the baseline places, where that is ahead: then no
        plan that the budget cuts short is below it. Once it breaks a lock, an earlier level is better: it has no say.
        The value of the baseline, if it has one.
        """
        before = (self.incumbent, self.packings)
        best = None if self.incumbent is None else self.value(objective)
        problem = self.ledger.problem
        rows = self.ledger.rules.rank[problem.set_job[baseline.pod_set]] <= rank
        placed = {name: getattr(baseline, name)[rows] for name in ("pod_set", "node", "count")}
        least = None
        if not self.adopt(replace(baseline, **placed)):
            self.baseline = None
        else:
            least = self.value(objective)
            if best is None or least > best:
                if self.after_level is not None:
                    self.after_level()
                return least
        self.incumbent, self.packings = before
        return least

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
        solver = engine()
        solver.parameters.random_seed = self.effort.seed
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.max_deterministic_time = max(0.05, self.effort.seconds / 10)
        solver.parameters.max_time_in_seconds = self._wall(self.effort.seconds)
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


def plan_of(search: Search) -> Plan:
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
    table = standing(search, slots)
    evictions = search.ledger.evictions
    going = np.array(evictions.causes(search.value) if evictions is not None else [], np.int64).reshape(-1, 3)
    return Plan(*table.T, *going.T, *moves.T)


def standing(search: Search, slots: Mapping[int, list[list[int]]]) -> Ints:
    """(.., 3) pod set, node and pods of what the incumbent places, given [node, pods] for each shape, which are used
    up.
    """
    rows: list[tuple[int, int, int]] = []
    placed, shape = search.ledger.per_set(search.value), search.ledger.problem.set_shape
    for t in np.flatnonzero(placed).tolist():
        rows += [(t, node, pods) for node, pods in _take(slots[int(shape[t])], int(placed[t]))]
    return np.array(rows, np.int64).reshape(-1, 3)


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

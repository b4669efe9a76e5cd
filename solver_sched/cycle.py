"""One cycle: snapshot in, verified plan with certificate and reasons out. Pure but for the clock of its budget.

    snapshot -> encode -> rules -> enqueue -> greedy -> solve -> verify -> decide, explain
                  ^------------ reservations <-'

Where a blocked job gets a reservation, the problem is encoded once more with its room kept (formulation.md 10).

The service, the simulator, the command line, tests and benchmarks all call `run_cycle`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from typing import Any

from solver_sched.actions.decide import Decision, decide
from solver_sched.actions.enqueue import NotAdmitted, open_cycle, posed
from solver_sched.actions.evict import evicted
from solver_sched.collector import paused
from solver_sched.explain import Reason, explain
from solver_sched.greedy import evicting_plan, greedy_plan, settle, spare, towards
from solver_sched.leaning import leaning
from solver_sched.model.effort import Effort, LevelResult, Progress, Solution, beats
from solver_sched.model.process import solve_apart
from solver_sched.plugins.plugin import Violation
from solver_sched.plugins.rules import Rules
from solver_sched.policy import Policy
from solver_sched.problem.arrays import EMPTY_PLAN, Index, Plan, Problem
from solver_sched.problem.census import Census
from solver_sched.problem.reservations import Reservation, by_hand
from solver_sched.reserve import reservations, respected
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations

AFTER = 0.3
"""Most part of the budget that is kept for what comes after the solve."""
LEAST = 0.05
"""Seconds that the solver gets however little is left."""
SEEDS = 2**31
"""Seeds that CP-SAT tells apart: larger ones are reduced."""
BEST_EFFORT = ("balance", "promised", "order")
OPEN = 1e-3
"""Relative gap of a level beyond which its solve was cut short rather than closed."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`seconds`: wall seconds of the cycle, the solver's share of which is a deterministic budget.

    `apart`: solve in a child process that is killed on a hard overrun; False solves in this one (tests, embedding).
    `walled`: False makes all of `seconds` the solver's deterministic budget, and wall time ends nothing: then the plan
    follows from the arguments alone, on any machine (replays).
    """

    seconds: float = 5.0
    apart: bool = True
    seed: int | None = None
    walled: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class CycleReport:
    """Everything a cycle found. `winner`: whose plan it is, "solver" or "greedy". `greedy_levels`: the values that the
    greedy plan reaches; `reservations`: room that the plan leaves to jobs that wait; `refused`: violations of a solved
    plan that was discarded.
    """

    snapshot: Snapshot
    policy: Policy
    problem: Problem
    index: Index
    rules: Rules
    plan: Plan
    greedy: Plan
    levels: tuple[LevelResult, ...]
    greedy_levels: Mapping[str, int]
    winner: str
    decisions: tuple[Decision, ...]
    reasons: Mapping[str, Reason]
    reservations: tuple[Reservation, ...] = ()
    refused: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self, *, nodes: bool = False) -> dict[str, Any]:
        """The plan as `plan -o json` prints it; with `nodes`, the use of each as well."""
        from solver_sched.document import node_rows, plan_document

        return plan_document(self) | ({"nodes": node_rows(self)} if nodes else {})


def run_cycle(
    snapshot: Snapshot,
    policy: Policy,
    budget: Budget = Budget(),
    solver: str = "optimal",
    progress: Progress | None = None,
    census: Census | None = None,
    *,
    explained: bool = True,
) -> CycleReport:
    """Plan one cycle. `solver`: "optimal" or "greedy". `census`: of the snapshot, where there is one. `explained`:
    False leaves finding the reasons to the first who reads them. Never raises for what the cluster holds.
    """
    clock, waits = _Clock(), dict[str, NotAdmitted]()
    with paused():
        census = Census(snapshot) if census is None else census
        while True:
            report = _cycle(snapshot, policy, budget, solver, progress, census, waits, clock, explained=explained)
            leans = leaning(census, report.problem, report.index, report.rules, report.plan)
            if not leans:
                return report
            # whoever leans on pods that go is held, and the rest is decided again in the time that is left
            waits |= {key: NotAdmitted(code, sentence, {"held": True}) for key, (code, sentence) in leans.items()}


def _cycle(
    snapshot: Snapshot,
    policy: Policy,
    budget: Budget,
    solver: str,
    progress: Progress | None,
    census: Census,
    waits: Mapping[str, NotAdmitted],
    clock: _Clock,
    *,
    explained: bool,
) -> CycleReport:
    """`waits`: groups that are held, as those are that were not let in. `clock`: of the cycle, since it began."""
    solving = solver == "optimal"
    reserved = by_hand(snapshot)
    problem, index, rules, entries = open_cycle(snapshot, policy, (), reserved, census, classes=solving)
    if waits:
        entries = replace(entries, refused={**entries.refused, **waits})
        problem, index, rules = posed(snapshot, policy, entries.refused, reserved, census, classes=solving)
    clock.lap("encode")
    baseline = greedy_plan(problem, rules)
    found = reservations(census, problem, index, rules, baseline, policy.solve.reserve)
    reserved += found
    if found and (solving or policy.evicts or not respected(census, problem, index, baseline, found)):
        problem, index, rules = posed(snapshot, policy, entries.refused, reserved, census, classes=solving)
        baseline, found = greedy_plan(problem, rules), ()
    without, baseline = baseline, evicting_plan(problem, rules, baseline)
    clock.lap("greedy")
    notes: list[str] = []
    refused: tuple[Violation, ...] = ()
    solution: Solution | None = None
    if solving and not len(problem.set_count):
        solution = Solution(EMPTY_PLAN, (LevelResult("disruption", 0, 0, "OPTIMAL"),))
    elif solving:
        seed = (policy.solve.seed if budget.seed is None else budget.seed) % SEEDS
        # what comes after the solve takes up to one and a half times as long as what came before
        after = min(1.5 * clock.total, AFTER * budget.seconds)
        seconds = max(LEAST, budget.seconds - clock.total - after) if budget.walled else budget.seconds
        effort = Effort(seconds, policy.solve.gap, seed, budget.walled)
        solution, failure = solve_apart(
            problem, rules, effort, without, progress, greedy_plan, baseline, towards, apart=budget.apart
        )
        notes += [failure] if failure else []
        if solution is not None and policy.evicts and (failure or solution.cut) and not solution.plan.frees:
            # the time was over before it was known who gives way. Greedy adds to what starts without it, if that is
            # better than what greedy starts, as far as it goes
            closed = all(level.gap <= OPEN for level in solution.levels if level.name not in BEST_EFFORT)
            freeing = evicting_plan(problem, rules, solution.plan) if closed and not failure else baseline
            if len(freeing.victim):
                notes.append("the budget ended before room was looked for: who gives way is chosen greedily")
                baseline, solution = freeing, None
            else:
                reached = tuple(level for level in solution.ever or solution.levels if level.name != "disruption")
                solution = replace(solution, levels=reached)
                notes.append("the budget ended before room was looked for: nobody gives way")
    clock.lap("solve")
    winner = "greedy"
    if solution is not None and not solution.evicting:
        baseline = without  # nobody has to go: what greedy reaches without evictions is the bar
    if solution is not None and solution.levels and not beats(solution.greedy, solution.levels):
        winner = "solver"
        solved = solution.plan
        open_levels = [level for level in solution.levels if level.name.startswith(("start", "grow"))]
        early = bool(notes) or any(level.gap > OPEN for level in open_levels)
        if len(solved.victim) and not len(solved.moved) and not _least(solution.levels):
            # on the nodes that score best fewer may be in the way
            solved = _verified(problem, rules, solved)[0]
            tries = count()

            def stands(plan: Plan) -> bool:
                """The first plan is looked at in any case, the others while there is time."""
                in_time = not next(tries) or not budget.walled or clock.total < budget.seconds
                return in_time and not violations(problem, rules, plan)

            solved = spare(problem, rules, solved, stands)
        if early:
            # the budget or the solver ended before the last levels: what still fits goes in by hand, no level can lose
            fuller = greedy_plan(problem, rules, solved)
            if not len(solved.victim) or not violations(problem, rules, fuller):
                solved = fuller
            notes.append("the budget ended early: room left was filled greedily, level values are at least these")
        plan, refused = _verified(problem, rules, solved)
        if early and not refused:
            # on the nodes that score best there may be room that was not there before
            fuller = greedy_plan(problem, rules, plan)
            plan = plan if violations(problem, rules, fuller) else fuller
        if refused:
            notes.append(f"the solved plan breaks {len(refused)} rules and was discarded: {refused[0].message}")
            winner = "greedy"
    for chosen in dict.fromkeys((baseline, without, EMPTY_PLAN)) if winner == "greedy" else ():
        # greedy alone places as it does; in the solver's stead its pods go where they score best
        plan, broken = (
            _verified(problem, rules, chosen) if solving else (chosen, tuple(violations(problem, rules, chosen)))
        )
        if not broken:
            break
        notes.append(f"the greedy plan breaks {len(broken)} rules and was discarded: {broken[0].message}")
    clock.lap("verify")
    levels = solution.levels if solution is not None else ()
    decisions = decide(entries.admitted, problem, index, plan, rules)
    proven = levels if winner == "solver" else ()
    reasons: Mapping[str, Reason] = _Reasons(
        partial(reasons_of, snapshot, problem, index, rules, plan, proven, reserved, entries.refused)
    )
    if explained:
        reasons = dict(reasons)
    clock.lap("explain")
    greedy_levels = dict(solution.greedy) if solution is not None else {}
    return CycleReport(
        snapshot=snapshot,
        policy=policy,
        problem=problem,
        index=index,
        rules=rules,
        plan=plan,
        greedy=baseline,
        levels=levels,
        greedy_levels=greedy_levels,
        winner=winner,
        decisions=decisions,
        reasons=reasons,
        reservations=reserved,
        refused=refused,
        notes=tuple(notes),
        seconds={**clock.laps, "total": clock.total},
    )


def reasons_of(
    snapshot: Snapshot,
    problem: Problem,
    index: Index,
    rules: Rules,
    plan: Plan,
    levels: Sequence[LevelResult],
    reserved: Sequence[Reservation],
    refused: Mapping[str, NotAdmitted],
) -> dict[str, Reason]:
    """Why groups wait, are not let in, or have to make room. One that makes room and waits says both."""
    out = explain(snapshot, problem, index, rules, plan, levels, reserved)
    out.update((key, Reason(*why)) for key, why in refused.items())
    for key, (code, message, detail) in evicted(problem, index, rules, plan).items():
        waits = out.get(key)
        if waits is not None:
            message = f"{message}; its pending pods: {waits.code}: {waits.message}"
        out[key] = Reason(code, message, {"evicted": detail, **({} if waits is None else waits.detail)})
    return out


class _Reasons(Mapping[str, Reason]):
    """What `find` gives, found when somebody reads it."""

    def __init__(self, find: Callable[[], Mapping[str, Reason]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> Mapping[str, Reason]:
        return self._find()

    def __getitem__(self, key: str) -> Reason:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _least(levels: Sequence[LevelResult]) -> bool:
    """Whether no plan that keeps the levels above evicts less."""
    found = [level for level in levels if level.name.startswith("disruption.")]
    return bool(found) and all(level.value == level.bound for level in found)


def _verified(problem: Problem, rules: Rules, plan: Plan) -> tuple[Plan, tuple[Violation, ...]]:
    """The plan on the nodes that score best, as far as that verifies, and what the plan itself breaks."""
    settled = settle(problem, rules, plan)
    if not violations(problem, rules, settled):
        return settled, ()
    return plan, tuple(violations(problem, rules, plan))


class _Clock:
    """Wall seconds per stage."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return time.perf_counter() - self._start

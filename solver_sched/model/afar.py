"""A plan from the levels on pooled nodes: who starts, who goes and what bounds the values is looked up there, nodes are
found on real ones (docs/adr/0017, docs/adr/0027, docs/adr/0029).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver_sched.model.assigned import Asked, State, assigned, falling, most_on_nodes
from solver_sched.model.cleared import Cleared
from solver_sched.model.effort import Clock, Effort, LevelResult, Progress, Solution, Stand, beats
from solver_sched.model.floor import Joint
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import BEST_EFFORT, evaluate, evicting_levels, ranks_of
from solver_sched.model.linear import summed
from solver_sched.model.pooled import pooled
from solver_sched.model.reduced import Priced, Reduced
from solver_sched.model.search import CLOSE_ENOUGH, Search, plan_of
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RECLAIM, Floats, Ints, Plan, Problem
from solver_sched.rights import Rights

AFAR, LEAST_LEFT = 0.6, 0.1
"""Parts of the time: for levels on pooled nodes at least; what must be left to find places for what was seen there."""
NODES = 5
"""Nodes take up to so many times as long as the model took to be built (0.4 to 0.9 s after 0.23 s, 1 to 3 s after
0.8 s): levels have the rest.
"""
BELOW = 1.5
"""Levels below shares end that many times as long before the end as those inside: nodes are found for these first.
"""
TOLD = 0.08
"""Part of the time that is left to tell and bound what is found."""
PLENTY, SCARCE = 0.4, 0.15
"""Parts of the time that are left for what may be better, and for nodes at all."""
GAP, COARSE, FINE = 1e-2, 5e-2, 1e-4
"""Of the price of slack, at which the search for nodes may stop: without and with an aim beyond the levels, and where a
level is looked at once more.
"""
OPEN, AGAIN = 10, 3
"""Times as long as the plan at hand took, one look at a level may take: where who starts and which gangs end was given
and is open now, and else.
"""
ONE_LOOK = 0.1
"""Of the time that is left one look may have so much in any case."""
COMPARED = 0.3
"""Seconds that it may take to evaluate a plan, even beyond the time."""


class _Aim(NamedTuple):
    """What a solution on pooled nodes starts: jobs (rows) in the order in which levels count them, the size of a pod of
    each; `gone` (.., 3): set, pods and cause of who goes for them.
    """

    jobs: Ints
    size: Floats
    gone: Ints

    @property
    def largest_first(self) -> Ints:
        """The jobs in another order: pods that take much of a node fit the fewest."""
        return self.jobs[np.argsort(-self.size, kind="stable")]


Found = tuple[Plan, tuple[LevelResult, ...]]


class Afar:
    """The levels solved on pooled nodes, and plans on real ones that come near to that. Raises OutOfTimeError where the
    clock runs out before there is a model.
    """

    def __init__(
        self,
        problem: Problem,
        rules: Rules,
        allowed: Rights,
        effort: Effort,
        clock: Clock,
        progress: Progress | None,
        stand: Stand,
    ) -> None:
        self.problem, self.rules, self.allowed = problem, rules, allowed
        self.effort, self.clock, self.stand = effort, clock, stand
        began = time.monotonic()
        self.of = pooled(problem, rules, allowed)
        whole = np.ones(len(self.of.problem.node_free), bool)
        self.ledger = Ledger(self.of.problem, self.of.rules, self.of.rights, whole, clock)
        floor = Joint(self.ledger)
        self.cleared = Cleared(self.ledger, floor, problem, rules, self.of)
        seconds = AFAR * clock.left
        if clock.seconds < math.inf:
            seconds = max(seconds, clock.left - NODES * (time.monotonic() - began) - TOLD * clock.seconds)
        self.reserve = clock.left - seconds
        """Seconds, for nodes and what comes after."""
        part = replace(effort, seconds=AFAR * effort.seconds)
        self.search = Search(self.ledger, floor, part, progress, Clock(seconds))
        self.search.reduced, self.search.mostly_known = Reduced(self.ledger.model), True
        evictions = self.ledger.evictions
        assert evictions is not None
        self.kept = summed(evictions.keep_value(rank) for rank in evictions.ranks())
        self.domain = np.zeros((0, 2), np.int64)
        """Of all variables, before levels rule out values."""
        self.after: list[State] = []
        """What is known after each level before growth, as far as the clock allowed."""

    def best(self) -> Solution | None:
        """The values are those of the plan, the bounds those of pooled nodes, or of nodes. None: somebody goes for
        nobody in each plan, or there is no time to tell.
        """
        search = self.search
        assert search.reduced is not None
        before, inside, most = True, self.ledger.owned and search.clock.seconds < math.inf, None
        for level in evicting_levels(search):
            if inside and level.name.startswith("keep"):
                inside = False
                search.clock = Clock(self.clock.left - BELOW * self.reserve)
            before &= not level.name.startswith(("grow", "in-share.grow", *BEST_EFFORT))
            if not len(self.domain):  # growth is closed now
                self.domain = search.reduced.widest()
            if search.incumbent is None or not before:
                continue
            if not search.clock.over():
                rows = len(self.ledger.model.proto.constraints)
                self.after.append(State(level.name, rows, search.reduced.domains(), search.incumbent))
            elif most is None and not self.clock.over(PLENTY):
                most = search.reduced.prove(self.kept, TOLD * self.clock.left)
        if search.incumbent is None or self.clock.over(LEAST_LEFT):
            return None
        search.clock = self.clock
        if self.clock.seconds < math.inf:  # what is left is for the plan that is found, to be told apart and bounded
            search.clock = Clock(self.clock.left - TOLD * self.clock.seconds)
        names, last = [state.name for state in self.after], _last_start(self.ledger)
        starts = names.index(last) if last in names else len(names) - 1
        found = self._at_hand() or self._on_nodes(starts, None if most is None else most.bound) or self._by_hand(starts)
        search.clock = self.clock
        return None if found is None or self._for_nobody(found[0]) else self._bounded(*found)

    def _for_nobody(self, plan: Plan) -> bool:
        """Whether somebody goes although all that is placed fits beside them."""
        need = np.zeros_like(self.problem.node_free)
        np.add.at(need, plan.node, plan.count[:, None] * self.problem.request[self.problem.set_shape[plan.pod_set]])
        return len(plan.victim) > 0 and not bool((need > np.maximum(self.problem.node_free, 0)).any())

    def _at_hand(self) -> Found | None:
        """Where there is plenty of time: what greedy makes of the last solution, if all start and as many go."""
        if not self.after or self.clock.over(PLENTY):
            return None
        self.search.go_back(self.after[-1].solution)
        aim = self._aim()
        plan = self.stand(self.problem, self.rules, aim.largest_first, self._of_holders(aim.gone), aim.gone)
        return self._told(plan, self.search.outcome()) if self._as_aimed(plan, aim) else None

    def _on_nodes(self, starts: int, most: int | None) -> Found | None:
        """A plan with who starts and which gangs end in the solution after the last level inside shares, as near to the
        levels as nodes allow: those beyond the one that `starts` the last job inside shares give way. Where nodes do
        not have so much, one in which that is open and each level gives way. Levels below shares come after that: who
        starts there on pooled room may take nodes from those that stay inside. `most` of what runs is kept in sum, as
        far as it is known, where the clock has cut off the levels that look for it in turn.
        """
        if not self.after:
            return None
        inside = [at for at, one in enumerate(self.after) if one.name.startswith("in-share.")]
        upto = inside[-1] + 1 if inside else len(self.after)
        state, first = self.after[upto - 1], self.after[starts]
        wanted = None if most is None or self.clock.over(PLENTY) else (self.kept, most)
        # with slack there may be use for values that levels have ruled out
        attempts = [(first.domain, True, starts + 1)] if first is not state else []
        for domain, given, loose in ((state.domain, True, starts + 1), *attempts, (self.domain, False, 0)):
            if self.clock.over(SCARCE):
                return None
            rows = [lock[0] for one in self.after[loose:upto] if (lock := self.search.locked(one.name)) is not None]
            prices = falling(rows, beyond=wanted is not None)
            asked = Asked(self._wide(state, domain), prices, {}, wanted, given)
            began = time.monotonic()
            plan = assigned(self.cleared, self.search, asked, GAP if wanted is None else COARSE)
            if plan is not None:
                last = asked._replace(state=self._wide(self.after[-1], domain))
                return self._told(*self._sharper(last, plan, time.monotonic() - began))
        return None

    def _wide(self, state: State, domain: Ints) -> State:
        """The state with the domains of an earlier one, and for variables that came later all values."""
        assert self.search.reduced is not None
        later = self.search.reduced.widest()[len(domain) : len(state.domain)]
        return state._replace(domain=np.vstack([domain, later]))

    def _sharper(self, asked: Asked, plan: Plan, seconds: float) -> Found:
        """The plan after every level that is not all it could be has been looked at once more, with what is reached
        above it as its due, as far as the time allows: where there is much of it, with all open that was given. The
        plan at hand took the `seconds`.
        """
        search, levels = self.search, self.search.outcome()
        values = {level.name: level.value for level in levels}
        locked = [(one.name, lock) for one in self.after if (lock := search.locked(one.name)) is not None]
        wide: State | None = None
        for at, (name, (_, value)) in enumerate(locked):
            if values[name] >= value:
                continue
            if wide is None:  # what levels rule out above the first that is not all it could be
                above = [one.domain for one in self.after[: [one.name for one in self.after].index(name)]]
                wide = self._wide(asked.state, above[-1] if above else self.domain)
            prices = falling([row for _, (row, _) in locked[at:]], first=True)
            for state, given in ((asked.state, True), (wide, False)) if asked.given else ((wide, False),):
                most = (OPEN if asked.given and not given else AGAIN) * seconds
                before = search.incumbent
                assert before is not None
                if values[name] >= value or search.clock.left < most:
                    break
                floors = {row: values[other] - lock for other, (row, lock) in locked[:at]}
                look = Asked(state, prices, floors, None, given)
                other = assigned(self.cleared, search, look, FINE, max(most, ONE_LOOK * search.clock.left))
                if other is None:
                    continue
                found = search.outcome()
                if beats({level.name: level.value for level in found}, levels):
                    plan, levels = other, found
                    values = {level.name: level.value for level in levels}
                else:
                    search.go_back(before)
        return plan, levels

    def _told(self, plan: Plan, levels: tuple[LevelResult, ...]) -> Found:
        """The plan with the best reading of what counts as own: that of the solution is the best, or close enough to
        it, where each level inside shares has been solved and is near its bound.
        """
        solved = {one.name for one in self.after}
        own = [level for level in levels if level.name.startswith("in-share.") and "spare" not in level.name]
        if all(level.name in solved and level.gap <= CLOSE_ENOUGH for level in own) or self.clock.over(TOLD):
            return plan, levels
        asked, clock = frozenset(level.name for level in levels), Clock(max(self.clock.left, COMPARED))
        told = evaluate(self.problem, self.rules, plan, self.effort, (), self.allowed, clock, asked)
        return plan, told if len(told) == len(levels) else levels

    def _of_holders(self, gone: Ints) -> Ints:
        """(H,) pods of each holder."""
        victims = self.problem.victims
        out = np.zeros(len(victims.queue), np.int64)
        np.add.at(out, victims.holder[gone[:, 0]], gone[:, 1])
        return out

    def _by_hand(self, starts: int) -> Found | None:
        """The best of what greedy makes of the solution after the level that `starts` the last job inside shares: all
        go who should, and the largest pods find nodes first. Where not all start others go, as jobs find nodes in the
        order in which levels count them, or the largest first. None: somebody goes for nobody in each, or there is no
        time to tell.
        """
        problem, rules, clock = self.problem, self.rules, self.clock
        if self.after:
            self.search.go_back(self.after[starts].solution)
        aim = self._aim()
        going, nobody = self._of_holders(aim.gone), aim.gone[:0]
        plans = [self.stand(problem, rules, aim.largest_first, going, aim.gone)]
        whole = bool((plans[0].of_jobs(problem)[aim.jobs] > 0).all())
        if whole and self._as_aimed(plans[0], aim):
            return self._told(plans[0], self.search.outcome())
        if not whole and not clock.over(PLENTY):
            plans += [self.stand(problem, rules, order, going, nobody) for order in (aim.jobs, aim.largest_first)]
            # most likely better is what starts the first job, in the order of levels, that only one of them starts
            plans.sort(key=lambda plan: (plan.of_jobs(problem)[aim.jobs] > 0).tolist(), reverse=True)
        asked = frozenset(level.name for level in self.search.results)
        best: Found | None = None
        for plan in plans:
            if best is not None and clock.over(TOLD):
                break
            levels = evaluate(
                problem, rules, plan, self.effort, (), self.allowed, Clock(max(clock.left, COMPARED)), asked
            )
            if levels and (best is None or beats({level.name: level.value for level in levels}, best[1])):
                best = plan, levels
        return best

    def _as_aimed(self, plan: Plan, aim: _Aim) -> bool:
        """Whether of each pod set as many start as in the solution, and of each pooled set as many go, for the same
        cause.
        """
        if (plan.placed(self.problem) != plan_of(self.search).placed(self.of.problem)).any():
            return False
        of = len(self.of.problem.victims.holder)
        counts = np.zeros((2, 2 * of), np.int64)
        for row, gone in enumerate((aim.gone, np.column_stack([plan.victim, plan.out, plan.cause]))):
            np.add.at(counts[row], self.of.set_of[gone[:, 0]] + of * (gone[:, 2] == RECLAIM), gone[:, 1])
        return bool((counts[0] == counts[1]).all())

    def _bounded(self, plan: Plan, levels: Sequence[LevelResult]) -> Solution:
        values = {level.name: level.value for level in levels}
        priced = self.search.priced(values)
        bounds = self.search.rebound(values, priced)
        out: list[LevelResult] = []
        for level in levels:
            # all deficits together are no less than the largest: the one level that may not have been worth solving
            above = out[-1].bound if out and level.unit else level.value
            bound = max(level.value, bounds.get(level.name, 0 if above is None else above))
            out.append(_with(bound, level))
        return Solution(plan, tuple(self._bounded_on_nodes(out, priced)))

    def _bounded_on_nodes(self, levels: Sequence[LevelResult], priced: Mapping[str, Priced]) -> Iterator[LevelResult]:
        """The levels with bounds that know of nodes, as far as the time allows."""
        search, floors = self.search, dict[int, int]()
        assert search.reduced is not None
        domain = search.reduced.widest()
        for level in levels:
            if level.name in priced:
                domain = priced[level.name].domain
            objective, lock = search.objective(level.name), search.locked(level.name)
            apart = level.gap > self.effort.gap and level.name not in BEST_EFFORT
            if apart and objective is not None and self._plenty():
                most = most_on_nodes(self.cleared, search, objective, floors, domain, ONE_LOOK * self.clock.left)
                if most is not None and level.bound is not None and most < level.bound:
                    level = _with(max(most, level.value), level)
            if objective is not None and lock is not None:
                floors[lock[0]] = level.value - objective.constant
            yield level

    def _plenty(self) -> bool:
        """Whether much of the time is left. Without a limit the time that HiGHS takes would say what is proven."""
        return PLENTY * self.clock.seconds < self.clock.left < math.inf

    def _aim(self) -> _Aim:
        """Of the incumbent."""
        ledger, problem, rules = self.ledger, self.of.problem, self.of.rules
        plan = plan_of(self.search)
        own = np.zeros(len(rules.need), bool)
        for cls, terms in zip(ledger.classes, ledger.terms, strict=True):
            own[cls.jobs[: self.search.value(terms.own.started)]] = True
        largest = np.maximum(problem.class_free.max(axis=0, initial=0), 1)
        size = np.zeros(len(rules.need))
        np.maximum.at(size, problem.set_job, (problem.request / largest).max(axis=1)[problem.set_shape])
        jobs = np.flatnonzero((plan.of_jobs(problem) > 0) & (rules.need > 0))
        first = rules.rank[jobs] < rules.first_claims
        order = jobs[np.lexsort((jobs, -size[jobs], rules.rank[jobs], ~own[jobs], ~first))]
        return _Aim(order, size[order], np.array(self.cleared.going(self.search.value), np.int64).reshape(-1, 3))


def _with(bound: int, level: LevelResult) -> LevelResult:
    return replace(level, bound=bound, status="OPTIMAL" if bound == level.value else "FEASIBLE")


def _last_start(ledger: Ledger) -> str:
    """The last level that says who starts, of those inside shares if there are such. Below it levels spare what runs,
    ever more, and what is spared leaves no room to find nodes in.
    """
    names, ranks = ledger.rules.rank_names, ranks_of(ledger)
    return f"{'in-share.' * ledger.owned}start>={names[ranks[-1]]}" if ranks else ""

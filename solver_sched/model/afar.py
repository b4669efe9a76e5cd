"""A plan from the levels on pooled nodes: who starts, who goes and what bounds the values is looked up there, nodes are
found on real ones (docs/adr/0017, docs/adr/0027, docs/adr/0028).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver_sched.model.cleared import Cleared
from solver_sched.model.effort import Clock, Effort, LevelResult, Progress, Solution, Stand, beats
from solver_sched.model.floor import Joint
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import BEST_EFFORT, evaluate, evicting_levels, ranks_of
from solver_sched.model.linear import summed, weighted
from solver_sched.model.mip import INFINITE
from solver_sched.model.pooled import pooled
from solver_sched.model.reduced import Reduced
from solver_sched.model.search import Search, plan_of
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Floats, Ints, Plan, Problem
from solver_sched.rights import Rights

AFAR, LEAST_LEFT = 0.6, 0.1
"""Parts of the time: for levels on pooled nodes; what must be left to find places for what was seen there."""
STEER, LESS = 0.15, 0.5
"""Deterministic seconds: for the least harm in sum, where the clock has cut off the levels that look for it in turn,
and for the most, which tells who might go as well; for a level in less room than there is.
"""
COMPARABLE = 0.2
"""Part of the time that is left to evaluate and bound what is found: of it no look takes, nor one more plan."""
RESERVE = 0.3
"""Part of the time that is left to ask who else might go; else only those of the aim go first."""
SCARCE, ROOMY, ROUNDS = 0.25, 0.35, 3
"""Parts of the time that are left for one more look, and for one in less room than there is; how often that is done."""


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


class _Standing(NamedTuple):
    """A plan on real nodes; whether it starts all that it should (`whole`), and of no holder go more pods than may at
    no cost (`exact`): then it is most likely worth what it comes from.
    """

    plan: Plan
    whole: bool
    exact: bool


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
        self.of = pooled(problem, rules, allowed)
        whole = np.ones(len(self.of.problem.node_free), bool)
        self.ledger = Ledger(self.of.problem, self.of.rules, self.of.rights, whole, clock)
        floor = Joint(self.ledger)
        self.cleared = Cleared(self.ledger, floor, problem, rules, self.of)
        part = replace(effort, seconds=AFAR * effort.seconds)
        self.search = Search(self.ledger, floor, part, progress, Clock(AFAR * clock.left))
        self.search.reduced, self.search.mostly_known = Reduced(self.ledger.model), True
        evictions = self.ledger.evictions
        assert evictions is not None
        self.kept = summed(evictions.keep_value(rank) for rank in evictions.ranks())
        self.below: list[str] = []
        """Names of the last level that says who starts inside shares, and of all below it."""
        self.after: list[tuple[int, list[int]]] = []
        """(how many of these are known, incumbent), as far as the clock allowed."""

    def best(self) -> Solution | None:
        """The values are those of the plan, the bounds those of the pooled levels. None: somebody goes for nobody in
        each plan, or there is no time to tell.
        """
        search, last = self.search, _last_start(self.ledger)
        sound, failed, look = -1, False, 1
        standing: list[_Standing] = []
        for level in evicting_levels(search):
            if not self.below and level.name != last:
                continue
            self.below.append(level.name)
            if search.incumbent is None or search.clock.over():
                continue
            self.after.append((len(self.below), search.incumbent))
            if len(self.after) == look:
                standing.append(self._look(len(self.after) - 1))
                if standing[-1].exact:
                    sound, look = len(self.after) - 1, 2 * look
                else:  # below there is no plan on real nodes that is worth what is found
                    failed, search.clock = True, Clock(0.0)
        cut = search.clock.over() and not failed
        if search.incumbent is None or (not standing and self.clock.over(LEAST_LEFT)):
            return None
        search.clock = self.clock
        if self.clock.seconds < math.inf:  # what is left is for the plan that is found, to be told apart and bounded
            search.clock = Clock(self.clock.left - COMPARABLE * self.clock.seconds)
        if cut:
            known = self.after[-1][0] if self.after else 0
            with search.loosened(self.below[known:]):
                search.steer(self.kept, STEER)
            self.after.append((known, search.incumbent))
        standing += self._further(sound, len(self.after) - failed)
        search.clock = self.clock
        found = self._stood(standing)
        return None if found is None else self._bounded(*found)

    def _further(self, sound: int, end: int) -> Iterator[_Standing]:
        """Plans for the last incumbent before the `end`, or else for that of the last level at which jobs find nodes
        without anybody going that costs a level so far, of those after the `sound` one; and one in less room than there
        is, for the level after it.
        """
        low, high = sound + 1, end - 1
        at, least = high, SCARCE if sound >= 0 else LEAST_LEFT
        while low <= high and not self.clock.over(least):
            one, least = self._look(at), SCARCE
            yield one
            low, high = (at + 1, high) if one.exact else (low, at - 1)
            at = (low + high) // 2
        if low < len(self.after) and self.after[low][0] and not self.clock.over(ROOMY):
            yield from self._in_less_room(*self.after[low])

    def _look(self, at: int) -> _Standing:
        """For nodes for an incumbent."""
        known, incumbent = self.after[at]
        self.search.go_back(incumbent)
        return self._on_nodes(self._aim(), known)

    def _reserve(self, known: int) -> Ints:
        """(H,) pods of each holder that go, and of those that might as well, without a level being worth less but those
        of `below` from `known` on.
        """
        search, evictions = self.search, self.ledger.evictions
        assert search.incumbent is not None
        assert evictions is not None
        going = self._of_holders(self._gone())
        if self.clock.over(RESERVE):
            return going
        before = search.incumbent
        parts = [terms for cause in (PREEMPT, RECLAIM) for terms in (*evictions.out[cause], *evictions.end[cause])]
        pods = [(var.proto.domain, before[var.index]) for terms in parts for var in terms.variables]
        least = [int(domain[0]) for domain, _ in pods]
        with search.loosened(self.below[known:]):
            for domain, gone in pods:
                domain[0] = gone
            if search.renew(self.kept.times(-1), STEER):
                going = np.maximum(going, self._of_holders(self._gone()))
            for (domain, _), low in zip(pods, least, strict=True):
                domain[0] = low
        search.go_back(before)
        return going

    def _on_nodes(self, aim: _Aim, known: int) -> _Standing:
        """All go who should, and the largest pods find nodes first. Where that does not suffice others go, before any
        more those who might as well.
        """
        going = self._reserve(known)
        plan = self.stand(self.problem, self.rules, aim.largest_first, going, aim.gone)
        whole = bool((plan.of_jobs(self.problem)[aim.jobs] > 0).all())
        gone = self._of_holders(np.column_stack([plan.victim, plan.out, plan.cause]))
        return _Standing(plan, whole, whole and bool((gone <= going).all()))

    def _in_less_room(self, known: int, incumbent: list[int]) -> Iterator[_Standing]:
        """What a pool has idle is of no use where the rest of the node is taken. So much is left out, then more, and
        the last level that is known is solved again; where jobs find nodes, those below it, too, one by one.
        """
        search, problem, constraints = self.search, self.problem, self.ledger.model.proto.constraints
        search.go_back(incumbent)
        first, level = len(constraints), known - 1
        smallest = np.where(problem.request > 0, problem.request, INFINITE).min(axis=0, initial=INFINITE)
        lack = np.maximum(self.cleared.useless(), smallest) * (self.rules.contended & (smallest < INFINITE))
        rooms: list[tuple[int, int, int, int]] = []
        for r in np.flatnonzero(lack).tolist():
            use, room, unit = self.cleared.use(r)
            if use.variables:
                rooms.append((r, len(constraints), room, unit))
                self.ledger.model.add(weighted(use.variables, use.coefficients) <= room)
        last = len(constraints)
        one: _Standing | None = None
        for _ in range(ROUNDS if rooms else 0):
            for r, row, room, unit in rooms:
                constraints[row].linear.domain[1] = max(0, room - -(-int(lack[r]) // unit))
            if not self._again(level, level):
                break
            one = self._on_nodes(self._aim(), level)
            if one.exact or self.clock.over(ROOMY):
                break
            yield one
            self._free(last)
            lack *= 2
        lower = level + 1
        while one is not None and one.exact and not self.clock.over(ROOMY) and self._again(lower, level):
            further = self._on_nodes(self._aim(), level)
            if not further.exact:
                break
            one, lower = further, lower + 1
        if one is not None:
            yield one
        self._free(first)

    def _again(self, at: int, loose: int) -> bool:
        """Solve a level of `below` again, with those from a `loose` one on unlocked, hold it, and go on to the least
        harm in sum. False: there is no time, no solution, or the level is none that tells who starts and who goes.
        """
        search = self.search
        if at >= len(self.below) or "grow" in self.below[at] or self.below[at] in BEST_EFFORT:
            return False
        wanted = search.objective(self.below[at])
        with search.loosened(self.below[loose:]):
            if not search.renew(wanted, LESS):
                return False
            search.lock(wanted, search.value(wanted))
            search.steer(self.kept, STEER)
        return True

    def _free(self, first: int) -> None:
        """Rows from the first on bind no more."""
        constraints = self.ledger.model.proto.constraints
        for at in range(first, len(constraints)):
            constraints[at].linear.domain[0], constraints[at].linear.domain[1] = -INFINITE, INFINITE

    def _of_holders(self, gone: Ints) -> Ints:
        """(H,) pods of each holder."""
        victims = self.problem.victims
        out = np.zeros(len(victims.queue), np.int64)
        np.add.at(out, victims.holder[gone[:, 0]], gone[:, 1])
        return out

    def _stood(self, standing: Sequence[_Standing]) -> tuple[Plan, tuple[LevelResult, ...]] | None:
        """The best of these plans, with its levels. Where none starts all that it should, of some more that come near
        to the incumbent: others go as jobs find nodes, in the order in which levels count them, or the largest pods
        first. None: somebody goes for nobody in each of them, or there is no time to tell.
        """
        problem, rules, clock = self.problem, self.rules, self.clock
        # what was aimed at last is most likely the best, if it starts all that it should
        last_first = standing[::-1]
        best_first = sorted(last_first, key=lambda one: (one.exact, one.whole), reverse=True)
        plans = [one.plan for one in best_first if one.exact or not best_first[0].exact]
        # where the pooled levels took all of their time there is enough for no more
        if not any(one.whole for one in standing) and not clock.over(1 - AFAR):
            self.search.go_back(self.after[-1][1])
            aim = self._aim()
            going, nobody = self._of_holders(aim.gone), aim.gone[:0]
            plans += [self.stand(problem, rules, order, going, nobody) for order in (aim.jobs, aim.largest_first)]
            # most likely better is what starts the first job, in the order of levels, that only one of them starts
            plans.sort(key=lambda plan: (plan.of_jobs(problem)[aim.jobs] > 0).tolist(), reverse=True)
        asked = frozenset(level.name for level in self.search.results)
        best: tuple[Plan, tuple[LevelResult, ...]] | None = None
        for plan in plans:
            if best is not None and clock.over(COMPARABLE):
                break
            levels = evaluate(problem, rules, plan, self.effort, (), self.allowed, Clock(clock.left), asked)
            if levels and (best is None or beats({level.name: level.value for level in levels}, best[1])):
                best = plan, levels
        return best

    def _bounded(self, plan: Plan, levels: Sequence[LevelResult]) -> Solution:
        bounds = self.search.rebound({level.name: level.value for level in levels})
        out: list[LevelResult] = []
        for level in levels:
            # all deficits together are no less than the largest: the one level that may not have been worth solving
            above = out[-1].bound if out and level.unit else level.value
            bound = max(level.value, bounds.get(level.name, 0 if above is None else above))
            out.append(replace(level, bound=bound, status="OPTIMAL" if bound == level.value else "FEASIBLE"))
        return Solution(plan, tuple(out))

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
        return _Aim(order, size[order], self._gone())

    def _gone(self) -> Ints:
        """(.., 3) set, pods and cause of everybody who goes in the incumbent."""
        return np.array(self.cleared.going(self.search.value), np.int64).reshape(-1, 3)


def _last_start(ledger: Ledger) -> str:
    """The last level that says who starts, of those inside shares if there are such. Below it levels spare what runs,
    ever more, and what is spared leaves no room to find nodes in.
    """
    names, ranks = ledger.rules.rank_names, ranks_of(ledger)
    return f"{'in-share.' * ledger.owned}start>={names[ranks[-1]]}" if ranks else ""

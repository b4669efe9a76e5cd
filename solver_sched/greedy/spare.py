"""Who goes for nobody stays: what a search that was cut short has not come to see (formulation.md O8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Plan, Problem

TRIES = 64
"""Plans that are put to the judge, where not all that nobody needs may stay at once."""


def spare(problem: Problem, rules: Rules, plan: Plan, allowed: Callable[[Plan], bool]) -> Plan:
    """The plan with fewer evictions, everything placed as it was. `allowed`: whether a plan keeps every rule."""
    room = _Room(problem, plan)
    together = plan.out.copy()
    for rows, pods in _pieces(problem, rules, plan):
        if room.take(rows, pods):
            together[rows] -= pods
    if (together == plan.out).all():
        return plan
    if allowed(found := _going(plan, together)):
        return found
    room, kept, tries = _Room(problem, plan), plan.out.copy(), 0
    for rows, pods in _pieces(problem, rules, plan):
        if tries < TRIES and room.take(rows, pods):
            tries += 1
            kept[rows] -= pods
            if not allowed(_going(plan, kept)):
                kept[rows] += pods
                room.give(rows, pods)
    return _going(plan, kept)


def _pieces(problem: Problem, rules: Rules, plan: Plan) -> Iterator[tuple[Ints, Ints]]:
    """(rows, pods of each) that may stay together: whole holders, the highest first; then pod by pod of those that lose
    a part.
    """
    v = problem.victims
    holder = v.holder[plan.victim]
    gone = np.bincount(holder, weights=plan.out, minlength=len(v.queue)).astype(np.int64)
    order = sorted(np.flatnonzero(gone).tolist(), key=lambda h: (int(rules.holder_rank[h]), -int(gone[h]), h))
    for h in order:
        rows = np.flatnonzero(holder == h)
        yield rows, plan.out[rows]
    for h in order:
        if gone[h] < v.running[h] or not v.minimum[h]:
            for row in np.flatnonzero(holder == h):
                for _ in range(int(plan.out[row])):
                    yield np.array([row]), np.ones(1, np.int64)


def _going(plan: Plan, out: Ints) -> Plan:
    some = out > 0
    return replace(plan, victim=plan.victim[some], out=out[some], cause=plan.cause[some])


class _Room:
    """What nodes have left when everything of the plan is placed and its victims have gone."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._victims, self._plan = problem.victims, plan
        self._free = problem.node_free + plan.freed(problem)
        self._load = plan.on_nodes(problem).T @ problem.request
        self._going = plan.out.copy()

    def take(self, rows: Ints, pods: Ints) -> bool:
        """These stay, if they still go and their nodes hold them."""
        if (self._going[rows] < pods).any():
            return False
        self.give(rows, -pods)
        nodes = np.unique(self._victims.node[self._plan.victim[rows]])
        load = self._load[nodes]
        if ((load > np.maximum(self._free[nodes], 0)) & (load > 0)).any():
            self.give(rows, pods)
            return False
        return True

    def give(self, rows: Ints, pods: Ints) -> None:
        """These go after all."""
        sets = self._plan.victim[rows]
        np.add.at(self._free, self._victims.node[sets], pods[:, None] * self._victims.request[sets])
        self._going[rows] += pods

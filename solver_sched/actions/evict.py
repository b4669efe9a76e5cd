"""Evictions of a plan by name: who goes, for whom, and the arithmetic that allows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from solver_sched.freed import moved_for, served
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import MOVE, NO_LIMIT, PREEMPT, RECLAIM, RESERVED_PREFIX, Index, Plan, Problem
from solver_sched.quantity import format as format_quantity

ACTIONS = {PREEMPT: "preempt", RECLAIM: "reclaim", MOVE: "consolidate"}


@dataclass(frozen=True, slots=True)
class Evict:
    """`beneficiary`: the group that starts because of it, "" if none does (a plan made elsewhere). `to`: the node that
    a pod which moves is placed on again, "" if it just goes. Its successor has another name: the place is for the set.
    """

    action: str
    pod: str
    node: str
    pod_group: str
    queue: str
    beneficiary: str
    reason: str
    to: str = ""


def evictions(problem: Problem, index: Index, rules: Rules, plan: Plan) -> Iterator[Evict]:
    """All that one group gives up together, for the highest beneficiary first; pods in the order in which they would be
    given up.
    """
    v, words = problem.victims, _Words(problem, index, rules, plan)
    jobs = served(problem, rules, plan)
    rank = [int(rules.rank[j]) if j >= 0 else len(rules.rank_names) for j in jobs.tolist()]
    first: dict[int, tuple[int, int]] = {}
    for h, at, j in zip(v.holder[plan.victim].tolist(), rank, jobs.tolist(), strict=True):
        first[h] = min(first.get(h, (at, j)), (at, j))
    rows = zip(plan.victim.tolist(), plan.cause.tolist(), plan.out.tolist(), jobs.tolist(), strict=True)
    goes = (
        (s, out, ACTIONS[cause], job, words.reason(s, cause, job), "")
        for s, cause, out, job in sorted(rows, key=lambda row: (first[int(v.holder[row[0]])], *row))
    )
    moves = zip(
        plan.moved.tolist(), plan.to.tolist(), plan.moves.tolist(), moved_for(problem, rules, plan), strict=True
    )
    moves_on = (
        (s, count, ACTIONS[MOVE], int(j), words.move(s, n, int(j)), index.nodes[n]) for s, n, count, j in sorted(moves)
    )
    # one set may give pods for two causes
    given: Counter[int] = Counter()
    for s, count, action, job, reason, to in chain(goes, moves_on):
        h = int(v.holder[s])
        served_group = index.jobs[job] if job >= 0 else ""
        for pod in index.victim_pods[s][given[s] : given[s] + count]:
            yield Evict(
                action,
                pod,
                index.nodes[int(v.node[s])],
                index.holders[h],
                index.queues[int(v.queue[h])],
                served_group,
                reason,
                to,
            )
        given[s] += count


def evicted(problem: Problem, index: Index, rules: Rules, plan: Plan) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Code, message and detail for every group that runs less than its minimum because of the plan."""
    v, words = problem.victims, _Words(problem, index, rules, plan)
    jobs = served(problem, rules, plan)
    out = {}
    for h in np.unique(v.holder[plan.victim]).tolist():
        if v.running[h] - words.gone[h] >= max(1, v.minimum[h]):
            continue
        mine = v.holder[plan.victim] == h
        pairs = sorted(set(zip(plan.cause[mine].tolist(), jobs[mine].tolist(), strict=True)))
        said = [words.of_group(h, cause, j) for cause, j in pairs]
        others = len({j for _, j in pairs}) - 1
        more = f"; {others} more group{'s start' if others > 1 else ' starts'} as well" if others else ""
        detail = {
            "actions": sorted({ACTIONS[cause] for cause, _ in pairs}),
            "for": sorted({index.jobs[j] for _, j in pairs if j >= 0}),
            "pods": int(words.gone[h]),
            "of": int(v.running[h]),
        }
        out[index.holders[h]] = ("Evicted", f"{said[0]}{more}; {words.going(h)}", detail)
    return out


class _Words:
    """Why a pod goes, with the numbers of the cluster before and after the plan."""

    def __init__(self, problem: Problem, index: Index, rules: Rules, plan: Plan) -> None:
        self.problem, self.index, self.rules = problem, index, rules
        self.gone = problem.victims.of_holders(plan.evicted(problem))
        self.left = problem.after(plan).queue_used
        self.given = plan.freed(problem)
        self.placed = np.zeros_like(problem.node_free)
        np.add.at(self.placed, plan.node, plan.count[:, None] * problem.request[problem.set_shape[plan.pod_set]])
        self.placed += plan.arriving(problem)
        self.new = plan.of_queues(problem)
        real = [not name.startswith(RESERVED_PREFIX) for name in index.resources]
        self.real = np.array(real, bool)
        self._known: dict[tuple[int, int, int, int], str] = {}

    def reason(self, s: int, cause: int, job: int) -> str:
        """One line: the right, how much of the group goes, and what is short without it."""
        v = self.problem.victims
        h, n = int(v.holder[s]), int(v.node[s])
        key = (h, n, cause, job)
        if key not in self._known:
            parts = (self._right(h, cause, job), self.going(h), self._short(n, int(v.queue[h])))
            self._known[key] = "; ".join(part for part in parts if part)
        return self._known[key]

    def move(self, s: int, to: int, job: int) -> str:
        """Where to and for whom, and what is short on the node that is left."""
        v, names = self.problem.victims, self.index
        who = f" so that {names.jobs[job]} starts" if job >= 0 else ""
        short = self._short(int(v.node[s]), int(v.queue[v.holder[s]]))
        return f"moves to {names.nodes[to]}{who}{'; ' * bool(short)}{short}"

    def of_group(self, h: int, cause: int, job: int) -> str:
        """The right to take from a group."""
        return f"{ACTIONS[cause]}: {self._right(h, cause, job)}"

    def _right(self, h: int, cause: int, job: int) -> str:
        v, index = self.problem.victims, self.index
        if job < 0:
            return "nobody starts because of it"
        who = index.jobs[job]
        if cause == RECLAIM:
            return self._shares(int(v.queue[h]), job)
        if v.broken[h]:
            return f"{v.running[h]} of at least {v.minimum[h]} pods run: a remainder gives way to {who}"
        theirs, mine = int(v.priority[h]), int(self.problem.job_priority[job])
        if theirs == mine:
            above = self.gone[h] <= v.running[h] - v.minimum[h]
            what = "what runs above its minimum" if above else f"a job of priority {theirs}"
            return f"{what} gives way to {who} of the same priority" + (f" {mine}" if above else "")
        return f"priority {theirs} gives way to {who} of priority {mine}"

    def _shares(self, q: int, job: int) -> str:
        """In the resource in which the queue is most above its share, of those that the job asks for."""
        problem, deserved = self.problem, self.rules.deserved
        own = int(problem.job_queue[job])
        who = f"{self.index.jobs[job]} of queue {self.index.queues[own]}"
        if deserved is None:
            return f"queue {self.index.queues[q]} gives way to {who}"
        sets = problem.set_shape[problem.set_job == job]
        over = self.rules.contended & (problem.queue_used[q] > deserved[q])
        asked = over & (problem.request[sets] > 0).any(axis=0)
        rows = np.flatnonzero(asked if asked.any() else over).tolist()
        if not rows:
            return f"queue {self.index.queues[q]} gives way to {who}"
        r = max(rows, key=lambda r: float(problem.queue_used[q, r]) / max(1.0, float(deserved[q, r])))
        before, after = self._plain(r, problem.queue_used[q, r]), self._plain(r, self.left[q, r] + self.new[q, r])
        share = f"queue {self.index.queues[q]} uses {before} of its share of {self._text(r, deserved[q, r])}"
        theirs = f"{self._plain(r, problem.queue_used[own, r])} of {self._plain(r, deserved[own, r])}"
        return f"{share}, {after} after the plan; {who}, which uses {theirs}, starts"

    def going(self, h: int) -> str:
        """How many of its pods go."""
        v = self.problem.victims
        gone, runs, least = int(self.gone[h]), int(v.running[h]), int(v.minimum[h])
        if gone < runs:
            kept = f", {runs - gone} stay{'s' if runs - gone == 1 else ''}"
            kept += f" (minimum {least})" if least and not v.broken[h] else ""
            return f"{gone} of its {runs} pods go{'es' if gone == 1 else ''}{kept}"
        return "its only pod goes" if runs == 1 else f"all its {runs} pods go"

    def _short(self, n: int, q: int) -> str:
        """What is placed on the node beside what is idle there; else what the ceiling of the queue lacks."""
        problem = self.problem
        idle = np.maximum(0, problem.node_free[n] - problem.node_releasing[n])
        lack = np.where(self.real & (self.placed[n] > 0), self.placed[n] - np.maximum(0, problem.node_free[n]), 0)
        if (lack > 0).any():
            r = int((lack / np.maximum(1, self.placed[n])).argmax())
            coming = int(np.maximum(0, problem.node_free[n, r]) - idle[r])
            there = f"{self._plain(r, idle[r])} idle" + (f", {self._plain(r, coming)} on its way" if coming else "")
            placed, given = self._text(r, self.placed[n, r]), self._plain(r, self.given[n, r])
            return f"{self.index.nodes[n]}: {placed} to place, {there}, {given} given up"
        limit = problem.queue_capability[q]
        over = (limit < NO_LIMIT) & (self.new[q] > 0) & (problem.queue_used[q] + self.new[q] > limit)
        if over.any() and self.rules.ceilings:
            r = int(over.argmax())
            new, used = self._text(r, self.new[q, r]), self._plain(r, problem.queue_used[q, r])
            given = self._plain(r, problem.queue_used[q, r] - self.left[q, r])
            most = self._plain(r, limit[r])
            return f"queue {self.index.queues[q]}: {new} to place, {used} of at most {most} used, {given} given up"
        return "" if (self.placed[n] > 0).any() else f"nobody starts on {self.index.nodes[n]}: its gang ends whole"

    def _plain(self, r: int, amount: int | np.int64) -> str:
        return format_quantity(self.index.resources[r], int(amount))

    def _text(self, r: int, amount: int | np.int64) -> str:
        return f"{self._plain(r, amount)} {self.index.resources[r]}"

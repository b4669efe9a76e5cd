"""Who goes and who moves: variables and rows of C11 to C16 and C18 to C20, and the level objectives about running work
(formulation.md 8, 11).

Sets on nodes that no pending pod could use, in queues that no ceiling binds, only go with their whole gang: they get no
variable of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.effort import Clock
from solver_sched.model.linear import Model, Terms, at_most, fix, summed, upper
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import MOVE, NO_LIMIT, PREEMPT, RECLAIM, Bools, Ints, Plan, Problem
from solver_sched.rights import Rights

MOST_NODES, ROOMY = 1200, 2
"""Beyond so many nodes with somebody who may go, only the nodes of the least holders are looked at, until these could
make that many times the room that claimants ask for."""


class Opened(NamedTuple):
    """`problem`: with a class of its own for every `usable` node (N,): where somebody may go and a pending pod could
    stand. All other nodes keep their class. `whole`: these are all such nodes.
    """

    problem: Problem
    usable: Bools
    whole: bool


def opened(problem: Problem, rules: Rules, rights: Rights, *, whole: bool = False) -> Opened:
    """The problem as the levels with evictions see it; `whole`: however large it gets."""
    v = problem.victims
    able = rights.preempt | rights.reclaim | rights.moves
    room = problem.node_free.copy()
    np.add.at(room, v.node[able], v.count[able, None] * v.request[able])
    left = np.zeros(len(room), bool)
    left[v.node[able]] = True

    def fits(shapes: Ints) -> Bools:
        out = np.zeros(len(room), bool)
        for s in np.unique(shapes).tolist():
            asked = problem.request[s] > 0
            allowed = ~rules.forbidden[s, problem.node_kind]
            if rules.policy.places(best_effort=bool(problem.shape_best_effort[s])):
                allowed[v.blocks[v.blocks[:, 0] == s, 1]] = True
            out |= (room[:, asked] >= problem.request[s, asked]).all(axis=1) & allowed
        return out

    usable = left & fits(problem.set_shape[rules.demand.starts[problem.set_job]])
    # a pod that moves arrives also where nobody leaves
    usable |= fits(v.shape[rights.moves])
    whole = whole or int(usable.sum()) <= MOST_NODES or bool(rights.moves.any())
    if not whole:
        usable = _near_the_least(problem, rules, rights, usable)
    node_class = np.where(usable, -1, problem.node_class)
    kept, inverse = np.unique(node_class, return_inverse=True)
    dropped = int(kept[0] < 0) if len(kept) else 0
    node_class = inverse.reshape(-1) - dropped
    rows = kept[dropped:]
    nodes = np.flatnonzero(usable)
    node_class[nodes] = len(rows) + np.arange(len(nodes))
    size = np.bincount(node_class[node_class >= 0], minlength=len(rows) + len(nodes)).astype(np.int64)
    return Opened(
        replace(
            problem,
            node_class=node_class.astype(np.int64),
            class_size=size,
            class_kind=np.concatenate([problem.class_kind[rows], problem.node_kind[nodes]]),
            class_free=np.concatenate([problem.class_free[rows], problem.node_free[nodes]]),
        ),
        usable,
        whole,
    )


def _near_the_least(problem: Problem, rules: Rules, rights: Rights, usable: Bools) -> Bools:
    """(N,) the nodes of holders of lowest rank and fewest nodes that together make room enough, whole gangs at once."""
    v = problem.victims
    able = rights.preempt | rights.reclaim
    claiming = rights.claimants[problem.set_job]
    asked = (problem.set_count[claiming, None] * problem.request[problem.set_shape[claiming]]).sum(axis=0)
    nodes_of: dict[int, set[int]] = defaultdict(set)
    for h, n in zip(v.holder[able].tolist(), v.node[able].tolist(), strict=True):
        if usable[n]:
            nodes_of[h].add(n)
    out = np.zeros_like(usable)
    room = np.zeros_like(problem.total)
    on_node = np.zeros_like(problem.node_free)
    np.add.at(on_node, v.node[able], v.count[able, None] * v.request[able])
    for h in sorted(nodes_of, key=lambda h: (-int(rules.holder_rank[h]), len(nodes_of[h]), h)):
        new = [n for n in nodes_of[h] if not out[n]]
        out[new] = True
        room = room + on_node[new].sum(axis=0)
        if out.sum() >= MOST_NODES and (room >= ROOMY * asked)[asked > 0].all():
            break
    return out


class Evictions:
    """Variables in the ledger's model. `out[cause][v]`, `end[cause][h]`: expressions, empty where there is no right.

    Building them raises OutOfTimeError where the clock runs out.
    """

    def __init__(
        self,
        model: Model,
        int_var: Callable[[int], cp_model.IntVar],
        problem: Problem,
        rules: Rules,
        rights: Rights,
        usable: Bools,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self.model, self.int_var, self.usable = model, int_var, usable
        self.problem, self.rules, self.rights = problem, rules, rights
        v = problem.victims
        able = rights.preempt | rights.reclaim
        self.out: dict[int, list[Terms]] = {cause: [Terms() for _ in v.holder] for cause in (PREEMPT, RECLAIM, MOVE)}
        self.end: dict[int, list[Terms]] = {cause: [Terms() for _ in v.queue] for cause in (PREEMPT, RECLAIM)}
        self.sets: dict[int, list[int]] = defaultdict(list)
        for row, h in enumerate(v.holder.tolist()):
            self.sets[h].append(row)
        limited = np.asarray((problem.queue_capability < NO_LIMIT).any(axis=1) | problem.queue_guarantee.any())
        limited |= rights.everywhere
        self.touched: dict[int, cp_model.IntVar] = {}
        self._freed: dict[tuple[int | None, int, int | None, int], Terms] = {}
        self._moves()
        for h, sets in self.sets.items():
            clock.check()
            worth_it = limited[v.queue[h]] or self.usable[v.node[[s for s in sets if able[s]]]].any()
            if worth_it:
                self._holder(h, sets, everywhere=bool(limited[v.queue[h]]))
            self._leave(h, sets)
        self._budgets()
        self._reclaim_room()

    # -- variables ----------------------------------------------------------------------------------------------

    def _holder(self, h: int, sets: list[int], *, everywhere: bool) -> None:
        """C11 of one holder."""
        v, rights = self.problem.victims, self.rights
        surplus = int(rights.surplus[h])
        may_end = {PREEMPT: rights.ends_by_preempt[h], RECLAIM: rights.ends_by_reclaim[h]}
        for cause, allowed in ((PREEMPT, rights.preempt), (RECLAIM, rights.reclaim)):
            mine = [s for s in sets if allowed[s]]
            if not mine:
                continue
            if may_end[cause] and len(mine) == len(sets) and surplus < v.running[h]:
                self.end[cause][h] = Terms.of(self.int_var(1))
            end = self.end[cause][h]
            for s in mine:
                count = int(v.count[s])
                if surplus and (everywhere or self.usable[v.node[s]]):
                    out = Terms.of(self.int_var(count if end.variables else min(count, surplus)))
                    if end.variables:
                        self.model.add(out.linear() >= end.times(count).linear())
                    self.out[cause][s] = out
                elif end.variables:
                    self.out[cause][s] = end.times(count)
        end = self.ended(h)
        if len(end.variables) > 1:
            self.model.add(end.linear() <= 1)
        if surplus:
            total = Terms()
            for s in sets:
                total.extend(self.gone(s))
            total.extend(end, surplus - int(v.running[h]))
            at_most(self.model, total, surplus)
            for s in sets:
                if self.out[PREEMPT][s].variables and self.out[RECLAIM][s].variables:
                    at_most(self.model, self.gone(s), int(v.count[s]))
            for o in np.flatnonzero(v.role_holder == h).tolist():
                role = Terms()
                for s in sets:
                    if v.role[s] == o:
                        role.extend(self.gone(s))
                role.extend(end, int(rights.role_surplus[o] - v.role_running[o]))
                at_most(self.model, role, int(rights.role_surplus[o]))

    def _moves(self) -> None:
        """C19: who may move, and C20: how many at most."""
        v, most, total = self.problem.victims, self.rules.policy.solve.moves, Terms()
        for s in np.flatnonzero(self.rights.moves & self.usable[v.node]).tolist():
            self.out[MOVE][s] = Terms.of(self.int_var(min(int(v.count[s]), most)))
            total.extend(self.out[MOVE][s])
        at_most(self.model, total, most)

    def _leave(self, h: int, sets: list[int]) -> None:
        """A pod leaves once (C19), and a job that one leaves places none (C16)."""
        v = self.problem.victims
        for s in sets:
            if self.out[MOVE][s].variables and self.gone(s).variables:
                at_most(self.model, self.leaves(s), int(v.count[s]))
        if v.job[h] >= 0 and any(self.leaves(s).variables for s in sets):
            self.touched[int(v.job[h])] = touched = self.int_var(1)
            for s in sets:
                if self.leaves(s).variables:
                    self.model.add(self.leaves(s).linear() <= int(v.count[s]) * touched)

    def leaves(self, s: int) -> Terms:
        """Pods of the set that go or move."""
        out = self.gone(s)
        out.extend(self.out[MOVE][s])
        return out

    def gone(self, s: int) -> Terms:
        """Pods of the set that go."""
        out = Terms()
        out.extend(self.out[PREEMPT][s])
        out.extend(self.out[RECLAIM][s])
        return out

    def ended(self, h: int) -> Terms:
        """1 = the holder ends whole."""
        out = Terms()
        out.extend(self.end[PREEMPT][h])
        out.extend(self.end[RECLAIM][h])
        return out

    def on_node(self, n: int) -> list[tuple[int, Terms]]:
        """(set, pods that leave) of the node."""
        return [(s, self.leaves(s)) for s in self._on_node.get(n, ()) if self.leaves(s).variables]

    @cached_property
    def _on_node(self) -> dict[int, list[int]]:
        """Sets by node."""
        out: dict[int, list[int]] = defaultdict(list)
        for s, n in enumerate(self.problem.victims.node.tolist()):
            out[n].append(s)
        return out

    def potential(self, n: int) -> Ints:
        """(R,) the most room that may be freed on the node."""
        v, out = self.problem.victims, np.zeros_like(self.problem.total)
        for s, gone in self.on_node(n):
            most = sum(upper(var) * c for var, c in zip(gone.variables, gone.coefficients, strict=True))
            out += min(int(v.count[s]), most) * v.request[s]
        return out

    # -- rows ---------------------------------------------------------------------------------------------------

    def freed(self, queue: int | None, resource: int, cause: int | None = None, step: int = 1) -> Terms:
        """What goes of a queue, or of all, in whole steps of each pod: those of a gang may share a variable."""
        key = queue, resource, cause, step
        if key not in self._freed:
            v, asked = self.problem.victims, self.problem.victims.request[:, resource]
            rows = (asked > 0) if queue is None else (asked > 0) & (v.queue[v.holder] == queue)
            out = Terms()
            for s in np.flatnonzero(rows).tolist():
                for which in (PREEMPT, RECLAIM) if cause is None else (cause,):
                    out.extend(self.out[which][s], int(asked[s]) // step)
            self._freed[key] = out.collected()
        return self._freed[key].times(1)

    def _budgets(self) -> None:
        """C13."""
        v = self.problem.victims
        for b, allowed in enumerate(v.allowed.tolist()):
            total = Terms()
            for s in np.flatnonzero(v.member[:, b]).tolist():
                total.extend(self.leaves(s))
            at_most(self.model, total, allowed, ceiling=True)

    def _reclaim_room(self) -> None:
        """C14."""
        for q in np.unique(self.problem.victims.queue).tolist():
            for r in range(len(self.problem.total)):
                at_most(self.model, self.freed(q, r, RECLAIM), int(self.rights.room[q, r]), ceiling=True)

    def preempt_rows(self, starts: Callable[[int, int, bool, bytes | None], Terms], queues: list[int]) -> None:
        """C15; `starts(queue, resource, polite, asks)`: what new minimums take, of all or some (`Ledger.starts`)."""
        self._balance(starts, queues, None, np.ones(len(self.problem.queue_used), bool))
        if not self.rights.reclaim.any():
            return
        lenders = np.unique(self.problem.victims.queue[self.problem.victims.holder[self.rights.reclaim]])
        for asks in np.unique(self.rights.asks, axis=0):
            lends = (self.rights.over & asks).any(axis=1)
            if not lends[lenders].all():
                self._balance(starts, queues, asks.tobytes(), lends)

    def claim_rows(self, started: Callable[[Bools, bool], Terms]) -> None:
        """C18; `started(jobs, own)`: how many of these jobs start, inside their queue's share or at all."""
        p, v, rights = self.problem, self.problem.victims, self.rights
        kinds = set(zip(v.queue.tolist(), rights.held.tolist(), v.broken.tolist(), strict=True))
        for q, held, broken in sorted(kinds):
            self.clock.check()
            of_queue = rights.claimants & (p.job_queue == q)
            higher = of_queue & (broken | (rights.key > held))
            also = of_queue & ~higher & (rights.key == held) & self.rules.equals
            holders = (v.queue == q) & (rights.held == held) & (v.broken == broken)
            rows = np.flatnonzero(holders[v.holder]).tolist()
            self._only_with(summed(self.out[PREEMPT][s] for s in rows), started(higher | also, False))
            ends = summed(self.end[PREEMPT][h] for h in np.flatnonzero(holders).tolist())
            self._only_with(ends, started(higher, False))
        for q in range(len(p.queue_used)):
            takers = rights.claimants & (p.job_queue != q) & (rights.asks & rights.over[q]).any(axis=1)
            rows = np.flatnonzero(v.queue[v.holder] == q).tolist()
            self._only_with(summed(self.out[RECLAIM][s] for s in rows), started(takers, True))

    def _only_with(self, gone: Terms, starts: Terms) -> None:
        """Nothing goes where none of these starts."""
        if gone.variables:
            gone.extend(starts, -gone.span())
            at_most(self.model, gone, 0)

    def _balance(
        self,
        starts: Callable[[int, int, bool, bytes | None], Terms],
        queues: list[int],
        asks: bytes | None,
        lends: Bools,
    ) -> None:
        """C15 for the jobs of one set of resources; `lends` (Q,): whose room, freed by reclaim, they may use."""
        several = len(queues) > 1
        unit = np.gcd(self.problem.grain, np.gcd.reduce(self.problem.victims.request, axis=0, initial=0))
        for r in range(len(self.problem.total)):
            self.clock.check()
            idle, all_polite, beyond, lent = int(self.rights.idle[r]), Terms(), Terms(), Terms()
            for q in np.flatnonzero(lends).tolist():
                lent.extend(self.freed(q, r, RECLAIM))
            for q in queues:
                whole, polite = starts(q, r, False, asks), starts(q, r, True, asks)
                all_polite.extend(polite)
                if not whole.variables or not (several or polite.variables):
                    continue
                gave = self.freed(q, r, PREEMPT)
                # in units of which everything that is asked or given up is a multiple: exact, and small numbers
                share = self.int_var(-(-min(idle + lent.span(), whole.span()) // int(unit[r])))
                row = Terms()
                row.extend(whole)
                row.extend(gave, -1)
                row.add(share, -int(unit[r]))
                at_most(self.model, row, 0, ceiling=True)
                if polite.variables:
                    row = Terms()
                    row.extend(polite)
                    row.add(share, -int(unit[r]))
                    at_most(self.model, row, 0, ceiling=True)
                beyond.add(share, int(unit[r]))
            at_most(self.model, all_polite, idle, ceiling=True)
            beyond.extend(lent, -1)
            at_most(self.model, beyond, idle, ceiling=True)

    # -- level objectives ---------------------------------------------------------------------------------------

    def ranks(self, cause: int | None = None) -> list[int]:
        """Ranks at which somebody who may go counts for the first time."""
        v, out = self.problem.victims, set()
        for h, sets in self.sets.items():
            if v.broken[h] and cause is None:
                continue
            ends = self.ended(h) if cause is None else self.end[cause][h]
            goes = any((self.gone(s) if cause is None else self.out[cause][s]).variables for s in sets)
            if ends.variables or (v.broken[h] and goes):
                out.add(int(self.rules.holder_rank[h]))
            if goes and self.rights.surplus[h]:
                out.add(int(self.rules.surplus_rank[h]))
        return sorted(out)

    def keep_value(self, rank: int, cause: int | None = None) -> Terms:
        """O13; with a cause, only what goes because of it counts as gone (O12)."""
        v, rules, out = self.problem.victims, self.rules, Terms()
        beyond = np.zeros(len(v.queue), np.int64)
        np.add.at(beyond, v.beyond_holder, v.beyond_count * rules.unit_value[v.beyond_unit])
        for h, sets in self.sets.items():
            if v.broken[h]:
                if cause is not None and rules.holder_rank[h] <= rank:
                    for s in (s for s in sets if self.rights.open[s]):
                        out.constant += int(rules.victim_value[s] * v.count[s])
                        out.extend(self.out[cause][s], -int(rules.victim_value[s]))
                continue
            end = self.ended(h) if cause is None else self.end[cause][h]
            if rules.holder_rank[h] <= rank and v.unit_row[h] >= 0:
                value = int(rules.unit_value[v.unit_row[h]])
                out.constant += value
                out.extend(end, -value)
            if rules.surplus_rank[h] <= rank:
                out.constant += int(beyond[h])
                whole = 0
                for s in sets:
                    value = int(rules.victim_value[s])
                    whole += value * int(v.count[s])
                    out.extend(self.gone(s) if cause is None else self.out[cause][s], -value)
                out.extend(end, whole - int(beyond[h]))
        return out.collected()

    def gangs(self) -> Terms:
        """Gangs that end, negative."""
        v, out = self.problem.victims, Terms()
        for h in self.sets:
            if v.minimum[h] > 0 and not v.broken[h]:
                out.extend(self.ended(h), -1)
        return out

    def pods(self, weight: Ints) -> Terms:
        """Pods that go, each with a weight (V,), negative."""
        out = Terms()
        for s, each in enumerate(weight.tolist()):
            out.extend(self.gone(s), -each)
        return out.collected()

    def moved(self) -> list[tuple[int, Terms]]:
        """(shape, pods that move) of every set that may."""
        shape = self.problem.victims.shape.tolist()
        return [(s, terms) for s, terms in zip(shape, self.out[MOVE], strict=True) if terms.variables]

    def moves(self, weight: Ints) -> Terms:
        """O15, O16: pods that move, each with a weight (V,), negative."""
        out = Terms()
        for s, each in enumerate(weight.tolist()):
            out.extend(self.out[MOVE][s], -each)
        return out.collected()

    def whom(self) -> Ints:
        """(V,) weight of one pod in the level `disruption.whom`."""
        v = self.problem.victims
        out: Ints = np.zeros(len(v.holder), np.int64)
        rows = np.flatnonzero(self.rights.open)
        _, queue = np.unique(self.problem.queue_priority[v.queue[v.holder[rows]]], return_inverse=True)
        pairs = np.column_stack([v.priority[v.holder[rows]], v.pod_priority[rows]])
        _, pod = np.unique(pairs, axis=0, return_inverse=True)
        step = 1 + int(v.count[rows].sum()) * int(pod.max(initial=0))
        out[rows] = step * queue.reshape(-1) + pod.reshape(-1)
        return out

    def kept_units(self) -> list[tuple[int, cp_model.IntVar, int]]:
        """C6 for holders: (row in U, variable, rank) of every unit that may be own while it stays."""
        p, v = self.problem, self.problem.victims
        assert self.rules.deserved is not None
        fits = (p.unit_request <= self.rules.deserved[p.unit_queue]) | ~self.rules.contended
        out: list[tuple[int, cp_model.IntVar, int]] = []
        singles: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for x, h in enumerate(v.beyond_holder.tolist()):
            singles[h].append((int(v.beyond_unit[x]), int(v.beyond_count[x]), int(v.beyond_alike[x])))
        for h, sets in self.sets.items():
            self.clock.check()
            end = self.ended(h)
            if v.unit_row[h] >= 0 and fits[v.unit_row[h]].all():
                var = self.int_var(1)
                if end.variables:
                    self.model.add(var + end.linear() <= 1)
                out.append((int(v.unit_row[h]), var, int(self.rules.holder_rank[h])))
            row = Terms()
            for u, n, running in singles[h]:
                if not fits[u].all():
                    continue
                var = self.int_var(n)
                row.add(var, 1)
                out.append((u, var, int(self.rules.surplus_rank[h])))
                alike = [s for s in sets if (v.request[s] == p.unit_request[u]).all()]
                one = Terms.of(var)
                for s in alike:
                    one.extend(self.gone(s))
                at_most(self.model, one, running)
            if row.variables:
                for s in sets:
                    row.extend(self.gone(s))
                row.extend(end, -int(v.minimum[h]))
                at_most(self.model, row, int(v.running[h] - v.minimum[h]))
        return out

    def hold(self, plan: Plan) -> None:
        """Fix who goes and who moves to those of a plan."""
        v = self.problem.victims
        for terms, moved in zip(self.out[MOVE], plan.leaving(self.problem).tolist(), strict=True):
            if terms.variables:
                self.model.add(terms.linear() == moved)
        for cause in (PREEMPT, RECLAIM):
            going = plan.evicted(self.problem, cause)
            for s, terms in enumerate(self.out[cause]):
                assert terms.variables or not going[s], "nobody has a right to what the plan evicts"
                if terms.variables:
                    self._give(terms, int(going[s]))
            for h, terms in enumerate(self.end[cause]):
                if terms.variables:
                    gone = sum(int(going[s]) for s in self.sets[h])
                    self._give(terms, int(gone == v.running[h]))

    def _give(self, terms: Terms, value: int) -> None:
        """The expression has this value."""
        if terms.coefficients == [1] and not terms.constant and value <= upper(terms.variables[0]):
            fix(terms.variables[0], value)
        else:
            self.model.add(terms.linear() == value)

    def causes(self, value: Callable[[Terms], int]) -> list[tuple[int, int, int]]:
        """(set, pods, cause) of everything that goes in a solution."""
        return [
            (s, pods, cause)
            for cause in (PREEMPT, RECLAIM)
            for s, terms in enumerate(self.out[cause])
            if terms.variables and (pods := value(terms))
        ]

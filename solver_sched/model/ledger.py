"""Who starts, who grows, and what counts as a queue's own: the rows and level objectives that need no nodes.

formulation.md C3 to C8 and O1 to O7, O9. `placement.py` adds where the pods go; alone, with admissions fixed, this is
the evaluator of a given plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.classes import JobClass, job_classes
from solver_sched.model.effort import Clock
from solver_sched.model.evictions import Evictions
from solver_sched.model.linear import Model, Terms, at_most, summed, total, weighted
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import NO_LIMIT, Bools, Ints, Problem
from solver_sched.rights import Rights

SCALE = 10**6
"""K of formulation.md O2 and O6: deficits and loads in millionths of the deserved share."""
PAST_BALANCE = 2**60
FEW_QUEUES = 10
"""Up to this many queues the two largest deficits are bounded pair by pair: nothing is free in that, and proofs are
short.
"""
STEPS = 2**30
"""A deserved share is measured in at most this many steps, so that deficit rows stay within 64 bits."""


@dataclass(eq=False, slots=True)
class Part:
    """Jobs of a class that start, their minimums and growth per position, the worth of the growth; members summed.

    `closed`: the variables are held at 0 for now (`Ledger.open`).
    """

    started: Terms
    minimum: list[Terms]
    growth: list[Terms]
    worth: Terms
    closed: bool = False

    def variables(self) -> list[cp_model.IntVar]:
        return [v for terms in (self.started, *self.minimum, *self.growth) for v in terms.variables]


@dataclass(frozen=True, eq=False, slots=True)
class ClassTerms:
    """`own`: inside the queue's share (empty where there are no in-share levels); `over`: beyond; `whole`: both."""

    own: Part
    over: Part
    whole: Part


Value = Callable[[Terms], int]
"""The value of an expression in some solution."""


class Ledger:
    """The admission side of the model.

    `owned` says whether in-share levels exist: an entitling plugin and something that several queues contend for.
    `derived`: variables that follow from the others, with how (tight value); they are created level by level.
    """

    def __init__(
        self,
        problem: Problem,
        rules: Rules,
        rights: Rights | None = None,
        usable: Bools | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.problem, self.rules = problem, rules
        self.model = Model()
        self._range: dict[int, int] = {}
        self.evictions: Evictions | None = None
        if rights is not None:
            assert usable is not None
            clock = Clock() if clock is None else clock
            self.evictions = Evictions(self.model, self.int_var, problem, rules, rights, usable, clock)
        self.classes = job_classes(problem, rules, self.evictions.touched if self.evictions is not None else ())
        self.owned = rules.shared
        self.terms = [self._class_terms(cls) for cls in self.classes]
        self._of_queue: dict[int, list[tuple[JobClass, ClassTerms]]] = defaultdict(list)
        for cls, terms in zip(self.classes, self.terms, strict=True):
            self._of_queue[cls.queue].append((cls, terms))
        self.kept = self._kept_units() if self.owned else []
        self.derived: list[tuple[cp_model.IntVar, Callable[[Value], int]]] = []
        if self.owned:
            self._own_rows()
        self._ceiling_rows()
        if self.evictions is not None:
            self.evictions.preempt_rows(self.starts, self.queues())
            self.evictions.claim_rows(self._started)
            self._no_swaps(self.evictions.touched)

    # -- variables ----------------------------------------------------------------------------------------------

    def int_var(self, upper: int) -> cp_model.IntVar:
        """An integer variable from 0 to `upper`."""
        out = self.model.new_int_var(0, int(upper), "")
        self._range[out.index] = int(upper)
        return out

    def _class_terms(self, cls: JobClass) -> ClassTerms:
        n = cls.size
        own = self._part(cls, self.int_var(n) if cls.need and self.owned and self._fits_share(cls) else None)
        over = self._part(cls, self.int_var(n) if cls.need else None)
        whole = Part(
            _sum(own.started, over.started) if cls.need else Terms.const(n),
            [_sum(*pair) for pair in zip(own.minimum, over.minimum, strict=True)],
            [Terms() for _ in cls.count],
            Terms(),
        )
        if own.started.variables:
            self.model.add(whole.started.linear() <= n)
        if not (cls.need and cls.rigid):
            self._growth(cls, own, over, whole)
        return ClassTerms(own, over, whole)

    def _fits_share(self, cls: JobClass) -> bool:
        """What its ready pods hold leaves a job below its minimum a chance to be inside its queue's share."""
        assert self.rules.deserved is not None
        return bool(((cls.held <= self.rules.deserved[cls.queue]) | ~self.rules.contended).all())

    def _part(self, cls: JobClass, started: cp_model.IntVar | None) -> Part:
        """Minimums of the jobs that `started` counts; None: no job starts in this part."""
        if started is None:
            minimum = [Terms() for _ in cls.count]
        elif cls.rigid:
            minimum = [Terms.of(started, count) for count in cls.count.tolist()]
        elif len(cls.count) == 1:
            minimum = [Terms.of(started, cls.need)]
        else:
            minimum = self._mixed_minimum(cls, Terms.of(started))
        return Part(
            Terms.of(started) if started is not None else Terms(), minimum, [Terms() for _ in cls.count], Terms()
        )

    def _mixed_minimum(self, cls: JobClass, started: Terms) -> list[Terms]:
        """m[t] with C3 and C4: exactly `need` pods of whatever sets, at least the role minimums of each role."""
        out = [Terms.of(self.int_var(cls.size * min(int(count), cls.need))) for count in cls.count]
        for part, count in zip(out, cls.count.tolist(), strict=True):
            self.model.add(part.linear() <= started.times(min(count, cls.need)).linear())
        self.model.add(_sum(*out).linear() == started.times(cls.need).linear())
        for o, missing in enumerate(cls.role_need):
            if missing:
                role = _sum(*(part for part, at in zip(out, cls.role.tolist(), strict=True) if at == o))
                self.model.add(role.linear() >= started.times(missing).linear())
        return out

    def _growth(self, cls: JobClass, own: Part, over: Part, whole: Part) -> None:
        """e[t], eo[t] in pieces of falling worth; total pods of a set at most its count per started job (C3, C5)."""
        mixed = cls.need > 0 and len(cls.count) > 1
        for i, count in enumerate(cls.count.tolist()):
            # without a mixed minimum the pods left over are known; with one, up to all of the set may be growth
            for pods, each in self._cut(cls.worth[i], count if mixed else count - cls.need):
                both = Terms()
                for part in (own, over) if self.owned else (over,):
                    var = self.int_var(pods * cls.size)
                    part.growth[i].add(var, 1)
                    part.worth.add(var, each)
                    both.add(var, 1)
                    if part is own and cls.need:
                        self.model.add(var <= own.started.times(pods).linear())
                if cls.need or self.owned:
                    self.model.add(both.linear() <= whole.started.times(pods).linear())
            whole.growth[i].extend(own.growth[i])
            whole.growth[i].extend(over.growth[i])
            if mixed:
                for part in (own, whole) if self.owned else (whole,):
                    held = _sum(part.minimum[i], part.growth[i])
                    self.model.add(held.linear() <= part.started.times(count).linear())
        whole.worth.extend(own.worth)
        whole.worth.extend(over.worth)

    @staticmethod
    def _cut(pieces: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
        """The first `count` pods of the pieces."""
        for size, each in pieces:
            if count <= 0:
                return
            yield min(size, count), each
            count -= size

    @cached_property
    def _in_minimums(self) -> Ints:
        """(U,) units that do not run above a minimum, as far as that is known."""
        v, count = self.problem.victims, self.problem.unit_count.copy()
        np.subtract.at(count, v.beyond_unit, v.beyond_count)
        return count

    @cached_property
    def _running(self) -> list[tuple[int, int, int]]:
        """Running units: row, how many, the first rank of a job that counts them, past all if none does. What runs
        above a minimum may stand below its priority.
        """
        v, count, out = self.problem.victims, self._in_minimums, defaultdict[tuple[int, int], int](int)
        surplus = self.rules.surplus_rank[v.beyond_holder]
        units = np.concatenate([np.arange(len(count)), v.beyond_unit]).tolist()
        counts, at = np.concatenate([count, v.beyond_count]), np.concatenate([self.rules.unit_rank, surplus])
        # what no level tells apart is one variable
        ranks = np.unique(np.array([cls.rank for cls in self.classes], np.int64))
        at = np.append(ranks, len(self.rules.rank_names))[np.searchsorted(ranks, at)]
        for u, n, rank in zip(units, counts.tolist(), at.tolist(), strict=True):
            out[u, rank] += n
        return [(u, n, rank) for (u, rank), n in out.items() if n]

    def _kept_units(self) -> list[tuple[int, cp_model.IntVar, int]]:
        """k[u] for every row of running units (u, variable, rank)."""
        assert self.rules.deserved is not None
        fits = (self.problem.unit_request <= self.rules.deserved[self.problem.unit_queue]) | ~self.rules.contended
        # a unit larger than its queue's share is never inside it
        if self.evictions is None:
            return [(u, self.int_var(n), at) for u, n, at in self._running if fits[u].all()]
        count, v, rank = self._in_minimums.copy(), self.problem.victims, self.rules.unit_rank
        np.subtract.at(count, v.unit_row[v.unit_row >= 0], 1)
        rows = [(u, n) for u, n in enumerate(count.tolist()) if n and fits[u].all()]
        return [(u, self.int_var(n), int(rank[u])) for u, n in rows] + self.evictions.kept_units()

    def close_growth(self) -> None:
        """Hold all growth at 0: in a cycle that evicts it comes last. `open_growth` ends that."""
        for terms in self.terms:
            for part in (terms.own, terms.over):
                for growth in part.growth:
                    for var in growth.variables:
                        self._range.setdefault(-1 - var.index, self._range[var.index])
                        self._range[var.index] = 0
                        var.proto.domain[1] = 0

    def open_growth(self) -> None:
        for terms in self.terms:
            for part in (terms.own, terms.over):
                for growth in part.growth:
                    for var in growth.variables:
                        self._range[var.index] = self._range.pop(-1 - var.index)
                        var.proto.domain[1] = 0 if part.closed else self._range[var.index]

    def open(self, rank: int, beyond: int) -> None:
        """Let jobs of `rank` and higher start, those of `beyond` and higher also outside their queue's share.

        Everything else keeps the value 0: what a level does not count would only be in its way.
        """
        for cls, terms in zip(self.classes, self.terms, strict=True):
            for part, last in ((terms.own, rank), (terms.over, beyond)):
                if part.closed == (cls.rank > last):
                    continue
                part.closed = cls.rank > last
                for var in part.variables():
                    var.proto.domain[1] = 0 if part.closed else self._range[var.index]

    # -- rows ---------------------------------------------------------------------------------------------------

    def own_use(
        self, queue: int, resource: int, rank: int | None = None, step: int = 1, *, growth: bool = True
    ) -> Terms:
        """Left side of C6: what counts as own of the queue, of all ranks or of `rank` and higher; in whole steps of
        each pod and unit.
        """
        p, out = self.problem, Terms()
        for u, var, at in self.kept:
            if p.unit_queue[u] == queue and (rank is None or at <= rank):
                out.add(var, int(p.unit_request[u, resource]) // step)
        for cls, terms in self._of_queue.get(queue, ()):
            if rank is not None and cls.rank > rank:
                continue
            out.extend(terms.own.started, int(cls.held[resource]) // step)
            for i, s in enumerate(cls.shape.tolist()):
                amount = int(p.request[s, resource]) // step
                out.extend(terms.own.minimum[i], amount)
                if growth:
                    out.extend(terms.own.growth[i], amount)
        return out

    def new_use(self, queue: int, resource: int, step: int = 1) -> Terms:
        """What new pods of the queue take, in whole steps of each pod."""
        out = Terms()
        for cls, terms in self._of_queue.get(queue, ()):
            for i, s in enumerate(cls.shape.tolist()):
                amount = int(self.problem.request[s, resource]) // step
                out.extend(terms.whole.minimum[i], amount)
                out.extend(terms.whole.growth[i], amount)
        return out

    def starts(self, queue: int, resource: int, polite: bool, asks: bytes | None) -> Terms:
        """What new minimums of the queue take: of all jobs or of some: polite ones, those of one set of asks."""
        assert self.evictions is not None
        out = Terms()
        for cls, terms in self._of_queue.get(queue, ()):
            if (
                cls.need
                and (cls.polite or not polite)
                and asks in (None, self.evictions.rights.asks[cls.jobs[0]].tobytes())
            ):
                for i, s in enumerate(cls.shape.tolist()):
                    out.extend(terms.whole.minimum[i], int(self.problem.request[s, resource]))
        return out

    def _started(self, jobs: Bools, own: bool) -> Terms:
        """How many of these jobs start, inside their queue's share or at all."""
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.need and jobs[cls.jobs[0]]:
                out.extend((terms.own if own else terms.whole).started)
        return out

    def _no_swaps(self, touched: Mapping[int, cp_model.IntVar]) -> None:
        """C16."""
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if int(cls.jobs[0]) not in touched:
                continue
            var = touched[int(cls.jobs[0])]
            for part in (terms.whole.started, *terms.whole.growth) if cls.need else terms.whole.growth:
                if part.variables:
                    self.model.add(part.linear() <= part.span() * (1 - var))

    def queues(self) -> list[int]:
        return sorted(self._of_queue)

    def _own_rows(self) -> None:
        assert self.rules.deserved is not None
        with_units = {int(self.problem.unit_queue[u]) for u, _, _ in self.kept}
        for q in sorted({*self.queues(), *with_units}):
            for r in np.flatnonzero(self.rules.contended).tolist():
                at_most(self.model, self.own_use(q, r), int(self.rules.deserved[q, r]))

    def _ceiling_rows(self) -> None:
        """C7, C8. What goes makes room under a ceiling too."""
        p, evictions = self.problem, self.evictions
        for ceiling in self.rules.ceilings:
            for q in self.queues():
                for r in np.flatnonzero(ceiling.room[q] < NO_LIMIT).tolist():
                    new = self.new_use(q, r)
                    gone = evictions.freed(q, r) if evictions is not None else Terms()
                    if new.variables and gone.variables:
                        self._ceiling_after(
                            new, gone, int(ceiling.room[q, r]), int(p.queue_used[q, r] - p.queue_capability[q, r])
                        )
                    else:
                        at_most(self.model, new, int(ceiling.room[q, r]), ceiling=True)
            for r in np.flatnonzero(ceiling.guarantee.sum(axis=0) > 0).tolist():
                before = int(np.maximum(p.queue_used[:, r], ceiling.guarantee[:, r]).sum())
                limit = max(int(p.total[r] - p.foreign[r]), before)
                total = Terms()
                for q in range(len(p.queue_weight)):
                    used, guarantee = int(p.queue_used[q, r]), int(ceiling.guarantee[q, r])
                    new = self.new_use(q, r) if q in self._of_queue else Terms()
                    if evictions is not None:
                        new.extend(evictions.freed(q, r), -1)
                    if not new.variables:
                        total.constant += max(used, guarantee)
                    elif guarantee <= used and min(new.coefficients) >= 0:
                        total.extend(new)
                        total.constant += used
                    else:
                        # max(used + new, guarantee) as what is above the guarantee: small, however much is promised
                        above = self.model.new_int_var(0, max(0, new.span() + used - guarantee), "")
                        self.model.add(above >= new.linear() + (used - guarantee))
                        total.add(above, 1)
                        total.constant += guarantee
                if evictions is not None and limit > p.total[r] - p.foreign[r]:
                    self._over_promised(total, r, ceiling.guarantee[:, r])
                    continue
                at_most(self.model, total, limit, ceiling=True)

    def _over_promised(self, total: Terms, r: int, guarantee: Ints) -> None:
        """C8 where more is used or guaranteed than there is: either that ends, or new pods stay within guarantees."""
        assert self.evictions is not None
        p, still = self.problem, self.int_var(1)
        avail = int(p.total[r] - p.foreign[r])
        total.add(still, -max(0, total.span() - avail))
        at_most(self.model, total, avail, ceiling=True)
        for q in self.queues():
            new = self.new_use(q, r)
            if not new.variables:
                continue
            row = Terms()
            row.extend(new)
            row.extend(self.evictions.freed(q, r), -1)
            slack = max(0, int(p.queue_used[q, r] - guarantee[q]) + new.span())
            row.add(still, slack)
            row.add(self._presence(new), slack)
            at_most(self.model, row, int(guarantee[q] - p.queue_used[q, r]) + 2 * slack, ceiling=True)

    def _presence(self, terms: Terms) -> cp_model.IntVar:
        """A Boolean that is 1 when the sum is positive."""
        out = self.int_var(1)
        self.model.add(terms.linear() <= terms.span() * out)
        return out

    def _ceiling_after(self, new: Terms, gone: Terms, room: int, over: int) -> None:
        """new <= max(0, room - over + gone): a queue over its ceiling gets nothing until it is back below."""
        row = Terms()
        row.extend(new)
        row.extend(gone, -1)
        if over <= 0:
            at_most(self.model, row, room, ceiling=True)
            return
        row.add(self._presence(new), over)
        at_most(self.model, row, 0, ceiling=True)

    # -- level objectives ---------------------------------------------------------------------------------------

    def keep_value(self, rank: int) -> Terms:
        out = Terms()
        for u, var, at in self.kept:
            if at <= rank:
                out.add(var, int(self.rules.unit_value[u]))
        return out

    def start_value(self, rank: int, own: bool) -> Terms:
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.need and cls.rank <= rank:
                out.extend((terms.own if own else terms.whole).started, cls.start_value)
        return out

    def growth_worth(self, rank: int, own: bool) -> Terms:
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.rank <= rank:
                out.extend((terms.own if own else terms.whole).worth)
        return out

    def deficits(self, rank: int) -> list[tuple[cp_model.IntVar, int]]:
        """def[q] of O2 for every queue that asks at this rank: (variable, one smallest unit of it in that scale)."""
        p, out = self.problem, []
        assert self.rules.deserved is not None
        for q in self.queues():
            rows: list[tuple[int, Terms]] = []
            units = []
            for r in np.flatnonzero(self.rules.contended).tolist():
                asked, smallest = self._asked(q, r, rank)
                step, deserved = self._steps(q, r)
                if deserved <= 0 or asked <= 0:
                    continue
                running = sum(
                    int(p.unit_request[u, r]) * n for u, n, at in self._running if p.unit_queue[u] == q and at <= rank
                )
                short = Terms.const(SCALE * min(deserved, (running + asked) // step))
                short.extend(self.own_use(q, r, rank, step, growth=self.evictions is None), -SCALE)
                rows.append((deserved, short))
                units.append(SCALE * (smallest // step) // deserved)
            if rows:
                out.append((self._largest_ratio(rows, SCALE), min(units)))
        return out

    def _steps(self, queue: int, resource: int) -> tuple[int, int]:
        """(size of a step, deserved in whole steps): steps of the grain, coarser where there would be too many."""
        assert self.rules.deserved is not None
        grain, deserved = int(self.problem.grain[resource]), int(self.rules.deserved[queue, resource])
        step = grain * max(1, -(-deserved // (grain * STEPS)))
        return step, deserved // step

    def _largest_ratio(self, rows: list[tuple[int, Terms]], most: int) -> cp_model.IntVar:
        """A variable >= ceil(terms / denominator) of every row, at least 0; a derived one."""
        out = self.int_var(most)
        for denominator, terms in rows:
            row = Terms.of(out, denominator)
            row.extend(terms, -1)
            self.at_least(row, 0)
        self.derived.append(
            (out, lambda value: max(0, *(-(-value(terms) // denominator) for denominator, terms in rows)))
        )
        return out

    def largest_sum(self, parts: list[cp_model.IntVar], k: int) -> Terms:
        """The sum of the k largest of `parts`, 0 to SCALE each: of all their sum, of few the largest over all choices
        of k, else k t + sum of max(0, part - t), t free (Ogryczak and Tamir 2003).
        """
        terms = [Terms.of(part) for part in parts]
        if k == len(parts):
            return summed(terms)
        if k == 1 or (k == 2 and len(parts) <= FEW_QUEUES):
            top = self.int_var(k * SCALE)
            for some in combinations(parts, k):
                self.model.add(top >= total(some))
            self.derived.append((top, lambda value: sum(sorted(map(value, terms))[-k:])))
            return Terms.of(top)
        t = self.int_var(SCALE)
        self.derived.append((t, lambda value: sorted(map(value, terms))[-k]))
        out, level = Terms.of(t, k), Terms.of(t)
        for part, whole in zip(parts, terms, strict=True):
            above = self.int_var(SCALE)
            self.model.add(above >= part - t)
            self.derived.append((above, lambda value, whole=whole: max(0, value(whole) - value(level))))  # type: ignore[misc]
            out.add(above, 1)
        return out

    def _asked(self, queue: int, resource: int, rank: int) -> tuple[int, int]:
        """What pending pods of the queue of at least this rank ask for if they can start, and the smallest unit."""
        p, total, smallest = self.problem, 0, int(NO_LIMIT)
        for cls, _ in self._of_queue.get(queue, ()):
            if cls.rank > rank:
                continue
            amounts = p.request[cls.shape, resource]
            total += cls.size * int((amounts * self.rules.demand.counts[cls.sets[0]]).sum())
            if cls.need and cls.rigid:
                unit = int((amounts * cls.count).sum())
            else:
                unit = int(amounts[amounts > 0].min(initial=int(NO_LIMIT))) * max(1, cls.need)
            if unit > 0:
                smallest = min(smallest, unit)
        return total, smallest

    def at_least(self, left: Terms, right: int) -> None:
        """left >= right, divided by the common divisor of the coefficients (exact: rounding the right side up)."""
        divisor = math.gcd(*left.coefficients)
        coefficients = [c // divisor for c in left.coefficients]
        self.model.add(weighted(left.variables, coefficients) >= -((left.constant - right) // divisor))

    def largest_load(self) -> cp_model.IntVar | None:
        """O6: the largest use / deserved over queues and contended resources; None if no queue is entitled."""
        rows: list[tuple[int, Terms]] = []
        for q in self.queues():
            for r in np.flatnonzero(self.rules.contended).tolist():
                step, deserved = self._steps(q, r)
                if deserved > 0:
                    use = Terms.const(SCALE * (int(self.problem.queue_used[q, r]) // step))
                    use.extend(self.new_use(q, r, step), SCALE)
                    if self.evictions is not None:
                        use.extend(self.evictions.freed(q, r, step=step), -SCALE)
                    # a queue that could hold a thousand times its share is past balancing, and past 64 bits
                    if use.span() < PAST_BALANCE:
                        rows.append((deserved, use))
        return self._largest_ratio(rows, max(use.span() // deserved + 1 for deserved, use in rows)) if rows else None

    def promised_value(self) -> Terms:
        """O14: jobs that start with a pod that was nominated."""
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.need and cls.promised:
                out.extend(terms.whole.started)
        return out

    def order_value(self) -> Terms:
        """O9 with members oldest first: pieces of equal age in falling order, exact for the k oldest of a class."""
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if not cls.need:
                continue
            ages, sizes = np.unique(self.rules.age[cls.jobs], return_counts=True)
            if len(ages) == 1:
                out.extend(terms.whole.started, int(ages[0]))
                continue
            pieces, older = Terms(), 0
            for age, size in zip(ages[::-1].tolist(), sizes[::-1].tolist(), strict=True):
                var = self.int_var(size)
                pieces.add(var, 1)
                out.add(var, age)
                self.derived.append((var, _clamped(terms.whole.started, older, size)))
                older += size
            self.model.add(pieces.linear() == terms.whole.started.linear())
        return out

    # -- pods ---------------------------------------------------------------------------------------------------

    def pods_of_shape(self) -> list[Terms]:
        """Right side of C2 per shape."""
        out = [Terms() for _ in self.problem.request]
        for cls, terms in zip(self.classes, self.terms, strict=True):
            for i, s in enumerate(cls.shape.tolist()):
                out[s].extend(terms.whole.minimum[i])
                out[s].extend(terms.whole.growth[i])
        for s, moved in self.evictions.moved() if self.evictions is not None else ():
            out[s].extend(moved)  # C19
        return out

    def per_set(self, value: Callable[[Terms], int]) -> Ints:
        """(T,) pods to place per pod set in a solution; members of a class in their order, growth by age too."""
        out = np.zeros(len(self.problem.set_job), np.int64)
        for cls, terms in zip(self.classes, self.terms, strict=True):
            started = value(terms.whole.started)
            if not started:
                continue
            minimum = np.array([value(part) for part in terms.whole.minimum], np.int64)
            growth = np.array([value(part) for part in terms.whole.growth], np.int64)
            out[cls.sets[:started]] += deal(cls, started, minimum, growth)
        return out


def deal(cls: JobClass, started: int, minimum: Ints, growth: Ints) -> Ints:
    """(started, P) the pods of each started member, given the class totals per position (P,).

    Minimums first, every member exactly `need` with its roles, then growth evenly: the totals split because rows and
    columns of a transportation polytope are integral.
    """
    out = np.zeros((started, len(cls.count)), np.int64)
    if cls.need:
        if len(cls.count) == 1:
            out[:, 0] = cls.need
        elif cls.rigid:
            out[:] = cls.count
        else:
            _deal_minimum(cls, started, minimum.copy(), out)
    for i in range(len(cls.count)):
        left = int(growth[i])
        while left > 0:
            room = out[:, i] < cls.count[i]
            if not room.any():
                raise AssertionError("growth exceeds the pods of the class")
            # the least grown member first, so that equal jobs stay equal
            order = np.flatnonzero(room)
            order = order[np.argsort(out[order, i], kind="stable")]
            take = order[:left]
            level = out[take[0], i]
            take = take[out[take, i] == level]
            out[take, i] += 1
            left -= len(take)
    return out


def _deal_minimum(cls: JobClass, started: int, left: Ints, out: Ints) -> None:
    """Give every member exactly `need` with its roles, every entry and role sum rounded down or up from its average.

    Such a rounding exists for sums that nest (positions, roles, the whole), so what is left stays feasible.
    """
    for row in range(started):
        remaining = started - row
        give = left // remaining
        most = -(-left // remaining)
        caps = []
        for o, missing in enumerate(cls.role_need):
            at = np.flatnonzero(cls.role == o)
            held = int(left[at].sum())
            caps.append(-(-held // remaining))
            _raise_to(give, most, at, max(missing, held // remaining))
        for i in range(len(give)):
            at = np.flatnonzero(cls.role == cls.role[i]) if cls.role[i] >= 0 else np.array([i])
            cap = caps[cls.role[i]] if cls.role[i] >= 0 else int(most[i])
            while give.sum() < cls.need and give[i] < most[i] and give[at].sum() < cap:
                give[i] += 1
        out[row] = give
        left -= give
    if left.any() or (out.sum(axis=1) != cls.need).any():
        raise AssertionError("minimum does not split over the members of the class")


def _raise_to(give: Ints, most: Ints, at: Ints, total: int) -> None:
    """Raise the entries `at` towards `most` until they sum to `total`."""
    for i in at:
        while give[at].sum() < total and give[i] < most[i]:
            give[i] += 1


def _sum(*parts: Terms) -> Terms:
    out = Terms()
    for part in parts:
        out.extend(part)
    return out


def _clamped(terms: Terms, low: int, width: int) -> Callable[[Value], int]:
    """How much of the interval (low, low + width] an expression fills."""
    return lambda value: min(width, max(0, value(terms) - low))

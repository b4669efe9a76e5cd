"""Who starts, who grows, and what counts as a queue's own: the rows and level objectives that need no nodes.

formulation.md C3 to C8 and O1 to O7, O9. `placement.py` adds where the pods go; alone, with admissions fixed, this is
the evaluator of a given plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python import cp_model

from solver_sched.model.classes import JobClass, job_classes
from solver_sched.model.linear import Terms, upper, weighted
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import NO_LIMIT, Ints, Problem

SCALE = 10**6
"""K of formulation.md O2 and O6: deficits and loads in millionths of the deserved share."""
STEPS = 2**30
"""A deserved share is measured in at most this many steps, so that deficit rows stay within 64 bits."""


@dataclass(slots=True)
class ClassTerms:
    """Per position of a class: pods in admitted minimums, in own minimums, growth, own growth; all members together."""

    admitted: Terms
    own: Terms
    minimum: list[Terms]
    own_minimum: list[Terms]
    growth: list[Terms]
    own_growth: list[Terms]
    worth: Terms = field(default_factory=Terms)
    own_worth: Terms = field(default_factory=Terms)


Value = Callable[[Terms], int]
"""The value of an expression in some solution."""


class Ledger:
    """The admission side of the model.

    `owned` says whether in-share levels exist: an entitling plugin and something that several queues contend for.
    `derived`: variables that follow from the others, with how (tight value); they are created level by level.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        self.model = cp_model.CpModel()
        self.classes = job_classes(problem, rules)
        self.owned = _shared(rules)
        self.terms = [self._class_terms(cls) for cls in self.classes]
        self.kept = self._kept_units() if self.owned else []
        self.derived: list[tuple[cp_model.IntVar, Callable[[Value], int]]] = []
        if self.owned:
            self._own_rows()
        self._ceiling_rows()

    # -- variables ----------------------------------------------------------------------------------------------

    def int_var(self, upper: int) -> cp_model.IntVar:
        return self.model.new_int_var(0, int(upper), "")

    def _class_terms(self, cls: JobClass) -> ClassTerms:
        n = cls.size
        if cls.need:
            admitted = self.int_var(n)
            own = self.int_var(n) if self.owned else admitted
            if self.owned:
                self.model.add(own <= admitted)
            out = ClassTerms(Terms.of(admitted), Terms.of(own), [], [], [], [])
        else:
            out = ClassTerms(Terms.const(n), Terms.const(n), [], [], [], [])
        if cls.need and cls.rigid:
            for count in cls.count.tolist():
                out.minimum.append(Terms.of(admitted, count))
                out.own_minimum.append(Terms.of(own, count) if self.owned else out.minimum[-1])
                out.growth.append(Terms())
                out.own_growth.append(out.growth[-1] if not self.owned else Terms())
            return out
        if not cls.need:
            out.minimum = [Terms() for _ in cls.count]
            out.own_minimum = [Terms() for _ in cls.count]
        elif len(cls.count) == 1:
            out.minimum = [Terms.of(admitted, cls.need)]
            out.own_minimum = [Terms.of(own, cls.need)]
        else:
            out.minimum = self._mixed_minimum(cls, out.admitted)
            out.own_minimum = self._mixed_minimum(cls, out.own) if self.owned else out.minimum
            if self.owned:
                for inside, whole in zip(out.own_minimum, out.minimum, strict=True):
                    self.model.add(inside.linear() <= whole.linear())
        self._growth(cls, out)
        return out

    def _mixed_minimum(self, cls: JobClass, started: Terms) -> list[Terms]:
        """m[t] with C3 and C4: exactly `need` pods of whatever sets, at least the role minimums of each role."""
        out = [Terms.of(self.int_var(cls.size * min(int(count), cls.need))) for count in cls.count]
        total = Terms()
        for part, count in zip(out, cls.count.tolist(), strict=True):
            total.extend(part)
            self.model.add(part.linear() <= started.times(min(count, cls.need)).linear())
        self.model.add(total.linear() == started.times(cls.need).linear())
        for o, missing in enumerate(cls.role_need):
            if missing:
                role = Terms()
                for part, at in zip(out, cls.role.tolist(), strict=True):
                    if at == o:
                        role.extend(part)
                self.model.add(role.linear() >= started.times(missing).linear())
        return out

    def _growth(self, cls: JobClass, out: ClassTerms) -> None:
        """e[t], eo[t] in pieces of falling worth; total pods of a set at most its count per started job (C3, C5)."""
        for i, count in enumerate(cls.count.tolist()):
            whole, own = Terms(), Terms()
            # without a mixed minimum the pods left over are known; with one, up to all of the set may be growth
            free = count - cls.need if cls.need and len(cls.count) == 1 else count
            for piece in self._cut(cls.worth[i], free):
                var = self.int_var(piece[0] * cls.size)
                whole.add(var, 1)
                out.worth.add(var, piece[1])
                if cls.need:
                    self.model.add(var <= out.admitted.times(piece[0]).linear())
                if self.owned:
                    inside = self.int_var(piece[0] * cls.size)
                    own.add(inside, 1)
                    out.own_worth.add(inside, piece[1])
                    if cls.need:
                        self.model.add(inside <= out.own.times(piece[0]).linear())
            out.growth.append(whole)
            out.own_growth.append(own if self.owned else whole)
            if cls.need and len(cls.count) > 1:
                self.model.add(whole.linear() + out.minimum[i].linear() <= out.admitted.times(count).linear())
            if self.owned and whole.variables:
                self.model.add(own.linear() <= whole.linear())
                if cls.need and len(cls.count) > 1:
                    self.model.add(own.linear() + out.own_minimum[i].linear() <= out.own.times(count).linear())
        if not self.owned:
            out.own_worth = out.worth

    @staticmethod
    def _cut(pieces: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
        """The first `count` pods of the pieces."""
        for size, each in pieces:
            if count <= 0:
                return
            yield min(size, count), each
            count -= size

    def _kept_units(self) -> list[tuple[int, cp_model.IntVar]]:
        """k[u] for every row of running units (u, variable)."""
        return [(u, self.int_var(count)) for u, count in enumerate(self.problem.unit_count.tolist())]

    # -- rows ---------------------------------------------------------------------------------------------------

    def own_use(self, queue: int, resource: int, rank: int | None = None) -> Terms:
        """Left side of C6: what counts as own of the queue, of all ranks or of `rank` and higher."""
        p, out = self.problem, Terms()
        for u, var in self.kept:
            if p.unit_queue[u] == queue and (rank is None or self.rules.unit_rank[u] <= rank):
                out.add(var, int(p.unit_request[u, resource]))
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.queue != queue or (rank is not None and cls.rank > rank):
                continue
            if cls.need:
                out.extend(terms.own, int(cls.held[resource]))
            for i, s in enumerate(cls.shape.tolist()):
                amount = int(p.request[s, resource])
                out.extend(terms.own_minimum[i], amount)
                out.extend(terms.own_growth[i], amount)
        return out

    def new_use(self, queue: int, resource: int) -> Terms:
        """What new pods of the queue take."""
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.queue == queue:
                for i, s in enumerate(cls.shape.tolist()):
                    amount = int(self.problem.request[s, resource])
                    out.extend(terms.minimum[i], amount)
                    out.extend(terms.growth[i], amount)
        return out

    def queues(self) -> list[int]:
        return sorted({cls.queue for cls in self.classes})

    def _own_rows(self) -> None:
        assert self.rules.deserved is not None
        with_units = {int(self.problem.unit_queue[u]) for u, _ in self.kept}
        for q in sorted({*self.queues(), *with_units}):
            for r in np.flatnonzero(self.rules.contended).tolist():
                self.at_most(self.own_use(q, r), int(self.rules.deserved[q, r]))

    def _ceiling_rows(self) -> None:
        p = self.problem
        for ceiling in self.rules.ceilings:
            for q in self.queues():
                for r in np.flatnonzero(ceiling.room[q] < NO_LIMIT).tolist():
                    self.at_most(self.new_use(q, r), int(ceiling.room[q, r]))
            for r in np.flatnonzero(ceiling.guarantee.sum(axis=0) > 0).tolist():
                before = int(np.maximum(p.queue_used[:, r], ceiling.guarantee[:, r]).sum())
                limit = max(int(p.total[r] - p.foreign[r]), before)
                total = Terms()
                starting = self.queues()
                for q in range(len(p.queue_weight)):
                    used, guarantee = int(p.queue_used[q, r]), int(ceiling.guarantee[q, r])
                    if q not in starting:
                        total.constant += max(used, guarantee)
                        continue
                    new = self.new_use(q, r)
                    if guarantee <= used:
                        total.extend(new)
                        total.constant += used
                    elif new.variables:
                        level = self.model.new_int_var(guarantee, limit, "")
                        self.model.add(level >= new.linear() + used)
                        total.add(level, 1)
                    else:
                        total.constant += guarantee
                self.at_most(total, limit)

    def at_most(self, left: Terms, right: int) -> None:
        """left <= right, divided by the common divisor of the coefficients; rows that cannot bind are left out."""
        if not left.variables:
            return
        divisor = math.gcd(*left.coefficients)
        coefficients = [c // divisor for c in left.coefficients]
        room = (right - left.constant) // divisor
        if sum(c * upper(v) for c, v in zip(coefficients, left.variables, strict=True) if c > 0) <= room:
            return
        if room < 0 and all(c > 0 for c in coefficients):
            room = 0
        self.model.add(weighted(left.variables, coefficients) <= room)

    # -- level objectives ---------------------------------------------------------------------------------------

    def keep_value(self, rank: int) -> Terms:
        out = Terms()
        for u, var in self.kept:
            if self.rules.unit_rank[u] <= rank:
                out.add(var, int(self.rules.unit_value[u]))
        return out

    def start_value(self, rank: int, own: bool) -> Terms:
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.need and cls.rank <= rank:
                out.extend(terms.own if own else terms.admitted, cls.start_value)
        return out

    def growth_worth(self, rank: int, own: bool) -> Terms:
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if cls.rank <= rank:
                out.extend(terms.own_worth if own else terms.worth)
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
                    int(p.unit_request[u, r]) * int(p.unit_count[u])
                    for u, _ in self.kept
                    if p.unit_queue[u] == q and self.rules.unit_rank[u] <= rank
                )
                short = Terms.const(SCALE * min(deserved, (running + asked) // step))
                short.extend(self.own_use(q, r, rank).in_steps(step), -SCALE)
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
        """The sum of the k largest of `parts`: k t + sum of max(0, part - t), t free (Ogryczak and Tamir 2003)."""
        most = max(upper(part) for part in parts)
        terms = [Terms.of(part) for part in parts]
        t = self.int_var(most)
        self.derived.append((t, lambda value: sorted((value(part) for part in terms), reverse=True)[k - 1]))
        out, level = Terms.of(t, k), Terms.of(t)
        if k == 1:
            for part in parts:
                self.model.add(t >= part)
            return out
        for part, whole in zip(parts, terms, strict=True):
            above = self.int_var(most)
            self.model.add(above >= part - t)
            self.derived.append((above, lambda value, whole=whole: max(0, value(whole) - value(level))))  # type: ignore[misc]
            out.add(above, 1)
        return out

    def _asked(self, queue: int, resource: int, rank: int) -> tuple[int, int]:
        """What pending pods of the queue of at least this rank ask for if they can start, and the smallest unit."""
        p, total, smallest = self.problem, 0, int(NO_LIMIT)
        for cls in self.classes:
            if cls.queue != queue or cls.rank > rank:
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
                    use.extend(self.new_use(q, r).in_steps(step), SCALE)
                    rows.append((deserved, use))
        return self._largest_ratio(rows, max(use.span() // deserved + 1 for deserved, use in rows)) if rows else None

    def order_value(self) -> Terms:
        """O9 with members oldest first: pieces of equal age in falling order, exact for the k oldest of a class."""
        out = Terms()
        for cls, terms in zip(self.classes, self.terms, strict=True):
            if not cls.need:
                continue
            ages, sizes = np.unique(self.rules.age[cls.jobs], return_counts=True)
            if len(ages) == 1:
                out.extend(terms.admitted, int(ages[0]))
                continue
            pieces, older = Terms(), 0
            for age, size in zip(ages[::-1].tolist(), sizes[::-1].tolist(), strict=True):
                var = self.int_var(size)
                pieces.add(var, 1)
                out.add(var, age)
                self.derived.append((var, _clamped(terms.admitted, older, size)))
                older += size
            self.model.add(pieces.linear() == terms.admitted.linear())
        return out

    # -- pods ---------------------------------------------------------------------------------------------------

    def pods_of_shape(self) -> list[Terms]:
        """Right side of C2 per shape."""
        out = [Terms() for _ in self.problem.request]
        for cls, terms in zip(self.classes, self.terms, strict=True):
            for i, s in enumerate(cls.shape.tolist()):
                out[s].extend(terms.minimum[i])
                out[s].extend(terms.growth[i])
        return out

    def per_set(self, value: Callable[[Terms], int]) -> Ints:
        """(T,) pods to place per pod set in a solution; members of a class in their order, growth by age too."""
        out = np.zeros(len(self.problem.set_job), np.int64)
        for cls, terms in zip(self.classes, self.terms, strict=True):
            started = value(terms.admitted) if cls.need else cls.size
            if not started:
                continue
            minimum = np.array([value(part) for part in terms.minimum], np.int64)
            growth = np.array([value(part) for part in terms.growth], np.int64)
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


def _shared(rules: Rules) -> bool:
    """More than one queue asks for a contended resource; alone, a queue's share is all there is."""
    return rules.deserved is not None and bool(((rules.demand.ask > 0).sum(axis=0)[rules.contended] > 1).any())


def _clamped(terms: Terms, low: int, width: int) -> Callable[[Value], int]:
    """How much of the interval (low, low + width] an expression fills."""
    return lambda value: min(width, max(0, value(terms) - low))

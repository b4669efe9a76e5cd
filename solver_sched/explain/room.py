"""How many pods of a gang fit at once on the real nodes, beside whatever stands there.

Exact for pods of one shape: per node the smallest quotient over its resources, over the nodes what the rules between
pods allow. Several shapes, and rules that no formula covers, are packed first fit, which may miss a packing but never
invents one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from solver_sched.explain.coupling import Coupling, countable, coupling, most
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import EMPTY_PLAN, Bools, DomainRule, Ints, Plan, Problem, Require
from solver_sched.problem.domain_rules import blocked

UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """`count` pods of one shape and role (-1 = none)."""

    shape: int
    role: int
    count: int


@dataclass(frozen=True, slots=True)
class Want:
    """`need` pods out of `parts`, among them so many of each role."""

    parts: tuple[Part, ...]
    need: int
    roles: tuple[tuple[int, int], ...] = ()

    @property
    def shapes(self) -> tuple[int, ...]:
        return tuple(sorted({part.shape for part in self.parts}))


@dataclass(frozen=True, eq=False, slots=True)
class Ground:
    """Nodes that at least one of some shapes may use: how many; free in all (R,), most on one node (R,), and the
    largest allocatable of one (R,).
    """

    nodes: int
    free: Ints
    largest: Ints
    allocatable: Ints


class Room:
    """The nodes with the pods of `plan` on them. Answers are cached: one room serves all gangs that ask about it."""

    def __init__(
        self, problem: Problem, rules: Rules, plan: Plan = EMPTY_PLAN, coupled: Coupling | None = None
    ) -> None:
        self.problem, self.rules, self.plan = problem, rules, plan
        self.coupling = coupling(rules) if coupled is None else coupled
        free = problem.node_free.copy()
        shape = problem.set_shape[plan.pod_set]
        np.subtract.at(free, plan.node, plan.count[:, None] * problem.request[shape])
        self.free = np.ascontiguousarray(np.maximum(free, 0).T)
        self.size = (problem.request / np.maximum(problem.total, 1)).max(axis=1, initial=0.0)
        self._standing: Ints | None = None
        self._per_node: dict[int, Ints] = {}
        self._scarcest: dict[int, int] = {}
        self._shapes: dict[tuple[int, int], int] = {}
        self._gangs: dict[tuple[Want, bool], int] = {}
        self._ground: dict[bytes, Ground] = {}

    def beside(self, plan: Plan) -> Room:
        """The same nodes with the pods of `plan` instead."""
        return Room(self.problem, self.rules, plan, self.coupling)

    def ground(self, shapes: tuple[int, ...]) -> Ground:
        """Room in sum and at most on the nodes that one of the shapes may use."""
        kinds = open_kinds(self.rules, shapes)
        key = kinds.tobytes()
        if key not in self._ground:
            open_to = kinds[self.problem.node_kind]
            free = self.free[:, open_to]
            allocatable = self.problem.node_alloc[open_to]
            self._ground[key] = Ground(
                int(open_to.sum()), free.sum(axis=1), free.max(axis=1, initial=0), allocatable.max(axis=0, initial=0)
            )
        return self._ground[key]

    def pods(self, shape: int, up_to: int = UNBOUNDED) -> int:
        """Pods of one shape that fit at once; counted only `up_to` where no formula covers its domain rules."""
        key = (shape, UNBOUNDED if countable(self.coupling.get(shape, ()), shape) else up_to)
        if key not in self._shapes:
            self._shapes[key] = self._count(*key)
        return self._shapes[key]

    def gang(self, want: Want, coupled: bool = True) -> int:
        """Pods of the gang that fit at once; more than `want.need` only where one shape makes it up.

        `coupled` False leaves the rules between nodes out.
        """
        if (want, coupled) not in self._gangs:
            shapes = want.shapes
            if len(shapes) == 1 and coupled:
                found = self.pods(shapes[0], want.need)
            elif len(shapes) == 1:
                found = int(self.per_node(shapes[0]).sum())
            else:
                found = max(_Packing(self, coupled).place(want, largest_first) for largest_first in (True, False))
            self._gangs[want, coupled] = found
        return self._gangs[want, coupled]

    def exact(self, want: Want) -> bool:
        """Whether `gang` is the true number and not only one that was found."""
        return len(want.shapes) == 1 and countable(self.coupling.get(want.shapes[0], ()), want.shapes[0])

    def in_the_way(self, want: Want) -> DomainRule | None:
        """The domain rule that closes most of the nodes with room once first fit is stuck; None if none does."""
        candidates = [rule for shape in want.shapes for rule in self.coupling.get(shape, ())]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        packing = _Packing(self, coupled=True)
        packing.place(want, largest_first=True)
        closed: dict[int, int] = defaultdict(int)
        for shape in want.shapes:
            fits = packing.per_node(shape) > 0
            for rule in self.coupling.get(shape, ()):
                closed[candidates.index(rule)] += int((blocked([rule], packing.standing, shape) & fits).sum())
        worst = max(closed, key=lambda i: closed[i])
        return candidates[worst] if closed[worst] else None

    def per_node(self, shape: int) -> Ints:
        """(N,) pods of the shape that each node holds by resources and predicates."""
        if shape not in self._per_node:
            self._per_node[shape] = self.quotients(self.free, shape)
        return self._per_node[shape]

    @property
    def standing(self) -> Ints:
        """(S, N) pods of the plan; read only."""
        if self._standing is None:
            self._standing = self.plan.on_nodes(self.problem)
        return self._standing

    def scarcest(self, shape: int) -> int:
        """The resource that alone lets the fewest pods of the shape in."""
        if shape not in self._scarcest:
            request, eligible = self.problem.request[shape], ~self._forbidden(shape)
            fits = {r: int((self.free[r, eligible] // int(request[r])).sum()) for r in np.flatnonzero(request).tolist()}
            self._scarcest[shape] = min(fits, key=lambda r: fits[r])
        return self._scarcest[shape]

    def quotients(self, free: Ints, shape: int) -> Ints:
        request = self.problem.request[shape]
        out = np.full(free.shape[1], UNBOUNDED, np.int64)
        for r in np.flatnonzero(request).tolist():
            np.minimum(out, free[r] // int(request[r]), out=out)
        out[self._forbidden(shape)] = 0
        return out

    def _forbidden(self, shape: int) -> Bools:
        forbidden: Bools = self.rules.forbidden[shape, self.problem.node_kind]
        return forbidden

    def _count(self, shape: int, up_to: int) -> int:
        rules = self.coupling.get(shape)
        if rules is None:
            return int(self.per_node(shape).sum())
        if countable(rules, shape):
            return most(rules, self.per_node(shape), self.standing, shape)
        return _Packing(self, coupled=True).put(shape, up_to)


class _Packing:
    """Pods put onto a copy of a room, first fit: the tightest node that takes one."""

    def __init__(self, room: Room, coupled: bool) -> None:
        self.room, self.coupled = room, coupled
        self.free = room.free.copy()
        self.standing = room.standing.copy() if coupled and room.rules.domain_rules else np.zeros((0, 0), np.int64)

    def place(self, want: Want, largest_first: bool) -> int:
        """Roles first, then whatever else makes up the need. Pods placed, at most `want.need`."""
        sign = -1 if largest_first else 1
        parts = sorted(want.parts, key=lambda part: sign * float(self.room.size[part.shape]))
        left = [part.count for part in parts]
        done, unmet = 0, 0
        for role, wanted in want.roles:
            for i, part in enumerate(parts):
                if part.role == role and wanted:
                    placed = self.put(part.shape, min(left[i], wanted))
                    left[i], wanted, done = left[i] - placed, wanted - placed, done + placed
            unmet += wanted
        for i, part in enumerate(parts):
            if done < want.need - unmet and left[i]:
                done += self.put(part.shape, min(left[i], want.need - unmet - done))
        return done

    def put(self, shape: int, up_to: int) -> int:
        """Place up to `up_to` pods of a shape; how many."""
        if not (self.coupled and shape in self.room.coupling):
            return self._fill(shape, up_to)
        placed = 0
        while placed < up_to and (node := self._open_node(shape)) >= 0:
            self._move(shape, np.array([node]), np.array([1]))
            placed += 1
        return placed

    def per_node(self, shape: int) -> Ints:
        """(N,) pods of the shape that each node still holds by resources and predicates."""
        return self.room.quotients(self.free, shape)

    def _fill(self, shape: int, up_to: int) -> int:
        """Fill nodes to the brim, tightest first."""
        fits = self.per_node(shape)
        order = np.flatnonzero(fits)
        order = order[np.argsort(fits[order], kind="stable")]
        before = np.cumsum(fits[order]) - fits[order]
        take = np.clip(up_to - before, 0, fits[order])
        self._move(shape, order, take)
        return int(take.sum())

    def _open_node(self, shape: int) -> int:
        """The node for one more pod under the rules, -1 if none takes it."""
        rules = self.room.coupling[shape]
        fits = self.per_node(shape)
        fits = np.where(blocked(rules, self.standing, shape), 0, fits)
        if not fits.any():
            return -1
        # the first pod of an affinity group fixes the domain of all: the one with most room
        grouping = next((rule for rule in rules if isinstance(rule, Require) and shape in rule.shapes), None)
        if grouping is not None:
            room = np.bincount(grouping.domain + 1, weights=fits)[grouping.domain + 1]
            return int(np.where(fits > 0, room, -1).argmax())
        return int(np.where(fits > 0, fits, UNBOUNDED + 1).argmin())

    def _move(self, shape: int, nodes: Ints, pods: Ints) -> None:
        self.free[:, nodes] -= self.room.problem.request[shape][:, None] * pods
        if len(self.standing):
            self.standing[shape, nodes] += pods


def open_kinds(rules: Rules, shapes: Iterable[int]) -> Bools:
    """(K,) node kinds that one of the shapes may use."""
    out = np.zeros(rules.forbidden.shape[1], np.bool_)
    for shape in shapes:
        out |= ~rules.forbidden[shape]
    return out

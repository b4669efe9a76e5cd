"""Both arrangements of the placement: what packs stays allowed, what is packed stands on nodes, what fails is cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from solver_sched.cluster.objects import HostPort, Needs, Node, Pod
from solver_sched.model.floor import Apart, Floor, Joint, part_of
from solver_sched.model.ledger import Ledger
from solver_sched.model.linear import fix, total
from solver_sched.model.packing import Packing, Packings
from solver_sched.model.stock import Stock
from solver_sched.plugins.rules import derive
from solver_sched.policy import load_policy
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot

POLICY = load_policy("default")
ROUNDS = 30
FLOORS: list[Callable[[Ledger], Floor]] = [Joint, Apart]


@dataclass(frozen=True)
class Tiny:
    """`nodes`: (cpu, memory) of each. `kinds`: (cpu, memory, port) of a pod, and how many such pods are pending."""

    nodes: tuple[tuple[int, int], ...]
    kinds: tuple[tuple[tuple[int, int, int], int], ...]

    def snapshot(self) -> Snapshot:
        pods = [
            Pod(
                "ns",
                f"p{k}-{i}",
                Needs(
                    request=(("cpu", cpu), ("memory", memory), ("pods", 1)),
                    ports=(HostPort("", "TCP", 80),) if port else (),
                ),
                scheduler="solver-sched",
            )
            for k, ((cpu, memory, port), count) in enumerate(self.kinds)
            for i in range(count)
        ]
        nodes = [Node(f"n{i}", {"cpu": cpu, "memory": memory, "pods": 9}) for i, (cpu, memory) in enumerate(self.nodes)]
        return Snapshot(nodes=tuple(nodes), pods=tuple(pods))

    def packable(self, limit: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Every number of pods per kind that the nodes hold together, by trying all."""
        reached = {(0,) * len(self.kinds)}
        for cpu, memory in self.nodes:
            one = [
                take
                for take in product(*(range(most + 1) for most in limit))
                if sum(n * kind[0] for n, (kind, _) in zip(take, self.kinds, strict=True)) <= cpu
                and sum(n * kind[1] for n, (kind, _) in zip(take, self.kinds, strict=True)) <= memory
                and sum(n for n, (kind, _) in zip(take, self.kinds, strict=True) if kind[2]) <= 1
            ]
            sums = (tuple(map(sum, zip(a, b, strict=True))) for a in reached for b in one)
            reached = {s for s in sums if all(n <= most for n, most in zip(s, limit, strict=True))}
        return reached


# cpu and memory that seldom divide a node: sums then fit where pods do not
kinds = st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(0, 5).map(lambda x: int(x == 0)))


@st.composite
def tiny(draw: st.DrawFn) -> Tiny:
    distinct = draw(st.lists(kinds, min_size=2, max_size=3, unique=True))
    nodes = draw(st.lists(st.sampled_from([(13, 13), (13, 13), (14, 11), (11, 14)]), min_size=2, max_size=3))
    return Tiny(tuple(nodes), tuple((kind, draw(st.integers(1, 5))) for kind in distinct))


class Case:
    """A ledger with its floor, driven by how many pods of each kind start."""

    def __init__(self, given: Tiny, arrangement: Callable[[Ledger], Floor]) -> None:
        self.problem, index = encode(given.snapshot())
        self.ledger = Ledger(self.problem, derive(self.problem, POLICY))
        self.floor = arrangement(self.ledger)
        # kind k is the job class whose pods are named after it
        first = {index.set_pods[int(cls.sets[0, 0])][0]: i for i, cls in enumerate(self.ledger.classes)}
        self.started = [
            self.ledger.terms[first[f"ns/p{k}-0"]].whole.started.variables[0] if f"ns/p{k}-0" in first else None
            for k in range(len(given.kinds))
        ]
        self.most = [count for _, count in given.kinds]

    def fixed(self, counts: tuple[int, ...]) -> None:
        for variable, count in zip(self.started, counts, strict=True):
            if variable is not None:
                fix(variable, count)

    def free(self) -> None:
        for variable, most in zip(self.started, self.most, strict=True):
            if variable is not None:
                variable.proto.domain[0], variable.proto.domain[1] = 0, most

    def limit(self) -> tuple[int, ...]:
        return tuple(0 if v is None else most for v, most in zip(self.started, self.most, strict=True))

    def solution(self, *, largest: bool = False) -> list[int] | None:
        model = self.ledger.model
        model.clear_objective()  # type: ignore[no-untyped-call]
        if largest:
            model.maximize(total([v for v in self.started if v is not None]))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        return list(solver.response_proto.solution) if solver.solve(model) == cp_model.OPTIMAL else None

    def pods(self, packings: Packings) -> list[int]:
        """Pods per shape of packings, which must be exact and within their classes."""
        out = [0] * len(self.problem.request)
        for c, (count, packing) in packings.items():
            bin_, shapes = self.floor.placement.bin(c)
            held = np.zeros(len(shapes), np.int64)
            assert sum(nodes for _, nodes in packing) <= self.problem.class_size[c]
            for pattern, nodes in packing:
                assert (pattern @ bin_.request <= bin_.free).all()
                assert all(pattern[row].sum() <= 1 for row in bin_.single)
                held += pattern * nodes
            assert held.tolist() == count
            for s, pods in zip(shapes, count, strict=True):
                out[s] += pods
        return out


def settle(case: Case) -> Packings | None:
    """Packings of what is fixed, tightened as often as needed; None: not allowed, or nothing is proven against it."""
    for _ in range(ROUNDS):
        solution = case.solution()
        if solution is None:
            return None
        packings = case.floor.pack(solution)
        if packings is not None:
            assert case.pods(packings) == [terms.at(solution) for terms in case.ledger.pods_of_shape()]
            return packings
        if not case.floor.tighten():
            return None
    return None


@pytest.mark.parametrize("arrangement", FLOORS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tiny())
def test_what_packs_is_found_and_never_cut_off(arrangement: Callable[[Ledger], Floor], given: Tiny) -> None:
    case = Case(given, arrangement)
    limit = case.limit()
    possible = given.packable(limit)
    for counts in product(*(range(most + 1) for most in limit)):
        case.fixed(counts)
        found = settle(case)
        assert (found is not None) == (counts in possible), counts
    # no row that was bought on the way excludes what packs
    for counts in possible:
        case.fixed(counts)
        assert case.solution() is not None, counts


@pytest.mark.parametrize("arrangement", FLOORS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tiny())
def test_narrowed_room_packs_and_is_given_back(arrangement: Callable[[Ledger], Floor], given: Tiny) -> None:
    case = Case(given, arrangement)
    before = case.solution(largest=True)
    assert before is not None
    if case.floor.pack(before) is not None:
        return
    with ExitStack() as narrowed:
        packings, inside = None, before
        # every time at least one more class allows only what is known to pack
        for _ in range(len(case.problem.class_size)):
            narrowed.enter_context(case.floor.narrow())
            solved = case.solution(largest=True)
            assert solved is not None
            inside, packings = solved, case.floor.pack(solved)
            if packings is not None:
                break
        assert packings is not None
        assert case.pods(packings) == [terms.at(inside) for terms in case.ledger.pods_of_shape()]
    after = case.solution(largest=True)
    assert after is not None
    started = [v for v in case.started if v is not None]
    assert sum(after[v.index] for v in started) == sum(before[v.index] for v in started)


@pytest.mark.parametrize("arrangement", FLOORS)
def test_a_sum_that_does_not_pack_is_cut(arrangement: Callable[[Ledger], Floor]) -> None:
    # Two nodes of 7 cpu, four pods of 3 and one of 2: 14 in sum, but 3 + 3 leaves 1 on each node.
    case = Case(Tiny(((7, 9), (7, 9)), (((3, 0, 0), 4), ((2, 0, 0), 1))), arrangement)
    case.fixed((4, 1))
    assert settle(case) is None
    assert case.solution() is None  # the row stands, or the surrogate of steps of 3 and 2 already did
    case.fixed((3, 1))
    assert settle(case) is not None


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        # two nodes of [2, 1], one of [0, 3]
        ([4, 2], [([2, 1], 2)]),
        ([3, 1], [([2, 1], 1), ([1, 0], 1)]),
        ([0, 5], [([0, 1], 2), ([0, 3], 1)]),
        ([0, 0], []),
    ],
)
def test_a_part_of_a_packing(count: list[int], parts: list[tuple[list[int], int]]) -> None:
    packing: Packing = [(np.array([2, 1]), 2), (np.array([0, 3]), 1)]
    found = part_of(packing, count)
    assert found is not None
    assert sorted((pattern.tolist(), nodes) for pattern, nodes in merged(found)) == sorted(parts)


def merged(packing: Packing) -> Packing:
    seen: dict[bytes, tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], int]] = {}
    for pattern, nodes in packing:
        known = seen.get(pattern.tobytes())
        seen[pattern.tobytes()] = (pattern, nodes + (known[1] if known else 0))
    return list(seen.values())


def test_more_than_a_packing_holds_is_no_part_of_it() -> None:
    assert part_of([(np.array([2, 1]), 2), (np.array([0, 3]), 1)], [5, 0]) is None


def test_rearranged_by_hand_from_one_packing_to_the_next() -> None:
    """Two nodes of 7 CPUs and two of 8, two kinds of nodes; pods of 4 and of 3 CPUs.

    Four of 4 and two of 3, then two of 4 and four of 3: others go, others come. Six of 4 fit (one on each small node,
    two on each large one), seven do not, whatever stood there before.
    """
    case = Case(Tiny(((7, 9), (7, 9), (8, 9), (8, 9)), (((4, 0, 0), 7), ((3, 0, 0), 4))), Joint)
    packings: Packings = {}
    for pods in ([4, 2], [2, 4], [6, 0], [0, 4]):
        stock = Stock(case.floor.placement, packings)
        assert stock.reach(pods)
        packings = stock.packings()
        assert case.pods(packings) == pods
    assert not Stock(case.floor.placement, packings).reach([7, 0])


def test_others_make_room_where_they_find_some_elsewhere() -> None:
    """A node of 8 CPUs with two pods of 3, one of 7 with a pod of 4: 2 and 3 CPUs are left, too few for one more of 4.

    A pod of 3 moves from the large node to the small one (7 - 4 - 3 = 0), and the second of 4 takes its place
    (8 - 3 - 4 = 1). Then no third one fits, whoever moves: 3 x 4 + 2 x 3 is more than 15.
    """
    case = Case(Tiny(((7, 9), (8, 9)), (((4, 0, 0), 3), ((3, 0, 0), 2))), Joint)
    of = {int(case.floor.placement.bin(c)[0].free[0]): c for c in case.floor.placement.of_class}
    before: Packings = {
        of[7]: ([1, 0], [(np.array([1, 0]), 1)]),
        of[8]: ([0, 2], [(np.array([0, 2]), 1)]),
    }
    stock = Stock(case.floor.placement, before)
    assert stock.reach([2, 2])
    after = stock.packings()
    assert case.pods(after) == [2, 2]
    assert sorted(count for count, _ in after.values()) == [[1, 1], [1, 1]]
    assert not Stock(case.floor.placement, after).reach([3, 2])


def test_what_a_class_cannot_hold_stands_in_another() -> None:
    """Two nodes of 7 CPUs and two of 8; five pods of 4 and one of 3. A solution that counts three of 4 on the small
    nodes is within their sum (12 of 14), but each holds one: the third moves to a large one.
    """
    case = Case(Tiny(((7, 9), (7, 9), (8, 9), (8, 9)), (((4, 0, 0), 5), ((3, 0, 0), 1))), Joint)
    case.fixed((5, 1))
    solution = case.solution()
    assert solution is not None
    placement = case.floor.placement
    small, large = sorted(placement.of_class, key=lambda c: int(case.problem.class_free[c, 0]))
    # 3 x 4 + 0 on two nodes of 7 are within the sum of 14, but each holds one
    for (s, c), pods in {(0, small): 3, (0, large): 2, (1, small): 0, (1, large): 1}.items():
        solution[placement.var[s, c].index] = pods
    packings = case.floor.pack(solution)
    assert packings is not None
    assert case.pods(packings) == [5, 1]
    assert packings[small][0][0] <= 2
    case.floor.complete(solution, packings)
    assert solution[placement.var[0, small].index] == packings[small][0][0]

"""Packing equal nodes: what is found is exact and within capacity, what is ruled out does not pack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.model.effort import Clock
from solver_sched.model.packing import (
    Bin,
    Cut,
    Packing,
    Pattern,
    best_pattern,
    maximal_patterns,
    pack,
    pack_by_columns,
    pack_most,
)
from solver_sched.problem.arrays import Ints


@dataclass(frozen=True)
class Tiny:
    """A class of at most 3 equal nodes and 3 shapes: small enough to try every packing."""

    node: Bin
    size: int
    count: tuple[int, ...]
    limit: tuple[int, ...]


@st.composite
def tiny(draw: st.DrawFn) -> Tiny:
    resources, shapes = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    free = draw(st.lists(st.integers(0, 9), min_size=resources, max_size=resources))
    # every shape asks for something: `pods` is a resource, so a request of nothing does not occur
    row = st.lists(st.integers(0, 5), min_size=resources, max_size=resources).filter(any)
    request = draw(st.lists(row, min_size=shapes, max_size=shapes))
    single = draw(st.lists(st.lists(st.booleans(), min_size=shapes, max_size=shapes).filter(any), max_size=1))
    limit = draw(st.lists(st.integers(0, 5), min_size=shapes, max_size=shapes))
    count = [draw(st.integers(0, most)) for most in limit]
    node = Bin(
        np.array(free, np.int64), np.array(request, np.int64), np.array(single, bool).reshape(len(single), shapes)
    )
    return Tiny(node, draw(st.integers(1, 3)), tuple(count), tuple(limit))


def array(values: tuple[int, ...]) -> Ints:
    return np.array(values, np.int64)


def holds(node: Bin, pattern: tuple[int, ...]) -> bool:
    """One node holds the pattern."""
    load = [sum(n * int(a) for n, a in zip(pattern, column, strict=True)) for column in node.request.T]
    if any(used > free for used, free in zip(load, node.free.tolist(), strict=True)):
        return False
    return all(sum(n for n, inside in zip(pattern, row, strict=True) if inside) <= 1 for row in node.single.tolist())


def patterns(node: Bin, limit: tuple[int, ...]) -> list[Pattern]:
    """Every pattern, by trying all."""
    return [p for p in product(*(range(most + 1) for most in limit)) if holds(node, p)]


def packable(case: Tiny) -> set[Pattern]:
    """Every count within the limit that the nodes of the class hold together."""
    one = patterns(case.node, case.limit)
    reached = {(0,) * len(case.limit)}
    for _ in range(case.size):
        sums = (tuple(map(sum, zip(a, b, strict=True))) for a in reached for b in one)
        reached = {total for total in sums if all(t <= most for t, most in zip(total, case.limit, strict=True))}
    return reached


def assert_packed(case: Tiny, packing: Packing, *, exactly: bool = True) -> None:
    assert sum(nodes for _, nodes in packing) <= case.size
    assert all(nodes > 0 for _, nodes in packing)
    assert all(holds(case.node, tuple(pattern.tolist())) for pattern, _ in packing)
    total = sum((pattern * nodes for pattern, nodes in packing), np.zeros(len(case.count), np.int64))
    if exactly:
        assert total.tolist() == list(case.count)
    else:
        assert all(total <= array(case.limit))


@settings(max_examples=150)
@given(tiny())
def test_what_is_packed_by_hand_is_exact(case: Tiny) -> None:
    found = pack(case.node, case.size, array(case.count))
    if found is not None:
        assert_packed(case, found)
        assert case.count in packable(case)


@settings(max_examples=150)
@given(tiny())
def test_as_many_as_fit_fit(case: Tiny) -> None:
    assert_packed(case, pack_most(case.node, case.size, array(case.count), array(case.limit)), exactly=False)


@settings(max_examples=120)
@given(tiny().filter(lambda case: any(case.count)), st.booleans())
def test_columns_pack_or_cut_or_are_silent(case: Tiny, listed: bool) -> None:
    """A packing is exact; a cut excludes the counts and no packable counts."""
    known: list[Pattern] | None = None
    if listed:
        inside = np.where(array(case.count) > 0, array(case.limit), 0)
        known = maximal_patterns(case.node, inside, 10_000)
    found = pack_by_columns(case.node, case.size, array(case.count), array(case.limit), known)
    possible = packable(case)
    if isinstance(found, Cut):
        assert weight(found, case.count) > found.bound
        assert all(weight(found, count) <= found.bound for count in possible)
        assert case.count not in possible
    elif found is not None:
        assert_packed(case, found)


def weight(cut: Cut, count: tuple[int, ...]) -> int:
    return sum(w * n for w, n in zip(cut.weight, count, strict=True))


@settings(max_examples=150)
@given(tiny())
def test_maximal_patterns_are_those_that_nothing_can_be_added_to(case: Tiny) -> None:
    every = set(patterns(case.node, case.limit))
    maximal = {p for p in every if not any(q != p and all(a <= b for a, b in zip(p, q, strict=True)) for q in every)}
    found = maximal_patterns(case.node, array(case.limit), 10_000)
    assert found is not None
    assert len(found) == len(set(found))
    assert set(found) == maximal


@settings(max_examples=60)
@given(tiny(), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_the_best_pattern_is_the_heaviest(case: Tiny, weights: list[int]) -> None:
    weights = weights[: len(case.limit)]

    def value(pattern: Pattern) -> int:
        return sum(w * n for w, n in zip(weights, pattern, strict=True))

    best = best_pattern(case.node, weights, array(case.limit))
    assert holds(case.node, best)
    assert value(best) == max(map(value, patterns(case.node, case.limit)))


# -- stories ----------------------------------------------------------------------------------------------------------


def node(free: int, *requests: int) -> Bin:
    return Bin(
        np.array([free], np.int64), np.array([[r] for r in requests], np.int64), np.zeros((0, len(requests)), bool)
    )


def listings(bins: Bin, count: tuple[int, ...]) -> Iterator[list[Pattern] | None]:
    yield None
    yield maximal_patterns(bins, array(count), 100)


@pytest.mark.parametrize("listed", [False, True])
def test_ten_nodes_of_8_hold_ten_pods_of_5(listed: bool) -> None:
    # In sum 80 / 5 = 16; in truth one a node.
    bins = node(8, 5)
    known = list(listings(bins, (16,)))[int(listed)]
    assert pack(bins, 10, array((16,))) is None
    assert pack_by_columns(bins, 10, array((16,)), array((16,)), known) == Cut((1000,), 10_000)
    assert pack(bins, 10, array((10,))) is not None


def test_no_column_is_looked_for_when_the_time_is_over() -> None:
    # 16 pods of 5 on ten nodes of 8 have a cut (above), which costs a round.
    assert pack_by_columns(node(8, 5), 10, array((16,)), array((16,)), None, Clock(-1.0)) is None


def test_a_shape_that_fits_no_node_is_cut_at_nothing() -> None:
    assert pack_by_columns(node(8, 9), 10, array((1,)), array((1,)), None) == Cut((1,), 0)


def test_first_fit_needs_the_right_partner() -> None:
    # Nodes of 10: {6, 4}, {5, 5}. Largest first fills the first node with 6 + 4, the second with 5 + 5.
    bins = node(10, 6, 5, 4)
    packing = pack(bins, 2, array((1, 2, 1)))
    assert packing is not None
    assert sorted(pattern.tolist() for pattern, _ in packing) == [[0, 2, 0], [1, 0, 1]]


def test_equal_nodes_are_filled_in_one_step() -> None:
    # 1,000 nodes, 3,000 pods of 3 on nodes of 9: one pattern, 1,000 times.
    packing = pack(node(9, 3), 1000, array((3000,)))
    assert packing is not None
    assert [(pattern.tolist(), nodes) for pattern, nodes in packing] == [([3], 1000)]


def test_one_port_a_node() -> None:
    # Two shapes share a port: a node with room for eight takes one of them.
    bins = Bin(array((8,)), np.array([[1], [1]], np.int64), np.array([[True, True]]))
    assert pack(bins, 2, array((1, 1))) is not None
    assert pack(bins, 1, array((1, 1))) is None
    assert pack_by_columns(bins, 1, array((1, 1)), array((2, 2)), None) == Cut((1000, 1000), 1000)
    assert maximal_patterns(bins, array((2, 2)), 10) == [(1, 0), (0, 1)]


def test_too_many_patterns_are_not_listed() -> None:
    # Shapes of 1, 1 and 1 on a node of 9: C(11, 2) = 55 patterns.
    bins = node(9, 1, 1, 1)
    assert len(maximal_patterns(bins, array((9, 9, 9)), 55) or []) == 55
    assert maximal_patterns(bins, array((9, 9, 9)), 54) is None


def test_what_else_fits_goes_in_beside() -> None:
    # One node of 10, one pod of 6 wanted; the limit allows two of 6 and three of 2: two of 2 fill the rest.
    packing = pack_most(node(10, 6, 2), 1, array((1, 0)), array((2, 3)))
    assert [(pattern.tolist(), nodes) for pattern, nodes in packing] == [([1, 2], 1)]

"""Rules among pending pods: what breaks them, and that the next step is refused exactly when its end breaks one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solver_sched.problem.arrays import AtMostOne, DomainRule, Exclude, Ints, Require, SpreadRule
from solver_sched.problem.domain_rules import blocked, broken, class_columns, touched

SHAPES, NODES = 3, 4


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def messages(rule: DomainRule, on_nodes: list[list[int]]) -> list[str]:
    return [message for _, message in broken([rule], np.array(on_nodes, np.int64))]


def free_nodes(rule: DomainRule, on_nodes: list[list[int]], shape: int) -> list[int]:
    return np.flatnonzero(~blocked([rule], np.array(on_nodes, np.int64), shape)).tolist()


def test_at_most_one_per_zone_counts_all_its_shapes_and_spares_nodes_without_the_key() -> None:
    rule = AtMostOne("predicates", "rule", ints(0, 1), ints(0, 0, 1, -1), per_node=False)
    # zone 0: one of shape 0 on node 0, one of shape 1 on node 1
    assert messages(rule, [[1, 0, 0, 5], [0, 1, 1, 5]]) == ["rule: 2 pods in domain 0 (nodes 0, 1), at most 1 allowed"]
    assert free_nodes(rule, [[1, 0, 0, 0], [0, 0, 0, 0]], 1) == [2, 3]


def test_exclusion_works_in_both_directions_but_not_among_equals() -> None:
    rule = Exclude("predicates", "rule", ints(0), ints(1), ints(0, 1))
    assert free_nodes(rule, [[2, 0], [0, 0]], 1) == [1]
    assert free_nodes(rule, [[0, 0], [0, 3]], 0) == [0]
    assert free_nodes(rule, [[2, 0], [0, 0]], 0) == [0, 1]
    assert messages(rule, [[2, 0], [1, 0]]) == ["rule: 2 and 1 pods that exclude each other in domain 0 (node 0)"]


def test_a_group_that_requires_itself_opens_one_domain_only() -> None:
    rule = Require("predicates", "rule", ints(0), ints(0), ints(0, 1, -1), np.zeros(3, bool), seed=True)
    assert free_nodes(rule, [[0, 0, 0]], 0) == [0, 1]
    assert free_nodes(rule, [[1, 0, 0]], 0) == [0]
    assert messages(rule, [[2, 1, 0]]) == ["rule: 2 domains opened (0, 1), 1 allowed"]
    assert messages(rule, [[0, 0, 1]]) == ["rule: 1 pods on nodes without the topology key"]


def test_a_follower_needs_its_target_running_or_placed() -> None:
    # a target runs in domain 0; shape 1 is a pending target, shape 0 the follower
    rule = Require("predicates", "rule", ints(0), ints(1), ints(0, 1), np.array([True, False]), seed=False)
    assert free_nodes(rule, [[0, 0], [0, 0]], 0) == [0]
    assert free_nodes(rule, [[0, 0], [0, 1]], 0) == [0, 1]
    assert messages(rule, [[0, 2], [0, 0]]) == ["rule: 2 pods in domain 1 (node 1) without the pod they require"]


def test_a_follower_that_is_no_target_cannot_open_a_domain_for_itself() -> None:
    # shapes 0 and 1 require a pod like 0
    rule = Require("predicates", "rule", ints(0, 1), ints(0), ints(0, 1), np.zeros(2, bool), seed=True)
    assert free_nodes(rule, [[0, 0], [0, 0]], 1) == []
    assert free_nodes(rule, [[1, 0], [0, 0]], 1) == [0]
    assert messages(rule, [[0, 0], [1, 0]]) == ["rule: 1 pods in domain 0 (node 0), none matches their own term"]


def test_spread_looks_at_the_emptiest_eligible_domain() -> None:
    # BR-58: zone 0 holds two. One pod on n2 is not enough for another in zone 0: 3 - 1 = 2 > 1
    rule = SpreadRule("predicates", "rule", ints(0), ints(0), ints(0, 0, 1, -1), ints(2, 0), max_skew=1, min_domains=1)
    assert free_nodes(rule, [[0, 0, 0, 0]], 0) == [2]
    assert free_nodes(rule, [[0, 0, 2, 0]], 0) == [0, 1, 2]
    assert messages(rule, [[1, 0, 1, 0]]) == ["rule: 3 pods in domain 0, 1 in the emptiest: skew 2 of at most 1"]
    assert messages(rule, [[0, 0, 0, 1]]) == ["rule: 1 pods on nodes that are not eligible"]


def test_an_overfull_domain_that_receives_nobody_breaks_nothing() -> None:
    rule = SpreadRule("predicates", "rule", ints(0), ints(0), ints(0, 1), ints(9, 0), max_skew=1, min_domains=1)
    assert messages(rule, [[0, 1]]) == []


def test_with_fewer_domains_than_demanded_the_emptiest_counts_as_none() -> None:
    rule = SpreadRule("predicates", "rule", ints(0), ints(0), ints(0, 1), ints(0, 0), max_skew=1, min_domains=3)
    assert free_nodes(rule, [[1, 0]], 0) == [1]
    assert messages(rule, [[2, 1]]) == ["rule: 2 pods in domain 0, 0 in the emptiest: skew 2 of at most 1"]


def test_classes_need_the_domains_of_all_rules_but_those_of_one_pod_per_node() -> None:
    zones = ints(0, 0, 1)
    rules: list[DomainRule] = [
        AtMostOne("predicates", "rule", ints(0), ints(0, 1, 2), per_node=True),
        AtMostOne("predicates", "rule", ints(0), zones, per_node=False),
        Exclude("predicates", "rule", ints(0), ints(1), zones.copy()),
    ]
    assert class_columns(rules, 3).tolist() == [[0], [0], [1]]
    assert class_columns([], 3).shape == (3, 0)


domains = st.lists(st.integers(-1, 2), min_size=NODES, max_size=NODES).map(
    lambda values: ints(*(sorted({v for v in values if v >= 0}).index(v) if v >= 0 else -1 for v in values))
)
shape_sets = st.sets(st.integers(0, SHAPES - 1), min_size=1).map(lambda rows: ints(*sorted(rows)))
placements = st.lists(
    st.lists(st.integers(0, 2), min_size=NODES, max_size=NODES), min_size=SHAPES, max_size=SHAPES
).map(lambda rows: np.array(rows, np.int64))


@st.composite
def rules(draw: st.DrawFn) -> DomainRule:
    domain = draw(domains)
    match draw(st.sampled_from(("at most one", "exclude", "require", "spread"))):
        case "at most one":
            return AtMostOne("predicates", "rule", draw(shape_sets), domain, per_node=False)
        case "exclude":
            left = draw(shape_sets)
            right = np.setdiff1d(np.arange(SHAPES), left)
            return Exclude("predicates", "rule", left, right, domain)
        case "require":
            shapes, targets = draw(shape_sets), draw(shape_sets)
            seed = draw(st.booleans()) and bool(np.intersect1d(shapes, targets).size)
            hit = draw(st.sets(st.integers(0, 2)))
            present = np.array([not seed and d in hit for d in domain.tolist()], np.bool_)
            return Require("predicates", "rule", shapes, targets, domain, present, seed)
    size = int(domain.max()) + 1
    existing = ints(*draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    skew, least = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return SpreadRule("predicates", "rule", draw(shape_sets), draw(shape_sets), domain, existing, skew, least)


@given(st.lists(rules(), min_size=1, max_size=3), placements, st.integers(0, SHAPES - 1), st.data())
def test_a_step_is_blocked_exactly_when_its_end_breaks_a_rule(
    some: list[DomainRule], on_nodes: Ints, shape: int, data: st.DataObject
) -> None:
    # thin the placement out until it breaks nothing, as a placement so far must not
    while list(broken(some, on_nodes)):
        on_nodes = on_nodes.copy()
        s, n = data.draw(st.sampled_from(np.argwhere(on_nodes).tolist()))
        on_nodes[s, n] = 0
    stop = blocked(some, on_nodes, shape)
    for node in range(NODES):
        step = on_nodes.copy()
        step[shape, node] += 1
        assert bool(stop[node]) == bool(list(broken(some, step)))
    if stop.any():
        assert any(shape in touched(rule) for rule in some)

"""Selectors, taints and tolerations, as the API server and kube-scheduler read them."""

from __future__ import annotations

import pytest

from solver_sched.cluster.objects import NodeTerm, Requirement, Taint, Toleration
from solver_sched.cluster.selectors import any_term_matches, disliked, holds, repelled, selects, tolerates


@pytest.mark.parametrize(
    ("operator", "values", "present", "absent"),
    [
        ("In", ("ssd", "nvme"), True, False),
        ("In", ("hdd",), False, False),
        ("NotIn", ("hdd",), True, True),
        ("NotIn", ("ssd",), False, True),
        ("Exists", (), True, False),
        ("DoesNotExist", (), False, True),
    ],
)
def test_an_absent_label_satisfies_only_the_negative_operators(
    operator: str, values: tuple[str, ...], present: bool, absent: bool
) -> None:
    requirement = Requirement("disk", operator, values)
    assert (holds(requirement, "ssd"), holds(requirement, None)) == (present, absent)


def test_greater_and_less_compare_integers_not_text() -> None:
    # as text "9" > "10"
    assert holds(Requirement("cores", "Gt", ("9",)), "10")
    assert holds(Requirement("cores", "Lt", ("10",)), "9")
    assert not holds(Requirement("cores", "Gt", ("10",)), "10")
    assert not holds(Requirement("cores", "Gt", ("1",)), "1_0")
    assert not holds(Requirement("cores", "Lt", ("5",)), None)
    assert not holds(Requirement("cores", "Gt", ("1", "2")), "3")


def test_an_operator_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"zone: operator 'Near' is not one of In, NotIn"):
        holds(Requirement("zone", "Near", ("a",)), "a")


def test_the_empty_selector_selects_everything_and_no_selector_nothing() -> None:
    assert selects((), {})
    assert not selects(None, {"app": "web"})


def test_terms_are_alternatives_and_an_empty_term_matches_nothing() -> None:
    ssd, big = Requirement("disk", "In", ("ssd",)), Requirement("cores", "Gt", ("32",))
    labels = {"disk": "hdd", "cores": "64"}
    assert any_term_matches((NodeTerm((ssd,)), NodeTerm((big,))), labels, "n1")
    assert not any_term_matches((NodeTerm((ssd, big)),), labels, "n1")
    assert not any_term_matches((NodeTerm(),), labels, "n1")
    assert not any_term_matches((), labels, "n1")
    assert any_term_matches(None, labels, "n1")


def test_match_fields_name_the_node_and_bind_together_with_expressions() -> None:
    named = Requirement("metadata.name", "In", ("n1",))
    term = NodeTerm((Requirement("disk", "Exists"),), (named,))
    assert any_term_matches((term,), {"disk": "ssd"}, "n1")
    assert not any_term_matches((term,), {"disk": "ssd"}, "n2")
    assert not any_term_matches((term,), {}, "n1")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("team", "Equal", "ml", "NoSchedule"), True),
        (Toleration("team", "", "ml", ""), True),
        (Toleration("team", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("team", "Equal", "web"), False),
        (Toleration("team", "Equal", "ml", "NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("team", "Gt", "ml"), False),
    ],
)
def test_a_toleration_covers_by_key_value_and_effect(toleration: Toleration, covers: bool) -> None:
    assert tolerates(toleration, Taint("team", "ml", "NoSchedule")) is covers


def test_two_effects_repel_and_the_third_is_only_disliked() -> None:
    taints = (Taint("a", "", "NoExecute"), Taint("b", "", "PreferNoSchedule"), Taint("c", "", "PreferNoSchedule"))
    assert repelled((), taints)
    assert not repelled((Toleration("a", "Exists"),), taints)
    assert disliked((Toleration("b", "Exists", "", "PreferNoSchedule"),), taints) == 1

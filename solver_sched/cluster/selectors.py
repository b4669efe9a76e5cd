"""Label selectors, node selector terms, taints and tolerations: does it match? Pure functions, Kubernetes' rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from solver_sched.cluster.objects import NodeTerm, Requirement, Selector, Taint, Toleration

INTEGER = re.compile(r"[+-]?[0-9]+\Z")
NODE_NAME_FIELD = "metadata.name"
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What a cordoned node stands for: a pod that tolerates this taint may go there all the same."""


def holds(requirement: Requirement, value: str | None) -> bool:
    """Whether one expression holds for a label value, None = the label is absent.

    An absent label satisfies NotIn and DoesNotExist. Gt and Lt compare integers and hold for nothing else.
    Raises ValueError on an operator that Kubernetes does not have.
    """
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or len(requirement.values) != 1:
                return False
            bound = requirement.values[0]
            if not (INTEGER.match(value) and INTEGER.match(bound)):
                return False
            return int(value) > int(bound) if requirement.operator == "Gt" else int(value) < int(bound)
    raise ValueError(
        f"{requirement.key}: operator {requirement.operator!r} is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt"
    )


def selects(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """Whether all requirements hold; the empty selector selects everything, None nothing (LabelSelectorAsSelector)."""
    return selector is not None and all(holds(requirement, labels.get(requirement.key)) for requirement in selector)


def term_matches(term: NodeTerm, labels: Mapping[str, str], name: str) -> bool:
    """Whether a node satisfies all expressions and fields of the term; a term without either matches no node."""
    if not term.expressions and not term.fields:
        return False
    fields = {NODE_NAME_FIELD: name}
    return selects(term.expressions, labels) and selects(term.fields, fields)


def any_term_matches(terms: Iterable[NodeTerm] | None, labels: Mapping[str, str], name: str) -> bool:
    """Whether a required node affinity admits a node: one term is enough, None admits all, no terms admit none."""
    return terms is None or any(term_matches(term, labels, name) for term in terms)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers the taint (`ToleratesTaint` of k8s.io/api: empty effect or key covers all)."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def repelled(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Whether some NoSchedule or NoExecute taint keeps a pod with these tolerations away."""
    tolerations = tuple(tolerations)
    return any(
        taint.effect in BLOCKING_EFFECTS and not any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def disliked(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> int:
    """How many PreferNoSchedule taints are not tolerated: such a node is used last."""
    tolerations = tuple(tolerations)
    return sum(
        taint.effect == "PreferNoSchedule" and not any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )

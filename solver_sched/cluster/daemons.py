"""DaemonSet: one pod on every node that its template admits, bound there, so that it counts as usage.

Unlike other made pods these need no scheduler to say where they run: the controller names the node itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from solver_sched.cluster.admission import Json, items, mapping, name
from solver_sched.cluster.objects import NodeTerm, Requirement, Taint, Toleration
from solver_sched.cluster.selectors import UNSCHEDULABLE_TAINT, any_term_matches, repelled
from solver_sched.cluster.templates import FieldError, Present, Workload, pod

if TYPE_CHECKING:
    from collections.abc import Iterable

# AddOrUpdateDaemonPodTolerations of the DaemonSet controller; the last one only for pods on the host network.
OWN_TOLERATIONS = tuple(
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": effect}
    for state, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
        ("network-unavailable", "NoSchedule"),
    )
)


def expand(owner: Workload, present: Present) -> list[Json]:
    """The missing pods of a DaemonSet. None where a dump shows some already: its controller, which saw the whole
    cluster, has then made all that it wants. Raises FieldError.
    """
    template = owner.template()
    own = present.owned(owner, "Pod")
    if own and owner.uid:
        return []
    covered = {_text(mapping(p.get("spec")), "nodeName") for p in own}
    spec = dict(template["spec"])
    added = OWN_TOLERATIONS if spec.get("hostNetwork") is True else OWN_TOLERATIONS[:-1]
    spec["tolerations"] = [*items(spec.get("tolerations")), *added]
    made: list[Json] = []
    for node in present.nodes:
        if name(node) in covered or not _admits(spec, node):
            continue
        named = present.claim(owner.namespace, f"{owner.name}-{name(node)}")
        bound = pod(owner, template, named, spec={**spec, "nodeName": name(node)})
        made.append({**bound, "status": {"phase": "Running"}})
    return made


def _admits(spec: Json, node: Json) -> bool:
    labels = {str(key): str(value) for key, value in mapping(mapping(node.get("metadata")).get("labels")).items()}
    for key, value in mapping(spec.get("nodeSelector")).items():
        if labels.get(key) != value:
            return False
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None if required is None else [_term(term) for term in items(mapping(required).get("nodeSelectorTerms"))]
    try:
        if not any_term_matches(terms, labels, name(node)):
            return False
    except ValueError as error:
        raise FieldError("spec.template.spec.affinity.nodeAffinity", str(error)) from None
    body = mapping(node.get("spec"))
    taints = [Taint(_text(t, "key"), _text(t, "value"), _text(t, "effect")) for t in items(body.get("taints"))]
    if body.get("unschedulable") is True:
        taints.append(UNSCHEDULABLE_TAINT)
    return not repelled(map(_toleration, items(spec.get("tolerations"))), taints)


def _term(term: Json) -> NodeTerm:
    return NodeTerm(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))


def _requirements(expressions: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(_text(one, "key"), _text(one, "operator"), tuple(map(str, _list(one.get("values")))))
        for one in items(expressions)
    )


def _toleration(one: Json) -> Toleration:
    return Toleration(_text(one, "key"), _text(one, "operator") or "Equal", _text(one, "value"), _text(one, "effect"))


def _text(one: Json, key: str) -> str:
    return str(one.get(key) or "")


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()

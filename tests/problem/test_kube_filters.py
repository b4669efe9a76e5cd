"""Masks and rules against kube-scheduler's filters, one pod after the other, on every placement of tiny clusters.

The filters are written here once more, pod by pod, straight from their rules and without the package's selectors. An
end state counts as reachable when some order exists in which every pod passes all filters.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solver_sched.cluster.objects import HostPort, Needs, Node, Pod, PodTerm, Requirement, Spread, Taint, Toleration
from solver_sched.problem.domain_rules import broken
from solver_sched.problem.placement import Placement, place
from solver_sched.snapshot import Snapshot

Where = list[tuple[Pod, int]]


def picks(owner: Pod, term: PodTerm | Spread, other: Pod) -> bool:
    namespaces = (owner.namespace,) if isinstance(term, Spread) else term.namespaces
    wanted = {entry.key: entry.values[0] for entry in term.selector or ()}
    return other.namespace in namespaces and all(other.labels.get(key) == value for key, value in wanted.items())


def fits(pod: Pod, at: int, nodes: list[Node], there: Where) -> bool:
    """Whether kube-scheduler's filters let the pod onto node row `at`, given the pods that stand somewhere."""
    node, needs = nodes[at], pod.needs
    tolerated = {toleration.key for toleration in needs.tolerations}
    if any(node.labels.get(key) != value for key, value in needs.node_selector):
        return False
    if any(taint.key not in tolerated for taint in node.taints) or node.unschedulable or not node.ready:
        return False
    if any(a.port == b.port for other, n in there if n == at for a in needs.ports for b in other.needs.ports):
        return False
    return near(pod, node, nodes, there) and apart(pod, node, nodes, there) and even(pod, node, nodes, there)


def apart(pod: Pod, node: Node, nodes: list[Node], there: Where) -> bool:
    for other, n in there:
        for owner, target, terms in ((pod, other, pod.needs.anti_affinity), (other, pod, other.needs.anti_affinity)):
            for term in terms:
                here, beside = node.labels.get(term.topology_key), nodes[n].labels.get(term.topology_key)
                if here is not None and here == beside and picks(owner, term, target):
                    return False
    return True


def near(pod: Pod, node: Node, nodes: list[Node], there: Where) -> bool:
    terms = pod.needs.affinity
    if any(term.topology_key not in node.labels for term in terms):
        return False
    counted = {
        (term.topology_key, nodes[n].labels[term.topology_key])
        for other, n in there
        if all(picks(pod, term, other) for term in terms)
        for term in terms
        if term.topology_key in nodes[n].labels
    }
    if all((term.topology_key, node.labels[term.topology_key]) in counted for term in terms):
        return True
    return not counted and all(picks(pod, term, pod) for term in terms)


def even(pod: Pod, node: Node, nodes: list[Node], there: Where) -> bool:
    wanted = pod.needs.spread
    for spread in wanted:
        key = spread.topology_key
        if key not in node.labels:
            return False
        eligible = [
            n
            for n, candidate in enumerate(nodes)
            if all(entry.topology_key in candidate.labels for entry in wanted)
            and all(candidate.labels.get(name) == value for name, value in pod.needs.node_selector)
        ]
        count = {nodes[n].labels[key]: 0 for n in eligible}
        for other, n in there:
            if n in eligible and not other.terminating and picks(pod, spread, other):
                count[nodes[n].labels[key]] += 1
        fewest = min(count.values(), default=0) if len(count) >= spread.min_domains else 0
        if count.get(node.labels[key], 0) + picks(pod, spread, pod) - fewest > spread.max_skew:
            return False
    return True


def reachable(pending: list[Pod], where: tuple[int, ...], nodes: list[Node], resident: Where) -> bool:
    chosen = [(pod, n) for pod, n in zip(pending, where, strict=True) if n >= 0]
    for order in permutations(chosen):
        there = list(resident)
        for pod, n in order:
            if not fits(pod, n, nodes, there):
                break
            there.append((pod, n))
        else:
            return True
    return False


def accepted(placement: Placement, where: tuple[int, ...], n_nodes: int) -> bool:
    on_nodes = np.zeros((len(placement.representative), n_nodes), np.int64)
    for row, n in enumerate(where):
        if n >= 0:
            shape = placement.shape_of[row]
            if shape < 0 or any(mask[shape, placement.node_kind[n]] for mask in placement.masks.values()):
                return False
            on_nodes[shape, n] += 1
    return not list(broken(placement.rules, on_nodes))


def term(app: str, key: str, namespace: str = "ns") -> PodTerm:
    return PodTerm(key, (Requirement("app", "In", (app,)),), (namespace,))


apps, keys = st.sampled_from("ab"), st.sampled_from(("zone", "host"))
terms = st.lists(st.builds(term, apps, keys, st.sampled_from(("ns", "ns", "ns2"))), max_size=2).map(tuple)


@st.composite
def cluster_nodes(draw: st.DrawFn) -> list[Node]:
    out = []
    for row in range(draw(st.integers(1, 3))):
        labels = {"host": f"n{row}"} if draw(st.integers(0, 5)) else {}
        labels |= {"zone": draw(st.sampled_from("xy"))} if draw(st.integers(0, 5)) else {}
        labels |= draw(st.sampled_from(({}, {"disk": "ssd"})))
        taints = draw(st.sampled_from(((), (), (Taint("t", "", "NoSchedule"),))))
        out.append(Node(f"n{row}", {}, labels, taints, unschedulable=not draw(st.integers(0, 9))))
    return out


@st.composite
def pods(draw: st.DrawFn, name: str, affinity: tuple[PodTerm, ...], spread: Spread | None, node: str | None) -> Pod:
    app = draw(apps)
    needs = Needs(
        node_selector=draw(st.sampled_from(((), (), (("disk", "ssd"),)))) if spread is None else (),
        tolerations=draw(st.sampled_from(((), (Toleration("t", "Exists"),)))),
        affinity=affinity if draw(st.booleans()) else (),
        anti_affinity=draw(st.sampled_from(((), draw(terms)))),
        ports=draw(st.sampled_from(((), (), (HostPort("", "TCP", 80),)))),
        spread=(spread,) if spread is not None and app == "a" else (),
    )
    namespace = draw(st.sampled_from(("ns", "ns", "ns", "ns2")))
    going = node is not None and draw(st.booleans())
    return Pod(namespace, name, needs, labels={"app": app}, node=node, terminating=going)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[Pod]]:
    """Affinity of one kind only: groups that require each other may start together here, not one by one."""
    nodes = draw(cluster_nodes())
    affinity = draw(terms) if draw(st.booleans()) else ()
    spread = None
    if draw(st.booleans()):
        selector = (Requirement("app", "In", ("a",)),)
        spread = Spread(draw(keys), draw(st.integers(1, 2)), True, selector, draw(st.integers(1, 3)))
    pending = [draw(pods(f"p{i}", affinity, spread, None)) for i in range(draw(st.integers(1, 4)))]
    running = [draw(pods(f"r{i}", (), None, draw(st.sampled_from(nodes)).name)) for i in range(draw(st.integers(0, 2)))]
    return nodes, pending, running


@settings(max_examples=150)
@given(clusters())
def test_masks_and_rules_allow_exactly_what_the_filters_reach(case: tuple[list[Node], list[Pod], list[Pod]]) -> None:
    nodes, pending, running = case
    placement = place(nodes, pending, running, Snapshot(nodes=tuple(nodes)))
    rows = {node.name: row for row, node in enumerate(nodes)}
    resident = [(pod, rows[pod.node]) for pod in running if pod.node is not None]
    for where in product(range(-1, len(nodes)), repeat=len(pending)):
        if any(n >= 0 and row in placement.held for row, n in enumerate(where)):
            continue
        assert accepted(placement, where, len(nodes)) == reachable(pending, where, nodes, resident), where

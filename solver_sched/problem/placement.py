"""Where pending pods may go: shapes, static node kinds, what is forbidden between them, and the rules among shapes.

Two pods share a shape when no rule can tell them apart, two nodes a kind when no mask and no soft score of any shape
does. Every predicate is evaluated once per distinct need and on label columns, never per pod and node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from solver_sched.cluster.objects import HostPort, Node, NodeTerm, Pod, Requirement, Toleration
from solver_sched.cluster.selectors import UNSCHEDULABLE_TAINT, tolerates
from solver_sched.problem import inter_pod, ports, spread, volumes
from solver_sched.problem.arrays import AtMostOne, Bools, DomainRule, Exclude, Ints, Require
from solver_sched.problem.inter_pod import NO_RULES, InterPod, PodRules
from solver_sched.problem.node_table import NodeTable
from solver_sched.problem.volumes import NO_VOLUMES, VolumeNeeds, Volumes
from solver_sched.snapshot import Snapshot

PLUGIN = "predicates"
MAX_SCORE = 100
Array = TypeVar("Array", Bools, Ints)


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """What placement knows of the pods and nodes given. Axes as in `Problem`: S shapes, N nodes, K kinds.

    shape_of (pending,): shape of each pod, -1 = held. representative: one pod per shape, in order of first appearance.
    node_kind (N,): kind of each node. masks: predicate code -> (S, K), True = forbidden; a code that forbids nothing
    is left out: NodeAffinity (selector and affinity), Taints, Unschedulable, NotReady, Ports, Volumes,
    InterPodAffinity, TopologySpread.
    soft: nodeaffinity, tainttoleration, podaffinity -> (S, K) in 0..100, normalised per shape over the kinds that no
    mask forbids; a score that is the same everywhere is left out.
    rules: what pending pods may not do to each other; `source` of each begins with the code of its predicate.
    extra: attach limits as resources: name, request (S,), free (N,), allocatable (N,).
    held: row of a pending pod -> (code, sentence) for what must wait or cannot be modelled.
    bound: of each shape, the reservations that it must respect.
    alone (S,): no rule between pods, port or volume speaks of the shape, nor of a pod of it that runs.
    """

    shape_of: Ints
    representative: tuple[Pod, ...]
    node_kind: Ints
    masks: dict[str, Bools]
    soft: dict[str, Ints]
    rules: tuple[DomainRule, ...]
    extra: tuple[tuple[str, Ints, Ints, Ints], ...]
    held: dict[int, tuple[str, str]]
    bound: tuple[tuple[int, ...], ...]
    alone: Bools

    def apart(self, nodes: Ints) -> Placement:
        """The same with a kind of its own for each of these nodes."""
        if not len(nodes):
            return self
        kinds = int(self.node_kind.max()) + 1
        node_kind = self.node_kind.copy()
        node_kind[nodes] = kinds + np.arange(len(nodes))
        like = np.concatenate([np.arange(kinds), self.node_kind[nodes]])
        return replace(
            self,
            node_kind=node_kind,
            masks={code: mask[:, like] for code, mask in self.masks.items()},
            soft={name: score[:, like] for name, score in self.soft.items()},
        )


class _Shape(NamedTuple):
    """All that placement can tell about a pod."""

    request: tuple[tuple[str, int], ...]
    node_selector: tuple[tuple[str, str], ...]
    node_affinity: tuple[NodeTerm, ...] | None
    preferred_nodes: tuple[tuple[int, NodeTerm], ...]
    tolerations: tuple[Toleration, ...]
    ports: tuple[HostPort, ...]
    volumes: VolumeNeeds
    spread: tuple[spread.Constraint, ...]
    rules: PodRules
    bound: tuple[int, ...]


class _Layer(Generic[Array]):
    """One row of node values per shape; rows of equal needs are computed and kept once."""

    def __init__(self) -> None:
        self.rows: list[Array] = []
        self.of_shape: list[int] = []
        self._row: dict[Hashable, int] = {}

    def add(self, need: Hashable, compute: Callable[[], Array]) -> Array:
        """Append the next shape's row, computed unless a shape with an equal need came before."""
        if need not in self._row:
            self._row[need] = len(self.rows)
            self.rows.append(compute())
        self.of_shape.append(self._row[need])
        return self.rows[self.of_shape[-1]]

    def per_kind(self, first: Ints) -> Array:
        """(S, K) with `first` (K,) a node of each kind."""
        return np.stack([row[first] for row in self.rows])[self.of_shape]


def place(
    nodes: Sequence[Node],
    pending: Sequence[Pod],
    resident: Sequence[Pod],
    snapshot: Snapshot,
    bound: Sequence[tuple[int, ...]] = (),
    table: NodeTable | None = None,
) -> Placement:
    """Shapes, kinds, masks and rules of one cycle.

    `pending`: pods that may be decided on. `resident`: unfinished pods on one of `nodes`, those being deleted included.
    `bound`: of each pending pod, reservations that it must respect, which tell shapes apart and nothing more here;
    empty = none of any. `table`: of the nodes, where there is one.
    Claims, attach limits and namespaces come from `snapshot`. Pure; rows follow the order of the arguments.
    """
    table = NodeTable(nodes) if table is None else table
    attached = Volumes(snapshot, pending)
    held: dict[int, tuple[str, str]] = {}
    volume_needs: dict[int, VolumeNeeds] = {}
    for row, pod in enumerate(pending):
        if pod.needs.volume_claims:
            needs = attached.needs(pod)
            if isinstance(needs, str):
                held[row] = "Volumes", needs
            else:
                volume_needs[row] = needs
    free = [pod for row, pod in enumerate(pending) if row not in held] if held else pending
    counted = dict.fromkeys(entry.matcher for pod in free if pod.needs.spread for entry in spread.constraints(pod))
    terms = InterPod(table, free, resident, snapshot, counted)

    shape_of, shapes, representative = _shapes(pending, held, volume_needs, terms, bound)
    pods = np.bincount(shape_of[shape_of >= 0], minlength=len(shapes)).astype(np.int64)
    affinity = terms.affinity([shape.rules for shape in shapes], pods)
    for row in np.flatnonzero(np.isin(shape_of, list(affinity.held))).tolist():
        held[row] = inter_pod.CODE, affinity.held[int(shape_of[row])]
        shape_of[row] = -1

    forbidden, liked, spreading = _evaluate(table, shapes, resident, terms, affinity)
    node_kind, first = _kinds(len(nodes), forbidden, liked)
    masks = {code: layer.per_kind(first) for code, layer in forbidden.items()}
    allowed = ~np.logical_or.reduce([*masks.values(), np.zeros((len(shapes), len(first)), np.bool_)])
    soft = {name: _SCALES[name](layer.per_kind(first), allowed) for name, layer in liked.items()}

    rules: list[DomainRule] = list(_shared_claims(shapes, pods, len(nodes)))
    exclusive = ports.exclusive({s: shape.ports for s, shape in enumerate(shapes) if shape.ports})
    for what, users in exclusive.items():
        rows = np.array(sorted(users), np.int64)
        if pods[rows].sum() > 1:
            rules.append(AtMostOne(PLUGIN, f"Ports: {what}", rows, np.arange(len(nodes), dtype=np.int64), True))
    rules += terms.anti_affinity([shape.rules for shape in shapes], pods)
    rules += affinity.rules
    number = terms.matching.number
    picked = {matcher: [s for s, x in enumerate(shapes) if number[matcher] in x.rules.matched] for matcher in counted}
    rules += spreading.rules(picked, terms.staying, pods)
    return Placement(
        shape_of=shape_of,
        representative=tuple(representative),
        node_kind=node_kind,
        masks=masks,
        soft=soft,
        rules=_distinct(rules),
        extra=tuple(_attach_limits(table, shapes, pods, resident, snapshot, attached)),
        held=held,
        bound=tuple(shape.bound for shape in shapes),
        alone=np.array(
            [x.rules == NO_RULES and x.volumes == NO_VOLUMES and not (x.ports or x.spread) for x in shapes], np.bool_
        ),
    )


def _shapes(
    pending: Sequence[Pod],
    held: dict[int, tuple[str, str]],
    volume_needs: dict[int, VolumeNeeds],
    terms: InterPod,
    bound: Sequence[tuple[int, ...]],
) -> tuple[Ints, list[_Shape], list[Pod]]:
    """The shape of each pod, -1 = held; the shapes; the first pod of each."""
    shape_of = np.full(len(pending), -1, np.int64)
    known: dict[_Shape, int] = {}
    representative: list[Pod] = []
    # Readers share equal needs, so identity answers for nearly all pods without hashing their terms.
    by_identity: dict[tuple[int, int, str, VolumeNeeds, tuple[int, ...]], int] = {}
    for row, pod in enumerate(pending):
        if row in held:
            continue
        needs = pod.needs
        rules = terms.rules_of(pod)
        volume = volume_needs.get(row, NO_VOLUMES)
        late = bound[row] if bound else ()
        quick = (id(needs), id(rules), pod.namespace if needs.spread else "", volume, late)
        found = by_identity.get(quick)
        if found is None:
            shape = _Shape(
                needs.request,
                needs.node_selector,
                needs.node_affinity,
                needs.preferred_nodes,
                needs.tolerations,
                needs.ports,
                volume,
                spread.constraints(pod),
                rules,
                late,
            )
            found = by_identity[quick] = known.setdefault(shape, len(known))
            if found == len(representative):
                representative.append(pod)
        shape_of[row] = found
    return shape_of, list(known), representative


def _evaluate(
    table: NodeTable,
    shapes: Sequence[_Shape],
    resident: Sequence[Pod],
    terms: InterPod,
    affinity: inter_pod.Affinity,
) -> tuple[dict[str, _Layer[Bools]], dict[str, _Layer[Ints]], spread.Spreading]:
    """Every predicate and soft score on every node, those without effect left out."""
    ports_at = _resident_ports(table, resident)
    in_use = _resident_claims(resident) if any(shape.volumes.single for shape in shapes) else frozenset()
    spreading = spread.Spreading(table)
    none, everywhere = np.zeros(len(table), np.bool_), np.ones(len(table), np.bool_)
    masks: dict[str, _Layer[Bools]] = defaultdict(_Layer)
    liked: dict[str, _Layer[Ints]] = defaultdict(_Layer)
    for s, shape in enumerate(shapes):
        wanted = shape.node_selector, shape.node_affinity
        off_affinity = masks["NodeAffinity"].add(wanted, partial(_off_affinity, table, shape))
        repelled = masks["Taints"].add(shape.tolerations, partial(table.repels, shape.tolerations))
        tolerant = any(tolerates(toleration, UNSCHEDULABLE_TAINT) for toleration in shape.tolerations)
        masks["Unschedulable"].add(tolerant, partial(_given, none if tolerant else table.cordoned))
        masks["NotReady"].add(None, partial(_given, table.not_ready))
        masks["Ports"].add(shape.ports, partial(_occupied, ports_at, shape, none))
        taken = everywhere if in_use.intersection(shape.volumes.single) else none
        masks["Volumes"].add((shape.volumes.reach, id(taken)), partial(_unreachable, table, shape, taken))
        closed = affinity.closed.get(s, none)
        masks[inter_pod.CODE].add(shape.rules, partial(_repelled, terms, shape, closed))
        if shape.spread:
            keyless = spreading.add(s, shape.spread, off_affinity, repelled)
            masks[spread.CODE].add(tuple(entry.spread.topology_key for entry in shape.spread), partial(_given, keyless))
        else:
            masks[spread.CODE].add(None, partial(_given, none))
        liked["nodeaffinity"].add(shape.preferred_nodes, partial(_preferred, table, shape))
        liked["tainttoleration"].add(shape.tolerations, partial(table.dislikes, shape.tolerations))
        liked["podaffinity"].add((shape.rules.preferred, shape.rules.matched), partial(terms.attraction, shape.rules))
    felt = {code: layer for code, layer in masks.items() if any(row.any() for row in layer.rows)}
    scored = {name: layer for name, layer in liked.items() if any((row != row[:1]).any() for row in layer.rows)}
    return felt, scored, spreading


def _kinds(n_nodes: int, masks: dict[str, _Layer[Bools]], soft: dict[str, _Layer[Ints]]) -> tuple[Ints, Ints]:
    """Kind of each node (N,), numbered by first appearance, and the first node of each kind (K,)."""
    parts = [np.packbits(np.stack(layer.rows), axis=0).T for layer in masks.values()]
    parts += [np.stack(layer.rows).astype(np.int64).T.copy().view(np.uint8) for layer in soft.values()]
    if not parts or not n_nodes:
        return np.zeros(n_nodes, np.int64), np.zeros(min(n_nodes, 1), np.int64)
    signature = np.ascontiguousarray(np.concatenate(parts, axis=1))
    whole = signature.view(np.dtype((np.void, signature.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse].astype(np.int64), first[order].astype(np.int64)


def _given(row: Bools) -> Bools:
    return row


def _off_affinity(table: NodeTable, shape: _Shape) -> Bools:
    """Nodes that fail the node selector or the required node affinity, (N,)."""
    chosen = tuple(Requirement(key, "In", (value,)) for key, value in shape.node_selector)
    return ~(table.where(chosen) & table.affine(shape.node_affinity))


def _repelled(terms: InterPod, shape: _Shape, closed: Bools) -> Bools:
    return terms.repelled(shape.rules) | closed


def _unreachable(table: NodeTable, shape: _Shape, out: Bools) -> Bools:
    """Nodes from which one of the claims cannot be reached, added to `out`."""
    for terms in shape.volumes.reach:
        out = out | ~table.affine(terms)
    return out


def _preferred(table: NodeTable, shape: _Shape) -> Ints:
    """Sum of the weights of matching preferred terms, (N,)."""
    out = np.zeros(len(table), np.int64)
    for weight, term in shape.preferred_nodes:
        out += weight * table.affine((term,))
    return out


def _resident_ports(table: NodeTable, resident: Iterable[Pod]) -> dict[HostPort, list[int]]:
    """Node rows by the host port that a running pod holds there."""
    out: dict[HostPort, list[int]] = defaultdict(list)
    for pod in resident:
        if pod.needs.ports and pod.node is not None:
            for port in pod.needs.ports:
                out[port].append(table.rows[pod.node])
    return out


def _occupied(ports_at: dict[HostPort, list[int]], shape: _Shape, none: Bools) -> Bools:
    """Nodes where a running pod holds a port that the shape asks for, (N,)."""
    out = none.copy()
    for held, rows in ports_at.items():
        if any(ports.conflict(held, port) for port in shape.ports):
            out[rows] = True
    return out


def _resident_claims(resident: Iterable[Pod]) -> frozenset[str]:
    return frozenset(f"{pod.namespace}/{name}" for pod in resident for name in pod.needs.volume_claims)


def _shared_claims(shapes: Sequence[_Shape], pods: Ints, n_nodes: int) -> Iterable[DomainRule]:
    """Claims that one pod at a time may use, and unbound claims whose users must meet on the node that binds them."""
    for name in ("single", "together"):
        users: dict[str, list[int]] = defaultdict(list)
        for s, shape in enumerate(shapes):
            for claim in getattr(shape.volumes, name):
                users[claim].append(s)
        for claim, rows in users.items():
            using = np.array(rows, np.int64)
            if pods[using].sum() <= 1:
                continue
            if name == "single":
                cluster = np.zeros(n_nodes, np.int64)
                yield AtMostOne(PLUGIN, f"Volumes: claim {claim} is {volumes.ONE_POD}", using, cluster, n_nodes == 1)
            else:
                each, nowhere = np.arange(n_nodes, dtype=np.int64), np.zeros(n_nodes, np.bool_)
                yield Require(PLUGIN, f"Volumes: claim {claim} will be on one node", using, using, each, nowhere, True)


def _attach_limits(
    table: NodeTable,
    shapes: Sequence[_Shape],
    pods: Ints,
    resident: Sequence[Pod],
    snapshot: Snapshot,
    attached: Volumes,
) -> Iterable[tuple[str, Ints, Ints, Ints]]:
    """Attach limits of the drivers that shapes ask for. A node without a limit has room for all that is asked."""
    drivers = sorted({driver for shape in shapes for driver, _ in shape.volumes.attached})
    if not drivers:
        return
    on_node: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for pod in resident:
        if pod.node is not None and pod.needs.volume_claims:
            for driver, volume in attached.on_node(pod):
                on_node[driver].add((table.rows[pod.node], volume))
    for driver in drivers:
        limits = [x for x in snapshot.attach_limits if x.driver == driver and x.node in table.rows]
        if not limits:
            continue
        asked = np.array([dict(shape.volumes.attached).get(driver, 0) for shape in shapes], np.int64)
        used = np.zeros(len(table), np.int64)
        for row, _ in on_node[driver]:
            used[row] += 1
        limit = used + int(asked @ pods)
        for entry in limits:
            limit[table.rows[entry.node]] = entry.count
        yield f"{volumes.ATTACH_PREFIX}{driver}", asked, limit - used, limit


def _share_of_best(raw: Ints, allowed: Bools) -> Ints:
    """100 for the highest sum among allowed kinds (DefaultNormalizeScore)."""
    best = np.where(allowed, raw, 0).max(axis=1, keepdims=True, initial=0)
    scaled: Ints = raw * MAX_SCORE // np.maximum(best, 1)
    return np.minimum(scaled, MAX_SCORE)


def _fewest_first(raw: Ints, allowed: Bools) -> Ints:
    """100 for none, 0 for the most among allowed kinds (DefaultNormalizeScore, reversed)."""
    return MAX_SCORE - _share_of_best(raw, allowed)


def _between_extremes(raw: Ints, allowed: Bools) -> Ints:
    """0 for the lowest and 100 for the highest sum among allowed kinds; 0 everywhere where all are equal."""
    low = np.where(allowed, raw, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    high = np.where(allowed, raw, np.iinfo(np.int64).min).max(axis=1, keepdims=True)
    span = np.where(high > low, high - low, 1)
    return np.where(allowed & (high > low), (raw - low) * MAX_SCORE // span, 0).astype(np.int64)


_SCALES: dict[str, Callable[[Ints, Bools], Ints]] = {
    "nodeaffinity": _share_of_best,
    "tainttoleration": _fewest_first,
    "podaffinity": _between_extremes,
}


def _distinct(rules: Iterable[DomainRule]) -> tuple[DomainRule, ...]:
    """The rules without those that another one already says: equal ones, and at-most-one of a subset."""
    rules = list(rules)
    singles: dict[bytes, list[frozenset[int]]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule, AtMostOne):
            singles[rule.domain.tobytes()].append(frozenset(rule.shapes.tolist()))
    seen: set[Hashable] = set()
    out: list[DomainRule] = []
    for rule in rules:
        said: Hashable = id(rule)
        if isinstance(rule, AtMostOne):
            mine, where = frozenset(rule.shapes.tolist()), rule.domain.tobytes()
            if any(mine < other for other in singles[where]):
                continue
            said = mine, where
        elif isinstance(rule, Exclude):
            said = frozenset((rule.left.tobytes(), rule.right.tobytes())), rule.domain.tobytes()
        if said not in seen:
            seen.add(said)
            out.append(rule)
    return tuple(out)

"""Nodes that refuse a pod only because of pods that may go: host ports and anti-affinity (formulation.md 8, C9).

Found by asking the predicates again without these pods, and then with each of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver_sched.cluster.objects import Node, Pod
from solver_sched.problem.arrays import Bools, Ints
from solver_sched.problem.placement import place
from solver_sched.snapshot import Snapshot

MOST_ASKED = 300
"""Pods that are asked about one by one; where more could be in the way, they count as staying."""


def blocked(
    snapshot: Snapshot, shapes: Sequence[Pod], on_node: Sequence[Pod], set_of: Mapping[str, int], row: Mapping[str, int]
) -> Ints:
    """(B, 3) shape, node, victim set: the shape may stand on the node when all sets named with the pair have gone.

    `shapes`: a pod of each. `set_of`: victim set of each pod that may go.
    """
    none = np.zeros((0, 3), np.int64)
    touchy = [pod for pod in shapes if pod.needs.anti_affinity or pod.needs.ports]
    going = [pod for pod in on_node if pod.key in set_of]
    if not touchy and not any(pod.needs.anti_affinity for pod in going):
        return none
    strict = _refused(snapshot.nodes, shapes, on_node, snapshot)
    staying = [pod for pod in on_node if pod.key not in set_of]
    cured = strict & ~_refused(snapshot.nodes, shapes, staying, snapshot)
    if not cured.any():
        return none
    asking, at = np.asarray(cured.any(axis=1)), np.asarray(cured.any(axis=0))
    rows = np.flatnonzero(asking).tolist()
    asked = [pod for pod in going if at[row[pod.node or ""]] or pod.needs.anti_affinity or touchy]
    if len(asked) > MOST_ASKED:
        return none
    nodes = [node for node, inside in zip(snapshot.nodes, at, strict=True) if inside]
    found: list[tuple[int, int, int]] = []
    for pod in asked:
        here = [*nodes, *(node for node in snapshot.nodes if node.name == pod.node and not at[row[node.name]])]
        refused = _refused(here, [shapes[s] for s in rows], [pod], snapshot)
        refused &= ~_refused(here, [shapes[s] for s in rows], [], snapshot)
        for s, n in np.argwhere(refused).tolist():
            shape, node = rows[s], row[here[n].name]
            if cured[shape, node]:
                found.append((shape, node, set_of[pod.key]))
    return np.array(sorted(set(found)), np.int64).reshape(-1, 3)


def _refused(nodes: Sequence[Node], shapes: Sequence[Pod], resident: Sequence[Pod], snapshot: Snapshot) -> Bools:
    """(S, N) pairs that a predicate refuses."""
    found = place(nodes, shapes, resident, snapshot)
    out = np.ones((len(shapes), len(nodes)), bool)
    inside = np.flatnonzero(found.shape_of >= 0)
    masks = np.zeros((len(found.representative), int(found.node_kind.max(initial=-1)) + 1), bool)
    for mask in found.masks.values():
        masks |= mask
    out[inside] = masks[found.shape_of[inside]][:, found.node_kind]
    return out

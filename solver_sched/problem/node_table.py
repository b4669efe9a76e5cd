"""The nodes of a snapshot as label columns, on which selectors are evaluated for all nodes at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver_sched.cluster.objects import Node, NodeTerm, Requirement, Selector, Taint, Toleration
from solver_sched.cluster.selectors import NODE_NAME_FIELD, disliked, holds, repelled
from solver_sched.problem.arrays import Bools, Ints


class NodeTable:
    """Columns are built on first use, so only labels that some rule reads cost anything.

    `rows` maps a node name to its row; not_ready, cordoned (N,). Returned arrays are shared: do not write into them.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.rows = {node.name: row for row, node in enumerate(nodes)}
        self._columns: dict[str, tuple[dict[str, int], Ints]] = {}
        self._names: Ints = np.arange(len(nodes), dtype=np.int64)
        self._vectors: dict[tuple[bool, Requirement], Bools] = {}
        taint_rows: dict[tuple[Taint, ...], int] = {}
        self._taints: Ints = np.array(
            [taint_rows.setdefault(node.taints, len(taint_rows)) for node in nodes], dtype=np.int64
        )
        self._taint_sets = tuple(taint_rows)
        self.not_ready: Bools = np.array([not node.ready for node in nodes], np.bool_)
        self.cordoned: Bools = np.array([node.unschedulable for node in nodes], np.bool_)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def remembered(self) -> int:
        """Columns and selectors that are kept."""
        return len(self._columns) + len(self._vectors)

    def column(self, key: str) -> tuple[dict[str, int], Ints]:
        """The codes of a label's values and the code on each node, (N,), -1 = the label is absent."""
        if key not in self._columns:
            codes: dict[str, int] = {}
            values = (node.labels.get(key) for node in self.nodes)
            column = [-1 if value is None else codes.setdefault(value, len(codes)) for value in values]
            self._columns[key] = codes, np.array(column, dtype=np.int64)
        return self._columns[key]

    def domain(self, topology_key: str) -> Ints:
        """Topology domain of each node, (N,), -1 = the node lacks the key."""
        return self.column(topology_key)[1]

    def one_each(self, topology_key: str) -> bool:
        """Whether every node is a domain of its own (a node without the key is in none, so then it is False)."""
        codes, column = self.column(topology_key)
        return len(codes) == len(column) and bool((column >= 0).all())

    def in_domains_of(self, topology_key: str, rows: Ints | list[int]) -> Bools:
        """Nodes that share a domain with one of the nodes `rows`, (N,)."""
        domain = self.domain(topology_key)
        if not len(rows):
            return np.zeros(len(domain), np.bool_)
        hit = np.zeros(domain.max(initial=-1) + 2, np.bool_)
        hit[domain[rows]] = True
        hit[-1] = False  # code -1 reads and writes the last cell: nodes without the key share no domain
        return hit[domain]

    def pods_in_domain(self, topology_key: str, rows: Ints | list[int]) -> Ints:
        """How many of the pods on nodes `rows` (one entry per pod) stand in each node's domain, (N,)."""
        domain = self.domain(topology_key)
        if not len(rows):
            return np.zeros(len(domain), np.int64)
        count = np.bincount(domain[rows] + 1, minlength=domain.max(initial=-1) + 2)
        count[0] = 0
        return count[domain + 1].astype(np.int64)

    def where(self, selector: Selector, field: bool = False) -> Bools:
        """Nodes on which all requirements hold, (N,); `field` = the keys are fields, not labels."""
        out = np.ones(len(self), np.bool_)
        for requirement in selector:
            out &= self._holds(requirement, field)
        return out

    def affine(self, terms: tuple[NodeTerm, ...] | None) -> Bools:
        """Nodes that one of the terms matches, (N,); None = all."""
        if terms is None:
            return np.ones(len(self), np.bool_)
        out = np.zeros(len(self), np.bool_)
        for term in terms:
            if term.expressions or term.fields:
                out |= self.where(term.expressions) & self.where(term.fields, field=True)
        return out

    def repels(self, tolerations: tuple[Toleration, ...]) -> Bools:
        """Nodes whose NoSchedule or NoExecute taints are not all tolerated, (N,)."""
        by_set = np.array([repelled(tolerations, taints) for taints in self._taint_sets], np.bool_)
        return by_set[self._taints]

    def dislikes(self, tolerations: tuple[Toleration, ...]) -> Ints:
        """PreferNoSchedule taints of each node that are not tolerated, (N,)."""
        by_set = np.array([disliked(tolerations, taints) for taints in self._taint_sets], np.int64)
        return by_set[self._taints]

    def _holds(self, requirement: Requirement, field: bool) -> Bools:
        vector = self._vectors.get((field, requirement))
        if vector is None:
            vector = self._vectors[field, requirement] = self._evaluate(requirement, field)
        return vector

    def _evaluate(self, requirement: Requirement, field: bool) -> Bools:
        if field and requirement.key != NODE_NAME_FIELD:
            return np.full(len(self), holds(requirement, None), np.bool_)  # the API knows no other field
        codes, column = (self.rows, self._names) if field else self.column(requirement.key)
        if requirement.operator in ("In", "NotIn"):
            # By code, not by value: thousands of pods may each name one of thousands of nodes.
            named = np.zeros(len(codes) + 1, np.bool_)
            named[[codes[value] for value in requirement.values if value in codes]] = True
            return named[column] if requirement.operator == "In" else ~named[column]
        by_code = np.array([holds(requirement, value) for value in codes] + [holds(requirement, None)], np.bool_)
        return by_code[column]

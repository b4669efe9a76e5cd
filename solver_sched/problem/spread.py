"""Topology spread: pods that a constraint counts differ between domains by at most its `maxSkew`.

PodTopologySpread of kube-scheduler (KEP-895; minDomains KEP-3022; node inclusion policies KEP-3094). A node is eligible
when it has the keys of all hard constraints of the pod and passes the policies; pods elsewhere, of other namespaces or
being deleted are not counted. `ScheduleAnyway` is a wish and not modelled here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Pod, Spread
from solver_sched.problem.arrays import Bools, Ints, SpreadRule
from solver_sched.problem.matching import Matcher
from solver_sched.problem.node_table import NodeTable

CODE = "TopologySpread"
PLUGIN = "predicates"


class Constraint(NamedTuple):
    """A hard constraint of a pod in a namespace, which decides whose pods are counted."""

    namespace: str
    spread: Spread

    @property
    def matcher(self) -> Matcher:
        return Matcher((self.namespace,), None, self.spread.selector)


def constraints(pod: Pod) -> tuple[Constraint, ...]:
    """The hard constraints of a pod."""
    return tuple(dict.fromkeys(Constraint(pod.namespace, spread) for spread in pod.needs.spread if spread.hard))


class Spreading:
    """Rules of the constraints, equal ones merged: shape by shape with `add`, then read `rules`."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._rules: dict[tuple[Matcher, str, int, int, bytes], list[int]] = defaultdict(list)

    def add(self, shape: int, wanted: Sequence[Constraint], off_affinity: Bools, repelled: Bools) -> Bools:
        """Nodes closed to the shape because they lack a key, (N,).

        `off_affinity`, `repelled` (N,): nodes that fail the shape's own node affinity, and its tolerations.
        """
        keyed = np.ones(len(self.table), np.bool_)
        for _, spread in wanted:
            keyed &= self.table.domain(spread.topology_key) >= 0
        for constraint in wanted:
            spread = constraint.spread
            eligible = keyed.copy()
            if spread.honor_node_affinity:
                eligible &= ~off_affinity
            if spread.honor_node_taints:
                eligible &= ~repelled
            key = (constraint.matcher, spread.topology_key, spread.max_skew, spread.min_domains, eligible.tobytes())
            self._rules[key].append(shape)
        return ~keyed

    def rules(
        self, counted: Mapping[Matcher, list[int]], running: Callable[[Matcher], Ints], pods: Ints
    ) -> list[SpreadRule]:
        """Rules that can bind. `counted`: matcher -> shapes it picks; `running`: matcher -> running pods that it picks
        per node, (N,); `pods` (S,): pending pods per shape.
        """
        out = []
        for (matcher, topology_key, max_skew, min_domains, eligible_bytes), shapes in self._rules.items():
            eligible = np.frombuffer(eligible_bytes, np.bool_)
            values, dense = np.unique(self.table.domain(topology_key)[eligible], return_inverse=True)
            domain = np.full(len(eligible), -1, np.int64)
            domain[eligible] = dense
            existing = np.zeros(len(values), np.int64)
            np.add.at(existing, dense, running(matcher)[eligible])
            picked = np.array(sorted(counted.get(matcher, ())), np.int64)
            fewest = int(existing.min()) if len(values) >= max(1, min_domains) else 0
            if existing.max(initial=0) + pods[picked].sum() - fewest <= max_skew:
                continue  # not even all of them in one domain would be too many
            source = f"{CODE}: {matcher} per {topology_key}"
            rows = np.array(shapes, np.int64)
            out.append(SpreadRule(PLUGIN, source, rows, picked, domain, existing, max_skew, min_domains))
        return out

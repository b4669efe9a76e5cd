"""A cluster seen from afar: nodes of a kind are one node, and victim sets that differ in their node alone are one set.

No level asks where a pod leaves, so what a plan is worth can be counted on the pooled problem exactly; and what fits
no pooled node fits no cluster, so its bounds hold (formulation.md 7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Plan, Problem
from solver_sched.rights import Rights


@dataclass(frozen=True, eq=False, slots=True)
class Pooled:
    """`node_of` (N,), `set_of` (V,): rows of the pooled problem by those of the given one."""

    problem: Problem
    rules: Rules
    rights: Rights
    node_of: Ints
    set_of: Ints

    def plan(self, plan: Plan) -> Plan:
        """The same plan on the pooled problem."""
        places = _summed(np.column_stack([plan.pod_set, self.node_of[plan.node]]), plan.count)
        going = _summed(np.column_stack([self.set_of[plan.victim], plan.cause]), plan.out)
        moving = _summed(np.column_stack([self.set_of[plan.moved], self.node_of[plan.to]]), plan.moves)
        return Plan(
            pod_set=places[:, 0],
            node=places[:, 1],
            count=places[:, 2],
            victim=going[:, 0],
            cause=going[:, 1],
            out=going[:, 2],
            moved=moving[:, 0],
            to=moving[:, 1],
            moves=moving[:, 2],
        )


def pooled(problem: Problem, rules: Rules, rights: Rights) -> Pooled:
    """What rules between pods, and pods that forbid others a node, say of single nodes is left out."""
    v = problem.victims
    kinds, node_of = np.unique(problem.node_kind, return_inverse=True)
    node_of = node_of.reshape(-1).astype(np.int64)
    told = np.column_stack(
        [
            v.holder,
            node_of[v.node],
            v.role,
            v.pod_priority,
            v.minutes,
            v.shape,
            rules.victim_value,
            rules.spared,
            rights.preempt,
            rights.reclaim,
            rights.open,
            rights.moves,
            v.request,
            v.member,
        ]
    ).astype(np.int64)
    _, first, set_of = np.unique(told, axis=0, return_index=True, return_inverse=True)
    set_of = set_of.reshape(-1).astype(np.int64)

    def on_nodes(amounts: Ints) -> Ints:
        out = np.zeros((len(kinds), amounts.shape[1]), np.int64)
        np.add.at(out, node_of, amounts)
        return out

    free = on_nodes(np.maximum(problem.node_free, 0))
    victims = replace(
        v,
        holder=v.holder[first],
        node=node_of[v.node[first]],
        role=v.role[first],
        count=np.bincount(set_of, weights=v.count, minlength=len(first)).astype(np.int64),
        pod_priority=v.pod_priority[first],
        seconds=v.seconds[first],
        cooldown=v.cooldown[first],
        minutes=v.minutes[first],
        system=v.system[first],
        request=v.request[first],
        shape=v.shape[first],
        member=v.member[first],
        blocks=v.blocks[:0],
    )
    return Pooled(
        replace(
            problem,
            node_alloc=on_nodes(problem.node_alloc),
            node_free=free,
            node_releasing=on_nodes(problem.node_releasing),
            node_kind=kinds.astype(np.int64),
            node_class=np.arange(len(kinds)),
            class_size=np.ones(len(kinds), np.int64),
            class_kind=kinds.astype(np.int64),
            class_free=free,
            domain_rules=(),
            victims=victims,
        ),
        replace(rules, domain_rules=(), victim_value=rules.victim_value[first], spared=rules.spared[first]),
        replace(
            rights,
            preempt=rights.preempt[first],
            reclaim=rights.reclaim[first],
            open=rights.open[first],
            moves=rights.moves[first],
        ),
        node_of,
        set_of,
    )


def _summed(keys: Ints, counts: Ints) -> Ints:
    """Rows of equal keys as one, with the sum of their counts in a last column."""
    rows, of = np.unique(keys.reshape(-1, 2), axis=0, return_inverse=True)
    total = np.bincount(of.reshape(-1), weights=counts, minlength=len(rows)).astype(np.int64)
    return np.column_stack([rows, total]).astype(np.int64)

"""Placed pods that wait for room which is still being freed: they are nominated and not bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from solver_sched.explain.amounts import names
from solver_sched.freed import bound_now, moved_for, served
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Index, Plan, Problem


class Waiting:
    """`per_set` (T,): pods of each set that wait; `pods`: job -> how many."""

    def __init__(self, problem: Problem, index: Index, rules: Rules, plan: Plan) -> None:
        self.problem, self.index = problem, index
        later = plan.count - bound_now(problem, rules, plan)
        self.per_set: list[int] = (
            np.bincount(plan.pod_set, weights=later, minlength=len(problem.set_job)).astype(np.int64).tolist()
        )
        self.pods: dict[int, int] = defaultdict(int)
        self._nodes: dict[int, dict[int, int]] = defaultdict(dict)
        for t, n, pods in zip(plan.pod_set.tolist(), plan.node.tolist(), later.tolist(), strict=True):
            if pods:
                j = int(problem.set_job[t])
                self.pods[j] += pods
                self._nodes[j][n] = self._nodes[j].get(n, 0) + pods
        v = problem.victims
        self._served: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._left: dict[int, set[int]] = defaultdict(set)
        leaving = [*plan.victim.tolist(), *plan.moved.tolist()]
        causes = [*served(problem, rules, plan).tolist(), *moved_for(problem, rules, plan).tolist()]
        for s, j in zip(leaving, causes, strict=True):
            self._served[j][int(v.holder[s])].add(int(v.node[s]))
            self._left[int(v.node[s])].add(int(v.holder[s]))

    def clause(self, j: int) -> str:
        """`2 pods wait for room on n1 that ns/v gives up`."""
        nodes, pods = self._nodes[j], self.pods[j]
        givers = self._givers(j)
        where = f"on {names([self.index.nodes[n] for n in sorted(nodes)])}"
        given = {n for on in self._served[j].values() for n in on} if j in self._served else set(nodes)
        if givers and not given & set(nodes):
            # a ceiling is short, not a node
            where = f"in queue {self.index.queues[int(self.problem.job_queue[j])]}"
        by = f"{names(givers)} {'gives' if len(givers) == 1 else 'give'} up" if givers else "terminating pods give back"
        return f"{pods} pod{'' if pods == 1 else 's'} wait{'s' if pods == 1 else ''} for room {where} that {by}"

    def detail(self, j: int) -> Mapping[str, Any]:
        """`nominated`: pods by node; `givenUpBy`: groups that make room, none if it was on its way before."""
        nodes = sorted(self._nodes[j].items())
        return {
            "nominated": [{"node": self.index.nodes[n], "pods": pods} for n, pods in nodes],
            "givenUpBy": self._givers(j),
        }

    def _givers(self, j: int) -> list[str]:
        holders = set(self._served[j]) if j in self._served else {h for n in self._nodes[j] for h in self._left[n]}
        return [self.index.holders[h] for h in sorted(holders)]

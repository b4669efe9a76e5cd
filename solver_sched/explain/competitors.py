"""Who was placed this cycle, on nodes and in resources that a waiting group could have used."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from solver_sched.explain.room import open_kinds
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Plan, Problem


class Competitors:
    """The jobs that the plan places, highest rank first, then largest value. `pods` (J,): placed pods."""

    def __init__(self, problem: Problem, rules: Rules, plan: Plan) -> None:
        self.problem, self.rules = problem, rules
        jobs = len(problem.job_min)
        job = problem.set_job[plan.pod_set]
        self.pods = np.bincount(job, weights=plan.count, minlength=jobs).astype(np.int64)
        self._order = np.lexsort((np.arange(jobs), -rules.start_value, rules.rank))
        shape, kind = problem.set_shape[plan.pod_set], problem.node_kind[plan.node]
        rows = np.unique(np.column_stack([job, shape, kind]), axis=0) if len(job) else np.zeros((0, 3), np.int64)
        self._job, self._shape, self._kind = rows.T
        self._known: dict[tuple[bytes, bytes], Ints] = {}

    def on_nodes_of(self, shapes: Iterable[int], resources: Ints) -> Ints:
        """Those with a pod that holds one of the resources on a node that one of the shapes may use."""
        kinds = open_kinds(self.rules, shapes)
        key = (kinds.tobytes(), resources.tobytes())
        if key not in self._known:
            holds = self.problem.request[:, resources].max(axis=1) > 0
            self._known[key] = self._ordered(self._job[kinds[self._kind] & holds[self._shape]])
        return self._known[key]

    def of_shapes(self, shapes: Ints) -> Ints:
        """Those with a placed pod of one of the shapes."""
        return self._ordered(self._job[np.isin(self._shape, shapes)])

    def in_queue(self, q: int) -> Ints:
        """Those of a queue."""
        return self._ordered(np.flatnonzero((self.pods > 0) & (self.problem.job_queue == q)))

    def _ordered(self, jobs: Ints) -> Ints:
        there = np.zeros(len(self._order), bool)
        there[jobs] = True
        return self._order[there[self._order]]

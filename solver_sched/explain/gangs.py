"""What each job still wants: its pod sets, the pods that would make up its minimum, and their request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from solver_sched.explain.room import Part, Want
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Problem


class Gangs:
    """Columns of the pod sets as plain lists. `sets`: job -> its pod sets in task order; `roles`: job -> roles that
    still lack members. `eligible` (S,): nodes that a shape may use.
    """

    def __init__(self, problem: Problem, rules: Rules, eligible: Sequence[int]) -> None:
        self.problem, self.rules, self.eligible = problem, rules, eligible
        self.count: list[int] = problem.set_count.tolist()
        self.shape: list[int] = problem.set_shape.tolist()
        self.role: list[int] = problem.set_role.tolist()
        self.size: list[float] = (problem.request / np.maximum(problem.total, 1)).max(axis=1, initial=0.0).tolist()
        self.sets: dict[int, list[int]] = defaultdict(list)
        for t, j in enumerate(problem.set_job.tolist()):
            self.sets[j].append(t)
        self.roles: dict[int, list[int]] = defaultdict(list)
        for o in np.flatnonzero(rules.role_need).tolist():
            self.roles[int(problem.role_job[o])].append(o)

    def needed(self, j: int) -> dict[int, int]:
        """Pod set -> pods of the minimum that asks least: the roles' needs, then the smallest pods that have a node."""
        sets, need = self.sets[j], int(self.rules.need[j])
        if len(sets) == 1:
            return {sets[0]: min(need, self.count[sets[0]])}
        order = sorted(sets, key=lambda t: (not self.eligible[self.shape[t]], self.size[self.shape[t]]))
        out = dict.fromkeys(sets, 0)
        for o in self.roles[j]:
            wanted = int(self.rules.role_need[o])
            for t in order:
                if self.role[t] == o:
                    take = min(wanted, self.count[t])
                    out[t], wanted, need = out[t] + take, wanted - take, need - take
        for t in order:
            take = min(max(0, need), self.count[t] - out[t])
            out[t], need = out[t] + take, need - take
        return out

    def usable(self, j: int) -> dict[int, int]:
        """Pod set -> pods, for the sets of the job that have an eligible node."""
        return {t: self.count[t] for t in self.sets[j] if self.eligible[self.shape[t]]}

    def in_role(self, counts: Mapping[int, int], o: int) -> int:
        """Pods of a role among `counts`."""
        return sum(count for t, count in counts.items() if self.role[t] == o)

    def minimum(self, j: int) -> Want:
        """The minimum, out of all pods of the job that have an eligible node."""
        roles = tuple((o, int(self.rules.role_need[o])) for o in self.roles[j])
        return self.want(self.usable(j), int(self.rules.need[j]), roles)

    def want(self, counts: Mapping[int, int], need: int, roles: tuple[tuple[int, int], ...] = ()) -> Want:
        """`need` pods out of `counts`, equal pods in one part."""
        bound = {o for o, _ in roles}
        parts: dict[tuple[int, int], int] = defaultdict(int)
        for t, count in counts.items():
            if count:
                parts[self.shape[t], self.role[t] if self.role[t] in bound else -1] += count
        return Want(tuple(Part(*key, count) for key, count in sorted(parts.items())), need, roles)

    def ask(self, needs: Mapping[int, int]) -> Ints:
        """(R,) request of so many pods of each set."""
        out = np.zeros(len(self.problem.total), np.int64)
        for t, pods in needs.items():
            out += pods * self.problem.request[self.shape[t]]
        return out

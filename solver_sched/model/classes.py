"""Jobs that the model cannot tell apart share one integer admission variable (formulation.md 7).

Members are ordered oldest first, so that k admitted of a class are its k oldest; equal in everything else, that loses
nothing at any level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from solver_sched.plugins.rules import Rules, Worth, growth_worth
from solver_sched.problem.arrays import Ints, Problem


@dataclass(frozen=True, eq=False, slots=True)
class JobClass:
    """`jobs` (M,): members, oldest first. `sets` (M, P): pod set rows of each member, position by position.

    shape, count (P,); role (P,): position in `role_need`, -1 = none; `role_need` per role; need, rank, queue,
    polite, promised as of every member; `held` (R,): what the ready pods of one member hold; `worth` (P,): growth
    pieces.
    """

    jobs: Ints
    sets: Ints
    shape: Ints
    count: Ints
    role: Ints
    role_need: tuple[int, ...]
    need: int
    rank: int
    queue: int
    held: Ints
    start_value: int
    worth: tuple[tuple[Worth, ...], ...]
    polite: bool
    promised: bool

    @property
    def size(self) -> int:
        return len(self.jobs)

    @property
    def rigid(self) -> bool:
        """Every pod belongs to the minimum: admission alone says what is placed."""
        return self.need == int(self.count.sum())


def job_classes(problem: Problem, rules: Rules, alone: Collection[int] = ()) -> list[JobClass]:
    """Classes of the jobs that can start or grow, in the order of their first member; `alone`: jobs (rows) that are a
    class of their own.
    """
    sets_of: dict[int, list[int]] = defaultdict(list)
    for t, (j, s) in enumerate(zip(problem.set_job.tolist(), problem.set_shape.tolist(), strict=True)):
        if rules.demand.shape_room[s] > 0:
            sets_of[j].append(t)
    roles_of: dict[int, list[int]] = defaultdict(list)
    for o, j in enumerate(problem.role_job.tolist()):
        roles_of[j].append(o)
    worth = growth_worth(problem, rules)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for j, sets in sets_of.items():
        if not rules.demand.starts[j]:
            continue
        local = {o: i for i, o in enumerate(roles_of[j])}
        key = (
            j if j in alone else -1,
            int(problem.job_queue[j]),
            bool(problem.job_polite[j]),
            bool(problem.job_promised[j]),
            int(rules.rank[j]),
            int(rules.need[j]),
            tuple(int(rules.role_need[o]) for o in roles_of[j]),
            problem.job_held[j].tobytes() if rules.need[j] and problem.job_ready[j] else b"",
            int(rules.start_value[j]),
            tuple(
                (
                    int(problem.set_shape[t]),
                    int(problem.set_count[t]),
                    local.get(int(problem.set_role[t]), -1),
                    worth[t],
                )
                for t in sets
            ),
        )
        groups[key].append(j)
    out = []
    for jobs in groups.values():
        jobs.sort(key=lambda j: (int(problem.job_created[j]), j))
        j, sets = jobs[0], sets_of[jobs[0]]
        local = {o: i for i, o in enumerate(roles_of[j])}
        out.append(
            JobClass(
                jobs=np.array(jobs, np.int64),
                sets=np.array([sets_of[job] for job in jobs], np.int64),
                shape=problem.set_shape[sets],
                count=problem.set_count[sets],
                role=np.array([local.get(o, -1) for o in problem.set_role[sets].tolist()], np.int64),
                role_need=tuple(int(rules.role_need[o]) for o in roles_of[j]),
                need=int(rules.need[j]),
                rank=int(rules.rank[j]),
                queue=int(problem.job_queue[j]),
                held=problem.job_held[j] if rules.need[j] else np.zeros_like(problem.total),
                start_value=int(rules.start_value[j]),
                worth=tuple(worth[t] for t in sets),
                polite=bool(problem.job_polite[j]),
                promised=bool(problem.job_promised[j]),
            )
        )
    return out

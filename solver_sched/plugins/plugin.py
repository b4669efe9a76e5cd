"""What a plugin may contribute, and the values that solver, greedy, verifier and explainer read from all of them.

A plugin is one scheduling rule in one file. It never sees a solver object: it gives arrays, and it states its rule
once more, in plain numpy, as `violations`, written without looking at them.
Test of what is a plugin: switched off, the plan could still be executed by the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from solver_sched.policy import PluginConf, Policy
from solver_sched.problem.arrays import Bools, DomainRule, Ints, Plan, Problem
from solver_sched.problem.entrance import Entrance, Voter
from solver_sched.problem.shares import Demand


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: who breaks it and by how much. Rows are problem rows, -1 = does not apply."""

    plugin: str
    message: str
    job: int = -1
    node: int = -1
    queue: int = -1
    holder: int = -1


@dataclass(frozen=True, eq=False, slots=True)
class QueueCeiling:
    """`room` (Q, R): what new pods of a queue may add, NO_LIMIT = no ceiling (C7). `guarantee` (Q, R), 0 = none: the
    sum over q of max(used_q + added_q, guarantee_q) stays within the cluster (C8). Both bind only in resources that
    the new pods ask for.
    """

    room: Ints
    guarantee: Ints


@dataclass(frozen=True, eq=False, slots=True)
class NodeScores:
    """Scores of placements, larger is better, integers.

    `static` (S, K): what does not depend on the node's load, summed with weights (preferred affinity, soft taints).
    `least`, `most`, `balanced`: weights of the load-dependent terms of nodeorder (0 = off).
    `binpack`: weight of the best-fit term (0 = off); `binpack_shares` (R,): weight of each resource in its mean.
    """

    static: Ints
    least: int = 0
    most: int = 0
    balanced: int = 0
    binpack: int = 0
    binpack_shares: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class Plugin:
    """One scheduling rule. A subclass sets `name` and overrides the hooks it needs; the defaults contribute nothing."""

    name: str = ""

    def __init__(self, conf: PluginConf, policy: Policy) -> None:
        self.conf = conf
        self.policy = policy

    def forbidden(self, problem: Problem) -> dict[str, Bools]:
        """Pairs that are never allowed: predicate code -> (S, K) bool."""
        return {}

    def applies(self, rule: DomainRule) -> bool:
        """Whether a rule of `problem.domain_rules` is this plugin's and is not switched off."""
        return rule.plugin == self.name

    def minimum(self, problem: Problem) -> Ints | None:
        """Members each job must reach to run, (J,); None = one."""
        return None

    def rank(self, problem: Problem) -> Ints | None:
        """A key per job, (J,), larger starts first. Keys of plugins combine in tier order."""
        return None

    def age_limit(self) -> int:
        """Seconds after which a job that names no limit ranks above its priority, 0 = the policy's `maxWait`."""
        return 0

    def voter(self, entrance: Entrance) -> Voter | None:
        """A say in which groups `enqueue` lets in, unless `enableJobEnqueued` is off."""
        return None

    def deserved(self, problem: Problem, wanted: Demand) -> Ints | None:
        """What each queue is entitled to, (Q, R) in problem units."""
        return None

    def ceiling(self, problem: Problem) -> QueueCeiling | None:
        """What each queue may never exceed with new pods."""
        return None

    def spares(self, problem: Problem) -> Bools | None:
        """Victim sets that this rule keeps from going, (V,)."""
        return None

    def starving(self) -> bool:
        """Whether a job whose minimum is missing may make others give way (`enableJobStarving`)."""
        return False

    def ends_gangs(self) -> bool | None:
        """Whether preempt may end a gang whole; None = no opinion. One that lets it is enough."""
        return None

    def takes_surplus_of_equals(self) -> bool:
        """Whether what runs above a minimum gives way to a gang of the same priority."""
        return False

    def reclaims(self) -> bool:
        """Whether shares give a right to take from other queues (`enableReclaimable`)."""
        return False

    def share_bands(self, problem: Problem) -> bool:
        """True: growth goes to the jobs of smallest dominant share first (drf)."""
        return False

    def scores(self, problem: Problem) -> NodeScores | None:
        """Node scores of this plugin."""
        return None

    def violations(self, problem: Problem, plan: Plan) -> Iterator[Violation]:
        """Every way in which `plan` breaks this plugin's rule. Solver-free and independent of the other hooks."""
        yield from ()

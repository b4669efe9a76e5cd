"""Enqueue: which waiting groups are let in, so that their pods may be made and placed (formulation.md 9).

Each group is asked for once and on its own; one that is refused never blocks the next
(Volcano pkg/scheduler/actions/enqueue/enqueue.go).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from solver_sched.actions.applicants import Facts, named
from solver_sched.cluster.objects import Queue
from solver_sched.plugins.rules import Rules, age_limit, derive
from solver_sched.policy import PluginConf, Policy
from solver_sched.problem.arrays import Bools, Index, Problem
from solver_sched.problem.census import Census
from solver_sched.problem.encode import encode
from solver_sched.problem.entrance import PERMIT, Applicant, Entrance, Refusal, Voter, of_nodes
from solver_sched.problem.reservations import Reservation
from solver_sched.snapshot import Snapshot

WAITING = ("", "Pending")
"""PodGroup phases at the entrance (Volcano pkg/scheduler/api/job_info.go, IsPending)."""
REFUSED = "NotAdmitted"


class NotAdmitted(NamedTuple):
    """Why a group stays outside, as `explain.Reason`."""

    code: str
    message: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entries:
    """`admitted`: groups let in, in the order in which they were asked for. `refused`: by a vote; or without pods, and
    with a reason to wait. A group with pods that must wait or cannot start is in neither: `explain` knows why.
    """

    admitted: tuple[str, ...] = ()
    refused: Mapping[str, NotAdmitted] = field(default_factory=dict)


def posed(
    snapshot: Snapshot,
    policy: Policy,
    refused: Mapping[str, NotAdmitted] = {},
    reserved: Sequence[Reservation] = (),
    census: Census | None = None,
    *,
    classes: bool = True,
) -> tuple[Problem, Index, Rules]:
    """The problem without the pods of refused groups, and its rules. `classes`: see `encode`."""
    held = {key: (why.code, why.message) for key, why in refused.items()}
    problem, index = encode(
        snapshot,
        held,
        reserved=reserved,
        evicting=policy.evicts,
        moving=policy.consolidates,
        grace=policy.solve.stale_grace_seconds,
        classes=classes,
        census=census,
    )
    return problem, index, derive(problem, policy)


def open_cycle(
    snapshot: Snapshot,
    policy: Policy,
    granted: Container[str] = (),
    reserved: Sequence[Reservation] = (),
    census: Census | None = None,
    *,
    classes: bool = True,
) -> tuple[Problem, Index, Rules, Entries]:
    """Encode, derive, enqueue; once more where pods of refused groups must not take part."""
    census = Census(snapshot) if census is None else census
    problem, index, rules = posed(snapshot, policy, reserved=reserved, census=census, classes=classes)
    entries = enqueue(census, policy, problem, index, rules, granted)
    if not entries.refused.keys().isdisjoint(index.jobs):
        problem, index, rules = posed(snapshot, policy, entries.refused, reserved, census, classes=classes)
    return problem, index, rules, entries


def enqueue(
    census: Census, policy: Policy, problem: Problem, index: Index, rules: Rules, granted: Container[str] = ()
) -> Entries:
    """Who is let in; nobody where `enqueue` is not listed: then a waiting group counts as if it were in.

    `granted`: groups that are let in whatever the voters say.
    """
    snapshot = census.snapshot
    if not policy.runs("enqueue") or all(group.phase not in WAITING for group in snapshot.groups):
        return Entries()
    facts = Facts(census, policy, problem, index, rules)
    hopeless = {index.jobs[j] for j in np.flatnonzero(_hopeless(problem, policy, rules)).tolist()}
    refused: dict[str, NotAdmitted] = {}
    asking: list[Applicant] = []
    inside: list[Applicant] = []
    for group in snapshot.groups:
        if group.phase not in WAITING and not group.min_resources:
            continue
        key = group.key
        must_wait = key in index.held and key not in facts.row
        if group.phase not in WAITING:
            if key in facts.row and key not in hopeless:
                inside.append(facts.insider(group))
        elif must_wait and not facts.has_pods(key):
            refused[key] = NotAdmitted(*index.held[key], {"held": True})
        elif not must_wait and facts.ours(group) and (key not in hopeless or key in granted):
            asking.append(facts.applicant(group))
    tiers = _voters(policy, rules, facts.entrance(inside))
    turns = _Turns(snapshot, policy, problem, index, rules, asking)
    admitted: list[str] = []
    for applicant in turns:
        asked = applicant.minimum is not None and applicant.key not in granted
        against = _vote(tiers, applicant) if asked else None
        if against is not None:
            refused[applicant.key] = against
            continue
        admitted.append(applicant.key)
        turns.promise(applicant)
        for _, voter in (entry for tier in tiers for entry in tier):
            voter.admitted(applicant)
    return Entries(tuple(admitted), refused)


# Votes

Tiers = Sequence[Sequence[tuple[str, Voter]]]


def _voters(policy: Policy, rules: Rules, entrance: Entrance) -> Tiers:
    """Plugin name and voter, tier by tier."""
    plugins = {plugin.name: plugin for plugin in rules.plugins}
    return [
        [
            (conf.name, voter)
            for conf in tier
            if conf.name in plugins and _may_vote(conf) and (voter := plugins[conf.name].voter(entrance)) is not None
        ]
        for tier in policy.tiers
    ]


def _may_vote(conf: PluginConf) -> bool:
    """Volcano's files say `enableJobEnqueued`; the callback itself is called JobEnqueueable."""
    return conf.on("jobEnqueued") and conf.on("jobEnqueueable")


def _vote(tiers: Tiers, group: Applicant) -> NotAdmitted | None:
    """The first vote against, unless an earlier tier voted for.

    Volcano pkg/scheduler/framework/session_plugins.go, JobEnqueueable.
    """
    for tier in tiers:
        permitted = False
        for name, voter in tier:
            vote = voter.vote(group)
            if isinstance(vote, Refusal):
                return NotAdmitted(REFUSED, f"{name}: {vote.clause}", {"held": True, "voter": name, **vote.detail})
            permitted |= vote == PERMIT
        if permitted:
            break
    return None


def _hopeless(problem: Problem, policy: Policy, rules: Rules) -> Bools:
    """(J,) jobs whose members are all there and could not start on the empty cluster.

    Asked only where `predicates` is on, the cluster has nodes, and `allocate` places pods at all. Of a job that lacks
    members nothing is known: its controller may make them once it is in.
    """
    jobs = len(problem.job_min)
    if not (policy.on("predicates", "predicate") and policy.runs("allocate") and len(problem.node_alloc)):
        return np.zeros(jobs, bool)
    members = np.bincount(problem.set_job, weights=problem.set_count, minlength=jobs).astype(np.int64)
    complete: Bools = members >= rules.need
    for o, j in enumerate(problem.role_job):
        complete[j] &= problem.set_count[problem.set_role == o].sum() >= rules.role_need[o]
    return complete & ~rules.demand.starts


# Order


class _Turns:
    """Groups in the order in which they are asked for: of the queue of highest priority, then smallest share, its
    first job by rank, then age. What was promised to a queue counts as used, so that queues take turns.
    """

    SCALE = 1 << 40

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        problem: Problem,
        index: Index,
        rules: Rules,
        asking: Sequence[Applicant],
    ) -> None:
        self._given = {queue.name: queue for queue in snapshot.queues}
        self._used = {name: Counter(named(index, problem.queue_used[q])) for q, name in enumerate(index.queues)}
        self._due = _due(problem, index, rules)
        by_priority = policy.on("priority", "jobOrder")
        limit = age_limit(policy, rules.plugins)

        def turn(group: Applicant) -> tuple[int, bool, int, str]:
            overdue = group.waited > (group.limit or limit)
            return -group.priority if by_priority else 0, not overdue, -group.waited, group.key

        self._lines: dict[str, list[Applicant]] = defaultdict(list)
        for group in sorted(asking, key=turn, reverse=True):
            self._lines[group.queue].append(group)

    def __iter__(self) -> Iterator[Applicant]:
        heap = [(*self._rank(name), name) for name in self._lines]
        heapq.heapify(heap)
        while heap:
            name = heapq.heappop(heap)[-1]
            yield self._lines[name].pop()
            if self._lines[name]:
                heapq.heappush(heap, (*self._rank(name), name))

    def promise(self, group: Applicant) -> None:
        self._used[group.queue].update(group.lacks)

    def _rank(self, name: str) -> tuple[int, int, int]:
        queue, due = self._given.get(name, Queue(name)), self._due[name]
        parts = (amount * self.SCALE // max(1, due[r]) for r, amount in self._used[name].items() if r in due)
        return -queue.priority, max(parts, default=0), queue.created


def _due(problem: Problem, index: Index, rules: Rules) -> dict[str, dict[str, int]]:
    """What a queue is measured by: its deserved, and by weight where nothing is deserved since no pod asks yet."""
    weights = max(1, int(problem.queue_weight.sum()))
    out = {}
    for q, name in enumerate(index.queues):
        weight = int(problem.queue_weight[q])
        deserved = [0] * len(problem.total) if rules.deserved is None else rules.deserved[q].tolist()
        out[name] = {
            resource: due or total * weight // weights
            for resource, due, total in zip(index.resources, deserved, problem.total.tolist(), strict=True)
            if of_nodes(resource)
        }
    return out

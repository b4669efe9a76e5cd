"""The snapshot in the terms of those who vote on admission: groups, queues, quotas and pools of nodes, exact."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from solver_sched.cluster.objects import PodGroup
from solver_sched.plugins.rules import Rules
from solver_sched.policy import Policy
from solver_sched.problem.arrays import Bools, Index, Ints, Problem
from solver_sched.problem.census import Census, placed
from solver_sched.problem.entrance import Applicant, Entrance, Pool, QueueStand, QuotaStand, of_nodes, of_pods
from solver_sched.problem.jobs import age_limit
from solver_sched.problem.shares import real_capability


class Facts:
    """One cycle's census and problem. `row`: row of each job that has one."""

    def __init__(self, census: Census, policy: Policy, problem: Problem, index: Index, rules: Rules) -> None:
        self.row = {key: j for j, key in enumerate(index.jobs)}
        self._snapshot, self._problem, self._index, self._rules = census.snapshot, problem, index, rules
        self._bunches = {bunch.job.key: bunch for bunch in census.bunches}
        self._elsewhere = {pod.group for pod in census.others.pods}
        self._pools = _Pools(problem, rules) if policy.runs("allocate") else None

    def has_pods(self, key: str) -> bool:
        members = self._bunches[key].asked
        return bool(members.present or members.done)

    def ours(self, group: PodGroup) -> bool:
        """Not a group whose pods all belong to other schedulers, or will when its Job makes them."""
        theirs = group.key in self._elsewhere or group.scheduler not in ("", *self._snapshot.scheduler_names)
        return not theirs or self.has_pods(group.key)

    def applicant(self, group: PodGroup) -> Applicant:
        """A group that waits."""
        members, j = self._bunches[group.key].asked, self.row.get(group.key, -1)
        held = members.held + members.done
        lacks = {
            name: missing
            for name, amount in (group.min_resources or {}).items()
            if of_nodes(name) and (missing := amount - held[name]) > 0
        }
        return Applicant(
            key=group.key,
            namespace=group.namespace,
            queue=group.queue,
            priority=int(self._problem.job_priority[j]) if j >= 0 else group.priority or 0,
            minimum=group.min_resources,
            held=held,
            present=members.present + members.done,
            lacks=lacks,
            reserves=lacks,
            # a group without a creation time was written by hand and is newer than all there are
            waited=max(0, self._snapshot.now - group.created) if group.created else -1,
            limit=age_limit(group),
            pool=-1 if self._pools is None or j < 0 else self._pools.of_job(j),
        )

    def insider(self, group: PodGroup) -> Applicant:
        """A group that was let in before. It reserves only what pods ask that exist: one whose pods were deleted keeps
        nobody out (volcano-sh/volcano#2264).
        """
        found, ready = self.applicant(group), self._bunches[group.key].asked.ready
        return replace(found, reserves={name: min(missing, ready[name]) for name, missing in found.lacks.items()})

    def entrance(self, inside: Iterable[Applicant]) -> Entrance:
        """What voters are told. After the last `applicant`: pools are found on the way."""
        problem, index = self._problem, self._index
        node_used = problem.node_alloc - problem.node_free
        return Entrance(
            total=named(index, problem.total),
            used=named(index, node_used.sum(axis=0)),
            pools=tuple(
                Pool(
                    named(index, problem.node_alloc[nodes].sum(axis=0)),
                    named(index, node_used[nodes].sum(axis=0)),
                )
                for nodes in (self._pools.nodes if self._pools is not None else ())
            ),
            queues=self._queues(),
            quotas=self._quotas(),
            inside=tuple(inside),
        )

    def _queues(self) -> dict[str, QueueStand]:
        """A group that names no minimum could give up all it holds (Volcano pkg/scheduler/api/job_info.go,
        GetElasticResources).
        """
        most = real_capability(self._problem, self._rules.demand.avail)
        elastic: dict[str, Counter[str]] = defaultdict(Counter)
        for bunch in self._bunches.values():
            if bunch.job.group is not None:
                of_queue = elastic[bunch.job.group.queue]
                for name, amount in bunch.elastic.items():
                    of_queue[name] += amount
        return {
            name: QueueStand(
                named(self._index, most[q]), named(self._index, self._problem.queue_used[q]), elastic[name]
            )
            for q, name in enumerate(self._index.queues)
        }

    def _quotas(self) -> dict[str, tuple[QuotaStand, ...]]:
        """Of a quota that no controller has counted the running pods are the usage."""
        spaces = {quota.namespace for quota in self._snapshot.quotas}
        running: dict[str, Counter[str]] = defaultdict(Counter)
        existing: dict[str, Counter[str]] = defaultdict(Counter)
        for pod in self._snapshot.pods if spaces else ():
            if pod.namespace in spaces and not pod.finished:
                for name, amount in pod.needs.request:
                    existing[pod.namespace][name] += amount
                    running[pod.namespace][name] += amount * placed(pod)
        out: dict[str, tuple[QuotaStand, ...]] = defaultdict(tuple)
        for quota in self._snapshot.quotas:
            where, used = quota.namespace, quota.used
            charged = used is not None and all(used.get(n, 0) >= existing[where][of_pods(n)] for n in quota.hard)
            if used is None:
                used = {name: running[where][of_pods(name)] for name in quota.hard}
            out[where] += (QuotaStand(quota.name, quota.hard, used, charged),)
        return out


def named(index: Index, vector: Ints) -> dict[str, int]:
    """(R,) as resource -> amount."""
    return dict(zip(index.resources, vector.tolist(), strict=True))


class _Pools:
    """`nodes[p]` (N,): the nodes that the pending pods of some job may use, where these are not all."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.nodes: list[Bools] = []
        self._kind = problem.node_kind
        self._forbidden = rules.forbidden
        self._shapes: dict[int, set[int]] = defaultdict(set)
        for j, s in zip(problem.set_job.tolist(), problem.set_shape.tolist(), strict=True):
            self._shapes[j].add(s)
        self._row: dict[bytes, int] = {}

    def of_job(self, j: int) -> int:
        """Row of the job's pool, -1 = all nodes."""
        forbidden = np.logical_and.reduce(self._forbidden[sorted(self._shapes[j])], axis=0)
        name = forbidden.tobytes()
        if name not in self._row:
            self._row[name] = len(self.nodes) if forbidden.any() else -1
            if forbidden.any():
                self.nodes.append(~forbidden[self._kind])
        return self._row[name]

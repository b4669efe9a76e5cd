"""The problem of one cycle as integer arrays, which solver, greedy baseline, verifier and explainer read.

Axes, one letter each:

    R resources    N nodes    K static node kinds    C node classes
    S shapes       T pod sets J jobs                 O roles           Q queues    U running units

A *shape* is all that placement can tell about a pod: its request and everything a predicate reads. A *pod set* is the
pending pods of one job with one shape, role and pod priority. A *node class* is nodes that no rule and no pending
shape can tell apart. A *running unit* is the minimum of a running job, or one pod beyond it.
Names do not occur here; `Index` translates rows back and is read by `actions` and `explain` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

ATTACH_PREFIX = "attachable-volumes-"
RESERVED_PREFIX = "solver-sched.io/reserved-"
"""Columns of room that reservations leave (formulation.md C17): `<prefix><reservation>/<resource>`."""
NO_LIMIT = np.int64(2**62)
"""Capability of a resource that a queue does not limit."""


@dataclass(frozen=True, eq=False, slots=True)
class AtMostOne:
    """At most one pod of `shapes` in each domain (host ports; anti-affinity of pods that repel each other).

    `domain` (N,): domain of each node, -1 = the node lacks the topology key (then the rule does not bind there).
    `per_node`: every domain is one node, so a node class may span many domains.
    Domains that already hold such a pod are forbidden by the static mask.
    """

    plugin: str
    source: str
    shapes: Ints
    domain: Ints
    per_node: bool


@dataclass(frozen=True, eq=False, slots=True)
class Exclude:
    """No domain holds both a pod of `left` and a pod of `right` (anti-affinity between different shapes)."""

    plugin: str
    source: str
    left: Ints
    right: Ints
    domain: Ints


@dataclass(frozen=True, eq=False, slots=True)
class Require:
    """A pod of `shapes` needs a pod of `targets` in its domain (required inter-pod affinity).

    `present` (N,): the domain already holds a matching pod. Domain -1 is never allowed. Where no matching pod runs
    anywhere (`seed`) pods that match their own term may open one single domain, as kube-scheduler lets the first one.
    """

    plugin: str
    source: str
    shapes: Ints
    targets: Ints
    domain: Ints
    present: Bools
    seed: bool


@dataclass(frozen=True, eq=False, slots=True)
class SpreadRule:
    """Topology spread: for a domain that receives a pod of `shapes`, matching pods there minus the fewest in any
    eligible domain stay within `max_skew`.

    `counted`: the shapes whose pods match the selector. `domain` (N,): -1 = not eligible, never allowed.
    `existing` (number of domains,): matching pods that run there. `min_domains`: with fewer eligible domains than
    this, the fewest counts as 0.
    """

    plugin: str
    source: str
    shapes: Ints
    counted: Ints
    domain: Ints
    existing: Ints
    max_skew: int
    min_domains: int


DomainRule = AtMostOne | Exclude | Require | SpreadRule


@dataclass(frozen=True, eq=False, slots=True)
class Victims:
    """Running work that may have to make room (formulation.md 8). Axes: H holders, V victim sets, W roles, B budgets.

    A *holder* is a running job with a pod that may go. A *victim set* is running pods of one holder on one node that no
    rule can tell apart. Pods that never go (other schedulers', terminating, `preemptable: false`) are in no set.

    Holders
        queue, priority (H,). minimum: pods that must run while the job runs, minMember less the succeeded ones.
        running: pods that run, those that never go included. held, minimum_held (H, R): by all of them; by those of
        the canonical minimum. job: row in J of the group's pending pods, -1 = none. created (s).
        broken: running < minimum. stale: broken for longer than the grace period.
        unit_row: row in U of the minimum, -1 = none (minimum 0, broken). beyond_holder, beyond_unit, beyond_count
        (X,): the single units beyond it, rows in U; beyond_open: those of them that may go;
        beyond_alike: all running pods of the holder with that request.
    Roles whose minimum binds
        role_holder, role_min, role_running (W,).
    Victim sets
        holder, node, role (row in W, -1 = none), count, priority (of the pod), seconds (run so far, since the pod
        started; 2^40 if unknown), cooldown (s, of its own), minutes (lost with a pod, in powers of two). system: of
        kube-system or of a system priority class. (V,)
        request (V, R). shape: row in S where its pods may be placed again elsewhere, else -1 (formulation.md 11).
    Budgets
        allowed (B,): evictions left. member (V, B): the set is under the budget.
    blocks (.., 3): shape, node, set: the pair is forbidden only by sets that may go, and allowed when all named with it
        have gone. Such a node has a kind of its own.
    """

    queue: Ints
    priority: Ints
    minimum: Ints
    running: Ints
    held: Ints
    minimum_held: Ints
    job: Ints
    created: Ints
    broken: Bools
    stale: Bools
    unit_row: Ints
    beyond_holder: Ints
    beyond_unit: Ints
    beyond_count: Ints
    beyond_open: Ints
    beyond_alike: Ints
    role_holder: Ints
    role_min: Ints
    role_running: Ints
    holder: Ints
    node: Ints
    role: Ints
    count: Ints
    pod_priority: Ints
    seconds: Ints
    cooldown: Ints
    minutes: Ints
    system: Bools
    request: Ints
    shape: Ints
    allowed: Ints
    member: Bools
    blocks: Ints

    def of_holders(self, pods: Ints | Bools) -> Ints:
        """Sum per holder (H,) of a number per victim set (V,)."""
        return np.bincount(self.holder, weights=pods, minlength=len(self.queue)).astype(np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Problem:
    """Resources
        resources (R,): their names, which plugin arguments refer to (`binpack.resources.<name>`).
        total (R,): allocatable of the whole cluster. Units: `cluster.objects.Resources`. `pods` is row `pods_row`.
        grain (R,): greatest common divisor of all requests, >= 1; placing changes a sum only in multiples of it.
    Nodes
        node_alloc (N, R), node_free (N, R): exact; free may be negative on an over-full node. What terminating pods
        still hold counts as free: it is on its way; node_releasing (N, R) is that part.
        node_kind (N,): static kind. node_class (N,): class, -1 = fits no pending shape.
        class_size (C,), class_kind (C,), class_free (C, R): free of each node of the class, >= 0, cut down to what
        pending shapes can use; never more than the node really has.
    Shapes
        Those of pending pods come first, then those of running ones that may move.
        request (S, R). masks: predicate code -> (S, K) bool, True = forbidden. `shape_best_effort` (S,).
        soft: score name -> (S, K) int64, larger is better, 0..100 (preferred node affinity, PreferNoSchedule ...).
        domain_rules: rules that depend on where other pending pods go.
    Pod sets
        set_job, set_shape, set_role (-1 = none), set_count (pending pods), set_priority (pod priority).  All (T,).
        Ordered by job, then pod priority descending, then index and name: the task order.
    Jobs
        job_queue, job_priority, job_min (minMember), job_ready (pods that count already: bound, running, succeeded),
        job_created (s), job_age_limit (s, 0 = none: `sla-waiting-time`).                                All (J,).
        job_held (J, R): what the ready pods of the job hold. job_polite: a pending pod must
        not preempt; job_promised: a pending pod is nominated to a node; job_fresh: some of it runs,
        the newest for less than the grace period of broken gangs. (J,)
        role_job, role_min, role_ready (O,): `minTaskMember`, left out where its sum exceeds minMember.
    Queues
        queue_weight (Q,), queue_capability (Q, R) NO_LIMIT = none, queue_deserved (Q, R) -1 = not given,
        queue_guarantee (Q, R), queue_used (Q, R): by running pods.
        queue_priority (Q,) `spec.priority`, queue_reclaimable (Q,). foreign (R,): held by pods that belong to no queue.
    Running units
        unit_queue, unit_priority, unit_count: identical units; (U,). unit_request (U, R): one unit.
    victims: running work that may have to make room.
    now: s.
    """

    resources: tuple[str, ...]
    total: Ints
    grain: Ints
    pods_row: int
    node_alloc: Ints
    node_free: Ints
    node_releasing: Ints
    node_kind: Ints
    node_class: Ints
    class_size: Ints
    class_kind: Ints
    class_free: Ints
    request: Ints
    shape_best_effort: Bools
    masks: Mapping[str, Bools]
    soft: Mapping[str, Ints]
    domain_rules: tuple[DomainRule, ...]
    set_job: Ints
    set_shape: Ints
    set_role: Ints
    set_count: Ints
    set_priority: Ints
    job_queue: Ints
    job_priority: Ints
    job_min: Ints
    job_ready: Ints
    job_created: Ints
    job_age_limit: Ints
    job_held: Ints
    job_polite: Bools
    job_promised: Bools
    job_fresh: Bools
    role_job: Ints
    role_min: Ints
    role_ready: Ints
    queue_weight: Ints
    queue_capability: Ints
    queue_deserved: Ints
    queue_guarantee: Ints
    queue_used: Ints
    queue_priority: Ints
    queue_reclaimable: Bools
    foreign: Ints
    unit_queue: Ints
    unit_priority: Ints
    unit_count: Ints
    unit_request: Ints
    victims: Victims
    now: int

    def after(self, plan: Plan) -> Problem:
        """The same problem when the victims of `plan` have gone and moved pods stand on their new nodes."""
        if not plan.frees:
            return self
        v, used = self.victims, self.queue_used.copy()
        queue = v.queue[v.holder[plan.victim]]
        np.subtract.at(used, queue, plan.out[:, None] * v.request[plan.victim])
        masks = dict(self.masks)
        pairs = self.unblocked(plan.evicted(self) == v.count)
        for code in self.masks if len(pairs) else ():
            masks[code] = masks[code].copy()
            masks[code][pairs[:, 0], self.node_kind[pairs[:, 1]]] = False
        freed = plan.freed(self)
        return replace(
            self,
            node_free=self.node_free + freed - plan.arriving(self),
            node_releasing=self.node_releasing + freed,
            queue_used=used,
            masks=masks,
        )

    def unblocked(self, gone: Bools) -> Ints:
        """(.., 2) shape and node of pairs of `Victims.blocks` that are allowed when the sets `gone` (V,) have gone."""
        blocks = self.victims.blocks
        pairs, of = np.unique(blocks[:, :2], axis=0, return_inverse=True)
        left = np.bincount(of.reshape(-1), weights=~gone[blocks[:, 2]], minlength=len(pairs))
        free: Ints = pairs[left == 0]
        return free

    @property
    def kinds(self) -> int:
        """K, the number of static node kinds."""
        return int(self.node_kind.max(initial=-1)) + 1

    @property
    def implied(self) -> Bools:
        """(C, R) rows of C17 that say no more than C1: nothing of the resource is kept on nodes of the class."""
        out = np.zeros(self.class_free.shape, bool)
        column = {name: r for r, name in enumerate(self.resources)}
        for name, r in column.items():
            if name.startswith(RESERVED_PREFIX):
                whole = self.class_free[:, column[name.removeprefix(RESERVED_PREFIX).partition("/")[2]]]
                out[:, r] = self.class_free[:, r] >= whole // self.grain[r] * self.grain[r]
        return out

    @property
    def slots(self) -> Bools:
        """(R,) resources that are places on a node and no share of a cluster: pod slots, volume attachments, room that
        reservations leave.
        """
        places = (ATTACH_PREFIX, RESERVED_PREFIX)
        return np.array([name == "pods" or name.startswith(places) for name in self.resources], bool)


@dataclass(frozen=True, slots=True)
class Member:
    """A job as the plan lists it, held ones and those with nothing pending included."""

    name: str
    queue: str
    phase: str
    minimum: int
    ready: int
    pending: int


@dataclass(frozen=True, eq=False, slots=True)
class Index:
    """Rows back to names. `set_pods[t]` are pod keys in task order, `victim_pods[v]` those of a victim set, last in
    task order first; `holders` group (or lone pod) keys; `held` maps group (or lone pod) key -> reason
    (code, message) for what must not be decided on now and so has no row; `nominated` maps pod key ->
    node row. `members`: every job there is, sorted by name.
    """

    resources: tuple[str, ...]
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    queues: tuple[str, ...]
    roles: tuple[str, ...]
    set_pods: tuple[tuple[str, ...], ...]
    holders: tuple[str, ...]
    victim_pods: tuple[tuple[str, ...], ...]
    held: Mapping[str, tuple[str, str]]
    nominated: Mapping[str, int]
    members: tuple[Member, ...]


PREEMPT, RECLAIM, MOVE = 0, 1, 2
"""Why a victim goes: `Plan.cause`."""
CAUSES = {"preempt": PREEMPT, "gangpreempt": PREEMPT, "reclaim": RECLAIM, "gangreclaim": RECLAIM}
"""By the name of the action."""


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Where pending pods go: `count[i]` pods of pod set `pod_set[i]` on node `node[i]`. All (P,), counts > 0.
    Who makes room: `out[i]` pods of victim set `victim[i]` because of `cause[i]`. All (E,), out > 0.
    Who moves: `moves[i]` pods of victim set `moved[i]` to node `to[i]` (formulation.md 11). All (M,), moves > 0.
    """

    pod_set: Ints
    node: Ints
    count: Ints
    victim: Ints = field(default_factory=_none)
    out: Ints = field(default_factory=_none)
    cause: Ints = field(default_factory=_none)
    moved: Ints = field(default_factory=_none)
    to: Ints = field(default_factory=_none)
    moves: Ints = field(default_factory=_none)

    @property
    def frees(self) -> bool:
        """Whether anybody leaves a node."""
        return bool(len(self.victim) or len(self.moved))

    def evicted(self, problem: Problem, cause: int | None = None) -> Ints:
        """Pods that go per victim set (V,), of one cause or of all."""
        chosen = slice(None) if cause is None else self.cause == cause
        size = len(problem.victims.holder)
        return np.bincount(self.victim[chosen], weights=self.out[chosen], minlength=size).astype(np.int64)

    def freed(self, problem: Problem) -> Ints:
        """Room that victims and moved pods leave (N, R)."""
        out = np.zeros_like(problem.node_free)
        v = problem.victims
        np.add.at(out, v.node[self.victim], self.out[:, None] * v.request[self.victim])
        np.add.at(out, v.node[self.moved], self.moves[:, None] * v.request[self.moved])
        return out

    def leaving(self, problem: Problem) -> Ints:
        """Pods that move per victim set (V,)."""
        return np.bincount(self.moved, weights=self.moves, minlength=len(problem.victims.holder)).astype(np.int64)

    def arriving(self, problem: Problem) -> Ints:
        """Room that moved pods take on their new nodes (N, R)."""
        out = np.zeros_like(problem.node_free)
        np.add.at(out, self.to, self.moves[:, None] * problem.request[problem.victims.shape[self.moved]])
        return out

    def placed(self, problem: Problem) -> Ints:
        """Pods placed per pod set (T,)."""
        return np.bincount(self.pod_set, weights=self.count, minlength=len(problem.set_job)).astype(np.int64)

    def of_jobs(self, problem: Problem) -> Ints:
        """Pods placed per job (J,)."""
        weights = self.placed(problem)
        return np.bincount(problem.set_job, weights=weights, minlength=len(problem.job_min)).astype(np.int64)

    def of_queues(self, problem: Problem) -> Ints:
        """What the placed pods of each queue take (Q, R)."""
        out = np.zeros_like(problem.queue_used)
        queue = problem.job_queue[problem.set_job[self.pod_set]]
        np.add.at(out, queue, self.count[:, None] * problem.request[problem.set_shape[self.pod_set]])
        return out

    def on_nodes(self, problem: Problem) -> Ints:
        """Pods placed per shape and node (S, N)."""
        out = np.zeros((len(problem.request), len(problem.node_alloc)), np.int64)
        np.add.at(out, (problem.set_shape[self.pod_set], self.node), self.count)
        return out


EMPTY_PLAN = Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))

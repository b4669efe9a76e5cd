"""Groups at the entrance: what those that wait would take, and what those let in before them have yet to take.

Amounts are exact integers by resource name, not rows: a group may name resources that no node has, quotas name others
still (`requests.cpu`, `count/pods`), and none of them may leave 64 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from solver_sched.cluster.objects import Resources
from solver_sched.quantity import format as format_quantity

QUOTA_PREFIXES = ("requests.", "limits.", "count/")
"""Names that only quotas know; Volcano's job controller writes them into `minResources` beside the plain ones."""

PERMIT: Literal["permit"] = "permit"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A vote against: one clause with the arithmetic, and the same as plain JSON types."""

    clause: str
    detail: Mapping[str, Any] = field(default_factory=dict)


Vote = Refusal | Literal["permit"] | None
"""None: the voter has no opinion."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A group that waits at the entrance, or one that was let in and has pods pending.

    `minimum`: its `minResources`, None where it names none. `held`: what its bound, running and succeeded pods hold or
    held, `present`: that and what its pending pods ask. `lacks`: what is missing of the minimum, in resources of nodes,
    none of it 0. `reserves`: how much of that counts once the group is in.
    `waited`, `limit`: seconds; waited -1 = it is still to be created, limit 0 = it names none. `pool`: row of
    `Entrance.pools`, -1 = any node will do.
    """

    key: str
    namespace: str
    queue: str
    priority: int
    minimum: Resources | None
    held: Resources
    present: Resources
    lacks: Resources
    reserves: Resources
    waited: int = 0
    limit: int = 0
    pool: int = -1


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes that some pending pods may use, where that is not all of them."""

    total: Resources
    used: Resources


@dataclass(frozen=True, slots=True)
class QueueStand:
    """`most`: what the queue may ever hold, its capability and what the guarantees of others leave; absent = nothing.

    `elastic`: what its groups hold beyond their minimums and could give up.
    """

    most: Resources
    used: Resources
    elastic: Resources


@dataclass(frozen=True, slots=True)
class QuotaStand:
    """A ResourceQuota. `charged`: `used` counts the pods that exist, the pending ones included, as an API server does;
    else only those that run.
    """

    name: str
    hard: Resources
    used: Resources
    charged: bool


@dataclass(frozen=True, slots=True)
class Entrance:
    """What voters are told. `total`, `used`: all nodes and the pods on them. `quotas`: by namespace.

    `inside`: the groups that were let in before this cycle and still have something to take.
    """

    total: Resources
    used: Resources
    pools: tuple[Pool, ...]
    queues: Mapping[str, QueueStand]
    quotas: Mapping[str, tuple[QuotaStand, ...]]
    inside: tuple[Applicant, ...]


class Voter(Protocol):
    """One plugin's say in one cycle. It is told of everybody who is let in, asked or not."""

    def vote(self, group: Applicant) -> Vote:
        """Whether the group may enter now."""

    def admitted(self, group: Applicant) -> None:
        """The group entered."""


class Reserve:
    """What groups that were let in have yet to take, in sum. Pods that may use only some nodes reserve at most what
    `most` says of their pool: a thousand of them for one node do not use up the whole cluster
    (volcano-sh/volcano#3670).
    """

    def __init__(self, most: Callable[[int], Resources]) -> None:
        self.sum: Counter[str] = Counter()
        self._most = most
        self._pools: dict[int, tuple[Resources, Counter[str]]] = {}

    def add(self, group: Applicant) -> None:
        if group.pool < 0:
            self.sum.update(group.reserves)
            return
        if group.pool not in self._pools:
            self._pools[group.pool] = (self._most(group.pool), Counter())
        most, asked = self._pools[group.pool]
        for name, amount in group.reserves.items():
            limit = max(0, most.get(name, 0))
            self.sum[name] += min(asked[name] + amount, limit) - min(asked[name], limit)
            asked[name] += amount


class QueueRoom:
    """Proportion's and capacity's vote: what the queue holds and has promised, without what its groups could give up,
    stays within what it may ever hold.

    Volcano pkg/scheduler/plugins/proportion/proportion.go and capacity/capacity.go, AddJobEnqueueableFn.
    """

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._reserves: dict[str, Reserve] = {}
        for group in entrance.inside:
            self.admitted(group)

    def vote(self, group: Applicant) -> Vote:
        stand, reserved = self._entrance.queues[group.queue], self._reserve(group.queue).sum
        for name, asks in group.lacks.items():
            used = stand.used.get(name, 0) - stand.elastic.get(name, 0)
            most = stand.most.get(name, 0)
            if used + reserved[name] + asks > most:
                return refusal(f"queue {group.queue} may hold", name, asks, most, used, reserved[name])
        return PERMIT

    def admitted(self, group: Applicant) -> None:
        self._reserve(group.queue).add(group)

    def _reserve(self, queue: str) -> Reserve:
        """Of a pool the queue can have no more than all of it, what it holds already included."""
        if queue not in self._reserves:
            pools, used = self._entrance.pools, self._entrance.queues[queue].used
            self._reserves[queue] = Reserve(
                lambda row: {name: amount - used.get(name, 0) for name, amount in pools[row].total.items()}
            )
        return self._reserves[queue]


def refusal(who_may: str, name: str, asks: int, most: int, used: int, reserved: int) -> Refusal:
    """`asks` does not fit beside `used` and `reserved` into `most`."""
    amounts = {"asks": asks, "most": most, "used": used, "reserved": reserved}
    text = {what: format_quantity(name, amount) for what, amount in amounts.items()}
    clause = f"asks {text['asks']} {name}; {who_may} {text['most']}, {text['used']} used, {text['reserved']} reserved"
    return Refusal(clause, {"resource": name, **text})


def of_nodes(name: str) -> bool:
    """Whether the entrance counts the resource: nodes offer it, and it is no mere slot.

    Volcano pkg/scheduler/api/resource_info.go, NewResource and LessEqualWithDimension, which leaves `pods` out.
    """
    if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return True
    return "/" in name and not name.startswith(QUOTA_PREFIXES)


def of_pods(name: str) -> str:
    """The resource of pods that a quota limits under this name: `cpu` and `requests.cpu` are one to it
    (kubernetes pkg/quota/v1/evaluator/core/pods.go, podComputeUsageHelper).
    """
    return "pods" if name == "count/pods" else name.removeprefix("requests.")

"""Every reason, told on the smallest cluster that gives it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.objects import (
    HostPort,
    Needs,
    Node,
    Pod,
    PodGroup,
    PodTerm,
    Queue,
    Requirement,
    Spread,
    Taint,
)
from solver_sched.cycle import Budget, run_cycle
from solver_sched.explain import FOUND, HELD, MOVED, Reason, explain
from solver_sched.explain.coupling import countable, most
from solver_sched.greedy import greedy_plan
from solver_sched.model.effort import LevelResult
from solver_sched.plugins.rules import derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import AtMostOne, DomainRule, Exclude, Plan, Require, SpreadRule
from solver_sched.problem.domain_rules import broken
from solver_sched.problem.encode import encode
from solver_sched.problem.reservations import Reservation
from solver_sched.snapshot import Snapshot

ROOT = Path(__file__).parents[1]
POLICY = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [{"plugins": [{"name": name} for name in ("priority", "gang", "predicates", "proportion", "drf")]}],
}
CAPACITY = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [{"plugins": [{"name": name} for name in ("priority", "gang", "predicates", "capacity", "drf")]}],
}
GIB = 2**30
HOST = "kubernetes.io/hostname"


def node(name: str, cpu: int, gpu: int = 0, taint: str = "", **labels: str) -> Node:
    """`cpu` in whole CPUs."""
    room = {"cpu": 1000 * cpu, "memory": 64 * GIB, "pods": 110, **({"nvidia.com/gpu": gpu} if gpu else {})}
    taints = (Taint(taint, "", "NoSchedule"),) if taint else ()
    return Node(name, room, labels={HOST: name, **labels}, taints=taints)


def asks(cpu: float, gpu: int = 0, **rules: Any) -> Needs:
    """`cpu` in CPUs."""
    amounts = {"cpu": int(1000 * cpu), "nvidia.com/gpu": gpu, "pods": 1}
    return Needs(request=tuple(sorted((name, x) for name, x in amounts.items() if x)), **rules)


def gang(name: str, count: int, needs: Needs, *, role: str = "", start: int = 0, **pod: Any) -> tuple[Pod, ...]:
    return tuple(
        Pod("ns", f"{name}-{role}{i}", needs, scheduler="solver-sched", group=f"ns/{name}", role=role, index=i, **pod)
        for i in range(start, start + count)
    )


def lone(name: str, needs: Needs, **pod: Any) -> Pod:
    return Pod("ns", name, needs, scheduler="solver-sched", **pod)


def group(name: str, minimum: int, **fields: Any) -> PodGroup:
    return PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", min_member=minimum, phase="Inqueue", **fields)


class Told:
    """A snapshot, a plan for it (greedy unless given), and the reasons."""

    def __init__(
        self,
        *objects: Any,
        policy: Any = POLICY,
        place: dict[str, str] | None = None,
        levels: tuple[LevelResult, ...] = (),
        reserved: tuple[Reservation, ...] = (),
    ) -> None:
        flat = [x for entry in objects for x in (entry if isinstance(entry, tuple) else (entry,))]

        def of(kind: type) -> tuple[Any, ...]:
            found = (x for x in flat if type(x) is kind)
            return tuple(sorted(found, key=lambda x: (getattr(x, "namespace", ""), x.name)))

        self.snapshot = Snapshot(nodes=of(Node), pods=of(Pod), groups=of(PodGroup), queues=of(Queue))
        self.problem, self.index = encode(self.snapshot, reserved=reserved)
        self.rules = derive(self.problem, load_policy(policy))
        self.plan = greedy_plan(self.problem, self.rules) if place is None else self._placed(place)
        self.reasons = explain(self.snapshot, self.problem, self.index, self.rules, self.plan, levels, reserved)

    def _placed(self, place: dict[str, str]) -> Plan:
        set_of = {pod: t for t, keys in enumerate(self.index.set_pods) for pod in keys}
        rows = [(set_of[f"ns/{pod}"], self.index.nodes.index(at), 1) for pod, at in place.items()]
        return Plan(*np.array(rows, np.int64).reshape(-1, 3).T)

    def __getitem__(self, name: str) -> Reason:
        return self.reasons[f"ns/{name}"]


def level(name: str, value: int, bound: int | None = None) -> LevelResult:
    return LevelResult(name, value, value if bound is None else bound, "OPTIMAL" if bound is None else "FEASIBLE")


# -- what waiting for room would not cure -------------------------------------------------------------------------


def test_fewer_members_than_the_minimum() -> None:
    told = Told(node("n1", 8), group("g", 4), gang("g", 3, asks(1)))
    assert told["g"].code == "GangIncomplete"
    assert told["g"].message == "3 of 4 members exist"


def test_a_member_that_is_gone_does_not_exist() -> None:
    """One runs, one is pending: 2 of 3."""
    told = Told(
        node("n1", 8),
        group("g", 3),
        gang("g", 1, asks(1), node="n1", phase="Running"),
        gang("g", 1, asks(1), start=1, phase="Failed"),
        gang("g", 1, asks(1), start=2),
    )
    assert (told["g"].code, told["g"].message) == ("GangIncomplete", "2 of 3 members exist")


def test_a_role_without_pods() -> None:
    """Three workers reach minMember 3, but servers: 0 < 1."""
    told = Told(
        node("n1", 8),
        group("g", 3, min_task_member={"server": 1, "worker": 2}),
        gang("g", 3, asks(1), role="worker"),
    )
    assert (told["g"].code, told["g"].message) == ("GangIncomplete", "role server: 0 of 1 members exist")


def test_a_policy_that_does_not_allocate() -> None:
    told = Told(node("n1", 8), lone("p", asks(1)), policy={**POLICY, "actions": "enqueue, backfill"})
    assert told["p"].code == "NoAction"
    assert told["p"].message == "only action allocate places pods with requests; the policy lists enqueue, backfill"


def test_a_policy_that_does_not_backfill() -> None:
    told = Told(node("n1", 8), lone("p", asks(0)), policy={**POLICY, "actions": "enqueue, allocate"})
    assert told["p"].code == "BackfillOff"
    assert "the policy lists enqueue, allocate" in told["p"].message


def test_no_node_passes() -> None:
    """n1 has the label and a taint, n2 a taint and no label, n3 no label: 2 fail the selector first, 1 the taint."""
    told = Told(
        node("n1", 8, taint="dedicated", disk="ssd"),
        node("n2", 8, taint="dedicated"),
        node("n3", 8),
        lone("p", asks(1, node_selector=(("disk", "ssd"),))),
    )
    assert told["p"].code == "Predicates"
    assert told["p"].message == "0 of 3 nodes eligible: 2 NodeAffinity, 1 Taints"
    (pods,) = told["p"].detail["podSets"]
    assert pods["removed"] == {"NodeAffinity": 2, "Taints": 1}
    assert pods["removedEach"] == {"NodeAffinity": 2, "Taints": 2}
    assert pods["nodesEligible"] == 0


def test_no_node_passes_for_one_role() -> None:
    told = Told(
        node("n1", 8),
        group("g", 2, min_task_member={"ps": 1, "worker": 1}),
        gang("g", 1, asks(1, node_selector=(("disk", "ssd"),)), role="ps"),
        gang("g", 2, asks(1), role="worker"),
    )
    assert told["g"].message == "role ps: 0 of 1 node eligible: 1 NodeAffinity"


def test_a_cluster_without_nodes() -> None:
    told = Told(lone("p", asks(1)))
    assert (told["p"].code, told["p"].message) == ("Resources", "the cluster has no nodes")


# -- quotas ---------------------------------------------------------------------------------------------------------


def test_a_queue_at_its_capability() -> None:
    """7 run and 2 start: 9 of 9; 2 more would be 11. The node has room for 16 - 9 = 7."""
    told = Told(
        node("n1", 16),
        Queue("q", capability={"cpu": 9000}),
        (group("old", 1, queue="q"), *gang("old", 1, asks(7), node="n1", phase="Running")),
        (group("a", 1, queue="q", priority=5), *gang("a", 1, asks(2))),
        (group("b", 1, queue="q", priority=1), *gang("b", 1, asks(2))),
    )
    assert told["b"].code == "QueueCapability"
    assert told["b"].message == "queue q: 9 of 9 cpu used, asks 2 more"
    assert [row["podGroup"] for row in told["b"].detail["displacedBy"]] == ["ns/a"]
    numbers = dict(told["b"].detail["queue"])
    assert numbers.pop("deserved")["cpu"] == "9"
    assert numbers == {
        "name": "q",
        "used": {"cpu": "9", "pods": "2"},
        "capability": {"cpu": "9"},
        "asks": {"cpu": "2", "pods": "1"},
    }


def test_a_gang_larger_than_the_capability() -> None:
    told = Told(node("n1", 8), Queue("q", capability={"cpu": 4000}), group("g", 5, queue="q"), gang("g", 5, asks(1)))
    assert (told["g"].code, told["g"].message) == ("QueueCapability", "queue q: 0 of 4 cpu used, asks 5 more")


def test_what_others_are_guaranteed() -> None:
    """10 CPU, 6 of them guaranteed to the idle queue vip: 4 are left, 5 asked."""
    told = Told(
        node("n1", 10),
        Queue("q"),
        Queue("vip", guarantee={"cpu": 6000}),
        group("g", 5, queue="q"),
        gang("g", 5, asks(1)),
        policy=CAPACITY,
    )
    assert told["g"].code == "QueueGuarantee"
    assert told["g"].message == "queue q asks 5 cpu more, 4 is left beside 6 guaranteed to other queues"


# -- what the cluster lacks -----------------------------------------------------------------------------------------


def test_less_room_than_asked() -> None:
    """330 GPUs on 41 nodes of 8 and one of 2; 64 pods of 8 ask 512; 41 fit. (In small: 2 nodes of 8 and one of 2.)"""
    told = Told(node("n1", 64, 8), node("n2", 64, 8), node("n3", 64, 2), group("g", 4), gang("g", 4, asks(1, 8)))
    assert told["g"].code == "Resources"
    # 4 x 8 = 32 > 8 + 8 + 2 = 18
    assert told["g"].message == (
        "needs 4 pods, at most 2 fit at once; nvidia.com/gpu is short: 32 asked, 18 free on 3 eligible nodes"
    )
    assert told["g"].detail["shortest"] == {
        "resource": "nvidia.com/gpu", "asked": "32", "free": "18", "largestNode": "8",
    }  # fmt: skip
    (pods,) = told["g"].detail["podSets"]
    assert (pods["fitsAlone"], pods["fitsNow"], pods["needs"], pods["count"]) == (2, 2, 4, 4)
    assert pods["request"] == {"cpu": "1", "nvidia.com/gpu": "8", "pods": "1"}


def test_room_that_running_pods_hold() -> None:
    """4 - 3 = 1 CPU free, on the one node of two without the taint."""
    told = Told(
        node("n1", 4),
        node("n2", 4, taint="x"),
        lone("old", asks(3), node="n1", phase="Running"),
        lone("p", asks(2)),
    )
    assert told["p"].message == ("needs 1 pod, none fits; cpu is short: 2 asked, 1 free on 1 eligible node of 2")


def test_a_pod_larger_than_every_node() -> None:
    told = Told(node("n1", 8), node("n2", 4), lone("monster", asks(100)))
    assert told["monster"].code == "Resources"
    assert told["monster"].message == "asks 100 cpu, the largest eligible node has 8"


def test_one_role_is_the_bottleneck() -> None:
    """Two masters ask 2 CPU; the only node labelled for them has 1."""
    told = Told(
        node("n1", 1, kind="master"),
        node("n2", 8),
        group("g", 3, min_task_member={"master": 2}),
        gang("g", 2, asks(1, node_selector=(("kind", "master"),)), role="master"),
        gang("g", 2, asks(1), role="worker"),
    )
    assert told["g"].message == (
        "role master: needs 2 pods, at most 1 fits at once; cpu is short: 2 asked, 1 free on 1 eligible node of 2"
    )


def test_room_in_pieces_too_small() -> None:
    """floor(8 / 5) = 1 per node, 2 in all; 3 x 5 = 15 <= 2 x 8 = 16."""
    told = Told(node("n1", 8), node("n2", 8), group("g", 3), gang("g", 3, asks(5)))
    assert told["g"].code == "Fragmentation"
    assert told["g"].message == (
        "needs 3 pods, at most 2 fit at once; 15 cpu asked, 16 free on 2 eligible nodes, at most 8 on one node"
    )


def test_several_shapes_in_pieces_too_small() -> None:
    """4 + 4 free; 3 + 3 + 2 asked: after 3 and 3 each node has 1 left for the pod of 2."""
    told = Told(node("n1", 4), node("n2", 4), group("g", 3), gang("g", 2, asks(3)), gang("g", 1, asks(2), role="x"))
    assert told["g"].code == "Fragmentation"
    assert told["g"].message == (
        "needs 3 pods, room for 2 was found; 8 cpu asked, 8 free on 2 eligible nodes, at most 4 on one node"
    )


# -- rules between pods ---------------------------------------------------------------------------------------------

SAME = (Requirement("app", "In", ("g",)),)
APART = PodTerm(HOST, SAME, ("ns",))


def test_members_that_repel_each_other() -> None:
    """One per node: 2 of 3, where resources alone would hold 16."""
    needs = asks(1, anti_affinity=(APART,))
    told = Told(node("n1", 8), node("n2", 8), group("g", 3), gang("g", 3, needs, labels={"app": "g"}))
    assert told["g"].code == "InterPodAffinity"
    assert told["g"].message.startswith("needs 3 pods, at most 2 fit at once, 16 without InterPodAffinity: ")


def test_a_gang_that_must_share_a_zone() -> None:
    """Zones of 2 and 2 CPU: three pods of 1 that need each other in one zone find room for two."""
    needs = asks(1, affinity=(PodTerm("zone", SAME, ("ns",)),))
    zones = node("n1", 2, zone="a"), node("n2", 2, zone="b")
    told = Told(zones, group("g", 3), gang("g", 3, needs, labels={"app": "g"}))
    assert told["g"].code == "InterPodAffinity"
    assert told["g"].message == ("needs 3 pods, at most 2 fit at once, 4 without InterPodAffinity: with app=g per zone")


def test_a_spread_that_one_full_zone_limits() -> None:
    """Zone b holds 1; with a skew of 1 zone a takes 2: 3 of 4, where resources alone would hold 9."""
    needs = asks(1, spread=(Spread("zone", 1, True, SAME),))
    zones = node("n1", 8, zone="a"), node("n2", 1, zone="b")
    told = Told(zones, group("g", 4), gang("g", 4, needs, labels={"app": "g"}))
    assert told["g"].code == "TopologySpread"
    assert told["g"].message == "needs 4 pods, at most 3 fit at once, 9 without TopologySpread: app=g per zone"


def test_a_host_port_taken_this_cycle() -> None:
    """Both listen on port 80 of the one node; the higher one is there."""
    needs = asks(1, ports=(HostPort("", "TCP", 80),))
    told = Told(node("n1", 8), lone("high", needs, priority=9), lone("low", needs, priority=1))
    assert told["low"].code == "DomainRule"
    assert told["low"].message == ("fits alone, kept away from ns/high by Ports: 0.0.0.0:80/TCP")
    assert told["low"].detail["displacedBy"][0]["podGroup"] == "ns/high"


# -- reservations -----------------------------------------------------------------------------------------------------


def kept(at: int, cpu: int) -> Reservation:
    """n1 is kept for ns/big; `cpu` CPUs of it are left to others."""
    return Reservation("ns/big", at, {"n1": 1}, {"n1": {"cpu": 1000 * cpu, "pods": 100}})


def test_kept_out_by_a_reservation() -> None:
    """8 cpu are free and 2 left beside the reservation: one pod of 3 is too many. It runs 60 s and 30 s are left."""
    told = Told(node("n1", 8), lone("p", asks(3), run_time=60), reserved=(kept(30, 2),))
    assert told["p"].code == "Reserved"
    assert told["p"].message == (
        "fits but for room that is kept for ns/big on n1, from 1970-01-01T00:00:30Z (in 30 s) on, and may run 60 s"
    )
    record = {"podGroup": "ns/big", "at": "1970-01-01T00:00:30Z", "nodes": ["n1"]}
    assert (told["p"].detail["reservation"], told["p"].detail["runTime"]) == (record, 60)


def test_kept_out_beside_the_plan() -> None:
    """Two of 2 cpu fit the node, one fits what the reservation leaves."""
    told = Told(node("n1", 8), lone("p1", asks(2)), lone("p2", asks(2)), reserved=(kept(30, 2),))
    assert list(told.reasons) == ["ns/p2"]
    assert told["p2"].code == "Reserved"
    assert told["p2"].message.endswith("may run for ever: its run time is not known")


def test_growth_kept_out_by_a_reservation() -> None:
    """One of two pods of 2 cpu fits what is left."""
    told = Told(node("n1", 8), group("g", 1), gang("g", 2, asks(2)), reserved=(kept(30, 2),))
    assert (told["g"].code, told["g"].message[:14]) == ("Reserved", "1 of 2 run; fi")


def test_what_is_short_anyway_is_not_blamed_on_a_reservation() -> None:
    """9 > 8 cpu, whatever is kept; and the resources are those of the node."""
    told = Told(node("n1", 4), node("n2", 4), group("g", 3), gang("g", 3, asks(3)), reserved=(kept(30, 0),))
    assert told["g"].code == "Resources"
    assert "solver-sched.io" not in json.dumps(told["g"].detail)


def test_a_node_kept_by_hand() -> None:
    told = Told(node("n1", 8), lone("p", asks(1)), reserved=(Reservation("ns/big", 0, {"n1": 0}, {"n1": {"pods": 0}}),))
    assert told["p"].message == "fits but for room that is kept for ns/big on n1 by hand"
    assert told["p"].detail["reservation"] == {"podGroup": "ns/big", "at": None, "nodes": ["n1"]}


# -- competition ----------------------------------------------------------------------------------------------------


def test_a_higher_gang_took_the_room() -> None:
    """1 + 4 > 4."""
    told = Told(
        node("n1", 4),
        (group("high", 1, priority=100), *gang("high", 1, asks(1))),
        (group("low", 4, priority=1), *gang("low", 4, asks(1))),
        levels=(level("start>=100", 1), level("start>=1", 1)),
        place={"high-0": "n1"},
    )
    assert told["low"].code == "Lost"
    assert told["low"].message == (
        "fits alone (4 of 4 pods, beside the plan 3), outranked by ns/high at level start>=100"
    )
    assert told["low"].detail["displacedBy"] == [
        {"podGroup": "ns/high", "queue": "default", "priority": 100, "pods": 1}
    ]
    assert told["low"].detail["level"]["name"] == "start>=100"
    (pods,) = told["low"].detail["podSets"]
    assert (pods["fitsAlone"], pods["fitsNow"]) == (4, 3)


def test_equals_that_are_worth_more() -> None:
    """5 + 5 = 10 > 6."""
    told = Told(
        node("n1", 10),
        (group("wide", 6), *gang("wide", 6, asks(1))),
        (group("a", 5), *gang("a", 5, asks(1))),
        (group("b", 5), *gang("b", 5, asks(1))),
        levels=(level("start>=0", 10),),
        place={**{f"a-{i}": "n1" for i in range(5)}, **{f"b-{i}": "n1" for i in range(5)}},
    )
    assert told["wide"].code == "Lost"
    assert told["wide"].message.endswith("passed over for ns/a, ns/b at level start>=0")


def test_a_greedy_plan_names_no_level() -> None:
    told = Told(node("n1", 1), lone("a", asks(1), priority=2), lone("b", asks(1), priority=1))
    assert told["b"].code == "Lost"
    assert told["b"].message.endswith("outranked by ns/a")
    assert "level" not in told["b"].detail


def test_a_queue_at_its_share() -> None:
    """Queues of weight 1 share 4 CPU, 2 each: a2 would bring qa to 4, b holds the 2 of qb. Priority does not help."""
    told = Told(
        node("n1", 4),
        Queue("qa"),
        Queue("qb"),
        (group("a1", 2, queue="qa", priority=9), *gang("a1", 2, asks(1))),
        (group("a2", 2, queue="qa", priority=8), *gang("a2", 2, asks(1))),
        (group("b", 2, queue="qb", priority=1), *gang("b", 2, asks(1))),
        place={"a1-0": "n1", "a1-1": "n1", "b-0": "n1", "b-1": "n1"},
    )
    assert told["a2"].code == "QueueShare"
    assert told["a2"].message == (
        "queue qa uses 2 of its share of 2 cpu, asks 2 more; "
        "fits alone (2 of 2 pods, beside the plan 0), but qb started ns/b within its share"
    )


def test_a_solver_that_stopped_at_a_gap() -> None:
    """Both fit; the plan places one of two and the level is open: (2 - 1) / 2 = 50 %."""
    told = Told(
        node("n1", 2),
        lone("a", asks(1)),
        lone("b", asks(1)),
        levels=(level("start>=0", 1, 2),),
        place={"a": "n1"},
    )
    assert told["b"].code == "Unsolved"
    assert told["b"].message == ("fits beside the plan, but level start>=0 stopped at a gap of 50 % (value 1, bound 2)")
    assert told["b"].detail["level"] == {
        "name": "start>=0", "value": 1, "bound": 2, "status": "FEASIBLE", "gap": 0.5,
    }  # fmt: skip


def test_a_lower_gang_in_the_room_of_a_higher_one_is_unsolved() -> None:
    """The higher one fits alone; only the lower one stands in its way, and the level was not closed."""
    told = Told(
        node("n1", 1),
        lone("high", asks(1), priority=9),
        lone("low", asks(1), priority=1),
        levels=(LevelResult("start>=9", 0, None, "UNKNOWN"),),
        place={"low": "n1"},
    )
    assert told["high"].code == "Unsolved"
    assert told["high"].message.endswith("but level start>=9 stopped without a bound at 0")
    assert told["high"].detail["level"]["gap"] is None


# -- growth ---------------------------------------------------------------------------------------------------------


def test_growth_that_finds_no_more_room() -> None:
    """4 of 10 run on 4 CPU: a fifth asks 5."""
    told = Told(node("n1", 4), group("g", 1), gang("g", 10, asks(1)))
    assert told["g"].code == "Resources"
    assert told["g"].message == (
        "4 of 10 run; one more makes 5 pods, at most 4 fit at once; cpu is short: 5 asked, 4 free on 1 eligible node"
    )


def test_growth_under_a_ceiling() -> None:
    """4 of 6 run under a capability of 4; 2 are left."""
    told = Told(node("n1", 8), Queue("q", capability={"cpu": 4000}), group("g", 1, queue="q"), gang("g", 6, asks(1)))
    assert told["g"].message == "4 of 6 run; queue q: 4 of 4 cpu used, asks 2 more"


def test_growth_that_lost_to_a_start() -> None:
    """2 CPU: the second pod of g would fit, h started there."""
    told = Told(
        node("n1", 2),
        (group("g", 1, priority=1), *gang("g", 2, asks(1))),
        (group("h", 1, priority=1), *gang("h", 1, asks(1))),
        place={"g-0": "n1", "h-0": "n1"},
        levels=(level("start>=1", 2), level("grow>=1", 0)),
    )
    assert told["g"].code == "Lost"
    assert told["g"].message == "1 of 2 run; one more pod fits alone, passed over for ns/h at level grow>=1"


def test_nothing_pending_needs_no_reason() -> None:
    told = Told(node("n1", 2), group("g", 1), gang("g", 2, asks(1)))
    assert told.reasons == {}


# -- held -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "objects", "says"),
    [
        ("GroupMissing", (gang("p", 1, asks(1)),), "pod group ns/p does not exist"),
        ("QueueMissing", (group("p", 1, queue="nosuch"), gang("p", 1, asks(1))), "queue nosuch does not exist"),
        ("QueueClosed", (Queue("q", state="Closed"), group("p", 1, queue="q"), gang("p", 1, asks(1))), "q is closed"),
        ("QueueInner", (Queue("q"), Queue("r", parent="q"), group("p", 1, queue="q"), gang("p", 1, asks(1))), "child"),
        ("Suspended", (group("p", 1, suspended=True), gang("p", 1, asks(1))), "suspended"),
        ("Gated", (lone("p", asks(1), gates=("example.com/quota",)),), "example.com/quota"),
        ("Claims", (lone("p", asks(1), hold="Claims: pod ns/p has a device claim"),), "device claim"),
        ("Topology", (group("p", 1, hold="Topology: no such domain"), gang("p", 1, asks(1))), "no such domain"),
        ("Unmodelled", (lone("p", asks(1), hold="Unmodelled: a rule"),), "a rule"),
        ("Held", (lone("p", asks(1), hold="by hand"),), "by hand"),
        ("Volumes", (lone("p", asks(1, volume_claims=("data",))),), "claim ns/data does not exist"),
    ],
)
def test_what_is_held_says_so(code: str, objects: tuple[Any, ...], says: str) -> None:
    told = Told(node("n1", 8), *objects)
    assert told["p"].code == code
    assert says in told["p"].message
    assert told["p"].detail["held"] is True
    assert code in HELD


def test_a_refused_group_says_who_refused_it() -> None:
    """20 CPUs of 8, and of 1.2 x 8 = 9.6."""
    snapshot = Snapshot(
        nodes=(node("n1", 8),),
        pods=gang("g", 1, asks(1)),
        groups=(PodGroup("ns", "g", "scheduling.volcano.sh/v1beta1", min_resources={"cpu": 20000}),),
    )
    policy = load_policy({"actions": "enqueue, allocate", "tiers": [{"plugins": [{"name": "overcommit"}]}]})
    reason = run_cycle(snapshot, policy, Budget(2.0, apart=False)).reasons["ns/g"]
    assert reason.code == "NotAdmitted"
    assert reason.message == "overcommit: asks 20 cpu; 1.2 x 8 is 9600m, 0 used, 0 reserved"
    assert reason.detail == {
        "held": True,
        "voter": "overcommit",
        "resource": "cpu",
        "asks": "20",
        "most": "9600m",
        "used": "0",
        "reserved": "0",
    }


def test_a_gated_member_that_the_minimum_needs() -> None:
    """2 needed, 1 may be placed."""
    told = Told(node("n1", 8), group("g", 2), gang("g", 1, asks(1)), gang("g", 1, asks(1), start=1, gates=("x/y",)))
    assert told["g"].code == "Gated"
    assert told["g"].message == "1 of 2 members may run; pod ns/g-1 waits for scheduling gate x/y"
    assert told["g"].detail["held"] is True


def test_a_gated_member_that_is_growth() -> None:
    told = Told(node("n1", 8), group("g", 1), gang("g", 1, asks(1)), gang("g", 1, asks(1), start=1, gates=("x/y",)))
    assert told["g"].message == "1 of 2 run; pod ns/g-1 waits for scheduling gate x/y"


# -- counting and sturdiness ----------------------------------------------------------------------------------------


@st.composite
def one_rule(draw: st.DrawFn) -> tuple[DomainRule, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A rule about shapes 0 and 1 on four nodes, how many pods of shape 0 each holds, and pods of shape 1 there."""
    nodes = 4
    domain = np.array(draw(st.lists(st.integers(-1, 2), min_size=nodes, max_size=nodes)), np.int64)
    fits = np.array(draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes)), np.int64)
    other = np.array(draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=nodes, max_size=nodes)), np.int64)
    both, mine, theirs = np.array([0, 1]), np.array([0]), np.array([1])
    kind = draw(st.sampled_from(["one", "node", "exclude", "require", "require", "spread"]))
    rule: DomainRule
    if kind in ("one", "node"):
        domain = np.where(domain >= 0, np.arange(nodes), -1) if kind == "node" else domain
        rule = AtMostOne("p", "s", draw(st.sampled_from([both, mine])), domain, kind == "node")
    elif kind == "exclude":
        rule = Exclude("p", "s", mine, theirs, domain)
    elif kind == "require":
        present = np.array(draw(st.sampled_from([(False, False, False), (True, False, False), (True, True, False)])))
        there = (domain >= 0) & present[domain]
        targets = draw(st.sampled_from([both, both, mine, theirs]))
        rule = Require("p", "s", draw(st.sampled_from([both, mine])), targets, domain, there, not there.any())
    else:
        domain = np.unique(domain, return_inverse=True)[1].reshape(-1) - (1 if (domain < 0).any() else 0)
        size = int(domain.max(initial=-1)) + 1
        existing = np.array(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), np.int64)
        rule = SpreadRule(
            "p", "s", draw(st.sampled_from([both, mine])), both, domain, existing, draw(st.integers(1, 2)),
            draw(st.integers(1, 3)),
        )  # fmt: skip
    return rule, fits, np.array([np.zeros(nodes, np.int64), other])


@given(one_rule())
@settings(max_examples=500, deadline=None)
def test_the_formulas_count_what_enumeration_counts(
    case: tuple[DomainRule, np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    rule, fits, standing = case
    assume(not list(broken([rule], standing)))
    assert countable([rule], 0)
    best = 0
    for pods in itertools.product(*(range(n + 1) for n in fits.tolist())):
        if sum(pods) > best and not list(broken([rule], standing + np.array([pods, [0] * len(pods)]))):
            best = sum(pods)
    assert most([rule], fits, standing, 0) == best


def test_an_affinity_group_stays_where_it_was_opened() -> None:
    """A pod of shape 1 opened domain 0, which holds 1 more; domain 1 with room for 4 is closed to the group."""
    both, nobody = np.array([0, 1]), np.zeros(4, bool)
    rule = Require("p", "s", both, both, np.array([0, 0, 1, 1]), nobody, True)
    assert most([rule], np.array([1, 0, 2, 2]), np.array([[0, 0, 0, 0], [1, 0, 0, 0]]), 0) == 1


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Any, ...]:
    out: list[Any] = [Queue("a", capability=draw(st.sampled_from([None, {"cpu": 4000}]))), Queue("b")]
    out.append(Queue("c", guarantee={"cpu": 1000}))
    for i in range(draw(st.integers(0, 4))):
        zone = draw(st.sampled_from(["x", "y"]))
        out.append(node(f"n{i}", draw(st.integers(1, 6)), taint=draw(st.sampled_from(["", "", "t"])), zone=zone))
    for i in range(draw(st.integers(1, 4))):
        name = f"g{i}"
        own = (Requirement("job", "In", (name,)),)
        rules: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {},
                    {"node_selector": (("zone", "x"),)},
                    {"anti_affinity": (PodTerm(HOST, own, ("ns",)),)},
                    {"affinity": (PodTerm("zone", own, ("ns",)),)},
                    {"spread": (Spread("zone", 1, True, own),)},
                    {"ports": (HostPort("", "TCP", 80),)},
                ]
            )
        )
        labels = {"job": name}
        roles = draw(st.sampled_from([{}, {"m": 1}]))
        minimum = draw(st.integers(0, 4))
        queue, priority = draw(st.sampled_from(["a", "b", "c"])), draw(st.integers(0, 2))
        out.append(group(name, minimum, queue=queue, priority=priority, min_task_member=roles))
        sizes = st.sampled_from([0, 1, 2, 9])
        out.append(gang(name, draw(st.integers(0, 4)), asks(draw(sizes), **rules), role="w", labels=labels))
        gates = draw(st.sampled_from([(), (), ("a/b",)]))
        out.append(gang(name, draw(st.integers(0, 2)), asks(draw(sizes)), role="m", labels=labels, gates=gates))
    return tuple(out)


@given(clusters(), st.sampled_from([POLICY, CAPACITY]), st.integers(0, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_waiting_group_has_one_known_reason(
    objects: tuple[Any, ...], policy: Any, kept: int, solved: bool
) -> None:
    """Whatever part of a plan is kept, and whether or not it was proven."""
    told = Told(*objects, policy=policy)
    whole = told.plan
    started = np.unique(told.problem.set_job[whole.pod_set])[:kept]
    rows = np.isin(told.problem.set_job[whole.pod_set], started)
    plan = Plan(whole.pod_set[rows], whole.node[rows], whole.count[rows])
    levels = (level("start>=0", 1, 2),) if solved else ()
    reasons = explain(told.snapshot, told.problem, told.index, told.rules, plan, levels)
    left = told.problem.set_count - plan.placed(told.problem)
    waiting = {told.index.jobs[j] for j in told.problem.set_job[left > 0].tolist()}
    held = {member.name for member in told.index.members if member.name in told.index.held and member.pending}
    assert waiting | held <= set(reasons) <= {member.name for member in told.index.members}
    for reason in reasons.values():
        assert reason.code in (*FOUND, *MOVED, *HELD)
        assert reason.message
        assert "\n" not in reason.message
        json.dumps(reason.detail, allow_nan=False)
        for pods in reason.detail.get("podSets", []):
            assert pods["nodesEligible"] + sum(pods["removed"].values()) == len(told.snapshot.nodes)
        if reason.code == "Lost":
            assert len(plan.count)


# -- the page -------------------------------------------------------------------------------------------------------


def test_every_code_is_documented_and_no_other() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text()
    documented = set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert documented == {*FOUND, *MOVED, *HELD}


def test_every_hold_in_the_source_is_in_the_vocabulary() -> None:
    """Readers write a hold as the text `Code: sentence`, the encoder as a pair."""
    files = [p for folder in ("cluster", "problem") for p in (ROOT / "solver_sched" / folder).rglob("*.py")]
    text = "".join(path.read_text() for path in files)
    pairs = set(re.findall(r'(?:return|(?<!=)=) "([A-Z]\w+)", \w', text)) - {kind.kind for kind in KINDS}
    texts = set(re.findall(r'(?:return|=|,) f?"([A-Z]\w+): ', text))
    assert {"GroupMissing", "Volumes", "Gated"} <= pairs
    assert {"Suspended", "Claims", "Topology", "Unmodelled"} <= texts
    assert pairs | texts - {"Ports"} <= set(HELD)  # `Ports: ` opens the source of a rule between pods


def test_every_code_has_a_story_here() -> None:
    text = Path(__file__).read_text()
    assert [code for code in (*FOUND, *HELD) if text.count(f'"{code}"') == 0] == []

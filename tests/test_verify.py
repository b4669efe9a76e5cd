"""The verifier refuses what no cluster could execute, and says by how much."""

from __future__ import annotations

from dataclasses import replace as swap
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.cluster.objects import Budget, Needs, Node, Pod, PodGroup, Queue
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, PREEMPT, RECLAIM, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations


def plan(*rows: tuple[int, int, int]) -> Plan:
    """(pod set, node, count) each."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Plan(table[:, 0], table[:, 1], table[:, 2])


def pod(name: str, cpu: int, *, memory: int = 0, node: str | None = None, group: str | None = None) -> Pod:
    request = (("cpu", cpu), *((("memory", memory),) if memory else ()), ("pods", 1)) if cpu else ()
    phase = "Running" if node else "Pending"
    return Pod("ns", name, Needs(request=request), node=node, phase=phase, group=group, scheduler="solver-sched")


def stated(*pods: Pod, actions: str = "enqueue, allocate, backfill", minimum: int = 1) -> tuple[Problem, Rules]:
    """Nodes n0 and n1 of 4 cpu and 8 bytes of memory."""
    nodes = tuple(Node(f"n{i}", {"cpu": 4000, "memory": 8, "pods": 3}) for i in range(2))
    named = {p.group for p in pods if p.group}
    groups = tuple(
        PodGroup("ns", key.removeprefix("ns/"), "scheduling.volcano.sh/v1beta1", minimum) for key in sorted(named)
    )
    problem, _ = encode(Snapshot(nodes=nodes, pods=pods, groups=groups))
    plugins = [{"name": name} for name in ("priority", "gang", "predicates")]
    return problem, derive(problem, load_policy({"actions": actions, "tiers": [{"plugins": plugins}]}))


def said(problem: Problem, rules: Rules, given: Plan) -> list[str]:
    return [violation.message for violation in violations(problem, rules, given)]


def test_what_fits_exactly_breaks_nothing() -> None:
    # 2 x 2 cpu on a node of 4.
    problem, rules = stated(pod("a", 2000, group="ns/g"), pod("b", 2000, group="ns/g"))
    assert said(problem, rules, plan((0, 0, 2))) == []
    assert said(problem, rules, EMPTY_PLAN) == []


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        # 3 x 2 cpu on a node of 4
        (plan((0, 0, 3)), ["6 cpu placed, 4 free"]),
        # the same in two rows
        (plan((0, 0, 2), (0, 0, 1)), ["6 cpu placed, 4 free"]),
        # four of three pods
        (plan((0, 0, 2), (0, 1, 2)), ["4 pods placed of 3 pending"]),
        (plan((0, 0, 0)), ["a plan row places no pod"]),
        (plan((0, 0, -1)), ["a plan row places no pod"]),
        (plan((1, 0, 1)), ["a plan row names no pod set"]),
        (plan((-1, 0, 1)), ["a plan row names no pod set"]),
        (plan((0, 2, 1)), ["a plan row names no node"]),
        (plan((0, -1, 1)), ["a plan row names no node"]),
    ],
)
def test_what_no_cluster_could_execute(given: Plan, messages: list[str]) -> None:
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"))
    assert said(problem, rules, given) == messages


def test_a_negative_row_does_not_make_room_for_another() -> None:
    # 3 - 1 pods of 2 cpu are 4 in sum; no cluster executes minus one pod.
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"))
    assert said(problem, rules, plan((0, 0, 3), (0, 0, -1))) == ["a plan row places no pod"]


def test_slots_are_a_resource() -> None:
    # 4 small pods on a node with 3 slots.
    problem, rules = stated(*(pod(name, 100, group="ns/g") for name in "abcd"))
    assert said(problem, rules, plan((0, 0, 4))) == ["4 pods placed, 3 free"]


def test_an_overfull_node_refuses_only_what_asks_for_what_it_lacks() -> None:
    # 10 of 8 bytes are in use: a pod of cpu alone may still come, one of memory not.
    running = pod("r", 1000, memory=10, node="n0")
    problem, rules = stated(running, pod("a", 1000), pod("b", 1000, memory=1))
    assert said(problem, rules, plan((0, 0, 1))) == []
    assert said(problem, rules, plan((1, 0, 1))) == ["1 memory placed, -2 free"]


def test_an_action_that_is_not_listed_places_nothing() -> None:
    problem, rules = stated(pod("a", 1000), pod("b", 0), actions="enqueue")
    assert said(problem, rules, plan((0, 0, 1))) == ["no action places these pods"]
    assert said(problem, rules, plan((1, 1, 1))) == ["no action places request-less pods"]


def test_plugins_are_asked_once_the_plan_can_be_executed_at_all() -> None:
    # Two of a gang of three: the gang plugin objects. Three on one node: capacity comes first, and alone.
    problem, rules = stated(*(pod(name, 2000, group="ns/g") for name in "abc"), minimum=3)
    broken = violations(problem, rules, plan((0, 0, 2)))
    assert [violation.plugin for violation in broken] == ["gang"]
    assert broken[0].job == 0
    assert [violation.plugin for violation in violations(problem, rules, plan((0, 0, 3)))] == ["base"]
    assert said(problem, rules, plan((0, 0, 2), (0, 1, 1))) == []


def test_who_and_where_are_rows() -> None:
    problem, rules = stated(pod("a", 1000, group="ns/g"), pod("z", 3000, group="ns/h"), pod("y", 3000, group="ns/h"))
    (over,) = violations(problem, rules, plan((1, 1, 2)))
    assert (over.plugin, over.node, over.job) == ("base", 1, -1)
    (more,) = violations(problem, rules, plan((0, 0, 2)))
    assert (more.plugin, more.node, more.job) == ("base", -1, 0)


# -- who goes ---------------------------------------------------------------------------------------------------------

EVICTING = "enqueue, allocate, backfill, preempt, reclaim"


def gang(
    name: str, cpu: int, count: int, minimum: int, *, node: str = "", queue: str = "q", priority: int = 0, **fields: Any
) -> tuple[PodGroup, list[Pod]]:
    """`count` pods of `cpu` milli-CPU; on `node` they run."""
    group = PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", minimum, queue=queue, priority=priority, created=1)
    one = replace(pod(name, cpu, node=node or None, group=f"ns/{name}"), priority=priority, started=1, **fields)
    members = [replace(one, name=f"{name}-{i}", index=i) for i in range(count)]
    return group, members


def stated_full(
    *gangs: tuple[PodGroup, list[Pod]],
    plugins: str = "priority gang proportion",
    actions: str = EVICTING,
    **fields: Any,
) -> tuple[Snapshot, Policy]:
    """Nodes n0 and n1 of 4 cpu; queues q and r of equal weight."""
    snapshot = Snapshot(
        nodes=tuple(Node(f"n{i}", {"cpu": 4000, "pods": 110}) for i in range(2)),
        pods=tuple(pod for _, members in gangs for pod in members),
        groups=tuple(group for group, _ in gangs),
        queues=fields.pop("queues", (Queue("q"), Queue("r"))),
        now=1000,
        **fields,
    )
    tier = [{"name": name} for name in plugins.split()]
    return snapshot, load_policy({"actions": actions, "tiers": [{"plugins": tier}]})


def full(*gangs: tuple[PodGroup, list[Pod]], **fields: Any) -> tuple[Problem, Rules]:
    snapshot, policy = stated_full(*gangs, **fields)
    problem, _ = encode(snapshot, evicting=True)
    return problem, derive(problem, policy)


def exchange(placed: list[tuple[int, int, int]], *out: tuple[int, int, int]) -> Plan:
    """(pod set, node, count) come, (victim set, pods, cause) go."""
    table = np.array(out, np.int64).reshape(-1, 3)
    return swap(plan(*placed), victim=table[:, 0], out=table[:, 1], cause=table[:, 2])


LOW = gang("low", 2000, 2, 2, node="n0")
HIGH = gang("high", 2000, 2, 2, priority=5)
SPLIT = "1 of at least 2 pods would be left"
NOBODY = "2 pods go, and no job starts that may take from others"
UNCALLED = "2 pods are preempted, and no job of their queue starts"
KEPT = gang("kept", 4000, 1, 1, node="n1", preemptable=False)


def test_a_lower_gang_goes_whole_for_a_higher_one() -> None:
    # n0 is full of low's 2 x 2 cpu: high's 2 x 2 come for them.
    problem, rules = full(LOW, HIGH, KEPT, plugins="priority gang drf")
    assert said(problem, rules, exchange([(0, 0, 2)], (0, 2, PREEMPT))) == []


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (exchange([(0, 0, 2)], (1, 2, PREEMPT)), ["a plan row names no victims"]),
        (exchange([(0, 0, 2)], (0, 0, PREEMPT)), ["a plan row evicts no pod"]),
        (exchange([(0, 0, 2)], (0, 2, PREEMPT), (0, 1, PREEMPT)), ["3 pods go of the 2 that run"]),
        (
            exchange([(0, 0, 2)], (0, 1, PREEMPT)),
            [
                "4 cpu placed, 2 free",
                SPLIT,
                "2 cpu started on room that no queue gave for itself, 0 idle and 0 reclaimed",
            ],
        ),
        (exchange([(0, 0, 1)], (0, 1, PREEMPT)), [SPLIT, "1 of at least 2 members would run"]),
        (exchange([], (0, 2, PREEMPT)), [NOBODY, UNCALLED]),
    ],
)
def test_what_no_preemption_is(given: Plan, messages: list[str]) -> None:
    problem, rules = full(LOW, HIGH, KEPT, plugins="priority gang drf")
    assert said(problem, rules, given) == messages


def test_whose_rule_it_is() -> None:
    given = exchange([(0, 0, 2)], (0, 2, PREEMPT))
    # preempt is not listed; gang alone lets only surplus go; a budget of 1 for two; high must not preempt
    assert said(*full(LOW, HIGH, KEPT, actions="allocate", plugins="priority gang drf"), given) == [
        "2 pods go by preempt, which is not listed"
    ]
    problem, rules = full(LOW, HIGH, KEPT)
    assert [(v.plugin, v.message) for v in violations(problem, rules, given)] == [
        ("gang", "a gang of 2 is preempted whole, and only surplus may be")
    ]
    budget = (Budget("ns", "calm", (), 1),)
    assert said(*full(LOW, HIGH, KEPT, plugins="priority gang drf", budgets=budget), given) == [
        "2 pods go under a disruption budget of 1"
    ]
    polite = gang("high", 2000, 2, 2, priority=5, preempts=False)
    assert said(*full(LOW, polite, KEPT, plugins="priority gang drf"), given) == [
        NOBODY,
        UNCALLED,
        "4 cpu started on room that no queue gave for itself, 0 idle and 0 reclaimed",
        "4 cpu started by jobs that must not preempt, 0 idle",
    ]


def test_an_equal_takes_surplus_where_drf_lets_it() -> None:
    elastic, single = gang("elastic", 2000, 2, 1, node="n0"), gang("single", 2000, 1, 1)
    given = exchange([(0, 0, 1)], (0, 1, PREEMPT))
    assert said(*full(elastic, single, KEPT, plugins="priority gang drf"), given) == []
    assert said(*full(elastic, single, KEPT, plugins="priority gang"), given) == [
        "1 pods of priority 0 give way to one of 0"
    ]


def test_what_would_fit_without_needs_nobody_to_go() -> None:
    problem, rules = full(LOW, HIGH, plugins="priority gang drf")
    assert said(problem, rules, exchange([(0, 1, 2)], (0, 2, PREEMPT))) == [
        "2 pods go, and all that is placed would fit without"
    ]


def test_protected_pods() -> None:
    given = exchange([(0, 0, 2)], (0, 2, PREEMPT))
    system = gang("low", 2000, 2, 2, node="n0", priority_class="system-node-critical")
    assert said(*full(system, HIGH, KEPT, plugins="priority gang drf conformance"), given) == [
        "2 pods of the system go"
    ]
    young = gang("low", 2000, 2, 2, node="n0", labels={"volcano.sh/cooldown-time": "1h"})
    assert said(*full(young, HIGH, KEPT, plugins="priority gang drf cdp"), given) == [
        "2 pods go that run for 999 s of a cool-down of 3600 s"
    ]


def test_reclaim_up_to_the_share_and_within_the_own() -> None:
    # q holds all 8 cpu, r asks 4: half each. Two of q's four singles may go; r's pair of 2 x 2 is inside its share.
    many = [gang(f"s{i}", 2000, 1, 1, node=f"n{i // 2}") for i in range(4)]
    pair = gang("pair", 2000, 2, 2, queue="r")
    problem, rules = full(*many, pair, plugins="priority gang drf proportion")
    assert said(problem, rules, exchange([(0, 0, 2)], (0, 1, RECLAIM), (1, 1, RECLAIM))) == []
    assert (
        said(problem, rules, exchange([(0, 0, 2)], *((s, 1, RECLAIM) for s in range(3))))
        == [
            "6 cpu reclaimed, 4 to give",
            "3 pods reclaimed, 4 to give",
        ][:1]
    )
    assert said(problem, rules, exchange([(0, 0, 2)], (0, 1, PREEMPT), (1, 1, PREEMPT))) == [
        "1 pods are preempted, and no job of their queue starts",
        "1 pods are preempted, and no job of their queue starts",
        "4 cpu started on room that no queue gave for itself, 0 idle and 0 reclaimed",
    ]
    kept = (Queue("q", reclaimable=False), Queue("r"))
    closed = full(*many, pair, queues=kept)
    assert said(*closed, exchange([(0, 0, 2)], (0, 1, RECLAIM), (1, 1, RECLAIM))) == [
        "reclaimed from, and not reclaimable"
    ]

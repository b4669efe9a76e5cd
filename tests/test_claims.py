"""Why nobody makes room for a gang that waits: each rule on the smallest cluster where it alone is in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

import solver_sched
from tests import tiny

OFF = {"enablePreemptable": False}
FULL = "nodes: {n1: {cpu: 4}}\n"


def planned(text: str, change: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """The plan for a cluster in the words of models/instances, with evictions on; `change` is called on each object."""
    words: dict[str, Any] = {
        "actions": ["allocate", "preempt", "reclaim"],
        "switches": {"gang": OFF, "drf": OFF},
        "plugins": ["priority", "gang", "predicates", "proportion", "drf", "conformance", "cdp"],
    }
    cluster = tiny.cluster(words | yaml.safe_load(text))
    objects = tiny.objects(cluster)
    for one in objects:
        change(one)
    return solver_sched.plan(objects, tiny.policy(cluster))


def reason(plan: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (group["reason"] for group in plan["podGroups"] if group["name"] == f"default/{name}")
    assert found is not None
    return dict(found)


def evictions(plan: dict[str, Any], name: str = "high") -> str:
    """The clause, of a plan in which nobody goes."""
    assert not [d for d in plan["decisions"] if d["kind"] == "Evict"]
    found = reason(plan, name)
    assert found["detail"]["evictions"]["keptBack"]
    return str(found["message"].partition("; evictions: ")[2])


LOW = FULL + "jobs: {low: {pods: [{cpu: 4, node: n1}]}, high: {priority: 10, pods: [{cpu: 4}]}}"
EQUAL = FULL + "jobs: {low: {priority: 10, pods: [{cpu: 4, node: n1}]}, high: {priority: 10, pods: [{cpu: 4}]}}"


def of_low(kind: str, **changed: Any) -> Callable[[dict[str, Any]], None]:
    """Sets fields of low's pod, each given as path__to__field."""

    def change(one: dict[str, Any]) -> None:
        if one["kind"] == kind and one["metadata"]["name"].startswith("low"):
            for path, value in changed.items():
                *way, last = path.split("__")
                at = one
                for step in way:
                    at = at.setdefault(step, {})
                at[last] = value

    return change


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (EQUAL, "nobody of lower priority than 10 in queue default would do; 1 pod is not lower"),
        (
            FULL + "jobs: {low: {pods: [{cpu: 4, node: n1}]}, high: {priority: 10, pods: [{cpu: 4, polite: true}]}}",
            "its pods have preemptionPolicy Never",
        ),
        (
            FULL
            + "jobs: {low: {pods: [{cpu: 4, node: n1, preemptable: false}]}, high: {priority: 1, pods: [{cpu: 4}]}}",
            "1 pod is marked preemptable: false",
        ),
        (
            LOW + "\nbudgets: {keep: {jobs: [low], allowed: 0}}",
            "1 pod may not go: disruption budget default/keep allows 0 more",
        ),
        (
            LOW + "\nswitches: {gang: {enableJobStarving: false}, priority: {enableJobStarving: false}}",
            "enableJobStarving is off, so nobody makes room",
        ),
        (
            LOW + "\nswitches: {gang: {}, drf: {enablePreemptable: false}}",
            "gang (enablePreemptable) keeps the minimum of default/low: 1 pod",
        ),
        (LOW + "\nactions: [allocate, reclaim]", "the policy does not list action preempt"),
        (
            FULL + "foreign: [{node: n1, cpu: 4}]\njobs: {high: {priority: 10, pods: [{cpu: 4}]}}",
            "pods of other schedulers never go: 1 pod",
        ),
    ],
)
def test_inside_a_queue(text: str, said: str) -> None:
    assert evictions(planned(text)) == said


def test_plugins_that_spare() -> None:
    system = of_low("Pod", spec__priorityClassName="system-node-critical", spec__priority=0)
    assert evictions(planned(LOW, system)) == "conformance keeps 1 pod of the system"
    cooling = of_low("Pod", metadata__labels={"volcano.sh/cooldown-time": "600s"}, status__startTime=tiny._time(0))
    assert evictions(planned(LOW, cooling)) == "cdp keeps 1 pod still in the cool-down"


TWO = "nodes: {n1: {cpu: 8}}\nqueues: {a: {}, b: {}}\n"
LENDS = "jobs: {a1: {queue: a, pods: [{count: 2, cpu: 4, node: n1}]}, high: {queue: b, pods: [{cpu: 4}]}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # of 8 CPU each deserves 4 and holds 4
        (
            TWO + "jobs: {a1: {queue: a, pods: [{cpu: 4, node: n1}]}, b1: {queue: b, pods: [{cpu: 4, node: n1}]},"
            " high: {queue: b, pods: [{cpu: 2}]}}",
            "nobody of lower priority than 0 in queue b would do; 1 pod is not lower",
        ),
        # b holds 3 of 4 and asks 2 more, a holds 5 of 4
        (
            TWO + "jobs: {a1: {queue: a, pods: [{cpu: 2, node: n1}, {cpu: 3, node: n1}]},"
            " b1: {queue: b, priority: 9, pods: [{cpu: 3, node: n1, preemptable: false}]},"
            " high: {queue: b, pods: [{cpu: 2}]}}",
            "queue b uses 3 of its share of 4 cpu, asks 2 more: it may not reclaim",
        ),
        # a holds 8 of 4 and lends 4
        (TWO.replace("a: {}", "a: {reclaimable: false}") + LENDS, "queue a is not reclaimable: 2 pods"),
        # a may give 2, and each of its pods holds 4
        (
            TWO.replace("a: {}", "a: {guarantee: {cpu: 6}}") + LENDS.replace("[{cpu: 4}]", "[{cpu: 2}]"),
            "queue a is guaranteed 6 cpu, holds 8",
        ),
        (TWO + LENDS + "actions: [allocate, preempt]", "the policy does not list action reclaim"),
        (TWO + LENDS + "switches: {proportion: {enableReclaimable: false}}", "enableReclaimable is off"),
        (TWO + LENDS + "plugins: [priority, gang, predicates]", "no plugin of the policy entitles queues"),
    ],
)
def test_between_queues(text: str, said: str) -> None:
    assert evictions(planned(text)) == said


def test_a_gang_says_what_each_rule_keeps_back() -> None:
    """4 CPU are asked. 2 may go; of the other 2 one is equal and one is under a budget: no rule alone is in the way."""
    plan = planned("""
      nodes: {n1: {cpu: 4}}
      budgets: {keep: {jobs: [kept], allowed: 0}}
      jobs:
        low: {pods: [{count: 2, cpu: 1, node: n1}]}
        kept: {pods: [{cpu: 1, node: n1}]}
        equal: {priority: 10, pods: [{cpu: 1, node: n1}]}
        high: {priority: 10, min: 4, pods: [{count: 4, cpu: 1}]}
    """)
    found = reason(plan, "high")
    assert found["code"] == "Resources"
    assert found["message"].endswith(
        "; evictions: with all that may go 2 of 4 pods fit; kept back by budget (1 pod), priority (1 pod)"
    )
    kept = found["detail"]["evictions"]
    assert (kept["mayGo"], kept["fits"], kept["needs"]) == (2, 2, 4)
    assert kept["keptBack"] == [
        {"rule": "budget", "pods": 1, "room": {"cpu": "1", "pods": "1"}, "fitsWithout": 3},
        {"rule": "priority", "pods": 1, "room": {"cpu": "1", "pods": "1"}, "fitsWithout": 3},
    ]


def test_who_may_go_may_not_all_go_at_once() -> None:
    """One of elastic's two pods may go, from either node; the gang needs both nodes."""
    plan = planned("""
      nodes: {n1: {cpu: 2}, n2: {cpu: 2}}
      switches: {drf: {enablePreemptable: false}}
      jobs:
        elastic: {min: 1, pods: [{cpu: 2, node: n1}, {cpu: 2, node: n2}]}
        high: {priority: 10, min: 2, pods: [{count: 2, cpu: 2}]}
    """)
    found = reason(plan, "high")["message"].partition("; evictions: ")[2]
    assert found == "those who may go may not all go at once, and then 1 of 2 pods fit"


def test_what_could_go_may_be_worth_more() -> None:
    """b lends nothing to a: r1 is of priority 10 and inside the share of its queue, w1 of priority 0."""
    plan = planned("""
      nodes: {n1: {cpu: 4}}
      queues: {a: {}, b: {}}
      jobs:
        r0: {queue: a, pods: [{cpu: 3, node: n1, preemptable: false}]}
        r1: {queue: a, priority: 10, pods: [{cpu: 1, node: n1}]}
        w1: {queue: b, pods: [{cpu: 1}]}
        w2: {queue: b, pods: [{cpu: 1}]}
    """)
    found = reason(plan, "w1")["message"].partition("; evictions: ")[2]
    assert found == "what could make room for it is worth more at a level above"


def test_a_ceiling_could_be_cured_by_the_queue_itself() -> None:
    """Queue q may hold 2 and holds 2, of equal priority: the idle node does not help, and nobody goes."""
    text = """
      nodes: {n1: {cpu: 4}}
      queues: {q: {capability: {cpu: 2}}}
      jobs: {low: {queue: q, pods: [{cpu: 2, node: n1}]}, high: {queue: q, pods: [{cpu: 2}]}}
    """
    found = reason(planned(text), "high")
    assert found["code"] == "QueueCapability"
    assert found["message"].endswith(
        "; evictions: nobody of lower priority than 0 in queue q would do; 1 pod is not lower"
    )


def test_without_evicting_actions_nothing_is_said_of_them() -> None:
    found = reason(planned(LOW + "\nactions: [allocate]"), "high")
    assert "evictions" not in found["message"]
    assert "evictions" not in found["detail"]


def test_who_waits_for_room_is_nominated() -> None:
    """2 of 3 pods stand on idle room, yet none is bound before the third can be."""
    plan = planned("""
      nodes: {n1: {cpu: 2}, n2: {cpu: 1}}
      jobs:
        low: {pods: [{cpu: 1, node: n2}]}
        high: {priority: 10, min: 3, pods: [{count: 3, cpu: 1}]}
    """)
    found = reason(plan, "high")
    assert (found["code"], found["message"]) == (
        "Nominated",
        "3 pods wait for room on n1, n2 that default/low gives up",
    )
    assert found["detail"]["nominated"] == [{"node": "n1", "pods": 2}, {"node": "n2", "pods": 1}]
    assert found["detail"]["givenUpBy"] == ["default/low"]
    (group,) = (group for group in plan["podGroups"] if group["name"] == "default/high")
    assert (group["bound"], group["nominated"], group["pending"]) == (0, 3, 0)


def test_room_that_terminating_pods_give_back() -> None:
    plan = planned("""
      nodes: {n1: {cpu: 2}}
      jobs: {old: {pods: [{cpu: 2, node: n1, terminating: true}]}, new: {pods: [{cpu: 2}]}}
    """)
    assert reason(plan, "new")["message"] == "1 pod waits for room on n1 that terminating pods give back"


def test_who_makes_room_says_for_whom() -> None:
    plan = planned("""
      nodes: {n1: {cpu: 2}}
      jobs:
        low: {min: 2, pods: [{count: 2, cpu: 1, node: n1}]}
        high: {priority: 10, pods: [{cpu: 1}]}
    """)
    found = reason(plan, "low")
    assert found["code"] == "Evicted"
    why = "preempt: priority 0 gives way to default/high of priority 10; all its 2 pods go"
    assert found["message"] == why
    assert found["detail"]["evicted"] == {"actions": ["preempt"], "for": ["default/high"], "pods": 2, "of": 2}
    (group,) = (group for group in plan["podGroups"] if group["name"] == "default/low")
    assert (group["phase"], group["running"]) == ("Pending", 0)


def test_who_loses_only_surplus_runs_on() -> None:
    plan = planned("""
      nodes: {n1: {cpu: 2}}
      jobs:
        low: {min: 1, pods: [{count: 2, cpu: 1, node: n1}]}
        high: {priority: 10, pods: [{cpu: 1}]}
    """)
    (group,) = (group for group in plan["podGroups"] if group["name"] == "default/low")
    assert (group["phase"], group["running"], group["reason"]) == ("Running", 1, None)


def test_others_do_not_see_room_that_is_not_for_them() -> None:
    """low-b goes for urgent, of its own queue. Queue a has no claim on that room: for other none is free."""
    plan = planned("""
      nodes: {n1: {cpu: 2}}
      queues: {a: {}, b: {}}
      actions: [allocate, preempt]
      jobs:
        low-b: {queue: b, pods: [{cpu: 2, node: n1}]}
        urgent: {queue: b, priority: 10, pods: [{cpu: 2}]}
        other: {queue: a, pods: [{cpu: 2}]}
    """)
    found = reason(plan, "other")
    assert found["message"].startswith("needs 1 pod, none fits; cpu is short: 2 asked, 0 free on 1 eligible node;")


def test_what_is_left_of_given_up_room_is_not_for_others_in_the_same_cycle() -> None:
    """low's 4 CPU go for high's 3; other, of another queue, would fit into the one that is left (C15)."""
    queues = "queues: {a: {weight: 1}, b: {weight: 1}}\nactions: [allocate, preempt]\n"
    jobs = """jobs:
  low: {queue: a, pods: [{cpu: 4, node: n1}]}
  high: {queue: a, priority: 10, pods: [{cpu: 3}]}
  other: {queue: b, pods: [{cpu: 1}]}
"""
    found = reason(planned(FULL + queues + jobs), "other")
    assert found["code"] == "Unsolved"
    assert found["message"].startswith("fits beside the plan, but only on room that pods give up for others")


def test_what_a_broken_gang_still_runs_is_not_among_those_who_could_make_room_for_it() -> None:
    """a lost a pod of 4 CPUs just now, and its other one is all that runs: nobody else is there to be kept back."""
    plan = planned(FULL + "jobs: {a: {min: 2, pods: [{cpu: 1, node: n1}, {cpu: 4}]}}")
    assert reason(plan, "a")["message"].endswith("evictions: nobody runs who could make room")


def test_two_broken_gangs_that_want_the_same_are_told_of_each_other() -> None:
    """a runs 1 pod, d runs 2, both lack one of 4 CPUs, and the grace of both is over: d's 2 may go for a, a's 1 for d.
    With them 2 + 1 CPUs are free, too few for either.
    """
    plan = planned(
        FULL + "jobs: {a: {min: 2, pods: [{cpu: 1, node: n1}, {cpu: 4}]}, "
        "d: {min: 3, pods: [{cpu: 0.5, count: 2, node: n1}, {cpu: 4}]}, late: {created: 120, pods: [{cpu: 9}]}}"
    )
    assert [reason(plan, name)["detail"]["evictions"]["mayGo"] for name in "ad"] == [2, 1]

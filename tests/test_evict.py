"""Who goes, for whom and why, in stories: each Evict names who starts because of it and numbers that are true."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import yaml

import solver_sched
from solver_sched.actions.evict import Evict, evictions
from solver_sched.cluster.sources import read_objects
from solver_sched.plugins.rules import derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import PREEMPT, RECLAIM, Plan
from solver_sched.problem.encode import encode
from tests import tiny


def planned(text: str) -> dict[str, Any]:
    """The plan for a cluster in the words of models/instances, with preempt and reclaim unless it says otherwise."""
    words: dict[str, Any] = {
        "actions": ["allocate", "preempt", "reclaim"],
        "switches": {"drf": {"enablePreemptable": False}},
    }
    words["switches"] |= {"gang": {"enablePreemptable": False}}
    cluster = tiny.cluster(words | yaml.safe_load(text))
    return solver_sched.plan(tiny.objects(cluster), tiny.policy(cluster))


def gone(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(pod, for, reason) in the order of the decisions."""
    rows = [d for d in plan["decisions"] if d["kind"] == "Evict"]
    return [(d["pod"].removeprefix("default/"), d["for"].removeprefix("default/"), d["reason"]) for d in rows]


def test_two_make_room_for_one() -> None:
    """3 CPU are asked on a node of 4 of which 1 is idle: 2 must be given up, and each victim holds 1."""
    plan = planned("""
      nodes: {n1: {cpu: 4}}
      jobs:
        low-a: {pods: [{cpu: 1, node: n1}]}
        low-b: {pods: [{cpu: 1, node: n1}]}
        mid: {priority: 5, pods: [{cpu: 1, node: n1}]}
        high: {priority: 10, pods: [{cpu: 3}]}
    """)
    why = "priority 0 gives way to default/high of priority 10; its only pod goes; "
    why += "n1: 3 cpu to place, 1 idle, 2 given up"
    assert gone(plan) == [("low-a-0", "high", why), ("low-b-0", "high", why)]


def test_each_goes_for_who_starts_on_its_node() -> None:
    """Two waiting jobs with a node of their own each: the higher one's victim comes first, though it is named later."""
    plan = planned("""
      nodes: {n1: {cpu: 2, labels: {of: a}}, n2: {cpu: 2, labels: {of: b}}}
      jobs:
        low-a: {pods: [{cpu: 2, node: n1}]}
        low-b: {pods: [{cpu: 2, node: n2}]}
        for-a: {priority: 5, pods: [{cpu: 2, selector: {of: a}}]}
        for-b: {priority: 10, pods: [{cpu: 2, selector: {of: b}}]}
    """)
    assert [(pod, who) for pod, who, _ in gone(plan)] == [("low-b-0", "for-b"), ("low-a-0", "for-a")]


def test_a_gang_goes_together_and_its_pods_elsewhere_go_for_the_same_job() -> None:
    """`high` needs one of three nodes; the gang of two that holds it ends on both of its nodes."""
    plan = planned("""
      nodes: {n1: {cpu: 2, labels: {of: high}}, n2: {cpu: 2}, n3: {cpu: 2}}
      jobs:
        gang: {min: 2, pods: [{cpu: 2, node: n1}, {cpu: 2, node: n2}]}
        other: {priority: 20, pods: [{cpu: 2, node: n3}]}
        high: {priority: 10, pods: [{cpu: 2, selector: {of: high}}]}
    """)
    (first, second) = gone(plan)
    assert first[:2] == ("gang-0", "high")
    assert first[2].endswith("all its 2 pods go; n1: 2 cpu to place, 0 idle, 2 given up")
    assert second[:2] == ("gang-1", "high")
    assert second[2].endswith("all its 2 pods go; nobody starts on n2: its gang ends whole")


def test_the_ceiling_is_short_and_no_node() -> None:
    """Queue q may hold 2 CPU and holds 2: `high` starts on the idle node because `low` goes from the other."""
    plan = planned("""
      nodes: {n1: {cpu: 2}, n2: {cpu: 2, labels: {only: high}}}
      queues: {q: {capability: {cpu: 2}}}
      jobs:
        low: {queue: q, pods: [{cpu: 2, node: n1}]}
        high: {queue: q, priority: 10, pods: [{cpu: 2, selector: {only: high}}]}
    """)
    why = "priority 0 gives way to default/high of priority 10; its only pod goes; "
    why += "queue q: 2 cpu to place, 2 of at most 2 used, 2 given up"
    assert gone(plan) == [("low-0", "high", why)]
    (placed,) = (d for d in plan["decisions"] if d["kind"] in ("Bind", "Nominate"))
    assert (placed["kind"], placed["node"]) == ("Nominate", "n2")


def test_who_waits_for_room_on_its_way_is_no_beneficiary() -> None:
    """`first` gets what a terminating pod gives back on n2; `low` goes for `second` alone, whose rank is lower."""
    plan = planned("""
      nodes: {n1: {cpu: 2, labels: {of: second}}, n2: {cpu: 2, labels: {of: first}}}
      jobs:
        old: {pods: [{cpu: 2, node: n2, terminating: true}]}
        low: {min: 1, pods: [{cpu: 2, node: n1}]}
        first: {priority: 20, pods: [{cpu: 2, selector: {of: first}}]}
        second: {priority: 10, pods: [{cpu: 2, selector: {of: second}}]}
    """)
    assert [(pod, who) for pod, who, _ in gone(plan)] == [("low-0", "second")]


def test_reclaim_gives_the_shares_before_and_after() -> None:
    """8 CPU for two queues of equal weight: 4 each. a uses 6 and gives 2 back; b uses 2 and starts 2 more."""
    plan = planned("""
      nodes: {n1: {cpu: 8}}
      queues: {a: {}, b: {}}
      jobs:
        a1: {queue: a, pods: [{cpu: 4, node: n1}]}
        a2: {queue: a, pods: [{cpu: 2, node: n1}]}
        b0: {queue: b, pods: [{cpu: 2, node: n1}]}
        b1: {queue: b, pods: [{cpu: 2}]}
        b2: {queue: b, pods: [{cpu: 2}]}
    """)
    ((pod, who, why),) = gone(plan)
    assert (pod, who) == ("a2-0", "b1")
    assert why == (
        "queue a uses 6 of its share of 4 cpu, 4 after the plan; default/b1 of queue b, which uses 2 of 4, starts; "
        "its only pod goes; n1: 2 cpu to place, 0 idle, 2 given up"
    )


def test_what_runs_above_a_minimum_goes_for_an_equal() -> None:
    plan = planned("""
      nodes: {n1: {cpu: 3}}
      switches: {}
      jobs:
        elastic: {min: 1, pods: [{count: 3, cpu: 1, node: n1}]}
        waits: {pods: [{cpu: 1}]}
    """)
    ((pod, who, why),) = gone(plan)
    assert (pod, who) == ("elastic-2", "waits")
    assert why.startswith("what runs above its minimum gives way to default/waits of the same priority 0; 1 of its 3 ")
    assert "pods goes, 2 stay (minimum 1)" in why


def decided(words: str, *rows: tuple[str, int, int]) -> list[Evict]:
    """Evictions of a plan given by hand, (first pod of the victim set, pods, cause), with job 0 on the first node."""
    cluster = tiny.cluster(yaml.safe_load(words))
    problem, index = encode(read_objects(tiny.objects(cluster)), evicting=True)
    rules = derive(problem, load_policy(tiny.policy(cluster)))
    one = Plan(np.array([0]), np.array([0]), np.array([1]))
    found = {pods[0]: s for s, pods in enumerate(index.victim_pods)}
    table = np.array([(found[pod], out, cause) for pod, out, cause in rows], np.int64)
    return list(evictions(problem, index, rules, replace(one, victim=table[:, 0], out=table[:, 1], cause=table[:, 2])))


TWO_QUEUES = """
  nodes: {n1: {cpu: 4}}
  queues: {a: {}, b: {}}
  actions: [allocate, preempt, reclaim]
  jobs:
    elastic: {queue: a, min: 1, pods: [{count: 4, cpu: 1, node: n1}]}
    mine: {queue: a, priority: 10, pods: [{cpu: 1}]}
    theirs: {queue: b, pods: [{cpu: 1}]}
"""


def test_a_set_that_gives_for_two_causes_gives_no_pod_twice() -> None:
    rows = decided(TWO_QUEUES, ("default/elastic-3", 1, PREEMPT), ("default/elastic-3", 2, RECLAIM))
    assert [row.pod for row in rows] == ["default/elastic-3", "default/elastic-2", "default/elastic-1"]
    assert [row.action for row in rows] == ["preempt", "reclaim", "reclaim"]


def test_reasons_are_one_line_without_doubled_words() -> None:
    for row in decided(TWO_QUEUES, ("default/elastic-3", 4, PREEMPT)):
        words = row.reason.split()
        assert "\n" not in row.reason
        assert [w for w, following in itertools.pairwise(words) if w == following] == []

"""The plugin: which masks and rules its switches leave, and that its check finds what the arrays forbid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from solver_sched.cluster.objects import HostPort, Needs, Node, Pod, Queue, Taint, Toleration
from solver_sched.plugins.predicates import Predicates
from solver_sched.policy import PluginConf, Policy
from solver_sched.problem.arrays import Ints, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot

CPU = (("cpu", 1000), ("pods", 1))


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def cluster() -> Problem:
    """n1 (row 0) tainted, n2 (row 1) free; `web` (pod set 0) twice with host port 80, no toleration."""
    nodes = (
        Node("n1", {"cpu": 4000, "pods": 10}, taints=(Taint("t", "", "NoSchedule"),)),
        Node("n2", {"cpu": 4000, "pods": 10}),
        Node("n3", {"cpu": 4000, "pods": 10}, unschedulable=True),
    )
    needs = Needs(request=CPU, ports=(HostPort("", "TCP", 80),))
    tolerant = Needs(request=CPU, tolerations=(Toleration("t", "Exists"),))
    pods = tuple(Pod("ns", name, needs, scheduler="solver-sched") for name in ("web-0", "web-1"))
    other = Pod("ns", "z", tolerant, scheduler="solver-sched")
    problem, index = encode(Snapshot(nodes=nodes, pods=(*pods, other), queues=(Queue("default"),)))
    assert index.nodes == ("n1", "n2", "n3")
    assert index.set_pods == (("ns/web-0",), ("ns/web-1",), ("ns/z",))
    return problem


def plugin(arguments: Mapping[str, object] | None = None, **switches: bool) -> Predicates:
    return Predicates(PluginConf("predicates", switches, arguments or {}), Policy())


def says(found: Predicates, *where: tuple[int, int]) -> list[str]:
    """Messages on a plan of (pod set, node row), one pod each."""
    plan = Plan(ints(*(t for t, _ in where)), ints(*(n for _, n in where)), ints(*(1 for _ in where)))
    return [violation.message for violation in found.violations(cluster(), plan)]


def test_a_plan_that_keeps_to_the_masks_and_rules_is_clean() -> None:
    assert says(plugin(), (0, 1), (2, 0)) == []


def test_each_broken_predicate_is_named_with_the_node_and_the_job() -> None:
    plan = Plan(ints(1), ints(0), ints(1))
    (violation,) = plugin().violations(cluster(), plan)
    assert violation.message == "Taints: 1 pods of pod set 1 on node 0, which refuses them"
    assert (violation.plugin, violation.job, violation.node) == ("predicates", 1, 0)


def test_two_holders_of_one_port_on_a_node_are_found() -> None:
    assert says(plugin(), (0, 1), (1, 1)) == ["Ports: 0.0.0.0:80/TCP: 2 pods in domain 1 (node 1), at most 1 allowed"]


@pytest.mark.parametrize("off", [False, "false"])
def test_a_switch_takes_one_predicate_with_its_rules_away(off: object) -> None:
    # kube-batch writes arguments as text
    found = plugin({"predicatenodeportsenable": off})
    assert says(found, (0, 1), (1, 1)) == []
    assert says(found, (0, 0)) != []
    assert [found.applies(rule) for rule in cluster().domain_rules] == [False]
    assert "Taints" not in plugin({"predicatetainttolerationenable": off}).forbidden(cluster())


def test_cordoned_nodes_have_no_switch() -> None:
    every = ("nodeaffinity", "nodeports", "tainttoleration", "podaffinity", "podtopologyspread", "volumezone")
    found = plugin({f"predicate{name}enable": False for name in every})
    assert says(found, (0, 2)) == ["Unschedulable: 1 pods of pod set 0 on node 2, which refuses them"]


def test_with_the_callback_off_nothing_is_forbidden() -> None:
    found = plugin(predicate=False)
    assert found.forbidden(cluster()) == {}
    assert says(found, (0, 0), (1, 0), (2, 2)) == []

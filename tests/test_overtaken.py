"""What changes while a plan is made: gangs that would not all run are not bound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import HostPort, Needs, Node, Pod, Taint, Toleration
from solver_sched.overtaken import overtaken
from solver_sched.snapshot import Snapshot


def pod(name: str, cpu: int = 1, **fields: Any) -> Pod:
    return Pod("ns", name, Needs(request=(("cpu", 1000 * cpu), ("pods", 1))), uid=name, **fields)


def bind(name: str, node: str) -> Bind:
    """Of gang `ns/a` for pods a0, a1 and so on."""
    return Bind("allocate", f"ns/{name}", node, f"ns/{name[0]}", "default")


# Nodes of 4 CPUs. Gang a stands on both, gang b on n alone: n is full, m has 3 CPUs left.
NODES = tuple(Node(name, {"cpu": 4000, "pods": 10}) for name in ("m", "n"))
BEFORE = Snapshot(nodes=NODES, pods=(pod("a0"), pod("a1", 2), pod("b0", 2)))
BINDS = [bind("a0", "m"), bind("a1", "n"), bind("b0", "n")]


def with_(*pods: Pod, nodes: tuple[Node, ...] = NODES) -> Snapshot:
    by_key = {one.key: one for one in (*BEFORE.pods, *pods)}
    return replace(BEFORE, pods=tuple(by_key.values()), nodes=nodes)


def test_nothing_that_came_nothing_that_is_held_back() -> None:
    assert overtaken(BEFORE, BEFORE, BINDS) == {}
    assert overtaken(BEFORE, with_(pod("waits")), BINDS) == {}


def test_who_is_bound_first_keeps_what_is_left() -> None:
    """A pod of 1 CPU came to n: 3 are left, a takes 2 of them, b finds 1 of 2."""
    now = with_(pod("other", node="n", phase="Running"))
    assert overtaken(BEFORE, now, BINDS) == {"ns/b": "the cpu that was free on n has been taken"}


def test_a_gang_that_is_held_back_leaves_its_room_to_the_next() -> None:
    """3 CPUs came to m and 1 to n: a finds 1 of 1 on m and 2 on n; with 4 on m a is held back, and b fits."""
    came = [pod("other", 1, node="n", phase="Running")]
    assert set(overtaken(BEFORE, with_(*came, pod("more", 3, node="m", phase="Running")), BINDS)) == {"ns/b"}
    assert set(overtaken(BEFORE, with_(*came, pod("more", 4, node="m", phase="Running")), BINDS)) == {"ns/a"}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (with_(pod("a1", 2, node="m")), "ns/a1 is on m"),
        (with_(replace(pod("a1", 2), uid="another")), "ns/a1 is gone"),
        (with_(replace(pod("a1", 2), terminating=True)), "ns/a1 is gone"),
        (replace(BEFORE, pods=(pod("a0"), pod("b0", 2))), "ns/a1 is gone"),
    ],
)
def test_a_member_that_is_not_as_it_was_holds_back_its_gang(now: Snapshot, why: str) -> None:
    assert overtaken(BEFORE, now, BINDS) == {"ns/a": why}


@pytest.mark.parametrize(
    "nodes", [NODES[1:], (replace(NODES[0], unschedulable=True), NODES[1]), (replace(NODES[0], ready=False), NODES[1])]
)
def test_a_node_that_takes_no_pods_any_more(nodes: tuple[Node, ...]) -> None:
    assert overtaken(BEFORE, with_(nodes=nodes), BINDS) == {"ns/a": "m takes no pods any more"}


def test_what_has_ended_takes_no_room() -> None:
    assert overtaken(BEFORE, with_(pod("done", 4, node="n", phase="Succeeded")), BINDS) == {}


def test_a_node_that_has_shrunk_is_looked_at_though_nobody_came() -> None:
    """n loses 1 of its 4 CPUs: a takes 2 of 3, b finds 1 of 2. A node that gets more is no worse for it."""
    smaller, larger = (Node("n", {"cpu": cpu, "pods": 10}) for cpu in (3000, 5000))
    assert overtaken(BEFORE, with_(nodes=(NODES[0], smaller)), BINDS) == {
        "ns/b": "the cpu that was free on n has been taken"
    }
    assert overtaken(BEFORE, with_(nodes=(NODES[0], larger)), BINDS) == {}


def test_a_pod_that_is_resized_in_place_takes_more() -> None:
    """On m runs 1 CPU beside a0; resized to 4 it leaves nothing."""
    before = with_(pod("runs", 1, node="m"))
    now = replace(before, pods=tuple(pod("runs", 4, node="m") if p.name == "runs" else p for p in before.pods))
    assert overtaken(before, now, BINDS) == {"ns/a": "the cpu that was free on m has been taken"}


def test_what_a_node_does_not_say_of_its_slots_is_as_for_the_plan() -> None:
    """Nodes that name no pod slots have 110, and whoever comes takes one."""
    nodes = tuple(Node(name, {"cpu": 4000}) for name in ("m", "n"))
    before = replace(BEFORE, nodes=nodes)
    assert overtaken(before, with_(pod("other", 0, node="m"), nodes=nodes), BINDS) == {}


def test_who_asks_for_nothing_of_what_is_overdrawn_is_bound() -> None:
    """n is promised 3 CPUs too many; z asks for none."""
    zero = replace(pod("z0"), needs=Needs(request=(("cpu", 0), ("pods", 1))))
    before = with_(zero)
    assert overtaken(before, with_(zero, pod("other", 7, node="n")), [bind("z0", "n")]) == {}


def test_pods_that_tolerate_a_cordon_go_to_a_node_that_was_cordoned_before() -> None:
    cordoned = (NODES[0], replace(NODES[1], unschedulable=True))
    before = replace(BEFORE, nodes=cordoned)
    assert overtaken(before, with_(pod("other", node="m"), nodes=cordoned), BINDS) == {}


def test_a_taint_that_was_not_there() -> None:
    """The autoscaler takes m away; whoever tolerates that stays."""
    going = Taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule")
    tainted = (replace(NODES[0], taints=(going,)), NODES[1])
    assert overtaken(BEFORE, with_(nodes=tainted), BINDS) == {"ns/a": "m is tainted now"}
    assert overtaken(replace(BEFORE, nodes=tainted), with_(nodes=tainted), BINDS) == {}
    soft = (replace(NODES[0], taints=(replace(going, effect="PreferNoSchedule"),)), NODES[1])
    assert overtaken(BEFORE, with_(nodes=soft), BINDS) == {}
    a0 = pod("a0")
    a0 = replace(a0, needs=replace(a0.needs, tolerations=(Toleration(operator="Exists"),)))
    assert overtaken(with_(a0), with_(a0, nodes=tainted), BINDS) == {}


def test_a_host_port_that_has_been_taken() -> None:
    """a0 listens on port 80 of m; so does a pod that came there. On n, or on another port, nobody is in its way."""

    def listens(name: str, port: int, **fields: Any) -> Pod:
        one = pod(name, **fields)
        return replace(one, needs=replace(one.needs, ports=(HostPort("", "TCP", port),)))

    a0 = listens("a0", 80)
    before = with_(a0)
    assert overtaken(before, with_(a0, listens("other", 80, node="m")), BINDS) == {
        "ns/a": "host port 80 that was free on m has been taken"
    }
    assert overtaken(before, with_(a0, listens("other", 81, node="m")), BINDS) == {}
    assert overtaken(before, with_(a0, listens("other", 80, node="n", cpu=0)), BINDS) == {}

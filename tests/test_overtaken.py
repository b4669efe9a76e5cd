"""What changes while a plan is made: gangs that would not all run are not bound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import Needs, Node, Pod
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

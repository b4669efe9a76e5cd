"""Evictions against a server that answers as a test scripts it: their order, and what ends them."""

from __future__ import annotations

import pytest

from solver_sched.cluster.evictor import Eviction
from tests.cluster.server import Fault, Request, Reset, status
from tests.cluster.test_binder import binding, nth, pod


def evict(name: str, beneficiary: str = "ns/big", guarded: bool = False) -> Eviction:
    return Eviction(pod(name), beneficiary, "preempt", "priority 0 gives way to ns/big of priority 10", guarded)


def test_an_eviction_names_the_uid_and_leaves_the_grace_period_to_the_pod() -> None:
    with binding(workers=1) as (server, book, binder):
        stored = server.pod("v")
        binder.evict([evict("v")])
        assert binder.drain(5)
        assert server.sent("eviction")[0].body == {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": "ns", "name": "v"},
            "deleteOptions": {"preconditions": {"uid": "uid-v"}},
        }
        assert book.lines == ["evicting v", "evicted v", "Evict ok"]
        (event,) = book.events
        assert (event.reason, event.action, event.type, event.regarding.name) == (
            "Preempted",
            "Preempting",
            "Normal",
            "v",
        )
        assert event.related is not None
        assert (event.related.kind, event.related.name) == ("PodGroup", "big")
        # the eviction comes first: it writes a reason of its own over ours
        assert [request.path.split("/")[-1] for request in server.requests] == ["eviction", "status"]
        (condition,) = stored["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "PreemptionByScheduler")


def test_what_a_budget_refuses_ends_the_rest_before_anybody_has_gone() -> None:
    """For ns/big a, b and the guarded c are to go, and c's budget has nothing left: nobody goes. d goes for another."""
    with binding(workers=1) as (server, book, binder):
        for name in "abcd":
            server.pod(name)
        server.pods["ns/c"]["metadata"]["budget"] = "pdb"
        server.budgets["pdb"] = 0
        binder.evict([evict("a"), evict("b"), evict("c", guarded=True), evict("d", "ns/other")])
        assert binder.drain(5)
        assert [request.path.split("/")[-2] for request in server.sent("eviction")] == ["c", "d"]
        assert book.lines[:4] == ["evicting a", "evicting b", "evicting c", "evicting d"]
        refusal = ["spared c 30", "Evict refused", "forget a", "Evict failed", "forget b", "Evict failed"]
        assert book.lines[4:] == [*refusal, "evicted d", "Evict ok"]
        refused = book.events[0]
        assert (refused.reason, refused.type) == ("EvictionRefused", "Warning")
        assert "2 more evictions for ns/big are not asked for" in refused.note
        assert "conditions" not in server.pods["ns/c"]["status"]


def test_a_budget_that_gives_out_half_way_ends_the_rest() -> None:
    with binding(workers=1) as (server, book, binder):
        for name in "abc":
            server.pod(name)["metadata"]["budget"] = "pdb"
        server.budgets["pdb"] = 1
        binder.evict([evict(name, guarded=True) for name in "abc"])
        assert binder.drain(5)
        assert book.lines[3:] == ["evicted a", "Evict ok", "spared b 30", "Evict refused", "forget c", "Evict failed"]


def test_two_budgets_on_one_pod_are_refused_for_long() -> None:
    message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    with binding() as (server, book, binder):
        server.pod("v")
        server.script = lambda request: status(500, "", message)
        binder.evict([evict("v")])
        assert binder.drain(5)
        assert book.lines == ["evicting v", "spared v 600", "Evict refused"]
        assert len(server.requests) == 1


def test_a_busy_server_is_no_refusal() -> None:
    """429 without the cause DisruptionBudget is priority and fairness."""
    with binding() as (server, book, binder):
        server.pod("v")
        server.script = nth({0: status(429, "TooManyRequests")}, "/eviction")
        binder.evict([evict("v")])
        assert binder.drain(5)
        assert book.lines == ["evicting v", "evicted v", "Evict ok"]
        assert len(server.sent("eviction")) == 2


@pytest.mark.parametrize("acts", [True, False])
def test_a_lost_answer_is_looked_up(acts: bool) -> None:
    with binding() as (server, book, binder):
        server.pod("v")
        server.script = nth({0: Reset(acts=acts)}, "/eviction")
        binder.evict([evict("v")])
        assert binder.drain(5)
        assert book.lines == ["evicting v", "evicted v", "Evict ok"]
        assert len(server.sent("eviction")) == (1 if acts else 2)


def test_a_victim_that_has_gone_is_no_failure_and_its_successor_is_spared() -> None:
    with binding(workers=1) as (server, book, binder):
        server.pod("v", uid="successor")
        binder.evict([evict("gone"), evict("v")])
        assert binder.drain(5)
        assert book.lines == ["evicting gone", "evicting v", "Evict ok", "evicted v", "Evict ok"]
        assert "deletionTimestamp" not in server.pods["ns/v"]["metadata"]


def test_no_eviction_leaves_without_the_lease() -> None:
    leading = [True]
    with binding(may_send=lambda: leading[0], workers=1) as (server, book, binder):
        for name in "ab":
            server.pod(name)

        def script(request: Request) -> Fault | None:
            if request.path.endswith("/status"):
                leading[0] = False
            return None

        server.script = script
        binder.evict([evict("a"), evict("b")])
        assert binder.drain(5)
        assert [request.path.split("/")[-2] for request in server.sent("eviction")] == ["a"]
        assert book.lines == ["evicting a", "evicting b", "evicted a", "Evict ok", "forget b", "Evict failed"]


def test_an_eviction_that_gets_no_answer_is_given_up() -> None:
    with binding(expire=0.3) as (server, book, binder):
        server.pod("v")
        server.script = lambda request: Reset() if request.path.endswith("/eviction") else None
        binder.evict([evict("v")])
        assert binder.drain(10)
        assert book.lines == ["evicting v", "spared v 30", "Evict lost"]

"""The plan dict: its keys, canonical quantities, phases, and what the certificate may claim."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace as replace_fields

import solver_sched
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.document import certificate, plan_document
from solver_sched.model.effort import LevelResult
from solver_sched.policy import load_policy
from solver_sched.quantity import amount
from solver_sched.snapshot import InputProblem, Snapshot
from tests.strategies import snapshots

POLICY = load_policy("default")
GPU = "nvidia.com/gpu"


def pod(name: str, request: dict[str, int], **fields: Any) -> Pod:
    needs = Needs(request=tuple(sorted({**request, "pods": 1}.items())))
    return Pod("ns", name, needs, scheduler="solver-sched", **fields)


def small() -> Snapshot:
    """A node of 8 cpu, 16Gi and 2 GPUs; `run` holds 2 cpu; `go` gets 1.5 cpu, 4Gi and a GPU; `wait` wants 3 GPUs."""
    half = {"cpu": 1500, "memory": 4 << 30, GPU: 1}
    dialect = "scheduling.volcano.sh/v1beta1"
    return Snapshot(
        nodes=(Node("n", {"cpu": 8000, "memory": 16 << 30, "pods": 110, GPU: 2}),),
        pods=(
            pod("go-0", half, group="ns/go"),
            pod("run-0", {"cpu": 2000}, group="ns/run", node="n", phase="Running"),
            pod("wait-0", {GPU: 3}, group="ns/wait"),
        ),
        groups=tuple(PodGroup("ns", name, dialect, 1, queue="q", phase="Pending") for name in ("go", "run", "wait")),
        queues=(Queue("q", weight=3),),
        ignored={"finished pods": 2},
        problems=(InputProblem("a.yaml", "Pod ns/x", "spec", "is missing"),),
    )


def report(snapshot: Snapshot) -> CycleReport:
    return run_cycle(snapshot, POLICY, Budget(2.0, apart=False))


def test_pods_that_wait_for_another_scheduler_are_counted() -> None:
    # Two wait for default-scheduler; one of it runs, and one waits for us.
    others = tuple(
        replace_fields(pod(f"p-{i}", {"cpu": 1}, node="n" if i == 2 else None), scheduler="default-scheduler")
        for i in range(3)
    )
    snapshot = replace_fields(small(), pods=(*others, pod("go-0", {"cpu": 1}, group="ns/go")))
    ignored = report(snapshot).as_dict()["snapshot"]["ignored"]
    assert ignored == {"finished pods": 2, "pending pods of scheduler default-scheduler (see --scheduler-name)": 2}


def test_the_whole_document_of_a_small_cluster() -> None:
    document = plan_document(report(small()))
    levels, seconds = document.pop("levels"), document.pop("seconds")
    reason = document["podGroups"][2].pop("reason")
    assert document == {
        "apiVersion": "solver-sched.io/v1alpha1",
        "kind": "Plan",
        "snapshot": {
            "nodes": 1,
            "pods": 3,
            "podGroups": 3,
            "queues": 2,  # `default` is implied
            "ignored": {"finished pods": 2},
            "problems": [{"source": "a.yaml", "object": "Pod ns/x", "field": "spec", "message": "is missing"}],
        },
        "policy": {
            "name": "default",
            "actions": list(POLICY.actions),
            "tiers": [[conf.name for conf in tier] for tier in POLICY.tiers],
        },
        "decisions": [
            {"kind": "Admit", "podGroup": "ns/go"},
            {"kind": "Admit", "podGroup": "ns/run"},
            {
                "kind": "Bind",
                "action": "allocate",
                "pod": "ns/go-0",
                "node": "n",
                "podGroup": "ns/go",
                "queue": "q",
            },
        ],
        "podGroups": [
            group("ns/go", "Running", bound=1),
            group("ns/run", "Running", running=1),
            {key: value for key, value in group("ns/wait", "Pending", pending=1).items() if key != "reason"},
        ],
        "queues": [
            {"name": "default", "weight": 1, "deserved": {}, "allocated": {}, "request": {}, "share": 0.0},
            {
                "name": "q",
                "weight": 3,
                # asked and there: 3.5 cpu, 4Gi, 1 GPU and 2 slots; the pod of 3 GPUs can never run, so it asks for none
                "deserved": {"cpu": "3500m", "memory": "4Gi", GPU: "1", "pods": "2"},
                "allocated": {"cpu": "3500m", "memory": "4Gi", GPU: "1", "pods": "2"},
                "request": {"cpu": "3500m", "memory": "4Gi", GPU: "4", "pods": "3"},
                "share": 1.0,
            },
        ],
        "reservations": [],
        "certificate": {"status": "optimal", "gap": 0.0, "winner": "solver"},
        "notes": [],
    }
    assert set(reason) == {"code", "message", "detail"}
    assert all(set(level) == {"name", "value", "bound", "status", "seconds", "greedy"} for level in levels)
    assert [level["name"] for level in levels] == ["start>=0", "disruption", "order"]
    assert list(seconds) == ["encode", "greedy", "solve", "verify", "explain", "total"]


def group(name: str, phase: str, *, running: int = 0, bound: int = 0, pending: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "queue": "q",
        "phase": phase,
        "minMember": 1,
        "running": running,
        "bound": bound,
        "nominated": 0,
        "pending": pending,
        "reason": None,
    }


def test_plan_gives_the_same_as_the_report() -> None:
    def timeless(document: dict[str, Any]) -> dict[str, Any]:
        levels = [{k: v for k, v in level.items() if k != "seconds"} for level in document["levels"]]
        return {**document, "levels": levels, "seconds": None}

    assert timeless(solver_sched.plan(small(), time_limit=2.0)) == timeless(report(small()).as_dict())
    checked = solver_sched.load_policy("default")
    assert timeless(solver_sched.plan(small(), checked, 2.0)) == timeless(report(small()).as_dict())


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"^time_limit {seconds}: must be seconds above 0, or None for the policy's$"):
        solver_sched.plan(small(), time_limit=seconds)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_the_document_is_plain_json_and_adds_up(snapshot: Snapshot) -> None:
    found = report(snapshot)
    document = plan_document(found)
    assert json.loads(json.dumps(document)) == document
    binds = [one for one in document["decisions"] if one["kind"] == "Bind"]
    groups = {entry["name"]: entry for entry in document["podGroups"]}
    assert list(groups) == sorted(groups)
    assert sum(entry["bound"] for entry in groups.values()) == len(binds)
    assert {bind["podGroup"] for bind in binds} <= set(groups)
    for entry in groups.values():
        assert entry["pending"] >= 0
        # a reason for each group that waits, be it for promised room, and for those without pods that are not let in
        outside = entry["phase"] == "Pending" and entry["reason"] is not None and entry["reason"]["detail"].get("held")
        waits = entry["pending"] + entry["nominated"] > 0
        assert (entry["reason"] is not None) == (waits or bool(outside)), entry
        if entry["bound"]:
            assert entry["phase"] == "Running"
    for queue in document["queues"]:
        for amounts in (queue["deserved"], queue["allocated"], queue["request"]):
            assert all(amount(name, text) > 0 for name, text in amounts.items())
        for name, text in queue["allocated"].items():
            assert amount(name, text) <= amount(name, queue["request"][name])


# -- the certificate --------------------------------------------------------------------------------------------------


def level(name: str, value: int, bound: int | None, unit: int = 0) -> LevelResult:
    return LevelResult(name, value, bound, "OPTIMAL" if value == bound else "FEASIBLE", unit=unit)


SHUT = level("disruption", 0, 0)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((), {"status": "greedy", "gap": None}),
        ((level("start>=0", 9, 9), SHUT), {"status": "optimal", "gap": 0.0}),
        # the first open level counts, not the worst
        (
            (level("start>=5", 9, 9), level("start>=0", 99, 100), level("grow>=0", 1, 100), SHUT),
            {"status": "gap", "gap": 0.01, "level": "start>=0"},
        ),
        # below Disruption everything is best effort
        ((level("start>=0", 9, 9), SHUT, level("order", 0, 100)), {"status": "optimal", "gap": 0.0}),
        # a deficit within one unit is open, with a gap of nothing
        (
            (level("deficit", -5, 0, unit=10), SHUT),
            {"status": "gap", "gap": 0.0, "level": "deficit"},
        ),
        # no bound, no number
        ((level("start>=0", 9, None), SHUT), {"status": "gap", "gap": None, "level": "start>=0"}),
        # a rounding error is not named before a real gap
        (
            (level("start>=5", 10**9 - 1, 10**9), level("start>=0", 1, 2), SHUT),
            {"status": "gap", "gap": 0.5, "level": "start>=0"},
        ),
    ],
)
def test_a_certificate_claims_no_more_than_is_proven(
    levels: tuple[LevelResult, ...], expected: dict[str, object]
) -> None:
    given = replace(report(small()), levels=levels)
    assert certificate(given) == {**expected, "winner": "greedy" if not levels else "solver"}


def test_greedys_plan_is_measured_by_its_own_values() -> None:
    levels = (level("start>=0", 10, 10), SHUT)
    given = replace(report(small()), levels=levels, winner="greedy", greedy_levels={"start>=0": 8, "disruption": 0})
    assert certificate(given) == {"status": "gap", "gap": 0.2, "level": "start>=0", "winner": "greedy"}
    document = plan_document(given)
    assert [(one["value"], one["bound"], one["status"]) for one in document["levels"]] == [
        (8, 10, "GREEDY"),
        (0, 0, "GREEDY"),
    ]
    equal = replace(given, greedy_levels={"start>=0": 10, "disruption": 0})
    assert certificate(equal) == {"status": "optimal", "gap": 0.0, "winner": "greedy"}

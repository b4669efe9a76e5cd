"""The effective request of a pod, each rule once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from solver_sched.cluster import wire
from solver_sched.cluster.requests import Quantities, effective_request
from solver_sched.errors import InputError

Json = dict[str, Any]


def request(spec: Json, status: Json | None = None) -> dict[str, int]:
    pod = msgspec.json.decode(msgspec.json.encode({"metadata": {}, "spec": spec, "status": status}), type=wire.Pod)
    return dict(effective_request(pod.spec, pod.status, Quantities()))


def asks(cpu: str, **more: Any) -> Json:
    return {"name": "main", "resources": {"requests": {"cpu": cpu}}, **more}


def sidecar(cpu: str) -> Json:
    return asks(cpu, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        pytest.param({"containers": [asks("1"), asks("500m")]}, 1500, id="containers add up"),
        pytest.param({"containers": [asks("1")], "initContainers": [asks("3"), asks("2")]}, 3000, id="largest init"),
        # 2 + 1 beside each other; init 3 ran before the sidecar started
        pytest.param(
            {"containers": [asks("2")], "initContainers": [asks("3"), sidecar("1")]}, 3000, id="init, sidecar"
        ),
        # init 3 beside sidecar 1
        pytest.param(
            {"containers": [asks("2")], "initContainers": [sidecar("1"), asks("3")]}, 4000, id="sidecar, init"
        ),
        # peaks: 1; 1 + 1; 1 + 2; then 3 sidecars 1 + 2 + main 1
        pytest.param(
            {"containers": [asks("1")], "initContainers": [sidecar("1"), asks("1"), sidecar("2")]},
            4000,
            id="two sidecars",
        ),
        pytest.param({"containers": [asks("1")], "overhead": {"cpu": "250m"}}, 1250, id="overhead"),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "3"}}}]}, 3000, id="limit without request"),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "0"}}}]}, 0, id="request of zero"
        ),
        pytest.param(
            {"containers": [asks("1")], "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "1"}},
            3000,
            id="pod level, then overhead",
        ),
        pytest.param(
            {"containers": [asks("1")], "resources": {"limits": {"cpu": "2"}}}, 1000, id="pod limit beside a request"
        ),
        pytest.param({"containers": [{}], "resources": {"limits": {"cpu": "2"}}}, 2000, id="pod limit alone"),
        pytest.param({"containers": [asks("0.1")] * 3}, 300, id="no float noise"),
        pytest.param({"containers": [{"resources": {"requests": {"cpu": 0.5}}}]}, 500, id="a number"),
    ],
)
def test_cpu(spec: Json, milli: int) -> None:
    assert request(spec).get("cpu", 0) == milli


def reported(allocated: str, actual: str) -> Json:
    rows = [{"name": "main", "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}}]
    return {"containerStatuses": rows}


@pytest.mark.parametrize(
    ("spec", "status", "milli"),
    [
        ("1", reported("3", "3"), 3000),
        ("3", reported("1", "1"), 3000),
        ("1", reported("1", "2"), 2000),
        ("3", reported("1", "2") | {"resize": "Infeasible"}, 2000),
        (
            "3",
            reported("1", "1")
            | {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]},
            1000,
        ),
        ("3", reported("1", "1") | {"conditions": [{"type": "PodResizePending", "reason": "Deferred"}]}, 3000),
    ],
)
def test_a_resize_in_place_counts_at_its_largest_unless_it_can_never_happen(
    spec: str, status: Json, milli: int
) -> None:
    assert request({"containers": [asks(spec)]}, status)["cpu"] == milli


def test_zeros_are_left_out_and_the_slot_is_in() -> None:
    assert request({"containers": [{"resources": {"requests": {"cpu": "0", "memory": "1"}}}]}) == {
        "memory": 1,
        "pods": 1,
    }


def test_memory_keeps_the_digits_of_an_unquoted_exponent() -> None:
    text = b'{"metadata": {}, "spec": {"containers": [{"resources": {"requests": {"memory": 129e6}}}]}}'
    pod = msgspec.json.decode(text, type=wire.Pod)
    assert effective_request(pod.spec, None, Quantities()) == (("memory", 129_000_000), ("pods", 1))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": [asks("1"), asks("-1")]}, "spec.containers[1].resources.requests.cpu"),
        ({"containers": [{}], "initContainers": [asks("x")]}, "spec.initContainers[0].resources.requests.cpu"),
        ({"containers": [{"resources": {"limits": {"memory": "-1Gi"}}}]}, "spec.containers[0].resources.limits.memory"),
        ({"containers": [{}], "overhead": {"cpu": True}}, "spec.overhead.cpu"),
        ({"containers": [{"resources": {"requests": ["cpu"]}}]}, "spec.containers[0].resources.requests"),
        ({"containers": [{}], "resources": {"requests": {"cpu": None}}}, "spec.resources.requests.cpu"),
    ],
)
def test_errors_name_the_field(spec: Json, field: str) -> None:
    with pytest.raises(InputError) as caught:
        request(spec)
    assert caught.value.field == field

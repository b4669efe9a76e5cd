from __future__ import annotations

from typing import Any

from solver_sched.cluster.admission import DEFAULT_TOLERATIONS, admit, rules

Json = dict[str, Any]


def admitted(pod: Json, *others: Json) -> tuple[Json, list[str]]:
    out, problems = admit([pod], rules(others))
    return out[0], [str(problem) for problem in problems]


def pod(spec: Json | None = None, **metadata: Any) -> Json:
    spec = {"containers": [{"name": "c"}]} if spec is None else spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **metadata}, "spec": spec}


def limit_range(named: str = "lr", **item: Any) -> Json:
    return {"kind": "LimitRange", "metadata": {"name": named}, "spec": {"limits": [{"type": "Container", **item}]}}


def priority_class(named: str, value: int, **more: Any) -> Json:
    return {"kind": "PriorityClass", "metadata": {"name": named}, "value": value, **more}


def resources(limits: Json | None = None, requests: Json | None = None) -> Json:
    parts = {"limits": limits, "requests": requests}
    return {"containers": [{"name": "c", "resources": {key: part for key, part in parts.items() if part}}]}


def test_a_limit_becomes_the_request_before_the_namespace_default_does() -> None:
    # limits.cpu 3, namespace default request 1: the pod books 3, not 1; a pod that says nothing books 1.
    raw, _ = admitted(pod(resources(limits={"cpu": "3"})), limit_range(defaultRequest={"cpu": "1"}))
    bare, _ = admitted(pod(), limit_range(defaultRequest={"cpu": "1"}))
    assert raw["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "3"}
    assert bare["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}


def test_a_default_limit_is_also_the_default_request_and_never_replaces_what_is_written() -> None:
    out, _ = admitted(pod(resources(requests={"cpu": "2"})), limit_range(default={"cpu": "4", "memory": "1Gi"}))
    assert out["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "4", "memory": "1Gi"},
        "requests": {"cpu": "2", "memory": "1Gi"},
    }


def test_max_and_min_of_a_hand_written_range_stand_in_for_absent_defaults() -> None:
    out, _ = admitted(pod(), limit_range(max={"cpu": "8"}, min={"memory": "64Mi"}))
    assert out["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "8"},
        "requests": {"cpu": "8", "memory": "64Mi"},
    }


def test_a_range_of_another_namespace_or_of_pods_changes_nothing() -> None:
    elsewhere = limit_range(defaultRequest={"cpu": "1"})
    elsewhere["metadata"]["namespace"] = "team"
    whole_pod = limit_range(defaultRequest={"cpu": "1"}) | {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}
    out, _ = admitted(pod(), elsewhere, whole_pod)
    assert "resources" not in out["spec"]["containers"][0] or not out["spec"]["containers"][0]["resources"]


def test_init_containers_get_defaults_too() -> None:
    spec = {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}
    out, _ = admitted(pod(spec), limit_range(defaultRequest={"cpu": "1"}))
    assert out["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "1"}


def test_a_dumped_pod_is_used_as_it_is() -> None:
    given = pod(resources(limits={"cpu": "3"}), uid="4711")
    out, _ = admitted(given, limit_range(defaultRequest={"cpu": "1"}), priority_class("high", 9, globalDefault=True))
    assert out is given


def test_runtime_class_adds_overhead_selector_and_tolerations() -> None:
    runtime = {
        "kind": "RuntimeClass",
        "metadata": {"name": "kata"},
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]},
    }
    spec = {"runtimeClassName": "kata", "nodeSelector": {"zone": "a"}, "containers": [{"name": "c"}]}
    out, problems = admitted(pod(spec), runtime)
    assert problems == []
    assert out["spec"]["overhead"] == {"cpu": "250m"}
    assert out["spec"]["nodeSelector"] == {"kata": "yes", "zone": "a"}
    assert out["spec"]["tolerations"][0] == {"key": "kata", "operator": "Exists"}


def test_priority_comes_from_the_class_the_default_class_or_what_is_written() -> None:
    high = priority_class("high", 1000, preemptionPolicy="Never")
    low = priority_class("low", 10, globalDefault=True)
    named, _ = admitted(pod({"priorityClassName": "high"}), high, low)
    unnamed, _ = admitted(pod({}), high, low)
    written, _ = admitted(pod({"priority": 7}), high, low)
    assert (named["spec"]["priority"], named["spec"]["preemptionPolicy"]) == (1000, "Never")
    assert (unnamed["spec"]["priority"], unnamed["spec"]["priorityClassName"]) == (10, "low")
    assert written["spec"]["priority"] == 7


def test_of_several_default_classes_the_lowest_value_counts() -> None:
    classes = [priority_class("a", 50, globalDefault=True), priority_class("b", 20, globalDefault=True)]
    out, _ = admitted(pod(), *classes)
    assert out["spec"]["priorityClassName"] == "b"


def test_system_classes_exist_without_being_given() -> None:
    out, problems = admitted(pod({"priorityClassName": "system-node-critical"}))
    assert out["spec"]["priority"] == 2_000_001_000
    assert problems == []


def test_a_missing_class_is_reported_once_for_many_pods() -> None:
    pods = [pod({"priorityClassName": "gold", "runtimeClassName": "kata"}, namespace="team") for _ in range(3)]
    out, problems = admit(pods, rules([]))
    assert [str(problem) for problem in problems] == [
        (
            "Pod team/p: spec.runtimeClassName: RuntimeClass kata is not in the input: "
            "its overhead and node selector are left out"
        ),
        "Pod team/p: spec.priorityClassName: PriorityClass gold is not in the input: priority 0 is assumed",
    ]
    assert "priority" not in out[0]["spec"]


def test_not_ready_and_unreachable_are_tolerated_unless_the_pod_says_otherwise() -> None:
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 5}
    everything = {"operator": "Exists"}
    assert admitted(pod())[0]["spec"]["tolerations"] == list(DEFAULT_TOLERATIONS)
    assert admitted(pod({"tolerations": [own]}))[0]["spec"]["tolerations"] == [own, DEFAULT_TOLERATIONS[1]]
    assert admitted(pod({"tolerations": [everything]}))[0]["spec"]["tolerations"] == [everything]


def test_admission_is_idempotent_and_leaves_its_input_alone() -> None:
    given = pod(resources(limits={"cpu": "3"}))
    before = repr(given)
    others = (limit_range(default={"memory": "1Gi"}), priority_class("d", 3, globalDefault=True))
    once, _ = admitted(given, *others)
    twice, _ = admitted(once, *others)
    assert twice == once
    assert repr(given) == before
    assert once["metadata"]["namespace"] == "default"

"""What API admission adds to a pod that never went through an API server: hand-written, or made from a workload.

A pod with a uid or a resourceVersion has been through it and is used as it is. Each step adds only what is absent,
so admitting a pod twice changes nothing. Defaults are filled in; limits that would reject a pod are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solver_sched.snapshot import InputProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Json = dict[str, Any]

RULE_KINDS = frozenset({"LimitRange", "RuntimeClass"})
"""Kinds that only admission reads. PriorityClass is read by others too."""

# Built in: the API server creates them itself (pkg/apis/scheduling/v1/helpers.go), dumps often lack them.
SYSTEM_PRIORITIES: Mapping[str, Json] = {
    "system-cluster-critical": {"value": 2_000_000_000},
    "system-node-critical": {"value": 2_000_001_000},
}

# Admission plugin DefaultTolerationSeconds, with the defaults of the API server's flags.
DEFAULT_TOLERATIONS = tuple(
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for state in ("not-ready", "unreachable")
)


def mapping(value: Any) -> Json:
    """`value` if it is a mapping, else an empty one: a malformed part is for the reader of that part to report."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Json]:
    """The mappings of a list, malformed entries left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def namespace(obj: Json) -> str:
    """`metadata.namespace`; absent means "default", as for `kubectl apply` without a context namespace."""
    return str(mapping(obj.get("metadata")).get("namespace") or "default")


def name(obj: Json) -> str:
    return str(mapping(obj.get("metadata")).get("name") or "")


def dumped(obj: Json) -> bool:
    """The object came from an API server. A creationTimestamp alone does not say so: people write one by hand to say
    how long a job has waited.
    """
    meta = obj.get("metadata")
    return isinstance(meta, dict) and bool(meta.get("uid") or meta.get("resourceVersion"))


@dataclass(frozen=True)
class Rules:
    """The admission objects of the input.

    `defaults`: namespace -> (default limits, default requests) of a container, quantities as written.
    `overheads`: RuntimeClass name -> its object. `priorities`: PriorityClass name -> its object.
    `default_priority`: name of the globalDefault class, "" if none.
    """

    defaults: Mapping[str, tuple[Json, Json]] = field(default_factory=dict)
    runtimes: Mapping[str, Json] = field(default_factory=dict)
    priorities: Mapping[str, Json] = field(default_factory=lambda: dict(SYSTEM_PRIORITIES))
    default_priority: str = ""

    def admit(self, where: str, spec: Json) -> tuple[Json, list[tuple[str, str]]]:
        """The pod spec after admission into namespace `where`, and the (field, message) of what was missing for it.
        `spec` itself is not changed; parts that stay the same are shared.
        """
        missing: list[tuple[str, str]] = []
        out = dict(spec)
        limits, requests = self.defaults.get(where, ({}, {}))
        for part in ("containers", "initContainers"):
            if isinstance(spec.get(part), list):
                out[part] = [_defaulted(container, limits, requests) for container in spec[part]]
        runtime = spec.get("runtimeClassName")
        if isinstance(runtime, str) and runtime:
            if runtime in self.runtimes:
                _run_as(out, self.runtimes[runtime])
            else:
                message = f"RuntimeClass {runtime} is not in the input: its overhead and node selector are left out"
                missing.append(("spec.runtimeClassName", message))
        wanted = spec.get("priorityClassName") or self.default_priority
        if isinstance(wanted, str) and wanted and spec.get("priority") is None:
            if wanted in self.priorities:
                chosen = self.priorities[wanted]
                out["priorityClassName"] = wanted
                out["priority"] = chosen.get("value", 0)
                if "preemptionPolicy" in chosen:
                    out.setdefault("preemptionPolicy", chosen["preemptionPolicy"])
            else:
                message = f"PriorityClass {wanted} is not in the input: priority 0 is assumed"
                missing.append(("spec.priorityClassName", message))
        present = items(spec.get("tolerations"))
        added = [default for default in DEFAULT_TOLERATIONS if not any(_tolerates(own, default) for own in present)]
        if added:
            out["tolerations"] = [*items(out.get("tolerations")), *added]
        return out, missing


def rules(objects: Iterable[Json]) -> Rules:
    """The admission rules that stand in the input."""
    objects = [obj for obj in objects if obj.get("kind") in ("LimitRange", "RuntimeClass", "PriorityClass")]
    ranges = sorted((obj for obj in objects if obj.get("kind") == "LimitRange"), key=lambda o: (namespace(o), name(o)))
    defaults: dict[str, tuple[Json, Json]] = {}
    for obj in ranges:
        limits, requests = defaults.setdefault(namespace(obj), ({}, {}))
        for item in items(mapping(obj.get("spec")).get("limits")):
            if item.get("type") != "Container":
                continue
            # SetDefaults_LimitRangeItem: an absent default is the max; an absent defaultRequest the default, else min.
            default = mapping(item.get("max")) | mapping(item.get("default"))
            request = mapping(item.get("min")) | default | mapping(item.get("defaultRequest"))
            for resource, quantity in default.items():
                limits.setdefault(resource, quantity)
            for resource, quantity in request.items():
                requests.setdefault(resource, quantity)
    runtimes = {name(obj): obj for obj in objects if obj.get("kind") == "RuntimeClass"}
    classes = {name(obj): obj for obj in objects if obj.get("kind") == "PriorityClass"}
    # Where several claim to be the default, the API server takes the one of the lowest value.
    default_class = min(
        (
            (obj["value"], key)
            for key, obj in classes.items()
            if obj.get("globalDefault") is True and type(obj.get("value")) is int
        ),
        default=(0, ""),
    )[1]
    return Rules(defaults, runtimes, {**SYSTEM_PRIORITIES, **classes}, default_class)


def admit(objects: list[Json], by: Rules) -> tuple[list[Json], list[InputProblem]]:
    """`objects` with every hand-written pod admitted; all others are passed through, the same objects.

    Equal problems (one missing class, many pods) are reported once, for the first pod that has them.
    """
    out: list[Json] = []
    problems: dict[tuple[str, str], InputProblem] = {}
    for obj in objects:
        if obj.get("kind") != "Pod" or dumped(obj):
            out.append(obj)
            continue
        where = namespace(obj)
        spec, missing = by.admit(where, mapping(obj.get("spec")))
        for path, message in missing:
            problems.setdefault((path, message), InputProblem("", f"Pod {where}/{name(obj)}", path, message))
        out.append({**obj, "metadata": {**mapping(obj.get("metadata")), "namespace": where}, "spec": spec})
    return out, list(problems.values())


def _defaulted(container: Any, limits: Json, requests: Json) -> Any:
    """One container with its requests and limits filled in.

    Order matters: a request that stands only as a limit is the limit (SetDefaults_Pod, when the object is decoded),
    and only then do the namespace's defaults fill what is still absent (LimitRanger).
    """
    if not isinstance(container, dict):
        return container
    resources = mapping(container.get("resources"))
    own = mapping(resources.get("limits"))
    filled = {
        **resources,
        "limits": {**limits, **own},
        "requests": {**requests, **own, **mapping(resources.get("requests"))},
    }
    return {**container, "resources": {part: value for part, value in filled.items() if value}}


def _run_as(spec: Json, runtime: Json) -> None:
    """Admission plugin RuntimeClass: overhead, and where the runtime is installed."""
    fixed = mapping(mapping(runtime.get("overhead")).get("podFixed"))
    if fixed:
        spec.setdefault("overhead", fixed)
    scheduling = mapping(runtime.get("scheduling"))
    if mapping(scheduling.get("nodeSelector")):
        spec["nodeSelector"] = {**mapping(scheduling["nodeSelector"]), **mapping(spec.get("nodeSelector"))}
    own = items(spec.get("tolerations"))
    extra = [toleration for toleration in items(scheduling.get("tolerations")) if toleration not in own]
    if extra:
        spec["tolerations"] = [*own, *extra]


def _tolerates(own: Json, default: Json) -> bool:
    """The pod already says what it does about this taint (any value, any seconds)."""
    return own.get("key") in (None, "", default["key"]) and own.get("effect") in (None, "", "NoExecute")

"""The effective request of a pod: what it takes on its node, as kube-scheduler computes it.

    app     = sum of the regular containers
    side(k) = sum of the restartable init containers (sidecars) declared at or before position k
    peak    = max over init containers k of: side(k) for a sidecar, request(k) + side(k) otherwise
    request = max(app + side(all), peak), per resource; then pod-level values replace cpu, memory and hugepages;
              then overhead is added; and `pods: 1`.

Sources: k8s.io/component-helpers/resource/helpers.go `PodRequests`; KEP-753 (sidecars), KEP-1287 (resize in place),
KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from solver_sched.cluster import wire
from solver_sched.cluster.wire import within
from solver_sched.errors import InputError, QuantityError
from solver_sched.quantity import amount

Amounts = Mapping[str, int]
"""Resource name -> amount, zeros kept: a stated 0 is not the same as an absent request."""


class Quantities:
    """Resource maps read from JSON text, each different text once.

    Errors are InputErrors whose `field` starts at the map, such as `requests.memory`.
    """

    def __init__(self) -> None:
        self._plain: dict[bytes, Amounts] = {}
        self._specs: dict[bytes, Amounts] = {}
        self._decode_plain = msgspec.json.Decoder(dict[str, Raw]).decode
        self._decode_spec = msgspec.json.Decoder(wire.ResourceSpec).decode

    def plain(self, raw: Raw) -> Amounts:
        """A map resource -> quantity."""
        text = wire.text(raw)
        found = self._plain.get(text)
        if found is None:
            with within(""):
                found = self._plain[text] = amounts(self._decode_plain(text) if text else None)
        return found

    def requests(self, raw: Raw) -> Amounts:
        """What the `resources` of a container ask for. A resource with only a limit requests that limit
        (API default, SetDefaults_Pod).
        """
        text = wire.text(raw)
        found = self._specs.get(text)
        if found is None:
            with within(""):
                spec = self._decode_spec(text) if text else wire.ResourceSpec()
            with within("limits"):
                limits = amounts(spec.limits)
            with within("requests"):
                found = self._specs[text] = limits | amounts(spec.requests)
        return found


def amounts(quantities: Mapping[str, Raw] | None) -> dict[str, int]:
    """A resource map understood. Raises InputError naming the resource."""
    return {name: _amount(name, raw) for name, raw in (quantities or {}).items()}


def effective_request(
    spec: wire.PodSpec, status: wire.PodStatus | None, quantities: Quantities
) -> tuple[tuple[str, int], ...]:
    """The request of a pod, sorted by resource, zeros left out, `pods: 1` included. Raises InputError with `field`."""
    reported = _reported(status, quantities) if status is not None else {}
    infeasible = status is not None and _infeasible(status)

    def request(path: str, container: wire.Container, resizable: bool = True) -> Amounts:
        with within(path):
            own = quantities.requests(container.resources)
        rows = reported.get(container.name, ()) if resizable else ()
        return _largest(rows if infeasible and rows else (own, *rows))

    containers = [request(f"spec.containers[{k}].resources", c) for k, c in enumerate(spec.containers or ())]
    peak: Amounts = {}
    sidecars: Amounts = {}
    for k, container in enumerate(spec.init_containers or ()):
        sidecar = container.restart_policy == "Always"
        own = request(f"spec.initContainers[{k}].resources", container, resizable=sidecar)
        running = _sum((own, sidecars))
        peak = _largest((peak, running))
        if sidecar:
            sidecars = running
    total = dict(_largest((_sum((*containers, sidecars)), peak)))

    if wire.text(spec.resources):
        total.update(_pod_level(spec, status, total, quantities))
    with within("spec.overhead"):
        total = dict(_sum((total, quantities.plain(spec.overhead))))
    total["pods"] = 1
    return tuple(sorted((name, number) for name, number in total.items() if number))


def _pod_level(
    spec: wire.PodSpec, status: wire.PodStatus | None, aggregate: Amounts, quantities: Quantities
) -> dict[str, int]:
    """What the pod as a whole asks, where it says so. A pod limit is a request only where no container asks
    (SetDefaults_Pod, `defaultPodRequests`). Only cpu, memory and hugepages can be set so.
    """
    with within("spec.resources"):
        asked = quantities.requests(spec.resources)
        stated = msgspec.json.decode(spec.resources, type=wire.ResourceSpec).requests or {}
    own = {name: number for name, number in asked.items() if name in stated or name not in aggregate}
    own = {name: n for name, n in own.items() if name in ("cpu", "memory") or name.startswith("hugepages-")}
    if status is None:
        return own
    with within("status.resources"):
        current = quantities.requests(status.resources)
    with within("status.allocatedResources"):
        reported = _largest((current, quantities.plain(status.allocated_resources)))
    if _infeasible(status):
        return {name: reported.get(name, number) for name, number in own.items()}
    return {name: max(number, reported.get(name, 0)) for name, number in own.items()}


def _reported(status: wire.PodStatus, quantities: Quantities) -> dict[str | None, tuple[Amounts, ...]]:
    """What the kubelet says each container has: actual and allocated. While a resize is under way the largest of
    these and the spec counts; where the resize can never happen, the largest of these alone.
    """
    reported: dict[str | None, tuple[Amounts, ...]] = {}
    parts = {
        "containerStatuses": status.container_statuses or (),
        "initContainerStatuses": status.init_container_statuses or (),
    }
    for part, rows in parts.items():
        for k, row in enumerate(rows):
            with within(f"status.{part}[{k}].resources"):
                current = quantities.requests(row.resources)
            with within(f"status.{part}[{k}].allocatedResources"):
                allocated = quantities.plain(row.allocated_resources)
            reported[row.name] = tuple(filter(None, (current, allocated)))
    return reported


def _infeasible(status: wire.PodStatus) -> bool:
    """The kubelet refused the resize for good: a condition since 1.33, `status.resize` before."""
    return status.resize == "Infeasible" or any(
        c.type == "PodResizePending" and c.reason == "Infeasible" and c.status == "True"
        for c in status.conditions or ()
    )


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def _largest(parts: Iterable[Amounts]) -> Amounts:
    largest: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            largest[name] = max(largest.get(name, 0), number)
    return largest


def _amount(name: str, raw: Raw) -> int:
    text = bytes(raw)
    try:
        if text[:1] == b'"':
            return amount(name, msgspec.json.decode(text, type=str))
        if text[:1] in (b"-", *(b"%d" % digit for digit in range(10))):
            return amount(name, text.decode())
    except QuantityError as wrong:
        raise InputError(str(wrong), field=name) from None
    shown = text[:20].decode(errors="replace")
    raise InputError(f"{shown} is not a quantity; allowed are a string or a number", field=name)

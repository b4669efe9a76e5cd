"""What a pod asks of its node, counted as the kubelet does, for the pretended kubelet and for the recorder.

It shares nothing with `solver_sched`, whose arithmetic it is there to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil
from typing import Any

from tests.story import exact

Amounts = dict[str, int]
"""Resource -> amount: cpu in milli-cores, all others in units (bytes, devices), rounded up."""


@cache
def amount(resource: str, quantity: str) -> int:
    return ceil(exact(quantity) * (1000 if resource == "cpu" else 1))


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    return {resource: amount(resource, str(quantity)) for resource, quantity in (quantities or {}).items()}


def most(*all_of: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0) for one in all_of) for name in {name for one in all_of for name in one}}


def total(all_of: Iterable[Mapping[str, int]]) -> Amounts:
    added: Amounts = {}
    for one in all_of:
        for name, amount in one.items():
            added[name] = added.get(name, 0) + amount
    return added


def asked(container: Mapping[str, Any]) -> Amounts:
    """Requests; a limit stands for a request that is not there (the API server's default)."""
    resources = container.get("resources") or {}
    return amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def effective_requests(spec: Mapping[str, Any]) -> Amounts:
    """The request of a pod and the one place it takes ("pods"), from its spec.

    Containers run together with all restartable init containers; an ordinary init container runs with the restartable
    ones before it (KEP-753). Requests of the whole pod replace that sum (KEP-2837); overhead comes on top.
    """
    started: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            started = total([started, asked(container)])
            peak = most(peak, started)
        else:
            peak = most(peak, total([started, asked(container)]))
    running = total([started, *(asked(container) for container in spec.get("containers") or [])])
    request = most(peak, running) | asked(spec)
    return total([request, amounts(spec.get("overhead"))]) | {"pods": 1}

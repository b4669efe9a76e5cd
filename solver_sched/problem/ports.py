"""Host ports: two pods on one node never listen on the same address, protocol and port.

0.0.0.0 is every address of the node (NodePorts of kube-scheduler).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from solver_sched.cluster.objects import HostPort

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, never bound to


def address(port: HostPort) -> str:
    """The address a port listens on; "" is 0.0.0.0."""
    return port.ip or ANY_ADDRESS


def conflict(left: HostPort, right: HostPort) -> bool:
    """Whether the two cannot be open on one node."""
    if (left.protocol or "TCP", left.port) != (right.protocol or "TCP", right.port):
        return False
    return ANY_ADDRESS in (address(left), address(right)) or address(left) == address(right)


def exclusive(ports_of: Mapping[int, Sequence[HostPort]]) -> dict[str, frozenset[int]]:
    """What would be shared -> shapes of which a node takes at most one pod; `ports_of` maps shape -> ports.

    One set per specific address, with those that listen on all addresses in each: together they cover every conflict.
    """
    users: dict[tuple[str, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for shape, ports in ports_of.items():
        for port in ports:
            users[port.protocol or "TCP", port.port][address(port)].add(shape)
    out: dict[str, frozenset[int]] = {}
    for (protocol, number), by_address in users.items():
        everywhere = by_address.pop(ANY_ADDRESS, set())
        specific: Iterable[tuple[str, set[int]]] = by_address.items() or [(ANY_ADDRESS, set())]
        for ip, shapes in specific:
            out[f"{ip}:{number}/{protocol}"] = frozenset(shapes | everywhere)
    return out

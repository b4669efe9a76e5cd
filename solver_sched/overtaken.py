"""What has changed while a plan was made: gangs that could not all go where they were placed any more.

A cycle takes a second or more on a large cluster. In it other schedulers bind their pods, nodes are lost, and a bind of
a process that was killed may still arrive. What was decided for an earlier cluster is not sent then, it is decided
again: a kubelet would reject what does not fit, and leave a gang broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import Node, Pod
from solver_sched.cluster.selectors import repelled
from solver_sched.problem.census import DEFAULT_SLOTS
from solver_sched.problem.ports import conflict
from solver_sched.snapshot import Snapshot


def overtaken(before: Snapshot, now: Snapshot, binds: Iterable[Bind]) -> dict[str, str]:
    """Gang -> why it is not bound, of those for which `before` has held and `now` does not; the first to be bound keeps
    its room. Of pods that have come to a node count requests and host ports, which a kubelet looks at as well.
    """
    there, pods = {pod.key: pod for pod in before.pods}, {pod.key: pod for pod in now.pods}
    was, nodes = {node.name: node for node in before.nodes}, {node.name: node for node in now.nodes}
    came: dict[str, list[Pod]] = {}
    for pod in now.pods:
        if pod.node in nodes and not pod.finished and _is_new(pod, there):
            came.setdefault(pod.node, []).append(pod)
    shrunk = {name for name, node in nodes.items() if name in was and node.allocatable != was[name].allocatable}
    free = {name: Counter({"pods": DEFAULT_SLOTS, **nodes[name].allocatable}) for name in came.keys() | shrunk}
    for pod in now.pods:
        if pod.node in free and not pod.finished:
            free[pod.node].subtract(dict(pod.needs.request))
    gangs: dict[str, list[Bind]] = {}
    for bind in binds:
        gangs.setdefault(bind.pod_group, []).append(bind)
    out: dict[str, str] = {}
    for gang, parts in gangs.items():
        why = next((said for bind in parts if (said := _changed(bind, there, pods, was, nodes))), "")
        taken: dict[str, Counter[str]] = {}
        for bind in () if why else parts:
            if bind.node in free:
                taken.setdefault(bind.node, Counter()).update(dict(pods[bind.pod].needs.request))
                why = why or _port_taken(pods[bind.pod], came.get(bind.node, ()))
        for node, amounts in taken.items():
            # a node that is too full of a resource refuses what asks for it, nothing more
            short = next((name for name, amount in amounts.items() if amount > max(0, free[node][name])), "")
            why = why or (f"the {short} that was free on {node} has been taken" if short else "")
        if why:
            out[gang] = why
            continue
        for node, amounts in taken.items():
            free[node].subtract(amounts)
    return out


def _is_new(pod: Pod, there: Mapping[str, Pod]) -> bool:
    """Whether it has come to its node since, or asks for something else there (resized in place)."""
    old = there.get(pod.key)
    if old is pod:
        return False
    return old is None or old.uid != pod.uid or old.node != pod.node or old.needs != pod.needs


def _changed(
    bind: Bind,
    there: Mapping[str, Pod],
    pods: Mapping[str, Pod],
    was: Mapping[str, Node],
    nodes: Mapping[str, Node],
) -> str:
    """What is wrong with the pod or the node that was not when the bind was decided: pods may tolerate the rest."""
    pod, node = pods.get(bind.pod), nodes.get(bind.node)
    if pod is None or pod.uid != there[bind.pod].uid or pod.terminating or pod.finished:
        return f"{bind.pod} is gone"
    if pod.node:
        return f"{bind.pod} is on {pod.node}"
    if node is None or not node.ready or (node.unschedulable and not was[bind.node].unschedulable):
        return f"{bind.node} takes no pods any more"
    if repelled(pod.needs.tolerations, [taint for taint in node.taints if taint not in was[bind.node].taints]):
        return f"{bind.node} is tainted now"
    return ""


def _port_taken(pod: Pod, came: Iterable[Pod]) -> str:
    for other in came:
        for theirs in other.needs.ports:
            if any(conflict(theirs, ours) for ours in pod.needs.ports):
                return f"host port {theirs.port} that was free on {other.node} has been taken"
    return ""

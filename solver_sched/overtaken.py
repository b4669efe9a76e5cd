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
from solver_sched.snapshot import Snapshot


def overtaken(before: Snapshot, now: Snapshot, binds: Iterable[Bind]) -> dict[str, str]:
    """Gang -> why it is not bound, of those for which `before` has held and `now` does not; the first to be bound keeps
    its room. Pods that have come to a node count by their requests alone.
    """
    there, pods = {pod.key: pod for pod in before.pods}, {pod.key: pod for pod in now.pods}
    nodes = {node.name: node for node in now.nodes}
    came = {pod.node or "" for pod in now.pods if pod.node and not pod.finished and _is_new(pod, there)}
    free: dict[str, Counter[str]] = {name: Counter(dict(nodes[name].allocatable)) for name in came & nodes.keys()}
    for pod in now.pods:
        if pod.node in free and not pod.finished:
            free[pod.node].subtract(dict(pod.needs.request))
    gangs: dict[str, list[Bind]] = {}
    for bind in binds:
        gangs.setdefault(bind.pod_group, []).append(bind)
    out: dict[str, str] = {}
    for gang, parts in gangs.items():
        why = next((said for bind in parts if (said := _changed(bind, there, pods, nodes))), "")
        taken: dict[str, Counter[str]] = {}
        for bind in () if why else parts:
            if bind.node in free:
                taken.setdefault(bind.node, Counter()).update(dict(pods[bind.pod].needs.request))
        for node, amounts in taken.items():
            short = next((name for name, amount in amounts.items() if amount > free[node][name]), "")
            why = why or (f"the {short} that was free on {node} has been taken" if short else "")
        if why:
            out[gang] = why
            continue
        for node, amounts in taken.items():
            free[node].subtract(amounts)
    return out


def _is_new(pod: Pod, there: Mapping[str, Pod]) -> bool:
    old = there.get(pod.key)
    return old is not pod and (old is None or old.uid != pod.uid or old.node != pod.node)


def _changed(bind: Bind, there: Mapping[str, Pod], pods: Mapping[str, Pod], nodes: Mapping[str, Node]) -> str:
    pod, node = pods.get(bind.pod), nodes.get(bind.node)
    if pod is None or pod.uid != there[bind.pod].uid or pod.terminating or pod.finished:
        return f"{bind.pod} is gone"
    if pod.node:
        return f"{bind.pod} is on {pod.node}"
    if node is None or node.unschedulable or not node.ready:
        return f"{bind.node} takes no pods any more"
    return ""

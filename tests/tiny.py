"""Tiny clusters in the words of `models/instances`, and the same clusters as Kubernetes objects.

Nothing here imports the project: the reference in `reference.py` reads these values, the scheduler reads the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

Amounts = Mapping[str, int]
"""Resource -> amount; `cpu` in milli-CPU, all others in whole units; `pods` is implied."""

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SLOTS = 110
PREEMPT, RECLAIM = {"preempt", "gangpreempt"}, {"reclaim", "gangreclaim"}
EVICTING = PREEMPT | RECLAIM
PLUGINS = ("priority", "gang", "predicates", "proportion", "drf", "nodeorder")


@dataclass(frozen=True)
class Node:
    alloc: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)
    taint: str = ""


@dataclass(frozen=True)
class Pods:
    """Equal pods of one job. `node` "" = pending, else the node they run on (or, `succeeded`, ran on).

    `started`: seconds, None = when the job was created. `polite`: `preemptionPolicy: Never`. `nominated`: the node that
    an earlier cycle promised to pending pods.
    """

    count: int
    request: Amounts
    role: str = ""
    priority: int | None = None
    node: str = ""
    succeeded: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerates: str = ""
    port: int = 0
    preemptable: bool = True
    terminating: bool = False
    polite: bool = False
    started: int | None = None
    nominated: str = ""

    @property
    def runs(self) -> bool:
        """Terminating pods do not: what they hold counts as free."""
        return bool(self.node) and not self.succeeded and not self.terminating


@dataclass(frozen=True)
class Job:
    """`apart`: label key; no two pods in one domain. `near`: (job, key); only where a pod of that job is, which may
    be the job itself. `away`: (job, key); never where a pod of that job is. `spread`: (key, max skew).
    The key of single nodes is `kubernetes.io/hostname`, short `node`.
    """

    queue: str
    pods: tuple[Pods, ...]
    min: int = 1
    roles: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    created: int = 0
    apart: str = ""
    near: tuple[str, str] | None = None
    away: tuple[str, str] | None = None
    spread: tuple[str, int] | None = None

    def pod_priority(self, pods: Pods) -> int:
        return self.priority if pods.priority is None else pods.priority


@dataclass(frozen=True)
class Queue:
    weight: int = 1
    deserved: Amounts | None = None
    capability: Amounts | None = None
    guarantee: Amounts | None = None
    priority: int = 0
    reclaimable: bool = True


@dataclass(frozen=True)
class Budget:
    """A disruption budget over the pods of some jobs: so many of them may still be evicted."""

    jobs: tuple[str, ...]
    allowed: int


@dataclass(frozen=True)
class Cluster:
    """`foreign`: (node, amounts) of pods of another scheduler. `plugins` in tier order, all in one tier.

    `switches`: plugin -> its `enable..` switches; what is not named is on.
    """

    nodes: Mapping[str, Node]
    queues: Mapping[str, Queue]
    jobs: Mapping[str, Job]
    foreign: tuple[tuple[str, Amounts], ...] = ()
    plugins: tuple[str, ...] = PLUGINS
    actions: tuple[str, ...] = ("enqueue", "allocate", "backfill")
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    moves: int = 10

    @property
    def now(self) -> int:
        """Seconds: the newest time, as for a cluster read from files."""
        started = [p.started or 0 for job in self.jobs.values() for p in job.pods]
        return max([0, *(job.created for job in self.jobs.values()), *started])

    @property
    def evicting(self) -> bool:
        return not EVICTING.isdisjoint(self.actions)

    @property
    def moving(self) -> bool:
        return "consolidation" in self.actions and self.moves > 0


@dataclass(frozen=True)
class Instance:
    """A hand-worked cluster; the comments of its file work out `levels`; `placed`, `evicted`, `moved`: pods per job."""

    name: str
    intent: str
    covers: str
    cluster: Cluster
    grain: int
    k: int
    levels: Mapping[str, int]
    placed: Mapping[str, int]
    evicted: Mapping[str, int]
    moved: Mapping[str, int]


def amounts(words: Mapping[str, Any]) -> dict[str, int]:
    """`{cpu: 1.5, gpu: 2}` -> `{cpu: 1500, gpu: 2}`."""
    return {r: int(Fraction(str(v)) * (1000 if r == "cpu" else 1)) for r, v in words.items()}


def _pods(words: Mapping[str, Any]) -> Pods:
    rest = dict(words)
    known = {key: rest.pop(key) for key in list(rest) if key in Pods.__dataclass_fields__ and key != "request"}
    return Pods(count=known.pop("count", 1), request=amounts(rest), **known)


def _job(words: Mapping[str, Any]) -> Job:
    rest = dict(words)
    pods = tuple(_pods(p) for p in rest.pop("pods"))
    rules: dict[str, Any] = {rule: tuple(rest.pop(rule)) for rule in ("near", "away", "spread") if rule in rest}
    return Job(queue=rest.pop("queue", "default"), pods=pods, **rules, **rest)


def _node(words: Mapping[str, Any]) -> Node:
    rest = dict(words)
    labels, taint = rest.pop("labels", {}), rest.pop("taint", "")
    return Node({"pods": SLOTS, **amounts(rest)}, labels, taint)


def _queue(words: Mapping[str, Any] | None) -> Queue:
    words = words or {}
    given = {key: amounts(words[key]) for key in ("deserved", "capability", "guarantee") if key in words}
    return Queue(
        words.get("weight", 1), **given, priority=words.get("priority", 0), reclaimable=words.get("reclaimable", True)
    )


def cluster(words: Mapping[str, Any]) -> Cluster:
    """The cluster part of an instance file."""
    settings = {key: tuple(words[key]) for key in ("plugins", "actions") if key in words}
    return Cluster(
        nodes={name: _node(w) for name, w in words["nodes"].items()},
        queues={name: _queue(w) for name, w in words.get("queues", {"default": None}).items()},
        jobs={name: _job(w) for name, w in words["jobs"].items()},
        foreign=tuple(
            (w["node"], amounts({r: v for r, v in w.items() if r != "node"})) for w in words.get("foreign", ())
        ),
        budgets={name: Budget(tuple(w["jobs"]), w["allowed"]) for name, w in words.get("budgets", {}).items()},
        switches=words.get("switches", {}),
        moves=words.get("moves", 10),
        **settings,
    )


def read(path: Path) -> Instance:
    """One file of `models/instances`."""
    words = yaml.safe_load(path.read_text())
    return Instance(
        path.stem,
        words["intent"],
        words["covers"],
        cluster(words),
        words["grain"],
        words.get("k", 1000),
        words["levels"],
        words["placed"],
        words.get("evicted", {}),
        words.get("moved", {}),
    )


def objects(tiny: Cluster) -> list[dict[str, Any]]:
    """The cluster as Kubernetes manifests (Volcano's group and queue API)."""
    out = [_node_object(name, node) for name, node in tiny.nodes.items()]
    out += [_queue_object(name, queue) for name, queue in tiny.queues.items()]
    priorities = {job.priority for job in tiny.jobs.values()} | {
        job.pod_priority(pods) for job in tiny.jobs.values() for pods in job.pods
    }
    out += [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": _class(p)}, "value": p}
        for p in sorted(priorities)
    ]
    out += [_budget_object(name, budget) for name, budget in tiny.budgets.items()]
    for i, (node, request) in enumerate(tiny.foreign):
        out.append(_pod_object(f"foreign-{i}", "default-scheduler", 0, Pods(1, request, node=node), {}))
    for name, job in tiny.jobs.items():
        out.append(_group_object(name, job))
        number = 0
        for pods in job.pods:
            for _ in range(pods.count):
                pod = _pod_object(f"{name}-{number}", "volcano", job.created, pods, {"job": name})
                pod["metadata"]["annotations"] = {
                    "scheduling.k8s.io/group-name": name,
                    "volcano.sh/task-spec": pods.role,
                    **({} if pods.preemptable else {"volcano.sh/preemptable": "false"}),
                }
                pod["spec"] |= _placement_rules(name, job) | {
                    "priority": job.pod_priority(pods),
                    "priorityClassName": _class(job.pod_priority(pods)),
                }
                out.append(pod)
                number += 1
    return out


def policy(tiny: Cluster) -> dict[str, Any]:
    plugins = [{"name": name, **tiny.switches.get(name, {})} for name in tiny.plugins]
    return {
        "actions": ", ".join(tiny.actions),
        "tiers": [{"plugins": plugins}],
        "solver": {"moves": tiny.moves},
    }


def _class(priority: int) -> str:
    return f"p{priority}"


def _time(seconds: int) -> str:
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quantities(request: Amounts) -> dict[str, str]:
    return {r: f"{v}m" if r == "cpu" else str(v) for r, v in request.items()}


def _key(short: str) -> str:
    return "kubernetes.io/hostname" if short == "node" else short


def _node_object(name: str, node: Node) -> dict[str, Any]:
    taints = [{"key": node.taint, "effect": "NoSchedule"}] if node.taint else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**node.labels, "kubernetes.io/hostname": name},
            "creationTimestamp": _time(0),
        },
        "spec": {"taints": taints},
        "status": {"allocatable": _quantities(node.alloc), "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _queue_object(name: str, queue: Queue) -> dict[str, Any]:
    spec: dict[str, Any] = {"weight": queue.weight, "priority": queue.priority, "reclaimable": queue.reclaimable}
    if queue.deserved is not None:
        spec["deserved"] = _quantities(queue.deserved)
    if queue.capability is not None:
        spec["capability"] = _quantities(queue.capability)
    if queue.guarantee is not None:
        spec["guarantee"] = {"resource": _quantities(queue.guarantee)}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "creationTimestamp": _time(0)},
        "spec": spec,
        "status": {"state": "Open"},
    }


def _budget_object(name: str, budget: Budget) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": name, "creationTimestamp": _time(0)},
        "spec": {
            "maxUnavailable": budget.allowed,
            "selector": {"matchExpressions": [{"key": "job", "operator": "In", "values": list(budget.jobs)}]},
        },
        "status": {"disruptionsAllowed": budget.allowed},
    }


def _group_object(name: str, job: Job) -> dict[str, Any]:
    spec: dict[str, Any] = {"minMember": job.min, "queue": job.queue, "priorityClassName": _class(job.priority)}
    if job.roles:
        spec["minTaskMember"] = dict(job.roles)
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"namespace": "default", "name": name, "creationTimestamp": _time(job.created)},
        "spec": spec,
        "status": {"phase": "Inqueue"},
    }


def _pod_object(name: str, scheduler: str, created: int, pods: Pods, labels: dict[str, str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "work", "resources": {"requests": _quantities(pods.request)}}
    if pods.port:
        container["ports"] = [{"containerPort": pods.port, "hostPort": pods.port}]
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
    if pods.node:
        spec["nodeName"] = pods.node
    if pods.selector:
        spec["nodeSelector"] = dict(pods.selector)
    if pods.tolerates:
        spec["tolerations"] = [{"key": pods.tolerates, "operator": "Exists"}]
    if pods.polite:
        spec["preemptionPolicy"] = "Never"
    metadata: dict[str, Any] = {
        "namespace": "default",
        "name": name,
        "labels": labels,
        "creationTimestamp": _time(created),
    }
    if pods.terminating:
        metadata["deletionTimestamp"] = _time(created)
    status = {"phase": "Succeeded" if pods.succeeded else "Running" if pods.node else "Pending"}
    if pods.node:
        status["startTime"] = _time(created if pods.started is None else pods.started)
    if pods.nominated:
        status["nominatedNodeName"] = pods.nominated
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _placement_rules(name: str, job: Job) -> dict[str, Any]:
    def term(other: str, key: str) -> dict[str, Any]:
        return {"labelSelector": {"matchLabels": {"job": other}}, "topologyKey": _key(key)}

    spec: dict[str, Any] = {"affinity": {}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    repelled = ([term(name, job.apart)] if job.apart else []) + ([term(*job.away)] if job.away else [])
    if repelled:
        spec["affinity"]["podAntiAffinity"] = {required: repelled}
    if job.near:
        spec["affinity"]["podAffinity"] = {required: [term(*job.near)]}
    if job.spread:
        key, skew = job.spread
        spec["topologySpreadConstraints"] = [{"maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **term(name, key)}]
    return spec

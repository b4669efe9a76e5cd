"""Random small clusters: crowded enough that most have to choose, odd enough that every rule binds now and then.

One generator for all uses. `snapshots()` drives it by hypothesis, which shrinks what fails; benchmarks seed it.
`crowds()` are tinier: clusters in the words of `tests.tiny`, full of running work, for the reference to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_line
from random import Random
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.cluster.objects import (
    Budget,
    HostPort,
    Needs,
    Node,
    NodeTerm,
    Pod,
    PodGroup,
    PodTerm,
    Queue,
    Requirement,
    Spread,
    Taint,
    Toleration,
)
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.snapshot import Snapshot
from tests import tiny

T = TypeVar("T")
GPU = "nvidia.com/gpu"
HOST, ZONE = "kubernetes.io/hostname", "zone"
NOW = 10_000
HUGE = (0, 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1)
"""Amounts that break sums, products and floats."""


def snapshots(*, hostile: bool = False) -> st.SearchStrategy[Snapshot]:
    """Clusters of at most 6 nodes and 8 groups; `hostile` ones have absurd numbers too."""
    return st.randoms(use_true_random=False).map(lambda rng: random_snapshot(rng, hostile=hostile))


def random_snapshot(rng: Random, *, hostile: bool = False) -> Snapshot:
    """One cluster. The same `rng` state gives the same value."""
    gpus = rng.random() < 0.5
    nodes = [
        _node(rng, f"n{i}", gpus)
        for i in range(rng.choice([0, 1, 2, 3, 3, 4, 5, 6] if hostile else [1, 2, 3, 3, 4, 6]))
    ]
    names = [node.name for node in nodes]
    queues = [_queue(rng, f"q{i}", gpus) for i in range(rng.choice([1, 2, 2, 3]))]
    groups: list[PodGroup] = []
    pods: list[Pod] = []
    for i in range(rng.randint(0, 8)):
        group, members = _group(rng, f"g{i}", [queue.name for queue in queues], names, gpus)
        groups.append(group)
        pods += members
    pods += [
        _pod(f"lone{i}", _needs(rng, gpus, "lone"), created=_time(rng)) for i in range(rng.choice([0, 0, 0, 1, 2]))
    ]
    if names:
        for i in range(rng.choice([0, 0, 1, 2])):
            needs = Needs(request=_request({"cpu": rng.choice([500, 1000, 3000])}))
            pods.append(_pod(f"other{i}", needs, node=rng.choice(names), scheduler="default-scheduler"))
    made = Snapshot(nodes=tuple(nodes), pods=tuple(pods), groups=tuple(groups), queues=tuple(queues), now=NOW)
    return in_order(_absurd(rng, made) if hostile else made)


def full_snapshots() -> st.SearchStrategy[Snapshot]:
    """Clusters full of running gangs, with a few that wait."""
    return st.randoms(use_true_random=False).map(full_snapshot)


def full_snapshot(rng: Random) -> Snapshot:
    """One of them: at most 6 nodes, 7 running and 4 waiting groups. Equal `rng` states give equal values."""
    gpus = rng.random() < 0.4
    nodes = [_node(rng, f"n{i}", gpus) for i in range(rng.choice([1, 2, 3, 3, 4, 6]))]
    queues = [
        replace(
            _queue(rng, f"q{i}", gpus),
            weight=rng.choice([1, 1, 2]),
            reclaimable=rng.random() > 0.15,
            priority=rng.choice([0, 0, 5]),
        )
        for i in range(rng.choice([1, 2, 2, 3]))
    ]
    left = {node.name: dict(node.allocatable) for node in nodes}
    groups: list[PodGroup] = []
    pods: list[Pod] = []
    for i in range(rng.randint(2, 7)):
        members = _running(rng, f"g{i}", left, gpus)
        if members:
            groups.append(_running_group(rng, f"g{i}", queues if rng.random() < 0.5 else queues[:1], members))
            pods += members
    for i in range(rng.randint(1, 4)):
        group, members = _group(rng, f"w{i}", [queue.name for queue in queues], [], gpus)
        priority = rng.choice([0, 10, 10, 20])
        polite, promised = rng.random() < 0.1, rng.choice(nodes).name if rng.random() < 0.15 else None
        groups.append(replace(group, priority=priority))
        pods += [
            replace(pod, priority=priority, preempts=not polite, nominated=promised if not pod.node else None)
            for pod in members
        ]
    other = rng.choice(nodes)
    if rng.random() < 0.3 and left[other.name].get("cpu", 0) >= 500:
        needs = Needs(request=_request({"cpu": 500}))
        pods.append(_pod("other", needs, node=other.name, scheduler="default-scheduler"))
    budgets = [
        Budget("ns", f"b{i}", (Requirement("job", "In", tuple(f"g{j}" for j in range(7) if rng.random() < 0.5)),), n)
        for i, n in enumerate(rng.choice([[], [], [0], [1], [2], [1, 3]]))
    ]
    made = Snapshot(
        nodes=tuple(nodes),
        pods=tuple(pods),
        groups=tuple(groups),
        queues=tuple(queues),
        budgets=tuple(budgets),
        now=NOW,
    )
    return in_order(made)


def _running(rng: Random, name: str, left: dict[str, dict[str, int]], gpus: bool) -> list[Pod]:
    """Pods of one or two kinds wherever they still fit; takes their room. A few are on their way out, or to come."""
    out: list[Pod] = []
    kept, system, young = rng.random() < 0.1, rng.random() < 0.05, rng.random() < 0.2
    for row in range(rng.choice([1, 1, 2])):
        request = {
            "cpu": rng.choice([500, 1000, 1000, 2000]),
            "memory": rng.choice([0, 1, 1, 2]),
            GPU: rng.choice([0, 0, 1, 2]) if gpus else 0,
        }
        needs = Needs(request=_request(request))
        for _ in range(rng.choice([1, 2, 2, 3, 4])):
            fits = [n for n, room in left.items() if all(room.get(r, 0) >= v for r, v in needs.request)]
            if not fits:
                continue
            node = rng.choice(fits)
            for r, v in needs.request:
                left[node][r] -= v
            pod = _pod(f"{name}-{len(out)}", needs, node=node, created=1)
            out.append(
                replace(
                    pod,
                    group=f"ns/{name}",
                    index=len(out),
                    role="ab"[row],
                    priority=rng.choice([0, 0, 0, 5]),
                    started=rng.choice([0, 1, NOW - 700, NOW - 50]),
                    preemptable=not kept,
                    priority_class="system-node-critical" if system else "",
                    labels={**pod.labels, **({"volcano.sh/cooldown-time": "10m"} if young else {})},
                    terminating=rng.random() < 0.05,
                )
            )
    return out


def _running_group(rng: Random, name: str, queues: Sequence[Queue], members: list[Pod]) -> PodGroup:
    """Rigid or elastic; adds to its members a pod that is pending now and then, as growth or as what was lost."""
    total = len(members)
    least = rng.choice([0, 1, total, total, rng.randint(1, total)])
    if rng.random() < 0.2:
        last = members[-1]
        lost = _pod(f"{name}-{total}", last.needs, created=1)
        members.append(replace(lost, group=last.group, index=total, role=last.role, priority=last.priority))
        least = rng.choice([least, least, total + 1])
    roles = dict.fromkeys(sorted({pod.role for pod in members}), 1) if rng.random() < 0.4 else {}
    return PodGroup(
        "ns",
        name,
        "scheduling.volcano.sh/v1beta1",
        min_member=least,
        queue=rng.choice(queues).name,
        min_task_member=roles,
        priority=rng.choice([0, 0, 10]),
        created=1,
        phase="Running",
    )


def crowds() -> st.SearchStrategy[tiny.Cluster]:
    """Tiny full clusters in which something may be evicted: the reference needs about a second for one."""
    return st.randoms(use_true_random=False).map(random_crowd)


def random_crowd(rng: Random) -> tiny.Cluster:
    """One of them: at most 3 nodes and queues, 5 running and 3 waiting jobs. Equal `rng` states give equal values."""
    slots = rng.choice([4, 110, 110, 110])
    nodes = {f"n{i}": tiny.Node({"pods": slots, "cpu": 4000, "memory": 8}) for i in range(rng.randint(1, 3))}
    queues = {f"q{i}": _crowd_queue(rng) for i in range(rng.choice([1, 2, 2, 2, 3]))}
    now = rng.choice([120, 120, 120, 7200])
    left = {name: dict(node.alloc) for name, node in nodes.items()}
    jobs: dict[str, tiny.Job] = {}
    for i in range(rng.randint(2, 5)):
        pods = _crowd_running(rng, left)
        if pods:
            jobs[f"r{i}"] = _crowd_job(rng, queues, pods, created=1)
    for i in range(rng.randint(1, 3)):
        request = _crowd_request(rng)
        waiting = tiny.Pods(
            rng.randint(1, 3),
            request,
            polite=rng.random() < 0.15,
            nominated=rng.choice(list(nodes)) if rng.random() < 0.15 else "",
        )
        jobs[f"w{i}"] = _crowd_job(rng, queues, [waiting], created=now if i == 0 else rng.choice([1, now - 60, now]))
    sharing = rng.choice([["proportion"], ["proportion"], ["proportion"], ["capacity"], []])
    drf = ["drf"] if rng.random() < 0.7 else []
    actions = rng.choice(
        [["preempt"], ["preempt"], ["reclaim"], ["preempt", "reclaim"], ["gangpreempt", "gangreclaim"]]
    )
    switches = {
        plugin: {switch: False}
        for plugin, switch, chance in [
            ("gang", "enablePreemptable", 0.5),
            ("drf", "enablePreemptable", 0.5),
            ("proportion", "enableReclaimable", 0.1),
        ]
        if rng.random() < chance
    }
    budgets = {}
    if rng.random() < 0.3:
        budgets["calm"] = tiny.Budget(tuple(rng.sample(list(jobs), rng.randint(1, len(jobs)))), rng.randint(0, 2))
    return tiny.Cluster(
        nodes,
        queues,
        jobs,
        plugins=("priority", "gang", "predicates", *sharing, *drf, "nodeorder"),
        actions=("enqueue", "allocate", "backfill", *actions),
        budgets=budgets,
        switches=switches,
    )


def _crowd_queue(rng: Random) -> tiny.Queue:
    def some(chance: float) -> dict[str, int] | None:
        return {"cpu": 1000 * rng.randint(1, 6), "memory": rng.randint(1, 8)} if rng.random() < chance else None

    return tiny.Queue(
        rng.choice([1, 1, 2]),
        deserved=some(0.7),
        capability=some(0.1),
        guarantee=some(0.15),
        priority=rng.choice([0, 0, 5]),
        reclaimable=rng.random() > 0.15,
    )


def _crowd_request(rng: Random) -> dict[str, int]:
    memory = rng.choice([0, 0, 1, 2, 3])
    return {"cpu": rng.choice([500, 1000, 1000, 2000, 3000])} | ({"memory": memory} if memory else {})


def _crowd_running(rng: Random, left: dict[str, dict[str, int]]) -> list[tiny.Pods]:
    """Pods of one request wherever they still fit; takes their room."""
    request = _crowd_request(rng)
    kept = rng.random() > 0.1
    out: list[tiny.Pods] = []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        fits = [n for n, room in left.items() if room["pods"] and all(room[r] >= v for r, v in request.items())]
        if fits:
            node = rng.choice(fits)
            for r, v in {**request, "pods": 1}.items():
                left[node][r] -= v
            started = rng.choice([None, None, 20, 50])
            out.append(
                tiny.Pods(1, request, node=node, preemptable=kept, terminating=rng.random() < 0.07, started=started)
            )
    return out


def _crowd_job(rng: Random, queues: Mapping[str, tiny.Queue], pods: Sequence[tiny.Pods], created: int) -> tiny.Job:
    """Rigid or elastic; one that runs has pending pods now and then, as growth or as what it has lost."""
    total = sum(line.count for line in pods)
    least = rng.choice([1, total, total, rng.randint(1, total)])
    if created == 1 and rng.random() < 0.2:
        pods = [*pods, tiny.Pods(1, pods[0].request)]
        least = rng.choice([least, least, total + 1])
    if rng.random() < 0.15:
        pods = [replace_line(line, role=role) for line, role in zip(pods, "abababab", strict=False)]
    roles = sorted({line.role for line in pods if line.role})
    return tiny.Job(
        queue=rng.choice(list(queues)),
        pods=tuple(pods),
        min=least,
        roles=dict.fromkeys(roles, 1) if rng.random() < 0.7 else {},
        priority=rng.choice([0, 0, 10] if created == 1 else [0, 10, 10, 20]),
        created=created,
    )


def in_order(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a reader leaves it: everything by name."""
    return replace(
        snapshot,
        nodes=tuple(sorted(snapshot.nodes, key=lambda node: node.name)),
        pods=tuple(sorted(snapshot.pods, key=lambda pod: pod.key)),
        groups=tuple(sorted(snapshot.groups, key=lambda group: group.key)),
        queues=tuple(sorted(snapshot.queues, key=lambda queue: queue.name)),
    )


def shuffled(snapshot: Snapshot, rng: Random) -> Snapshot:
    """Every tuple in another order, and nodes, groups and queues under each other's names.

    Rows come from names, so new names permute every axis. Pods keep their place in their group: it is the task order.
    """
    node = _renaming(rng, [node.name for node in snapshot.nodes])
    queue = _renaming(rng, [queue.name for queue in snapshot.queues])
    group = _renaming(rng, [group.name for group in snapshot.groups])

    def pod(old: Pod) -> Pod:
        moved = replace(old, node=node[old.node]) if old.node else old
        if old.group is None:
            return moved
        first, _, number = old.name.rpartition("-")
        return replace(moved, group=f"ns/{group[first]}", name=f"{group[first]}-{number}")

    return replace(
        snapshot,
        nodes=_mixed(rng, [replace(old, name=node[old.name]) for old in snapshot.nodes]),
        pods=_mixed(rng, [pod(old) for old in snapshot.pods]),
        groups=_mixed(
            rng, [replace(g, name=group[g.name], queue=queue.get(g.queue, g.queue)) for g in snapshot.groups]
        ),
        queues=_mixed(rng, [replace(old, name=queue[old.name]) for old in snapshot.queues]),
    )


def random_plan(rng: Random, problem: Problem, start: Plan) -> Plan:
    """`start` or nothing, with pods taken out and others thrown in, mostly where they fit: near the rules' edge."""
    table: dict[tuple[int, int], int] = {}
    if rng.random() < 0.7:
        table = {
            (t, n): c for t, n, c in zip(start.pod_set.tolist(), start.node.tolist(), start.count.tolist(), strict=True)
        }
    rows = list(table)
    for at in rng.sample(rows, min(len(rows), rng.choice([0, 0, 0, 1, 1, 2]))):
        table[at] -= rng.randint(1, table[at])
    if rng.random() < 0.15 and rows:
        gone = problem.set_job[rng.choice(rows)[0]]  # a whole job less: what it held is free
        table = {at: count for at, count in table.items() if problem.set_job[at[0]] != gone}
    left = problem.set_count.copy()
    free = problem.node_free.copy()
    for (t, n), count in table.items():
        left[t] -= count
        free[n] -= count * problem.request[problem.set_shape[t]]
    for t in rng.sample(range(len(left)), min(len(left), rng.choice([0, 0, 1, 2, len(left)]))):
        request = problem.request[problem.set_shape[t]]
        for _ in range(rng.choice([0, int(left[t]), rng.randint(0, int(left[t]))])):
            fits = ((free >= request) | (request == 0)).all(axis=1)
            nodes = np.flatnonzero(fits | (rng.random() < 0.03)).tolist()
            if nodes:
                n = rng.choice(nodes)
                free[n] -= request
                table[t, n] = table.get((t, n), 0) + 1
    out = np.array([(t, n, count) for (t, n), count in sorted(table.items()) if count], np.int64).reshape(-1, 3)
    return Plan(out[:, 0], out[:, 1], out[:, 2])


def _renaming(rng: Random, names: Sequence[str]) -> dict[str, str]:
    other = list(names)
    rng.shuffle(other)
    return dict(zip(names, other, strict=True))


def _mixed(rng: Random, items: Sequence[T]) -> tuple[T, ...]:
    return tuple(rng.sample(items, len(items)))


def _time(rng: Random) -> int:
    # 1: waits for longer than an hour, so it ranks above its own priority
    return rng.choice([1, NOW - 120, NOW - 60, NOW - 60, NOW])


def _request(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({**{r: v for r, v in amounts.items() if v}, "pods": 1}.items()))


def _node(rng: Random, name: str, gpus: bool) -> Node:
    alloc = {
        "cpu": rng.choice([2000, 4000, 4000, 6000]),
        "memory": rng.choice([4, 8, 8]),
        "pods": rng.choice([2, 4, 110, 110]),
    }
    if gpus:
        alloc[GPU] = rng.choice([0, 2, 4, 4])
    labels = {HOST: name} | ({ZONE: rng.choice("aab")} if rng.random() < 0.9 else {})
    taints = (Taint("only", "", rng.choice(["NoSchedule", "PreferNoSchedule"])),) if rng.random() < 0.2 else ()
    return Node(name, alloc, labels, taints, unschedulable=rng.random() < 0.04, ready=rng.random() > 0.04)


def _queue(rng: Random, name: str, gpus: bool) -> Queue:
    def some(chance: float, gpu: int, cpu: int) -> dict[str, int] | None:
        if rng.random() >= chance:
            return None
        amounts = {"cpu": 1000 * rng.randint(0, cpu), "memory": rng.randint(0, 8)} | (
            {GPU: rng.randint(0, gpu)} if gpus else {}
        )
        return {r: v for r, v in amounts.items() if rng.random() < 0.8}

    return Queue(
        name,
        weight=rng.choice([0, 1, 1, 2, 3]),
        capability=some(0.25, 5, 8),
        deserved=some(0.6, 4, 6),
        guarantee=some(0.2, 2, 3),
        state="Closed" if rng.random() < 0.04 else "Open",
    )


def _needs(rng: Random, gpus: bool, job: str) -> Needs:
    if rng.random() < 0.08:
        return Needs()  # best effort
    request = {
        "cpu": rng.choice([500, 1000, 1000, 1500, 2000, 3000]),
        "memory": rng.choice([0, 1, 1, 2, 3]),
        GPU: rng.choice([0, 1, 1, 2]) if gpus else 0,
    }
    needs = Needs(request=_request(request))
    if rng.random() < 0.1:
        needs = replace(needs, node_selector=((ZONE, rng.choice("ab")),))
    if rng.random() < 0.15:
        needs = replace(needs, tolerations=(Toleration("only", "Exists"),))
    if rng.random() < 0.15:
        liked = NodeTerm((Requirement(ZONE, "In", (rng.choice("ab"),)),))
        needs = replace(needs, preferred_nodes=((rng.choice([1, 50]), liked),))
    if rng.random() < 0.1:
        needs = replace(needs, ports=(HostPort("", "TCP", rng.choice([80, 81])),))
    return _between(rng, needs, job) if rng.random() < 0.2 else needs


def _between(rng: Random, needs: Needs, job: str) -> Needs:
    """Rules between pods, those of the job itself or of another."""
    other = rng.choice([job, job, "g0", "g1"])
    selector = (Requirement("job", "In", (other,)),)
    term = PodTerm(rng.choice([HOST, ZONE, ZONE]), selector, ("ns",))
    match rng.randint(0, 3):
        case 0 | 1:
            return replace(needs, anti_affinity=(term,))
        case 2:
            return replace(needs, affinity=(term,))
        case _:
            return replace(
                needs, spread=(Spread(ZONE, rng.choice([1, 1, 2]), True, (Requirement("job", "In", (job,)),)),)
            )


def _pod(
    name: str, needs: Needs, *, node: str | None = None, scheduler: str = "solver-sched", created: int = NOW
) -> Pod:
    phase = "Running" if node else "Pending"
    return Pod(
        "ns",
        name,
        needs,
        labels={"job": name.partition("-")[0]},
        phase=phase,
        node=node,
        scheduler=scheduler,
        created=created,
    )


def _group(
    rng: Random, name: str, queues: Sequence[str], nodes: Sequence[str], gpus: bool
) -> tuple[PodGroup, list[Pod]]:
    """A job: rigid or elastic, one or two roles, now and then partly running, with a held or finished pod, or empty."""
    needs = [_needs(rng, gpus, name) for _ in range(rng.choice([1, 1, 2]))]
    created, priority = _time(rng), rng.choice([0, 0, 10])
    pods: list[Pod] = []
    for row, need in enumerate(needs):
        own = priority if rng.random() < 0.8 else rng.choice([0, 5])
        for _ in range(rng.choice([1, 1, 2, 3])):
            pod = _pod(f"{name}-{len(pods)}", need, created=created)
            pods.append(replace(pod, role="ab"[row], priority=own, group=f"ns/{name}", index=len(pods)))
    if nodes and rng.random() < 0.3:
        for i in rng.sample(range(len(pods)), rng.randint(1, len(pods))):
            pods[i] = replace(pods[i], node=rng.choice(nodes), phase="Running")
    if rng.random() < 0.08:
        i = rng.randrange(len(pods))
        odd = [replace(pods[i], phase="Succeeded"), replace(pods[i], terminating=True)]
        pods[i] = rng.choice(
            [*odd, replace(pods[i], gates=("wait",)), replace(pods[i], hold="Claims: a claim is missing")]
        )
    roles = {role: rng.randint(1, 2) for role in "ab"[: len(needs)]} if rng.random() < 0.3 else {}
    total = len(pods)
    group = PodGroup(
        "ns",
        name,
        "scheduling.volcano.sh/v1beta1",
        min_member=rng.choice([0, 1, 1, total, total, rng.randint(1, total + 1), max(sum(roles.values()), 1)]),
        queue=rng.choice([*queues, *queues, *queues, "gone"]) if rng.random() < 0.3 else rng.choice(queues),
        min_task_member=roles,
        priority=priority,
        created=created,
        phase=rng.choice(["", "Pending", "Inqueue", "Running"]),
        suspended=rng.random() < 0.03,
    )
    return group, [] if rng.random() < 0.03 else pods


def _absurd(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Amounts, weights and minimums at the ends of their range, a few in each cluster."""

    def amount(value: int) -> int:
        return rng.choice(HUGE) if rng.random() < 0.25 else value

    def amounts(given: Mapping[str, int] | None) -> dict[str, int] | None:
        return None if given is None else {r: amount(v) for r, v in given.items()}

    def request(needs: Needs) -> Needs:
        return replace(needs, request=_request({r: amount(v) for r, v in needs.request if r != "pods"}))

    return replace(
        snapshot,
        nodes=tuple(replace(node, allocatable=amounts(node.allocatable)) for node in snapshot.nodes),
        pods=tuple(replace(pod, needs=request(pod.needs)) if rng.random() < 0.3 else pod for pod in snapshot.pods),
        groups=tuple(
            replace(g, min_member=rng.choice([0, g.min_member, g.min_member, 2**31])) for g in snapshot.groups
        ),
        queues=tuple(
            replace(
                queue,
                weight=rng.choice([0, queue.weight, 2**31]),
                capability=amounts(queue.capability),
                deserved=amounts(queue.deserved),
                guarantee=amounts(queue.guarantee),
            )
            for queue in snapshot.queues
        ),
    )

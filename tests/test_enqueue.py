"""Who is let in, beyond the stories of tests/cases/enqueue.yaml: what holds of every cluster."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.actions import enqueue as module
from solver_sched.actions.enqueue import WAITING, Entries, open_cycle
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue, ResourceQuota
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot, dump, load
from tests.strategies import HUGE, random_snapshot

DIALECT = "scheduling.volcano.sh/v1beta1"


def policy(*tiers: list[str | dict[str, Any]], actions: str = "enqueue, allocate, backfill") -> Policy:
    named = [[{"name": one} if isinstance(one, str) else one for one in tier] for tier in tiers]
    return load_policy({"actions": actions, "tiers": [{"plugins": tier} for tier in named]})


VOLCANO = policy(["priority", "gang", "sla"], ["overcommit", "predicates", "proportion", "resourcequota"])


def waiting(name: str, cpu: int | None, **fields: Any) -> PodGroup:
    """A group without pods; `cpu` in milli-CPU."""
    group = PodGroup("ns", name, DIALECT, phase="Pending", min_resources=None if cpu is None else {"cpu": cpu})
    return replace(group, **fields)


def entries(snapshot: Snapshot, by: Policy = VOLCANO) -> Entries:
    return open_cycle(snapshot, by)[3]


def asking_snapshot(rng: Random, *, hostile: bool = False) -> Snapshot:
    """A random cluster whose groups name minimums, half of them waiting."""

    def amount() -> int:
        return rng.choice(HUGE) if hostile and rng.random() < 0.3 else rng.choice([0, 500, 1000, 3000])

    snapshot = random_snapshot(rng, hostile=hostile)
    names = ["cpu", "memory", "nvidia.com/gpu", "requests.cpu", "example.com/none"]
    groups = tuple(
        replace(g, min_resources={r: amount() for r in rng.sample(names, rng.randint(0, 3))} or None)
        for g in snapshot.groups
    )
    quotas = (ResourceQuota("ns", "rq", {"requests.cpu": amount(), "count/pods": 9}),) if rng.random() < 0.5 else ()
    return replace(snapshot, groups=groups, quotas=quotas)


def test_a_cycle_without_waiting_groups_costs_one_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does one in which nobody is refused."""
    calls: list[Snapshot] = []

    def counted(snapshot: Snapshot, *refused: Any, **rest: Any) -> Any:
        calls.append(snapshot)
        return encode(snapshot, *refused, **rest)

    monkeypatch.setattr(module, "encode", counted)
    nodes = (Node("n", {"cpu": 4000, "pods": 9}),)
    pods = (Pod("ns", "g-0", Needs((("cpu", 1000), ("pods", 1))), group="ns/g", scheduler="solver-sched"),)
    for group in (waiting("g", 1000, phase="Inqueue"), waiting("g", 1000)):
        entries(Snapshot(nodes=nodes, pods=pods, groups=(group,)))
        assert len(calls) == 1
        calls.clear()
    entries(Snapshot(nodes=nodes, pods=pods, groups=(waiting("g", 9000),)))
    assert len(calls) == 2
    calls.clear()
    # refused without pods: nothing of it takes part anyway
    entries(Snapshot(nodes=nodes, groups=(waiting("g", 9000),)))
    assert len(calls) == 1


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_waiting_group_once_and_only_those(rng: Random, hostile: bool) -> None:
    """Whatever the numbers; and what is refused has no row, so that it is neither placed nor evicts."""
    snapshot = asking_snapshot(rng, hostile=hostile)
    problem, index, _, found = open_cycle(snapshot, VOLCANO)
    asked = [group.key for group in snapshot.groups if group.phase in WAITING]
    assert len(set(found.admitted)) == len(found.admitted)
    assert set(found.admitted) | set(found.refused) <= set(asked)
    assert not set(found.admitted) & set(found.refused)
    assert not set(found.refused) & set(index.jobs)
    for key, why in found.refused.items():
        assert why.code == "NotAdmitted" or (why.code, why.message) == index.held[key]
    # who is not refused is planned as before
    assert set(encode(snapshot)[1].jobs) - set(found.refused) == set(index.jobs)
    assert len(problem.job_min) == len(index.jobs)


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_promised_stays_within_the_factor(rng: Random, hostile: bool) -> None:
    """used + what each group let in lacks <= 1.2 x total, per resource that somebody newly let in asks for."""
    snapshot = asking_snapshot(rng, hostile=hostile)
    problem, index, _, found = open_cycle(snapshot, policy(["overcommit"]))
    total = dict(zip(index.resources, problem.total.tolist(), strict=True))
    used = dict(zip(index.resources, (problem.node_alloc - problem.node_free).sum(axis=0).tolist(), strict=True))
    held: dict[tuple[str | None, str], int] = {}
    for pod in snapshot.pods:
        if (pod.phase == "Succeeded" or pod.node or pod.phase == "Running") and not pod.terminating:
            for name, amount in pod.needs.request:
                held[pod.group, name] = held.get((pod.group, name), 0) + amount
    admitted = [group for group in snapshot.groups if group.key in found.admitted]
    for name in ("cpu", "memory", "nvidia.com/gpu", "example.com/none"):
        lacks = [max(0, (g.min_resources or {}).get(name, 0) - held.get((g.key, name), 0)) for g in admitted]
        if any(lacks):
            # pods pinned to some nodes count at most what those have, so the sum may only be compared without them
            unpinned = [x for g, x in zip(admitted, lacks, strict=True) if g.key not in index.jobs]
            assert used.get(name, 0) + sum(unpinned) <= Fraction(6, 5) * total.get(name, 0)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_who_is_refused_stands_in_nobodys_way(rng: Random) -> None:
    """Without the refused groups the same ones are let in."""
    by = policy(["priority", "gang"], ["overcommit", "resourcequota"])
    snapshot = asking_snapshot(rng)
    found = entries(snapshot, by)
    rest = tuple(group for group in snapshot.groups if group.key not in found.refused)
    pods = tuple(pod for pod in snapshot.pods if pod.group not in found.refused or pod.node)
    assert entries(replace(snapshot, groups=rest, pods=pods), by).admitted == found.admitted


def test_queues_go_by_priority_then_share_and_jobs_by_rank_then_age() -> None:
    """One of 1 CPU is let in of the five that ask; each time the first of those that are left goes."""
    snapshot = Snapshot(
        nodes=(Node("n", {"cpu": 1000, "pods": 9}),),
        queues=(Queue("busy"), Queue("idle"), Queue("urgent", priority=1)),
        groups=(
            waiting("a", 1000, queue="busy", created=1),
            waiting("b", 1000, queue="idle", created=9),
            waiting("c", 1000, queue="idle", created=8),
            waiting("d", 1000, queue="idle", created=9, priority=5),
            waiting("e", 1000, queue="urgent", created=9),
        ),
        pods=(Pod("ns", "x", Needs((("cpu", 100), ("pods", 1))), node="n", queue="busy", scheduler="solver-sched"),),
        now=10,
    )
    # 0.1 used + 1 <= 1.2; the second would make 2.1
    by = policy(["priority", "overcommit", {"name": "proportion", "enableJobEnqueued": False}])
    order = []
    while snapshot.groups:
        (first,) = entries(snapshot, by).admitted
        order.append(first)
        snapshot = replace(snapshot, groups=tuple(g for g in snapshot.groups if g.key != first))
    assert order == ["ns/e", "ns/d", "ns/c", "ns/b", "ns/a"]


def test_a_group_without_a_date_comes_after_the_newest_that_has_one() -> None:
    """4 CPUs, twice 3 asked: `new` was written by hand and would be submitted now; `train` is of this second."""
    groups = (waiting("new", 3000), waiting("train", 3000, created=100))
    found = entries(Snapshot(nodes=(Node("n", {"cpu": 4000, "pods": 9}),), groups=groups, now=100))
    assert (found.admitted, list(found.refused)) == (("ns/train",), ["ns/new"])


def test_groups_whose_job_names_another_scheduler_are_left_to_it() -> None:
    """Three groups without pods: one whose Job names Volcano, one whose Job names us, one whose Job says nothing."""
    snapshot = Snapshot(
        nodes=(Node("n", {"cpu": 4000, "pods": 10}),),
        groups=(waiting("theirs", 1000, scheduler="volcano"), waiting("free", 1000), waiting("ours", 1000, job="ours")),
        queues=(Queue("default"),),
        scheduler_names=("solver-sched",),
    )
    assert sorted(entries(snapshot).admitted) == ["ns/free", "ns/ours"]
    both = replace(snapshot, scheduler_names=("solver-sched", "volcano"))
    assert sorted(entries(both).admitted) == ["ns/free", "ns/ours", "ns/theirs"]


def test_a_job_beyond_its_limit_is_asked_for_before_its_equals() -> None:
    """It waited 30 s of its own 20; the older one waited 60 s of 3,600."""
    groups = (
        waiting("late", 1000, created=70, annotations={"sla-waiting-time": "20s"}),
        waiting("old", 1000, created=40),
    )
    snapshot = Snapshot(nodes=(Node("n", {"cpu": 1000}),), groups=groups, now=100)
    assert entries(snapshot, policy(["priority", "overcommit"])).admitted == ("ns/late",)
    plain = replace(snapshot, groups=(replace(groups[0], annotations={}), groups[1]))
    assert entries(plain, policy(["priority", "overcommit"])).admitted == ("ns/old",)


def test_lost_pods_are_all_that_a_group_asks_for_again() -> None:
    """Back in Pending with 3 of its 4 pods running: it lacks 1 CPU of 4.8 - 3, not 4."""
    needs = Needs((("cpu", 1000), ("pods", 1)))
    pods = tuple(
        Pod("ns", f"g-{i}", needs, group="ns/g", scheduler="solver-sched", node="n" if i else None) for i in range(4)
    )
    group = waiting("g", 4000, min_member=4)
    snapshot = Snapshot(nodes=(Node("n", {"cpu": 4000, "pods": 9}),), pods=pods, groups=(group,))
    assert entries(snapshot).admitted == ("ns/g",)
    # what succeeded is not asked for again either
    done = (replace(pods[1], phase="Succeeded"), *pods[2:])
    assert entries(replace(snapshot, pods=(pods[0], *done))).admitted == ("ns/g",)


def test_the_snapshot_keeps_quotas() -> None:
    snapshot = Snapshot(quotas=(ResourceQuota("ns", "rq", {"requests.cpu": 1000, "count/pods": 2}, {"count/pods": 1}),))
    assert load(dump(snapshot)) == snapshot

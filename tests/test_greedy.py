"""Greedy: kube-batch's and Volcano's order, gangs whole or not at all, and a plan that keeps every rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.greedy import greedy_plan, settle
from solver_sched.loads import placement_score
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import EMPTY_PLAN, Index, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations
from tests.strategies import snapshots

POLICIES = [load_policy(name) for name in ("default", "kube-batch", "volcano", "packing")]
some = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def stated(snapshot: Snapshot, policy: Policy = POLICIES[0]) -> tuple[Problem, Index, Rules]:
    problem, index = encode(snapshot)
    return problem, index, derive(problem, policy)


def table(plan: Plan) -> Counter[tuple[int, int]]:
    out: Counter[tuple[int, int]] = Counter()
    for t, n, count in zip(plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        out[t, n] += count
    return out


@some
@given(snapshots(), st.sampled_from(POLICIES))
def test_run_again_on_its_own_plan_it_takes_nothing_back(snapshot: Snapshot, policy: Policy) -> None:
    """What it adds, a pod that came later made possible: affinity, spread."""
    problem, _, rules = stated(snapshot, policy)
    plan = greedy_plan(problem, rules)
    assert violations(problem, rules, plan) == []
    again = greedy_plan(problem, rules, plan)
    assert violations(problem, rules, again) == []
    assert table(again) >= table(plan)


@some
@given(snapshots(), st.sampled_from(POLICIES))
def test_a_gang_has_its_minimum_or_nothing(snapshot: Snapshot, policy: Policy) -> None:
    problem, _, rules = stated(snapshot, policy)
    placed = greedy_plan(problem, rules).placed(problem)
    of_job = np.bincount(problem.set_job, weights=placed, minlength=len(problem.job_min)).astype(int)
    assert ((of_job == 0) | (of_job >= rules.need)).all()
    for o, j in enumerate(problem.role_job.tolist()):
        if of_job[j]:
            assert placed[problem.set_role == o].sum() >= rules.role_need[o]


@some
@given(snapshots(), st.sampled_from(POLICIES))
def test_higher_ranks_alone_are_a_part_and_the_rest_is_added(snapshot: Snapshot, policy: Policy) -> None:
    problem, _, rules = stated(snapshot, policy)
    begun = EMPTY_PLAN
    for rank in range(len(rules.rank_names)):
        plan = greedy_plan(problem, rules, begun, rank)
        assert table(plan) >= table(begun)
        assert (rules.rank[problem.set_job[plan.pod_set]] <= rank).all()
        assert violations(problem, rules, plan) == []
        begun = plan


@some
@given(snapshots(), st.sampled_from(POLICIES))
def test_settling_moves_pods_and_starts_or_stops_none(snapshot: Snapshot, policy: Policy) -> None:
    problem, _, rules = stated(snapshot, policy)
    plan = greedy_plan(problem, rules)
    settled = settle(problem, rules, plan)
    assert settled.placed(problem).tolist() == plan.placed(problem).tolist()
    assert placement_score(problem, rules, settled) >= placement_score(problem, rules, plan)


# -- stories ----------------------------------------------------------------------------------------------------------


def job(name: str, cpu: int, count: int, minimum: int, **fields: Any) -> tuple[PodGroup, tuple[Pod, ...]]:
    """`count` pods of `cpu` milli-CPU; `node` = they run there."""
    node = fields.pop("node", None)
    roles = fields.pop("roles", "")
    needs = Needs(request=(("cpu", cpu), ("pods", 1)))
    pods = tuple(
        Pod(
            "ns",
            f"{name}-{i}",
            needs,
            group=f"ns/{name}",
            index=i,
            node=node,
            phase="Running" if node else "Pending",
            role=roles[i] if roles else "",
            scheduler="solver-sched",
        )
        for i in range(count)
    )
    return replace(PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", minimum), **fields), pods


def cluster(nodes: dict[str, int], *jobs: tuple[PodGroup, tuple[Pod, ...]], queues: tuple[Queue, ...] = ()) -> Snapshot:
    return Snapshot(
        nodes=tuple(Node(name, {"cpu": cpu, "pods": 110}) for name, cpu in nodes.items()),
        groups=tuple(group for group, _ in jobs),
        pods=tuple(pod for _, pods in jobs for pod in pods),
        queues=queues,
    )


def placed(snapshot: Snapshot, begun: Plan = EMPTY_PLAN) -> dict[str, int]:
    """Pods placed per job; jobs without any are left out."""
    problem, index, rules = stated(snapshot)
    counts = greedy_plan(problem, rules, begun).placed(problem)
    out: Counter[str] = Counter()
    for t, count in enumerate(counts.tolist()):
        out[index.jobs[problem.set_job[t]].removeprefix("ns/")] += count
    return dict(+out)


def test_priority_first_then_age() -> None:
    # 2 cpu for three pods of 1: the urgent one, then the older of the others.
    jobs = (
        job("young", 1000, 1, 1, created=30),
        job("old", 1000, 1, 1, created=10),
        job("urgent", 1000, 1, 1, created=40, priority=5),
    )
    assert placed(cluster({"n": 2000}, *jobs)) == {"urgent": 1, "old": 1}


def test_a_gang_that_does_not_fit_gives_its_room_back() -> None:
    # Older: 3 of 2 cpu on 4, so two would stand and wait for the third. They leave, and the younger job starts.
    assert placed(cluster({"n": 4000}, job("big", 2000, 3, 3, created=1), job("small", 1000, 2, 2, created=2))) == {
        "small": 2
    }


def test_all_start_before_any_grows() -> None:
    # 4 cpu; two elastic jobs of minimum 1 with 4 pods of 1 each: 1 + 1 starts, then one pod a turn, 2 + 2.
    assert placed(cluster({"n": 4000}, job("a", 1000, 4, 1), job("b", 1000, 4, 1))) == {"a": 2, "b": 2}


def test_roles_come_before_the_rest_of_the_minimum() -> None:
    # Minimum 2 of workers w, w and the master m, which is last in task order; 2 cpu for three pods of 1.
    snapshot = cluster({"n": 2000}, job("g", 1000, 3, 2, roles="wwm", min_task_member={"m": 1, "w": 1}))
    problem, index, rules = stated(snapshot)
    sets = greedy_plan(problem, rules).placed(problem)
    assert {index.set_pods[t]: int(sets[t]) for t in range(2)} == {("ns/g-0", "ns/g-1"): 1, ("ns/g-2",): 1}


def test_the_queue_with_the_smaller_share_goes_first() -> None:
    # Half of 8 cpu each: q uses 2 of its 4, r nothing. One pod of 2 each at a time: r (0/4), then q and r (2/4 both;
    # q has the lower row), then the other. 6 are free: r gets two, q one.
    queues = (Queue("q"), Queue("r"))
    jobs = (
        job("running", 2000, 1, 1, queue="q", node="n"),
        *(job(f"q{i}", 2000, 1, 1, queue="q") for i in range(3)),
        *(job(f"r{i}", 2000, 1, 1, queue="r") for i in range(3)),
    )
    assert placed(cluster({"n": 8000}, *jobs, queues=queues)) == {"q0": 1, "r0": 1, "r1": 1}


def test_a_share_orders_queues_and_limits_none() -> None:
    # r asks for nothing more: q takes all 4, though half is r's.
    queues = (Queue("q"), Queue("r"))
    assert placed(cluster({"n": 4000}, *(job(f"q{i}", 1000, 1, 1, queue="q") for i in range(4)), queues=queues)) == {
        f"q{i}": 1 for i in range(4)
    }


def test_a_capability_is_a_limit() -> None:
    queues = (Queue("q", capability={"cpu": 2000}),)
    jobs = tuple(job(f"q{i}", 1000, 1, 1, queue="q") for i in range(4))
    assert placed(cluster({"n": 4000}, *jobs, queues=queues)) == {"q0": 1, "q1": 1}


def test_what_another_queue_is_guaranteed_stays_free() -> None:
    # 4 cpu, 3 of them guaranteed to r, which asks for none: q gets 1.
    queues = (Queue("q"), Queue("r", guarantee={"cpu": 3000}))
    jobs = tuple(job(f"q{i}", 1000, 1, 1, queue="q") for i in range(4))
    assert placed(cluster({"n": 4000}, *jobs, queues=queues)) == {"q0": 1}


def test_a_plan_that_is_begun_is_kept() -> None:
    # b's pod stands already, though a is older: 1 of 2 cpu is left for a.
    snapshot = cluster({"n": 2000}, job("a", 1000, 2, 1, created=1), job("b", 1000, 1, 1, created=2))
    begun = Plan(np.array([1]), np.array([0]), np.array([1]))
    assert placed(snapshot, begun) == {"a": 1, "b": 1}
    assert placed(snapshot) == {"a": 1, "b": 1}
    assert placed(cluster({"n": 1000}, *[job("a", 1000, 2, 1), job("b", 1000, 1, 1)]), begun) == {"b": 1}


def test_a_running_job_grows_without_starting() -> None:
    # Its minimum of 2 runs on n; the third pod goes beside them.
    group, pods = job("g", 1000, 3, 2)
    pods = (*(replace(pod, node="n", phase="Running") for pod in pods[:2]), pods[2])
    assert placed(cluster({"n": 3000}, (group, pods))) == {"g": 1}


def test_settling_packs_what_was_scattered() -> None:
    # Two pods of 1 cpu, one on each node of 4; packing wants them together.
    problem, _, rules = stated(cluster({"a": 4000, "b": 4000}, job("g", 1000, 2, 2)), load_policy("packing"))
    apart = Plan(np.array([0, 0]), np.array([0, 1]), np.array([1, 1]))
    settled = settle(problem, rules, apart)
    assert table(settled) == {(0, 0): 2}
    assert settle(problem, rules, settled) is settled

"""Reservations from cycle to cycle, on a clock that jumps to the next end: who waits, who passes, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from solver_sched.actions import enqueue
from solver_sched.actions.decide import Bind
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.plugins.rules import derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem.arrays import Index, Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.problem.reservations import Reservation
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations
from tests.strategies import random_snapshot

NOW = 1_000_000
HERE = Budget(2.0, apart=False)


def policy(reserve: int) -> Policy:
    return load_policy({**load_policy("default").as_dict(), "solver": {"reserve": reserve}})


def node(name: str, cpu: int) -> Node:
    return Node(name, {"cpu": 1000 * cpu, "pods": 110})


def gang(
    name: str, count: int, cpu: int, runs: int = 0, *, created: int = NOW, at: str = "", **group: Any
) -> tuple[PodGroup, tuple[Pod, ...]]:
    """`runs`: seconds until they end, 0 = never. `at`: the node on which they have just started."""
    needs = Needs(request=(("cpu", 1000 * cpu), ("pods", 1)))
    where: dict[str, Any] = {"node": at, "phase": "Running", "started": NOW} if at else {}
    pods = tuple(
        Pod("ns", f"{name}-{i}", needs, scheduler="solver-sched", group=f"ns/{name}", deadline=runs, **where)
        for i in range(count)
    )
    return PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", count, created=created, phase="Inqueue", **group), pods


def cluster(
    nodes: list[Node], *gangs: tuple[PodGroup, tuple[Pod, ...]], queues: tuple[Queue, ...] = (), now: int = NOW
) -> Snapshot:
    pods = sorted((pod for _, pods in gangs for pod in pods), key=lambda pod: pod.key)
    groups = sorted((group for group, _ in gangs), key=lambda group: group.key)
    return Snapshot(nodes=tuple(nodes), pods=tuple(pods), groups=tuple(groups), queues=queues, now=now)


def started(report: CycleReport) -> set[str]:
    return {one.pod_group.removeprefix("ns/") for one in report.decisions if isinstance(one, Bind)}


def promises(report: CycleReport) -> list[tuple[str, int, list[str]]]:
    """Job, seconds from now, nodes."""
    return [(one.job.removeprefix("ns/"), one.at - report.snapshot.now, list(one.nodes)) for one in report.reservations]


# -- one cycle --------------------------------------------------------------------------------------------------------


def test_two_reservations() -> None:
    """n1 ends in 100 s, n2 in 200 s, n3 never. `a` and `b` want a node each; with one reservation n2 is nobody's.

    `c` fits now, beside the 3 of 4 cpu that run on n2, and never ends.
    """
    running = [gang("r1", 1, 4, 100, at="n1"), gang("r2", 1, 3, 200, at="n2"), gang("r3", 1, 4, at="n3")]
    waiting = [gang("a", 1, 4, created=1), gang("b", 1, 4, created=2), gang("c", 1, 1, created=3)]
    snapshot = cluster([node(f"n{i}", 4) for i in (1, 2, 3)], *running, *waiting)
    one, two = run_cycle(snapshot, policy(1), HERE), run_cycle(snapshot, policy(2), HERE)
    assert (promises(one), started(one)) == ([("a", 100, ["n1"])], {"c"})
    assert (promises(two), started(two)) == ([("a", 100, ["n1"]), ("b", 200, ["n2"])], set())
    assert two.as_dict()["reservations"][1]["nodes"] == ["n2"]
    assert two.reasons["ns/c"].detail["reservation"]["podGroup"] == "ns/b"


def test_the_earliest_time_that_fits() -> None:
    """Two nodes are needed: n1 is free after 100 s, n2 after 200 s, n3 after 300 s."""
    running = [gang(f"r{i}", 1, 4, 100 * i, at=f"n{i}") for i in (1, 2, 3)]
    report = run_cycle(cluster([node(f"n{i}", 4) for i in (1, 2, 3)], *running, gang("g", 2, 4)), policy(1), HERE)
    assert promises(report) == [("g", 200, ["n1", "n2"])]


def test_a_job_that_fits_and_lost_reserves_nothing() -> None:
    """4 cpu are free: the gang of 2 x 2 is worth more than the older pod of 1, which fits too, but not beside it."""
    snapshot = cluster([node("n1", 4)], gang("old", 1, 1, created=1), gang("new", 2, 2, created=2))
    report = run_cycle(snapshot, policy(8), HERE)
    assert (started(report), report.reservations) == ({"new"}, ())


def test_a_job_above_its_share_reserves_nothing() -> None:
    """Both queues deserve 4 of 8 cpu. `qa` runs 4 for ever on n1, so n2, free in 100 s, is not owed to its next job."""
    queues = (Queue("qa"), Queue("qb"))
    a1, b1 = gang("a1", 1, 4, at="n1", queue="qa"), gang("b1", 1, 4, 100, at="n2", queue="qb")
    nodes = [node("n1", 4), node("n2", 4)]
    a2, b2 = gang("a2", 1, 4, created=1, queue="qa"), gang("b2", 1, 4, created=2, queue="qb")
    report = run_cycle(cluster(nodes, a1, b1, a2, b2, queues=queues), policy(2), HERE)
    assert promises(report) == [("b2", 100, ["n2"])]


def test_a_queue_at_its_capability_reserves_nothing() -> None:
    """`q` may use 4 cpu and does."""
    queue = Queue("q", capability={"cpu": 4000})
    running = gang("r", 1, 4, 100, at="n1", queue="q")
    report = run_cycle(cluster([node("n1", 4)], running, gang("g", 1, 4, queue="q"), queues=(queue,)), policy(1), HERE)
    assert report.reservations == ()


def test_one_rule_for_solver_greedy_and_verifier() -> None:
    """n1 and n2 of 4 cpu, n2 busy for 100 s: both are kept for the gang, so none of 3 endless pods starts. A plan that
    starts one breaks C1 in the column of the reservation.
    """
    waiting = [gang("big", 2, 4, created=1), *(gang(f"p{i}", 1, 1, created=2) for i in range(3))]
    snapshot = cluster([node("n1", 4), node("n2", 4)], gang("r", 1, 4, 100, at="n2"), *waiting)
    for solver in ("greedy", "optimal"):
        report = run_cycle(snapshot, policy(1), HERE, solver)
        assert started(report) == set()
    t = report.index.set_pods.index(("ns/p0-0",))
    plan = Plan(*np.array([[t], [0], [1]]))
    messages = [one.message for one in violations(report.problem, report.rules, plan)]
    assert messages == ["1000 solver-sched.io/reserved-0/cpu placed, 0 free"]
    free_of_it, _ = encode(snapshot)
    assert violations(free_of_it, derive(free_of_it, policy(1)), plan) == []


def test_a_cycle_without_blocked_jobs_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(
        snapshot: Snapshot, refused: Any = (), *, reserved: Sequence[Reservation], **more: Any
    ) -> tuple[Problem, Index]:
        calls.append(len(reserved))
        return encode(snapshot, dict(refused), reserved=reserved, **more)

    monkeypatch.setattr(enqueue, "encode", counting)
    snapshot = cluster([node("n1", 4)], gang("r", 1, 2, 100, at="n1"), gang("g", 2, 1))
    run_cycle(snapshot, policy(1), HERE)
    assert calls == [0]
    run_cycle(cluster([node("n1", 4)], gang("r", 1, 2, 100, at="n1"), gang("g", 1, 4)), policy(1), HERE)
    assert calls == [0, 0, 1]
    # greedy's plan is asked first whether it leaves n1 to `g` after 100 s: what ends in 50 s does, what never ends not
    for runs, encoded, starts in ((50, [0], {"p"}), (0, [0, 1], set())):
        calls.clear()
        waiting = gang("g", 1, 4, created=1), gang("p", 1, 1, runs, created=2)
        report = run_cycle(cluster([node("n1", 4)], gang("r", 1, 2, 100, at="n1"), *waiting), policy(1), HERE, "greedy")
        assert (calls, started(report), promises(report)) == (encoded, starts, [("g", 100, ["n1"])])


# -- cycle after cycle ------------------------------------------------------------------------------------------------


def replay(
    snapshot: Snapshot, rules: Policy, arrivals: dict[int, list[tuple[PodGroup, tuple[Pod, ...]]]]
) -> Iterator[CycleReport]:
    """One report for each moment at which something ends or arrives. Pods end at their deadline; the pods of a job with
    a reservation are nominated to its nodes, as whoever executes a plan must do.
    """
    while True:
        report = run_cycle(snapshot, rules, HERE)
        yield report
        now = snapshot.now
        at = {one.pod: one.node for one in report.decisions if isinstance(one, Bind)}
        nominated: dict[str, str] = {}
        for one in report.reservations:
            keys = [pod.key for pod in snapshot.pods if pod.group == one.job and pod.node is None]
            nominated |= dict(zip(keys, (name for name, pods in one.nodes.items() for _ in range(pods)), strict=False))
        pods = [
            replace(pod, node=at[pod.key], phase="Running", started=now)
            if pod.key in at
            else replace(pod, nominated=nominated.get(pod.key))
            for pod in snapshot.pods
        ]
        ends = [pod.started + pod.deadline for pod in pods if pod.node and pod.deadline]
        moments = [moment for moment in (*ends, *arrivals) if moment > now]
        if not moments:
            return
        now = min(moments)
        pods = [pod for pod in pods if not (pod.node and pod.deadline and pod.started + pod.deadline <= now)]
        groups = list(snapshot.groups)
        for group, members in arrivals.get(now, ()):
            groups.append(group)
            pods += members
        snapshot = replace(
            snapshot,
            pods=tuple(sorted(pods, key=lambda pod: pod.key)),
            groups=tuple(sorted(groups, key=lambda group: group.key)),
            now=now,
        )


@pytest.mark.parametrize("reserve", [0, 1])
def test_a_stream_of_small_jobs_and_a_large_one(reserve: int) -> None:
    """Two nodes of 4 cpu. Every 50 s a job of one node for 100 s arrives, so there is always one that runs when another
    ends. The gang of two nodes came first: without a reservation it waits as long as they come (`maxWait`, an hour,
    aside) and until the eleventh, which starts at 50 + 11 x 50 s, has ended; with one until what runs has, at 150 s.
    """
    small = {NOW + 50 * i: [gang(f"s{i:02}", 1, 4, 100, created=NOW + 50 * i)] for i in range(1, 12)}
    first = gang("s00", 1, 4, 100, created=NOW - 2, at="n1")
    second = gang("t00", 1, 4, 150, created=NOW - 2, at="n2")
    snapshot = cluster([node("n1", 4), node("n2", 4)], first, second, gang("big", 2, 4, 100, created=NOW - 1))
    when = {name: one.snapshot.now - NOW for one in replay(snapshot, policy(reserve), small) for name in started(one)}
    assert when["big"] == (150 if reserve else 700)
    if reserve:
        # s01 came at 50 s, when nothing was free; at 100 s it would have run until 200 s. It starts after the gang
        assert when["s01"] == 250


def test_a_promise_outlives_worthier_equals() -> None:
    """Three nodes of 4 cpu are free at 100 s. `pair`, the older one, was promised two of them; `trio` is worth more and
    fits then as well, but not beside it.
    """
    running = [gang(f"r{i}", 1, 4, 100, at=f"n{i}") for i in (1, 2, 3)]
    waiting = [gang("pair", 2, 4, 50, created=1), gang("trio", 3, 4, 50, created=2)]
    snapshot = cluster([node(f"n{i}", 4) for i in (1, 2, 3)], *running, *waiting)
    reports = replay(snapshot, policy(1), {})
    assert promises(next(reports)) == [("pair", 100, ["n1", "n2"])]
    assert started(next(reports)) == {"pair"}
    assert started(run_cycle(replace(snapshot, pods=snapshot.pods[:2] + snapshot.pods[5:]), policy(1), HERE)) == {
        "trio"
    }


def random_line(rng: Random) -> Snapshot:
    """Whole gangs of one rank in one queue; some run, some of those without an end."""
    nodes = [node(f"n{i}", rng.choice([2, 4])) for i in range(rng.randint(2, 4))]
    gangs = []
    for one in nodes:
        free = one.allocatable["cpu"] // 1000
        for i in range(2):
            cpu = rng.randint(0, free)
            if cpu:
                free -= cpu
                gangs.append(gang(f"r-{one.name}-{i}", 1, cpu, rng.choice([0, 60, 100, 150, 300]), at=one.name))
    for i in range(rng.randint(2, 6)):
        runs = rng.choice([0, 50, 100, 200])
        gangs.append(gang(f"g{i}", rng.randint(1, 4), rng.randint(1, 3), runs, created=NOW - rng.randint(0, 9)))
    return cluster(nodes, *gangs)


@pytest.mark.parametrize("seed", range(60))
def test_the_first_in_line_starts_no_later_than_promised(seed: int) -> None:
    """EASY's guarantee, as long as everything ends on time and nobody ahead, older here, starts after the promise."""
    promised: dict[str, int] = {}
    since: dict[str, int] = {}
    starts: dict[str, int] = {}
    age: dict[str, int] = {}
    for report in replay(random_line(Random(seed)), policy(1), {}):
        age = {group.name: group.created for group in report.snapshot.groups}
        for name in started(report):
            starts.setdefault(name, report.snapshot.now)
        for one in report.reservations[:1]:
            promised.setdefault(one.job.removeprefix("ns/"), one.at)
            since.setdefault(one.job.removeprefix("ns/"), report.snapshot.now)
        assert report.refused == ()
    for name, at in promised.items():
        passed = [other for other, then in starts.items() if age[other] < age[name] and then >= since[name]]
        assert passed or starts[name] <= at, (name, at - NOW, starts.get(name, 0) - NOW)


@pytest.mark.parametrize("seed", range(40))
def test_reservations_beside_every_other_rule(seed: int) -> None:
    """Random clusters with queues, affinity, ports and the like: no plan breaks a rule or is worse than greedy's."""
    rng = Random(seed)
    given = random_snapshot(rng)
    pods = tuple(
        replace(pod, deadline=rng.choice([0, 50, 100, 200]), started=given.now - 40 if pod.node else 0)
        for pod in given.pods
    )
    report = run_cycle(replace(given, pods=pods), policy(4), HERE)
    assert report.refused == ()
    assert not report.notes
    for level in report.levels:
        greedy = report.greedy_levels.get(level.name, level.value)
        if level.value != greedy:
            assert level.value > greedy
            break
    for name in (one.job for one in report.reservations):
        if name in report.reasons:
            assert "expected at" in report.reasons[name].message


def test_nodes_without_a_reservation_cost_no_row() -> None:
    """n1 is kept for the gang until 100 s, n2 is not: there the three late pods of 1 cpu have all that the node has."""
    waiting = [gang("big", 1, 4, created=1), *(gang(f"p{i}", 1, 1, created=2) for i in range(3))]
    snapshot = cluster([node("n1", 4), node("n2", 2)], gang("r", 1, 3, 100, at="n1"), *waiting)
    problem = run_cycle(snapshot, policy(1), HERE).problem
    kept = problem.resources.index("solver-sched.io/reserved-0/cpu")
    assert problem.implied[problem.node_class[1], kept]
    assert problem.node_class[0] < 0 or not problem.implied[problem.node_class[0], kept]
    assert problem.node_free[:, kept].tolist() == [0, 2000]


def test_no_room_is_kept_from_a_gang_that_broke_just_now() -> None:
    """4 CPUs: 1 of long, of queue right, and 2 of a gang of 3 of left, whose third bind failed 5 s ago. With 3 of 4 it
    is beyond its share of 2; big of 2 waits in right and would be first in line for the CPU that is left.
    """
    queues = (Queue("left"), Queue("right"))
    group, pods = gang("broken", 3, 1, 0, created=NOW - 10, queue="left")
    pods = tuple(
        replace(pod, node="n1", phase="Running", started=NOW - 5) if at < 2 else pod for at, pod in enumerate(pods)
    )
    long = gang("long", 1, 1, 500, at="n1", queue="right")
    big = gang("big", 2, 1, 0, created=NOW - 20, queue="right")
    snapshot = cluster([node("n1", 4)], long, (group, pods), big, queues=queues)
    assert started(run_cycle(snapshot, policy(1), HERE)) == started(run_cycle(snapshot, policy(0), HERE)) != set()

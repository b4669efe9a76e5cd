"""Encoding: no plan is lost by what is cut or merged, and names, rows and reasons are told apart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.problem.arrays import NO_LIMIT, Ints, Problem
from solver_sched.problem.encode import encode, useful_free
from solver_sched.snapshot import InputProblem, Snapshot
from tests.strategies import in_order, random_snapshot, shuffled, snapshots


@dataclass(frozen=True)
class Room:
    """One node's free room, and at most 3 shapes with how many pods of each are pending."""

    free: tuple[int, ...]
    request: tuple[tuple[int, ...], ...]
    demand: tuple[int, ...]

    def grain(self) -> Ints:
        out: Ints = np.maximum(1, np.gcd.reduce(np.array(self.request, np.int64), axis=0, initial=0))
        return out

    def useful(self) -> Ints:
        free, request = np.array([self.free], np.int64), np.array(self.request, np.int64)
        out: Ints = useful_free(free, request, np.array(self.demand, np.int64), self.grain())[0]
        return out

    def fitting(self, free: Ints) -> set[tuple[int, ...]]:
        """Every number of pods per shape that fits."""
        counts = product(*(range(pods + 1) for pods in self.demand))
        request = np.array(self.request, np.int64)
        return {n for n in counts if (((load := np.array(n) @ request) <= free) | (load == 0)).all()}


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    width, shapes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    free = draw(st.lists(st.integers(-3, 30), min_size=width, max_size=width))
    row = st.lists(st.sampled_from([0, 0, 1, 2, 3, 4, 6, 8]), min_size=width, max_size=width)
    request = draw(st.lists(row, min_size=shapes, max_size=shapes))
    demand = draw(st.lists(st.integers(0, 4), min_size=shapes, max_size=shapes))
    return Room(tuple(free), tuple(map(tuple, request)), tuple(demand))


@settings(max_examples=300)
@given(rooms())
def test_what_is_useful_of_the_free_room_loses_no_plan_and_adds_none(room: Room) -> None:
    useful = room.useful()
    assert (useful >= 0).all()
    assert (useful <= np.maximum(room.free, 0)).all()
    assert (useful % room.grain() == 0).all()
    assert room.fitting(useful) == room.fitting(np.array(room.free))


@pytest.mark.parametrize(
    ("free", "request_", "demand", "useful"),
    [
        # 10 pods of 3: the whole multiples of 3 up to 20
        ((20,), ((3,),), (10,), [18]),
        # only 2 pods of 3 are pending
        ((20,), ((3,),), (2,), [6]),
        # each pod takes 1 cpu and 4 memory: 3 cpu are enough for 12 memory
        ((3, 100), ((1, 4),), (50,), [3, 12]),
        # a shape that asks for memory alone could use all of it
        ((3, 100), ((1, 4), (0, 4)), (50, 50), [3, 100]),
        # an over-full node has no room
        ((-5,), ((3,),), (10,), [0]),
        # nothing is pending
        ((20,), ((3,),), (0,), [0]),
    ],
)
def test_useful_room_by_hand(
    free: tuple[int, ...], request_: tuple[tuple[int, ...], ...], demand: tuple[int, ...], useful: list[int]
) -> None:
    assert Room(free, request_, demand).useful().tolist() == useful


# -- whole clusters ---------------------------------------------------------------------------------------------------

some = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def arrays(problem: Problem) -> dict[str, object]:
    """Every field as plain values."""
    out: dict[str, object] = {}
    for entry in fields(problem):
        value = getattr(problem, entry.name)
        out[entry.name] = value.tolist() if isinstance(value, np.ndarray) else repr(value)
    return out


@some
@given(snapshots(), st.randoms(use_true_random=False))
def test_equal_snapshots_give_equal_problems(snapshot: Snapshot, rng: Random) -> None:
    first, index = encode(snapshot)
    assert arrays(encode(snapshot)[0]) == arrays(first)
    again, other = encode(in_order(shuffled(shuffled(snapshot, Random(0)), rng)))  # other names: other rows
    assert first.set_count.sum() == again.set_count.sum()
    assert len(index.nodes) == len(other.nodes)
    assert sorted(first.class_size.tolist()) == sorted(again.class_size.tolist())


@some
@given(snapshots())
def test_every_pending_pod_is_in_a_set_or_held(snapshot: Snapshot) -> None:
    """Once, and never both; pods that run, ended, are leaving or belong to another scheduler are in neither."""
    problem, index = encode(snapshot)
    in_sets = [pod for pods in index.set_pods for pod in pods]
    assert len(in_sets) == len(set(in_sets)) == problem.set_count.sum()
    assert [len(pods) for pods in index.set_pods] == problem.set_count.tolist()
    ours = {
        pod.key: pod.group or pod.key
        for pod in snapshot.pods
        if pod.scheduler in snapshot.scheduler_names
        and pod.node is None
        and pod.phase == "Pending"
        and not pod.terminating
    }
    held = {pod for pod, job in ours.items() if pod in index.held or job in index.held}
    assert set(in_sets) | held == set(ours)
    assert not set(in_sets) & set(index.held)


@some
@given(snapshots())
def test_nodes_of_a_class_are_alike_and_never_smaller_than_it(snapshot: Snapshot) -> None:
    problem, _ = encode(snapshot)
    assert np.bincount(problem.node_class[problem.node_class >= 0], minlength=len(problem.class_size)).tolist() == (
        problem.class_size.tolist()
    )
    for n, c in enumerate(problem.node_class.tolist()):
        if c >= 0:
            assert problem.node_kind[n] == problem.class_kind[c]
            assert (problem.class_free[c] <= np.maximum(problem.node_free[n], 0)).all()


@some
@given(snapshots())
def test_a_node_without_a_class_takes_no_pending_pod(snapshot: Snapshot) -> None:
    problem, _ = encode(snapshot)
    for n in np.flatnonzero(problem.node_class < 0):
        for s in problem.set_shape:
            request = problem.request[s]
            assert ((problem.node_free[n] < request) & (request > 0)).any()


@some
@given(snapshots())
def test_what_runs_is_counted_once(snapshot: Snapshot) -> None:
    """Allocatable minus free, summed over nodes, is what queues use on known nodes plus what is foreign."""
    problem, index = encode(snapshot)
    on_nodes = (problem.node_alloc - problem.node_free).sum(axis=0)
    assert (problem.queue_used.sum(axis=0) + problem.foreign >= 0).all()
    leaving = np.zeros_like(problem.total)
    for pod in snapshot.pods:
        if pod.terminating and not pod.finished and pod.node in index.nodes:
            for name, amount in pod.needs.request:
                leaving[index.resources.index(name)] += amount
    assert problem.node_releasing.sum(axis=0).tolist() == leaving.tolist()
    assert (problem.queue_used.sum(axis=0) + problem.foreign).tolist() == on_nodes.tolist()


# -- stories ----------------------------------------------------------------------------------------------------------


def pod(name: str, cpu: int = 1000, **fields_: object) -> Pod:
    needs = Needs(request=(("cpu", cpu), ("pods", 1)))
    return replace(Pod("ns", name, needs, scheduler="solver-sched"), **fields_)


def node(name: str, cpu: int = 4000, slots: int | None = 110) -> Node:
    return Node(name, {"cpu": cpu, **({} if slots is None else {"pods": slots})})


def group(name: str, minimum: int = 1, **fields_: object) -> PodGroup:
    return replace(PodGroup("ns", name, "scheduling.volcano.sh/v1beta1", minimum), **fields_)


def test_nodes_that_differ_in_useless_room_only_are_one_class() -> None:
    # Pods of 2 cpu: 4, 5 and 4.5 cpu are all room for two.
    snapshot = Snapshot(
        nodes=(node("a", 4000), node("b", 5000), node("c", 4500)), pods=tuple(pod(f"p{i}", 2000) for i in range(9))
    )
    problem, _ = encode(snapshot)
    assert problem.class_size.tolist() == [3]
    assert problem.class_free[0, 0] == 4000


def test_a_node_that_names_no_slots_has_the_kubelets_default() -> None:
    problem, _ = encode(Snapshot(nodes=(node("a", slots=None),)))
    assert problem.node_alloc[0, problem.pods_row] == 110


def test_pods_of_a_job_are_told_apart_by_request_role_and_priority() -> None:
    pods = (
        pod("a", group="ns/g", role="x"),
        pod("b", group="ns/g", role="x"),
        pod("c", group="ns/g", role="y"),
        pod("d", group="ns/g", role="x", priority=5),
        pod("e", 2000, group="ns/g", role="x"),
    )
    problem, index = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=(group("g"),)))
    # the highest pod priority first; a and b are one set
    assert [set(members) for members in index.set_pods] == [{"ns/d"}, {"ns/a", "ns/b"}, {"ns/c"}, {"ns/e"}]
    assert len({int(s) for s in problem.set_shape}) == 2


def test_pods_are_taken_by_priority_then_index_then_name() -> None:
    pods = (pod("w-10", group="ns/g"), pod("w-9", group="ns/g"), pod("w-1", group="ns/g", index=3))
    _, index = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=(group("g"),)))
    assert index.set_pods == (("ns/w-1", "ns/w-9", "ns/w-10"),)


@pytest.mark.parametrize(
    ("snapshot", "key", "code", "words"),
    [
        (Snapshot(pods=(pod("p", group="ns/g"),)), "ns/g", "GroupMissing", "ns/g does not exist"),
        (
            Snapshot(pods=(pod("p", group="ns/g"),), groups=(group("g", namespace="other"),)),
            "ns/g",
            "GroupMissing",
            "a group of that name is in namespace other",
        ),
        (
            Snapshot(
                pods=(pod("p", group="ns/g"),),
                problems=(InputProblem("f.yaml", "PodGroup ns/g", "spec.minMember", "expected int, got str"),),
            ),
            "ns/g",
            "GroupMissing",
            "pod group ns/g cannot be used: spec.minMember: expected int, got str",
        ),
        (Snapshot(pods=(pod("p", queue="gone"),)), "ns/p", "QueueMissing", "queue gone does not exist"),
        (
            Snapshot(pods=(pod("p", queue="q"),), problems=(InputProblem("", "Queue q", "spec", "expected object"),)),
            "ns/p",
            "QueueMissing",
            "queue q cannot be used: spec: expected object",
        ),
        (
            Snapshot(pods=(pod("p", queue="q"),), queues=(Queue("q", state="Closed"),)),
            "ns/p",
            "QueueClosed",
            "queue q is closed",
        ),
        (
            Snapshot(pods=(pod("p", queue="q"),), queues=(Queue("q"), Queue("child", parent="q"))),
            "ns/p",
            "QueueInner",
            "queue q has child queues",
        ),
        (
            Snapshot(pods=(pod("p", group="ns/g"),), groups=(group("g", suspended=True),)),
            "ns/g",
            "Suspended",
            "the owner of ns/g is suspended",
        ),
        (Snapshot(pods=(pod("p", gates=("wait",)),)), "ns/p", "Gated", "gate wait"),
        (Snapshot(pods=(pod("p", hold="Claims: claim c is missing"),)), "ns/p", "Claims", "claim c is missing"),
    ],
)
def test_what_is_held_says_why(snapshot: Snapshot, key: str, code: str, words: str) -> None:
    problem, index = encode(snapshot)
    assert index.held[key][0] == code
    assert words in index.held[key][1]
    assert len(problem.set_job) == 0
    assert [member.name for member in index.members if member.pending] == [key]


def test_one_gated_pod_does_not_hold_its_job() -> None:
    pods = (pod("a", group="ns/g", gates=("wait",)), pod("b", group="ns/g"))
    _, index = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=(group("g"),)))
    assert index.set_pods == (("ns/b",),)
    assert set(index.held) == {"ns/a"}


def test_a_running_job_is_its_minimum_and_single_pods_beyond() -> None:
    # Minimum 2 of three pods of 1 cpu that run: one unit of 2, one of 1.
    pods = tuple(pod(f"p{i}", group="ns/g", node="n", phase="Running") for i in range(3))
    problem, _ = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=(group("g", 2),)))
    assert sorted(zip(problem.unit_request[:, 0].tolist(), problem.unit_count.tolist(), strict=True)) == [
        (1000, 1),
        (2000, 1),
    ]
    assert problem.queue_used[0, 0] == 3000


def test_a_job_below_its_minimum_uses_its_queue_but_is_no_unit() -> None:
    pods = (pod("a", group="ns/g", node="n", phase="Running"), pod("b", group="ns/g"))
    problem, _ = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=(group("g", 2),)))
    assert len(problem.unit_count) == 0
    assert problem.queue_used[0, 0] == 1000
    assert problem.job_held[0, 0] == 1000
    assert (problem.job_ready[0], problem.job_min[0]) == (1, 2)


def test_pods_of_other_schedulers_and_of_no_queue_are_foreign() -> None:
    pods = (
        replace(pod("a", node="n", phase="Running"), scheduler="default-scheduler"),
        pod("b", node="n", phase="Running", queue="gone"),
        pod("c", node="n", phase="Running"),
        pod("d", node="n", phase="Succeeded"),
    )
    problem, _ = encode(Snapshot(nodes=(node("n"),), pods=pods))
    assert problem.foreign[0] == 2000
    assert problem.queue_used[:, 0].tolist() == [1000]
    assert problem.node_free[0, 0] == 1000


def test_what_a_queue_does_not_name() -> None:
    problem, _ = encode(Snapshot(queues=(Queue("q", capability={"cpu": 5}, deserved={"cpu": 3}, guarantee={}),)))
    cpu, memory = problem.resources.index("cpu"), problem.resources.index("memory")
    q = 1  # after `default`, which is implied
    assert (problem.queue_capability[q, cpu], problem.queue_capability[q, memory]) == (5, NO_LIMIT)
    assert (problem.queue_deserved[q, cpu], problem.queue_deserved[q, memory]) == (3, -1)
    assert problem.queue_guarantee[q].tolist() == [0] * len(problem.resources)


def test_role_minimums_beyond_the_minimum_do_not_bind() -> None:
    pods = tuple(pod(f"p{i}", group="ns/g", role="ab"[i]) for i in range(2))
    for minimum, roles in ((2, [1, 1]), (1, [])):
        groups = (group("g", minimum, min_task_member={"a": 1, "b": 1}),)
        problem, _ = encode(Snapshot(nodes=(node("n"),), pods=pods, groups=groups))
        assert problem.role_min.tolist() == roles


def test_amounts_near_the_end_of_64_bits_are_cut_so_that_sums_stay_inside() -> None:
    # Three times 2^63 - 1 bytes: cut, and what was too large still fits nowhere but on a node as large.
    big = 2**63 - 1
    nodes = (Node("a", {"memory": big}), Node("b", {"memory": 1000}))
    pods = (replace(pod("p"), needs=Needs(request=(("memory", big), ("pods", 1)))),)
    problem, _ = encode(Snapshot(nodes=nodes, pods=pods))
    row = problem.resources.index("memory")
    assert 1000 < problem.total[row] < 2**63 - 1
    assert (problem.node_free[:, row] >= problem.request[0, row]).tolist() == [True, False]


def test_nothing_at_all() -> None:
    problem, index = encode(Snapshot())
    assert index.queues == ("default",)
    assert problem.total.tolist() == [0, 0, 0]
    assert (len(problem.set_job), len(problem.class_size), index.members) == (0, 0, ())


def test_the_same_seed_gives_the_same_problem() -> None:
    assert arrays(encode(random_snapshot(Random(7)))[0]) == arrays(encode(random_snapshot(Random(7)))[0])

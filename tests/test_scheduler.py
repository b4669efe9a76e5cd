"""The loop: when it decides, what it hands over, and that nothing ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from solver_sched.actions.decide import Bind
from solver_sched.cluster.binder import Placement
from solver_sched.cluster.cache import ClusterCache
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.kinds import KINDS
from solver_sched.cluster.objects import Pod, PodGroup
from solver_sched.cluster.sources import load_snapshot
from solver_sched.conditions import Shown
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.due import seconds_until
from solver_sched.policy import load_policy
from solver_sched.policy.watched import WatchedPolicy
from solver_sched.scheduler import DUMPS_KEPT, Scheduler, Settings
from solver_sched.snapshot import InputProblem, load

BY_VERSION = {(kind.kind, version): kind for kind in KINDS for version in kind.versions}
Object = dict[str, Any]


class Hands:
    """Writes down what it is given; what is bound is assumed in the cache, as the binder does."""

    def __init__(self, cache: ClusterCache) -> None:
        self.cache = cache
        self.done: list[tuple[str, ...]] = []

    def admit(self, group: PodGroup) -> None:
        self.done.append(("admit", group.key))

    def bind(self, gangs: Iterable[Sequence[Placement]]) -> None:
        for gang in gangs:
            for one in gang:
                self.cache.assume(one.pod, one.node)
            self.done.append(("bind", *(f"{one.pod.name} {one.node}" for one in gang)))

    def evict(self, evictions: Iterable[Eviction]) -> None:
        self.done += [("evict", one.pod.name, one.beneficiary, str(one.guarded)) for one in evictions]

    def drain(self, seconds: float) -> bool:
        return True

    def nominate(self, pod: Pod, node: str | None) -> None:
        self.cache.nominate(pod, node)
        self.done.append(("nominate", pod.name, node or "-"))


class Counts:
    def __init__(self) -> None:
        self.cycles = self.failed = self.broken = 0

    def observe_cycle(self, report: CycleReport, snapshot_seconds: float = 0.0, bind_seconds: float = 0.0) -> None:
        self.cycles += 1

    def cycle_failed(self) -> None:
        self.failed += 1

    def broken_gangs(self, count: int) -> None:
        self.broken = count


class World:
    """A cluster, a scheduler on it, and all that came of it."""

    def __init__(self, policy: str | None = None, dump_dir: Path | None = None) -> None:
        self.cache = ClusterCache(("solver-sched",))
        self.hands, self.counts = Hands(self.cache), Counts()
        self.complaints: list[InputProblem] = []
        self.shown: list[Shown] = []
        self.term = 1
        self.scheduler = Scheduler(
            self.cache,
            self.hands,
            WatchedPolicy(policy),
            Settings(period=0.01, dump_dir=dump_dir),
            self.counts,
            show=self.shown.append,
            complain=self.complaints.append,
            term=lambda: self.term,
        )

    def put(self, *things: Object) -> None:
        for thing in things:
            kind = BY_VERSION[thing["kind"], thing["apiVersion"]]
            self.cache.apply(kind, thing["apiVersion"], False, msgspec.json.encode(thing))

    def cycle(self) -> list[tuple[str, ...]]:
        """What one cycle hands over."""
        self.hands.done.clear()
        self.scheduler.cycle()
        return list(self.hands.done)


def node(name: str, cpu: int) -> Object:
    status = {"allocatable": {"cpu": str(cpu), "pods": "10"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def group(name: str, minimum: int, priority: int = 0) -> list[Object]:
    meta = {"name": name, "namespace": "ns", "uid": f"group-{name}"}
    spec: Object = {"minMember": minimum}
    classes: list[Object] = []
    if priority:
        spec["priorityClassName"] = f"p{priority}"
        version = "scheduling.k8s.io/v1"
        classes = [
            {"apiVersion": version, "kind": "PriorityClass", "metadata": {"name": f"p{priority}"}, "value": priority}
        ]
    phase = {"phase": "Inqueue"}
    version = "scheduling.volcano.sh/v1beta1"
    return [*classes, {"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": spec, "status": phase}]


def pod(name: str, of: str, cpu: int = 1, priority: int = 0, **status: Any) -> Object:
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": {"scheduling.k8s.io/group-name": of}}
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    spec: Object = {"schedulerName": "solver-sched", "priority": priority, "containers": [container]}
    if "nodeName" in status:
        spec["nodeName"] = status.pop("nodeName")
    if "on" in status:
        spec["nodeName"] = status.pop("on")
        status["phase"] = "Running"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"} | status}


def test_a_gang_is_bound_together_and_its_pods_count_from_then_on() -> None:
    """n holds 2 of 1 CPU: the gang of 2 starts; the third pod waits, although nothing is bound yet for the server."""
    world = World()
    world.put(node("n", 2), *group("g", 2), pod("g-0", "g"), pod("g-1", "g"), *group("late", 1))
    assert world.cycle() == [("bind", "g-0 n", "g-1 n")]
    world.put(pod("late-0", "late"))
    assert world.cycle() == []
    assert world.scheduler.report is not None
    assert world.scheduler.report.reasons["ns/late"].code == "Resources"


def test_room_that_is_taken_while_it_is_decided_on_is_not_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """n holds 2 of 1 CPU: g of 2 is placed. While the plan is made another scheduler puts a pod on n, and m comes: now
    g has one place on either node, and the next cycle takes them.
    """
    world = World()
    world.put(node("n", 2), *group("g", 2), pod("g-0", "g"), pod("g-1", "g"))
    other = pod("other", "", nodeName="n")
    other["spec"]["schedulerName"] = "default-scheduler"

    def meanwhile(*arguments: Any, **named: Any) -> CycleReport:
        report = run_cycle(*arguments, **named)
        world.put(other, node("m", 1))
        return report

    with monkeypatch.context() as patch:
        patch.setattr("solver_sched.scheduler.run_cycle", meanwhile)
        assert world.cycle() == []
    assert world.counts.failed == 0
    assert world.scheduler.report is not None
    assert not [one for one in world.scheduler.report.decisions if isinstance(one, Bind)]
    assert world.scheduler.report.notes[-1] == (
        "overtaken, to be decided again: ns/g (the cpu that was free on n has been taken)"
    )
    assert world.cycle() == [("bind", "g-0 m", "g-1 n")]


def test_what_is_promised_to_a_gang_that_is_overtaken_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """g-0 was nominated to n and is now bound there; n is cordoned while the plan is made: nothing is taken back."""
    world = World()
    cordoned = node("n", 1) | {"spec": {"unschedulable": True}}
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g", nominatedNodeName="n"))

    def meanwhile(*arguments: Any, **named: Any) -> CycleReport:
        report = run_cycle(*arguments, **named)
        world.put(cordoned)
        return report

    monkeypatch.setattr("solver_sched.scheduler.run_cycle", meanwhile)
    assert world.cycle() == []
    assert world.counts.failed == 0


def test_a_node_that_was_away_only_while_it_was_decided_on_is_bound_to_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """n is not ready while the plan is made, and ready again before the next one: all is as it was, g has to start."""
    world = World()
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"))
    away = node("n", 1)
    away["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    def meanwhile(*arguments: Any, **named: Any) -> CycleReport:
        report = run_cycle(*arguments, **named)
        world.put(away)
        return report

    with monkeypatch.context() as patch:
        patch.setattr("solver_sched.scheduler.run_cycle", meanwhile)
        assert world.cycle() == []
    assert world.counts.failed == 0
    world.put(node("n", 1))
    assert world.cycle() == [("bind", "g-0 n")]


def test_nothing_is_done_twice_where_nothing_has_changed() -> None:
    world = World()
    world.put(node("n", 1), *group("g", 2), pod("g-0", "g"), pod("g-1", "g"))
    world.cycle()
    assert world.counts.cycles == 1
    world.cycle()
    assert world.counts.cycles == 1
    world.put(node("m", 1))
    assert world.cycle() == [("bind", "g-0 m", "g-1 n")]


def test_what_was_bound_begins_to_run_and_users_see_it_without_another_decision() -> None:
    """The gang of 1 takes the only CPU. That it is bound, then runs, gives room to nobody; that it ends does."""
    world = World()
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"), *group("late", 1, priority=-1), pod("late-0", "late"))
    assert world.cycle() == [("bind", "g-0 n")]
    seen = len(world.shown)
    world.put(pod("g-0", "g", nodeName="n"))
    world.put(pod("g-0", "g", on="n"))
    assert world.cycle() == []
    assert world.counts.cycles == 1
    assert len(world.shown) == seen + 1
    (status,) = [one for one in world.shown[-1].groups if one.group.name == "g"]
    assert (status.fields["phase"], status.fields["running"]) == ("Running", 1)
    world.put(pod("g-0", "g", phase="Succeeded", nodeName="n"))
    assert world.cycle() == [("bind", "late-0 n")]


def test_a_bind_that_failed_is_decided_again() -> None:
    world = World()
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"))
    assert world.cycle() == [("bind", "g-0 n")]
    world.cache.forget(world.cache.snapshot(0).pods[0])
    assert world.cycle() == [("bind", "g-0 n")]


def test_victims_go_and_their_room_is_promised() -> None:
    """n is full of low, which is evicted for high: high is promised n, and bound only when low is gone."""
    world = World("preempting")
    world.put(node("n", 2), *group("low", 2), *(pod(f"low-{i}", "low", on="n") for i in range(2)))
    world.put(*group("high", 1, priority=10), pod("high-0", "high", 2, priority=10))
    done = world.cycle()
    assert sorted(done) == [
        ("evict", "low-0", "ns/high", "False"),
        ("evict", "low-1", "ns/high", "False"),
        ("nominate", "high-0", "n"),
    ]
    # evicted, but not gone: nobody else has to go, and the promise stands
    for i in range(2):
        world.put(pod(f"low-{i}", "low", on="n") | {"metadata": _ending(f"low-{i}", "low")})
    assert world.cycle() == []


def _ending(name: str, of: str) -> Object:
    meta: Object = pod(name, of)["metadata"]
    return meta | {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def test_a_promise_that_no_plan_keeps_is_taken_back() -> None:
    world = World()
    world.put(node("n", 1), *group("g", 2), pod("g-0", "g", nominatedNodeName="n"))
    assert world.cycle() == [("nominate", "g-0", "-")]


def test_what_was_decided_while_the_lead_was_lost_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"))

    def loses(*arguments: Any) -> CycleReport:
        world.term = 2
        return run_cycle(*arguments)

    monkeypatch.setattr("solver_sched.scheduler.run_cycle", loses)
    assert world.cycle() == []


def test_a_cycle_that_fails_is_kept_for_a_bug_report_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(dump_dir=tmp_path)
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"))
    with monkeypatch.context() as broken:
        broken.setattr("solver_sched.scheduler.run_cycle", lambda *_: 1 // 0)
        assert world.cycle() == []
    assert world.counts.failed == 1
    (kept,) = tmp_path.iterdir()
    assert [pod.name for pod in load(kept.read_bytes()).pods] == ["g-0"]
    world.put(node("m", 1))
    assert world.cycle() == [("bind", "g-0 m")]


def test_only_the_latest_snapshots_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(dump_dir=tmp_path)
    monkeypatch.setattr("solver_sched.scheduler.run_cycle", lambda *_: 1 // 0)
    for n in range(14):
        world.put(node(f"n-{n}", 1))
        world.cycle()
    assert len(list(tmp_path.iterdir())) == DUMPS_KEPT == 10


def test_a_broken_gang_is_counted() -> None:
    """g runs 1 of its 2, and its other pod finds no room."""
    world = World()
    world.put(node("n", 1), *group("g", 2), pod("g-0", "g", on="n"), pod("g-1", "g"))
    world.cycle()
    assert world.counts.broken == 1


def test_a_gang_that_was_made_whole_is_not_counted_as_broken() -> None:
    """g runs 1 of its 2 and gets the other; that this one is bound brings no other cycle."""
    world = World()
    world.put(node("n", 2), *group("g", 2), pod("g-0", "g", on="n"), pod("g-1", "g"))
    assert world.cycle() == [("bind", "g-1 n")]
    assert world.counts.broken == 1
    world.put(pod("g-1", "g", on="n"))
    assert world.cycle() == []
    assert (world.counts.cycles, world.counts.broken) == (1, 0)


def test_an_object_that_cannot_be_used_is_told_of_once() -> None:
    world = World()
    bad = group("bad", 1)[0]
    bad["spec"]["minMember"] = -3
    world.put(node("n", 1), bad)
    world.cycle()
    world.put(node("m", 1))
    world.cycle()
    assert [str(one) for one in world.complaints] == [
        "PodGroup ns/bad: spec.minMember: -3 is negative; must be 0 or more"
    ]


def test_the_loop_wakes_for_a_change_and_sleeps_otherwise() -> None:
    world, stop = World(), threading.Event()
    world.put(node("n", 1))
    thread = threading.Thread(target=world.scheduler.run, args=(stop,))
    thread.start()
    _until(lambda: world.counts.cycles == 1)
    used = time.process_time()
    time.sleep(1)
    assert time.process_time() - used < 0.2  # of a second: it waits
    world.put(*group("g", 1), pod("g-0", "g"))
    _until(lambda: ("bind", "g-0 n") in world.hands.done)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_what_an_earlier_term_decided_ends_before_anything_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind of term 1 waits for its next try when this replica leads again, as term 2. `may_send` compares the term of
    the lead with the scheduler's: that must stay 1 until the bind has been given up, here at the third look.
    """
    world, stop = World(), threading.Event()
    world.put(node("n", 1), *group("g", 1), pod("g-0", "g"))
    assert world.cycle() == [("bind", "g-0 n")]
    world.term = 2
    terms: list[int] = []

    def drain(_: float) -> bool:
        terms.append(world.scheduler.term)
        if world.scheduler.term == 2:
            stop.set()
        return len(terms) >= 3

    monkeypatch.setattr(world.hands, "drain", drain)
    world.scheduler.run(stop)
    assert (terms, world.counts.cycles) == ([1, 1, 1, 2], 2)


def waited(
    world: World, now: int, monkeypatch: pytest.MonkeyPatch, look: Callable[[float], None] = lambda _: None
) -> float:
    """Seconds that the first decision waits, on a clock that stands at `now` and goes on while it waits. `look`: told
    at every step how many have passed.
    """
    stop, passed = threading.Event(), [0.0]

    def wait(seconds: float) -> bool:
        passed[0] += seconds
        look(passed[0])
        return False

    with monkeypatch.context() as patch:
        patch.setattr(stop, "wait", wait)
        patch.setattr(world.scheduler, "_clock", lambda: now + passed[0])
        patch.setattr("solver_sched.scheduler.time.monotonic", lambda: passed[0])
        world.scheduler._let_arrive(stop)
    return passed[0]


@pytest.mark.parametrize(("ago", "arrives", "waits"), [(4, True, 10), (4, False, 6), (11, False, 0)])
def test_binds_of_one_who_died_may_still_arrive(
    monkeypatch: pytest.MonkeyPatch, ago: int, arrives: bool, waits: int
) -> None:
    """a-0 was bound 4 s ago by a process that is gone. For 6 s more another bind of it may arrive; that of a-1 does
    after 3 s, by one who died 10 s before at most: then 2 CPUs are no place for b-0. After 11 s nothing is under way.
    """
    world, now = World(), 1_800_000_000
    at = f"{datetime.fromtimestamp(now - ago, UTC):%Y-%m-%dT%H:%M:%SZ}"
    world.put(node("n", 2), *group("a", 2), *group("b", 1))
    world.put(pod("a-0", "a", on="n", startTime=at), pod("a-1", "a"), pod("b-0", "b"))

    def look(passed: float) -> None:
        if arrives and passed >= 3:
            world.put(pod("a-1", "a", nodeName="n"))

    assert waited(world, now, monkeypatch, look) == pytest.approx(waits, abs=0.3)
    assert world.cycle() == ([] if arrives else [("bind", "a-1 n")])


@pytest.mark.parametrize(("ago", "reason", "waits"), [(4, "Unschedulable", 6), (11, "", 0), (4, "SchedulingGated", 0)])
def test_who_told_pods_that_they_wait_may_have_died_with_binds_under_way(
    monkeypatch: pytest.MonkeyPatch, ago: int, reason: str, waits: int
) -> None:
    """4 s ago a scheduler that is gone told a-0 that it waits, and may have bound it since: for 6 s nothing is decided.
    Of pods with gates the API server says so.
    """
    world, now = World(), 1_800_000_000
    at = f"{datetime.fromtimestamp(now - ago, UTC):%Y-%m-%dT%H:%M:%SZ}"
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": at}
    world.put(node("n", 2), *group("a", 1), pod("a-0", "a", conditions=[condition]))
    assert waited(world, now, monkeypatch) == pytest.approx(waits, abs=0.3)


def test_a_leader_without_a_cycle_is_stuck_and_a_standby_is_not() -> None:
    """A cycle may take 5 s: after 5 x (5 + 2) + 60 = 95 s without a sign of life a leader is stuck."""
    world = World()
    world.scheduler.beat -= 96
    assert world.scheduler.stuck().startswith("the loop has shown no life for")
    world.term = 0
    assert world.scheduler.stuck() == ""
    world.term = 2
    assert world.scheduler.stuck() == "", "its time counts from when it began to lead"


def _until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_changed_policy_is_taken_and_a_bad_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.conf"
    file.write_text('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]\n')
    told: list[bool] = []
    watched = WatchedPolicy(str(file), told.append)
    assert not watched.refresh()
    file.write_text('actions: "fly"\n')
    assert not watched.refresh()
    assert list(watched.policy.actions) == ["allocate"]
    file.write_text('actions: "allocate, backfill"\ntiers: [{plugins: [{name: gang}]}]\n')
    assert watched.refresh()
    assert list(watched.policy.actions) == ["allocate", "backfill"]
    assert told == [False, True]


def test_time_alone_brings_the_next_decision_where_somebody_comes_of_age() -> None:
    """g has waited for 600 s of the hour after which it ranks above its priority: 3,001 s to go. A full cluster alone
    brings nothing.
    """
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    now = 1767225600 + 600
    waiting = group("g", 2)[0]
    waiting["metadata"] |= created
    snapshot = load_snapshot([node("n", 1), waiting, pod("g-0", "g"), pod("g-1", "g")], now=now)
    policy = WatchedPolicy(None).policy
    assert seconds_until(run_cycle(snapshot, policy, Budget(apart=False))) == 3001
    old = replace(snapshot, now=now + 3001)
    assert seconds_until(run_cycle(old, policy, Budget(apart=False))) == float("inf")
    running = load_snapshot([node("n", 1), *group("g", 1), pod("g-0", "g", on="n")], now=now)
    assert seconds_until(run_cycle(running, policy, Budget(apart=False))) == float("inf")


def test_time_lets_a_group_without_pods_in() -> None:
    """g, which has no pods yet, asks for more than the cluster has; `sla` lets it in after 1,000 s, 600 of which are
    over. Without `sla` time alone changes nothing.
    """
    waiting = group("g", 1)[0]
    waiting["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
    waiting["spec"]["minResources"] = {"cpu": "9"}
    waiting["status"] = {"phase": "Pending"}
    snapshot = load_snapshot([node("n", 1), waiting], now=1767225600 + 600)

    def due(*plugins: dict[str, Any]) -> float:
        policy = load_policy({"actions": "enqueue, allocate", "tiers": [{"plugins": list(plugins)}]})
        report = run_cycle(snapshot, policy, Budget(apart=False))
        assert report.reasons["ns/g"].code == "NotAdmitted"
        return seconds_until(report)

    overcommit = {"name": "overcommit"}
    assert due({"name": "sla", "arguments": {"sla-waiting-time": "1000s"}}, overcommit) == 400
    assert due(overcommit) == float("inf")

"""The embedded cluster: pods start, run, end, and come back when they are taken away."""

from __future__ import annotations

from solver_sched.cluster.binder import Placement
from solver_sched.cluster.evictor import Eviction
from solver_sched.cluster.objects import Pod
from solver_sched.simulate.cluster import GRACE, START, EmbeddedCluster
from solver_sched.simulate.trace import NodeEvent
from tests.simulate.traces import job, node, trace


def pods(cluster: EmbeddedCluster) -> dict[str, Pod]:
    return {pod.name: pod for pod in cluster.snapshot(START + cluster.now).pods}


def bind(cluster: EmbeddedCluster, where: str, *names: str) -> None:
    found = pods(cluster)
    cluster.bind([[Placement(found[name], where, "allocate") for name in names]])


def test_a_job_arrives_runs_and_is_gone() -> None:
    cluster = EmbeddedCluster(trace(job("j", 2, runs=100, at=10, estimate=150)))
    cluster.advance(9)
    assert pods(cluster) == {}
    cluster.advance(20)
    assert [pod.run_time for pod in pods(cluster).values()] == [150, 150]
    bind(cluster, "n1", "j-0", "j-1")
    assert {pod.phase for pod in pods(cluster).values()} == {"Running"}
    assert cluster.used["cpu"] == cluster.held["default"]["cpu"] == 2000
    cluster.advance(119)
    assert len(pods(cluster)) == 2
    cluster.advance(120)
    assert pods(cluster) == {}
    assert cluster.snapshot(0).groups == ()
    course = cluster.courses["ns/j"]
    assert (course.started, course.ended, course.failed) == (20, 120, False)
    assert cluster.spent["cpu"] == 2000 * 100
    assert cluster.offered["cpu"] == 8000 * 120


def test_pods_start_late_where_images_are_pulled() -> None:
    cluster = EmbeddedCluster(trace(job("j", runs=100)), start=5)
    cluster.advance(0)
    bind(cluster, "n1", "j-0")
    assert pods(cluster)["j-0"].phase == "Pending"
    cluster.advance(5)
    assert pods(cluster)["j-0"].started == START + 5
    cluster.advance(105)
    assert cluster.courses["ns/j"].ended == 105


def test_a_minimum_runs_once_enough_pods_do() -> None:
    """Two of three pods: the job starts at 60, when the second is bound; the third ends it at 220."""
    cluster = EmbeddedCluster(trace(job("j", 3, runs=100, least=2)))
    for second, name in ((0, "j-0"), (60, "j-1"), (120, "j-2")):
        cluster.advance(second)
        bind(cluster, "n1", name)
    assert cluster.courses["ns/j"].started == 60
    assert cluster.courses["ns/j"].group.phase == "Running"
    cluster.advance(200)
    assert [pod.phase for pod in pods(cluster).values()] == ["Succeeded", "Succeeded", "Running"]
    cluster.advance(220)
    assert cluster.courses["ns/j"].ended == 220


def test_an_evicted_pod_holds_its_room_for_its_grace_and_its_work_is_lost() -> None:
    """40 s of work are lost; its successor is there at once and needs the whole 100 s."""
    cluster = EmbeddedCluster(trace(job("j", runs=100)))
    cluster.advance(0)
    bind(cluster, "n1", "j-0")
    cluster.advance(40)
    cluster.evict([Eviction(pods(cluster)["j-0"], "ns/other", "preempt", "")])
    cluster.evict([Eviction(pods(cluster)["j-0"], "ns/other", "preempt", "")])  # asked for twice, goes once
    assert (cluster.evictions, cluster.lost, cluster.used["cpu"], cluster.pending) == (1, 40, 1000, 1)
    assert pods(cluster)["j-0"].terminating
    assert cluster.courses["ns/j"].group.phase == "Pending"
    cluster.advance(40 + GRACE)
    assert list(pods(cluster)) == ["j-0-r1"]
    assert cluster.used["cpu"] == 0
    bind(cluster, "n2", "j-0-r1")
    cluster.advance(1000)
    assert cluster.courses["ns/j"].ended == 40 + GRACE + 100


def test_a_lost_node_takes_its_pods_along_and_comes_back() -> None:
    events = (NodeEvent(30, "n1", "loss"), NodeEvent(50, "n1", "return"))
    cluster = EmbeddedCluster(trace(job("j", 2, runs=100), events=events))
    cluster.advance(0)
    bind(cluster, "n1", "j-0")
    bind(cluster, "n2", "j-1")
    cluster.advance(30)
    snapshot = cluster.snapshot(0)
    assert [one.name for one in snapshot.nodes] == ["n2"]
    assert [(pod.name, pod.node) for pod in snapshot.pods] == [("j-0-r1", None), ("j-1", "n2")]
    assert (cluster.lost, cluster.used["cpu"], cluster.capacity["cpu"]) == (30, 1000, 4000)
    assert cluster.courses["ns/j"].group.phase == "Unknown"  # one of two runs
    cluster.advance(50)
    assert cluster.capacity["cpu"] == 8000
    bind(cluster, "n1", "j-0-r1")
    cluster.advance(150)
    assert cluster.courses["ns/j"].ended == 150


def test_a_drained_node_is_cordoned_and_its_pods_end_in_their_grace() -> None:
    events = (NodeEvent(30, "n1", "drain"), NodeEvent(90, "n1", "return"))
    cluster = EmbeddedCluster(trace(job("j", runs=100), events=events))
    cluster.advance(0)
    bind(cluster, "n1", "j-0")
    cluster.advance(30)
    assert cluster.snapshot(0).nodes[0].unschedulable
    assert cluster.used["cpu"] == 1000
    cluster.advance(90)
    assert not cluster.snapshot(0).nodes[0].unschedulable
    assert (cluster.used["cpu"], cluster.evictions) == (0, 0)  # no eviction of the scheduler's


def test_a_pod_that_fails_is_made_anew_as_often_as_the_trace_says() -> None:
    """The first pod fails 10 s after its start, then 20 s after; then it runs its 100 s."""
    cluster = EmbeddedCluster(trace(job("j", runs=100, failures=(10, 20))))
    for second, name in ((0, "j-0"), (10, "j-0-r1"), (30, "j-0-r2")):
        cluster.advance(second)
        bind(cluster, "n1", name)
    cluster.advance(1000)
    course = cluster.courses["ns/j"]
    assert (course.ended, course.failed, cluster.lost) == (130, False, 30)


def test_a_job_fails_with_its_first_pod_or_at_its_deadline() -> None:
    cluster = EmbeddedCluster(trace(job("bad", 2, runs=100, fails=True), job("slow", runs=100, deadline=60)))
    cluster.advance(0)
    bind(cluster, "n1", "bad-0", "bad-1", "slow-0")
    cluster.advance(60)
    assert (cluster.courses["ns/slow"].ended, cluster.courses["ns/slow"].failed) == (60, True)
    cluster.advance(100)
    assert (cluster.courses["ns/bad"].ended, cluster.courses["ns/bad"].failed) == (100, True)
    assert pods(cluster) == {}
    assert cluster.used["cpu"] == cluster.asked["default"]["cpu"] == 0


def test_what_does_not_fit_is_refused_as_a_kubelet_does() -> None:
    """4 CPUs hold four pods of one; the fifth stays pending. A node that is gone takes none."""
    cluster = EmbeddedCluster(trace(job("j", 5), nodes=(node("n1"),)))
    cluster.advance(0)
    bind(cluster, "n1", *(f"j-{n}" for n in range(5)))
    assert (cluster.refused, cluster.pending, cluster.used["cpu"]) == (1, 1, 4000)
    bind(cluster, "n9", "j-4")
    assert cluster.refused == 2


def test_run_times_of_what_ended_are_known_by_class() -> None:
    """As the service's cache does: `app-1` and `app-2` are one class, which ran 100 and 100 s."""
    cluster = EmbeddedCluster(trace(job("app-1", runs=100), job("app-2", runs=100)))
    cluster.advance(0)
    bind(cluster, "n1", "app-1-0")
    bind(cluster, "n1", "app-2-0")
    cluster.advance(100)
    assert [(one.runs, one.median) for one in cluster.snapshot(0).run_times] == [(2, 100)]


def test_promises_are_kept_until_they_are_taken_back() -> None:
    cluster = EmbeddedCluster(trace(job("j")))
    cluster.advance(0)
    cluster.nominate(pods(cluster)["j-0"], "n2")
    assert pods(cluster)["j-0"].nominated == "n2"
    seen = cluster.changes()
    assert not cluster.wait_changed(seen, 0)
    cluster.nominate(pods(cluster)["j-0"], None)
    assert pods(cluster)["j-0"].nominated is None
    assert cluster.wait_changed(seen, 0)

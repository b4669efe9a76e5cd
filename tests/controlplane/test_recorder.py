"""The recorder sees what happened on the server, and finds each of the things that should not happen."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.controlplane.cluster import Cluster, gang, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.recorder import Gang, Overcommit, Recorder, Seen


def test_an_over_commit_is_found(cluster: Cluster, namespace: str) -> None:
    """3 of 4 CPUs, then 2 more: 5000m of 4000m. The kubelet rejects b; of those that it accepted none is too many."""
    cluster.nodes(1, {"cpu": 4})
    with Recorder(cluster) as recorder:
        cluster.create(pod("a", {"cpu": 3}), pod("b", {"cpu": 2}), namespace=namespace)
        cluster.bind("a", "node-0", namespace)
        assert recorder.overcommits(rejected=True) == []
        cluster.bind("b", "node-0", namespace)
        cluster.wait_for(lambda: cluster.phases(namespace) == {"a": "Running", "b": "Failed"}, 30, "b is rejected")
        recorder.wait_for_rest(0.5)
        (over,) = recorder.overcommits(rejected=True)
        assert over == Overcommit(over.revision, "node-0", "cpu", used=5000, room=4000, pod=f"{namespace}/b")
        assert recorder.overcommits() == []
        assert [bind.name for bind in recorder.binds()] == [f"{namespace}/a", f"{namespace}/b"]
        assert recorder.moved() == []


def test_room_that_was_given_back_is_no_over_commit(cluster: Cluster, namespace: str) -> None:
    cluster.nodes(1, {"cpu": 1})
    with Recorder(cluster) as recorder:
        for name in ("a", "b"):
            cluster.create(pod(name, {"cpu": 1}), namespace=namespace)
            cluster.bind(name, "node-0", namespace)
            cluster.wait_for(lambda: "Running" in cluster.phases(namespace).values(), 30, "it runs")
            cluster.delete("Pod", name, namespace)
            cluster.wait_for(lambda: cluster.phases(namespace) == {}, 30, "it is gone")
        recorder.wait_for_rest(0.5)
        assert len(recorder.binds()) == 2
        assert recorder.overcommits(rejected=True) == []


def test_a_gang_below_its_minimum_is_found(cluster: Cluster, namespace: str) -> None:
    """Three members, two of them the minimum: one bound is too few, two are enough, and none is no harm."""
    cluster.nodes(1, {"cpu": 4})
    with Recorder(cluster) as recorder:
        cluster.create(*gang("g", 3, {"cpu": 1}, minimum=2), namespace=namespace)
        minimums = {f"{namespace}/g": 2}
        recorder.wait_for_rest(0.3)
        assert recorder.broken(minimums) == []
        cluster.bind("g-0", "node-0", namespace)
        recorder.wait_for_rest(0.3)
        assert recorder.broken(minimums) == [Gang(f"{namespace}/g", 1, 2)]
        with pytest.raises(AssertionError, match=r"1 pods of .*/g were bound, 2 are its minimum"):
            recorder.seconds_to_bind(f"{namespace}/g", 2)
        cluster.bind("g-1", "node-0", namespace)
        recorder.wait_for_rest(0.3)
        assert recorder.broken(minimums) == []
        assert recorder.seconds_to_bind(f"{namespace}/g", 2) >= 0.3
        cluster.delete("Pod", "g-0", namespace)
        cluster.wait_for(lambda: len(cluster.phases(namespace)) == 2, 30, "g-0 is gone")
        recorder.wait_for_rest(0.3)
        assert recorder.broken(minimums) == [Gang(f"{namespace}/g", 1, 2)]


def test_rest_is_not_found_while_something_moves(cluster: Cluster, namespace: str) -> None:
    with Recorder(cluster) as recorder:
        cluster.create(pod("a"), namespace=namespace)
        began = time.monotonic()
        recorder.wait_for_rest(1)
        assert time.monotonic() - began >= 1
        with pytest.raises(AssertionError, match=r"no rest within 0.5 s; the last change was"):
            recorder.wait_for_rest(1000, within=0.5)


def test_a_pod_on_two_nodes_is_found(control_plane: ControlPlane) -> None:
    """No API server lets it happen, so it is written into the record by hand."""
    recorder = Recorder(control_plane.cluster)
    first = Seen(1, 0.0, "pods", "MODIFIED", "uid", "ns/a", "", "node-0", "Pending", "", False, {"pods": 1})
    recorder.pods = [first, replace(first, revision=2), replace(first, revision=3, node="node-1")]
    assert recorder.moved() == [(first, recorder.pods[2])]


def test_a_witness_that_may_have_missed_something_says_so(control_plane: ControlPlane) -> None:
    recorder = Recorder(control_plane.cluster)
    recorder.lost = "watch of pods: too old resource version"
    for question in (recorder.overcommits, recorder.moved, recorder.binds, recorder.last):
        with pytest.raises(AssertionError, match="lost sight: watch of pods: too old"):
            question()

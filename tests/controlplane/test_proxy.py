"""Each fault of the proxy is seen by a client, and the server has or has not acted, as the fault says."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import urllib3
from urllib3.exceptions import HTTPError

from tests.controlplane.cluster import Cluster, Object, StatusError, pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Faults, Proxy


@contextmanager
def through(control_plane: ControlPlane, *faults: Faults, seed: int = 0) -> Iterator[tuple[Proxy, Cluster]]:
    """A proxy, and a client whose requests go through it."""
    with (
        Proxy(control_plane.url, control_plane.authority, seed=seed, faults=faults) as proxy,
        Cluster(proxy.url, control_plane.token, control_plane.kubeconfig) as client,
    ):
        yield proxy, client


def label(client: Cluster, namespace: str, value: str) -> None:
    client.patch("Namespace", namespace, {"metadata": {"labels": {"seen": value}}})


def labelled(cluster: Cluster, namespace: str) -> str | None:
    found: dict[str, str] = cluster.get("Namespace", namespace)["metadata"]["labels"]
    return found.get("seen")


def test_without_faults_all_passes_over_one_connection(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    with through(control_plane) as (proxy, client):
        for i in range(20):
            label(client, namespace, f"v{i}")
        assert labelled(cluster, namespace) == "v19"
        assert [(e.method, e.status, e.fault) for e in proxy.log[-20:]] == [("PATCH", 200, None)] * 20
        assert len(proxy.open) == 2  # the client's and the one to the server


@pytest.mark.parametrize(
    ("faults", "status"),
    [(Faults(conflict=1), 409), (Faults(too_many=1), 429), (Faults(error=1), 500)],
    ids=["conflict", "too many", "error"],
)
def test_a_refused_write_has_not_happened(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, faults: Faults, status: int
) -> None:
    with through(control_plane, Faults(where="^$"), faults) as (proxy, client):
        client.served = cluster.served  # no requests of its own
        with pytest.raises(StatusError) as refused:
            label(client, namespace, "yes")
        assert refused.value.status == status
        assert labelled(cluster, namespace) is None
        assert [e.status for e in proxy.log] == [None]


def test_too_many_says_when_to_come_back(control_plane: ControlPlane) -> None:
    with through(control_plane, Faults(too_many=1)) as (_, client):
        answer = client.pool.request("GET", f"{client.url}/api/v1/nodes")
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert answer.json()["details"] == {"retryAfterSeconds": 1}


def test_an_error_after_the_fact(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where=namespace, error_after=1)) as (proxy, client):
        with pytest.raises(StatusError, match="500"):
            label(client, namespace, "yes")
        assert labelled(cluster, namespace) == "yes"
        assert [(e.status, e.fault) for e in proxy.log if e.fault] == [(200, "error_after")]


def test_a_lost_answer_of_a_binding_that_took_place(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    """The client cannot know; the server has bound; asking again gives 409; the log knows of both."""
    cluster.nodes(1, {"cpu": 1})
    uid = cluster.create(pod("a"), namespace=namespace)[0]["metadata"]["uid"]
    with through(control_plane, Faults(where="/binding$", at_most=1, lost=1)) as (proxy, client):
        with pytest.raises(HTTPError):
            client.bind("a", "node-0", namespace, uid)
        assert cluster.get("Pod", "a", namespace)["spec"]["nodeName"] == "node-0"
        with pytest.raises(StatusError, match="409"):
            client.bind("a", "node-0", namespace, uid)
        first, second = proxy.binds()
        assert (first.status, first.fault, second.status, second.fault) == (201, "lost", 409, None)
        assert first.pod == f"{namespace}/a"
        assert json.loads(first.body)["metadata"]["uid"] == uid


def test_a_refused_connection_reaches_no_server(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where=namespace, refused=1)) as (_, client):
        with pytest.raises(HTTPError):
            label(client, namespace, "yes")
        assert labelled(cluster, namespace) is None


def test_an_answer_torn_in_the_middle(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where=namespace, reset=1)) as (_, client):
        with pytest.raises(HTTPError):
            label(client, namespace, "yes")
        assert labelled(cluster, namespace) == "yes"


def test_a_stalled_request_passes_late(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where=namespace, stall=1, stall_seconds=0.5)) as (_, client):
        began = time.monotonic()
        label(client, namespace, "yes")
        assert time.monotonic() - began >= 0.5
        assert labelled(cluster, namespace) == "yes"


def test_a_list_that_has_expired(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    """A 410 is for lists and watches; one object can always be read."""
    with through(control_plane, Faults(gone=1)) as (_, client):
        for query in ({"limit": 1}, {"watch": "1", "resourceVersion": "1"}):
            with pytest.raises(StatusError, match="410 Expired"):
                client.request("GET", "/api/v1/pods", query=query)
        assert client.request("GET", f"/api/v1/namespaces/{namespace}")["metadata"]["name"] == namespace


def watched(client: Cluster, namespace: str, act: Callable[[], object], seconds: float = 3) -> list[Object]:
    """The events of config maps from now until the watch ends (or `seconds`), while `act` is done once it is open."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    revision = client.request("GET", path)["metadata"]["resourceVersion"]
    watch = client.watch(path, revision, {"timeoutSeconds": str(int(seconds))})
    act()
    return [json.loads(line) for line in watch]


def maps(cluster: Cluster, namespace: str, *names: str) -> Callable[[], object]:
    objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in names]
    return lambda: [cluster.create(o, namespace=namespace) for o in objects]


def test_watch_events_come_twice(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where="configmaps", duplicate=1)) as (_, client):
        events = watched(client, namespace, maps(cluster, namespace, "a", "b"), 2)
        assert [e["object"]["metadata"].get("name") for e in events if e["type"] == "ADDED"] == ["a", "a", "b", "b"]


def test_watch_events_come_late(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where="configmaps", at_most=1, delay=1, delay_seconds=0.7)) as (_, client):
        began = time.monotonic()
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        watch = client.watch(path, client.request("GET", path)["metadata"]["resourceVersion"])
        maps(cluster, namespace, "a")()
        event = json.loads(next(iter(watch)))
        assert event["object"]["metadata"]["name"] == "a"
        assert time.monotonic() - began >= 0.7


def test_a_watch_that_expires_says_so_as_an_event(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    with through(control_plane, Faults(where="configmaps", gone_event=1)) as (_, client):
        events = watched(client, namespace, maps(cluster, namespace, "a"))
        assert [(e["type"], e["object"].get("code")) for e in events] == [("ERROR", 410)]


def test_a_watch_torn_within_a_line(control_plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    with through(control_plane, Faults(where="configmaps", tear=1)) as (_, client), pytest.raises(HTTPError):
        watched(client, namespace, maps(cluster, namespace, "a"))


def test_a_watch_is_cut_after_a_second_one_way_or_the_other(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    with through(control_plane, Faults(where="configmaps", cut_after=0.3)) as (_, client):
        ends = set()
        for _ in range(8):  # by this seed, both ways are among the first eight
            began = time.monotonic()
            try:
                assert watched(client, namespace, lambda: None, 10) == []
                ends.add("orderly")
            except urllib3.exceptions.ProtocolError:
                ends.add("closed")
            assert 0.3 <= time.monotonic() - began < 3
        assert ends == {"orderly", "closed"}


def test_the_same_request_meets_the_same_fault() -> None:
    """In runs of the same seed, in whatever order requests come; half of 40 fail, others by another seed."""

    def drawn(seed: int, paths: list[str]) -> dict[str, str | None]:
        with Proxy("https://127.0.0.1:1", None, seed=seed) as proxy:
            return {path: Faults(error=0.5).draw(proxy.rng("GET", path, False), "GET", False, True) for path in paths}

    paths = [f"/pods/p-{i}" for i in range(40)]
    shuffled = random.Random(1).sample(paths, 40)
    assert drawn(1, paths) == drawn(1, shuffled)
    assert drawn(1, paths) != drawn(2, paths)
    assert set(drawn(1, paths).values()) == {None, "error"}

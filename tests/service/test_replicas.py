"""Two replicas and one Lease: a leader that is stopped is followed, and sends nothing when it goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from tests.controlplane.cluster import Cluster, gang
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Exchange, Proxy
from tests.controlplane.recorder import Recorder
from tests.service.service import Service

Start = Callable[..., Service]


def writes(proxy: Proxy, since: float = 0.0) -> list[Exchange]:
    """What was sent to change something, but for the Lease."""
    return [e for e in proxy.log if e.method != "GET" and "/leases" not in e.path and e.began >= since]


def test_a_stopped_leader_is_followed_and_sends_nothing_when_it_goes_on(
    control_plane: ControlPlane, cluster: Cluster, namespace: str, service: Start
) -> None:
    """Each replica has a proxy of its own, which sees what it sends. The first leads, and is stopped in the middle of
    its binds, ten a second, past its lease of 15 s. The second finishes its gangs; then the first goes on.
    """
    minimums = {f"{namespace}/g{i}": 4 for i in range(12)}
    cluster.nodes(8, {"cpu": 8})
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(cluster))
        proxies = [stack.enter_context(Proxy(control_plane.url, control_plane.authority)) for _ in range(2)]
        files = [
            control_plane.credentials(control_plane.folder / f"replica-{i}.kubeconfig", control_plane.token, p.url)
            for i, p in enumerate(proxies)
        ]
        elect = {"leader_elect": True, "leader_elect_resource_namespace": namespace, "kube_api_burst": 4}
        first = service(
            control_plane, files[0], kube_api_qps=10, expected=["could not reach the server for the lease"], **elect
        )
        first.wait_for(lambda: first.metrics("solver_sched_leader") == {"": 1}, 20, "the first leads")
        second = service(control_plane, files[1], **elect)
        assert second.metrics("solver_sched_leader") == {"": 0}
        cluster.create(*(o for i in range(12) for o in gang(f"g{i}", 4, {"cpu": 1})), namespace=namespace)
        cluster.wait_for(lambda: len(recorder.binds()) >= 8, 40, "the first are bound")
        first.process.send_signal(signal.SIGSTOP)
        stopped = time.time()
        assert len(recorder.binds()) < 48, "in the middle"
        second.wait_for(lambda: second.metrics("solver_sched_leader") == {"": 1}, 30, "the second leads")
        assert time.time() - stopped <= 20
        cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 48, 40, "all gangs run")
        resumed = time.time()
        first.process.send_signal(signal.SIGCONT)
        first.wait_for(lambda: first.said("leads no more"), 10, "the first knows")
        cluster.create(*gang("late", 3, {"cpu": 1}), namespace=namespace)
        cluster.wait_for(lambda: [*cluster.phases(namespace).values()] == ["Running"] * 51, 20, "another gang runs")
        recorder.wait_for_rest(5)
        # A thread that was stopped between its look at the deadline and its send may send one request: to a pod that
        # has changed since, so that it is refused.
        assert [e for e in writes(proxies[0], resumed) if e.status not in (404, 409)] == []
        assert len(writes(proxies[0], resumed)) <= 24
        assert writes(proxies[1], resumed)
        assert recorder.moved() == []
        assert recorder.overcommits(rejected=True) == []
        assert recorder.broken(minimums | {f"{namespace}/late": 3}) == []
        bound = Counter(e.pod for proxy in proxies for e in proxy.binds() if e.status == 201)
        assert len(bound) == 51
        assert set(bound.values()) == {1}, "nothing was bound twice"
        assert first.metrics("solver_sched_leader") == {"": 0}
        ended = time.monotonic()
        second.end()
        first.wait_for(lambda: first.metrics("solver_sched_leader") == {"": 1}, 10, "the first leads again")
        assert time.monotonic() - ended < 15, "the Lease was given up"

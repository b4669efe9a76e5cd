"""The kubelets of all nodes, pretended: pods are admitted in the order in which they were bound, run, and end.

A pod is admitted against the allocatable of its node; one that does not fit ends as `Failed` with the reason
`OutOf<resource>`, as in pkg/kubelet/lifecycle/predicate.go. Annotations say what the containers would have decided:

    test/run-for: 4s           it succeeds so long after its start; without it, it runs until it is deleted
    test/terminate-after: 2s   it takes so long to end when it is deleted, its grace period at most; without it, no time

Run as `python -m tests.controlplane.kubelet URL AUTHORITY`, with the token in KUBELET_TOKEN.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import urllib3

from tests.controlplane.cluster import Cluster, Object, StatusError
from tests.controlplane.resources import Amounts, amounts, effective_requests, total

RUN_FOR = "test/run-for"
TERMINATE_AFTER = "test/terminate-after"
ENDED = ("Succeeded", "Failed")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SENDERS = 8


class Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    annotations: dict[str, str] = {}
    deletionTimestamp: str | None = None  # noqa: N815
    deletionGracePeriodSeconds: int = 0  # noqa: N815


class Status(msgspec.Struct):
    phase: str = "Pending"
    startTime: str | None = None  # noqa: N815
    allocatable: dict[str, str] = {}


class Thing(msgspec.Struct):
    """A pod or a node."""

    metadata: Metadata
    spec: dict[str, Any] = {}
    status: Status = msgspec.field(default_factory=Status)


class Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Collection(msgspec.Struct):
    metadata: Metadata
    items: list[Thing]


Call = Callable[[HTTPSConnection], None]
Keep = Callable[[list[Thing]], None]
See = Callable[[str, Thing], None]


def seconds(duration: str) -> float:
    """`1m30s` -> 90.0."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h)", duration))


def stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def overflow(request: Amounts, used: Amounts, room: Amounts) -> str | None:
    """The first resource that does not fit, in the order of NodeResourcesFit; None if all do."""
    first = ("pods", "cpu", "memory", "ephemeral-storage")
    for name in (*first, *sorted(set(request) - set(first))):
        if request.get(name, 0) > 0 and used.get(name, 0) + request[name] > room.get(name, 0):
            return name
    return None


class Agenda:
    """What is to be sent, and when: a heap that several senders wait at."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Call]] = []
        self.count = itertools.count()
        self.changed = threading.Condition()

    def put(self, call: Call, due: float = 0.0) -> None:
        with self.changed:
            heapq.heappush(self.heap, (due, next(self.count), call))
            self.changed.notify()

    def take(self) -> Call:
        """Wait until the earliest entry is due, and take it."""
        with self.changed:
            while not self.heap or self.heap[0][0] > time.time():
                self.changed.wait(self.heap[0][0] - time.time() if self.heap else None)
            return heapq.heappop(self.heap)[2]


class Kubelet:
    """All fields are guarded by `lock`; requests are sent without it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lock = threading.Lock()
        self.agenda = Agenda()
        self.room: dict[str, Amounts] = {}
        """Node -> allocatable."""
        self.held: dict[str, dict[str, Amounts]] = {}
        """Node -> uid -> request of the pods that were admitted and have not ended."""
        self.known: dict[str, Thing] = {}
        """Uid -> pod, of all that were admitted or rejected, until they are gone."""
        self.leaving: set[str] = set()
        """Uids of pods whose end is on the agenda."""
        self.early: dict[str, list[Thing]] = {}
        """Node -> pods in bind order, of nodes that are not known (yet)."""

    def run(self) -> None:
        for _ in range(SENDERS):
            threading.Thread(target=self.send, daemon=True).start()
        nodes = partial(self.follow, "/api/v1/nodes", {}, self.only_nodes, self.node)
        threading.Thread(target=nodes, daemon=True).start()
        self.follow("/api/v1/pods", {"fieldSelector": "spec.nodeName!="}, self.only_pods, self.pod)

    def follow(self, path: str, query: dict[str, str], keep: Keep, see: See) -> None:
        """List, then watch, for ever; whatever breaks is begun again."""
        while True:
            try:
                self.list_and_watch(path, query, keep, see)
            except (StatusError, urllib3.exceptions.HTTPError) as error:
                complain(f"{path}: {error!r}")
                time.sleep(0.5)

    def list_and_watch(self, path: str, query: dict[str, str], keep: Keep, see: See) -> None:
        listed = msgspec.convert(self.cluster.request("GET", path, query=query), Collection)
        keep(listed.items)
        for item in sorted(listed.items, key=lambda item: int(item.metadata.resourceVersion)):
            see("ADDED", item)
        revision = listed.metadata.resourceVersion
        decode, decode_thing = msgspec.json.Decoder(Event).decode, msgspec.json.Decoder(Thing).decode
        while True:
            for line in self.cluster.watch(path, revision, query):
                event = decode(line)
                if event.type == "ERROR":
                    raise StatusError(410, bytes(event.object))
                item = decode_thing(event.object)
                revision = item.metadata.resourceVersion
                if event.type != "BOOKMARK":
                    see(event.type, item)

    # What is seen

    def only_nodes(self, nodes: list[Thing]) -> None:
        with self.lock:
            self.room = {node.metadata.name: amounts(node.status.allocatable) for node in nodes}

    def only_pods(self, pods: list[Thing]) -> None:
        """Forget the pods that went while nobody watched."""
        with self.lock:
            left = {pod.metadata.uid for pod in pods}
            for uid in set(self.known) - left:
                self.forget(self.known[uid])

    def node(self, change: str, node: Thing) -> None:
        name = node.metadata.name
        with self.lock:
            if change == "DELETED":
                self.room.pop(name, None)
                return
            self.room[name] = amounts(node.status.allocatable)
            for pod in self.early.pop(name, []):
                self.admit(pod)

    def pod(self, change: str, pod: Thing) -> None:
        uid = pod.metadata.uid
        with self.lock:
            if change == "DELETED":
                self.forget(pod)
                return
            if pod.status.phase in ENDED:
                self.known[uid] = pod
                self.release(pod)
            elif uid not in self.known:
                self.admit(pod)
            if pod.metadata.deletionTimestamp is not None and uid not in self.leaving:
                self.leaving.add(uid)
                grace = float(pod.metadata.deletionGracePeriodSeconds)
                takes = min(grace, seconds(pod.metadata.annotations.get(TERMINATE_AFTER, "0s")))
                self.agenda.put(partial(self.terminate, pod), time.time() + takes)

    def forget(self, pod: Thing) -> None:
        uid = pod.metadata.uid
        self.release(pod)
        self.known.pop(uid, None)
        self.leaving.discard(uid)
        node = pod.spec["nodeName"]
        if node in self.early:
            self.early[node] = [other for other in self.early[node] if other.metadata.uid != uid]

    def release(self, pod: Thing) -> None:
        self.held.get(pod.spec["nodeName"], {}).pop(pod.metadata.uid, None)

    def admit(self, pod: Thing) -> None:
        node = pod.spec["nodeName"]
        if node not in self.room:
            if all(other.metadata.uid != pod.metadata.uid for other in self.early.setdefault(node, [])):
                self.early[node].append(pod)
            return
        self.known[pod.metadata.uid] = pod
        request = effective_requests(pod.spec)
        held = self.held.setdefault(node, {})
        used = total(held.values())
        short = None if pod.status.phase == "Running" else overflow(request, used, self.room[node])
        if short is None:
            held[pod.metadata.uid] = request
            self.agenda.put(partial(self.start, pod))
            return
        numbers = f"requested: {request[short]}, used: {used.get(short, 0)}, capacity: {self.room[node].get(short, 0)}"
        message = f"Pod was rejected: Node didn't have enough resource: {short}, {numbers}"
        status = {"phase": "Failed", "reason": f"OutOf{short}", "message": message, "startTime": stamp(time.time())}
        self.agenda.put(partial(self.patch, pod, status))

    # What is sent

    def send(self) -> None:
        """One sender. It has a connection of its own: http.client takes half the time of a connection pool."""
        url = urlsplit(self.cluster.url)
        assert url.hostname is not None
        context = ssl.create_default_context(cafile=self.cluster.authority)
        connection = HTTPSConnection(url.hostname, url.port, context=context, timeout=30)
        while True:
            call = self.agenda.take()
            try:
                call(connection)
            except (OSError, HTTPException, StatusError) as error:
                complain(repr(error))
                connection.close()
                self.agenda.put(call, time.time() + 0.5)

    def request(self, connection: HTTPSConnection, method: str, path: str, content_type: str, body: Object) -> None:
        headers = {"Authorization": f"Bearer {self.cluster.token}", "Content-Type": content_type}
        connection.request(method, path, msgspec.json.encode(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        # 404: the pod is gone. 409: another of that name is there instead.
        if answer.status >= 400 and answer.status not in (404, 409):
            raise StatusError(answer.status, said)

    def start(self, pod: Thing, connection: HTTPSConnection) -> None:
        now = time.time()
        if pod.status.startTime is not None:
            now = datetime.fromisoformat(pod.status.startTime).timestamp()
        if pod.status.phase != "Running":
            self.patch(pod, self.status(pod, "Running", now, {"running": {"startedAt": stamp(now)}}), connection)
        lasts = pod.metadata.annotations.get(RUN_FOR)
        if lasts is not None:
            ended = {"exitCode": 0, "reason": "Completed", "finishedAt": stamp(now + seconds(lasts))}
            status = self.status(pod, "Succeeded", now, {"terminated": ended})
            self.agenda.put(partial(self.succeed, pod, status), now + seconds(lasts))

    def succeed(self, pod: Thing, status: Object, connection: HTTPSConnection) -> None:
        """Unless it was deleted before it ended: then it has failed, and a phase that is an end stands."""
        with self.lock:
            if pod.metadata.uid in self.leaving:
                return
        self.patch(pod, status, connection)

    def terminate(self, pod: Thing, connection: HTTPSConnection) -> None:
        """As a kubelet does: the last status, then the deletion that takes the object away."""
        if pod.status.phase not in ENDED:
            now = time.time()
            killed = {"exitCode": 143, "reason": "Error", "finishedAt": stamp(now)}
            self.patch(pod, self.status(pod, "Failed", now, {"terminated": killed}), connection)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        self.request(connection, "DELETE", self.path(pod), "application/json", options)

    def patch(self, pod: Thing, status: Object, connection: HTTPSConnection) -> None:
        """A strategic merge keeps the conditions of others; the uid is a precondition."""
        change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        content_type = "application/strategic-merge-patch+json"
        self.request(connection, "PATCH", f"{self.path(pod)}/status", content_type, change)

    @staticmethod
    def path(pod: Thing) -> str:
        return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"

    @staticmethod
    def status(pod: Thing, phase: str, start: float, state: Object) -> Object:
        ready = phase == "Running"
        condition = {"status": "True" if ready else "False", "lastTransitionTime": stamp(time.time())}
        if not ready:
            condition["reason"] = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        return {
            "phase": phase,
            "startTime": stamp(start),
            "conditions": [
                {"type": "PodReadyToStartContainers", **condition},
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", **condition},
                {"type": "ContainersReady", **condition},
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": ready,
                    "started": ready,
                    "restartCount": 0,
                    "state": state,
                }
                for container in pod.spec["containers"]
            ],
        }


def complain(text: str) -> None:
    sys.stderr.write(f"{stamp(time.time())} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    Kubelet(Cluster(sys.argv[1], os.environ["KUBELET_TOKEN"], Path(), Path(sys.argv[2]))).run()

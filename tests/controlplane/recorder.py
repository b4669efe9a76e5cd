"""A witness: what happened to every pod and node, in the order of the server's revisions, and what should not have.

It counts for itself from the objects that the API server sent, and shares nothing with the scheduler that it judges.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import urllib3

from tests.controlplane.cluster import Cluster, Object, StatusError, Watch
from tests.controlplane.resources import Amounts, amounts, effective_requests

ENDED = ("Succeeded", "Failed")
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Seen:
    """One change of a pod or a node (`kind`), `at` seconds since the epoch as it arrived here."""

    revision: int
    at: float
    kind: str
    change: str
    uid: str
    name: str
    """`namespace/name` of a pod, name of a node."""
    group: str
    """`namespace/name` of the gang of a pod, or nothing."""
    node: str
    """Where a pod is bound, or nothing."""
    phase: str
    reason: str
    leaving: bool
    """It has a deletion timestamp, or is gone."""
    amounts: Amounts
    """Request of a pod, allocatable of a node."""

    @property
    def holds(self) -> bool:
        """Whether a pod takes room on its node."""
        return bool(self.node) and self.change != "DELETED" and self.phase not in ENDED

    @property
    def rejected(self) -> bool:
        return self.phase == "Failed" and self.reason.startswith("OutOf")


@dataclass(frozen=True)
class Overcommit:
    """From `revision` on, when `pod` came, `node` held `used` of a resource of which it has `room`."""

    revision: int
    node: str
    resource: str
    used: int
    room: int
    pod: str


@dataclass(frozen=True)
class Gang:
    """The state of a gang: `members` are bound and have not failed and are not leaving."""

    name: str
    members: int
    minimum: int


def group_of(pod: Mapping[str, Any]) -> str:
    """`namespace/name` of the group that a pod names, in any dialect; nothing if it names none."""
    metadata = pod["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    name = (
        annotations.get("scheduling.k8s.io/group-name")
        or annotations.get("scheduling.volcano.sh/group-name")
        or labels.get("scheduling.x-k8s.io/pod-group")
        or (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    )
    return f"{metadata['namespace']}/{name}" if name else ""


class Recorder:
    """A context manager that writes down all changes of pods and nodes from the moment it is entered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pods: list[Seen] = []
        self.nodes: list[Seen] = []
        self.watches: dict[str, Watch] = {}
        self.stopped = threading.Event()
        self.lost: str | None = None
        """Why it may have missed something."""

    def __enter__(self) -> Self:
        self.threads = []
        for kind, found in (("nodes", self.nodes), ("pods", self.pods)):
            listed = self.cluster.request("GET", f"/api/v1/{kind}")
            for item in listed["items"]:
                note(found, kind, "ADDED", item)
            found.sort(key=attrgetter("revision"))
            thread = threading.Thread(target=self._follow, args=(kind, found, listed["metadata"]["resourceVersion"]))
            thread.start()
            self.threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        while any(thread.is_alive() for thread in self.threads):
            for watch in list(self.watches.values()):
                watch.stop()
            for thread in self.threads:
                thread.join(0.1)

    def _follow(self, kind: str, found: list[Seen], revision: str) -> None:
        """A watch that ends is resumed where it ended; if the server no longer has that revision, sight is lost."""
        while not self.stopped.is_set():
            try:
                self.watches[kind] = self.cluster.watch(f"/api/v1/{kind}", revision)
                for line in self.watches[kind]:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        self.lost = f"watch of {kind}: {event['object'].get('message')}"
                        return
                    revision = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        note(found, kind, event["type"], event["object"])
            except StatusError as error:
                if error.status == 410:
                    self.lost = f"watch of {kind}: {error}"
                    return
                time.sleep(0.2)
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                # A watch that is stopped from another thread may end with any of them.
                if self.stopped.is_set():
                    return
                if isinstance(error, ValueError):
                    self.lost = f"watch of {kind}: {error}"
                    return
                time.sleep(0.2)

    def seen(self) -> list[Seen]:
        """Everything so far, in revision order; AssertionError if anything may be missing."""
        assert self.lost is None, f"the recorder lost sight: {self.lost}"
        return sorted([*self.nodes, *self.pods], key=attrgetter("revision"))

    def last(self) -> dict[str, Seen]:
        """Uid -> the last that was seen of a pod."""
        assert self.lost is None, f"the recorder lost sight: {self.lost}"
        return {pod.uid: pod for pod in list(self.pods)}

    def binds(self) -> list[Seen]:
        """The first sight of each pod on a node, in revision order."""
        bound: dict[str, Seen] = {}
        for pod in self.seen():
            if pod.kind == "pods" and pod.node:
                bound.setdefault(pod.uid, pod)
        return list(bound.values())

    def wait_for_rest(self, seconds: float = 5, within: float = 60) -> None:
        """Return once no pod has changed for `seconds` and no change is on its way; AssertionError after `within`."""
        until = time.monotonic() + within
        began = time.time()
        while True:
            changed = self.pods[-1] if self.pods else None
            quiet_since = began if changed is None else max(began, changed.at)
            if time.time() - quiet_since >= seconds and self.complete():
                return
            assert time.monotonic() < until, f"no rest within {within} s; the last change was {changed}"
            time.sleep(0.1)

    def complete(self) -> bool:
        """Whether each pod was seen in the revision in which the server has it now."""
        names = self.cluster.request("GET", "/api/v1/pods", accept=METADATA)["items"] or []  # null where there are none
        there = {pod["metadata"]["uid"]: int(pod["metadata"]["resourceVersion"]) for pod in names}
        return there == {uid: pod.revision for uid, pod in self.last().items() if pod.change != "DELETED"}

    # What should not have happened

    def moved(self) -> list[tuple[Seen, Seen]]:
        """Pods that were seen on two nodes: (first, second)."""
        first = {pod.uid: pod for pod in self.binds()}
        return [
            (first[pod.uid], pod)
            for pod in self.seen()
            if pod.kind == "pods" and pod.node and pod.node != first[pod.uid].node
        ]

    def overcommits(self, *, rejected: bool = False) -> list[Overcommit]:
        """Each bind that left a node with more than it has, nodes and pods replayed in revision order.

        A pod that the kubelet rejected held nothing, unless `rejected`: then it counts from its bind to its rejection.
        """
        history = self.seen()
        refused = set() if rejected else {pod.uid for pod in history if pod.rejected}
        room: dict[str, Amounts] = {}
        held: dict[str, dict[str, Amounts]] = defaultdict(dict)
        found: list[Overcommit] = []
        for thing in history:
            if thing.kind == "nodes":
                room[thing.name] = {} if thing.change == "DELETED" else thing.amounts
            elif not thing.holds or thing.uid in refused:
                held[thing.node].pop(thing.uid, None)
            elif thing.uid not in held[thing.node]:
                held[thing.node][thing.uid] = thing.amounts
                found += excess(thing, held[thing.node], room.get(thing.node, {}))
        return found

    def broken(self, minimums: Mapping[str, int]) -> list[Gang]:
        """Gangs (`namespace/name` -> minimum) that have members now, but fewer than the minimum."""
        members = dict.fromkeys(minimums, 0)
        for pod in self.last().values():
            if pod.group in members and pod.node and pod.phase != "Failed" and not pod.leaving:
                members[pod.group] += 1
        return [Gang(name, members[name], least) for name, least in minimums.items() if 0 < members[name] < least]

    def seconds_to_bind(self, gang: str, minimum: int) -> float:
        """From the first bind of a gang to the one with which its minimum was bound."""
        at = [pod.at for pod in self.binds() if pod.group == gang]
        assert len(at) >= minimum, f"{len(at)} pods of {gang} were bound, {minimum} are its minimum"
        return at[minimum - 1] - at[0]


def note(found: list[Seen], kind: str, change: str, item: Object) -> None:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    is_pod = kind == "pods"
    found.append(
        Seen(
            revision=int(metadata["resourceVersion"]),
            at=time.time(),
            kind=kind,
            change=change,
            uid=metadata["uid"],
            name=f"{metadata['namespace']}/{metadata['name']}" if is_pod else metadata["name"],
            group=group_of(item) if is_pod else "",
            node=spec.get("nodeName", ""),
            phase=status.get("phase", ""),
            reason=status.get("reason", ""),
            leaving=change == "DELETED" or "deletionTimestamp" in metadata,
            amounts=effective_requests(spec) if is_pod else amounts(status.get("allocatable")),
        )
    )


def excess(pod: Seen, held: Mapping[str, Amounts], room: Amounts) -> Iterator[Overcommit]:
    for resource, request in pod.amounts.items():
        used = sum(one.get(resource, 0) for one in held.values())
        if request > 0 and used > room.get(resource, 0):
            yield Overcommit(pod.revision, pod.node, resource, used, room.get(resource, 0), pod.name)

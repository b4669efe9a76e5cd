"""What a test says to the API server: one HTTPS client that neither retries nor caches, so that it can judge others."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import urllib3

from tests.controlplane import binaries

Object = dict[str, Any]
T = TypeVar("T")

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}


class StatusError(Exception):
    """The server refused: `status` is the HTTP code, `reason` and `message` are those of its Status object."""

    def __init__(self, status: int, body: bytes) -> None:
        try:
            said = json.loads(body)
            self.reason, self.message = str(said.get("reason", "")), str(said.get("message", ""))
        except (ValueError, AttributeError):
            self.reason, self.message = "", body.decode(errors="replace")
        self.status = status
        super().__init__(f"{status} {self.reason}: {self.message}")


class Watch:
    """An open watch. Iterating gives its events, one JSON line each, until the server ends it."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self.answer = answer

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for part in self.answer.stream(65536):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
        finally:
            self.answer.close()

    def stop(self) -> None:
        """End the iteration of another thread."""
        with suppress(RuntimeError, ValueError):  # it has ended
            self.answer.shutdown()


@dataclass
class Cluster:
    """A user of an API server. `authority` is the file of the certificate that signs for it, None over plain HTTP."""

    url: str
    token: str
    kubeconfig: Path
    authority: Path | None = None
    pool: urllib3.PoolManager = field(init=False)
    served: dict[str, list[Object]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        authority = None if self.authority is None else str(self.authority)
        self.pool = urllib3.PoolManager(maxsize=32, block=True, ca_certs=authority, retries=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.clear()

    # Requests

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        query: Mapping[str, str | int] | None = None,
    ) -> Any:
        """The decoded answer; StatusError if the server refuses. `body` may be bytes, or a value to encode as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.pool.request(
            method,
            f"{self.url}{path}?{urlencode(query or {})}",
            body=data,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type, "Accept": accept},
            timeout=120,
        )
        if answer.status >= 400:
            raise StatusError(answer.status, answer.data)
        return json.loads(answer.data) if answer.data[:1] in (b"{", b"[") else answer.data.decode()

    def watch(self, path: str, revision: str, query: Mapping[str, str] | None = None) -> Watch:
        """What happens after `revision`; StatusError if the server refuses."""
        asked = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": revision, **(query or {})}
        answer = self.pool.request(
            "GET",
            f"{self.url}{path}?{urlencode(asked)}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=urllib3.Timeout(connect=10, read=300),
            preload_content=False,
        )
        if answer.status >= 400:
            raise StatusError(answer.status, answer.read())
        return Watch(answer)

    def path(self, kind: str, api_version: str = "v1", namespace: str | None = None, name: str | None = None) -> str:
        """Where a kind is served. Kinds of CRDs are looked for again when they are not known yet."""
        base = f"/api/{api_version}" if api_version == "v1" else f"/apis/{api_version}"
        for _ in range(2):
            for resource in self.served.setdefault(api_version, []):
                if resource["kind"] == kind and "/" not in resource["name"]:
                    where = (
                        f"/namespaces/{namespace or 'default'}"
                        if resource["namespaced"] and (namespace or name)
                        else ""
                    )
                    return f"{base}{where}/{resource['name']}" + (f"/{name}" if name else "")
            self.served[api_version] = self.request("GET", base)["resources"]
        raise LookupError(f"the server does not serve {kind} of {api_version}")

    # Objects

    def apply(self, *objects: Object, namespace: str | None = None) -> list[Object]:
        """Server-side apply, in order; `namespace` is for objects that name none. Their state after it."""
        return [
            self.request(
                "PATCH",
                self.path(o["kind"], o["apiVersion"], o["metadata"].get("namespace", namespace), o["metadata"]["name"]),
                o,
                content_type="application/apply-patch+yaml",
                query={"fieldManager": "test", "force": "true"},
            )
            for o in objects
        ]

    def create(self, *objects: Object, namespace: str | None = None) -> list[Object]:
        """POST, sixteen at a time; `status` is kept where the server keeps it on creation (nodes)."""

        def post(o: Object) -> Object:
            made: Object = self.request("POST", where[o["apiVersion"], o["kind"], space(o)], o)
            return made

        def space(o: Object) -> str | None:
            named = o["metadata"].get("namespace", namespace)
            return None if named is None else str(named)

        kinds = {(o["apiVersion"], o["kind"], space(o)) for o in objects}
        where = {key: self.path(key[1], key[0], key[2]) for key in kinds}
        with ThreadPoolExecutor(16) as threads:
            return list(threads.map(post, objects))

    def get(self, kind: str, name: str, namespace: str | None = None, api_version: str = "v1") -> Object:
        found: Object = self.request("GET", self.path(kind, api_version, namespace, name))
        return found

    def items(self, kind: str, namespace: str | None = None, api_version: str = "v1", **query: str) -> list[Object]:
        items: list[Object] = self.request("GET", self.path(kind, api_version, namespace), query=query)["items"]
        return items

    def patch(
        self, kind: str, name: str, change: Object, namespace: str | None = None, api_version: str = "v1", sub: str = ""
    ) -> Object:
        """A JSON merge patch, of the subresource `sub` (such as "status") if one is named."""
        path = self.path(kind, api_version, namespace, name) + (f"/{sub}" if sub else "")
        after: Object = self.request("PATCH", path, change, content_type="application/merge-patch+json")
        return after

    def delete(
        self, kind: str, name: str, namespace: str | None = None, api_version: str = "v1", grace: int | None = None
    ) -> None:
        """`grace` in seconds; None leaves it to the object."""
        query = {} if grace is None else {"gracePeriodSeconds": grace}
        self.request("DELETE", self.path(kind, api_version, namespace, name), query=query)

    def bind(self, pod: str, node: str, namespace: str, uid: str | None = None) -> None:
        """What a scheduler does at the end."""
        metadata = {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body)

    def nodes(self, count: int, have: Mapping[str, Any], prefix: str = "node", **labels: str) -> list[str]:
        """Ready nodes `prefix-0` .. with the allocatable `have` (room for 110 pods if it does not say); their names."""
        room = {"pods": "110"} | {name: str(quantity) for name, quantity in have.items()}
        names = [f"{prefix}-{i}" for i in range(count)]
        self.create(
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | labels},
                    "status": {"capacity": room, "allocatable": room, "conditions": [READY]},
                }
                for name in names
            )
        )
        return names

    def wait_for(self, condition: Callable[[], T], seconds: float, what: str) -> T:
        """The first true value of `condition`, asked ten times a second; an object not found, or a server that asks to
        wait, counts as false.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                value = condition()
            except StatusError as error:
                if error.status not in (404, 429):  # 429: the storage of a kind that is new is not there yet
                    raise
            else:
                if value:
                    return value
            if time.monotonic() > until:
                raise AssertionError(f"not within {seconds} s: {what}")
            time.sleep(0.1)

    def phases(self, namespace: str) -> dict[str, str]:
        """Pod -> phase."""
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.items("Pod", namespace)}

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """What kubectl prints; CalledProcessError, with its stderr as a note, if it fails."""
        command = [str(binaries.binary("kubectl")), f"--kubeconfig={self.kubeconfig}", *args]
        # A cache of its own keeps the discovery of one server from being read for another on the same port.
        env = os.environ | {"KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache")}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout


def pod(name: str, ask: Mapping[str, Any] | None = None, **more: Any) -> Object:
    """A pod of one container that requests `ask`; `more` goes to its spec, but for the fields that metadata has."""
    metadata = {key: more.pop(key) for key in ("annotations", "labels", "namespace", "ownerReferences") if key in more}
    requests = dict(ask or {})
    limits = {name: quantity for name, quantity in requests.items() if "/" in name}  # devices cannot be overcommitted
    resources = {"requests": requests, "limits": limits}
    container = {"name": "main", "image": "registry.example/main", "resources": resources}
    spec = {"containers": [container], "restartPolicy": "Never", "schedulerName": "solver-sched"} | more
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name} | metadata, "spec": spec}


def gang(name: str, size: int, ask: Mapping[str, Any], minimum: int | None = None, **more: Any) -> list[Object]:
    """A PodGroup (scheduling.volcano.sh) and its pods `name-0` ..; the minimum is all of them if none is given."""
    queue = {"queue": more.pop("queue")} if "queue" in more else {}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size if minimum is None else minimum} | queue,
    }
    annotations = {"scheduling.k8s.io/group-name": name} | more.pop("annotations", {})
    return [group, *(pod(f"{name}-{i}", ask, annotations=annotations, **more) for i in range(size))]


def named(objects: Iterable[Object]) -> dict[str, Object]:
    """Name -> object."""
    return {o["metadata"]["name"]: o for o in objects}

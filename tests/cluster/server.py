"""A small API server on loopback that a test scripts: it keeps objects as the real one does, and fails when told to.

What it answers to binds, evictions, patches and preconditions was seen on kube-apiserver 1.37.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import Configuration

from solver_sched.cluster.api import Api

Json = dict[str, Any]
POD = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(?:/(\w+))?")
OBJECT = re.compile(r"(/apis/[^?]*?/(?:podgroups|queues|events)/[^/]+)(/status)?")


@dataclass
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    type: str
    at: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Answer:
    """`chunks`: parts of an endless answer, sent one after the other instead of `body`."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] | None = None


@dataclass(frozen=True)
class Reset:
    """No answer: the connection is closed. `acts`: after the server did what was asked."""

    acts: bool = False


Fault = Answer | Reset
Script = Callable[[Request], Fault | None]
"""What to answer instead of the truth, None = the truth."""


def status(code: int, reason: str = "", message: str = "", cause: str = "", **headers: str) -> Answer:
    """An error as the API server puts it; `Retry_After="1"` becomes a header."""
    details = {"causes": [{"reason": cause}]} if cause else {}
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return Answer(code, body | {"details": details}, {key.replace("_", "-"): value for key, value in headers.items()})


def conflict(message: str = "the object has been modified") -> Answer:
    return status(409, "Conflict", message)


class Server:
    """`pods` by "namespace/name", `objects` (custom resources and events) by path. `requests`: all that came, in order.

    `script`: called for each request before the server acts; may be replaced at any time. `whole`: path prefixes of
    definitions without a status subresource.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.objects: dict[str, Json] = {}
        self.whole: tuple[str, ...] = ()
        self.budgets: dict[str, int] = {}
        self.requests: list[Request] = []
        self.script: Script = lambda _request: None
        self.lock = threading.RLock()
        self.revision = 0

    # what is there

    def pod(self, name: str, uid: str = "", **status: Any) -> Json:
        self.revision += 1
        pod = {
            "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}"},
            "spec": {},
            "status": {"phase": "Pending", **status},
        }
        pod["metadata"]["resourceVersion"] = str(self.revision)
        self.pods[f"ns/{name}"] = pod
        return pod

    def put(self, path: str, version: str, **fields: Any) -> bytes:
        """An object at a path; its text as a watch would give it."""
        self.revision += 1
        *_, plural, name = path.split("/")
        namespace = re.search("/namespaces/([^/]+)/", path)
        metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.revision)}
        if namespace:
            metadata["namespace"] = namespace[1]
        kind = {"podgroups": "PodGroup", "queues": "Queue"}[plural]
        self.objects[path] = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        return json.dumps(self.objects[path]).encode()

    def sent(self, pattern: str) -> list[Request]:
        """Requests whose "METHOD path" matches."""
        return [request for request in list(self.requests) if re.search(pattern, str(request))]

    # what it does

    def answer(self, request: Request) -> Fault:
        with self.lock:
            self.requests.append(request)
            fault = self.script(request)
            if fault is not None and not (isinstance(fault, Reset) and fault.acts):
                return fault
            answer = self._act(request)
            return fault or answer

    def _act(self, request: Request) -> Answer:
        if match := POD.fullmatch(request.path):
            return self._pod(request, f"{match[1]}/{match[2]}", match[3] or "")
        if match := OBJECT.fullmatch(request.path):
            return self._object(request, match[1], bool(match[2]))
        if request.method == "POST":
            return self._create(request)
        return status(404, "NotFound", f"{request.path} is not served")

    def _pod(self, request: Request, key: str, part: str) -> Answer:
        pod = self.pods.get(key)
        if pod is None:
            return status(404, "NotFound", f'pods "{key}" not found')
        meta, asked = pod["metadata"], request.body or {}
        if part == "eviction":
            uid = asked.get("deleteOptions", {}).get("preconditions", {}).get("uid", meta["uid"])
            if uid != meta["uid"]:
                return conflict("the UID in the precondition does not match")
            budget = meta.get("budget")
            if budget is not None and self.budgets[budget] <= 0:
                return status(429, "TooManyRequests", "Cannot evict pod", cause="DisruptionBudget")
            if budget is not None:
                self.budgets[budget] -= 1
            meta["deletionTimestamp"] = "2026-01-01T12:00:00Z"
            self._changed(meta)
            return Answer(201, {"kind": "Status", "status": "Success"})
        if part == "binding":
            named = asked["metadata"]
            for precondition in ("uid", "resourceVersion"):
                if named.get(precondition, meta[precondition]) != meta[precondition]:
                    return conflict(f"Precondition failed: {precondition}")
            if meta.get("deletionTimestamp") or pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
                return conflict("already assigned, being deleted, or gated")
            pod["spec"]["nodeName"] = asked["target"]["name"]
            pod["status"].pop("nominatedNodeName", None)
            self._changed(meta)
            return Answer(201, {"kind": "Status", "status": "Success"})
        if request.method == "PATCH":
            named = asked.get("metadata", {})
            if named.get("uid", meta["uid"]) != meta["uid"]:
                return status(422, "Invalid", "metadata.uid: field is immutable", cause="FieldValueInvalid")
            if named.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
                return conflict()
            self._merge(pod["status"], asked["status"], by_type=True)
            self._changed(meta)
        return Answer(200, pod)

    def _object(self, request: Request, path: str, part: bool) -> Answer:
        found = self.objects.get(path)
        whole = path.startswith(self.whole) if self.whole else False
        if found is None or (part and whole):
            return status(404, "NotFound", f"{request.path} is not there")
        if request.method == "PATCH":
            meta, asked = found["metadata"], request.body
            named = asked.get("metadata", {}).get("resourceVersion", meta["resourceVersion"])
            if named != meta["resourceVersion"]:
                return conflict()
            if part or whole or "events" in path:
                changed = {key: value for key, value in asked.items() if key != "metadata"}
                self._merge(found, changed, by_type="strategic" in request.type)
                self._changed(meta)
        return Answer(200, found)

    def _create(self, request: Request) -> Answer:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists", f"{path} exists")
        self.objects[path] = request.body
        self._changed(request.body["metadata"])
        return Answer(201, request.body)

    def _changed(self, meta: Json) -> None:
        self.revision += 1
        meta["resourceVersion"] = str(self.revision)

    def _merge(self, into: Json, patch: Json, *, by_type: bool) -> None:
        """RFC 7386; a strategic patch merges conditions by their type."""
        for key, value in patch.items():
            if value is None:
                into.pop(key, None)
            elif key == "conditions" and by_type:
                there = {one["type"]: one for one in into.setdefault(key, [])}
                for one in value:
                    if one["type"] in there:
                        self._merge(there[one["type"]], one, by_type=True)
                    else:
                        into[key].append({name: what for name, what in one.items() if what is not None})
            elif isinstance(value, dict):
                self._merge(into.setdefault(key, {}), value, by_type=by_type)
            else:
                into[key] = value


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body
    disable_nagle_algorithm = True
    state: Server

    def serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        asked = Request(
            self.command, url.path, dict(parse_qsl(url.query)), body, self.headers.get("Content-Type") or ""
        )
        answer = self.state.answer(asked)
        if isinstance(answer, Reset):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        with self.state.lock:
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.chunks is None:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.chunks is None:
            self.wfile.write(data)
            self.wfile.flush()
            return
        self.wfile.flush()
        for chunk in answer.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up


@contextmanager
def serving(server: Server | None = None) -> Iterator[tuple[Server, Api]]:
    """A server on a free port, and a client of it."""
    state = server or Server()
    listener = _Listener(("127.0.0.1", 0), type("Connection", (_Connection,), {"state": state}))
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    settings = Configuration()
    settings.host = f"http://127.0.0.1:{listener.server_address[1]}"
    api = Api(settings, connections=64)
    try:
        yield state, api
    finally:
        api.close()
        listener.shutdown()
        listener.server_close()
        thread.join()

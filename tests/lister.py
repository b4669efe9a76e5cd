"""A loopback API server that lists: pages, refusals and expired tokens as a test scripts them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from solver_sched.cluster.kinds import KINDS, base, path
from solver_sched.cluster.live import RULES

Json = dict[str, Any]


class Lister:
    """Serves `objects`, and of kinds that are not built in only those of apiVersions in `objects` or `served`.

    `page`: most items that one answer holds, whatever `limit` says. `refusals`: path and query -> the status that
    answers it. `expired`: path and query -> how often it is still answered by 410. `instead`: what answers everything.
    `asked`: path and query of each request, in order.
    """

    def __init__(self, objects: Iterable[Mapping[str, Any]] = (), served: Iterable[str] = (), page: int = 500) -> None:
        self.page = page
        self.refusals: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self.instead: tuple[int, Json | bytes] | None = None
        self.asked: list[str] = []
        given = [dict(one) for one in objects]
        versions = {str(one["apiVersion"]) for one in given} | set(served)
        self.lists: dict[str, tuple[str, str, list[Json]]] = {}
        for kind in (*KINDS, *RULES):
            for version in kind.versions:
                if kind.built_in or version in versions:
                    items = [one for one in given if (one["kind"], one["apiVersion"]) == (kind.kind, version)]
                    bare = [{k: v for k, v in one.items() if k not in ("kind", "apiVersion")} for one in items]
                    self.lists[path(kind, version)] = (kind.kind, version, bare)
        self.versions = {base(version): version for _, version, _ in self.lists.values()}

    def __enter__(self) -> Self:
        lister = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = lister.answer(self.path)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, target: str) -> tuple[int, Json | bytes]:
        self.asked.append(target)
        split = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        if self.instead is not None:
            return self.instead
        if self.expired.get(target):
            self.expired[target] -= 1
            return self.refused(410, split.path)
        if target in self.refusals:
            return self.refused(self.refusals[target], split.path)
        if split.path in self.versions:
            names = [where.rsplit("/", 1)[1] for where in self.lists if where.rsplit("/", 1)[0] == split.path]
            return 200, {"kind": "APIResourceList", "resources": [{"name": name} for name in names]}
        if split.path not in self.lists:
            return self.refused(404, split.path)
        kind, version, items = self.lists[split.path]
        start = int(query.get("continue", 0))
        end = min(
            start + int(query.get("limit", len(items) + 1)), start + self.page if "limit" in query else len(items)
        )
        metadata = {"resourceVersion": "1"} | ({"continue": str(end)} if end < len(items) else {})
        # an empty list of a Go server is null where nobody made one
        return 200, {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": metadata,
            "items": items[start:end] or None,
        }

    def refused(self, status: int, where: str) -> tuple[int, Json]:
        reason = {403: "Forbidden", 404: "NotFound", 410: "Expired", 401: "Unauthorized"}.get(status, "InternalError")
        message = {
            403: f'User "eve" cannot list resource "{where.rsplit("/", 1)[1]}" at the cluster scope',
            404: "the server could not find the requested resource",
            410: "The provided continue parameter is too old to display a consistent list result",
        }.get(status, reason)
        return status, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}


def kubeconfig(file: Path, url: str, namespace: str = "", context: str = "there") -> Path:
    """A kubeconfig with one context."""
    within = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": context, "context": within}],
        "current-context": context,
    }
    file.write_text(yaml.safe_dump(config))
    return file

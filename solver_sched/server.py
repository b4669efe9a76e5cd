"""Small HTTP servers: metrics, health, and the last cycle for whoever debugs it.

They only ever read: a page is a callable that gives bytes. Each connection has a thread and one answer; a client that
is slow holds up nobody, and when there are too many the oldest is hung up on, so that a probe always gets through.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from solver_sched.errors import ConfigError

CONNECTIONS = 64
"""Open connections of one server beyond which the oldest ends; twice as many are never open."""
SECONDS = 10.0
"""Time-out of one read or write of a client."""
CHUNK = 1 << 16
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

Check = Callable[[], str]
"""Says what is wrong, "" if nothing is."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


Page = Callable[[Mapping[str, list[str]], str], Answer]
"""Given the query (`?verbose` is {"verbose": [""]}) and the header `Accept`."""
Pages = Mapping[str, Page]


def metrics_pages(exposition: Callable[[str], tuple[str, bytes]]) -> Pages:
    """`/metrics`, from `Metrics.exposition`."""

    def page(_: Mapping[str, list[str]], accept: str) -> Answer:
        return Answer(HTTPStatus.OK, *exposition(accept))

    return {"/metrics": page}


def health_pages(live: Mapping[str, Check], ready: Mapping[str, Check]) -> Pages:
    """`/livez`, `/readyz`, and `/healthz` (another name of `/livez`), in the words of Kubernetes components: "ok", or
    500 and a line for each check (apiserver pkg/server/healthz); with `?verbose` the lines in any case.
    """

    def page(name: str, checks: Mapping[str, Check]) -> Page:
        def answer(query: Mapping[str, list[str]], _: str) -> Answer:
            wrong = {check: say() for check, say in checks.items()}
            failed = any(wrong.values())
            if not failed and "verbose" not in query:
                return Answer(HTTPStatus.OK, TEXT, b"ok")
            lines = [f"[-]{check} failed: {said}" if said else f"[+]{check} ok" for check, said in wrong.items()]
            lines.append(f"{name} check {'failed' if failed else 'passed'}")
            status = HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK
            return Answer(status, TEXT, "".join(f"{line}\n" for line in lines).encode())

        return answer

    return {"/livez": page("livez", live), "/readyz": page("readyz", ready), "/healthz": page("healthz", live)}


def debug_pages(snapshot: Callable[[], bytes | None], plan: Callable[[], bytes | None]) -> Pages:
    """`/snapshot` and `/plan` of the last cycle, JSON; 404 as long as they are None."""

    def page(body: Callable[[], bytes | None]) -> Page:
        def answer(_: Mapping[str, list[str]], __: str) -> Answer:
            found = body()
            if found is None:
                return Answer(HTTPStatus.NOT_FOUND, TEXT, b"there was no cycle yet\n")
            return Answer(HTTPStatus.OK, JSON, found)

        return answer

    return {"/snapshot": page(snapshot), "/plan": page(plan)}


def host_and_port(flag: str, address: str) -> tuple[str, int]:
    """`:8080` (every interface, host ""), `10.0.0.1:8080`, `[::1]:8080`, `localhost:0`. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigError(f"{flag} {address!r}: must be host:port, [IPv6]:port or :port, the port at most 65535")
    return bare, int(port)


def _inside(host: str) -> bool:
    """Whether `host` is a name of this machine (or pod) for itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """Serves `pages` on `address` from construction to `close`. `flag`: whose value the address is, for errors.
    `loopback`: for this machine (or pod) alone.

    Raises ConfigError where the address cannot be served on, or can be reached from elsewhere though `loopback` is set.
    """

    def __init__(self, flag: str, address: str, pages: Pages, *, loopback: bool = False) -> None:
        host, port = host_and_port(flag, address)
        if loopback and not _inside(host):
            raise ConfigError(
                f"{flag} {address!r}: must be on 127.0.0.1, [::1] or localhost; what is served there names every pod"
            )
        try:
            self._listener = _Listener(host, port, pages, loopback)
        except OSError as wrong:
            raise ConfigError(f"{flag} {address!r}: {wrong.strerror or wrong}") from None
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.2}, name=flag, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it serves on, also where port 0 was asked for."""
        return self._listener.server_port

    def close(self) -> None:
        """Free the port, hang up on everybody, and wait for their threads."""
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self._listener.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, host: str, port: int, pages: Pages, loopback: bool) -> None:
        self.pages, self.loopback = pages, loopback
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        if not host:
            dual = socket.has_dualstack_ipv6()
            self.address_family, host = (socket.AF_INET6, "::") if dual else (socket.AF_INET, "0.0.0.0")  # noqa: S104
        else:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # HTTPServer's would look up the host's name, which may take seconds
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._lock:
            oldest = list(self._open)[: max(0, len(self._open) - CONNECTIONS + 1)]
            full = len(self._open) >= 2 * CONNECTIONS
            if not full:
                self._open[request] = thread
        for one in oldest:
            _hang_up(one)
        if full:
            self.shutdown_request(request)
        else:
            thread.start()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._open.pop(request, None)

    def hang_up(self) -> None:
        """End all connections and wait for their threads."""
        with self._lock:
            left = dict(self._open)
        for request, thread in left.items():
            _hang_up(request)
            thread.join(SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        wrong = sys.exception()
        log.debug("a connection broke", extra={"client": str(client_address), "error": repr(wrong)})


def _hang_up(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is gone already


class _Request(BaseHTTPRequestHandler):
    timeout = SECONDS
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"
    server: _Listener

    def do_GET(self) -> None:
        where, _, query = self.path.partition("?")
        host = re.sub(r":\d*$", "", self.headers.get("Host", "localhost")).strip("[]")
        if self.server.loopback and not _inside(host):
            # a web page whose name was pointed at this machine, so that it may read the answer (DNS rebinding)
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        page = self.server.pages.get(where)
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"Not Found: there are {', '.join(self.server.pages)}")
            return
        try:
            answer = page(parse_qs(query, keep_blank_values=True), self.headers.get("Accept", ""))
        except Exception:  # the edge of a thread: a page that fails must say so to its reader
            log.exception("a page failed", extra={"path": where})
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = memoryview(answer.body)
        for start in range(0, len(body), CHUNK):  # the time-out is for each write
            self.wfile.write(body[start : start + CHUNK])

    do_HEAD = do_GET  # noqa: N815  # the library's names

    def _refuse(self) -> None:
        """405. What was sent along is read first: closing on unread bytes resets the connection, answer and all."""
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(CHUNK, int(length) if length.isdecimal() else 0))
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def version_string(self) -> str:
        return "solver-sched"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        log.debug(format, *args, extra={"client": self.client_address[0]})

"""A loopback HTTP proxy in front of the API server, for JSON, that makes it and its network unreliable on purpose.

What it does to a request is drawn from the seed, the request's method and path, and how often that one came before: the
same request meets the same fault whatever else goes on. It keeps a log of all that passed and of all that it did.
"""

from __future__ import annotations

import json
import random
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
TOLD = re.compile(r"/(binding|eviction)$")
REFUSALS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


@dataclass(frozen=True, eq=False)  # two of the same rates are counted apart
class Faults:
    """How often what happens: a share of requests or, in the last block, of watch events. At most one per request."""

    where: str = ""
    """A regular expression that the path must contain."""
    at_most: int | None = None
    """So many faults, then none."""

    conflict: float = 0.0
    """409 to a write, which does not reach the server."""
    gone: float = 0.0
    """410 to a list or a watch."""
    too_many: float = 0.0
    """429 with Retry-After: 1, without reaching the server."""
    error: float = 0.0
    """500 without reaching the server."""
    error_after: float = 0.0
    """500 though the server has acted."""
    refused: float = 0.0
    """The connection is reset before the request reaches the server."""
    lost: float = 0.0
    """The server acts, and the connection is closed without an answer."""
    reset: float = 0.0
    """The connection is reset in the middle of the answer."""
    stall: float = 0.0
    """Nothing happens for `stall_seconds`, then the request passes."""
    stall_seconds: float = 5.0

    cut_after: float | None = None
    """Each watch ends after so many seconds: in good order, or (half of them) with a closed connection."""

    duplicate: float = 0.0
    """A watch event comes twice."""
    delay: float = 0.0
    """A watch event, and with it all later ones, comes `delay_seconds` late."""
    delay_seconds: float = 1.0
    tear: float = 0.0
    """The connection is reset after half an event."""
    gone_event: float = 0.0
    """In place of an event the watch says 410 and ends."""

    def draw(self, rng: random.Random, method: str, watch: bool, named: bool) -> str | None:
        """What befalls a request; `named` tells one object from a list."""
        drawn = rng.random()
        for fault in ("conflict", "gone", "too_many", "error", "error_after", "refused", "lost", "reset", "stall"):
            if (fault == "conflict" and method == "GET") or (fault == "gone" and (method != "GET" or named)):
                continue
            if watch and fault in ("error_after", "lost", "reset"):
                continue
            drawn -= getattr(self, fault)
            if drawn < 0:
                return fault
        return None

    def draw_event(self, rng: random.Random) -> str | None:
        drawn = rng.random()
        for fault in ("duplicate", "delay", "tear", "gone_event"):
            drawn -= getattr(self, fault)
            if drawn < 0:
                return fault
        return None


QUIET = Faults()


@dataclass(frozen=True)
class Exchange:
    """A request. `status` is what the server answered, None if it was not reached or broke off."""

    began: float
    """Seconds since the epoch."""
    ended: float
    method: str
    path: str
    body: bytes
    """Of bindings and evictions only."""
    status: int | None
    fault: str | None
    """A field name of Faults; in a watch, what ended it."""

    @property
    def pod(self) -> str:
        """`namespace/name` of the pod that a binding or eviction is about."""
        parts = self.path.split("/")
        return f"{parts[4]}/{parts[6]}"


class Wire:
    """A socket, with what was read from it and not used yet. OSError when the other end is gone."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.data = b""

    def fill(self) -> None:
        got = self.peer.recv(262144)
        if not got:
            raise ConnectionError("closed by the other end")
        self.data += got

    def until(self, mark: bytes) -> bytes:
        """Up to and including `mark`."""
        start = 0
        while (found := self.data.find(mark, start)) < 0:
            start = max(0, len(self.data) - len(mark))
            self.fill()
        return self.exactly(found + len(mark))

    def exactly(self, count: int) -> bytes:
        if len(self.data) < count:
            parts, have = [self.data], len(self.data)
            while have < count:
                self.data = b""
                self.fill()
                parts.append(self.data)
                have += len(self.data)
            self.data = b"".join(parts)
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def chunk(self) -> bytes:
        """The next chunk of a chunked body, without its frame; empty at the end."""
        chunk = self.exactly(int(self.until(b"\r\n").split(b";")[0], 16))
        self.exactly(2)
        return chunk

    def body(self, head: bytes) -> bytes:
        """The whole body of a message, in its frame."""
        if CHUNKED.search(head):
            parts = []
            while part := self.chunk():
                parts.append(frame(part))
            return b"".join(parts) + frame(b"")
        length = LENGTH.search(head)
        return self.exactly(int(length[1])) if length else b""

    def reset(self) -> None:
        """Close so that the other end sees a reset connection, not an orderly end."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    def close(self) -> None:
        """Also wakes a thread that reads from it."""
        with suppress(OSError):  # it was closed before
            socket.socket.shutdown(self.peer, socket.SHUT_RDWR)  # not that of SSLSocket, which is not for other threads
        self.peer.close()


class Proxy:
    """A context manager. `faults` may be replaced at any time; the first whose `where` fits a path holds for it."""

    def __init__(self, upstream: str, authority: Path | None, *, seed: int = 0, faults: Sequence[Faults] = ()) -> None:
        host = urlsplit(upstream)
        assert host.hostname is not None
        assert host.port is not None
        self.upstream = (host.hostname, host.port)
        self.tls = ssl.create_default_context(cafile=authority)
        self.seed = seed
        self.faults = faults
        self.log: list[Exchange] = []
        self.came: Counter[tuple[str, str, bool]] = Counter()
        self.done: Counter[Faults] = Counter()
        self.lock = threading.Lock()
        self.open: set[Wire] = set()

    def __enter__(self) -> Self:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = "http://{}:{}".format(*self.listener.getsockname())
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self.thread.join()
        self.listener.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for wire in list(self.open):
            wire.close()

    def binds(self) -> list[Exchange]:
        """All bindings that were sent, in the order of their sending."""
        return sorted((e for e in self.log if e.path.endswith("/binding")), key=lambda e: e.began)

    def accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(Wire(peer),), daemon=True).start()

    def serve(self, client: Wire) -> None:
        """One connection of a client, with one of its own to the server."""
        self.open.add(client)
        server: Wire | None = None
        try:
            while True:
                head = client.until(b"\r\n\r\n")
                body = client.body(head)
                if server is None:
                    server = self.connect()
                if not self.exchange(client, server, head, body):
                    break
        except (OSError, ValueError):
            pass  # one of the two is gone: so is the other
        finally:
            for wire in (client, server):
                if wire is not None:
                    wire.close()
                    self.open.discard(wire)

    def connect(self) -> Wire:
        wire = Wire(self.tls.wrap_socket(socket.create_connection(self.upstream), server_hostname=self.upstream[0]))
        self.open.add(wire)
        return wire

    def exchange(self, client: Wire, server: Wire, head: bytes, body: bytes) -> bool:
        """One request and its answer. Whether the connection goes on after it."""
        began = time.time()
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        url = urlsplit(target)
        watch = method == "GET" and "watch=" in url.query and parse_qs(url.query)["watch"][0] in ("1", "true")
        named = not watch and "resourceVersion" not in url.query and "limit" not in url.query
        faults = next((f for f in self.faults if re.search(f.where, url.path)), QUIET)
        rng = self.rng(method, url.path, watch)
        fault = faults.draw(rng, method, watch, named) if self.left(faults) else None
        self.count(faults, fault)

        def log(status: int | None, fault: str | None) -> None:
            """Before the client has its answer, so that whoever has seen the answer finds the entry."""
            kept = body if TOLD.search(url.path) else b""
            self.log.append(Exchange(began, time.time(), method, url.path, kept, status, fault))

        if fault == "refused":
            log(None, fault)
            client.reset()
            return False
        if fault in ("conflict", "gone", "too_many", "error"):
            log(None, fault)
            client.peer.sendall(refusal({"conflict": 409, "gone": 410, "too_many": 429, "error": 500}[fault]))
            return True
        if fault == "stall":
            time.sleep(faults.stall_seconds)
        try:
            server.peer.sendall(head + body)
            answer = server.until(b"\r\n\r\n")
            status = int(answer[9:12])
            streams = watch and status == 200
            empty = streams or status in (204, 304) or method == "HEAD"
            content = b"" if empty else server.body(answer)
        except OSError:
            log(None, fault)
            raise
        if streams:
            # The connection ends with the watch; said beforehand, so that the client does not use it once more.
            client.peer.sendall(answer[:-2] + b"Connection: close\r\n\r\n")
            ended_by: str | None = None
            try:
                ended_by = self.relay(client, server, faults, rng)
            finally:
                log(status, ended_by or fault)
            return False
        log(status, fault)
        if fault == "lost":
            return False
        if fault == "reset":
            client.peer.sendall((answer + content)[: len(answer) + len(content) // 2])
            client.reset()
            return False
        client.peer.sendall(refusal(500) if fault == "error_after" else answer + content)
        return not (CLOSE.search(head) or CLOSE.search(answer))

    def relay(self, client: Wire, server: Wire, faults: Faults, rng: random.Random) -> str | None:
        """Pass on the events of a watch, each in a chunk of its own, until it ends; what ended it, if we did."""
        until = None if faults.cut_after is None else time.monotonic() + faults.cut_after
        rest = b""
        while True:
            if not ready(server, client, until):
                self.count(faults, "cut_after")
                if rng.random() < 0.5:
                    client.peer.sendall(frame(b""))
                return "cut_after"
            chunk = server.chunk()
            *lines, rest = (rest + chunk).split(b"\n")
            out = b""
            for line in lines:
                event = frame(line + b"\n")
                fault = faults.draw_event(rng) if self.left(faults) else None
                self.count(faults, fault)
                if fault == "delay":
                    client.peer.sendall(out)
                    out = b""
                    time.sleep(faults.delay_seconds)
                elif fault == "tear":
                    client.peer.sendall(out + event[: len(event) // 2])
                    client.reset()
                    return fault
                elif fault == "gone_event":
                    expired = json.dumps({"type": "ERROR", "object": status_object(410)}).encode() + b"\n"
                    client.peer.sendall(out + frame(expired) + frame(b""))
                    return fault
                out += event * 2 if fault == "duplicate" else event
            client.peer.sendall(out if chunk else frame(b""))
            if not chunk:
                return None

    def rng(self, method: str, path: str, watch: bool) -> random.Random:
        with self.lock:
            self.came[method, path, watch] += 1
            return random.Random(f"{self.seed} {method} {path} {watch} {self.came[method, path, watch]}")

    def left(self, faults: Faults) -> bool:
        return faults.at_most is None or self.done[faults] < faults.at_most

    def count(self, faults: Faults, fault: str | None) -> None:
        if fault is not None:
            with self.lock:
                self.done[faults] += 1


def ready(server: Wire, client: Wire, until: float | None) -> bool:
    """Wait for bytes from the server: False if `until` came first, ConnectionError if the client went away."""
    assert isinstance(server.peer, ssl.SSLSocket)
    if until is not None and time.monotonic() >= until:
        return False
    if server.data or server.peer.pending():
        return True
    poll = select.poll()
    for wire in (server, client):
        poll.register(wire.peer, select.POLLIN)
    woken = poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000)
    if any(fd == client.peer.fileno() for fd, _ in woken):
        raise ConnectionError("the client went away")
    return bool(woken)


def frame(part: bytes) -> bytes:
    """A chunk of a chunked body; of nothing, its end."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def status_object(code: int) -> dict[str, object]:
    details = {"retryAfterSeconds": 1} if code == 429 else {}
    message = "injected by the proxy in front of the server"
    common = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return common | {"message": message, "reason": REFUSALS[code], "details": details, "code": code}


def refusal(code: int) -> bytes:
    body = json.dumps(status_object(code)).encode()
    retry = "Retry-After: 1\r\n" if code == 429 else ""
    head = f"HTTP/1.1 {code} {REFUSALS[code]}\r\nContent-Type: application/json\r\n{retry}"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

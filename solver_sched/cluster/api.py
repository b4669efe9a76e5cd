"""One API server over HTTP: raw JSON in and out, with the three ways in which a request can fail kept apart.

The Kubernetes client reads kubeconfigs, runs credential plugins and renews tokens; requests go straight to urllib3. Its
models cost a hundred times the decoding we need, and its binding call raises on success
(kubernetes-client/python#547, #825).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import urllib3
import yaml
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)
from urllib3.util import Retry, Timeout

from solver_sched.errors import InputError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CONNECT_SECONDS = 5.0
NESTED = 11_000
"""How deep Python may go. An API server takes values nested 10,000 deep (Go's encoding/json), where a definition has no
schema; a decoder that stops at Python's 1,000 (up to 3.11) loses the whole list that one such object is in.
"""
BUSY = (429, 500, 502, 503, 504)
"""Answers after which the same request may be sent again; with `Retry-After` not before that."""
LONGEST_WISH = 60.0
"""Seconds of `Retry-After` that are honoured at most: what waits keeps room, or the cache from what happens."""

Seen = Callable[[str, str, float], None]
"""Told after each request: its verb, the answer's code (or "lost", "unsent"), wall seconds."""


class ApiError(Exception):
    """A request that did not succeed."""


class Refused(ApiError):
    """The server answered with an error: `status` 400 or more and what its `Status` object says.

    `retry_after`: seconds that it asks to wait, up to LONGEST_WISH; None if it does not. `causes`: reasons of
    `details.causes`.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason or message else str(status))
        self.status, self.reason, self.message = status, reason, message
        self.retry_after, self.causes = retry_after, causes


class Unsent(ApiError):
    """No connection: the server cannot have acted."""


class Lost(ApiError):
    """No answer, or half of one: the server may have acted."""


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


def in_pod() -> bool:
    """Whether nothing but the pod that this runs in says which cluster is meant."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


class Api:
    """Safe to use from many threads: they share one pool of at most `connections` kept-alive connections."""

    def __init__(self, settings: Configuration, *, connections: int = 32, agent: str = "solver-sched") -> None:
        sys.setrecursionlimit(max(NESTED, sys.getrecursionlimit()))
        self._settings = settings
        self.seen: Seen | None = None
        self.agent = f"{agent}/{_version()}"
        self.server = settings.host
        url = urllib3.util.parse_url(settings.host)
        tls: dict[str, Any] = {}
        if url.scheme == "https":
            tls = {
                "ca_certs": settings.ssl_ca_cert,
                "cert_file": settings.cert_file,
                "key_file": settings.key_file,
                "cert_reqs": "CERT_REQUIRED" if settings.verify_ssl else "CERT_NONE",
                "server_hostname": settings.tls_server_name,
            }
            if not settings.verify_ssl:
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        more: dict[str, Any] = {"maxsize": connections, "block": True, **tls}
        self._pool: urllib3.HTTPConnectionPool | urllib3.PoolManager
        if settings.proxy:
            self._pool, self._base = urllib3.ProxyManager(settings.proxy, **more), f"{url.scheme}://{url.netloc}"
        else:  # one server, one pool: a third less processor time a request than by way of a manager
            pool = urllib3.HTTPSConnectionPool if url.scheme == "https" else urllib3.HTTPConnectionPool
            self._pool, self._base = pool(url.host or "", url.port, **more), ""
        self._base += (url.path or "").rstrip("/")

    @classmethod
    def load(
        cls,
        kubeconfig: Path | None = None,
        context: str | None = None,
        *,
        master: str = "",
        connections: int = 32,
        agent: str = "solver-sched",
    ) -> Api:
        """The server that `kubeconfig` (default: $KUBECONFIG, else ~/.kube/config) names under `context` (default: the
        current one), or the one around this pod. `master` replaces the server's address. Raises InputError.
        """
        from kubernetes import config
        from kubernetes.client import Configuration

        settings = Configuration()
        try:
            if kubeconfig is None and context is None and in_pod():
                config.load_incluster_config(settings)
            else:
                file = None if kubeconfig is None else str(kubeconfig)
                config.load_kube_config(file, context, settings, persist_config=False)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError) as wrong:
            source = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "~/.kube/config")
            raise InputError(" ".join(str(wrong).split()), source=source) from None
        if master:
            settings.host = master
        return cls(settings, connections=connections, agent=agent)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content_type: str = JSON,
        timeout: float = 10.0,
        retries: int = 0,
    ) -> bytes:
        """The body of a good answer. `retries`: how often it may be sent again, after a busy server's answer or a lost
        connection, with back-off; leave it 0 where a second one would not be the same.

        Raises Refused, Unsent or Lost.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        start = time.perf_counter()
        try:
            answer = self._pool.urlopen(
                method,
                self._url(path, query),
                body=data,
                headers=self._headers(content_type if data is not None else None),
                timeout=Timeout(connect=min(CONNECT_SECONDS, timeout), read=timeout),
                retries=_retry(retries),
                redirect=False,
            )
        except HTTPError as wrong:
            raise self._failed(method, wrong, start) from None
        self._tell(method, str(answer.status), start)
        if answer.status >= 300:
            raise _refused(answer.status, answer.data, answer.headers.get("Retry-After"))
        return answer.data

    def get(self, path: str, query: Mapping[str, str | int] | None = None, *, timeout: float = 30.0) -> bytes:
        """`request` of something that is safe to ask for again."""
        return self.request("GET", path, query=query, timeout=timeout, retries=4)

    def watch(self, path: str, query: Mapping[str, str | int], *, silence: float) -> Stream:
        """An endless answer. `silence`: seconds without a byte after which the connection counts as dead.

        Raises Refused, Unsent or Lost.
        """
        start = time.perf_counter()
        try:
            answer = self._pool.urlopen(
                "GET",
                self._url(path, query),
                headers=self._headers(None),
                timeout=Timeout(connect=CONNECT_SECONDS, read=silence),
                retries=False,
                preload_content=False,
                redirect=False,
            )
        except HTTPError as wrong:
            raise self._failed("WATCH", wrong, start) from None
        self._tell("WATCH", str(answer.status), start)
        if answer.status < 300:
            return Stream(answer)
        try:
            data = answer.read()
        except HTTPError as wrong:
            raise Lost(_said(wrong)) from None
        finally:
            answer.release_conn()
        raise _refused(answer.status, data, answer.headers.get("Retry-After"))

    def close(self) -> None:
        """Drop all idle connections."""
        self._pool.close() if isinstance(self._pool, urllib3.HTTPConnectionPool) else self._pool.clear()

    def _url(self, path: str, query: Mapping[str, str | int] | None) -> str:
        return f"{self._base}{path}?{urlencode(query)}" if query else self._base + path

    def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Accept": JSON, "User-Agent": self.agent}
        try:
            token = self._settings.get_api_key_with_prefix("BearerToken", alias="authorization")  # renews it when due
        except Exception as wrong:  # noqa: BLE001  # a file or plugin of the cluster's: nothing was sent, and may be yet
            raise Unsent(f"no credentials: {_said(wrong)}") from None
        if token:
            headers["Authorization"] = token
        elif self._settings.username:
            headers["Authorization"] = self._settings.get_basic_auth_token() or ""
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _failed(self, verb: str, wrong: HTTPError, start: float) -> ApiError:
        cause = wrong.reason if isinstance(wrong, MaxRetryError) and wrong.reason is not None else wrong
        unsent = isinstance(cause, ConnectTimeoutError | NewConnectionError | NameResolutionError | SSLError)
        self._tell(verb, "unsent" if unsent else "lost", start)
        return Unsent(_said(cause)) if unsent else Lost(_said(cause))

    def _tell(self, verb: str, code: str, start: float) -> None:
        if self.seen is not None:
            self.seen(verb, code, time.perf_counter() - start)


class Stream:
    """The lines of an endless answer, until the server ends it. A last half line is not given."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        """Raises Lost where the connection breaks or falls silent, and after `shut`."""
        rest: list[bytes] = []
        try:
            for chunk in self._answer.stream(1 << 16):
                *whole, last = chunk.split(b"\n")
                if whole:
                    yield b"".join([*rest, whole[0]])
                    yield from whole[1:]
                    rest = []
                rest.append(last)
        except (HTTPError, OSError, ValueError) as wrong:  # ValueError: shut while it was read
            raise Lost(_said(wrong)) from None
        finally:
            self._answer.close()

    def shut(self) -> None:
        """End the iteration from another thread."""
        with suppress(OSError, ValueError, HTTPError):
            self._answer.shutdown()


class _Retry(Retry):
    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        wait = super().get_retry_after(response)
        return None if wait is None else min(wait, LONGEST_WISH)


def _retry(times: int) -> Retry | bool:
    if not times:
        return False
    return _Retry(
        total=times,
        backoff_factor=0.1,
        backoff_jitter=0.1,
        status_forcelist=BUSY,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=True,
    )


def _refused(status: int, data: bytes, retry_after: str | None) -> Refused:
    try:
        said = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        said = _Status(message=data[:200].decode(errors="replace").strip())
    causes = tuple(cause.reason for cause in (said.details and said.details.causes) or ())
    wait = min(float(retry_after), LONGEST_WISH) if retry_after and retry_after.isdecimal() else None
    return Refused(status, said.reason or "", said.message or "", wait, causes)


def _said(wrong: BaseException) -> str:
    return f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:300]}"


def _version() -> str:
    try:
        return version("solver-sched")
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        return "0"

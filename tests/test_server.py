"""Pages over real sockets: what they answer, to whom, and that no client holds up another."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from solver_sched import server
from solver_sched.errors import ConfigError
from solver_sched.metrics import Metrics
from solver_sched.server import Answer, Server, debug_pages, health_pages, host_and_port, metrics_pages

LOCAL = "127.0.0.1:0"


def ask(
    one: Server, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def pair() -> Iterator[tuple[Server, dict[str, str]]]:
    """A health server, and what is wrong by check."""
    wrong = {"loop": "", "caches": "", "election": ""}
    live = {"loop": lambda: wrong["loop"]}
    ready = {"caches": lambda: wrong["caches"], "election": lambda: wrong["election"]}
    with Server("--healthz-address", LOCAL, health_pages(live, ready)) as one:
        yield one, wrong


def test_health_as_kubernetes_components_tell_it(pair: tuple[Server, dict[str, str]]) -> None:
    one, wrong = pair
    for path in ("/livez", "/readyz", "/healthz"):
        assert ask(one, path)[::2] == (200, "ok")
    assert ask(one, "/readyz?verbose")[::2] == (200, "[+]caches ok\n[+]election ok\nreadyz check passed\n")
    wrong["caches"] = "Pod is not listed yet"
    said = "[-]caches failed: Pod is not listed yet\n[+]election ok\nreadyz check failed\n"
    assert ask(one, "/readyz")[::2] == (500, said)
    assert ask(one, "/livez")[0] == 200
    wrong["loop"] = "silent for 61 s"
    assert ask(one, "/livez?verbose=1")[::2] == (500, "[-]loop failed: silent for 61 s\nlivez check failed\n")
    assert ask(one, "/healthz")[::2] == (500, "[-]loop failed: silent for 61 s\nhealthz check failed\n")


def test_metrics_in_the_format_that_is_asked_for() -> None:
    metrics = Metrics()
    metrics.leader(True)
    with Server("--listen-address", LOCAL, metrics_pages(metrics.exposition)) as one:
        status, headers, body = ask(one, "/metrics")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        assert "solver_sched_leader 1.0" in body
        headers = ask(one, "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})[1]
        assert headers["Content-Type"].startswith("application/openmetrics-text")


def test_the_last_cycle_as_json() -> None:
    last: list[bytes] = []
    body = lambda: last[-1] if last else None  # noqa: E731
    with Server("--debug-address", LOCAL, debug_pages(body, body)) as one:
        assert ask(one, "/plan")[::2] == (404, "there was no cycle yet\n")
        last.append(b'{"kind": "Plan"}')
        status, headers, text = ask(one, "/plan")
        assert (status, headers["Content-Type"], text) == (200, "application/json", '{"kind": "Plan"}')
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "solver-sched"
        # 30 MB come whole
        last.append(b"x" * (30 << 20))
        assert len(ask(one, "/snapshot")[2]) == 30 << 20


def test_other_paths_and_methods(pair: tuple[Server, dict[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    one, _ = pair
    status, headers, body = ask(one, "/livez", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "2", "")
    status, headers, body = ask(one, "/nowhere?verbose")
    assert (status, body) == (404, "404 Not Found: there are /livez, /readyz, /healthz\n")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(one, "//[")[0] == 404
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        status, headers, _ = ask(one, "/livez", method, body=b"x" * 1000)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert ask(one, "/livez", "BREW")[0] == 501
    assert not caplog.records


def test_a_page_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Answer:
        raise KeyError("secret detail")

    with Server("--debug-address", LOCAL, {"/plan": broken}) as one:
        assert ask(one, "/plan")[::2] == (500, "500 Internal Server Error\n")
        assert ask(one, "/plan")[0] == 500
    assert [record.message for record in caplog.records] == ["a page failed"] * 2


def test_a_client_that_is_slow_holds_up_nobody(pair: tuple[Server, dict[str, str]]) -> None:
    """One sends half a request line and waits; another asks for a page."""
    one, _ = pair
    with socket.create_connection(("127.0.0.1", one.port)) as slow:
        slow.sendall(b"GET /liv")
        assert ask(one, "/livez")[0] == 200
        slow.sendall(b"ez HTTP/1.0\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.0 200 OK")


def test_a_client_that_stays_silent_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._Request, "timeout", 0.2)
    with Server("--healthz-address", LOCAL, {}) as one, socket.create_connection(("127.0.0.1", one.port)) as silent:
        silent.settimeout(5)
        silent.sendall(b"GET /livez HTTP/1.0\r\nHalf: a hea")
        assert silent.recv(100) == b""


def test_when_there_are_too_many_the_oldest_goes(pair: tuple[Server, dict[str, str]]) -> None:
    """All places are taken by clients that say nothing: a probe still gets its answer."""
    one, _ = pair
    silent = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(server.CONNECTIONS)]
    try:
        for _ in range(3):
            assert ask(one, "/livez")[0] == 200
        silent[0].settimeout(5)
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        silent[-1].settimeout(5)
        assert silent[-1].recv(100).startswith(b"HTTP/1.0 200 OK")
        names = [thread.name for thread in threading.enumerate() if "process_request_thread" in thread.name]
        assert server.CONNECTIONS // 2 < len(names) <= server.CONNECTIONS + 1
    finally:
        for client in silent:
            client.close()


def test_no_more_than_twice_as_many_are_ever_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that hang do not end when they are hung up on: from 2 x CONNECTIONS on there is no answer."""
    monkeypatch.setattr(server, "CONNECTIONS", 2)
    go, entered = threading.Event(), threading.Semaphore(0)

    def hangs(*_: object) -> Answer:
        entered.release()
        go.wait(60)
        return Answer(HTTPStatus.OK, server.TEXT, b"")

    with Server("--debug-address", LOCAL, {"/plan": hangs}) as one, ThreadPoolExecutor(5) as clients:
        waiting = []
        for _ in range(4):  # one after the other: who is hung up on before the page has begun never begins it
            waiting.append(clients.submit(ask, one, "/plan"))
            assert entered.acquire(timeout=10)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(one, "/plan")
        go.set()
        ended = [client.exception(timeout=10) for client in waiting]
    assert sum(error is None for error in ended) >= 1


def test_closing_frees_threads_and_the_port() -> None:
    before = threading.active_count()
    other = Server("--healthz-address", LOCAL, health_pages({}, {}))
    port = other.port
    with socket.create_connection(("127.0.0.1", port)) as idle:
        assert ask(other, "/livez")[0] == 200
        start = time.monotonic()
        other.close()
        assert time.monotonic() - start < 2
        idle.settimeout(5)
        assert idle.recv(1) == b""
    assert threading.active_count() == before
    with Server("--healthz-address", f"127.0.0.1:{port}", {}) as again:
        assert again.port == port


def test_an_address_in_use_is_one_line(pair: tuple[Server, dict[str, str]]) -> None:
    one, _ = pair
    with pytest.raises(ConfigError, match=rf"^--listen-address '127.0.0.1:{one.port}': Address already in use$"):
        Server("--listen-address", f"127.0.0.1:{one.port}", {})


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (":8080", ("", 8080)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:8080", ("::1", 8080)),
        ("[::]:0", ("::", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses_as_go_writes_them(address: str, found: tuple[str, int]) -> None:
    assert host_and_port("--listen-address", address) == found


@pytest.mark.parametrize("address", ["", "8080", "host", "::1:8080", "host:", "host:http", ":65536", ":-1", "[::1]"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        host_and_port("--listen-address", address)


def test_without_a_host_every_interface_of_both_families_is_served() -> None:
    with Server("--listen-address", ":0", health_pages({}, {})) as one:
        families = [("127.0.0.1", socket.AF_INET)]
        if socket.has_dualstack_ipv6():
            families.append(("::1", socket.AF_INET6))
        for host, family in families:
            with socket.socket(family) as client:
                client.settimeout(5)
                client.connect((host, one.port))
                client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.0 200 OK")


@pytest.mark.parametrize("address", [":6060", "0.0.0.0:6060", "[::]:6060", "10.0.0.1:6060", "example.com:6060"])
def test_debugging_is_for_loopback_alone(address: str) -> None:
    with pytest.raises(ConfigError, match=r"must be on 127.0.0.1, \[::1\] or localhost"):
        Server("--debug-address", address, {}, loopback=True)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.1.2.3:0"])
def test_loopback_has_these_names(address: str) -> None:
    with Server("--debug-address", address, {}, loopback=True) as one:
        assert one.port


def test_loopback_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with (
        Server("--debug-address", "[::1]:0", health_pages({}, {}), loopback=True) as one,
        socket.create_connection(("::1", one.port), timeout=5) as client,
    ):
        client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200 OK")


def test_what_is_for_loopback_is_not_for_a_web_page_that_points_its_name_there() -> None:
    with Server("--debug-address", LOCAL, debug_pages(lambda: b"{}", lambda: b"{}"), loopback=True) as one:
        for host in ("localhost", "127.0.0.1:6060", "[::1]:6060"):
            assert ask(one, "/plan", headers={"Host": host})[0] == 200
        for host in ("evil.example", "localhost.evil.example:6060", "10.0.0.1", "[", ""):
            assert ask(one, "/plan", headers={"Host": host})[0] == 421

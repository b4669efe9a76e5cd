"""Requests to a server that answers, refuses, hangs up or is not there: three errors that must not be mixed up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration

from solver_sched.cluster.api import MERGE_PATCH, Api, Lost, Refused, Unsent
from solver_sched.errors import InputError
from tests.cluster.server import Answer, Fault, Reset, Server, serving, status

WATCH = "/api/v1/pods"


@pytest.fixture
def served() -> Iterator[tuple[Server, Api]]:
    with serving() as both:
        yield both


def test_a_body_goes_out_as_json_with_its_type_and_our_name(served: tuple[Server, Api]) -> None:
    server, api = served
    server.pod("a")
    api.request("PATCH", "/api/v1/namespaces/ns/pods/a/status", {"status": {"x": "ä"}}, content_type=MERGE_PATCH)
    (request,) = server.requests
    assert (request.body, request.type) == ({"status": {"x": "ä"}}, MERGE_PATCH)
    assert api.agent.startswith("solver-sched/")


def test_a_query_is_encoded(served: tuple[Server, Api]) -> None:
    server, api = served
    server.script = lambda request: Answer(200, {})
    api.get(WATCH, {"fieldSelector": "status.phase!=Failed", "limit": 500})
    assert server.requests[0].query == {"fieldSelector": "status.phase!=Failed", "limit": "500"}


def test_a_refusal_says_what_the_server_said(served: tuple[Server, Api]) -> None:
    server, api = served
    server.script = lambda request: status(
        429, "TooManyRequests", "Cannot evict pod", cause="DisruptionBudget", Retry_After="10"
    )
    with pytest.raises(Refused) as caught:
        api.request("POST", "/x", {})
    refused = caught.value
    assert (refused.status, refused.reason, refused.message) == (429, "TooManyRequests", "Cannot evict pod")
    assert (refused.retry_after, refused.causes) == (10.0, ("DisruptionBudget",))
    assert str(refused) == "429 TooManyRequests: Cannot evict pod"


@pytest.mark.parametrize("body", [b"<html>502 Bad Gateway</html>", b"", b"[1]", b"\xff"])
def test_a_refusal_that_is_no_status_object_is_one_all_the_same(served: tuple[Server, Api], body: bytes) -> None:
    server, api = served
    server.script = lambda request: Answer(502, body)
    with pytest.raises(Refused) as caught:
        api.request("GET", "/x")
    assert caught.value.status == 502
    assert caught.value.retry_after is None


def test_a_redirect_is_not_followed(served: tuple[Server, Api]) -> None:
    server, api = served
    server.script = lambda request: Answer(302, {}, {"Location": "/elsewhere"})
    with pytest.raises(Refused, match="302"):
        api.request("POST", "/x", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize("acts", [True, False])
def test_a_connection_that_ends_without_an_answer_is_lost_and_not_sent_twice(
    served: tuple[Server, Api], acts: bool
) -> None:
    server, api = served
    server.pod("a")
    server.script = lambda request: Reset(acts=acts)
    with pytest.raises(Lost):
        api.request("POST", "/api/v1/namespaces/ns/pods/a/binding", {"metadata": {}, "target": {"name": "n"}})
    assert len(server.requests) == 1
    assert ("nodeName" in server.pods["ns/a"]["spec"]) is acts


def test_silence_is_lost() -> None:
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = Api(config(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(Lost):
            api.request("POST", "/x", {}, timeout=0.2)
        api.close()


def test_nobody_there_is_unsent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    api = Api(config(f"http://127.0.0.1:{port}"))
    with pytest.raises(Unsent):
        api.request("POST", "/x", {})


def test_what_may_be_asked_again_is(served: tuple[Server, Api]) -> None:
    """A busy answer, a lost one, then the truth: `get` asks three times, a request without retries once."""
    server, api = served
    server.pod("a")
    faults: list[Fault] = [status(503, "ServiceUnavailable"), Reset()]
    server.script = lambda request: faults.pop(0) if faults else None
    assert b'"uid-a"' in api.get("/api/v1/namespaces/ns/pods/a")
    assert len(server.requests) == 3
    faults.append(status(503, "ServiceUnavailable"))
    with pytest.raises(Refused, match="503"):
        api.request("GET", "/api/v1/namespaces/ns/pods/a")
    assert len(server.requests) == 4


def test_what_a_server_asks_for_is_honoured_within_reason(
    served: tuple[Server, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day is a minute, here half a second: whether it is told to the caller, or waited for by `get`."""
    server, api = served
    day = status(429, "TooManyRequests", Retry_After="86400")
    server.script = lambda request: day if len(server.requests) <= 2 else None
    with pytest.raises(Refused) as caught:
        api.request("GET", WATCH)
    assert caught.value.retry_after == 60
    monkeypatch.setattr("solver_sched.cluster.api.LONGEST_WISH", 0.5)
    server.pod("a")
    api.get("/api/v1/namespaces/ns/pods/a")
    _, asked, again = server.requests
    assert 0.5 <= again.at - asked.at < 60


def test_every_request_is_counted_by_its_verb_and_end(served: tuple[Server, Api]) -> None:
    server, api = served
    seen: list[tuple[str, str]] = []
    api.seen = lambda verb, code, seconds: seen.append((verb, code))
    server.pod("a")
    api.get("/api/v1/namespaces/ns/pods/a")
    with pytest.raises(Refused):
        api.request("POST", "/api/v1/namespaces/ns/pods/b/binding", {})
    server.script = lambda request: Reset()
    with pytest.raises(Lost):
        api.request("PATCH", "/x", {})
    assert seen == [("GET", "200"), ("POST", "404"), ("PATCH", "lost")]


# Watches


def watch(server: Server, *chunks: bytes) -> None:
    server.script = lambda request: Answer(200, b"", chunks=chunks)


def test_lines_are_whole_wherever_the_chunks_end(served: tuple[Server, Api]) -> None:
    server, api = served
    watch(server, b'{"a"', b":1}\n{", b'"b":2}\n{"c":3}\n', b'{"half')
    assert list(api.watch(WATCH, {"watch": "1"}, silence=5)) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_a_watch_that_is_refused_says_why(served: tuple[Server, Api]) -> None:
    server, api = served
    server.script = lambda request: status(410, "Expired", "too old resource version")
    with pytest.raises(Refused, match="410 Expired"):
        list(api.watch(WATCH, {"watch": "1"}, silence=5))


def test_a_watch_that_breaks_off_gives_its_whole_lines_first() -> None:
    """The server dies in the middle of a chunk."""
    lines: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as raw:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

        def answer() -> None:
            connection, _ = raw.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(head + b'8\r\n{"a":1}\n\r\n' + b'20\r\n{"b":2}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        cut = Api(config(f"http://127.0.0.1:{raw.getsockname()[1]}"))
        stream = cut.watch(WATCH, {}, silence=5)
        with pytest.raises(Lost):
            lines.extend(stream)
        thread.join()
        cut.close()
    assert lines == [b'{"a":1}']


def test_a_silent_watch_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = Api(config(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(Lost):
            list(api.watch(WATCH, {}, silence=0.2))
        api.close()


# Where the server is


def config(host: str) -> Any:
    from kubernetes.client import Configuration

    settings = Configuration()
    settings.host = host
    return settings


def kubeconfig(folder: Path, **user: Any) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "one",
                "clusters": [
                    {"name": name, "cluster": {"server": f"http://{name}.example"}} for name in ("one", "two")
                ],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ("one", "two")],
            }
        )
    )
    return path


def test_the_context_names_the_server_and_master_replaces_it(tmp_path: Path) -> None:
    with serving() as (server, api):
        server.pod("a")
        file = kubeconfig(tmp_path, token="secret")
        loaded = Api.load(file, "two", master=api.server)
        loaded.get("/api/v1/namespaces/ns/pods/a")
        assert len(server.requests) == 1
        assert Api.load(file).server == "http://one.example"
        assert Api.load(file, "two").server == "http://two.example"


def test_a_token_that_cannot_be_renewed_is_no_request(served: tuple[Server, Api]) -> None:
    """The file of a service account's token cannot be read at this moment."""
    server, api = served

    def renewed(_: Configuration) -> None:
        raise FileNotFoundError("token")

    api._settings.refresh_api_key_hook = renewed  # type: ignore[assignment]
    for ask in (lambda: api.request("POST", "/x", {}), lambda: api.watch(WATCH, {}, silence=1)):
        with pytest.raises(Unsent, match="no credentials: FileNotFoundError: token"):
            ask()
    assert server.requests == []


def test_a_token_is_sent(tmp_path: Path) -> None:
    loaded = Api.load(kubeconfig(tmp_path, token="secret"))
    assert loaded._headers(None)["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "text", ["", "{", "kind: Config", "current-context: nowhere\ncontexts: []\nclusters: []\nusers: []"]
)
def test_a_kubeconfig_that_cannot_be_used_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        Api.load(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_no_kubeconfig_at_all_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        Api.load(tmp_path / "missing")


def test_a_context_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="three"):
        Api.load(kubeconfig(tmp_path), "three")

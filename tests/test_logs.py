"""One event is one line, whatever stands in it."""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver_sched import logs
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup
from solver_sched.cycle import Budget, run_cycle
from solver_sched.errors import ConfigError
from solver_sched.policy import load_policy
from solver_sched.snapshot import Snapshot

log = logging.getLogger("solver_sched.leader")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("solver_sched")
    kept = (list(root.handlers), root.level, ours.level)
    hook = threading.excepthook
    yield
    threading.excepthook = hook
    logging.captureWarnings(False)
    root.handlers[:], level, ours_level = kept
    root.setLevel(level)
    ours.setLevel(ours_level)


def written(form: logs.Format, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(form, level, stream)
    return stream


def test_a_line_of_json() -> None:
    stream = written("json")
    log.info("leads after %d s", 17, extra={"lease": "ns/lock", "term": 2, "gap": None, "seconds": {"solve": 0.5}})
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "solver_sched.leader",
        "msg": "leads after 17 s",
        "lease": "ns/lock",
        "term": 2,
        "gap": None,
        "seconds": {"solve": 0.5},
    }


def test_a_line_for_people() -> None:
    stream = written("text")
    log.warning("leads no more", extra={"lease": "ns/lock", "reason": "no renewal for 10 s", "term": 2})
    clock, rest = stream.getvalue().split(" ", 1)
    assert len(clock) == len("12:00:00.000")
    assert rest == 'WARNING leader: leads no more  lease=ns/lock reason="no renewal for 10 s" term=2\n'


def test_text_on_a_terminal_and_json_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, first in ((Terminal(), "0123456789"), (io.StringIO(), "{")):
        logs.configure(stream=stream)
        log.info("here")
        assert stream.getvalue()[0] in first


def test_ours_from_the_level_that_is_set_and_others_from_warning() -> None:
    stream = written("text", "debug")
    log.debug("ours")
    logging.getLogger("kubernetes").info("not shown")
    logging.getLogger("urllib3.connectionpool").warning("not shown")  # of each retry
    logging.getLogger("kubernetes").warning("renewing")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a library's warning", UserWarning, stacklevel=1)
    first, second, *_ = (line[len("12:00:00.000 ") :] for line in stream.getvalue().splitlines())
    assert (first, second) == ("DEBUG   leader: ours", "WARNING kubernetes: renewing")
    assert "not shown" not in stream.getvalue()
    assert "a library's warning" in stream.getvalue()
    assert stream.getvalue().count("\n") == 3


@pytest.mark.parametrize(
    ("form", "level", "said"),
    [
        ("json", "loud", "--log-level 'loud': must be one of debug"),
        ("xml", "info", "--log-format 'xml': must be json or"),
    ],
)
def test_a_setting_that_is_none_is_refused(form: logs.Format, level: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        logs.configure(form, level)


NASTY = "a\nb\r\x1b[2Jc\x85d\u2028e\u202ef\ud800"


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_begins_another_line(form: logs.Format) -> None:
    stream = written(form)
    log.info(NASTY, extra={"pod": NASTY, "pods": [NASTY], NASTY: 1})
    text = stream.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert text.rstrip("\n").isprintable()
    text.encode()
    if form == "json":
        assert "a\nb\r\x1b[2Jc\x85d\u2028e" in json.loads(text)["pod"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_long_value_is_cut_and_says_so(form: logs.Format) -> None:
    stream = written(form)
    log.info("x" * 10**6, extra={"annotation": "y" * 10**6, "list": ["z"] * 10**5})
    text = stream.getvalue()
    assert len(text) < 4 * logs.LONGEST
    assert "y" * logs.LONGEST + " (...999000 more)" in text


def test_what_a_thread_dies_of_is_a_line() -> None:
    stream = written("json")
    thread = threading.Thread(target=lambda: 1 // 0, name="status")
    thread.start()
    thread.join()
    line = json.loads(stream.getvalue())
    assert (line["level"], line["msg"]) == ("error", "the thread status died")
    assert "ZeroDivisionError" in line["traceback"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_is_a_field(form: logs.Format) -> None:
    stream = written(form)

    def sink(depth: int) -> None:
        if depth == 0:
            raise KeyError("the cause")
        sink(depth - 1)
        return sink(-1)  # no line of a traceback is like the one before

    try:
        sink(100)
    except KeyError:
        log.exception("a cycle failed", extra={"cycle": 7})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "KeyError: 'the cause'" in text
    assert len(text) < 6 * logs.LONGEST
    if form == "json":
        assert json.loads(text)["traceback"].endswith("KeyError: 'the cause'")


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "secret", ["Bearer abcdef0123456789", "eyJhbGciOi.eyJpc3MiOi.c2lnbmF0dXJl", "Basic dXNlcjpwYXNz"]
)
def test_credentials_do_not_pass(form: logs.Format, secret: str) -> None:
    stream = written(form)
    log.info("sent %s", secret, extra={"header": f"Authorization: {secret}", "headers": {"Authorization": secret}})
    assert secret.rsplit(maxsplit=1)[-1] not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") == 3


def test_a_call_that_is_wrong_is_still_a_line() -> None:
    stream = written("json")
    log.info("%d pods", "many", extra={"level": "mine", "what": object, "set": {1}})
    line = json.loads(stream.getvalue())
    assert line["msg"] == "%d pods ('many',)"
    assert (line["level"], line["level_"], line["what"]) == ("info", "mine", "<class 'object'>")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.text(), values, st.sampled_from(["json", "text"]))
def test_any_value_is_one_line(message: str, value: object, form: logs.Format) -> None:
    stream = written(form)
    log.info(message, extra={"value": value})
    assert len(stream.getvalue().splitlines()) == 1
    if form == "json":
        assert "value" in json.loads(stream.getvalue())


def test_the_line_of_a_cycle() -> None:
    """A node of 4 cpu, a gang of 2 x 2 cpu that fits and a pod of 5 that never does."""
    needs = Needs(request=(("cpu", 2000), ("pods", 1)))
    large = Needs(request=(("cpu", 5000), ("pods", 1)))
    snapshot = Snapshot(
        nodes=(Node("n", {"cpu": 4000, "pods": 110}),),
        pods=(
            *(Pod("ns", f"gang-{i}", needs, group="ns/gang", scheduler="solver-sched") for i in range(2)),
            Pod("ns", "large", large, scheduler="solver-sched"),
        ),
        groups=(PodGroup("ns", "gang", "scheduling.volcano.sh/v1beta1", 2, created=1),),
        now=3,
    )
    fields = logs.of_cycle(run_cycle(snapshot, load_policy("default"), Budget(2.0, apart=False)))
    assert (fields["result"], fields["winner"], fields["gap"]) == ("optimal", "solver", 0.0)
    assert (fields["nodes"], fields["pods"], fields["bound"], fields["pending"]) == (1, 3, 2, 1)
    assert fields["waiting"] == {"Resources": 1}
    assert fields["seconds"].keys() >= {"encode", "solve", "total"}
    stream = written("json")
    log.info("cycle", extra=fields)
    assert json.loads(stream.getvalue())["bound"] == 2

"""Log lines of the service: one event, one line, as JSON for machines or as text for people.

A call is `log.info("what happened", extra={"key": value})`. What is logged may come from anybody who can create an
object in the cluster, so no value can begin another line, drive a terminal or grow without bound.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec

from solver_sched.actions.decide import Admit, Bind, Nominate
from solver_sched.actions.evict import Evict
from solver_sched.document import certificate
from solver_sched.errors import ConfigError

if TYPE_CHECKING:
    from solver_sched.cycle import CycleReport

Format = Literal["json", "text"]
LEVELS = ("debug", "info", "warning", "error")
LONGEST = 1000
"""Characters of a value beyond which it is cut; of a traceback the last four times as many are kept."""
FIRST = 20
"""Notes of a cycle that are logged."""
SECRET = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*")
"""Credentials by their form, JSON web tokens among them: an error text may quote a header."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What ends a line somewhere, moves a cursor or reverses text."""
_log = logging.getLogger(__name__)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(form: Format | None = None, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (default: stderr), and what threads die of. `form` None: text on a terminal, else
    JSON. Other libraries are heard from `warning` on, urllib3 from `error` on. Raises ConfigError.
    """
    out = sys.stderr if stream is None else stream
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r}: must be one of {', '.join(LEVELS)}")
    if form not in (None, "json", "text"):
        raise ConfigError(f"--log-format {form!r}: must be json or text")
    handler = logging.StreamHandler(out)
    handler.setFormatter(Text() if form == "text" or (form is None and out.isatty()) else Json())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each retry, which the caller tells once
    logging.getLogger("solver_sched").setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _died


def _died(what: threading.ExceptHookArgs) -> None:
    name = what.thread.name if what.thread is not None else ""
    found = what.exc_value if what.exc_value is not None else what.exc_type()
    _log.error("the thread %s died", name, exc_info=found)


def waiting(report: CycleReport) -> dict[str, tuple[str, int]]:
    """Groups with pods that the plan gives no place, not even a promised one -> reason code, number of such pods."""
    placed = dict(zip(report.index.jobs, report.plan.of_jobs(report.problem).tolist(), strict=True))
    return {
        job.name: (report.reasons[job.name].code if job.name in report.reasons else "Unknown", pods)
        for job in report.index.members
        if (pods := job.pending - placed.get(job.name, 0)) > 0
    }


def of_cycle(report: CycleReport) -> dict[str, Any]:
    """The fields of the line of one cycle: how good its plan is, what it does, who waits for what, and seconds."""
    kinds = Counter(type(one) for one in report.decisions)
    moved = sum(isinstance(one, Evict) and bool(one.to) for one in report.decisions)
    pending = waiting(report)
    reasons = Counter(code for code, _ in pending.values())
    given = certificate(report)
    fields = {
        "result": given["status"],
        "gap": given.get("gap"),
        "level": given.get("level"),
        "winner": report.winner,
        "nodes": len(report.snapshot.nodes),
        "pods": len(report.snapshot.pods),
        "admitted": kinds[Admit],
        "bound": kinds[Bind],
        "nominated": kinds[Nominate],
        "evicted": kinds[Evict] - moved,
        "moved": moved,
        "pending": sum(pods for _, pods in pending.values()),
        "waiting": dict(reasons.most_common()),
        "problems": len(report.snapshot.problems),
        "notes": list(report.notes[:FIRST]),
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}


class Json(logging.Formatter):
    """`{"ts": ..., "level": ..., "logger": ..., "msg": ..., <fields>}`; a field of one of these names ends in `_`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _clean(_message(record)),
        }
        for key, value in _fields(record).items():
            line[f"{key}_" if key in line else _clean(key)] = _bounded(value)
        text = msgspec.json.encode(line).decode()
        return CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


class Text(logging.Formatter):
    """`12:00:00.000 INFO  leader: what happened  key=value ...`, the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).strftime("%H:%M:%S.%f")[:-3]
        name = record.name.removeprefix("solver_sched.")
        line = f"{time} {record.levelname:<7} {name}: {_message(record)}"
        fields = "".join(f" {_clean(key)}={_shown(value)}" for key, value in _fields(record).items())
        text = _clean(line) + (f" {fields}" if fields else "")
        return CONTROL.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # placeholders and arguments that do not fit
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller added, and the traceback of an exception."""
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    if record.exc_info and record.exc_info[1] is not None:
        told = "".join(traceback.format_exception(record.exc_info[1])).strip()
        fields["traceback"] = _Traceback(told)
    return fields


class _Traceback(str):
    """Text whose end says most."""

    __slots__ = ()


def _clean(text: str) -> str:
    """Without credentials, not too long, and such that it can be encoded."""
    tail = isinstance(text, _Traceback)
    longest = 4 * LONGEST if tail else LONGEST
    # one character of a credential more or less must not hide it from the pattern, so cut after it
    near = text[-2 * longest :] if tail else text[: 2 * longest]
    kept = SECRET.sub("[redacted]", near).encode(errors="backslashreplace").decode()
    if len(text) <= longest and len(kept) <= longest:
        return kept
    more = f"(...{len(text) - longest} more)"
    return f"{more} {kept[-longest:]}" if tail else f"{kept[:longest]} {more}"


def _bounded(value: Any) -> Any:
    """The value as JSON can hold it; a structure that is too long becomes the beginning of its JSON text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _clean(value)
    text = _json(value)
    clean = _clean(text)
    return msgspec.Raw(text.encode()) if clean == text else clean


def _shown(value: Any) -> str:
    if isinstance(value, str):
        text = _clean(value)
        return text if re.fullmatch(r"[^\s\"'=]+", text) else _json(text)
    return _clean(_json(value))


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, UnicodeError, RecursionError):
        return msgspec.json.encode(_clean(repr(value))).decode()

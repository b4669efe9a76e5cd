"""Text in, JSON objects out: files that hold JSON or YAML, one document or many, become the JSON text of each document.

YAML is re-encoded as JSON, so that there is one decoder for all input. Two liberties of YAML are taken away: a key may
not stand twice in a mapping (the API server's strict decoding refuses that too), and numbers keep the digits they have
in the file instead of becoming floats. Bad documents do not spoil their neighbours.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import yaml
from msgspec import Raw

from solver_sched.cluster import wire
from solver_sched.errors import InputError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_heads = msgspec.json.Decoder(wire.Head)

_MARKER = re.compile(rb"^(?:---|\.\.\.)(?:[ \t\r]|$)", re.MULTILINE)
"""Document marks stand in the first column and are marks wherever they stand there, block scalars included."""

_LIST = re.compile(rb"^items:[ \t]*\r?\n(?=- )", re.MULTILINE)
_ENTRY = re.compile(rb"^- ", re.MULTILINE)
_TOP_KEY = re.compile(rb"^[^\s#-]", re.MULTILINE)
_ALIAS = re.compile(rb"[:\-] +[*&]")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_SPACE = re.compile(r"\s*")
_TAG = "tag:yaml.org,2002:"


def unpacked(data: bytes) -> bytes:
    """`data` without gzip (told by its magic number) and byte order mark. Raises InputError for what is no text."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as wrong:
            raise InputError(f"broken gzip file: {wrong}") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data[:4096]:
        raise InputError(f"binary file (a zero byte at offset {data.index(0)}): expected YAML or JSON in UTF-8")
    return data


class Document(NamedTuple):
    """The JSON text of a document, and its head; head None if it is no mapping, or has a head of wrong types."""

    raw: bytes | Raw
    head: wire.Head | None


def documents(data: bytes) -> Iterator[Document | InputError]:
    """Every document in `data`, or the error that stands in its place."""
    found: Sequence[Document | InputError] | None
    start = data[:1024].lstrip()[:1]
    if start in (b"{", b"["):
        try:
            found = [document(data)]
        except RecursionError:
            found = [InputError("nested too deep")]
        except msgspec.DecodeError as wrong:
            found = _concatenated(data) if "trailing characters" in str(wrong) else None
            if found is None and not _MARKER.search(data) and not _flow_yaml(data):
                found = [InputError(_said(wrong, data))]
        if found is not None:
            yield from found
            return
    yield from _yaml_documents(data)


def document(raw: bytes | Raw) -> Document:
    """One JSON text. Raises msgspec.DecodeError where it is none."""
    try:
        return Document(raw, _heads.decode(raw))
    except msgspec.ValidationError:
        # An array of objects is a list without its envelope. Anything else is no object, if it is JSON at all:
        # decoding into types stops at the first wrong one.
        items = msgspec.json.decode(raw, type=list[Raw]) if bytes(raw).lstrip()[:1] == b"[" else None
        msgspec.json.decode(raw, type=Raw)
        return Document(raw, wire.Head(kind="List", items=items) if items is not None else None)


def _concatenated(data: bytes) -> list[Document | InputError] | None:
    """JSON documents one after another, as `kubectl get -o json >>` leaves them; None if it is something else."""
    text = data.decode(errors="replace")
    decoder = json.JSONDecoder()
    found: list[Document | InputError] = []
    at = 0
    while at < len(text):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as wrong:
            if not found or (len(found) < 2 and _MARKER.search(data)):
                return None
            line = text.count("\n", 0, at) + 1
            found.append(InputError(f"not JSON after line {line}: {getattr(wrong, 'msg', 'nested too deep')}"))
            break
        try:
            found.append(document(text[at:end].encode()))
        except (msgspec.DecodeError, RecursionError) as wrong:  # Python takes NaN and half a surrogate pair for JSON
            found.append(InputError(f"not JSON in line {text.count(chr(10), 0, at) + 1}: {wrong}"))
        space = _SPACE.match(text, end)
        at = space.end() if space is not None else end
    return found


def _flow_yaml(data: bytes) -> bool:
    """YAML may be written with braces too (unquoted keys). Only worth a try on what a hand may have written."""
    return len(data) < 1 << 20 and not re.match(rb'\s*(?:\{\s*"|\[\s*\{\s*")', data)


def _said(wrong: Exception, data: bytes) -> str:
    message = str(wrong)
    place = re.search(r"\(byte (\d+)\)", message)
    if "truncated" in message:
        return f"truncated JSON: ends in line {data.count(10) + 1} inside an object"
    line = f" in line {data.count(10, 0, int(place[1])) + 1}" if place else ""
    return f"not JSON{line}: {message.removeprefix('JSON is malformed: ')}"


def _yaml_documents(data: bytes) -> Iterator[Document | InputError]:
    line = 1
    cuts = [0, *(match.start() for match in _MARKER.finditer(data)), len(data)]
    for begin, end in pairwise(cuts):
        chunk = data[begin:end]
        body = chunk[3:] if begin or _MARKER.match(chunk) else chunk
        if body.lstrip()[:1] in (b"{", b"["):
            try:
                yield document(body)
                line += chunk.count(10)
                continue
            except (msgspec.DecodeError, RecursionError):
                pass  # braces of YAML, perhaps
        if any(row.strip() and not row.lstrip().startswith((b"#", b"%")) for row in body.splitlines()):
            entries = _entries(body)
            if entries is None:
                yield _yaml(body, line)
            else:
                for offset, entry in entries:
                    yield _yaml(entry, line + offset)
        line += chunk.count(10)


def _entries(body: bytes) -> list[tuple[int, bytes]] | None:
    """The items of a block-style `List` as kubectl prints it, as documents of their own: (line offset, text).

    A dump of 200,000 pods then needs memory for one at a time, and one bad item costs one item.
    """
    start = _LIST.search(body)
    if start is None or _ALIAS.search(body):
        return None
    rest = _TOP_KEY.search(body, start.end())
    end = rest.start() if rest else len(body)
    around = body[: start.start()] + (body[end:] if rest else b"")
    kind = re.search(rb"^kind:[ \t]*[\"']?(\w*)", around, re.MULTILINE)
    if kind is None or kind[1] != b"List":
        return None  # also a truncated one: whether it is a List stands at its end
    begins = [match.start() for match in _ENTRY.finditer(body, start.end(), end)]
    entries = []
    line = body.count(10, 0, start.end())
    for begin, stop in zip(begins, [*begins[1:], end], strict=True):
        # The dash gives way to a space: the entry is a mapping two columns to the right.
        entries.append((line, b"  " + body[begin + 2 : stop]))
        line += body.count(10, begin, stop)
    return entries


def _yaml(text: bytes, first_line: int) -> Document | InputError:
    """One YAML document."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        return document(msgspec.json.encode(_Values(len(text)).of(node) if node is not None else None))
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        where = f"line {first_line + mark.line}: " if mark else ""
        return InputError(f"not YAML: {where}{' '.join(str(wrong.problem or wrong.context).split())}")
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as wrong:
        return InputError(f"not YAML: line {first_line}: {' '.join(str(wrong).split())[:200]}")
    except RecursionError:
        return InputError(f"line {first_line}: nested too deep")


class _Values:
    """Plain values of composed YAML nodes."""

    def __init__(self, size: int) -> None:
        # Without aliases there are fewer nodes than characters; with them, a few lines can mean millions of values.
        self._left = 10 * size + 100_000

    def of(self, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            self._count(node)
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            self._count(node)
            return [self.of(item) for item in node.value]
        return self._mapping(node)

    def _count(self, node: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise _wrong("aliases expand to too many values", node)

    def _mapping(self, node: Any) -> dict[str, Any]:
        self._count(node)
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong("a key must be a string", key)
            if key.tag == _TAG + "merge":
                for source in reversed(value.value) if isinstance(value, yaml.SequenceNode) else (value,):
                    if not isinstance(source, yaml.MappingNode):
                        raise _wrong("<< needs a mapping", value)
                    merged |= self._mapping(source)
            elif key.value in own:
                raise _wrong(f"key {key.value!r} stands twice in one mapping", key)
            else:
                own[key.value] = self.of(value)
        return merged | own if merged else own


def _scalar(node: Any) -> Any:
    tag, text = node.tag.removeprefix(_TAG), node.value
    if tag in ("str", "timestamp", "value", "binary"):
        return text
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() in ("yes", "true", "on")
    if tag in ("int", "float"):
        return _number(text)
    raise _wrong(f"tag {node.tag} is not allowed", node)


def _number(text: str) -> Any:
    """A number with its digits as they stand; a notation that JSON has not (hexadecimal, 1_000, .5) as its text."""
    plain = text.removeprefix("+")
    if _INTEGER.fullmatch(plain) or _DECIMAL.fullmatch(plain):
        return Raw(plain.encode())
    digits = plain.replace("_", "")
    if re.fullmatch(r"-?0[xX][0-9a-fA-F]{1,16}", digits):
        return int(digits, 16)
    if re.fullmatch(r"-?0[0-7]{1,20}", digits):
        return int(digits, 8)
    return digits if re.fullmatch(r"-?[0-9.]+(?:[eE][-+]?[0-9]+)?", digits) else text


def _wrong(message: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)

"""The objects of one kind: their texts, their values, and what is wrong with them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Generic, TypeVar

from solver_sched.cluster.texts import Text
from solver_sched.errors import InputError
from solver_sched.snapshot import InputProblem

_V = TypeVar("_V")

MANY = 20
"""If more than one in so many has changed, all are put in order anew."""


class Table(Generic[_V]):
    """The objects of one kind. `version`: the apiVersion they are served as; `raws`: whole texts, of groups and queues;
    `twice`: complaints that another table has an object of the name.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.version = ""
        self.texts: dict[str, bytes] = {}
        self.raws: dict[str, bytes] = {}
        self.versions: dict[str, str] = {}
        self.values: dict[str, _V] = {}
        self.problems: dict[str, InputProblem] = {}
        self.twice: dict[str, InputProblem] = {}
        self.dirty: set[str] = set()
        self._touched: set[str] = set()
        self._order: list[str] = []
        self._rows: list[_V] = []
        self._sorted: tuple[_V, ...] = ()

    @property
    def left_out(self) -> int:
        """Objects that are there and count for nothing."""
        return len(self.texts) - len(self.values) - len(self.problems)

    def put(self, one: Text) -> bool:
        """Whether anything changed that is read here."""
        self.versions[one.key] = one.version
        if one.raw:
            self.raws[one.key] = one.raw
        if self.texts.get(one.key) == one.text:
            return False
        self.texts[one.key] = one.text
        self.dirty.add(one.key)
        return True

    def drop(self, key: str) -> bool:
        """Whether it was there."""
        for there in (self.versions, self.raws):
            there.pop(key, None)
        if self.texts.pop(key, None) is None:
            return False
        self.dirty.add(key)
        return True

    def refresh(self, read: Callable[[bytes], _V | None]) -> set[str]:
        """Read again what has changed; its keys."""
        touched, self.dirty = self.dirty, set()
        for key in touched:
            text, value = self.texts.get(key), None
            self.problems.pop(key, None)
            if text is not None:
                try:
                    value = read(text)
                except InputError as wrong:
                    self.problems[key] = InputProblem(
                        "", f"{self.kind} {key}", _one_line(wrong.field), _one_line(wrong.message)
                    )
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self._touched |= touched
        return touched

    def sorted(self) -> tuple[_V, ...]:
        """The values by namespace and name."""
        if not self._touched:
            return self._sorted
        if len(self._touched) > len(self._order) // MANY:
            rows = sorted(((in_order(key), value) for key, value in self.values.items()), key=itemgetter(0))
            self._order, self._rows = [order for order, _ in rows], [value for _, value in rows]
        else:
            for key in self._touched:
                self._place(in_order(key), self.values.get(key))
        self._touched = set()
        self._sorted = tuple(self._rows)
        return self._sorted

    def _place(self, order: str, value: _V | None) -> None:
        at = bisect_left(self._order, order)
        there = at < len(self._order) and self._order[at] == order
        if value is not None and there:
            self._rows[at] = value
        elif value is not None:
            self._order.insert(at, order)
            self._rows.insert(at, value)
        elif there:
            del self._order[at], self._rows[at]


def in_order(key: str) -> str:
    """Sorts "namespace/name" as (namespace, name)."""
    return key.replace("/", "\0", 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]

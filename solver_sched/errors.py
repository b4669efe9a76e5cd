"""The errors a caller may want to tell apart. Each prints as one line.

An infeasible plan, a time-out or a held group is no error: those are answers and stand in the plan.
"""

from __future__ import annotations


class SchedError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(SchedError):
    """The policy or a setting is wrong; nothing can be planned with it."""


class InputError(SchedError):
    """Something in the input cannot be used: `source` (file), `object` (kind and name), `field` (path), `message`
    (what is wrong and what is allowed). Parts that do not apply are "".
    """

    def __init__(self, message: str, *, source: str = "", kind_and_name: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.object = kind_and_name
        self.field = field

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.object, self.field, self.message) if part)


class QuantityError(SchedError, ValueError):
    """A text that is no quantity, or one that cannot be used as an amount."""

"""Kubernetes quantities and Go durations as exact integers, and back.

An amount is in milli-units for `cpu` and in whole units for everything else, rounded up where the notation is finer,
as the API server and kube-scheduler round (apimachinery pkg/api/resource: `MilliValue`, `Value`). No float is involved.
"""

from __future__ import annotations

import re
from functools import lru_cache

from solver_sched.errors import QuantityError

MAX_AMOUNT = 2**63 - 1
"""The largest amount the API allows in a quantity, and the largest that the integer arrays can hold."""

_LONGEST = 64
"""Longer texts are not parsed: the largest amount has 19 digits, and converting millions of digits takes minutes."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
# "1E" is 10^18 and "1E3" is 1000: an exponent is tried before a suffix, and needs digits.
_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([EPTGMK]i|[numkMGTPE]?))")
_ALLOWED = "allowed are numbers such as 2, 0.5, 500m, 1e3, 128M, 1Gi (suffixes n u m k M G T P E and Ki Mi Gi Ti Pi Ei)"

_SECONDS = {"ns": 10**-9, "us": 10**-6, "µs": 10**-6, "ms": 10**-3, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|ms|s|m|h)")


def parse(value: str | float, per_unit: int = 1) -> int:
    """`value` times `per_unit`, rounded away from zero to an integer. Exact and signed.

    A float is read by its shortest decimal form (what YAML or JSON had in the file). Raises QuantityError.
    """
    if isinstance(value, bool):
        raise QuantityError(f"{str(value).lower()} is not a quantity; {_ALLOWED}")
    return _parse(value if isinstance(value, str) else _text(value), per_unit)


def amount(resource: str, value: str | float) -> int:
    """The amount of `resource` that `value` means: milli-CPU for `cpu`, whole units for others; 0 <= amount < 2^63.

    Raises QuantityError, also for negative and absurdly large values.
    """
    number = parse(value, 1000 if is_cpu(resource) else 1)
    if number < 0:
        raise QuantityError(f"{_shown(value)} is negative; an amount must be 0 or more")
    if number > MAX_AMOUNT:
        raise QuantityError(f"{_shown(value)} is more than the largest amount, {MAX_AMOUNT}")
    return number


def format(resource: str, number: int) -> str:  # noqa: A001  read as quantity.format
    """The canonical text of an amount: `500m`, `2`, `1536Mi`, `110`. `amount(resource, text) == number`."""
    if is_cpu(resource):
        return str(number // 1000) if number % 1000 == 0 else f"{number}m"
    if not counts_bytes(resource) or number == 0:
        return str(number)
    binary = _largest(number, _BINARY)
    decimal = _largest(number, {suffix: 10**power for suffix, power in _DECIMAL.items() if power > 0})
    return decimal if len(decimal.rstrip("kMGTPE")) < len(binary.rstrip("KMGTPEi")) else binary


def is_cpu(resource: str) -> bool:
    """`cpu`, also as quotas name it."""
    return resource in ("cpu", "requests.cpu", "limits.cpu")


def counts_bytes(resource: str) -> bool:
    """The resource is measured in bytes, so that binary suffixes read well."""
    name = resource.removeprefix("requests.").removeprefix("limits.")
    return name in ("memory", "ephemeral-storage", "storage") or name.startswith("hugepages-")


def parse_duration(text: str) -> int | None:
    """Whole seconds, rounded up, of a Go duration such as `1h30m` or `90s`; None if it is none, or longer than Go's
    longest.
    """
    if len(text) > _LONGEST or not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return None
    nanos = 0
    for part in _DURATION.findall(text):
        number = part.rstrip("nuµmsh")
        nanos += parse(number, round(_SECONDS[part[len(number) :]] * 10**9))
    return -(-nanos // 10**9) if nanos <= MAX_AMOUNT else None


@lru_cache(maxsize=1 << 16)
def _parse(text: str, per_unit: int) -> int:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not (match[2] or match[3]):
        raise QuantityError(f"{_shown(text)} is not a quantity; {_ALLOWED}")
    sign, whole, fraction, exponent, suffix = match.groups()
    digits = int(whole + (fraction or ""))
    power = -len(fraction or "")
    factor = per_unit
    if exponent is not None:
        power += int(exponent)
    elif suffix in _BINARY:
        factor *= _BINARY[suffix]
    else:
        power += _DECIMAL[suffix]
    if digits and power > _LONGEST:
        raise QuantityError(f"{_shown(text)} is more than the largest amount, {MAX_AMOUNT}")
    if power >= 0 or not digits:
        number = digits * factor * 10 ** max(power, 0) if digits else 0
    else:
        # Below 10^-(2*64) every number rounds up to 1 anyway.
        number = -(-digits * factor // 10 ** min(-power, 2 * _LONGEST))
    return -number if sign == "-" else number


def _text(value: float) -> str:
    if isinstance(value, float):
        return repr(value)
    return str(value) if abs(value) < 10**_LONGEST else f"{'-' if value < 0 else ''}1e{_LONGEST + 1}"


def _shown(value: object) -> str:
    text = _text(value) if isinstance(value, int | float) else str(value)
    return f"'{text}'" if len(text) <= 40 else f"'{text[:20]}...' ({len(text)} characters)"


def _largest(number: int, factors: dict[str, int]) -> str:
    for suffix, factor in sorted(factors.items(), key=lambda item: -item[1]):
        if number % factor == 0:
            return f"{number // factor}{suffix}"
    return str(number)

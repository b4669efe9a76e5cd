"""What somebody last wrote into the conditions of a group: told beside the facts, decided on by nobody."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from solver_sched.cluster import wire


class Condition(Struct, frozen=True):
    """`type`, `status`, `reason`, `message` as in metav1.Condition; all PodGroup dialects have these four."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Written(wire.Wire, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Status(wire.Wire):
    conditions: list[_Written] | None = None


class _Group(wire.Wire):
    status: _Status | None = None


_groups = msgspec.json.Decoder(_Group)


def last_written(raw: Raw | bytes) -> Condition | None:
    """The condition of the latest transition, of equally late ones the last in the list; None where there is none."""
    try:
        status = _groups.decode(raw).status
    except msgspec.MsgspecError:
        return None
    latest: _Written | None = None
    for one in (status.conditions if status is not None else None) or ():
        # RFC 3339 in UTC, as every API server writes it, sorts as text
        if latest is None or (one.last_transition_time or "") >= (latest.last_transition_time or ""):
            latest = one
    if latest is None:
        return None
    return Condition(latest.type, latest.status, latest.reason or "", latest.message or "")

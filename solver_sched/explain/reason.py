"""The vocabulary of reasons: one code per cause, each with its entry in docs/reasons.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Found = Literal[
    "GangIncomplete",
    "NoAction",
    "BackfillOff",
    "Predicates",
    "QueueCapability",
    "QueueGuarantee",
    "Resources",
    "Fragmentation",
    "InterPodAffinity",
    "TopologySpread",
    "DomainRule",
    "Reserved",
    "QueueShare",
    "Lost",
    "Unsolved",
]
"""Codes of what could be decided on, found here, in the order in which they are looked for."""

Moved = Literal["Nominated", "Evicted"]
"""Codes of what the plan does to a group other than to bind it: it waits for room being freed, or makes room."""

Held = Literal[
    "GroupMissing",
    "QueueMissing",
    "QueueClosed",
    "QueueInner",
    "Suspended",
    "Gated",
    "Claims",
    "Volumes",
    "Topology",
    "Unmodelled",
    "Held",
    "NotAdmitted",
]
"""Codes of what must not be decided on now, found by the readers and the encoder."""

FOUND: tuple[str, ...] = get_args(Found)
MOVED: tuple[str, ...] = get_args(Moved)
HELD: tuple[str, ...] = get_args(Held)


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` as documented in docs/reasons.md; `message` one sentence with numbers; `detail` plain JSON types."""

    code: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)

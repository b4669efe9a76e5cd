"""How long pods run: what users say of it, and what finished pods of the same class show (formulation.md 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from statistics import median_low

from solver_sched.cluster.objects import RunTime
from solver_sched.quantity import parse_duration

RUN_TIME = "solver-sched.io/run-time"
"""Annotation of a pod, Job or PodGroup: `90m`, `1h30m`, or seconds."""
LONGEST = 10**10
"""Seconds; what is said to run longer runs for ever."""

_GENERATED = re.compile(r"(-([0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5}))+$")
"""Numbers of rows, of CronJob runs and of indexed pods, and what the API server makes of `generateName`
(k8s.io/apimachinery/pkg/util/rand, SafeEncodeString).
"""


def run_time(text: str | None) -> int:
    """Seconds of an annotation's value, 0 = not known: absent, not positive, or no duration. A pod is not left out for
    it, because what it holds of its node is known all the same.
    """
    if not text:
        return 0
    seconds = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else parse_duration(text) or 0
    return seconds if seconds <= LONGEST else 0


def deadline(seconds: int | None) -> int:
    """`activeDeadlineSeconds`, 0 = none, or none that anybody will see."""
    return seconds if seconds is not None and 0 < seconds <= LONGEST else 0


def run_class(namespace: str, owner: str, name: str, role: str) -> str:
    """What pods have in common that run about equally long. `owner`: "Kind/name" of the controller, or ""."""
    return f"{namespace}/{_stem(owner or f'Pod/{name}')}/{role}"


@lru_cache(maxsize=1 << 12)
def _stem(name: str) -> str:
    return _GENERATED.sub("", name)


def medians(runs: Mapping[str, list[int]]) -> tuple[RunTime, ...]:
    """The lower median of the run times of each class."""
    return tuple(RunTime(key, len(seconds), median_low(seconds)) for key, seconds in sorted(runs.items()))

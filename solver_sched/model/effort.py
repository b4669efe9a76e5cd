"""What a solve is given and what it returns, without the solver: budgets, level results, solutions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Ints, Plan, Problem


@dataclass(frozen=True, slots=True)
class Effort:
    """`seconds`: the budget in deterministic seconds; `gap`: relative gap that closes a level; `seed`. `walled`: the
    wall clock ends a solve as well; if not, nothing that a machine's speed decides does, and engines without a
    deterministic budget are left out (but not where the relaxation guides an eviction model, or nodes are found for a
    pooled one; each such solve has seconds of its own).
    """

    seconds: float = 5.0
    gap: float = 1e-4
    seed: int = 0
    walled: bool = True

    def clock(self) -> Clock:
        """A clock that starts now."""
        return Clock(self.seconds if self.walled else math.inf)


class OutOfTimeError(Exception):
    """The clock ran out while a model was being built."""


class Clock:
    """Wall time of a solve: `seconds` from now on. Whatever may take long asks it."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; negative once they are over."""
        return self._end - time.monotonic()

    def over(self, part: float = 0.0) -> bool:
        """Whether no more than this part of the seconds is left."""
        return self.seconds < math.inf and self.left <= (part * max(0.0, self.seconds) if part else 0.0)

    def check(self) -> None:
        """Raises OutOfTimeError."""
        if self.over():
            raise OutOfTimeError


@dataclass(frozen=True, slots=True)
class LevelResult:
    """`value` larger is better; `bound` None = no bound. `status`: OPTIMAL, FEASIBLE (stopped at the gap or the
    budget), UNKNOWN (nothing found), with "(wall limit)" where the clock and not the budget ended it. `seconds` wall
    and `effort` deterministic. `unit`: a gap below this many counts as closed (deficit levels: one smallest unit).
    """

    name: str
    value: int
    bound: int | None
    status: str
    seconds: float = 0.0
    effort: float = 0.0
    unit: int = 0

    @property
    def gap(self) -> float:
        """|bound - value| / max(1, |bound|); 0 within one unit; infinite without a bound."""
        if self.bound is None:
            return float("inf")
        apart = abs(self.bound - self.value)
        return 0.0 if apart == 0 or apart < self.unit else apart / max(1, abs(self.bound))


@dataclass(frozen=True, eq=False, slots=True)
class Solution:
    """A plan, the levels it reached, and the values that the greedy plan reaches at the same levels: the one with
    evictions if `evicting`. `cut`: the time was over before it was known who might make room for those who wait;
    `ever`: the levels then, bounded by the most that they could ever reach.
    """

    plan: Plan
    levels: tuple[LevelResult, ...]
    greedy: Mapping[str, int] = field(default_factory=dict)
    evicting: bool = False
    cut: bool = False
    ever: tuple[LevelResult, ...] = ()


def beats(values: Mapping[str, int], levels: Sequence[LevelResult]) -> bool:
    """Whether `values` are larger in the first level that differs."""
    for level in levels:
        if level.name in values and values[level.name] != level.value:
            return values[level.name] > level.value
    return False


Fill = Callable[[Problem, Rules, Plan, int | None], Plan]
"""Adds to a plan what still fits of jobs of a rank and higher, None = all (the greedy baseline)."""

Stand = Callable[[Problem, Rules, Ints, Ints, Ints], Plan]
"""A plan in which jobs (rows, in the order in which they find nodes) start and others make room: pods of each holder
that should go (H,), and of these (.., 3) set, pods and cause of who goes in any case: if none of those starts who may
take from them, the plan breaks C18. It comes as near to that as it finds nodes (greedy).
"""

Progress = Callable[[LevelResult], None]
"""Called after every level that is solved."""

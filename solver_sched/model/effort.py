"""What a solve is given and what it returns, without the solver: budgets, level results, solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from solver_sched.problem.arrays import Plan


@dataclass(frozen=True, slots=True)
class Effort:
    """`seconds`: the budget in deterministic seconds; `gap`: relative gap that closes a level; `seed`."""

    seconds: float = 5.0
    gap: float = 1e-4
    seed: int = 0


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
    """A plan, the levels it reached, and the values that the given greedy plan reaches at the same levels."""

    plan: Plan
    levels: tuple[LevelResult, ...]
    greedy: Mapping[str, int] = field(default_factory=dict)


Progress = Callable[[LevelResult], None]
"""Called after every level that is solved."""

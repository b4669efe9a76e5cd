"""The levels of a solve as a group that lost at one of them sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solver_sched.model.effort import LevelResult

DECIDING = ("in-share.", "keep>=", "start>=", "grow>=")


class Ladder:
    """`levels` in the order in which they were solved, none for a greedy plan. `first_open`: the first not proven, of
    those that decide who stays, starts and grows.
    """

    def __init__(self, levels: Sequence[LevelResult], rank_names: Sequence[str]) -> None:
        self.levels = {level.name: level for level in levels}
        self.rank_names = rank_names
        deciding = (level for level in levels if level.name.startswith(DECIDING))
        self.first_open = next((level for level in deciding if level.bound is None or level.gap > 0), None)

    def name(self, what: str, rank: int, in_share: bool) -> str | None:
        """The level at which jobs of a rank `start` or `grow`; None if it was not solved."""
        plain = f"{what}>={self.rank_names[rank]}"
        before_shares = what == "start" and self.rank_names[rank].endswith("!")
        wanted = [f"in-share.{plain}", plain] if in_share and not before_shares else [plain]
        return next((name for name in wanted if name in self.levels), None)

    def detail(self, name: str | None) -> dict[str, Any]:
        """`{"level": ...}` with the numbers of a level; empty without one."""
        if name is None:
            return {}
        level = self.levels[name]
        gap = None if level.bound is None else round(level.gap, 6)
        numbers = {"value": level.value, "bound": level.bound, "status": level.status, "gap": gap}
        return {"level": {"name": name, **numbers}}

    def why_unsolved(self) -> str:
        """Where the solver stopped, as the second half of a sentence."""
        level = self.first_open
        if not self.levels:
            return "but no level was solved: the plan is a greedy or a given one"
        if level is None:
            return f"yet all {len(self.levels)} levels are proven without it"
        if level.bound is None:
            return f"but level {level.name} stopped without a bound at {level.value}"
        gap = f"{100 * level.gap:.3g} % (value {level.value}, bound {level.bound})"
        return f"but level {level.name} stopped at a gap of {gap}"

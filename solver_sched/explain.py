"""Why a group waits: one primary reason with the numbers behind it.

placeholder contract: `explain` returns a Reason for every group (or lone pod) that has pods left pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from solver_sched.model.effort import LevelResult
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Index, Plan, Problem
from solver_sched.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` as documented in docs/reasons.md; `message` one sentence with numbers; `detail` plain JSON types."""

    code: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def explain(
    snapshot: Snapshot, problem: Problem, index: Index, rules: Rules, plan: Plan, levels: Sequence[LevelResult]
) -> dict[str, Reason]:
    """Reason per group key, for groups with pods that stay pending after `plan`."""
    out = {key: Reason(code, message, {"held": True}) for key, (code, message) in index.held.items()}
    left = problem.set_count - plan.placed(problem)
    for t in left.nonzero()[0].tolist():
        out.setdefault(index.jobs[int(problem.set_job[t])], Reason("Resources", "does not fit"))
    return out

"""Reasons: why each group that a plan leaves waiting waits (docs/reasons.md)."""

from __future__ import annotations

from solver_sched.explain.diagnosis import explain
from solver_sched.explain.reason import FOUND, HELD, MOVED, Reason

__all__ = ["FOUND", "HELD", "MOVED", "Reason", "explain"]

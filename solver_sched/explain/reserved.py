"""Which reservation keeps a gang out, and when a job that has one is expected to start (formulation.md 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solver_sched.explain.amounts import names
from solver_sched.explain.room import Room, Want
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import RESERVED_PREFIX, Index, Plan, Problem
from solver_sched.problem.reservations import Reservation
from solver_sched.problem.runtimes import NEVER, RunTimes
from solver_sched.snapshot import Snapshot


def without_reservations(problem: Problem, but: int = -1) -> Problem:
    """The problem as if nothing, or only reservation `but`, were kept."""
    kept = f"{RESERVED_PREFIX}{but}/"
    open_to = [name.startswith(RESERVED_PREFIX) and not name.startswith(kept) for name in problem.resources]
    return replace(problem, request=np.where(open_to, 0, problem.request)) if any(open_to) else problem


class Reserved:
    """The reservations of a cycle, as those see them who wait for them and because of them."""

    def __init__(
        self,
        snapshot: Snapshot,
        problem: Problem,
        index: Index,
        rules: Rules,
        plan: Plan,
        reserved: Sequence[Reservation],
    ) -> None:
        self.problem, self.index, self.rules, self.plan = problem, index, rules, plan
        self.now, self.reserved = snapshot.now, reserved
        self._of = {one.job: one for one in reserved}
        self._rooms: dict[tuple[int, bool], Room] = {}
        self._times = RunTimes(snapshot) if reserved else None
        self._pods = {pod.key: pod for pod in snapshot.pods if pod.node is None} if reserved else {}

    def keeps_out(self, want: Want, t: int, *, beside: bool) -> tuple[str, dict[str, Any]] | None:
        """Clause and detail if the gang, which fits otherwise, does not fit with reservations. `t`: a pod set of it."""
        if not self.reserved or self._fits(None, want, beside):
            return None
        alone = [k for k in range(len(self.reserved)) if not self._fits(k, want, beside)]
        one = self.reserved[alone[0] if alone else 0]
        who = f"room that is kept for {one.job} on {names(list(one.nodes))}"
        if not one.at:
            return f"fits but for {who} by hand", {"reservation": self._record(one)}
        assert self._times is not None
        seconds = max(self._times.of(self._pods[key]) for key in self.index.set_pods[t])
        runs = f"may run {seconds} s" if seconds < NEVER else "may run for ever: its run time is not known"
        known = seconds if seconds < NEVER else None
        clause = f"fits but for {who}, from {one.begins} (in {one.at - self.now} s) on, and {runs}"
        return clause, {"reservation": self._record(one), "runTime": known}

    def expected(self, job: str) -> tuple[str, Mapping[str, Any]] | None:
        """When and where a job that waits will start, as the end of its message, and its detail."""
        one = self._of.get(job)
        if one is None:
            return None
        where = names(list(one.nodes))
        if not one.at:
            return f"; {where} kept for it by hand", {"expected": self._record(one)}
        return f"; expected at {one.begins} (in {one.at - self.now} s) on {where}", {"expected": self._record(one)}

    def _fits(self, only: int | None, want: Want, beside: bool) -> bool:
        """Whether the gang fits under all reservations, or under one alone."""
        key = (-1 if only is None else only, beside)
        if key not in self._rooms:
            problem = self.problem if only is None else without_reservations(self.problem, only)
            alone = Room(problem, self.rules)
            self._rooms[key] = alone.beside(self.plan) if beside else alone
        return self._rooms[key].gang(want) >= want.need

    def _record(self, one: Reservation) -> dict[str, Any]:
        return {"podGroup": one.job, "at": one.begins, "nodes": list(one.nodes)}

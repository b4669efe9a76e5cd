"""A right that is misread is noticed: rows of the model and rights are switched off, one by one, and the verifier
refuses a plan on some random cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from solver_sched.cluster.sources import read_objects
from solver_sched.greedy import evict, evicting_plan, fill, greedy_plan
from solver_sched.greedy.balance import Balance
from solver_sched.model import solve as solving
from solver_sched.model.effort import Effort
from solver_sched.model.evictions import Evictions
from solver_sched.model.ledger import Ledger
from solver_sched.model.solve import solve
from solver_sched.plugins import PLUGINS
from solver_sched.plugins.plugin import Plugin
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import load_policy
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.problem.encode import encode
from solver_sched.rights import Rights
from solver_sched.verify import violations
from tests import tiny
from tests.strategies import full_snapshot, random_crowd
from tests.test_evicting import POLICIES

EFFORT = Effort(seconds=0.5)
SEEDS = range(3000)
"""A fault shows at the first seed where its rule decides; a rare rule takes some searching."""

Fault = Callable[[pytest.MonkeyPatch], None]


def plans(seed: int) -> tuple[Problem, Rules, Plan]:
    """Problem, rules and greedy's plan of a random cluster: a crowd, or a full one."""
    if seed % 2:
        cluster = random_crowd(Random(seed))
        snapshot, policy = read_objects(tiny.objects(cluster)), load_policy(tiny.policy(cluster))
    else:
        snapshot, policy = full_snapshot(Random(seed)), list(POLICIES.values())[seed // 2 % len(POLICIES)]
    problem, _ = encode(snapshot, evicting=True)
    rules = derive(problem, policy)
    greedy = evicting_plan(problem, rules, greedy_plan(problem, rules))
    return problem, rules, greedy


def check_solver(seeds: range, binds: Callable[[Problem], bool] = lambda problem: True) -> None:
    """`binds`: leave out problems on which the fault that is looked for could not show."""
    for seed in seeds:
        problem, rules, _ = plans(seed)
        if not binds(problem):
            continue
        assert violations(problem, rules, solve(problem, rules, EFFORT).plan) == [], seed


def check_greedy(seeds: range, binds: Callable[[Problem], bool] = lambda problem: True) -> None:
    for seed in seeds:
        problem, rules, greedy = plans(seed)
        if not binds(problem):
            continue
        assert violations(problem, rules, greedy) == [], seed


def patched(owner: object, attribute: str, value: object) -> Fault:
    return lambda patch: patch.setattr(owner, attribute, value, raising=False)


def silent(owner: type[object], method: str) -> Fault:
    return patched(owner, method, lambda self, *given: None)


def misread(change: Callable[..., Rights], *readers: object) -> Fault:
    """Solver or greedy reads other rights."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for reader in readers:
            original = getattr(reader, "rights")  # noqa: B009  # not declared on `object`

            def changed(*given: Any, original: Any = original) -> Rights:
                return change(original(*given), given[0], given[1])

            patch.setattr(reader, "rights", changed)

    return plant


def never_spared(plugin: type[Plugin]) -> Fault:
    return patched(plugin, "spares", lambda self, problem: None)


def everything_open(given: Rights, problem: Problem, rules: Rules) -> Rights:
    """Remainders go before their grace is over."""
    broken = problem.victims.broken[problem.victims.holder]
    return replace(given, open=given.open | broken, preempt=given.preempt | (broken & given.claimants.any()))


RIGHTS: dict[str, Callable[..., Rights]] = {
    "one pod too many may go": lambda given, p, r: replace(
        given, surplus=np.minimum(given.surplus + 1, p.victims.running)
    ),
    "roles have no minimum": lambda given, p, r: replace(given, role_surplus=p.victims.role_running),
    "any queue lends anything": lambda given, p, r: replace(given, room=p.queue_used),
    "remainders have no grace": everything_open,
    "gangs end by preempt": lambda given, p, r: replace(given, ends_by_preempt=given.ends_by_reclaim),
}
SOLVER: dict[str, Fault] = {
    **{f"solver: {name}": misread(change, solving) for name, change in RIGHTS.items()},
    "no budgets": silent(Evictions, "_budgets"),
    "no room for reclaim": silent(Evictions, "_reclaim_room"),
    "no balance": silent(Evictions, "preempt_rows"),
    "nobody claims": silent(Evictions, "claim_rows"),
    "swaps": silent(Ledger, "_no_swaps"),
    "the system goes": never_spared(PLUGINS["conformance"]),
    "no cool-down": never_spared(PLUGINS["cdp"]),
}
GREEDY: dict[str, Fault] = {
    **{f"greedy: {name}": misread(change, evict) for name, change in RIGHTS.items() if "role" not in name},
    "greedy: no limits": patched(evict.Evicting, "_within_limits", lambda self, going: True),
    "greedy: no balance": patched(Balance, "start", lambda self, j, pods: True),
    "greedy: gives nothing back": patched(evict.Evicting, "_give_back", lambda self, mark: None),
    "greedy: swaps": patched(fill.Greedy, "touched", property(lambda self: set(), lambda self, given: None)),
}


def binds(fault: str) -> Callable[[Problem], bool]:
    if "role" in fault:
        return lambda problem: bool((problem.victims.role_min > 0).any())
    if "cool" in fault:
        return lambda problem: bool((problem.victims.seconds < problem.victims.cooldown).any())
    return lambda problem: True


@pytest.mark.parametrize("fault", SOLVER)
def test_a_plan_without_a_right_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SOLVER[fault](monkeypatch)
    with pytest.raises(AssertionError):
        check_solver(SEEDS, binds(fault))


@pytest.mark.parametrize("fault", GREEDY)
def test_a_greedy_plan_without_a_right_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    GREEDY[fault](monkeypatch)
    with pytest.raises(AssertionError):
        check_greedy(SEEDS, binds(fault))

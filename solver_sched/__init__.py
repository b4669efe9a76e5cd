"""A batch scheduler for Kubernetes that decides by solving.

Importing the package starts nothing and loads nothing: the public names bring in what they need when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from solver_sched.cluster.sources import load_snapshot
    from solver_sched.cycle import run_cycle
    from solver_sched.policy import Policy, load_policy
    from solver_sched.snapshot import Snapshot

__all__ = ["load_policy", "load_snapshot", "plan", "run_cycle"]

_HOMES = {
    "load_policy": "solver_sched.policy",
    "load_snapshot": "solver_sched.cluster.sources",
    "run_cycle": "solver_sched.cycle",
}


def plan(
    objects: Iterable[Mapping[str, Any]] | Snapshot,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    time_limit: float | None = None,
    solver: str = "optimal",
    scheduler_names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The plan for `objects` (Kubernetes objects as dicts, or a snapshot), as `solver-sched plan -o json` prints it.

    `policy`: what `load_policy` takes or gives. `time_limit`: wall seconds, None = the policy's, or 5. `solver`:
    "optimal" or "greedy". `scheduler_names`: whose pods are decided on, None = the snapshot's, or solver-sched,
    kube-batch and volcano. Raises PolicyError, InputError where nothing is left to plan, and ValueError for a `solver`
    or `time_limit` that is none.
    """
    from msgspec.structs import replace

    from solver_sched.cycle import Budget, run_cycle
    from solver_sched.policy import Policy, load_policy
    from solver_sched.snapshot import Snapshot

    if solver not in ("optimal", "greedy"):
        raise ValueError(f"solver {solver!r}: must be optimal or greedy")
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise ValueError(f"time_limit {time_limit!r}: must be seconds above 0, or None for the policy's")
    checked = policy if isinstance(policy, Policy) else load_policy(policy)
    names = None if scheduler_names is None else tuple(scheduler_names)
    if isinstance(objects, Snapshot):
        snapshot = objects if names is None else replace(objects, scheduler_names=names)
    else:
        from solver_sched.cluster.sources import read_objects

        snapshot = read_objects(objects, scheduler_names=names)
    seconds = time_limit or checked.solve.time_limit_seconds or Budget().seconds
    return run_cycle(snapshot, checked, Budget(seconds), solver).as_dict()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'solver_sched' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

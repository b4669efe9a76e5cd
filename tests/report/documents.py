"""Documents to make pages of: of the shipped examples, with hostile names, and a simulation of two jobs by hand."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from solver_sched.cluster.sources import load_snapshot
from solver_sched.compare import Run, comparison
from solver_sched.cycle import Budget, run_cycle
from solver_sched.policy import load_policy

BUDGET = Budget(5.0, apart=False)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg><iframe src=//x.test>",
    "$\\frac{1}{0}$ {{ 7 * 7 }} {% raw %}",
    "]]> &amp; <!-- \u202e \x00 \x1b[31m",
    "研究" + "x" * 300,
)
"""What a name may hold that no API server has looked at: files are read as they are."""

NAMES = ("name", "queue", "pod", "node", "podGroup", "message", "source", "reason", "for", "notes", "solver", "policy")
BY_NAME = ("queues", "values", "runs")
"""Fields whose values may be mappings with names as their keys."""


@cache
def _runs(example: str, policy: str) -> tuple[Run, ...]:
    snapshot = load_snapshot(str(resources.files("solver_sched") / "examples" / example))
    checked = load_policy(policy)
    return tuple(Run(solver, run_cycle(snapshot, checked, BUDGET, solver)) for solver in ("greedy", "optimal"))


def plan(example: str = "preempting.yaml", policy: str = "preempting") -> dict[str, Any]:
    """The plan of a shipped example."""
    return _runs(example, policy)[-1].report.as_dict(nodes=True)


def compared(example: str = "preempting.yaml", *policies: str) -> dict[str, Any]:
    """Greedy and optimal on a shipped example."""
    return comparison([run for policy in policies or ("preempting",) for run in _runs(example, policy)], nodes=True)


def simulation() -> dict[str, Any]:
    """A node of 4 CPU. ml/a (2 pods, 2 CPU each) runs from 0 to 100 s. ml/b (1 pod of 2 CPU) comes at 50 s, waits until
    100 s and runs until 150 s: of 4 CPU 4 are in use, then 2, on average (100 * 4 + 50 * 2) / (150 * 4) = 5/6.
    """

    def run(name: str) -> dict[str, Any]:
        solver, policy = name.split()
        waits = {"mean": 25.0, "p50": 0.0, "p95": 50.0, "max": 50.0}
        return {
            "name": name,
            "solver": solver,
            "policy": policy,
            "seed": 0,
            "summary": {
                "makespan": 150,
                "jobs": {"ended": 2, "failed": 0, "left": 0},
                "wait": waits,
                "completion": {"mean": 100.0, "p50": 100.0, "p95": 100.0, "max": 100.0},
                "slowdown": {"mean": 1.5, "p50": 1.0, "p95": 2.0, "max": 2.0},
                "utilisation": {"cpu": 5 / 6},
                "jain": 1.0,
                "evictions": 0,
                "lost": {"podSeconds": 0},
                "cycles": 3,
                "cycle": {"mean": 0.01, "p50": 0.01, "p95": 0.02, "max": 0.02},
            },
            "queues": [{"name": "q", "jobs": 2, "wait": waits, "share": 5 / 6, "deserved": 1.0}],
            "sizes": [
                {"pods": "1", "jobs": 1, "wait": dict.fromkeys(waits, 50.0), "slowdown": dict.fromkeys(waits, 2.0)},
                {"pods": "2-8", "jobs": 1, "wait": dict.fromkeys(waits, 0.0), "slowdown": dict.fromkeys(waits, 1.0)},
            ],
            "series": {
                "time": [0, 50, 100, 150],
                "utilisation": {"cpu": [1.0, 1.0, 0.5, 0.0]},
                "pending": [0, 1, 0, 0],
                "running": [2, 2, 1, 0],
                "evictions": [0, 0, 0, 0],
                "queues": {"q": {"share": [1.0, 1.0, 0.5, 0.0], "deserved": [1.0, 1.0, 1.0, 1.0]}},
            },
            "waiting": {"seconds": [0, 50], "share": [0.5, 1.0]},
            "jobs": [
                {"name": "ml/a", "queue": "q", "pods": 2, "submitted": 0, "started": 0, "ended": 100, "evictions": 0},
                {
                    "name": "ml/b",
                    "queue": "q",
                    "pods": 1,
                    "submitted": 50,
                    "started": 100,
                    "ended": 150,
                    "evictions": 0,
                },
            ],
        }

    return {
        "apiVersion": "solver-sched.io/v1alpha1",
        "kind": "Simulation",
        "trace": {"source": "two.swf", "jobs": 2, "pods": 3, "nodes": 1, "queues": ["q"], "seed": 0, "period": 60},
        "partial": False,
        "notes": [],
        "runs": [run("greedy default"), run("optimal default")],
    }


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the names of its groups, queues, nodes, jobs and pods, and its messages, replaced in turn by
    those of HOSTILE.
    """
    named: dict[str, str] = {}

    def name(old: str) -> str:
        return named.setdefault(old, f"{HOSTILE[len(named) % len(HOSTILE)]} {len(named)}")

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, list):
            return [changed(one, f"{key}[]") for one in value]
        if isinstance(value, dict):
            return {name(k) if key in BY_NAME else k: changed(v, k) for k, v in value.items()}
        return name(value) if isinstance(value, str) and key.removesuffix("[]") in NAMES else value

    made: dict[str, Any] = changed(document)
    return made

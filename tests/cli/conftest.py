from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever cluster the machine knows of is none of a test's business."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def group(name: str, *, bound: int = 0, pending: int = 0, code: str = "", **other: Any) -> dict[str, Any]:
    reason = (
        {"code": code, "message": f"{pending} pods do not fit", "detail": other.pop("detail", {})} if code else None
    )
    plain = {"queue": "q", "phase": "Pending" if pending else "Running", "minMember": bound + pending, "running": 0}
    return {"name": name, **plain, "bound": bound, "nominated": 0, "pending": pending, "reason": reason, **other}


def bind(pod: str, node: str, group: str) -> dict[str, Any]:
    return {"kind": "Bind", "action": "allocate", "pod": pod, "node": node, "podGroup": group, "queue": "q"}


@pytest.fixture
def plan() -> dict[str, Any]:
    """Two nodes of 2 CPU; ml/a (2 pods of 1 CPU) starts, ml/b (3 pods) does not: 2 of 3 fit."""
    sets = [
        {
            "pods": 3,
            "request": {"cpu": "1", "memory": "1Gi"},
            "nodesEligible": 1,
            "removed": {"Taints": 1},
            "fitsNow": 2,
        }
    ]
    return {
        "apiVersion": "solver-sched.io/v1alpha1",
        "kind": "Plan",
        "snapshot": {
            "nodes": 2,
            "pods": 1005,
            "podGroups": 2,
            "queues": 1,
            "ignored": {"finished pods": 1000, "kind Service": 3},
            "problems": [
                {"source": "a.yaml", "object": "Pod ml/x", "field": "spec.containers", "message": "is missing"}
            ],
        },
        "policy": {"name": "default", "actions": ["allocate"], "tiers": [["gang"]]},
        "decisions": [
            {"kind": "Admit", "podGroup": "ml/a"},
            bind("ml/a-0", "n1", "ml/a"),
            bind("ml/a-1", "n1", "ml/a"),
        ],
        "podGroups": [
            group("ml/a", bound=2),
            group("ml/b", pending=3, code="Resources", detail={"podSets": sets, "fitsAtOnce": 2, "held": False}),
        ],
        "queues": [
            {
                "name": "q",
                "deserved": {"cpu": "4", "memory": "8Gi"},
                "allocated": {"cpu": "2500m", "pods": "2"},
                "request": {"cpu": "5", "memory": "3Gi"},
                "share": 0.625,
            }
        ],
        "levels": [
            {"name": "start>=0", "value": 96, "bound": 120, "status": "FEASIBLE", "seconds": 0.02, "greedy": 96},
            {"name": "order", "value": 5, "bound": 5, "status": "OPTIMAL", "seconds": 0.0, "greedy": 5},
        ],
        "certificate": {"status": "gap", "gap": 0.2, "winner": "solver"},
        "seconds": {"encode": 0.01, "greedy": 0.001, "solve": 0.4, "total": 0.42},
    }

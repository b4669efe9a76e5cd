"""Dashboards and alerts ask for metrics that the program has, by labels that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from solver_sched import load_policy, load_snapshot, run_cycle
from solver_sched.cycle import Budget
from solver_sched.metrics import NAMES, Metrics
from tests.deploy.rendered import DEPLOY, read

DASHBOARD = json.loads((DEPLOY / "components" / "monitoring" / "dashboard.json").read_text())
(RULE,) = read("components/monitoring/prometheus-rule.yaml")
ALERTS = [rule for group in RULE["spec"]["groups"] for rule in group["rules"]]
SAMPLE = re.compile(r"\b((?:solver_sched|volcano|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\bby \(([^)]*)\)")
# From the scrape, not from the program.
SCRAPED = {"job", "pod", "instance", "namespace"}


def queries() -> Iterator[tuple[str, str]]:
    """(where it stands, the PromQL)."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\((.*), *(\w+)\)", variable["query"]["query"])
            assert inner is not None
            yield f"variable {variable['name']}", f"sum by ({inner[2]}) ({inner[1]})"
    for rule in ALERTS:
        yield f"alert {rule['alert']}", rule["expr"]


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """Series -> its labels, of all that a scrape shows after one cycle in which something of everything happened."""
    metrics = Metrics()
    snapshot = load_snapshot(DEPLOY.parent / "solver_sched" / "examples" / "preempting.yaml")
    metrics.observe_cycle(run_cycle(snapshot, load_policy("preempting"), Budget(5.0), "optimal"), 0.01, 0.02)
    metrics.decision("Bind", "ok")
    metrics.api("GET", "200", 0.01)
    metrics.now({"Pod": 1}, {"Pod": 0.5}, {"Running": 1}, 0)
    metrics.relist("Pod", "expired")
    return {sample.name: set(sample.labels) for family in metrics.registry.collect() for sample in family.samples}


@pytest.mark.parametrize(("where", "query"), [*queries()], ids=[where for where, _ in queries()])
def test_every_query_asks_for_what_exists(shown: dict[str, set[str]], where: str, query: str) -> None:
    used = SAMPLE.findall(query)
    assert used, where
    for name, matchers in used:
        assert name in shown, f"{where}: {name}"
        assert set(MATCHER.findall(matchers)) <= shown[name] | SCRAPED, f"{where}: {name}"
    labels = set().union(*(shown[name] for name, _ in used)) | SCRAPED
    for by in BY.findall(query):
        assert {label.strip() for label in by.split(",")} <= labels, f"{where}: by {by}"


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    asked = {name for where, query in queries() if not where.startswith("alert") for name, _ in SAMPLE.findall(query)}
    families = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in NAMES}
    on_it = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in asked}
    assert {name for name in families if name.startswith("solver_sched_")} <= on_it


def test_what_the_program_counts_against_itself_raises_an_alert() -> None:
    asked = {name for where, query in queries() if where.startswith("alert") for name, _ in SAMPLE.findall(query)}
    assert asked >= {
        "solver_sched_plan_refused_total",
        "solver_sched_solver_lost_total",
        "solver_sched_broken_gangs",
        "solver_sched_leader",
        "solver_sched_policy_reloads_total",
    }


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    text = (DEPLOY / "README.md").read_text()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert f"| `{rule['alert']}`" in text or f", `{rule['alert']}`" in text, rule["alert"]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))

"""What a scrape shows of a cycle, and that nothing in it outlives its object."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as struct_replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.metrics import LISTED, NAMES, Metrics
from solver_sched.model import solve as solving
from solver_sched.plugins.plugin import Violation
from solver_sched.policy import load_policy
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot

VOLCANO = "scheduling.volcano.sh/v1beta1"
HERE = Budget(2.0, apart=False)


def scraped(metrics: Metrics) -> dict[str, float]:
    """`name{label="value",...}` -> value, without what describes the process."""
    _, body = metrics.exposition()
    samples = [one for family in text_string_to_metric_families(body.decode()) for one in family.samples]
    return {
        one.name + ("{" + ",".join(f'{k}="{v}"' for k, v in sorted(one.labels.items())) + "}" if one.labels else ""): (
            one.value
        )
        for one in samples
        if not one.name.startswith("process_")
    }


def gang(name: str, queue: str, count: int, cpu: int, gpus: int = 0, node: str | None = None) -> dict[str, Any]:
    """A group of which every member counts, as `pods` and `groups` of a snapshot."""
    request = (("cpu", cpu), *((("nvidia.com/gpu", gpus),) if gpus else ()), ("pods", 1))
    return {
        "pods": tuple(
            Pod(
                "ns",
                f"{name}-{i}",
                Needs(request=request),
                group=f"ns/{name}",
                scheduler="solver-sched",
                node=node,
                phase="Running" if node else "Pending",
            )
            for i in range(count)
        ),
        "groups": (PodGroup("ns", name, VOLCANO, count, queue=queue, created=1),),
    }


def snapshot(*gangs: dict[str, Any], queues: tuple[str, ...] = ("research", "product")) -> Snapshot:
    """One node of 8 cpu, 32 GiB and 4 GPUs; research has weight 3, product 1."""
    weights = {"research": 3, "product": 1}
    return Snapshot(
        nodes=(Node("n", {"cpu": 8000, "memory": 32 << 30, "nvidia.com/gpu": 4, "pods": 110}),),
        pods=tuple(pod for one in gangs for pod in one["pods"]),
        groups=tuple(group for one in gangs for group in one["groups"]),
        queues=tuple(Queue(name=name, weight=weights[name]) for name in queues),
        now=3,
    )


def planned(*gangs: dict[str, Any], **arguments: Any) -> CycleReport:
    return run_cycle(snapshot(*gangs, **arguments), load_policy("volcano"), HERE)


RUNS = gang("runs", "research", 1, 1000, 1, node="n")
FITS = gang("fits", "research", 2, 1000, 1)
LARGE = gang("large", "product", 3, 4000)


@pytest.fixture(scope="module")
def report() -> CycleReport:
    """1 cpu runs, 2 are placed, and 3 x 4 do not fit in the 8."""
    return planned(RUNS, FITS, LARGE)


def test_a_cycle_as_dashboards_see_it(report: CycleReport) -> None:
    metrics = Metrics()
    metrics.observe_cycle(report, snapshot_seconds=0.25, bind_seconds=0.5)
    seen = scraped(metrics)
    assert seen['solver_sched_cycles_total{result="optimal"}'] == 1
    assert seen['solver_sched_cycles_total{result="failed"}'] == 0
    total = 0.25 + report.seconds["total"] + 0.5
    assert seen["solver_sched_cycle_seconds_sum"] == pytest.approx(total)
    assert seen["volcano_e2e_scheduling_latency_milliseconds_sum"] == pytest.approx(1000 * total)
    phases = ("snapshot", "encode", "greedy", "solve", "verify", "explain", "bind")
    assert [seen[f'solver_sched_phase_seconds_count{{phase="{phase}"}}'] for phase in phases] == [1] * 7
    assert sum("phase_seconds_count" in name for name in seen) == 7
    assert seen['solver_sched_phase_seconds_sum{phase="snapshot"}'] == 0.25
    # research holds 1 + 2 cpu and GPUs of what it asks for; product asks for 3 x 4 and holds nothing
    queue = {q: f'{{queue_name="{q}"}}' for q in ("research", "product")}
    assert seen["volcano_queue_allocated_milli_cpu" + queue["research"]] == 3000
    assert seen["volcano_queue_request_milli_cpu" + queue["research"]] == 3000
    assert seen["volcano_queue_request_milli_cpu" + queue["product"]] == 12000
    assert seen["volcano_queue_allocated_milli_cpu" + queue["product"]] == 0
    assert seen["volcano_queue_allocated_memory_bytes" + queue["product"]] == 0
    # Volcano counts other resources in thousandths
    assert seen['volcano_queue_allocated_scalar_resources{queue_name="research",resource="nvidia.com/gpu"}'] == 3000
    assert not any('resource="pods"' in name for name in seen)
    assert seen["volcano_queue_weight" + queue["research"]] == 3
    assert seen["volcano_queue_share" + queue["product"]] == 0
    document = {q["name"]: q["share"] for q in report.as_dict()["queues"]}
    assert seen["volcano_queue_share" + queue["research"]] == pytest.approx(document["research"], abs=1e-4)
    # `large` lacks 3 of 3
    assert seen['solver_sched_pending_pods{reason="Resources"}'] == 3
    assert seen['solver_sched_pending_pod_groups{reason="Resources"}'] == 1
    assert seen["volcano_unschedule_job_count"] == 1
    assert seen['volcano_unschedule_task_count{job_id="ns/large"}'] == 3
    assert seen['volcano_schedule_attempts_total{result="unschedulable"}'] == 3
    assert seen["volcano_pod_preemption_victims"] == 0


def test_levels_with_value_bound_and_gap(report: CycleReport) -> None:
    metrics = Metrics()
    metrics.observe_cycle(report)
    seen = scraped(metrics)
    start = next(level for level in report.levels if level.name.startswith("start>="))
    label = f'{{level="{start.name}"}}'
    assert seen["solver_sched_level_value" + label] == seen["solver_sched_level_bound" + label] == start.value > 0
    assert seen["solver_sched_level_gap" + label] == 0
    assert seen["solver_sched_gain_over_greedy" + label] == start.value - report.greedy_levels[start.name]
    # half of what the bound allows, and a level without a bound
    half = replace(start, value=start.value // 2, unit=0)
    metrics.observe_cycle(replace(report, levels=(half, replace(start, name="open", bound=None))))
    seen = scraped(metrics)
    assert seen["solver_sched_level_gap" + label] == pytest.approx(0.5, abs=0.01)
    assert 'solver_sched_level_value{level="open"}' in seen
    assert 'solver_sched_level_bound{level="open"}' not in seen
    # where the greedy plan stands, its values do
    metrics.observe_cycle(replace(report, winner="greedy", greedy_levels={start.name: 7}))
    seen = scraped(metrics)
    assert (seen["solver_sched_level_value" + label], seen["solver_sched_gain_over_greedy" + label]) == (7, 0)


def test_what_is_gone_takes_its_series_with_it(report: CycleReport) -> None:
    metrics = Metrics()
    metrics.observe_cycle(report)
    assert any('queue_name="product"' in name for name in scraped(metrics))
    metrics.observe_cycle(planned(RUNS, queues=("research",)))
    seen = scraped(metrics)
    assert not any('queue_name="product"' in name or "ns/large" in name or "Resources" in name for name in seen)
    metrics.leader(True)
    assert any('queue_name="research"' in name for name in scraped(metrics))
    metrics.broken_gangs(2)
    metrics.leader(False)
    assert scraped(metrics)["solver_sched_broken_gangs"] == 0
    metrics.observe_cycle(report)  # the lead was lost while this one was planned
    metrics.broken_gangs(2)
    seen = scraped(metrics)
    assert (seen["solver_sched_leader"], seen["solver_sched_broken_gangs"]) == (0, 0)
    assert not any("queue_name=" in name or "level=" in name for name in seen)
    assert seen["solver_sched_cycle_seconds_count"] == 3
    metrics.leader(True)
    metrics.observe_cycle(report)
    assert any("queue_name=" in name for name in scraped(metrics))


def test_only_those_that_lack_most_have_a_series_of_their_own() -> None:
    """LISTED + 50 gangs of 9 to 11 cpu on 8: all are counted, those of 3 are listed first."""
    gangs = [gang(f"g{i:03}", "product", 3 if i < 10 else 1, 9000) for i in range(LISTED + 50)]
    metrics = Metrics()
    metrics.observe_cycle(run_cycle(snapshot(*gangs), load_policy("volcano"), HERE, solver="greedy"))
    seen = scraped(metrics)
    listed = {name: value for name, value in seen.items() if name.startswith("volcano_unschedule_task_count")}
    assert len(listed) == LISTED
    assert all(listed[f'volcano_unschedule_task_count{{job_id="ns/g{i:03}"}}'] == 3 for i in range(10))
    assert seen["volcano_unschedule_job_count"] == LISTED + 50


def test_a_lost_solver_and_a_refused_plan_are_counted(monkeypatch: pytest.MonkeyPatch, report: CycleReport) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no")

    metrics = Metrics()
    monkeypatch.setattr(solving, "solve", broken)
    metrics.observe_cycle(planned(FITS))
    seen = scraped(metrics)
    assert (seen["solver_sched_solver_lost_total"], seen["solver_sched_plan_refused_total"]) == (1, 0)
    assert seen['solver_sched_cycles_total{result="greedy"}'] == 1
    metrics.observe_cycle(replace(report, refused=(Violation("gang", "1 of 2 placed"),)))
    metrics.cycle_failed()
    seen = scraped(metrics)
    assert (seen["solver_sched_solver_lost_total"], seen["solver_sched_plan_refused_total"]) == (1, 1)
    assert seen['solver_sched_cycles_total{result="refused"}'] == 1
    assert seen['solver_sched_cycles_total{result="failed"}'] == 1
    assert seen['solver_sched_cycles_total{result="optimal"}'] == 0


def test_evictions_are_victims_and_attempts() -> None:
    """A pod of priority 0 fills the node; one of 100 in the same queue needs it: one victim, for one group."""
    low = gang("low", "research", 1, 8000, node="n")
    high = gang("high", "research", 1, 8000)
    high["pods"] = tuple(struct_replace(pod, priority=100) for pod in high["pods"])
    high["groups"] = tuple(struct_replace(group, priority=100) for group in high["groups"])
    metrics = Metrics()
    report = run_cycle(snapshot(low, high), load_policy("volcano-preempting"), HERE)
    evicted = [one for one in report.decisions if type(one).__name__ == "Evict"]
    metrics.observe_cycle(report)
    seen = scraped(metrics)
    assert len(evicted) == 1
    assert (seen["volcano_pod_preemption_victims"], seen["volcano_total_preemption_attempts"]) == (1, 1)
    # `high` waits for the room, `low` runs no more
    assert seen["volcano_unschedule_job_count"] == 2
    metrics.observe_cycle(planned(FITS))
    seen = scraped(metrics)
    assert (seen["volcano_pod_preemption_victims"], seen["volcano_total_preemption_attempts"]) == (0, 1)


def test_what_happens_between_cycles() -> None:
    metrics = Metrics()
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (metrics.decision, ("Bind", "ok")),
        (metrics.decision, ("Bind", "conflict")),
        (metrics.decision, ("Evict", "refused")),
        (metrics.api, ("POST", "201", 0.02)),
        (metrics.api, ("POST", "lost", 10.0)),
        (metrics.now, ({"Pod": 50_000, "Gone": 1}, {"Pod": 0.5}, {"Binding": 4}, 0)),
        (metrics.now, ({"Pod": 50_001}, {"Pod": 0.25}, {"Binding": 3}, 7)),
        (metrics.relist, ("Pod", "expired")),
        (metrics.broken_gangs, (2,)),
        (metrics.leader, (True,)),
        (metrics.policy_reloaded, (False,)),
    ]
    for call, arguments in calls:
        call(*arguments)
    seen = scraped(metrics)
    expected = {
        'solver_sched_decisions_total{kind="Bind",result="ok"}': 1,
        'solver_sched_decisions_total{kind="Admit",result="ok"}': 0,
        'solver_sched_decisions_total{kind="Evict",result="refused"}': 1,
        'volcano_schedule_attempts_total{result="scheduled"}': 1,
        'volcano_schedule_attempts_total{result="error"}': 1,
        'solver_sched_api_requests_total{code="201",verb="POST"}': 1,
        'solver_sched_api_requests_total{code="lost",verb="POST"}': 1,
        'solver_sched_api_seconds_count{verb="POST"}': 2,
        'solver_sched_cache_objects{kind="Pod"}': 50_001,
        'solver_sched_cache_lag_seconds{kind="Pod"}': 0.25,
        'solver_sched_pods{state="Binding"}': 3,
        "solver_sched_events_dropped": 7,
        'solver_sched_cache_relists_total{kind="Pod",reason="expired"}': 1,
        "solver_sched_broken_gangs": 2,
        "solver_sched_leader": 1,
        'solver_sched_policy_reloads_total{result="refused"}': 1,
    }
    assert {name: seen[name] for name in expected} == expected
    assert not any("Gone" in name for name in seen)


def test_the_names_are_those_of_every_scrape(report: CycleReport) -> None:
    metrics = Metrics()
    metrics.observe_cycle(report)
    metrics.api("GET", "200", 0.1)
    names = {name.partition("{")[0] for name in scraped(metrics)}
    assert names <= NAMES
    assert {"solver_sched_cycle_seconds_bucket", "volcano_total_preemption_attempts", "process_open_fds"} <= NAMES
    assert all(re.fullmatch(r"(solver_sched|volcano|process)_[a-z0-9_]+", name) for name in NAMES)


def test_both_formats_of_prometheus(report: CycleReport) -> None:
    metrics = Metrics()
    metrics.observe_cycle(report)
    plain, body = metrics.exposition()
    assert plain.startswith("text/plain; version=")
    assert b"# TYPE volcano_queue_share gauge" in body
    openmetrics, body = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert openmetrics.startswith("application/openmetrics-text; version=1.0.0")
    assert len(list(parse_openmetrics(body.decode()))) > 30  # type: ignore[no-untyped-call]


def test_two_schedulers_in_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.leader(True)
    assert (scraped(one)["solver_sched_leader"], scraped(other)["solver_sched_leader"]) == (1, 0)


def test_a_cycle_with_1000_groups_costs_under_5_ms() -> None:
    """11,000 pods on 1,000 nodes. The least of ten: others on the machine can only add to it."""
    generated = read_objects(generate(nodes=1000, gangs=1000, seed=1))
    report = run_cycle(generated, load_policy("volcano"), Budget(10.0, apart=False), solver="greedy")
    assert len(report.index.members) >= 1000
    metrics = Metrics()

    def spent() -> float:
        start = time.thread_time()
        metrics.observe_cycle(report)
        return time.thread_time() - start

    assert min(spent() for _ in range(10)) < 0.005

"""How much better than greedy a plan is: on generated clusters and on recorded ones, with the gap that stays open.

    python -m benchmarks.quality --results FILE [--recorded FOLDER] [--seeds 0-9] > benchmarks/quality.md

generated     `simulate.generate` in the SETTINGS below, every seed: pending gangs ask for about twice the free GPUs, so
              who starts is a choice.
recorded      the snapshots of FOLDER as benchmarks/peers.py reads them, of its kinds without evictions, each with the
              policy that it was recorded with. What Volcano and KAI decided on them: peers.md.

Method: one `run_cycle` each, in this process (`Budget.apart` False), so greedy and optimal stand on the same problem.
The budget of LIMIT seconds is counted in processor seconds: what else runs on the machine shortens no search. Both
plans are replayed by the verifier and evaluated at every level by `levels.evaluate`, which reads a plan and no solve.

- value started: sum of the start values (models/formulation.md 2: dominant share) of gangs that reach their minimum, as
  a share of the value of all that wait, whatever their priority and queue. Levels weigh it priority by priority, and
  first the queues' shares: a plan that is better in an earlier level may start less in sum.
- gap: the largest of the levels down to disruption; a deficit within one smallest unit counts as closed, a deficit that
  is open counts as 100 %, since a share of a bound near 0 says nothing.

Demands, asserted as it runs: no plan breaks a rule; the plan returned is never below greedy's in the first level that
differs. One line of JSON per cluster is appended to FILE as it comes and is not measured again: a run can be stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml

from benchmarks.machine import machine
from benchmarks.peers import read as read_recorded
from solver_sched import cycle, load_policy, load_snapshot
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, CycleReport, run_cycle
from solver_sched.model import effort, search
from solver_sched.model.effort import Clock, Effort, beats
from solver_sched.model.levels import evaluate
from solver_sched.plugins.rules import Rules
from solver_sched.policy import Policy
from solver_sched.problem.arrays import Plan, Problem
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot
from solver_sched.verify import violations

Json = dict[str, Any]

LIMIT = 10.0
"""Processor seconds of one cycle."""
SETTINGS: Mapping[str, Json] = {
    "60 nodes, 30 gangs": {"nodes": 60, "gangs": 30},
    "60 nodes, 30 gangs, 1 queue": {"nodes": 60, "gangs": 30, "queues": 1},
    "100 nodes, 40 gangs": {"nodes": 100, "gangs": 40},
    "100 nodes, 40 gangs, 3 queues": {"nodes": 100, "gangs": 40, "queues": 3},
    "100 nodes, 40 gangs, distinct nodes": {"nodes": 100, "gangs": 40, "distinct": True},
    "300 nodes, 120 gangs": {"nodes": 300, "gangs": 120},
    "1,000 nodes, 400 gangs": {"nodes": 1000, "gangs": 400},
}
EVICTING_KINDS = ("priority", "reclaim")
BEST_EFFORT = ("balance", "promised", "order")
STAGES = ("encode", "greedy", "solve", "verify")


# -- what a cycle achieved --------------------------------------------------------------------------------------------


@contextmanager
def processor_clock() -> Iterator[None]:
    """Budgets in processor seconds of this process. CP-SAT's and HiGHS's own limits stay what they are: deterministic
    time, and wall time as the safety net.
    """
    clock = SimpleNamespace(monotonic=time.process_time, perf_counter=time.process_time)
    with (
        patch.object(cycle, "time", clock),
        patch.object(effort, "time", clock),
        patch.object(search, "time", clock),
    ):
        yield


def planned(snapshot: Snapshot, policy: Policy, seconds: float, solver: str = "optimal") -> CycleReport:
    """One cycle whose plans keep every rule; AssertionError otherwise."""
    with processor_clock():
        report = run_cycle(snapshot, policy, Budget(seconds, apart=False), solver)
    broken = [
        f"{whose} plan: {violation.message}"
        for whose, made in (("returned", report.plan), ("greedy", report.greedy))
        for violation in violations(report.problem, report.rules, made)
    ]
    assert not broken, broken
    assert not report.refused, report.refused
    return report


def values(report: CycleReport, plan: Plan) -> dict[str, int]:
    """What a plan of the cycle reaches at each level, down to disruption."""
    levels = evaluate(report.problem, report.rules, plan, Effort())
    return {level.name: level.value for level in levels if level.name not in BEST_EFFORT}


def first_difference(greedy: Mapping[str, int], ours: Mapping[str, int]) -> tuple[str, int, int] | None:
    """The first level at which two plans of one problem differ, with greedy's value and ours. A deficit that one of
    them leaves out is closed there.
    """
    return next(((name, greedy[name], ours[name]) for name in ours if greedy.get(name, ours[name]) != ours[name]), None)


def start_value(problem: Problem, rules: Rules, plan: Plan) -> int:
    """Value of the jobs that the plan starts; a job that runs its minimum already counts 0."""
    started = (rules.need > 0) & (plan.of_jobs(problem) >= rules.need)
    return int(rules.start_value[started].sum())


def waiting_value(rules: Rules) -> int:
    """Value of all jobs that wait to start."""
    return int(rules.start_value[rules.need > 0].sum())


def used(problem: Problem, plan: Plan, resource: str) -> float:
    """Share of a resource in use once the plan runs, 0 where the cluster has none."""
    if resource not in problem.resources:
        return 0.0
    r = problem.resources.index(resource)
    new = int((plan.count * problem.request[problem.set_shape[plan.pod_set], r]).sum())
    return float((problem.node_alloc[:, r] - problem.node_free[:, r]).sum() + new) / max(1, int(problem.total[r]))


def side(report: CycleReport, plan: Plan) -> Json:
    """What a plan of the cycle achieves, in numbers."""
    problem, rules = report.problem, report.rules
    placed = plan.of_jobs(problem)
    return {
        "gangs": int(((rules.need > 0) & (placed >= rules.need)).sum()),
        "pods": int(placed.sum()),
        "value": start_value(problem, rules, plan) / max(1, waiting_value(rules)),
        "gpu": used(problem, plan, "nvidia.com/gpu"),
        "cpu": used(problem, plan, "cpu"),
        "levels": values(report, plan),
    }


def largest_gap(report: CycleReport) -> tuple[str, float]:
    """(level, gap from 0 to 1) of the level that is open the widest, down to disruption."""
    gaps = [
        (level.name, float(level.gap > 0) if level.unit else min(1.0, level.gap))
        for level in report.levels
        if level.name not in BEST_EFFORT
    ]
    return max(gaps, key=lambda one: one[1], default=("no level", 1.0))


def compared(snapshot: Snapshot, policy: Policy, seconds: float = LIMIT) -> Json:
    """Greedy beside optimal on one snapshot. AssertionError where the plan returned is below greedy's."""
    report = planned(snapshot, policy, seconds)
    greedy, ours = side(report, report.greedy), side(report, report.plan)
    differs = first_difference(greedy["levels"], ours["levels"])
    assert differs is None or differs[2] > differs[1], f"below greedy at {differs}"
    level, gap = largest_gap(report)
    return {
        "waiting": int((report.rules.need > 0).sum()),
        "greedy": greedy,
        "ours": ours,
        "first": list(differs) if differs else None,
        "behind": beats(greedy["levels"], report.levels),
        "gap": gap,
        "open": level if gap else "",
        "optimal": all(one.value == one.bound or one.gap == 0 for one in report.levels if one.name not in BEST_EFFORT),
        "seconds": sum(report.seconds[stage] for stage in STAGES),
        "greedy_seconds": report.seconds["greedy"],
    }


# -- results that outlive the run -------------------------------------------------------------------------------------


def lines(results: Path) -> dict[str, Json]:
    """What was measured already, by its key."""
    if not results.exists():
        return {}
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {row["key"]: row for row in rows}


def resumed(results: Path, parts: Mapping[str, Callable[[], Json]], clock: Clock) -> dict[str, Json]:
    """Measure what `results` does not have, each appended as soon as it is known, none begun when the clock is over.
    The rows that there are by key, in order.
    """
    known = lines(results)
    for key, measure in parts.items():
        if key in known or clock.over():
            continue
        known[key] = {"key": key, **measure()}
        with results.open("a") as out:
            out.write(json.dumps(known[key]) + "\n")
    return {key: known[key] for key in parts if key in known}


def measuring(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark that can be stopped."""
    parser.add_argument("--results", type=Path, required=True, help="lines of JSON, appended to; kept ones stand")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after; 0 = only report")


# -- the report -------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Markdown, first column left, others right."""
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def family(level: str) -> str:
    """A level without its priority and depth: `in-share.deficit[2]>=2000` -> `in-share.deficit`."""
    return level.partition(">")[0].partition("[")[0]


def summary(name: str, rows: Sequence[Json]) -> list[str]:
    """One line for the seeds of a setting: greedy -> optimal."""

    def mean(what: str) -> str:
        sides = (statistics.mean(row[whose][what] for row in rows) for whose in ("greedy", "ours"))
        return " -> ".join(f"{value:.1%}" for value in sides)

    def total(what: str) -> str:
        return " -> ".join(f"{sum(row[whose][what] for row in rows):,}" for whose in ("greedy", "ours"))

    at = Counter(family(row["first"][0]) for row in rows if row["first"])
    seconds = [row["seconds"] for row in rows]
    worst = max(rows, key=lambda row: float(row["gap"]))
    return [
        name,
        f"{at.total()} of {len(rows)}",
        ", ".join(f"{level} {count}" for level, count in at.most_common()) or "-",
        total("gangs"),
        mean("value"),
        mean("gpu"),
        mean("cpu"),
        f"{sum(row['optimal'] for row in rows)} of {len(rows)}",
        f"{worst['gap']:.2%}" + (f" ({worst['open']})" if worst["open"] else ""),
        f"{statistics.median(seconds):.2f} ({max(seconds):.2f})",
        f"{statistics.median(row['seconds'] / max(1e-3, row['greedy_seconds']) for row in rows):.0f}",
    ]


HEAD = [
    "",
    "better",
    "first at",
    "gangs started",
    "value started",
    "GPU in use",
    "CPU in use",
    "proven",
    "largest gap",
    "s: median (most)",
    "x greedy",
]


def report(generated: Mapping[str, Sequence[Json]], recorded: Mapping[str, Json], command: str) -> Iterator[str]:
    """The tables, as Markdown."""
    everything = [*(row for rows in generated.values() for row in rows), *recorded.values()]
    yield "# Decision quality: greedy and optimal on one snapshot\n"
    yield f"`{command}`, {machine()}.\n"
    yield f"Method: the head of [quality.py](quality.py). {LIMIT:.0f} processor s a cycle. `a -> b`: greedy's, ours."
    yield "Every plan was verified, and none returned is below greedy's in the first level that differs.\n"
    yield "## Generated clusters\n"
    yield "A line sums over its seeds or gives their mean; `x greedy`: time of a cycle over that of its greedy stage.\n"
    yield from table(HEAD, [summary(name, rows) for name, rows in generated.items() if rows])
    if recorded:
        yield "\n## Recorded clusters\n"
        yield "Beside Volcano and KAI on the same files: [peers.md](peers.md).\n"
        yield from table(HEAD, [summary(name, [row]) for name, row in recorded.items()])
    yield "\n## Where optimal is not ahead in every count\n"
    behind = sum(row["behind"] for row in everything)
    fewer = {key: sum(row["ours"][key] < row["greedy"][key] for row in everything) for key in ("gangs", "value", "gpu")}
    yield f"Of {len(everything)} clusters:\n"
    yield f"- {sum(row['first'] is None for row in everything)}: greedy's plan reaches every level as ours does;"
    yield f"- {behind}: the search was behind greedy when its time ended, and greedy's plan is returned;"
    yield f"- {fewer['gangs']}: fewer gangs start than under greedy: no level counts gangs, they weigh by their size;"
    yield f"- {fewer['value']}: less value starts in sum, because a queue's share or a higher priority comes first;"
    yield f"- {fewer['gpu']}: fewer GPUs are in use, for the same reason;"
    yield f"- {sum(not row['optimal'] for row in everything)}: not every level is proven."


def seeds_of(text: str) -> list[int]:
    """`0-9` or `3`."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    """Measure what is missing, print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring(parser)
    parser.add_argument("--recorded", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", default="0-9")
    arguments = parser.parse_args()
    seeds, clock = seeds_of(arguments.seeds), Clock(60 * arguments.minutes)

    def cluster(setting: Json, seed: int) -> Json:
        return compared(read_objects(generate(seed=seed, **setting)), load_policy())

    def file(path: Path) -> Json:
        return compared(load_snapshot(path), load_policy(yaml.safe_load(read_recorded(path)["policy"])))

    paths = sorted(arguments.recorded.glob("*.json*")) if arguments.recorded else []
    files = {path.name.partition(".")[0]: path for path in paths if not path.name.startswith(EVICTING_KINDS)}
    recorded = resumed(arguments.results, {name: partial(file, path) for name, path in files.items()}, clock)
    generated: dict[str, list[Json]] = {}
    for name, setting in SETTINGS.items():
        parts = {f"{name}, seed {seed}": partial(cluster, setting, seed) for seed in seeds}
        generated[name] = list(resumed(arguments.results, parts, clock).values())
    command = (
        f"python -m benchmarks.quality --results FILE{' --recorded FOLDER' if files else ''} --seeds {arguments.seeds}"
    )
    print("\n".join(report(generated, recorded, command)))


if __name__ == "__main__":
    main()

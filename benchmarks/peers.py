"""Our plan beside what Volcano and KAI decided on the same snapshot under the same policy.

    python -m benchmarks.peers FOLDER > benchmarks/peers.md

FOLDER holds files NAME.json or NAME.json.gz, each one `v1` List of the objects that were in the cluster, with beside
`items`

    "policy":   the scheduler's configuration, as text
    "volcano":  {"bindings": {"namespace/pod": "node"}, "gone": ["namespace/pod"], "secondsToLastBind": 2.1}
    "kai":      the same; either may be missing

bindings: where the pods that run at the end were placed; gone: pods that were evicted, its own among them.
Without FOLDER nothing is measured: the peers' decisions are no part of this project.

Method: objects and policy go through the readers of the command line. The worker process is warm: one cycle on the
file before those that count. RUNS cycles per file; seconds are those from the parsed snapshot to the verified plan
(encode, greedy, solve, verify). A peer's decisions are read back as a plan by the code of `plan --evaluate`: which
rules it breaks, and its value at each level. Pods, gangs and use are counted from the objects, not from our arrays.
Where a peer evicted, its plan answers another question than these policies ask, so only its counts are shown.

Demands, each checked (exit 1 if one is not met):
- ours keeps every rule, judged as a peer's plan has the values that its document says, and no node is over capacity;
- ours is not below Volcano's, nor KAI's where it evicted nothing, in the first level that differs, beyond our gap
  there, and no peer is above our bound there;
- GPUs in use are not below Volcano's unless a level asks for another plan: the first that differs, if ours is above;
- every level to disruption is proven, or its gap is below MOST_GAP (a deficit: less than one smallest unit);
- LIMIT_SECONDS by number of nodes, for the best run: the machine that wrote the table was shared with other work.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import machine
from solver_sched import load_policy, load_snapshot, run_cycle
from solver_sched.cli.evaluation import judged
from solver_sched.cycle import Budget
from solver_sched.snapshot import Snapshot

Json = dict[str, Any]

RUNS = 3
MOST_GAP = 0.001
LIMIT_SECONDS = {300: 0.6, 1000: 2.0}
"""Nodes -> seconds; other sizes are measured and not judged."""
PEERS = ("volcano", "kai")
STAGES = ("encode", "greedy", "solve", "verify")


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a decision achieved. `gangs`: of those that did not run yet, how many reach their minimum; `use`: share of
    each resource in use at the end; `overfull`: nodes that hold more than they have.
    """

    gangs: int
    pods: int
    use: Mapping[str, float]
    gpus: int
    overfull: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first level at which a peer's value is not ours."""

    level: str
    ours: int
    theirs: int
    bound: int
    within_gap: bool

    def __str__(self) -> str:
        close = " (within our gap)" if self.within_gap else ""
        return f"{self.level}: {self.ours:,} to {self.theirs:,}, bound {self.bound:,}{close}"


@dataclass(frozen=True, slots=True)
class Row:
    """One file: our document, the smallest unit of each level (0 = 1), seconds per run and the greedy baseline's in the
    same run, and the peers' documents.
    """

    name: str
    snapshot: Snapshot
    document: Json
    units: Mapping[str, int]
    seconds: tuple[float, ...]
    greedy: tuple[float, ...]
    ours: Achieved
    peers: Mapping[str, Achieved]
    recorded: Mapping[str, Json]
    judged: Mapping[str, Json]

    def deciding(self) -> list[Json]:
        """Our levels to disruption: those below are best effort."""
        names = [level["name"] for level in self.document["levels"]]
        last = names.index("disruption") if "disruption" in names else len(names)
        levels: list[Json] = self.document["levels"][: last + 1]
        return levels

    def difference(self, peer: str) -> Difference | None:
        """Against a peer that evicted nothing and broke no rule; None where all values agree or nothing compares."""
        theirs = {level["name"]: level["value"] for level in self.judged[peer]["levels"]} if peer in self.judged else {}
        for level in self.deciding():
            name, ours, bound = level["name"], level["value"], level["bound"]
            if name in theirs and theirs[name] != ours:
                return Difference(name, ours, theirs[name], bound, ours < theirs[name] <= bound)
        return None


def read(path: Path) -> Json:
    """The decoded file."""
    data = path.read_bytes()
    decoded: Json = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return decoded


def measure(path: Path) -> Row:
    """Plan a file RUNS times and judge what the peers decided on it."""
    recorded = read(path)
    snapshot = load_snapshot(path)
    policy = load_policy(yaml.safe_load(recorded["policy"]))
    run_cycle(snapshot, policy, Budget())
    reports = [run_cycle(snapshot, policy, Budget()) for _ in range(RUNS)]
    document = reports[-1].as_dict()
    bindings = {row["pod"]: row["node"] for row in document["decisions"] if row["kind"] == "Bind"}
    peers = {peer: recorded[peer] for peer in PEERS if peer in recorded}
    return Row(
        path.name.partition(".")[0],
        snapshot,
        document,
        {level.name: level.unit for level in reports[-1].levels},
        tuple(sum(report.seconds[stage] for stage in STAGES) for report in reports),
        tuple(report.seconds["greedy"] for report in reports),
        achieved(snapshot, bindings, []),
        {name: achieved(snapshot, peer["bindings"], peer["gone"]) for name, peer in peers.items()},
        peers,
        {
            name: judged(snapshot, policy, peer["bindings"], peer["gone"])
            for name, peer in [*peers.items(), ("ours", {"bindings": bindings, "gone": []})]
            if not peer["gone"]
        },
    )


def achieved(snapshot: Snapshot, bindings: Mapping[str, str], gone: list[str]) -> Achieved:
    """Count from the objects: pods that run already or are bound, but for those that are gone."""
    allocatable = {node.name: dict(node.allocatable) for node in snapshot.nodes}
    load: dict[str, Counter[str]] = {name: Counter() for name in allocatable}
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for pod in snapshot.pods:
        if pod.finished:
            continue
        before[pod.group or pod.key] += pod.node is not None
        node = None if pod.key in gone else pod.node or bindings.get(pod.key)
        if node in load:
            after[pod.group or pod.key] += 1
            load[node].update(dict(pod.needs.request))
    total = sum((Counter(amounts) for amounts in allocatable.values()), Counter())
    used = sum(load.values(), Counter())
    return Achieved(
        sum(before[group.key] < group.min_member <= after[group.key] for group in snapshot.groups),
        len(bindings),
        {name: used[name] / total[name] for name in total},
        used["nvidia.com/gpu"],
        sum(any(held[name] > allocatable[node].get(name, 0) for name in held) for node, held in load.items()),
    )


def unmet(row: Row) -> Iterator[str]:
    """Every demand that this file does not meet, with its numbers."""
    for line in row.judged["ours"]["violations"]:
        yield f"our plan breaks a rule: {line}"
    if row.ours.overfull:
        yield f"{row.ours.overfull} nodes hold more than they have"
    if row.document["certificate"]["gap"] is None:
        yield f"no certificate: {'; '.join(row.document['notes'])}"
        return
    for peer in row.judged:
        unsettled = [level["name"] for level in row.judged[peer]["levels"] if level["status"] != "GIVEN"]
        if unsettled:
            yield f"the values of {peer} are not settled from {unsettled[0]} on"
        difference = row.difference(peer)
        if difference is None:
            continue
        if difference.theirs > difference.bound:
            yield f"{peer} is above our bound, so the bound is wrong: {difference}"
        elif peer == "ours":
            yield f"our plan, judged, has another value than its document says: {difference}"
        elif difference.theirs > difference.ours and _gap(row, difference.level) >= MOST_GAP:
            yield f"below {peer} by more than {MOST_GAP:.1%}: {difference}"
    if "volcano" in row.peers and row.ours.gpus < row.peers["volcano"].gpus:
        asked = row.difference("volcano")
        if asked is None or asked.ours < asked.theirs:
            yield f"{row.ours.gpus} GPUs in use, Volcano {row.peers['volcano'].gpus}, and no level asks for that"
    for level in row.deciding():
        if _gap(row, level["name"]) >= MOST_GAP:
            gap = f"{_gap(row, level['name']):.3%}"
            yield f"{level['name']} is open by {gap}: value {level['value']:,}, bound {level['bound']:,}"
    limit = LIMIT_SECONDS.get(len(row.snapshot.nodes))
    if limit is not None and min(row.seconds) >= limit:
        yield f"{min(row.seconds):.2f} s, limit {limit} s"


def _gap(row: Row, name: str) -> float:
    """From 0 to 1. A deficit is closed within one smallest unit and else open (1.0): a share of 0 says nothing."""
    (level,) = (level for level in row.document["levels"] if level["name"] == name)
    bound = level["bound"]
    apart = float("inf") if bound is None else abs(bound - level["value"])
    if row.units[name]:
        return float(apart >= row.units[name])
    return float(min(1.0, apart / max(1, abs(bound or 0))))


# -- the report -------------------------------------------------------------------------------------------------------


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _seconds(values: tuple[float, ...], median: bool = True) -> str:
    return f"{min(values):.2f}" + (f" ({statistics.median(values):.2f})" if median else "")


def _counts(rows: list[Row]) -> Iterator[str]:
    """Ours, Volcano's, KAI's in one cell."""

    def cell(row: Row, count: str, resource: str = "") -> str:
        sides = [row.ours, *(row.peers.get(peer) for peer in PEERS)]
        return " / ".join(
            "-" if side is None else _percent(side.use.get(resource, 0.0)) if resource else f"{getattr(side, count):,}"
            for side in sides
        )

    head = ["file", "gangs started", "pods bound", "GPUs in use", "GPU", "CPU", "evicted"]
    body = [
        [
            row.name,
            cell(row, "gangs"),
            cell(row, "pods"),
            cell(row, "gpus"),
            cell(row, "", "nvidia.com/gpu"),
            cell(row, "", "cpu"),
            " / ".join(["0", *(str(len(row.recorded[p]["gone"])) if p in row.recorded else "-" for p in PEERS)]),
        ]
        for row in rows
    ]
    yield from _table(head, body)


def _times(rows: list[Row]) -> Iterator[str]:
    head = ["file", "nodes", "pods", "ours, s: best (median)", "x greedy", "Volcano, s", "KAI, s", "limit, s"]
    body = []
    for row in rows:
        ratio = statistics.median(ours / greedy for ours, greedy in zip(row.seconds, row.greedy, strict=True))
        last = [f"{row.recorded[p]['secondsToLastBind']:.0f}" if p in row.recorded else "-" for p in PEERS]
        limit = LIMIT_SECONDS.get(len(row.snapshot.nodes))
        sizes = [f"{len(row.snapshot.nodes):,}", f"{len(row.snapshot.pods):,}"]
        body.append([row.name, *sizes, _seconds(row.seconds), f"{ratio:.1f}", *last, str(limit or "")])
    yield from _table(head, body)


def _comparison(row: Row, peer: str) -> str:
    if peer not in row.recorded:
        return "-"
    if row.recorded[peer]["gone"]:
        return "evicted"
    if row.judged[peer]["violations"]:
        return f"breaks {len(row.judged[peer]['violations'])} rules"
    difference = row.difference(peer)
    return "equal" if difference is None else str(difference)


def _levels(row: Row) -> Iterator[str]:
    theirs = {
        peer: {level["name"]: level["value"] for level in row.judged[peer]["levels"]} if peer in row.judged else {}
        for peer in PEERS
    }
    head = ["level", "ours", "bound", "gap", "status", "greedy", "Volcano", "KAI"]
    body = []
    for level in row.deciding():
        name, greedy = level["name"], level["greedy"]
        body.append(
            [
                name,
                f"{level['value']:,}",
                f"{level['bound']:,}",
                f"{_gap(row, name):.4%}",
                level["status"],
                "-" if greedy is None else f"{greedy:,}",
                *(f"{theirs[peer][name]:,}" if name in theirs[peer] else "-" for peer in PEERS),
            ]
        )
    yield from _table(head, body)


def report(rows: list[Row], missed: Mapping[str, list[str]], only: str) -> Iterator[str]:
    """The whole table, as Markdown. `only`: the kinds that were asked for."""
    yield "# Beside Volcano and KAI\n"
    yield f"`python -m benchmarks.peers FOLDER{f' --only {only}' if only else ''}`, {machine()}.\n"
    yield "Method, format of the input and demands: benchmarks/peers.py. Three figures in a cell: ours / Volcano / KAI."
    yield "Gangs, pods and use count each for itself; no level counts gangs, the levels weigh them by size.\n"
    yield "## What was achieved\n"
    yield from _counts(rows)
    yield "\n## The first level that differs: ours to theirs\n"
    head = ["file", "Volcano", "KAI", "certificate"]
    body = [[r.name, _comparison(r, "volcano"), _comparison(r, "kai"), _certificate(r)] for r in rows]
    yield from _table(head, body)
    yield "\n## From the parsed snapshot to the verified plan\n"
    yield from _times(rows)
    yield "\nThe peers' seconds run from their start to their last bind, with a real API server: another quantity."
    fewer = [row for row in rows if "volcano" in row.peers and row.ours.gpus < row.peers["volcano"].gpus]
    if fewer:
        yield "\n## Fewer GPUs than Volcano, because a level asks for another plan\n"
        head = ["file", "GPUs, ours", "GPUs, Volcano", "level"]
        body = [
            [r.name, str(r.ours.gpus), str(r.peers["volcano"].gpus), str(r.difference("volcano") or "none")]
            for r in fewer
        ]
        yield from _table(head, body)
    yield "\n## Demands not met\n"
    lines = [f"- {name}: {text}" for name, texts in missed.items() for text in texts]
    yield from lines or ["None."]
    yield "\n## Every level to disruption"
    for row in rows:
        yield f"\n{row.name}\n"
        yield from _levels(row)


def _certificate(row: Row) -> str:
    certificate = row.document["certificate"]
    at = f" at {certificate['level']}" if "level" in certificate else ""
    gap = f", {certificate['gap']:.4%}{at}" if certificate["status"] == "gap" else ""
    return f"{certificate['status']}{gap}, {certificate['winner']}'s plan"


def main() -> None:
    """Print the report; exit 1 if a demand is not met, 2 if the folder holds nothing to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="kinds, comma-separated: the first word of the file names")
    arguments = parser.parse_args()
    if arguments.folder is None:
        print("no FOLDER of peers' decisions given: nothing to compare with", file=sys.stderr)
        return
    kinds = [kind for kind in arguments.only.split(",") if kind]
    paths = sorted(path for path in arguments.folder.glob("*.json*") if not kinds or path.name.split("-")[0] in kinds)
    if not paths:
        parser.error(f"no NAME.json or NAME.json.gz in {arguments.folder}")
    rows = []
    for path in paths:
        print(path.name, file=sys.stderr)
        rows.append(measure(path))
    missed = {row.name: texts for row in rows if (texts := list(unmet(row)))}
    print("\n".join(report(rows, missed, arguments.only)))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()

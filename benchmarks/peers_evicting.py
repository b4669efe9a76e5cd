"""Our evictions beside those of Volcano and KAI on the same snapshot under the same policy.

    python -m benchmarks.peers_evicting FOLDER > benchmarks/peers_evicting.md

FOLDER holds files as benchmarks/peers.py reads them, of the kinds `priority` (actions with preempt) and `reclaim`.
Without FOLDER nothing is measured: the peers' decisions are no part of this project.

Method: the worker process is warm: one cycle on the file before the RUNS cycles that count; seconds from the parsed
snapshot to the verified plan. What a side achieved is counted from the objects once its victims have gone and its
placements run: ours by one plan, theirs by all the cycles they took.
- value started >= P: sum of the start values (models/formulation.md 2) of gangs of priority P and more that did not
  run and now reach their minimum, as a share of the value of all that wait there;
- largest deficit: over queues and contended resources with deserved > 0, of (deserved - use) / deserved;
- gangs killed: ran their minimum and run less now; left half: run some pods, but less than their minimum.
Rounds: bound pods run, evicted ones are gone, and it is planned again, until a plan decides nothing (at most ROUNDS).

Demands, each checked (exit 1 if one is not met):
- each level but the best-effort ones is proven or its gap is below MOST_GAP, and no gang is left half running;
- the rounds end;
- priority: value started >= P not below that of a peer, for every P down to the first where ours is above; gangs
  killed and pods evicted at most half of the better peer's, or the levels are proven, so that each was forced (and is
  named);
- reclaim: largest deficit not above a peer's; not more gangs killed and fewer pods evicted than a peer that ends with
  the same or a larger deficit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.machine import machine
from benchmarks.peers import PEERS, STAGES, Json, read
from benchmarks.speed import gaps
from solver_sched import load_policy, load_snapshot, run_cycle
from solver_sched.actions.enqueue import posed
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget, CycleReport
from solver_sched.plugins.rules import Rules
from solver_sched.policy import Policy
from solver_sched.problem.arrays import Index, Problem
from solver_sched.snapshot import Snapshot
from tests.story import After, Expect, carried_out

KINDS = ("priority", "reclaim")
RUNS = 3
ROUNDS = 8
MOST_GAP = 0.005


@dataclass(frozen=True, slots=True)
class Outcome:
    """`value`: by name of the rank, share of what waits there or above; `killed`, `half`: gangs by name."""

    started: int
    value: Mapping[str, float]
    deficit: float
    worst: str
    killed: tuple[str, ...]
    half: tuple[str, ...]
    evicted: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Row:
    """One file. `rounds`: evictions and starts of every plan until one decides nothing, that one left out; `fixed`:
    whether there was one.
    """

    name: str
    seconds: tuple[float, ...]
    document: Json
    gaps: Mapping[str, float]
    ours: Outcome
    peers: Mapping[str, Outcome]
    rounds: tuple[tuple[int, int], ...]
    fixed: bool

    @property
    def gap(self) -> tuple[str, float]:
        return max(self.gaps.items(), key=lambda one: one[1], default=("", 0.0))


def measure(path: Path) -> Row:
    recorded = read(path)
    snapshot, policy = load_snapshot(path), load_policy(yaml.safe_load(recorded["policy"]))
    run_cycle(snapshot, policy, Budget())
    reports = [run_cycle(snapshot, policy, Budget()) for _ in range(RUNS)]
    document = reports[-1].as_dict()
    units = {level.name: level.unit for level in reports[-1].levels}
    problem, index, rules = posed(snapshot, policy, {}, ())
    bound, gone = _decided(document)
    rounds = list(_rounds(recorded["items"], reports[-1], policy))
    return Row(
        path.name.partition(".")[0],
        tuple(sum(report.seconds[stage] for stage in STAGES) for report in reports),
        document,
        dict(gaps(document, units)),
        outcome(snapshot, problem, index, rules, bound, gone),
        {
            peer: outcome(snapshot, problem, index, rules, recorded[peer]["bindings"], recorded[peer]["gone"])
            for peer in PEERS
            if peer in recorded
        },
        tuple(one for one in rounds if any(one)),
        not any(rounds[-1]),
    )


def outcome(
    snapshot: Snapshot, problem: Problem, index: Index, rules: Rules, bindings: Mapping[str, str], gone: list[str]
) -> Outcome:
    """Counted from the objects; only values, ranks and shares are those of the model."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    used: dict[str, Counter[str]] = {queue: Counter() for queue in index.queues}
    queue_of = {group.key: group.queue for group in snapshot.groups}
    left = set(gone)
    for pod in snapshot.pods:
        if pod.finished:
            continue
        owner = pod.group or pod.key
        before[owner] += pod.node is not None
        if pod.key not in left and (pod.node or pod.key in bindings):
            after[owner] += 1
            used.setdefault(queue_of.get(owner, ""), Counter()).update(dict(pod.needs.request))
    least = {group.key: group.min_member for group in snapshot.groups}
    started = np.array([before[job] < least.get(job, 1) <= after[job] for job in index.jobs], bool)
    waits = rules.need > 0
    value = {}
    for d in sorted(set(rules.rank[waits].tolist())):
        counted = waits & (rules.rank <= d)
        value[rules.rank_names[d]] = float(
            rules.start_value[counted & started].sum() / rules.start_value[counted].sum()
        )
    deficit, worst = 0.0, "none"
    if rules.deserved is not None:
        for q, queue in enumerate(index.queues):
            for r in np.flatnonzero(rules.contended & (rules.deserved[q] > 0)).tolist():
                share = int(rules.deserved[q, r])
                lacks = (share - used[queue][problem.resources[r]]) / share
                if lacks > deficit:
                    deficit, worst = lacks, f"{queue} {problem.resources[r]}"
    return Outcome(
        int(started.sum()),
        value,
        deficit,
        worst,
        tuple(group for group, n in least.items() if before[group] >= n > after[group]),
        tuple(group for group, n in least.items() if 0 < after[group] < n),
        len(gone),
        sum(queue["nvidia.com/gpu"] for queue in used.values()),
    )


def _decided(document: Json) -> tuple[dict[str, str], list[str]]:
    """Where pods are placed, now or as soon as victims have gone; who goes."""
    rows = document["decisions"]
    placed = {row["pod"]: row["node"] for row in rows if row["kind"] in ("Bind", "Nominate")}
    return placed, [row["pod"] for row in rows if row["kind"] == "Evict"]


def _rounds(items: list[Json], first: CycleReport, policy: Policy) -> Iterator[tuple[int, int]]:
    """(evicted, bound) of the first plan and of those after it, up to one that decides nothing."""
    document = first.as_dict()
    for round_ in range(ROUNDS):
        kinds = Counter(row["kind"] for row in document["decisions"])
        yield kinds["Evict"], kinds["Bind"]
        if not kinds["Evict"] + kinds["Bind"]:
            return
        items = carried_out(items, document, After(expect=Expect(count=0)), round_ + 1)
        document = run_cycle(read_objects(items), policy, Budget()).as_dict()


def unmet(row: Row) -> Iterator[str]:
    """Every demand that this file does not meet, with its numbers."""
    name, gap = row.gap
    if row.document["certificate"]["gap"] is None or gap >= MOST_GAP:
        yield f"{name or 'the plan'} is open by {gap:.3%}; {'; '.join(row.document['notes'])}"
    if row.ours.half:
        yield f"left half running: {', '.join(row.ours.half)}"
    if not row.fixed:
        yield f"no fixed point within {ROUNDS} plans: {_moves(row)}"
    yield from _priority(row) if row.name.startswith("priority") else _reclaim(row)


def _priority(row: Row) -> Iterator[str]:
    proven = row.document["certificate"]["status"] == "optimal"
    for peer, theirs in row.peers.items():
        for rank, value in row.ours.value.items():
            if value < theirs.value[rank]:
                yield f"value started >= {rank}: {value:.2%}, {peer} {theirs.value[rank]:.2%}"
            if value != theirs.value[rank]:
                break
    if not proven:
        yield from (f"{text}, and not every level is proven" for text in _beyond_half(row))


def _beyond_half(row: Row) -> Iterator[str]:
    """Of the better peer's gangs killed and pods evicted."""
    killed = min((len(peer.killed) for peer in row.peers.values()), default=0)
    if 2 * len(row.ours.killed) > killed:
        yield f"{len(row.ours.killed)} gangs killed, more than half of {killed}"
    evicted = min((peer.evicted for peer in row.peers.values()), default=0)
    if 2 * row.ours.evicted > evicted:
        yield f"{row.ours.evicted} pods evicted, more than half of {evicted}"


def _reclaim(row: Row) -> Iterator[str]:
    for peer, theirs in row.peers.items():
        if row.ours.deficit > theirs.deficit:
            yield f"largest deficit {row.ours.deficit:.2%} ({row.ours.worst}), {peer} {theirs.deficit:.2%}"
            continue
        if len(row.ours.killed) > len(theirs.killed):
            yield f"{len(row.ours.killed)} gangs killed, {peer} {len(theirs.killed)} with no smaller deficit"
        if row.ours.evicted >= theirs.evicted > 0:
            yield f"{row.ours.evicted} pods evicted, {peer} {theirs.evicted} with no smaller deficit"


# -- the report -------------------------------------------------------------------------------------------------------


def _moves(row: Row) -> str:
    return ", ".join(f"{evicted} / {bound}" for evicted, bound in row.rounds)


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def report(rows: list[Row], missed: Mapping[str, list[str]]) -> Iterator[str]:
    """The tables, as Markdown."""
    yield "# Evictions beside Volcano and KAI\n"
    yield f"`python -m benchmarks.peers_evicting FOLDER`, {machine()}.\n"
    yield "Method and demands: benchmarks/peers_evicting.py. Three figures in a cell: ours / Volcano / KAI.\n"
    yield "## What was achieved\n"
    head = ["file", "started", "largest deficit", "gangs killed", "left half", "pods evicted", "GPUs"]
    body = []
    for row in rows:
        sides = [row.ours, *(row.peers.get(peer) for peer in PEERS)]
        cells = [
            [f"{s.started}" for s in sides if s],
            [f"{s.deficit:.1%}" for s in sides if s],
            [f"{len(s.killed)}" for s in sides if s],
            [f"{len(s.half)}" for s in sides if s],
            [f"{s.evicted:,}" for s in sides if s],
            [f"{s.gpus:,}" for s in sides if s],
        ]
        body.append([row.name, *(" / ".join(cell) for cell in cells)])
    yield from _table(head, body)
    yield "\n## Value started, of all that waits at a priority or above it\n"
    body = []
    for row in rows:
        for rank in row.ours.value:
            sides = [row.ours, *(row.peers.get(peer) for peer in PEERS)]
            body.append([row.name, f">= {rank}", " / ".join(f"{s.value[rank]:.2%}" if s else "-" for s in sides)])
    yield from _table(["file", "priority", "value"], body)
    yield "\n## Plans\n"
    head = ["file", "s: best (median)", "certificate", "largest gap", "evicted / bound in each plan", "then still"]
    body = [
        [
            row.name,
            f"{min(row.seconds):.2f} ({statistics.median(row.seconds):.2f})",
            row.document["certificate"]["status"],
            f"{row.gap[1]:.3%} {row.gap[0] if row.gap[1] else ''}".strip(),
            _moves(row),
            "yes" if row.fixed else "no",
        ]
        for row in rows
    ]
    yield from _table(head, body)
    forced = [row for row in rows if row.name.startswith("priority") and any(_beyond_half(row))]
    if forced:
        yield "\n## More than half of what the better peer ends or evicts: the gangs we end, each forced\n"
        yield from [f"- {row.name}: {', '.join(row.ours.killed)}" for row in forced]
    yield "\n## Demands not met\n"
    yield from [f"- {name}: {text}" for name, texts in missed.items() for text in texts] or ["None."]


def main() -> None:
    """Print the report; exit 1 if a demand is not met, 2 if the folder holds nothing to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default=",".join(KINDS), help="beginnings of file names, comma-separated")
    arguments = parser.parse_args()
    if arguments.folder is None:
        print("no FOLDER of peers' decisions given: nothing to compare with", file=sys.stderr)
        return
    only = tuple(arguments.only.split(","))
    paths = sorted(path for path in arguments.folder.glob("*.json*") if path.name.startswith(only))
    if not paths:
        parser.error(f"no file of {', '.join(only)} in {arguments.folder}")
    rows = []
    for path in paths:
        print(path.name, file=sys.stderr)
        rows.append(measure(path))
    missed = {row.name: texts for row in rows if (texts := list(unmet(row)))}
    print("\n".join(report(rows, missed)))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()

"""How long a plan takes: a whole cluster trace, a large generated cluster, a large dump, and the command itself.

    python -m benchmarks.speed [--openb NODES.csv PODS.csv] > benchmarks/speed.md

openb         the Alibaba openb trace, all pods pending, whole GPUs: `plan -o json` of what `convert openb` writes, as
              a whole process (reading, planning, printing). Beside it: the same with `--solver greedy`.
generated     `simulate.generate` with 5,000 nodes, 2,000 gangs (20,000 pods), quantised, seed 1: one cycle in a warm
              process, from the parsed snapshot to the verified plan. Beside it: the greedy stage of the same cycle.
seeds         the same with seeds 2 to 8, one cycle each; the slowest counts. Its limit is the budget of a cycle.
evict, evict-large
              `simulate.generate` with load "victims", every GPU in use: 1,000 nodes, 8,000 running pods that may be
              evicted; 5,000 nodes, 20,000 of them; 300 pending gangs. One cycle with preempt and reclaim in a warm
              process. Beside it: the same without these two actions.
within-1, within-2, within-5
              the first of them under a limit of so many seconds: the whole cycle, explaining included, may take 1.3
              times the limit or 0.5 s more, and no worker may be killed. Beside it: its solve.
no-claim      the first of them, but nobody has anybody to take from. Beside it: the same without preempt and reclaim;
              the median ratio must stay below 1.1.
dump          5,000 nodes and 50,000 pods as `kubectl get -o json` writes them (benchmarks/decode.py): a fresh process
              reads and encodes. Beside it: `json.loads` of the same bytes, in its own process.
help          `--help` as a whole process. Beside it: `python -c pass`.
import        `import solver_sched` and everything it brings in: neither ortools nor kubernetes.

Every figure stands with one of the same run that it can be divided by, since seconds alone say as much about the
machine as about the code. RUNS runs, best and median; a limit is held against the best, as the machine may be shared:
what else runs there only ever adds. Gaps are those of every level but the best-effort ones (a deficit closer than one
smallest unit counts as closed). Exit 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.decode import dump
from benchmarks.machine import machine
from solver_sched import load_policy, load_snapshot, run_cycle
from solver_sched.cluster.sources import read_objects
from solver_sched.cycle import Budget
from solver_sched.simulate.generate import generate
from solver_sched.snapshot import Snapshot

RUNS = 3
MOST_GAP = 0.001
MOST_GAP_EVICTING = 0.005
MOST_RATIO_UNCLAIMED = 1.1
BUDGET = 0.95
"""Part of the limit that a cycle with evictions has: a large one uses all of it, and goes over by a few per cent."""
BEST_EFFORT = ("balance", "promised", "order")
EVICTING = {"actions": "enqueue, allocate, preempt, reclaim, backfill"}
PLACING = {"actions": "enqueue, allocate, backfill"}
COMMAND = [sys.executable, "-m", "solver_sched.cli"]
SEEDS, LONGEST = range(2, 9), 5.0
STAGES = ("encode", "greedy", "solve", "verify")

READ = """
import json, re, sys, time
from solver_sched import load_snapshot
from solver_sched.problem.encode import encode
start = time.perf_counter()
snapshot = load_snapshot(sys.argv[1])
read = time.perf_counter()
encode(snapshot)
done = time.perf_counter()
mib = int(re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]) // 1024
print(json.dumps({"read": read - start, "encode": done - read, "mib": mib}))
"""
PARSE = """
import json, sys, time
data = open(sys.argv[1], "rb").read()
start = time.perf_counter()
json.loads(data)
print(time.perf_counter() - start)
"""
FORBIDDEN = ("kubernetes", "ortools")
IMPORTED = """
import sys
import solver_sched
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table: seconds of each run, those of the yardstick in the same runs, and what else is asked."""

    name: str
    seconds: tuple[float, ...]
    beside: str
    yardstick: tuple[float, ...]
    limit: float
    notes: str
    failed: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        return statistics.median(own / other for own, other in zip(self.seconds, self.yardstick, strict=True))

    def missed(self) -> Iterator[str]:
        """What does not hold, with numbers."""
        if min(self.seconds) >= self.limit:
            yield f"{self.name}: {min(self.seconds):.2f} s, limit {self.limit} s"
        yield from (f"{self.name}: {text}" for text in self.failed)


def run(*command: str) -> tuple[float, str]:
    """Wall seconds and standard output of a whole process."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, done.stdout


def gaps(document: dict[str, Any], units: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """(level, gap) of all but the best-effort levels. `units`: smallest unit of a deficit; one further from its bound
    is open (1.0), since a share of a bound near 0 says nothing.
    """
    for level in document["levels"]:
        name, value, bound = level["name"], level["value"], level["bound"]
        if name in BEST_EFFORT:
            continue
        apart = float("inf") if bound is None else abs(bound - value)
        if units.get(name, 0):
            yield name, float(apart >= units[name])
        else:
            yield name, min(1.0, apart / max(1, abs(bound or 0)))


def open_levels(document: dict[str, Any], units: Mapping[str, int], most: float = MOST_GAP) -> tuple[str, ...]:
    """The levels whose gap is `most` or more, or the lack of any certificate."""
    if document["certificate"]["gap"] is None:
        return (f"no certificate: {'; '.join(document['notes']) or 'no reason given'}",)
    levels = {level["name"]: level for level in document["levels"]}
    return tuple(
        f"{name} is open by {gap:.3%}: value {levels[name]['value']:,}, bound {levels[name]['bound']:,}"
        for name, gap in gaps(document, units)
        if gap >= most
    )


def certified(document: dict[str, Any], units: Mapping[str, int]) -> str:
    """Pods placed, and what is proven of them."""
    placed = sum(row["kind"] == "Bind" for row in document["decisions"])
    status = document["certificate"]["status"]
    name, largest = max(gaps(document, units), key=lambda one: one[1], default=("", 0.0))
    at = f", largest gap {largest:.4%} at {name}" if largest else ""
    return f"{placed:,} pods placed, certificate {status}{at}"


def openb(folder: Path, nodes: Path, pods: Path) -> Result:
    """The trace as a whole process."""
    cluster = str(folder / "openb.json")
    run(*COMMAND, "convert", "openb", str(nodes), str(pods), "-o", cluster)
    seconds, greedy, document = [], [], {}
    for _ in range(RUNS):
        took, text = run(*COMMAND, "plan", "-f", cluster, "-o", "json")
        seconds.append(took)
        document = json.loads(text)
        greedy.append(run(*COMMAND, "plan", "-f", cluster, "-o", "json", "--solver", "greedy")[0])
    size = document["snapshot"]
    notes = f"{size['nodes']:,} nodes, {size['pods']:,} pods; {certified(document, {})}"
    failed = open_levels(document, {})
    return Result("openb", tuple(seconds), "plan --solver greedy", tuple(greedy), 10.0, notes, failed)


def quantised(folder: Path, nodes: int, gangs: int, seed: int) -> Snapshot:
    """A large quantised cluster, read from a file."""
    path = folder / "generated.json"
    items = generate(nodes=nodes, gangs=gangs, seed=seed, occupancy=0.5)
    path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))
    return load_snapshot(path)


def generated(folder: Path, nodes: int, gangs: int) -> Result:
    """A warm cycle on a large quantised cluster."""
    snapshot, policy = quantised(folder, nodes, gangs, 1), load_policy()
    run_cycle(snapshot, policy, Budget())
    reports = [run_cycle(snapshot, policy, Budget()) for _ in range(RUNS)]
    seconds = tuple(sum(report.seconds[stage] for stage in STAGES) for report in reports)
    pending = sum(pod.node is None for pod in snapshot.pods)
    document = reports[-1].as_dict()
    stages = ", ".join(f"{stage} {min(report.seconds[stage] for report in reports):.2f}" for stage in STAGES)
    notes = f"{nodes:,} nodes, {gangs:,} gangs, {pending:,} pending of {len(snapshot.pods):,} pods; {stages} s"
    units = {level.name: level.unit for level in reports[-1].levels}
    return Result(
        "generated",
        seconds,
        "its greedy stage",
        tuple(report.seconds["greedy"] for report in reports),
        3.0,
        f"{notes}; {certified(document, units)}",
        open_levels(document, units),
    )


def seeds(folder: Path, nodes: int, gangs: int) -> Result:
    """A warm cycle on each of some other clusters of the kind."""
    seconds, greedy, notes, policy, failed = [], [], [], load_policy(), []
    for seed in SEEDS:
        snapshot = quantised(folder, nodes, gangs, seed)
        run_cycle(snapshot, policy, Budget())
        report = run_cycle(snapshot, policy, Budget())
        seconds.append(sum(report.seconds[stage] for stage in STAGES))
        greedy.append(report.seconds["greedy"])
        notes.append(f"{seed}: {seconds[-1]:.2f} s")
        units = {level.name: level.unit for level in report.levels}
        failed += [f"seed {seed}: {text}" for text in open_levels(report.as_dict(), units)]
    slowest, its_greedy = max(zip(seconds, greedy, strict=True))
    return Result("seeds", (slowest,), "its greedy stage", (its_greedy,), LONGEST, ", ".join(notes), tuple(failed))


def evicting(name: str, nodes: int, running: int, limit: float, *, claims: bool = True) -> Result:
    """A warm cycle on a full cluster, with preempt and reclaim and without, in turn."""
    snapshot = read_objects(
        generate(nodes=nodes, gangs=300, seed=1, occupancy=1.0, load="victims", running=running, claims=claims)
    )
    with_them, without = load_policy(EVICTING), load_policy(PLACING)
    budget = Budget(seconds=BUDGET * limit)
    run_cycle(snapshot, with_them, budget)
    pairs = [(run_cycle(snapshot, with_them, budget), run_cycle(snapshot, without, budget)) for _ in range(RUNS)]
    own, other = ([sum(one.seconds[stage] for stage in STAGES) for one in side] for side in zip(*pairs, strict=True))
    last = pairs[-1][0]
    document, units = last.as_dict(), {level.name: level.unit for level in last.levels}
    moves = Counter(row["kind"] for row in document["decisions"])
    stages = ", ".join(f"{stage} {min(report.seconds[stage] for report, _ in pairs):.2f}" for stage in STAGES)
    victims = last.problem.victims
    notes = (
        f"{nodes:,} nodes, {running:,} victims of {len(victims.queue):,} gangs in {len(victims.holder):,} sets, 300 "
        f"gangs of {sum(pod.node is None for pod in snapshot.pods):,} pods; {stages} s; {moves['Evict']:,} evicted, "
        f"{moves['Bind']:,} bound, {moves['Nominate']:,} nominated; {certified(document, units)}"
    )
    certificate = document["certificate"]
    gap, level = certificate["gap"], certificate.get("level", "")
    notes += f", certificate's gap {gap or 0.0:.4%} {'at ' * bool(level)}{level}"
    failed = open_levels(document, units, MOST_GAP_EVICTING) if claims else ()
    failed += tuple(last.notes)
    result = Result(name, tuple(own), "without preempt, reclaim", tuple(other), limit, notes, failed)
    if not claims and result.ratio >= MOST_RATIO_UNCLAIMED:
        return replace(result, failed=(*failed, f"ratio {result.ratio:.3f}, limit {MOST_RATIO_UNCLAIMED}"))
    return result


def within(seconds: float) -> Result:
    """Whole cycles under a limit, in a warm process."""
    snapshot = read_objects(generate(nodes=1_000, gangs=300, seed=1, occupancy=1.0, load="victims", running=8_000))
    policy, budget = load_policy(EVICTING), Budget(seconds=seconds)
    run_cycle(snapshot, policy, budget)
    reports = [run_cycle(snapshot, policy, budget) for _ in range(RUNS)]
    stages = ", ".join(
        f"{stage} {min(report.seconds[stage] for report in reports):.2f}" for stage in (*STAGES, "explain")
    )
    last = reports[-1]
    notes = f"1,000 nodes, 8,000 victims, 300 gangs; {stages} s; {last.plan.out.sum():,} evicted by {last.winner}"
    return Result(
        f"within-{seconds:g}",
        tuple(report.seconds["total"] for report in reports),
        "its solve",
        tuple(report.seconds["solve"] for report in reports),
        max(1.3 * seconds, seconds + 0.5),
        notes,
        tuple({note for report in reports for note in report.notes if "solver" in note}),
    )


def dumped(folder: Path, nodes: int, pods: int) -> Result:
    """Reading and encoding a large dump."""
    path = folder / "dump.json"
    dump(path, nodes, pods)
    runs, parsed = [], []
    for _ in range(RUNS):
        runs.append(json.loads(run(sys.executable, "-c", READ, str(path))[1]))
        parsed.append(float(run(sys.executable, "-c", PARSE, str(path))[1]))
    mib = max(one["mib"] for one in runs)
    notes = (
        f"{nodes:,} nodes, {pods:,} pods, {path.stat().st_size / 2**20:.0f} MiB; read "
        f"{min(one['read'] for one in runs):.2f} s, encode {min(one['encode'] for one in runs):.2f} s; {mib} MiB"
    )
    failed = (f"{mib} MiB, limit 1024 MiB",) if mib >= 1024 else ()
    seconds = tuple(one["read"] + one["encode"] for one in runs)
    return Result("dump", seconds, "json.loads", tuple(parsed), 4.0, notes, failed)


def helped() -> Result:
    """`--help`."""
    pairs = [(run(*COMMAND, "--help")[0], run(sys.executable, "-c", "pass")[0]) for _ in range(3 * RUNS)]
    return Result("help", tuple(a for a, _ in pairs), "python -c pass", tuple(b for _, b in pairs), 0.6, "")


def imported() -> Result:
    """`import solver_sched`."""
    pairs = [(run(sys.executable, "-c", IMPORTED), run(sys.executable, "-c", "pass")) for _ in range(3 * RUNS)]
    modules = pairs[0][0][1].split()
    brought = [name for name in FORBIDDEN if name in modules]
    names = [name for name in modules if name not in sys.stdlib_module_names and not name.startswith("_")]
    return Result(
        "import",
        tuple(own[0] for own, _ in pairs),
        "python -c pass",
        tuple(bare[0] for _, bare in pairs),
        0.6,
        f"outside the standard library: {', '.join(names)}",
        tuple(f"brings in {name}" for name in brought),
    )


def report(results: list[Result]) -> Iterator[str]:
    """The table, as Markdown."""
    yield f"# Speed\n\n`python -m benchmarks.speed --openb NODES.csv PODS.csv`, {machine()}.\n"
    yield "Method: benchmarks/speed.py. Best and median of the runs on shared cores; limits are held against"
    yield "the best.\n"
    yield "| what | seconds: best (median) | limit, s | x | beside | what was done |\n|---|---|---|---|---|---|"
    for one in results:
        seconds = f"{min(one.seconds):.2f} ({statistics.median(one.seconds):.2f})"
        yield f"| {one.name} | {seconds} | {one.limit} | {one.ratio:.2f} | {one.beside} | {one.notes} |"
    yield "\n## Limits passed\n"
    yield from [f"- {text}" for one in results for text in one.missed()] or ["None."]


def main() -> None:
    """Print the report; exit 1 above a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openb", type=Path, nargs=2, metavar=("NODES", "PODS"))
    parser.add_argument("--limit", type=float, help="other seconds for evict and evict-large")
    parser.add_argument("--only", default="", help="names of the list above; comma-separated")
    arguments = parser.parse_args()
    asked = [name for name in arguments.only.split(",") if name]
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            "openb": lambda: openb(folder, *arguments.openb),
            "generated": lambda: generated(folder, 5_000, 2_000),
            "seeds": lambda: seeds(folder, 5_000, 2_000),
            "evict": lambda: evicting("evict", 1_000, 8_000, arguments.limit or 6.0),
            "evict-large": lambda: evicting("evict-large", 5_000, 20_000, arguments.limit or 20.0),
            "within-1": lambda: within(1.0),
            "within-2": lambda: within(2.0),
            "within-5": lambda: within(5.0),
            "no-claim": lambda: evicting("no-claim", 1_000, 8_000, 6.0, claims=False),
            "dump": lambda: dumped(folder, 5_000, 50_000),
            "help": helped,
            "import": imported,
        }
        if arguments.openb is None:
            del parts["openb"]
        for part, measure in parts.items():
            if not asked or part in asked:
                print(f"{part}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
                results.append(measure())
    print("\n".join(report(results)))
    sys.exit(any(True for one in results for _ in one.missed()))


if __name__ == "__main__":
    main()

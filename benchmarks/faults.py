"""The service against an API server that fails, and killed at random: does every gang come out whole?

Demands of every run: no pod bound twice, no node over its capacity at any revision, no pod lost, no gang below its
minimum once nothing has moved for five seconds, every gang that fits bound, every pod that waits told why, the
service's picture of the cluster equal to the server's, and rest within BOUND seconds after the storm.

Method: a real control plane with the tests' kubelet, and `solver-sched run` behind the tests' proxy. The seed decides
nodes, gangs, faults and moments of `kill -9`. A run makes 6 to 10 nodes, two queues 3:1, and two waves of gangs of 1 to
8 pods: bare pods that end by themselves, ReplicaSets and Jobs that make evicted pods anew, half of the second wave of
high priority, so that the policy `preempting` evicts. Faults go on through both waves and up to three kills, each
followed by a new start; afterwards half of the runs are left in peace and half keep a fault in a hundred requests. The
judges are the tests' recorder, which counts from what the server sent in revision order, and the proxy's log.

    python -m benchmarks.faults --seeds 0-199 --results faults.jsonl

Appends one line of JSON per run to the file and leaves out seeds that it has; prints a table of all that are there.
Exit 1 if a demand is not met: then logs of that run are in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import machine
from tests.controlplane.cluster import Cluster, Object, StatusError, gang
from tests.controlplane.controlplane import ROOT, ControlPlane, free_ports
from tests.controlplane.fixtures import install_crds
from tests.controlplane.proxy import Exchange, Faults, Proxy
from tests.controlplane.recorder import ENDED, Recorder, Seen, group_of
from tests.controlplane.resources import Amounts, amounts, effective_requests, total

BOUND = 90.0
"""Seconds from the end of the storm to rest."""
GROUPS, QUEUES = "scheduling.volcano.sh/v1beta1", ("left", "right")
HIGH = "faults-high"
REQUESTS = ("conflict", "gone", "too_many", "error", "error_after", "refused", "lost", "reset", "stall")
HANDS = r"/(binding|eviction)$"
SHORT_LEASE = (
    "--leader-elect",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
)
BAD_LINES = ("Traceback", "the cycle failed", "a plan was refused", "thread died")


class Outcome(msgspec.Struct, omit_defaults=True):
    """One run. `rest`: seconds from the end of the storm to rest. `faults`: what the proxy did, by kind."""

    seed: int
    findings: list[str]
    seconds: float
    rest: float
    pods: int
    binds: int
    evictions: int
    kills: int
    faults: dict[str, int]


@dataclass(frozen=True)
class Work:
    """A gang. `kind`: who makes its pods (Pod: nobody makes them anew, so they are nobody's victims)."""

    kind: str
    name: str
    size: int
    minimum: int
    ask: dict[str, int]
    queue: str
    high: bool
    lasts: float | None

    def objects(self) -> list[Object]:
        annotations = {} if self.lasts is None else {"test/run-for": f"{self.lasts:.1f}s"}
        if self.kind == "Pod":
            annotations["volcano.sh/preemptable"] = "false"
        more: dict[str, Any] = {"annotations": annotations, "queue": self.queue, "labels": {"app": self.name}}
        if self.high:
            more["priorityClassName"] = HIGH
        group, *pods = gang(self.name, self.size, self.ask, self.minimum, **more)
        if self.high:
            group["spec"]["priorityClassName"] = HIGH
        if self.kind == "Pod":
            return [group, *pods]
        template = {"metadata": pods[0]["metadata"], "spec": pods[0]["spec"]}
        del template["metadata"]["name"]
        spec: dict[str, Any] = {"template": template}
        if self.kind == "Job":
            spec |= {"parallelism": self.size, "completions": self.size, "backoffLimit": 1000}
        else:
            template["spec"]["restartPolicy"] = "Always"
            spec |= {"replicas": self.size, "selector": {"matchLabels": {"app": self.name}}}
        version = "batch/v1" if self.kind == "Job" else "apps/v1"
        return [group, {"apiVersion": version, "kind": self.kind, "metadata": {"name": self.name}, "spec": spec}]


def workload(rng: random.Random, room: int) -> tuple[list[Work], list[Work]]:
    """Two waves; together they ask for about one and a half times `room` cpu."""
    waves: tuple[list[Work], list[Work]] = ([], [])
    for wave, share in enumerate((0.9, 0.6)):
        left = share * room
        while left > 0:
            size = rng.randint(1, 8)
            cpu = rng.randint(1, 3 if size < 5 else 2)
            kind = rng.choice(("Pod", "ReplicaSet", "ReplicaSet", "Job"))
            waves[wave].append(
                Work(
                    kind,
                    f"{'ab'[wave]}{len(waves[wave])}",
                    size,
                    size if rng.random() < 0.7 else rng.randint(1, size),
                    {"cpu": cpu},
                    rng.choice(QUEUES),
                    wave == 1 and rng.random() < 0.5,
                    rng.uniform(2, 8) if kind == "Pod" or (kind == "Job" and rng.random() < 0.5) else None,
                )
            )
            left -= size * cpu
    return waves


def storm(rng: random.Random) -> list[Faults]:
    """One of three kinds: all faults at a low rate, one at a high rate, or binds and evictions that go wrong."""
    watch = Faults(
        duplicate=0.2,
        delay=0.1,
        delay_seconds=rng.uniform(0.3, 2.0),
        tear=0.03,
        gone_event=0.03,
        cut_after=rng.choice((1.0, None)),
    )
    kind = rng.randrange(3)
    if kind == 0:
        return [with_rates(watch, {name: rng.uniform(0.01, 0.06) for name in REQUESTS})]
    if kind == 1:
        name = rng.choice(REQUESTS)
        return [with_rates(watch, {name: 0.1 if name == "stall" else 0.3})]
    rates = {name: rng.uniform(0, 0.1 if name == "stall" else 0.15) for name in REQUESTS if name != "gone"}
    return [with_rates(Faults(where=HANDS), rates), replace(watch, error=0.02, lost=0.02)]


def with_rates(faults: Faults, rates: dict[str, Any]) -> Faults:
    return replace(faults, **rates)


AFTERWARDS = with_rates(Faults(duplicate=0.05), {name: 0.001 for name in REQUESTS if name != "stall"})


class Service:
    """`solver-sched run`, its log in `folder`/service.log. What is wrong with its process goes to `findings`."""

    def __init__(self, plane: ControlPlane, proxy: Proxy, folder: Path, elects: bool) -> None:
        self.folder = folder
        self.log = folder / "service.log"
        self.findings: list[str] = []
        self.page = f"http://127.0.0.1:{free_ports(1)[0]}"
        election = SHORT_LEASE if elects else ("--no-leader-elect",)
        self.command = [
            *(sys.executable, "-m", "solver_sched.cli", "run", *election),
            *("--kubeconfig", str(plane.kubeconfig), "--master", proxy.url),
            *("--scheduler-conf", "preempting", "--schedule-period", "200ms", "--time-limit", "1s"),
            *("--no-enable-metrics", "--healthz-address", "127.0.0.1:0"),
            *("--debug-address", self.page.removeprefix("http://"), "--dump-dir", str(folder / "dumps")),
            *("--log-format", "json", "--log-level", "info"),
        ]
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, process_group=0
            )

    def kill(self) -> None:
        """SIGKILL to it alone: its solver has to find out by itself."""
        self.alive()
        solvers = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        until = time.monotonic() + 15
        self.left = (solvers, until)

    def alive(self) -> None:
        code = self.process.poll()
        if code is not None:
            self.findings.append(f"the service ended by itself with {code}")
            self.start()

    def check_solvers(self) -> None:
        """That no solver of a killed service lives on."""
        solvers, until = getattr(self, "left", ((), 0.0))
        while any(Path(f"/proc/{pid}").exists() for pid in solvers):
            if time.monotonic() > until:
                self.findings.append(f"solvers of a killed service live on: {solvers}")
                for pid in solvers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.1)

    def end(self) -> None:
        """SIGTERM, and 20 s to end in good order."""
        self.alive()
        self.process.terminate()
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.findings.append("not ended 20 s after SIGTERM")
            self.process.kill()
            self.process.wait()
        else:
            if code:
                self.findings.append(f"exit code {code} after SIGTERM")

    def pods(self) -> dict[str, tuple[str, bool]]:
        """Uid -> (node, terminating) as the last cycle left them, what it bound included; ended ones left out."""
        found, plan = self._page("snapshot"), self._page("plan")
        bound = {one["pod"]: one["node"] for one in plan["decisions"] if one["kind"] == "Bind"}
        return {
            one["uid"]: (
                one.get("node") or bound.get(f"{one['namespace']}/{one['name']}", ""),
                bool(one.get("terminating")),
            )
            for one in found["pods"]
            if one.get("phase") not in ENDED
        }

    def _page(self, name: str) -> Any:
        with urllib.request.urlopen(f"{self.page}/{name}", timeout=5) as answer:  # noqa: S310  # our own
            return json.load(answer)

    def logged(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line[:500] for line in lines if any(bad in line for bad in BAD_LINES)]


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(one) for one in task.read_text().split()]
    return found


def run(plane: ControlPlane, seed: int, folder: Path) -> Outcome:
    """One seed. What is made is gone afterwards."""
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    cluster, namespace = plane.cluster, f"faults-{seed}-{time.time_ns() % 10**6}"
    with stage(cluster, namespace), Recorder(cluster) as recorder:
        faults = storm(rng)
        with Proxy(cluster.url, plane.authority, seed=seed, faults=faults) as proxy:
            service = Service(plane, proxy, folder, elects=rng.random() < 0.25)
            service.start()
            asked_by = time.monotonic() + BOUND
            while (
                not arrived(proxy, "") and time.monotonic() < asked_by
            ):  # on a busy machine a start may outlast a storm
                time.sleep(0.05)
            try:
                outcome = storms(seed, rng, cluster, namespace, recorder, proxy, service)
            finally:
                service.end()
            outcome.findings += service.findings + service.logged()
            outcome.faults = dict(Counter(one.fault for one in proxy.log if one.fault))
            if outcome.findings:
                keep(folder, cluster, namespace, recorder, proxy, outcome)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def storms(
    seed: int,
    rng: random.Random,
    cluster: Cluster,
    namespace: str,
    recorder: Recorder,
    proxy: Proxy,
    service: Service,
) -> Outcome:
    """From the first object to the judgement."""
    count, cpu = rng.randint(6, 10), rng.randint(4, 8)
    cluster.nodes(count, {"cpu": cpu}, prefix=f"{namespace}-node")
    waves = workload(rng, count * cpu)
    kills = rng.randint(0, 3)
    for number in range(kills + 1):
        if number < 2:
            create(cluster, namespace, waves[number])
        if number < kills:
            wait_for_moment(rng, proxy)
            service.kill()
            service.start()
    if kills == 0:
        time.sleep(rng.uniform(3, 6))
        create(cluster, namespace, waves[1])
    time.sleep(rng.uniform(1, 5))
    proxy.faults = [AFTERWARDS] if rng.random() < 0.5 else []
    calm = time.monotonic()
    works = [*waves[0], *waves[1]]
    missing = at_rest(cluster, namespace, works, recorder, service, calm + BOUND)
    findings = [f"no rest within {BOUND:.0f} s: {one}" for one in missing]
    rest = round(time.monotonic() - calm - 5, 1)
    service.check_solvers()
    findings += judge(cluster, namespace, works, recorder, proxy)
    sent = [one for one in proxy.log if one.path.endswith("/eviction") and one.status in (200, 201)]
    return Outcome(seed, findings, 0, rest, len(recorder.last()), len(recorder.binds()), len(sent), kills, {})


def create(cluster: Cluster, namespace: str, works: Iterable[Work]) -> None:
    for work in works:
        cluster.create(*work.objects(), namespace=namespace)


def wait_for_moment(rng: random.Random, proxy: Proxy) -> None:
    """Until some more binds or evictions have come, or the service has been at work for some time, or starts."""
    what, more = rng.choice((("/binding", rng.randint(1, 15)), ("/eviction", rng.randint(1, 4)), ("", 0)))
    before, until = arrived(proxy, what), time.monotonic() + (8 if what else rng.uniform(0.5, 8))
    while time.monotonic() < until and (not what or arrived(proxy, what) < before + more):
        time.sleep(0.005)


def arrived(proxy: Proxy, what: str) -> int:
    return sum(count for (_, path, _), count in list(proxy.came.items()) if path.endswith(what))


def at_rest(
    cluster: Cluster, namespace: str, works: Sequence[Work], recorder: Recorder, service: Service, until: float
) -> list[str]:
    """Wait until nothing has moved for 5 s, nobody is about to make or end pods, and the last cycle saw all there is.

    What is still missing at `until`.
    """
    while True:
        missing = pictures(cluster, namespace, service)
        if not missing:
            try:
                recorder.wait_for_rest(5, within=max(6.0, until - time.monotonic()))
            except AssertionError as moved:
                return [str(moved)]
            missing = ["pods to come"] if pods_to_come(cluster, namespace, works) else []
            missing += pictures(cluster, namespace, service)
        if not missing or time.monotonic() > until:
            return missing
        time.sleep(0.3)


def pods_to_come(cluster: Cluster, namespace: str, works: Sequence[Work]) -> bool:
    """Whether pods end soon, or controllers have pods to make."""
    pods = cluster.items("Pod", namespace)
    for one in pods:
        phase, meta = one["status"]["phase"], one["metadata"]
        if "deletionTimestamp" in meta or (phase == "Running" and "test/run-for" in meta.get("annotations", {})):
            return True
    there = present(cluster, namespace, works, pods)
    return any(there[work.name] < work.size for work in works if work.kind != "Pod")


def present(cluster: Cluster, namespace: str, works: Sequence[Work], pods: Sequence[Object]) -> Counter[str]:
    """How many pods of each gang have not failed. A Job counts in full where it is complete or pods of it have failed:
    after six evictions it makes no pod for five minutes (its back-off, doubled from 10 s).
    """
    there = Counter(str(one["metadata"]["labels"]["app"]) for one in pods if one["status"]["phase"] != "Failed")
    jobs = cluster.items("Job", namespace, "batch/v1")
    excused = {
        one["metadata"]["name"]
        for one in jobs
        if one["status"].get("failed") or any(c["type"] == "Complete" for c in conditions(one))
    }
    return there + Counter({one.name: one.size - there[one.name] for one in works if one.name in excused})


def conditions(one: Object) -> list[Object]:
    found: list[Object] = one["status"].get("conditions", [])
    return found


# The judgement


def judge(cluster: Cluster, namespace: str, works: Sequence[Work], recorder: Recorder, proxy: Proxy) -> list[str]:
    """What the server's history and the proxy's log say against the service."""
    minimums = {f"{namespace}/{work.name}": work.minimum for work in works}
    binds = {one.uid: one for one in recorder.binds()}
    found = [f"bound twice: {first.name} to {first.node}, then {then.node}" for first, then in recorder.moved()]
    found += [f"over capacity: {one}" for one in recorder.overcommits(rejected=True)]
    found += [f"rejected by its node: {one.name} {one.reason}" for one in recorder.last().values() if one.rejected]
    # A gang of which some ended before the rest was bound holds nothing: it waits like any other.
    holders = {one.group for one in recorder.last().values() if one.holds and not one.leaving}
    found += [f"below its minimum at rest: {one}" for one in recorder.broken(minimums) if one.name in holders]
    accepted = Counter(bound_uid(one) for one in proxy.binds() if one.status == 201)
    found += [f"accepted {count} binds of {uid}" for uid, count in accepted.items() if count > 1]
    found += [f"bound, but not by us: {one.name}" for uid, one in binds.items() if not accepted[uid]]
    pods = cluster.items("Pod", namespace)
    found += lost(works, present(cluster, namespace, works, pods), recorder, proxy)
    found += waiting(cluster, minimums, pods)
    return found


def bound_uid(one: Exchange) -> str:
    return str(json.loads(one.body)["metadata"].get("uid", ""))


def lost(works: Sequence[Work], there: Counter[str], recorder: Recorder, proxy: Proxy) -> list[str]:
    """Pods that are gone though nobody evicted them, or too few."""
    evicted = {one.pod for one in proxy.log if one.path.endswith("/eviction")}
    gone = [one for one in recorder.last().values() if one.change == "DELETED" or one.leaving]
    found = [f"gone: {one.name}" for one in gone if one.name not in evicted]
    found += [f"{there[one.name]} of {one.size} pods of {one.name}" for one in works if there[one.name] < one.size]
    return found


def waiting(cluster: Cluster, minimums: dict[str, int], pods: Sequence[Object]) -> list[str]:
    """Pods that wait without a reason, and gangs that wait though they fit."""
    free: dict[str, Amounts] = {}
    for node in cluster.items("Node"):
        held = [
            effective_requests(one["spec"])
            for one in cluster.items("Pod", fieldSelector=f"spec.nodeName={node['metadata']['name']}")
            if one["status"]["phase"] not in ENDED
        ]
        used = total(held)
        free[node["metadata"]["name"]] = {
            name: amount - used.get(name, 0) for name, amount in amounts(node["status"]["allocatable"]).items()
        }
    found: list[str] = []
    pending: dict[str, list[Object]] = {}
    bound: Counter[str] = Counter()
    for one in pods:
        if one["spec"].get("nodeName"):
            bound[group_of(one)] += one["status"]["phase"] != "Failed"
        else:
            pending.setdefault(group_of(one), []).append(one)
    for name, some in pending.items():
        for one in some:
            said = [c for c in conditions(one) if c["type"] == "PodScheduled"]
            if not said or said[0]["status"] != "False" or not said[0].get("message"):
                found.append(f"waits without a word: {one['metadata']['name']}")
        asks = effective_requests(some[0]["spec"])
        places = sum(min(room[what] // amount for what, amount in asks.items()) for room in free.values())
        need = max(1, minimums[name] - bound[name])
        if need <= min(len(some), places):
            said = [c for c in conditions(some[0]) if c["type"] == "PodScheduled"]
            found.append(f"waits though {need} of {name} fit ({places} places): {said[0] if said else 'no reason'}")
    return found


def pictures(cluster: Cluster, namespace: str, service: Service) -> list[str]:
    """Where the last cycle left a pod elsewhere than the server has it: an assumption that was left, an event lost."""
    try:
        ours = service.pods()
    except (OSError, ValueError) as wrong:
        return [f"no snapshot: {wrong}"]
    theirs = {
        one["metadata"]["uid"]: (one["spec"].get("nodeName", ""), "deletionTimestamp" in one["metadata"])
        for one in cluster.items("Pod", namespace)
        if one["status"]["phase"] not in ENDED
    }
    return [
        f"the service sees pod {uid} as {ours.get(uid)}, the server as {theirs.get(uid)}"
        for uid in sorted(ours.keys() | theirs.keys())
        if ours.get(uid) != theirs.get(uid)
    ]


def keep(folder: Path, cluster: Cluster, namespace: str, recorder: Recorder, proxy: Proxy, outcome: Outcome) -> None:
    """All that helps to understand what went wrong."""

    def lines(name: str, rows: Iterable[object]) -> None:
        (folder / name).write_text("".join(f"{row}\n" for row in rows))

    lines("findings.txt", outcome.findings)
    log: list[Exchange] = sorted(proxy.log, key=lambda one: one.began)
    lines("proxy.txt", log)
    lines("history.txt", [*map(brief, sorted(recorder.seen(), key=lambda one: one.revision))])
    (folder / "pods.json").write_text(json.dumps(cluster.items("Pod", namespace), indent=1))
    (folder / "groups.json").write_text(json.dumps(cluster.items("PodGroup", namespace, GROUPS), indent=1))


def brief(one: Seen) -> str:
    state = f"{one.phase} {one.reason} {'leaving' if one.leaving else ''}"
    return f"{one.revision} {one.at:.3f} {one.change} {one.name} {one.uid} on {one.node or '-'} {state} {one.amounts}"


# The stage


@contextmanager
def stage(cluster: Cluster, namespace: str) -> Iterator[None]:
    """A namespace, the queues and the priority class; all that was made is gone afterwards."""
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 1000},
        *(
            {"apiVersion": GROUPS, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": weight}}
            for name, weight in zip(QUEUES, (3, 1), strict=True)
        ),
    )
    try:
        yield
    finally:
        cluster.delete("Namespace", namespace)
        orphan = {"propagationPolicy": "Background"}
        for kind, version in (("ReplicaSet", "apps/v1"), ("Job", "batch/v1"), ("PodGroup", GROUPS)):
            cluster.request("DELETE", cluster.path(kind, version, namespace), query=orphan)
        cluster.wait_for(lambda: emptied(cluster, namespace), 60, "all pods are gone")
        cluster.request("DELETE", "/api/v1/nodes")


def emptied(cluster: Cluster, namespace: str) -> bool:
    cluster.request("DELETE", cluster.path("Pod", namespace=namespace), query={"gracePeriodSeconds": 0})
    return not cluster.items("Pod", namespace)


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    with ControlPlane(folder) as plane:
        install_crds(plane.cluster)
        yield plane


# The command


def worker(seeds: Sequence[int], results: Path, folder: Path) -> None:
    """Run seeds one after the other on one control plane."""
    folder.mkdir(parents=True, exist_ok=True)
    with control_plane(Path(tempfile.mkdtemp(prefix="control-plane-", dir=folder))) as plane:
        for seed in seeds:
            outcome = attempt(lambda seed=seed: run(plane, seed, folder / f"seed-{seed}"), seed)  # type: ignore[misc]
            with results.open("ab") as out:
                out.write(msgspec.json.encode(outcome) + b"\n")
            sys.stderr.write(f"{outcome}\n")


def attempt(what: Callable[[], Outcome], seed: int) -> Outcome:
    try:
        return what()
    except (AssertionError, OSError, StatusError) as wrong:
        return Outcome(seed, [f"the run itself failed: {type(wrong).__name__}: {wrong}"], 0, 0, 0, 0, 0, 0, {})


def read(results: Path) -> dict[int, Outcome]:
    """The last outcome of each seed."""
    if not results.exists():
        return {}
    rows = (msgspec.json.decode(line, type=Outcome) for line in results.read_bytes().splitlines())
    return {row.seed: row for row in rows}


def report(outcomes: Sequence[Outcome]) -> str:
    rest = sorted(one.rest for one in outcomes)
    faults: Counter[str] = Counter()
    for one in outcomes:
        faults.update(one.faults)
    rows = {
        "runs": len(outcomes),
        "runs without a finding": sum(not one.findings for one in outcomes),
        "`kill -9`": sum(one.kills for one in outcomes),
        "pods": sum(one.pods for one in outcomes),
        "binds": sum(one.binds for one in outcomes),
        "evictions": sum(one.evictions for one in outcomes),
        "seconds from the end of the storm to rest, median": rest[len(rest) // 2],
        "- the longest": rest[-1],
        "seconds per run, mean": round(sum(one.seconds for one in outcomes) / len(outcomes), 1),
        "faults": sum(faults.values()),
        **{f"- {name}": count for name, count in sorted(faults.items())},
    }
    table = "".join(f"| {name} | {value:,} |\n" for name, value in rows.items())
    findings = "".join(f"- seed {one.seed}: {said}\n" for one in outcomes for said in one.findings)
    return f"{machine()}\n\n| | |\n|---|---:|\n{table}\n{findings}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs of the service under faults.")
    parser.add_argument("--seeds", default="0-199", help="FIRST-LAST, or some with commas")
    parser.add_argument("--results", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--folder", type=Path, help="for logs; default: a temporary one")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    first, dash, last = options.seeds.partition("-")
    seeds = [*range(int(first), int(last) + 1)] if dash else [int(seed) for seed in options.seeds.split(",")]
    known = read(options.results)
    left = [seed for seed in seeds if seed not in known]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    with ProcessPoolExecutor(options.workers) as pool:
        shares = [left[number :: options.workers] for number in range(options.workers)]
        jobs = [pool.submit(worker, share, options.results.absolute(), folder.absolute()) for share in shares if share]
        for job in jobs:
            job.result()
    found = read(options.results)
    outcomes = [found[seed] for seed in seeds if seed in found]
    print(report(outcomes))
    failed = any(one.findings for one in outcomes)
    if failed:
        sys.stderr.write(f"logs: {folder}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

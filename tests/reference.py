"""The written model on a tiny cluster: the parameters of formulation sections 2, 3 and 8 in fractions, then MiniZinc.

Written from `models/formulation.md` alone. It imports nothing of the project, whose misreadings it is there to find.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, gcd, lcm
from pathlib import Path
from typing import Any, NamedTuple

from tests.tiny import PREEMPT, RECLAIM, Amounts, Cluster, Job, Node, Pods

MODEL = Path(__file__).parent.parent / "models" / "reference" / "cycle.mzn"
MAX_WAIT_SECONDS = 3600
GRACE_SECONDS = 60
K = 10**6


@dataclass(frozen=True)
class Optimum:
    """`levels` in solving order; `placed`, `evicted`, `moved`: pods per job in one plan that reaches them."""

    levels: Mapping[str, int]
    placed: Mapping[str, int]
    evicted: Mapping[str, int]
    moved: Mapping[str, int]


@dataclass(frozen=True)
class Data:
    """What `cycle.mzn` is given, and whose its pod sets and victim sets are. `claimants` of section 8, else none.
    `waiting`: who may start, and is not polite.
    """

    values: dict[str, Any]
    set_jobs: list[str]
    victim_jobs: list[str]
    claimants: frozenset[str]
    waiting: frozenset[str]


@dataclass(frozen=True)
class Member:
    """One pod of a job; members are listed in task order."""

    pods: Pods
    priority: int
    pod_set: int = -1


@dataclass(frozen=True)
class Unit:
    """The minimum of a running job, or one running pod beyond it."""

    job: str
    members: tuple[Member, ...]
    minimum: bool

    @property
    def request(self) -> dict[str, int]:
        return _sum(_slot(member.pods) for member in self.members)


@dataclass(frozen=True)
class PodSet:
    job: str
    shape: int
    pods: Pods
    count: int
    priority: int


def decide(tiny: Cluster, grain: int | None = None, k: int = K) -> Optimum:
    """The plan of a cycle: section 6; section 8 where that leaves a claimant pending and then evicts anything; section
    11 where a gang is still pending and more starts with moves.
    """
    best = optimum(tiny, grain, k)
    completed = frozenset(job for job, placed in best.placed.items() if placed)
    data = parameters(tiny, grain, k, evicting=True, completed=completed)
    if not data.claimants <= completed:
        second = optimum(tiny, grain, k, evicting=True, completed=completed)
        best = second if any(second.evicted.values()) else best
    if not tiny.moving or all(best.placed[job] for job in data.waiting):
        return best
    third = optimum(tiny, grain, k, evicting=True, completed=completed, moving=True)
    starts = [
        (value, best.levels[name]) for name, value in third.levels.items() if "start>=" in name and name in best.levels
    ]
    higher = next((new > old for new, old in starts if new != old), False)
    return third if higher and any(third.moved.values()) else best


def optimum(
    tiny: Cluster,
    grain: int | None = None,
    k: int = K,
    *,
    evicting: bool = False,
    completed: frozenset[str] = frozenset(),
    moving: bool = False,
) -> Optimum:
    """The level values of the best plan of `tiny`, of section 6, (`evicting`) of section 8, or with `moving` of 11.

    `completed`: jobs that section 6 places pods of; they are not broken afterwards.

    `grain` replaces GRAIN and `k` the K of O2 and O6: Gecode's integers have 32 bits. Raises RuntimeError with
    MiniZinc's own words if it finds no plan; there always is one, the empty plan.
    """
    data = parameters(tiny, grain, k, evicting=evicting, completed=completed, moving=moving)
    levels: dict[str, int] = {}
    while "order" not in levels:
        *lines, placed, evicted, moved = _solve(data.values | {"lock": list(levels.values())})
        levels = {name: int(value) for name, value in map(str.split, lines)}
    leaving = [_per_job(tiny, data.victim_jobs, line) for line in (evicted, moved)]
    return Optimum(levels, _per_job(tiny, data.set_jobs, placed), *leaving)


def _per_job(tiny: Cluster, jobs: Sequence[str], line: str) -> dict[str, int]:
    out = dict.fromkeys(tiny.jobs, 0)
    for job, count in zip(jobs, line.split()[1:], strict=True):
        out[job] += int(count)
    return out


def _solve(data: Mapping[str, Any]) -> list[str]:
    """The lines that `levels.mzn` prints for its best solution."""
    with tempfile.NamedTemporaryFile("w", suffix=".dzn") as file:
        file.writelines(f"{name} = {_literal(value)};\n" for name, value in data.items())
        file.flush()
        run = subprocess.run(
            ["minizinc", "--solver", "gecode", str(MODEL), file.name],
            check=False,  # what it prints tells more than its status
            capture_output=True,
            text=True,
            timeout=60,
        )
    solutions = run.stdout.split("----------\n")
    if len(solutions) < 2 or "==========" not in solutions[-1]:
        raise RuntimeError(f"minizinc: {run.stdout}{run.stderr}")
    return solutions[-2].splitlines()


def parameters(
    tiny: Cluster,
    grain: int | None,
    k: int,
    *,
    evicting: bool = False,
    completed: frozenset[str] = frozenset(),
    moving: bool = False,
) -> Data:
    """The data of `cycle.mzn`."""
    resources, nodes, queues = _resources(tiny), list(tiny.nodes), list(tiny.queues)
    total = _sum(node.alloc for node in tiny.nodes.values())
    foreign = _sum(request for _, request in tiny.foreign)
    avail = {r: max(0, total[r] - foreign.get(r, 0)) for r in total}
    free = {n: _minus(tiny.nodes[n].alloc, _sum(_running_on(tiny, n))) for n in nodes}

    # Sets, shapes, members.
    jobs = [name for name, job in tiny.jobs.items() if any(_pending(p) for p in job.pods)]
    shapes, sets, members = _pod_sets(tiny, jobs)
    pending_shapes = len(shapes)
    tied = {job.near[0] for job in tiny.jobs.values() if job.near} | {
        job.away[0] for job in tiny.jobs.values() if job.away
    }
    if moving:
        shapes += [
            (p, name)
            for name, job in tiny.jobs.items()
            if not (job.apart or job.near or job.away or job.spread or name in tied)
            for p in job.pods
            if p.runs and not p.port
        ]
    running = {name: _task_order(job, [p for p in job.pods if p.runs]) for name, job in tiny.jobs.items()}

    # Minimums.
    need: dict[str, int] = {}
    role_need: dict[str, dict[str, int]] = {}
    for name, job in tiny.jobs.items():
        minimum, role_minimum = _minimum(tiny, job)
        ready = [p for p in job.pods if p.runs or p.succeeded]
        role_need[name] = {o: max(0, n - sum(p.count for p in ready if p.role == o)) for o, n in role_minimum.items()}
        need[name] = max(0, minimum - sum(p.count for p in ready), sum(role_need[name].values()))
    roles = [(name, o) for name in jobs for o in role_need[name]]
    pending_minimum = {name: _canonical(members[name], need[name], role_need[name]) for name in jobs}

    # Can start: only what fits the empty cluster asks.
    predicates = _predicates(tiny, nodes, shapes)
    places = []
    for s, (p, _) in enumerate(shapes, 1):
        repelling = zip(predicates["one_shapes"], predicates["one_dom"].rows, strict=True)
        single = any(s in alike and len(set(domains)) == len(nodes) for alike, domains in repelling)
        allowed = [
            tiny.nodes[n] for n, forbidden in zip(nodes, predicates["no"].rows[s - 1], strict=True) if not forbidden
        ]
        fits = [_fits(node.alloc, p.request) for node in allowed]
        places.append(sum(min(n, 1) if single else n for n in fits))
    can = [min(t.count, places[t.shape]) for t in sets]

    def fitting(job: str, roles: Iterable[str] | None = None) -> int:
        return sum(
            n for t, n in zip(sets, can, strict=True) if t.job == job and (roles is None or t.pods.role in roles)
        )

    startable = {
        name
        for name in jobs
        if fitting(name) >= need[name] and all(fitting(name, [o]) >= n for o, n in role_need[name].items())
    }
    can = [n if t.job in startable else 0 for t, n in zip(sets, can, strict=True)]

    # Running units: the minimum of a job whose minimum runs, and single pods beyond it.
    units: list[Unit] = []
    for name, job in tiny.jobs.items():
        if need[name] == 0 and running[name]:
            first = _canonical(running[name], *_running_minimum(tiny, job))
            if first:
                units.append(Unit(name, tuple(running[name][i] for i in first), minimum=True))
            units += [Unit(name, (member,), minimum=False) for i, member in enumerate(running[name]) if i not in first]

    # Section 3.
    used = {
        q: _sum(_slot(m.pods) for name in tiny.jobs if tiny.jobs[name].queue == q for m in running[name])
        for q in queues
    }
    pending = {
        q: _sum(_times(n, _slot(t.pods)) for t, n in zip(sets, can, strict=True) if tiny.jobs[t.job].queue == q)
        for q in queues
    }
    ask = {q: _sum([used[q], pending[q]]) for q in queues}
    contended = {r: r != "pods" and sum(ask[q].get(r, 0) for q in queues) > avail.get(r, 0) for r in resources}
    shared = any(contended[r] and sum(ask[q].get(r, 0) > 0 for q in queues) > 1 for r in resources)
    grain_of = {r: gcd(*(p.request.get(r, 0) for p, _ in shapes[:pending_shapes])) or 1 for r in resources} | {
        "pods": 1
    }
    deserved = {q: {} for q in queues} if not _shares(tiny) else _deserved(tiny, resources, ask, avail)

    # Values.
    def share(x: Amounts) -> Fraction:
        largest = max(
            (Fraction(x.get(r, 0), total[r]) for r in total if r != "pods" and total[r] > 0), default=Fraction(0)
        )
        return min(Fraction(1), largest)

    if grain is None:
        pods = [_slot(t.pods) for t in sets for _ in range(t.count)]
        shares = [share(x) for x in [*pods, *(u.request for u in units)]]
        grain = min(2**26, floor(2**30 / (1 + sum(shares, Fraction(0)))))
        whole = lcm(*(x.denominator for x in shares))
        grain = grain // whole * whole or grain

    def value(x: Amounts) -> int:
        return max(1, floor(grain * share(x)))

    held = {name: _sum(_slot(m.pods) for m in running[name]) for name in jobs}
    v_start = {
        name: value(_sum([held[name], *(_slot(members[name][i].pods) for i in pending_minimum[name])])) for name in jobs
    }
    growth = [
        sum(
            1 for name in jobs for i, m in enumerate(members[name]) if m.pod_set == t and i not in pending_minimum[name]
        )
        for t in range(len(sets))
    ]

    # Ranks and ages.
    rank = {name: _rank(tiny, name, need[name], running[name]) for name in jobs}
    ranks = sorted(set(rank.values()), reverse=True)
    times = sorted({tiny.jobs[name].created for name in startable}, reverse=True)
    assert len(times) <= 16, "more than 16 creation times: not a tiny cluster"

    def position(of: Rank) -> int:
        return next((i for i, d in enumerate(ranks, 1) if of >= d), len(ranks) + 1)

    # Section 8.
    facts = Facts(tiny, running, need, startable, units, _shares(tiny) and shared, contended, used, deserved)
    evictions = _evictions(facts, completed) if evicting else Evictions({}, {}, [], frozenset())
    if evicting:
        ranks = sorted({*rank.values(), *_holder_ranks(evictions.holders, rank.values())}, reverse=True)
    # what runs above a minimum counts below its priority in section 6 too: else it came back before whom it went for
    holders = evictions.holders if evicting else _evictions(facts, frozenset()).holders
    unit_position = [_unit_position(u, holders, ranks, facts) for u in units]
    room = _room(facts, evictions, unit_position)

    # One unit per resource: rows and ratios do not change when a resource is counted in its greatest common divisor.
    tables: dict[str, list[Amounts]] = {
        "free": [free[n] for n in nodes],
        "req": [_slot(p) for p, _ in shapes],
        "held": [held[name] if need[name] > 0 else {} for name in jobs],
        "unit_req": [u.request for u in units],
        "victim_req": [_slot(v.pods) for v in evictions.victims],
        "room": [room[q] for q in queues],
        "used": [used[q] for q in queues],
        "deserved": [deserved[q] for q in queues],
        "guar": [tiny.queues[q].guarantee or {} for q in queues],
        "ceil_": [tiny.queues[q].capability or {} for q in queues],
        "avail": [avail],
        "grain": [grain_of],
    }
    unit_of = {r: gcd(*(row.get(r, 0) for rows in tables.values() for row in rows)) or 1 for r in resources}
    data: dict[str, Any] = {
        name: _table(rows, resources, unit_of, -1 if name == "ceil_" else 0)
        for name, rows in tables.items()
        if name not in ("avail", "grain")
    }
    data |= {name: [tables[name][0].get(r, 0) // unit_of[r] for r in resources] for name in ("avail", "grain")}
    data |= {
        "R": len(resources),
        "N": len(nodes),
        "S": len(shapes),
        "T": len(sets),
        "J": len(jobs),
        "Q": len(queues),
        "U": len(units),
        "D": len(ranks),
        "O": len(roles),
        "K": k,
        "best_effort": [not any(p.request.values()) for p, _ in shapes],
        "set_job": [jobs.index(t.job) + 1 for t in sets],
        "set_shape": [t.shape + 1 for t in sets],
        "set_role": [roles.index((t.job, t.pods.role)) + 1 if (t.job, t.pods.role) in roles else 0 for t in sets],
        "cnt": [t.count for t in sets],
        "can": can,
        "growth": growth,
        "lower": [len({u.priority for u in sets if u.job == t.job and u.priority < t.priority}) for t in sets],
        "v_pod": [value(_slot(t.pods)) for t in sets],
        "job_queue": [queues.index(tiny.jobs[name].queue) + 1 for name in jobs],
        "job_rank": [position(rank[name]) for name in jobs],
        "need": [need[name] for name in jobs],
        "v_start": [v_start[name] for name in jobs],
        "base": [v_start[name] if need[name] > 0 else value(held[name]) for name in jobs],
        "age": [times.index(tiny.jobs[name].created) if name in startable else 0 for name in jobs],
        "role_job": [jobs.index(name) + 1 for name, _ in roles],
        "role_need": [role_need[name][o] for name, o in roles],
        "unit_queue": [queues.index(tiny.jobs[u.job].queue) + 1 for u in units],
        "unit_rank": unit_position,
        "v_unit": [value(u.request) for u in units],
        "rank_name": [f"{d.priority}{'!' if d.ahead else ('', '+', '++', '-')[d.step]}" for d in ranks],
        "first_claim": [d.ahead for d in ranks],
        "contended": [contended[r] for r in resources],
        "ceilings": _shares(tiny),
        "in_share": _shares(tiny) and shared,
        "drf": "drf" in tiny.plugins,
        "allocate": "allocate" in tiny.actions,
        "backfill": "backfill" in tiny.actions,
    }
    data |= _eviction_data(facts, evictions, ranks, jobs, value) | {"evicting": evicting}
    again = {id(p): s for s, (p, _) in enumerate(shapes, 1) if s > pending_shapes}
    broken = {name for name, holder in evictions.holders.items() if holder.broken}
    data["most"] = tiny.moves if moving else 0
    data["victim_shape"] = [0 if v.job in broken else again.get(id(v.pods), 0) for v in evictions.victims]
    data["asks"] = [
        {
            r
            for r, name in enumerate(resources, 1)
            if contended[name] and any(t.pods.request.get(name, 0) for t in sets if t.job == job)
        }
        for job in jobs
    ]
    data["over"] = [
        {
            r
            for r, name in enumerate(resources, 1)
            if contended[name] and shared and used[q].get(name, 0) > deserved[q].get(name, 0)
        }
        for q in queues
    ]
    polite = {t.job for t in sets if t.pods.polite}
    waiting = frozenset(name for name in startable if need[name] > 0 and name not in polite)
    victim_jobs = [v.job for v in evictions.victims]
    return Data(data | predicates, [t.job for t in sets], victim_jobs, evictions.claimants, waiting)


@dataclass(frozen=True)
class Facts:
    """What section 8 reads of the sections before it."""

    tiny: Cluster
    running: Mapping[str, Sequence[Member]]
    need: Mapping[str, int]
    startable: set[str]
    units: Sequence[Unit]
    in_share: bool
    contended: Mapping[str, bool]
    used: Mapping[str, Amounts]
    deserved: Mapping[str, Amounts]

    def priority(self, job: str) -> int:
        return _priority(self.tiny, self.tiny.jobs[job])

    def queue(self, job: str) -> str:
        return self.tiny.jobs[job].queue


@dataclass(frozen=True)
class Holder:
    """`whole`: every pod of it may go. `surplus_below`: what it runs beyond its minimum ranks below its priority."""

    priority: int
    runs: int
    minimum: int
    role_runs: Mapping[str, int]
    role_minimum: Mapping[str, int]
    broken: bool
    whole: bool
    surplus_below: bool

    @property
    def surplus(self) -> int:
        return 0 if self.broken else self.runs - self.minimum


@dataclass(frozen=True)
class Victim:
    """Pods of one job, node, request, role, pod priority and age that may go."""

    job: str
    pods: Pods
    priority: int
    age: int
    count: int


@dataclass(frozen=True)
class Rights:
    """Claimants that may take from a holder: `takers` it whole and `equals` its surplus by preempt; `reclaimers`."""

    takers: frozenset[str] = frozenset()
    equals: frozenset[str] = frozenset()
    reclaimers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Evictions:
    holders: Mapping[str, Holder]
    rights: Mapping[str, Rights]
    victims: Sequence[Victim]
    claimants: frozenset[str]


def _evictions(facts: Facts, completed: frozenset[str]) -> Evictions:
    tiny = facts.tiny
    drf = _on(tiny, "drf", "enablePreemptable")
    victims: dict[tuple[object, ...], Victim] = {}
    holders: dict[str, Holder] = {}
    for name, job in tiny.jobs.items():
        members = facts.running[name]
        going = [m for m in members if _may_go(facts, name, m) and not (facts.need[name] > 0 and name in completed)]
        for m in going:
            age = _age(tiny, job, m.pods)
            look = tuple(sorted(m.pods.selector.items())), m.pods.tolerates, m.pods.port
            key = (name, m.pods.node, *sorted(m.pods.request.items()), m.pods.role, m.priority, age, look)
            before = victims[key].count if key in victims else 0
            victims[key] = Victim(name, m.pods, m.priority, age, before + 1)
        if going:
            minimum, roles = _running_minimum(tiny, job)
            broken = facts.need[name] > 0
            holders[name] = Holder(
                facts.priority(name),
                len(members),
                minimum,
                {o: sum(m.pods.role == o for m in members) for o in roles},
                roles,
                broken,
                whole=len(going) == len(members),
                surplus_below=not broken
                and len(members) > minimum
                and drf
                and bool(PREEMPT.intersection(tiny.actions)),
            )

    # Who waits, and from whom it may take.
    rights = dict.fromkeys(holders, Rights())
    claimants: set[str] = set()
    reclaim = facts.in_share and bool(RECLAIM.intersection(tiny.actions))
    reclaim = reclaim and any(_on(tiny, plugin, "enableReclaimable") for plugin in ("proportion", "capacity"))
    for name in facts.startable:
        pending = [p for p in tiny.jobs[name].pods if _pending(p)]
        if facts.need[name] == 0 or any(p.polite for p in pending):
            continue
        for other, holder in holders.items():
            old, q = rights[other], facts.queue(other)
            if other == name:
                continue
            if q == facts.queue(name):
                acts = bool(PREEMPT.intersection(tiny.actions))
                outright = acts and (holder.broken or holder.priority < facts.priority(name))
                surplus = holder.surplus_below and holder.priority == facts.priority(name)
                if outright or surplus:
                    claimants.add(name)
                    rights[other] = (
                        replace(old, takers=old.takers | {name})
                        if outright
                        else replace(old, equals=old.equals | {name})
                    )
            elif reclaim and tiny.queues[q].reclaimable:
                asked = {r for p in pending for r, v in p.request.items() if v and facts.contended[r]}
                if any(facts.used[q].get(r, 0) > facts.deserved[q][r] for r in asked):
                    claimants.add(name)
                    rights[other] = replace(old, reclaimers=old.reclaimers | {name})
    return Evictions(holders, rights, list(victims.values()), frozenset(claimants))


def _may_go(facts: Facts, name: str, member: Member) -> bool:
    tiny, job = facts.tiny, facts.tiny.jobs[name]
    starving = _on(tiny, "gang", "enableJobStarving") or _on(tiny, "priority", "enableJobStarving")
    since = _since(job, facts.running[name])
    leaving = any(pods.terminating for pods in job.pods)
    young = facts.need[name] > 0 and (leaving or tiny.now - since < GRACE_SECONDS)
    return starving and member.pods.preemptable and not young


def _age(tiny: Cluster, job: Job, pods: Pods) -> int:
    minutes = (tiny.now - (job.created if pods.started is None else pods.started)) // 60
    return int(2 ** minutes.bit_length())


class Rank(NamedTuple):
    """`ahead`: it broke just now. `step`: 2 = broken, 1 = has waited beyond its limit, 0 = neither, -1 = surplus."""

    ahead: bool
    priority: int
    step: int


def _rank(tiny: Cluster, name: str, need: int, running: Sequence[Member]) -> Rank:
    job = tiny.jobs[name]
    priority = _priority(tiny, job)
    if need and any(p.count for p in job.pods if p.runs or p.succeeded):
        leaving = any(pods.terminating for pods in job.pods)
        ahead = bool(running) and not leaving and tiny.now - _since(job, running) < GRACE_SECONDS
        return Rank(ahead, priority, 2)
    return Rank(False, priority, int(need > 0 and tiny.now - job.created > MAX_WAIT_SECONDS))


def _since(job: Job, running: Sequence[Member]) -> int:
    """The youngest of its pods tells when a job fell below its minimum."""
    return max([job.created, *(job.created if m.pods.started is None else m.pods.started for m in running)])


def _holder_ranks(holders: Mapping[str, Holder], pending: Iterable[Rank]) -> Iterable[Rank]:
    """A holder stands where broken or aged jobs of its priority do, if there are any."""
    pending = [rank for rank in pending if not rank.ahead]
    for holder in holders.values():
        steps = [rank.step for rank in pending if rank.priority == holder.priority]
        yield Rank(False, holder.priority, max(steps, default=0))
        if holder.surplus_below:
            yield Rank(False, holder.priority, -1)


def _first_of(priority: int, ranks: Sequence[Rank]) -> int:
    """The first rank of at most this priority."""
    return next((i for i, d in enumerate(ranks, 1) if not d.ahead and d.priority <= priority), len(ranks) + 1)


def _surplus_position(holder: Holder, ranks: Sequence[Rank]) -> int:
    if holder.surplus_below:
        below = Rank(False, holder.priority, -1)
        return next((i for i, d in enumerate(ranks, 1) if not d.ahead and d <= below), len(ranks) + 1)
    return _first_of(holder.priority, ranks)


def _unit_position(unit: Unit, holders: Mapping[str, Holder], ranks: Sequence[Rank], facts: Facts) -> int:
    if unit.minimum or unit.job not in holders:
        return _first_of(facts.priority(unit.job), ranks)
    return _surplus_position(holders[unit.job], ranks)


def _room(facts: Facts, evictions: Evictions, unit_position: Sequence[int]) -> dict[str, dict[str, int]]:
    """What reclaim may take: what the running units that fit into the share leave, and never of the guarantee."""

    def stays(unit: Unit) -> bool:
        if unit.minimum:
            return unit.job not in evictions.holders or not evictions.holders[unit.job].whole
        return not _may_go(facts, unit.job, unit.members[0])

    def kind(unit: Unit) -> tuple[object, ...]:
        return (facts.queue(unit.job), facts.priority(unit.job), *sorted(unit.request.items()))

    first: dict[tuple[object, ...], int] = {}
    for i, unit in enumerate(sorted(facts.units, key=lambda u: u.job)):
        first.setdefault(kind(unit), i)
    order = sorted(
        zip(facts.units, unit_position, strict=True), key=lambda u: (not stays(u[0]), u[1], first[kind(u[0])])
    )
    out: dict[str, dict[str, int]] = {}
    for q, used in facts.used.items():
        binding = [r for r in used if facts.contended[r] and facts.in_share]
        taken: dict[str, int] = {}
        for unit, _ in order:
            more = _sum([taken, unit.request])
            if facts.queue(unit.job) == q and all(more.get(r, 0) <= facts.deserved[q][r] for r in binding):
                taken = more
        guaranteed = facts.tiny.queues[q].guarantee or {}
        out[q] = {
            r: min(v - (taken.get(r, 0) if r in binding else 0), v - min(v, guaranteed.get(r, 0)))
            for r, v in used.items()
        }
    return out


def _eviction_data(
    facts: Facts,
    evictions: Evictions,
    ranks: Sequence[Rank],
    jobs: Sequence[str],
    value: Callable[[Amounts], int],
) -> dict[str, Any]:
    tiny, holders, victims = facts.tiny, evictions.holders, evictions.victims
    names, queues, nodes = list(holders), list(tiny.queues), list(tiny.nodes)
    limits = [(name, o) for name, holder in holders.items() for o in holder.role_minimum]
    # Whole gangs are not for preempt where gang says what stands above minimums and drf does not say more.
    above_only = _on(tiny, "gang", "enablePreemptable") and not _on(tiny, "drf", "enablePreemptable")
    queue_levels = sorted({tiny.queues[facts.queue(v.job)].priority for v in victims})
    pod_levels = sorted({(facts.priority(v.job), v.priority) for v in victims})

    def of(name: str, *, minimum: bool) -> list[int]:
        return [value(u.request) for u in facts.units if u.job == name and u.minimum == minimum]

    pending = {name: [p for p in tiny.jobs[name].pods if _pending(p)] for name in jobs}
    return {
        "H": len(names),
        "V": len(victims),
        "B": len(tiny.budgets),
        "L": len(limits),
        "holder_queue": [queues.index(facts.queue(name)) + 1 for name in names],
        "holder_job": [jobs.index(name) + 1 if name in jobs else 0 for name in names],
        "holder_rank": [_first_of(h.priority, ranks) for h in holders.values()],
        "surplus_rank": [_surplus_position(h, ranks) for h in holders.values()],
        "runs": [h.runs for h in holders.values()],
        "hmin": [h.minimum for h in holders.values()],
        "broken": [h.broken for h in holders.values()],
        "may_end": [h.whole for h in holders.values()],
        "may_end_by_preempt": [bool(evictions.rights[name].takers) and not above_only for name in names],
        **{
            field: [{jobs.index(job) + 1 for job in getattr(evictions.rights[name], field)} for name in names]
            for field in ("takers", "equals", "reclaimers")
        },
        "v_minimum": [sum(of(name, minimum=True)) for name in names],
        "v_beyond": [sum(of(name, minimum=False)) for name in names],
        "limit_holder": [names.index(name) + 1 for name, _ in limits],
        "limit_runs": [holders[name].role_runs[o] for name, o in limits],
        "limit_min": [holders[name].role_minimum[o] for name, o in limits],
        "victim_holder": [names.index(v.job) + 1 for v in victims],
        "victim_node": [nodes.index(v.pods.node) + 1 for v in victims],
        "victim_limit": [
            limits.index((v.job, v.pods.role)) + 1 if (v.job, v.pods.role) in limits else 0 for v in victims
        ],
        "victim_cnt": [v.count for v in victims],
        "pre": [bool(evictions.rights[v.job].takers | evictions.rights[v.job].equals) for v in victims],
        "rec": [bool(evictions.rights[v.job].reclaimers) for v in victims],
        "v_victim": [value(_slot(v.pods)) for v in victims],
        "lost": [v.age for v in victims],
        "queue_position": [queue_levels.index(tiny.queues[facts.queue(v.job)].priority) for v in victims],
        "pod_position": [pod_levels.index((facts.priority(v.job), v.priority)) for v in victims],
        "guarded": [{i for i, v in enumerate(victims, 1) if v.job in b.jobs} for b in tiny.budgets.values()],
        "left_": [b.allowed for b in tiny.budgets.values()],
        "polite": [any(p.polite for p in pending[name]) for name in jobs],
        "nominated": [any(p.nominated for p in pending[name]) for name in jobs],
        "unit_holder": [names.index(u.job) + 1 if u.job in holders else 0 for u in facts.units],
        "unit_is_minimum": [u.minimum for u in facts.units],
        "unit_alike": [sum(_slot(m.pods) == u.request for m in facts.running[u.job]) for u in facts.units],
    }


def _resources(tiny: Cluster) -> list[str]:
    requests = [p.request for job in tiny.jobs.values() for p in job.pods]
    return sorted(
        {"pods"}.union(*(node.alloc for node in tiny.nodes.values()), *requests, *(x for _, x in tiny.foreign))
    )


def _sum(amounts: Iterable[Amounts]) -> dict[str, int]:
    out: dict[str, int] = {}
    for x in amounts:
        for r, v in x.items():
            out[r] = out.get(r, 0) + v
    return out


def _minus(a: Amounts, b: Amounts) -> dict[str, int]:
    return {r: a.get(r, 0) - b.get(r, 0) for r in {**a, **b}}


def _times(count: int, x: Amounts) -> dict[str, int]:
    return {r: count * v for r, v in x.items()}


def _slot(pods: Pods) -> dict[str, int]:
    """The request of one pod, its slot included."""
    return {**pods.request, "pods": 1}


def _pending(pods: Pods) -> bool:
    return not pods.node and not pods.succeeded


def _on(tiny: Cluster, plugin: str, switch: str) -> bool:
    """A switch that is not named is on."""
    return plugin in tiny.plugins and tiny.switches.get(plugin, {}).get(switch, True)


def _running_on(tiny: Cluster, node: str) -> Iterable[Amounts]:
    yield from ({**request, "pods": 1} for on, request in tiny.foreign if on == node)
    yield from (_times(p.count, _slot(p)) for job in tiny.jobs.values() for p in job.pods if p.runs and p.node == node)


def _fits(alloc: Amounts, request: Amounts) -> int:
    return min([alloc.get("pods", 0), *(alloc.get(r, 0) // v for r, v in request.items() if v)])


def _admits(tiny: Cluster, node: Node, pods: Pods) -> bool:
    """Node selector and taint: what does not depend on the pods that run there."""
    if "predicates" not in tiny.plugins:
        return True
    return node.taint in ("", pods.tolerates) and all(node.labels.get(key) == v for key, v in pods.selector.items())


def _shares(tiny: Cluster) -> bool:
    return "proportion" in tiny.plugins or "capacity" in tiny.plugins


def _priority(tiny: Cluster, job: Job) -> int:
    return job.priority if "priority" in tiny.plugins else 0


def _minimum(tiny: Cluster, job: Job) -> tuple[int, Mapping[str, int]]:
    """minMember and the roles that bind."""
    if "gang" not in tiny.plugins:
        return 1, {}
    return job.min, job.roles if sum(job.roles.values()) <= job.min else {}


def _running_minimum(tiny: Cluster, job: Job) -> tuple[int, dict[str, int]]:
    """What must run of it, and of its roles, while it runs: what succeeded is done."""
    minimum, roles = _minimum(tiny, job)
    done = {o: sum(p.count for p in job.pods if p.succeeded and p.role == o) for o in {p.role for p in job.pods}}
    left = {o: max(0, n - done.get(o, 0)) for o, n in roles.items()}
    return max(0, minimum - sum(done.values()), sum(left.values())), left


def _task_order(job: Job, lines: Sequence[Pods]) -> list[Member]:
    pods = [Member(p, job.pod_priority(p)) for p in lines for _ in range(p.count)]
    return sorted(pods, key=lambda member: -member.priority)


def _canonical(members: Sequence[Member], need: int, roles: Mapping[str, int]) -> list[int]:
    """Positions of the members that make up the minimum: the roles' needs first, then the task order."""
    picked = [i for o, n in roles.items() for i in [i for i, m in enumerate(members) if m.pods.role == o][:n]]
    return picked + [i for i in range(len(members)) if i not in picked][: max(0, need - len(picked))]


def _pod_sets(
    tiny: Cluster, jobs: Sequence[str]
) -> tuple[list[tuple[Pods, str]], list[PodSet], dict[str, list[Member]]]:
    """Shapes (pods, and their job where a rule between pods may name it), pod sets in task order, members per job."""
    named = any(job.apart or job.near or job.away or job.spread for job in tiny.jobs.values())
    shapes: dict[tuple[object, ...], tuple[int, Pods, str]] = {}
    sets: list[PodSet] = []
    members: dict[str, list[Member]] = {}
    for name in jobs:
        first: dict[tuple[object, ...], int] = {}
        members[name] = []
        for member in _task_order(tiny.jobs[name], [p for p in tiny.jobs[name].pods if _pending(p)]):
            p = member.pods
            look = (*sorted(p.request.items()), *sorted(p.selector.items()), p.tolerates, p.port, name if named else "")
            shape = shapes.setdefault(look, (len(shapes), p, name))[0]
            t = first.setdefault((shape, p.role, member.priority), len(sets))
            if t == len(sets):
                sets.append(PodSet(name, shape, p, 0, member.priority))
            sets[t] = PodSet(name, shape, p, sets[t].count + 1, member.priority)
            members[name].append(Member(p, member.priority, t))
    return [(p, name) for _, p, name in shapes.values()], sets, members


def _deserved(
    tiny: Cluster, resources: Sequence[str], ask: Mapping[str, Amounts], avail: Amounts
) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {q: {} for q in tiny.queues}
    for r in resources:
        have = avail.get(r, 0)
        guar = {q: (queue.guarantee or {}).get(r, 0) for q, queue in tiny.queues.items()}
        others = {q: sum(guar.values()) - guar[q] for q in guar}
        limit = {q: (queue.capability or {}).get(r, have) for q, queue in tiny.queues.items()}
        real = {q: min(limit[q], have - others[q]) for q in guar}
        if "proportion" in tiny.plugins:
            cap = {q: min(ask[q].get(r, 0), real[q]) for q in guar}
            weight = {q: queue.weight for q, queue in tiny.queues.items()}
            shares = _water(have, weight, {q: min(guar[q], have) for q in guar}, cap)
        else:
            spec = {q: (queue.deserved or {}).get(r, 0) for q, queue in tiny.queues.items()}
            shares = {q: Fraction(min(max(min(spec[q], real[q]), guar[q]), ask[q].get(r, 0))) for q in guar}
        for q, row in out.items():
            row[r] = floor(shares[q])
    return out


def _water(
    avail: int, weight: Mapping[str, int], low: Mapping[str, int], cap: Mapping[str, int]
) -> dict[str, Fraction]:
    """Everybody at max(low, min(cap, weight x level)), the level as high as `avail` allows."""

    def at(level: Fraction) -> dict[str, Fraction]:
        return {q: max(Fraction(low[q]), min(Fraction(cap[q]), weight[q] * level)) for q in weight}

    before = Fraction(0)
    if sum(at(before).values()) >= avail:
        return at(before)
    for level in sorted({Fraction(x, weight[q]) for q in weight if weight[q] for x in (low[q], cap[q]) if x > 0}):
        filled, over = sum(at(before).values()), sum(at(level).values())
        if over > avail:
            return at(before + (level - before) * Fraction(avail - filled) / (over - filled))
        before = level
    return at(before)


def _predicates(tiny: Cluster, nodes: Sequence[str], shapes: Sequence[tuple[Pods, str]]) -> dict[str, Any]:
    no = [[not _admits(tiny, tiny.nodes[n], p) for n in nodes] for p, _ in shapes]
    rules: dict[str, list[Any]] = {
        key: []
        for key in (
            "one_shapes",
            "one_dom",
            "left",
            "right",
            "apart_dom",
            "near",
            "target",
            "near_dom",
            "present",
            "may_seed",
            "spread",
            "counted",
            "spread_dom",
            "there",
            "max_skew",
        )
    }

    def domains(key: str) -> list[int]:
        if key == "node":
            return list(range(1, len(nodes) + 1))
        values = sorted({node.labels[key] for node in tiny.nodes.values() if key in node.labels})
        return [values.index(tiny.nodes[n].labels[key]) + 1 if key in tiny.nodes[n].labels else 0 for n in nodes]

    def of(job: str) -> set[int]:
        return {s + 1 for s, (_, owner) in enumerate(shapes) if owner == job}

    def runs(lines: Iterable[Pods], domain: Sequence[int]) -> list[int]:
        """Pods that run in each domain, 1-based domains."""
        count = [0] * (len(nodes) + 1)
        for p in lines:
            if p.runs:
                count[domain[nodes.index(p.node)]] += p.count
        return count

    def refuse(job_shapes: set[int], domain: Sequence[int], taken: Sequence[int]) -> None:
        for s in job_shapes:
            no[s - 1] = [flag or (g > 0 and taken[g] > 0) for flag, g in zip(no[s - 1], domain, strict=True)]

    everything = [(name, p) for name, job in tiny.jobs.items() for p in job.pods]
    for port in sorted({p.port for _, p in everything if p.port}):
        asking = {s + 1 for s, (p, _) in enumerate(shapes) if p.port == port}
        refuse(asking, domains("node"), runs([p for _, p in everything if p.port == port], domains("node")))
        rules["one_shapes"].append(asking)
        rules["one_dom"].append(domains("node"))
    for name, job in tiny.jobs.items():
        if job.apart:
            refuse(of(name), domains(job.apart), runs(job.pods, domains(job.apart)))
            rules["one_shapes"].append(of(name))
            rules["one_dom"].append(domains(job.apart))
        if job.away:
            other, domain = job.away[0], domains(job.away[1])
            refuse(of(name), domain, runs(tiny.jobs[other].pods, domain))
            refuse(of(other), domain, runs(job.pods, domain))
            rules["left"].append(of(name))
            rules["right"].append(of(other))
            rules["apart_dom"].append(domain)
        if job.near:
            other, domain = job.near[0], domains(job.near[1])
            taken = runs(tiny.jobs[other].pods, domain)
            rules["near"].append(of(name))
            rules["target"].append(of(other))
            rules["near_dom"].append(domain)
            rules["present"].append([taken[g] > 0 for g in domain])
            rules["may_seed"].append(other == name and not any(taken))
        if job.spread:
            for s in of(name):  # a pod's own selector says which nodes' domains are eligible to it
                admit = [_admits(tiny, tiny.nodes[n], shapes[s - 1][0]) for n in nodes]
                domain = [g if ok else 0 for g, ok in zip(domains(job.spread[0]), admit, strict=True)]
                rules["spread"].append({s})
                rules["counted"].append(of(name))
                rules["spread_dom"].append(domain)
                rules["there"].append(runs(job.pods, domain)[1:])
                rules["max_skew"].append(job.spread[1])
    if "predicates" not in tiny.plugins:
        rules = {key: [] for key in rules}
    wide = {
        key: _Rows(rules[key], len(nodes))
        for key in ("one_dom", "apart_dom", "near_dom", "present", "spread_dom", "there")
    }
    return {
        "no": _Rows(no, len(nodes)),
        **rules,
        **wide,
        "A1": len(rules["one_shapes"]),
        "A2": len(rules["left"]),
        "A3": len(rules["near"]),
        "A4": len(rules["spread"]),
    }


@dataclass(frozen=True)
class _Rows:
    """A table whose width is known even when it has no row."""

    rows: Sequence[Sequence[object]]
    width: int


def _table(rows: Sequence[Amounts], resources: Sequence[str], unit_of: Amounts, absent: int) -> _Rows:
    return _Rows([[row[r] // unit_of[r] if r in row else absent for r in resources] for row in rows], len(resources))


def _literal(value: object) -> str:
    """A value in MiniZinc's notation."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case _Rows(rows, width):
            return f"array2d(1..{len(rows)}, 1..{width}, {_literal([x for row in rows for x in row])})"
        case set():
            return "{" + ", ".join(map(_literal, sorted(value))) + "}"
        case list():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case _:
            return str(value)

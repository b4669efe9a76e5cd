"""All enabled plugins' answers on one problem, combined once: what solver, greedy, verifier and explainer read.

formulation.md, sections 2, 3 and the weights of section 6.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from solver_sched.plugins import PLUGINS
from solver_sched.plugins.drf import band_run, band_weight
from solver_sched.plugins.plugin import NodeScores, Plugin, QueueCeiling
from solver_sched.policy import Policy
from solver_sched.problem.arrays import Bools, DomainRule, Ints, Problem
from solver_sched.problem.shares import Demand, demand, waiting_for_backfill
from solver_sched.problem.vectors import alike

FEW = 64
"""Rows up to which it takes longer to tell them apart than to ask for each."""
MAX_GRAIN = 2**26
VALUE_SUM = 2**30
"""Sum of all values stays below this. Growth worth multiplies it by up to 2^10: far from 2^53, where doubles end."""
AGE_STEPS = 16
PRIORITY_STEPS = 3


class Worth(NamedTuple):
    """`pods` growth pods of a pod set, one after the other, each worth `each`; worths fall along a set."""

    pods: int
    each: int


@dataclass(frozen=True, eq=False, slots=True)
class Rules:
    """Axes as in `Problem`.

    forbidden_by: predicate code -> (S, K); forbidden (S, K): any of them, or no action places the shape.
    domain_rules: the domain rules that apply. minimum, need (J,); role_need (O,): members still missing.
    rank (J,): 0 is the highest; rank_names: name of each rank as levels print it, highest first; unit_rank (U,): rank
    whose level first counts the unit (running work of priority p counts from p on). holder_rank, surplus_rank (H,):
    the same for the minimum of a holder and for what runs above it.
    demand: what could start. deserved (Q, R) or None without an entitling plugin; contended (R,) is all False then.
    canonical (T,): pods of the set in the canonical minimum. start_value (J,), pod_value (T,), unit_value (U,),
    victim_value (V,) of one pod. spared (V,): a plugin keeps the set from going.
    age (J,): 0..15, oldest highest.
    ranked: some plugin orders jobs. starving, reclaims, ends_gangs, equals: whether a job without its minimum may make
    others give way; shares give a right to take from other queues; preempt may end a gang whole; what runs above a
    minimum gives way to a job of the same priority.
    """

    policy: Policy
    plugins: tuple[Plugin, ...]
    forbidden_by: Mapping[str, Bools]
    forbidden: Bools
    domain_rules: tuple[DomainRule, ...]
    minimum: Ints
    need: Ints
    role_need: Ints
    rank: Ints
    rank_names: tuple[str, ...]
    unit_rank: Ints
    holder_rank: Ints
    surplus_rank: Ints
    demand: Demand
    deserved: Ints | None
    contended: Bools
    ceilings: tuple[QueueCeiling, ...]
    grain: int
    canonical: Ints
    start_value: Ints
    pod_value: Ints
    unit_value: Ints
    victim_value: Ints
    spared: Bools
    age: Ints
    scores: NodeScores
    ranked: bool
    starving: bool
    reclaims: bool
    ends_gangs: bool
    equals: bool

    @property
    def first_claims(self) -> int:
        """How many ranks, the highest, are of gangs that broke just now (`P!`)."""
        return sum(name.endswith("!") for name in self.rank_names)

    @property
    def shared(self) -> bool:
        """Several queues ask for a same contended resource; alone, a queue's share is all there is (formulation 6)."""
        return self.deserved is not None and bool(((self.demand.ask > 0).sum(axis=0)[self.contended] > 1).any())


def derive(problem: Problem, policy: Policy, grain: int | None = None) -> Rules:
    """The rules of `policy` on `problem`. `grain` overrides GRAIN of formulation.md 2 (tests against the reference)."""
    plugins = tuple(PLUGINS[conf.name](conf, policy) for tier in policy.tiers for conf in tier if conf.name in PLUGINS)
    forbidden_by: dict[str, Bools] = {}
    for plugin in plugins:
        forbidden_by.update(plugin.forbidden(problem))
    forbidden = _no_action(problem, policy)
    for mask in forbidden_by.values():
        forbidden = forbidden | mask

    minimums = [answer for plugin in plugins if (answer := plugin.minimum(problem)) is not None]
    minimum = minimums[0] if minimums else np.ones_like(problem.job_min)
    need = np.maximum(0, minimum - problem.job_ready - waiting_for_backfill(problem, policy.places(best_effort=True)))
    role_need = np.maximum(0, problem.role_min - problem.role_ready) if minimums else np.zeros_like(problem.role_min)
    # roles may lack more than the whole: two of one role run where two of another are missing
    need = np.maximum(need, np.bincount(problem.role_job, weights=role_need, minlength=len(need)).astype(np.int64))
    rules_on = tuple(rule for rule in problem.domain_rules if any(plugin.applies(rule) for plugin in plugins))
    possible = forbidden.copy()
    if len(problem.victims.blocks):
        pairs = problem.unblocked(np.ones(len(problem.victims.holder), bool))
        possible[pairs[:, 0], problem.node_kind[pairs[:, 1]]] = False
    wanted = demand(problem, possible, rules_on, need, role_need)
    entitled = [share for plugin in plugins if (share := plugin.deserved(problem, wanted)) is not None]
    deserved = entitled[0] if entitled else None
    contended = wanted.contended if deserved is not None else np.zeros_like(wanted.contended)

    equals = any(plugin.takes_surplus_of_equals() for plugin in plugins)
    ranks = _ranks(problem, policy, plugins, need, equals)
    canonical = minimum_among(problem, problem.set_count, need, role_need)
    values = _Values(problem, grain)
    whole = problem.job_held.copy()
    np.add.at(whole, problem.set_job, canonical[:, None] * problem.request[problem.set_shape])
    start_value = values.of(whole)
    pod_value = values.of(problem.request)[problem.set_shape]
    voices = [said for plugin in plugins if (said := plugin.ends_gangs()) is not None]
    return Rules(
        policy=policy,
        plugins=plugins,
        forbidden_by=forbidden_by,
        forbidden=forbidden,
        domain_rules=rules_on,
        minimum=minimum,
        need=need,
        role_need=role_need,
        rank=ranks.rank,
        rank_names=ranks.names,
        unit_rank=ranks.unit,
        holder_rank=ranks.holder,
        surplus_rank=ranks.surplus,
        demand=wanted,
        deserved=deserved,
        contended=contended,
        ceilings=tuple(ceiling for plugin in plugins if (ceiling := plugin.ceiling(problem)) is not None),
        grain=values.grain,
        canonical=canonical,
        start_value=start_value,
        pod_value=pod_value,
        unit_value=values.of(problem.unit_request),
        victim_value=values.of(problem.victims.request),
        spared=_spared(problem, plugins),
        age=_age(problem, wanted),
        scores=_scores(problem, plugins),
        ranked=any(plugin.rank(problem) is not None for plugin in plugins),
        starving=any(plugin.starving() for plugin in plugins),
        reclaims=any(plugin.reclaims() for plugin in plugins),
        ends_gangs=any(voices) or not voices,
        equals=equals,
    )


def _spared(problem: Problem, plugins: tuple[Plugin, ...]) -> Bools:
    out = np.zeros(len(problem.victims.holder), bool)
    for plugin in plugins:
        mask = plugin.spares(problem)
        if mask is not None:
            out = out | mask
    return out


def _no_action(problem: Problem, policy: Policy) -> Bools:
    """(S, K) shapes that no listed action places (C10)."""
    placed = np.where(problem.shape_best_effort, policy.places(best_effort=True), policy.places(best_effort=False))
    return np.repeat(~placed.astype(bool)[:, None], problem.kinds, axis=1)


def age_limit(policy: Policy, plugins: Sequence[Plugin]) -> int:
    """Seconds after which a job that names no limit of its own ranks above its priority."""
    return next((limit for plugin in plugins if (limit := plugin.age_limit())), policy.solve.max_wait_seconds)


class _Ranks(NamedTuple):
    """Rank of each job (J,), unit (U,), holder and surplus of a holder (H,); names of all ranks, highest first."""

    rank: Ints
    names: tuple[str, ...]
    unit: Ints
    holder: Ints
    surplus: Ints


def _ranks(problem: Problem, policy: Policy, plugins: tuple[Plugin, ...], need: Ints, equals: bool) -> _Ranks:
    """Dense ranks, highest first: jobs that broke just now, then the first ordering plugin's key, then whether the job
    is broken, then whether it waited beyond its limit.

    A job that has started waits no more: else what it had to give up would come back to it as growth.
    """
    keys = [answer for plugin in plugins if (answer := plugin.rank(problem)) is not None]
    key = keys[0] if keys else np.zeros_like(problem.job_priority)
    limit = np.where(problem.job_age_limit > 0, problem.job_age_limit, age_limit(policy, plugins))
    aged = (problem.now - problem.job_created > limit) & (problem.job_created > 0) & (need > 0)
    broken = (problem.job_ready > 0) & (need > 0)  # what it runs is of no use before the rest does
    first_claim = (broken & problem.job_fresh).tolist()
    own = list(zip(first_claim, key.tolist(), np.where(broken, 2, aged).tolist(), strict=True))
    holders = problem.victims.priority.tolist() if keys else [0] * len(problem.victims.priority)
    # with victims their priorities are ranks too; what runs above a minimum may stand just below its priority
    steps = {*own, *((False, p, 0) for p in holders)}
    v = problem.victims
    loose = (~v.broken & (v.running > v.minimum)).tolist()
    if policy.preempts and equals:
        steps |= {(False, p, -1) for p, apart in zip(holders, loose, strict=True) if apart}
    pairs = sorted(steps, reverse=True)
    row = {pair: d for d, pair in enumerate(pairs)}
    unit_key = problem.unit_priority if keys else np.zeros_like(problem.unit_priority)
    # a unit of priority p counts in "at least p" and below: the first rank whose priority is at most p
    first = {
        p: next((d for d, (ahead, k, _) in enumerate(pairs) if not ahead and k <= p), len(pairs))
        for p in {*unit_key.tolist(), *holders}
    }
    surplus = [
        row.get((False, p, -1), first[p]) if apart else first[p] for p, apart in zip(holders, loose, strict=True)
    ]
    return _Ranks(
        rank=np.array([row[pair] for pair in own], np.int64),
        names=tuple(f"{p}!" if ahead else f"{p}{'-' if a < 0 else '+' * a}" for ahead, p, a in pairs),
        unit=np.array([first[p] for p in unit_key.tolist()], np.int64),
        holder=np.array([first[p] for p in holders], np.int64),
        surplus=np.array(surplus, np.int64),
    )


def minimum_among(problem: Problem, count: Ints, need: Ints, role_need: Ints) -> Ints:
    """(T,) of `count` pods of each set those that make up what the jobs lack: the roles' needs first, then the task
    order.
    """
    out = np.zeros_like(count)
    left = need.copy()
    for o, missing in enumerate(role_need.tolist()):
        for t in np.flatnonzero(problem.set_role == o):
            take = min(missing, int(count[t]))
            out[t] += take
            missing -= take
            left[problem.role_job[o]] -= take
    for t in np.flatnonzero(left[problem.set_job] > 0):
        take = min(int(left[problem.set_job[t]]), int(count[t] - out[t]))
        out[t] += take
        left[problem.set_job[t]] -= take
    return out


class _Values:
    """v(x) = max(1, floor(GRAIN x share(x))), share over every resource but `pods` (formulation.md 2)."""

    def __init__(self, problem: Problem, grain: int | None) -> None:
        slots = problem.slots.tolist()
        self._total = tuple(0 if slot else x for slot, x in zip(slots, problem.total.tolist(), strict=True))
        if grain is None:
            pods = np.bincount(problem.set_shape, weights=problem.set_count, minlength=len(problem.request))
            counted = [
                *zip(pods.astype(np.int64).tolist(), self._shares(problem.request), strict=True),
                *zip(problem.unit_count.tolist(), self._shares(problem.unit_request), strict=True),
            ]
            parts: dict[int, int] = defaultdict(int)
            for n, (part, whole) in counted:
                parts[whole] += n * part
            work = sum((Fraction(part, whole) for whole, part in parts.items()), Fraction(0))
            grain = min(MAX_GRAIN, int(VALUE_SUM // (1 + work)))
            # where they fit, all shares are whole: equal work then has equal value however it is cut into jobs
            whole = math.lcm(*{whole // math.gcd(part, whole) for n, (part, whole) in counted if n})
            grain = grain // whole * whole or grain
        self.grain = int(grain)

    def _shares(self, rows: Ints) -> list[tuple[int, int]]:
        return [_share(tuple(x), self._total) for x in rows.tolist()]

    def of(self, rows: Ints) -> Ints:
        """(M,) value of each request vector (M, R)."""
        first, inverse = alike(rows) if len(rows) > FEW else (np.arange(len(rows)), slice(None))
        grain = self.grain
        values = [max(1, grain * part // whole) for part, whole in self._shares(rows[first])]
        out: Ints = np.array(values, np.int64)[inverse]
        return out


@lru_cache(maxsize=1 << 14)
def _share(x: tuple[int, ...], total: tuple[int, ...]) -> tuple[int, int]:
    """Largest x / total as part and whole, at most 1: what exceeds the cluster runs nowhere and must not coarsen the
    grain of all others.
    """
    part, whole = 0, 1
    for amount, limit in zip(x, total, strict=True):
        if limit > 0 and amount * whole > part * limit:
            part, whole = amount, limit
    return (1, 1) if part >= whole else (part, whole)


def _age(problem: Problem, wanted: Demand) -> Ints:
    """(J,) 0..15 by dense rank of the creation time among jobs that can start, oldest highest (formulation.md O9)."""
    times = np.unique(problem.job_created[wanted.starts])
    if not len(times):
        return np.zeros_like(problem.job_created)
    newer = len(times) - 1 - np.searchsorted(times, problem.job_created).clip(0, len(times) - 1)
    return newer * AGE_STEPS // len(times) if len(times) > AGE_STEPS else newer


def growth_worth(problem: Problem, rules: Rules) -> tuple[tuple[Worth, ...], ...]:
    """(T,) worth of each pod set's growth pods in canonical order (formulation.md, growth worth)."""
    growth = problem.set_count - rules.canonical
    base, pod_value = rules.start_value, rules.pod_value
    fair = any(plugin.share_bands(problem) for plugin in rules.plugins)
    reach_job = base + np.bincount(problem.set_job, weights=growth * pod_value, minlength=len(base)).astype(np.int64)
    reach = np.zeros(len(problem.queue_weight), np.int64)
    np.maximum.at(reach, problem.job_queue, reach_job)
    lower, ages, reaches = _lower_priorities(problem).tolist(), rules.age.tolist(), reach.tolist()
    out: list[tuple[Worth, ...]] = []
    at: dict[int, int] = defaultdict(int)
    rows = (problem.set_job, problem.job_queue[problem.set_job], problem.set_count, pod_value, growth)
    for t, (j, q, count, value, more) in enumerate(zip(*(row.tolist() for row in rows), strict=True)):
        boost = 1 << min(lower[t], PRIORITY_STEPS)
        start = int(base[j]) + at[j]
        at[j] += more * value
        if not fair:
            out.append((Worth(count, value * boost * (1 + ages[j])),))
            continue
        pieces: list[Worth] = []
        left = count
        while left > 0:
            run = band_run(start, value, reaches[q])
            run = left if run is None else min(left, run)
            pieces.append(Worth(run, value * boost * band_weight(start, reaches[q])))
            start += run * value
            left -= run
        out.append(tuple(pieces))
    return tuple(out)


def _lower_priorities(problem: Problem) -> Ints:
    """(T,) number of distinct lower pod priorities among the pending pods of the job."""
    present: dict[int, set[int]] = defaultdict(set)
    for j, p in zip(problem.set_job.tolist(), problem.set_priority.tolist(), strict=True):
        present[j].add(p)
    return np.array(
        [
            sum(other < p for other in present[j])
            for j, p in zip(problem.set_job.tolist(), problem.set_priority.tolist(), strict=True)
        ],
        np.int64,
    )


def _scores(problem: Problem, plugins: tuple[Plugin, ...]) -> NodeScores:
    """Node scores of all plugins, summed whatever their tier; a weight is an argument of its plugin.

    Volcano pkg/scheduler/framework/session_plugins.go, NodeOrderFn.
    """
    none = np.zeros(len(problem.total), np.int64)
    total = NodeScores(np.zeros((len(problem.request), problem.kinds), np.int64), binpack_shares=none)
    for plugin in plugins:
        given = plugin.scores(problem)
        if given is not None:
            total = NodeScores(
                total.static + given.static,
                total.least + given.least,
                total.most + given.most,
                total.balanced + given.balanced,
                total.binpack + given.binpack,
                given.binpack_shares if given.binpack else total.binpack_shares,
            )
    return total

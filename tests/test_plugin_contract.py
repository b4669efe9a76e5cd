"""What every plugin owes: that its rule in the model, its check in numpy and its numbers say the same.

The checks are functions of a plugin's name, so that a planted fault can be shown to break them: a contract that no
fault breaks would prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from ortools.sat.python import cp_model

from solver_sched.greedy import fill, greedy_plan
from solver_sched.loads import IDLE, placement_score
from solver_sched.model import classes, ledger
from solver_sched.model.classes import JobClass
from solver_sched.model.effort import Effort
from solver_sched.model.ledger import Ledger
from solver_sched.model.levels import evaluate
from solver_sched.model.placement import Placement
from solver_sched.model.solve import solve
from solver_sched.plugins import PLUGINS, capacity, gang, predicates
from solver_sched.plugins import rules as combined
from solver_sched.plugins.plugin import NodeScores, Plugin, QueueCeiling
from solver_sched.plugins.rules import Rules, derive
from solver_sched.policy import Policy, load_policy
from solver_sched.problem import domain_rules, shares
from solver_sched.problem.arrays import (
    NO_LIMIT,
    AtMostOne,
    Bools,
    DomainRule,
    Exclude,
    Ints,
    Plan,
    Problem,
    Require,
    SpreadRule,
)
from solver_sched.problem.encode import encode
from solver_sched.verify import violations
from tests.strategies import random_plan, random_snapshot, shuffled
from tests.test_properties import assert_reaches, assert_same_optimum, values

EFFORT = Effort(seconds=0.3, gap=0.0)
NAMES = sorted(PLUGINS)
RULES = ("capacity", "gang", "predicates", "proportion")
"""Plugins that forbid something; the others only prefer, so that no plan is theirs to refuse."""
QUICK = 50
RARE = 8
"""An answer that fewer plans than this get has not been tested."""


def policy(*names: str, **arguments: int) -> Policy:
    plugins = [{"name": name, "arguments": arguments if name == names[-1] else {}} for name in names]
    return load_policy({"actions": "enqueue, allocate, backfill", "tiers": [{"plugins": plugins}]})


def problem_of(seed: int) -> Problem:
    return encode(random_snapshot(Random(seed)))[0]


# -- (a) the model accepts what the check accepts ----------------------------------------------------------------------


def one_by_one(problem: Problem) -> Problem:
    """Every node a class of its own, so that a plan can be fixed node by node."""
    inside = np.flatnonzero(problem.node_class >= 0)
    node_class = np.full_like(problem.node_class, -1)
    node_class[inside] = np.arange(len(inside))
    old = problem.node_class[inside]
    return replace(
        problem,
        node_class=node_class,
        class_size=np.ones(len(inside), np.int64),
        class_kind=problem.class_kind[old],
        class_free=problem.class_free[old],
    )


def singles(problem: Problem, rules: Rules, alone: object = ()) -> list[JobClass]:
    """Every job a class of its own."""
    return [
        replace(cls, jobs=cls.jobs[i : i + 1], sets=cls.sets[i : i + 1])
        for cls in classes.job_classes(problem, rules)
        for i in range(cls.size)
    ]


def model_accepts(problem: Problem, rules: Rules, plan: Plan) -> bool:
    """Whether the model has a solution with exactly these pods on these nodes."""
    problem = one_by_one(problem)
    with patch.object(ledger, "job_classes", singles):
        book = Ledger(problem, rules)
    place = Placement(book)
    placed, left = plan.placed(problem), plan.placed(problem)
    for cls, terms in zip(book.classes, book.terms, strict=True):
        sets = cls.sets[0]
        left[sets] = 0
        if cls.need:
            book.model.add(terms.whole.started.linear() == int(placed[sets].any()))
        for i, t in enumerate(sets.tolist()):
            book.model.add(terms.whole.minimum[i].linear() + terms.whole.growth[i].linear() == int(placed[t]))
    wanted: Counter[tuple[int, int]] = Counter()
    for t, node, count in zip(plan.pod_set.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        wanted[int(problem.set_shape[t]), int(problem.node_class[node])] += count
    if left.any() or any(count > place.limit[at] if at in place.var else True for at, count in wanted.items()):
        return False
    for at, var in place.var.items():
        book.model.add(var == wanted[at])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(book.model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE)
    return status != cp_model.INFEASIBLE


def check_model(name: str, seeds: range, binds: Callable[[Problem], bool] = lambda problem: True) -> Counter[str]:
    """Model and check agree on every plan; returns how many plans they accept, and refuse for this plugin's rule.

    `binds`: leave out problems on which the fault that is looked for could not show.
    """
    said: Counter[str] = Counter()
    for seed in seeds:
        problem = problem_of(seed)
        if not binds(problem):
            continue
        rules = derive(problem, policy(name))
        rng = Random(seed)
        loose = greedy_plan(problem, derive(problem, policy("nodeorder")))
        for start in (greedy_plan(problem, rules), loose, loose):
            plan = random_plan(rng, problem, start)
            if not len(plan.count):
                continue
            broken = violations(problem, rules, plan)
            forbidden = rules.forbidden[problem.set_shape[plan.pod_set], problem.node_kind[plan.node]].any()
            assert model_accepts(problem, rules, plan) == (not broken and not forbidden), (seed, plan, broken)
            said["accepted" if not broken else broken[0].plugin] += 1
    return said


@pytest.mark.parametrize("name", NAMES)
def test_the_model_accepts_a_plan_exactly_when_the_check_is_silent(name: str) -> None:
    said = check_model(name, range(QUICK))
    assert said["accepted"] >= RARE
    assert name not in RULES or said[name] >= RARE


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_model_accepts_a_plan_exactly_when_the_check_is_silent_on_many(name: str) -> None:
    check_model(name, range(QUICK, 20 * QUICK))


# -- (b) numbers -------------------------------------------------------------------------------------------------------


class Count:
    """formulation.md once more, in fractions and loops, for a plan that is given."""

    def __init__(self, problem: Problem, rules: Rules, plan: Plan, *, priority: bool, drf: bool) -> None:
        self.problem, self.rules, self.placed, self.drf = problem, rules, plan.placed(problem).tolist(), drf
        self.total = [0 if r == problem.pods_row else t for r, t in enumerate(problem.total.tolist())]
        everything = [*self.pending(), *zip(problem.unit_count.tolist(), problem.unit_request.tolist(), strict=True)]
        grain = int(min(2**26, 2**30 // (1 + sum((n * self.share(x) for n, x in everything), Fraction(0)))))
        whole = math.lcm(*(self.share(x).denominator for n, x in everything if n))
        self.grain = grain // whole * whole or grain
        jobs = range(len(problem.job_min))
        self.sets = {j: [t for t, job in enumerate(problem.set_job.tolist()) if job == j] for j in jobs}
        aged = [self.need(j) > 0 and 0 < int(problem.job_created[j]) < problem.now - 3600 for j in jobs]
        broken = [self.need(j) > 0 and int(problem.job_ready[j]) > 0 for j in jobs]
        self.rank = [(int(problem.job_priority[j]) if priority else 0, 2 if broken[j] else int(aged[j])) for j in jobs]
        times = sorted({int(problem.job_created[j]) for j in jobs if rules.demand.starts[j]}, reverse=True)
        self.age = [times.index(t) if t in times else 0 for t in problem.job_created.tolist()]
        self.canonical = {j: self.pick(j) for j in jobs}
        self.start = [
            self.value(problem.job_held[j] + sum((n * self.request(t) for t, n in self.canonical[j].items()), 0))
            for j in jobs
        ]

    def pending(self) -> Iterator[tuple[int, list[int]]]:
        p = self.problem
        for t, n in enumerate(p.set_count.tolist()):
            yield n, p.request[p.set_shape[t]].tolist()

    def request(self, t: int) -> Ints:
        row: Ints = self.problem.request[self.problem.set_shape[t]]
        return row

    def share(self, x: list[int]) -> Fraction:
        return min(
            Fraction(1), max((Fraction(a, t) for a, t in zip(x, self.total, strict=True) if t), default=Fraction(0))
        )

    def value(self, x: Ints) -> int:
        return max(1, int(self.grain * self.share(x.tolist())))

    def need(self, j: int) -> int:
        return int(self.rules.need[j])

    def role_needs(self, j: int) -> dict[int, int]:
        return {o: int(self.rules.role_need[o]) for o, job in enumerate(self.problem.role_job.tolist()) if job == j}

    def pick(self, j: int) -> dict[int, int]:
        """Pods per set of the canonical minimum, pod by pod."""
        pods = [t for t in self.sets[j] for _ in range(int(self.problem.set_count[t]))]
        picked: list[int] = []
        for o, missing in self.role_needs(j).items():
            of_role = [i for i, t in enumerate(pods) if self.problem.set_role[t] == o]
            picked += of_role[:missing]
        others = [i for i in range(len(pods)) if i not in picked]
        picked += others[: max(0, self.need(j) - len(picked))]
        return Counter(pods[i] for i in picked)

    def minimums(self, j: int) -> Iterator[dict[int, int]]:
        """Every way to make up the minimum of a job from its placed pods (C3, C4)."""
        sets = self.sets[j]
        for chosen in product(*(range(self.placed[t] + 1) for t in sets)):
            m = dict(zip(sets, chosen, strict=True))
            if sum(chosen) == self.need(j) and all(
                sum(n for t, n in m.items() if self.problem.set_role[t] == o) >= missing
                for o, missing in self.role_needs(j).items()
            ):
                yield m

    def worth(self, j: int, growth: dict[int, int]) -> int:
        """Growth worth of the first `growth[t]` pods of each set."""
        p = self.problem
        queue = [i for i in self.sets if p.job_queue[i] == p.job_queue[j]]
        reach = max(self.start[i] + sum(n * self.value(self.request(t)) for t, n in self.extra(i)) for i in queue)
        at, out = self.start[j], 0
        for t, extra in self.extra(j):
            one = self.value(self.request(t))
            lower = {int(p.set_priority[u]) for u in self.sets[j] if p.set_priority[u] < p.set_priority[t]}
            for i in range(growth[t]):
                band = min(7, 8 * (at + i * one) // (1 + reach))
                out += one * 2 ** min(3, len(lower)) * (2 ** (7 - band) if self.drf else 1 + self.age[j])
            at += extra * one
        return out

    def extra(self, j: int) -> list[tuple[int, int]]:
        """Canonical growth pods per set."""
        return [(t, int(self.problem.set_count[t]) - self.canonical[j].get(t, 0)) for t in self.sets[j]]

    def levels(self) -> dict[str, int]:
        """start, grow and order of the plan."""
        started = [j for j, sets in self.sets.items() if self.need(j) and any(self.placed[t] for t in sets)]
        ready = {j for j in self.sets if self.rules.demand.starts[j]}
        grown = {
            j: max(self.worth(j, {t: self.placed[t] - m[t] for t in m}) for m in self.minimums(j))
            for j in ready
            if j in started or not self.need(j)
        }
        out = {"order": sum(self.age[j] for j in started)}
        # a rank whose jobs find no node that could ever take their pods has no level
        for d in {self.rank[j] for j in ready if any(self.rules.demand.counts[t] for t in self.sets[j])}:
            name = f"{d[0]}{'+' * d[1]}"
            out[f"start>={name}"] = sum(self.start[j] for j in started if self.rank[j] >= d)
            out[f"grow>={name}"] = sum(worth for j, worth in grown.items() if self.rank[j] >= d)
        return out

    def uses(self, q: int, *, growth: bool) -> dict[tuple[int, ...], int]:
        """Every own use of the queue that C5 and C6 allow, over contended resources -> most value of own starts."""
        assert self.rules.deserved is not None
        p, r = self.problem, np.flatnonzero(self.rules.contended)
        most = self.rules.deserved[q, r]
        states = {(0,) * len(r): 0}

        def extend(options: list[tuple[Ints, int]]) -> None:
            nonlocal states
            grown: dict[tuple[int, ...], int] = {}
            for (use, value), (more, gain) in product(states.items(), options):
                after = np.array(use, np.int64) + more
                if (after <= most).all():
                    key = tuple(after.tolist())
                    grown[key] = max(grown.get(key, 0), value + gain)
            states = grown

        nothing = np.zeros(len(r), np.int64)
        if growth:
            for u in np.flatnonzero(p.unit_queue == q):
                extend([(k * p.unit_request[u, r], 0) for k in range(int(p.unit_count[u]) + 1)])
        for j, sets in self.sets.items():
            if p.job_queue[j] != q or not any(self.placed[t] for t in sets):
                continue
            options = [] if not self.need(j) else [(nothing, 0)]
            for m in self.minimums(j):
                held = p.job_held[j, r] if self.need(j) else nothing
                spare = [range(self.placed[t] - m[t] + 1) if growth else (0,) for t in sets]
                for e in product(*spare):
                    use = sum(((m[t] + n) * self.request(t)[r] for t, n in zip(sets, e, strict=True)), held)
                    options.append((use, self.start[j] if self.need(j) else 0))
            extend(options)
        return states


def check_starts(names: tuple[str, ...], seeds: range) -> Counter[str]:
    """Start, growth and order of the greedy plan, counted by hand; returns how many levels were not 0."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        problem = problem_of(seed)
        rules = derive(problem, policy(*names))
        plan = greedy_plan(problem, rules)
        count = Count(problem, rules, plan, priority="priority" in names, drf="drf" in names)
        with patch.object(ledger, "job_classes", singles):
            found = values(evaluate(problem, rules, plan, EFFORT))
        expected = count.levels()
        found.pop("disruption", None)
        assert {name: value for name, value in found.items() if value} == {n: v for n, v in expected.items() if v}, seed
        seen.update(name.partition(">=")[0] for name, value in found.items() if value)
    return seen


def check_shares(name: str, seeds: range) -> Counter[str]:
    """Deserved shares, and what counts as own of a given plan, counted by hand."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        problem = problem_of(seed)
        rules = derive(problem, policy("gang", name))
        assert_entitled(name, problem, rules)
        plan = greedy_plan(problem, derive(problem, policy("gang")))
        with patch.object(ledger, "job_classes", singles):
            book = Ledger(problem, replace(rules, ceilings=()))
        if not book.owned or not len(plan.count):
            continue
        seen["owned"] += 1
        count = Count(problem, rules, plan, priority=False, drf=False)
        fix_plan(book, count.placed)
        last = max((cls.rank for cls in book.classes), default=0)
        starts = [count.uses(q, growth=False) for q in range(len(problem.queue_weight))]
        best = sum(max(uses.values()) for uses in starts)
        assert best == best_of(book, book.start_value(last, own=True).linear()), seed
        seen["own starts"] += best > 0
        for q, (short, _) in zip(deficit_queues(count, book), book.deficits(last), strict=True):
            assert -best_of(book, -short) == smallest_deficit(count, q), (seed, q)
            seen["deficits"] += 1
    return seen


def assert_entitled(name: str, problem: Problem, rules: Rules) -> None:
    """formulation.md 3 as conditions on the answer, not as a way to it."""
    assert rules.deserved is not None
    wanted = rules.demand
    guarantee, given = problem.queue_guarantee, problem.queue_deserved
    for r, avail in enumerate(wanted.avail.tolist()):
        left = [max(0, avail - int(guarantee[:, r].sum() - g)) for g in guarantee[:, r].tolist()]
        real = np.minimum(problem.queue_capability[:, r], left)
        have = rules.deserved[:, r]
        if name == "capacity":
            entitled = np.maximum(np.minimum(np.maximum(given[:, r], 0), real), guarantee[:, r])
            assert have.tolist() == np.minimum(entitled, wanted.ask[:, r]).tolist()
            continue
        floor = np.minimum(guarantee[:, r], avail)
        cap = np.maximum(floor, np.minimum(wanted.ask[:, r], real))
        assert ((floor <= have) & (have <= cap)).all()
        assert have.sum() <= max(avail, floor.sum())
        weight = problem.queue_weight
        short = [q for q in range(len(weight)) if weight[q] > 0 and have[q] < cap[q]]
        # Somebody is short: then nothing is left over, and nobody above its floor has more per weight.
        assert not short or have.sum() > avail - len(weight)
        for q in short:
            for other in np.flatnonzero(have > floor):
                assert Fraction(int(have[other]), int(weight[other])) < Fraction(int(have[q]) + 1, int(weight[q]))


def fix_plan(book: Ledger, placed: list[int]) -> None:
    for cls, terms in zip(book.classes, book.terms, strict=True):
        for i, t in enumerate(cls.sets[0].tolist()):
            book.model.add(terms.whole.minimum[i].linear() + terms.whole.growth[i].linear() == placed[t])
        if cls.need:
            book.model.add(terms.whole.started.linear() == int(any(placed[t] for t in cls.sets[0].tolist())))


def best_of(book: Ledger, expression: cp_model.LinearExpr) -> int:
    book.model.maximize(expression)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(book.model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def deficit_queues(count: Count, book: Ledger) -> list[int]:
    """Queues whose pending pods that can start ask for something contended to which they are entitled."""
    return [q for q in book.queues() if deficit_rows(count, q)]


def deficit_rows(count: Count, q: int) -> list[tuple[int, int, int, int]]:
    """(column among the contended, target, deserved, step) per resource that O2 looks at, amounts in steps."""
    assert count.rules.deserved is not None
    p, out = count.problem, []
    for column, r in enumerate(np.flatnonzero(count.rules.contended).tolist()):
        step, deserved = int(p.grain[r]), int(count.rules.deserved[q, r])
        of_queue = [t for t, j in enumerate(p.set_job.tolist()) if p.job_queue[j] == q]
        asked = sum(int(count.rules.demand.counts[t]) * int(count.request(t)[r]) for t in of_queue)
        running = sum(int(p.unit_count[u] * p.unit_request[u, r]) for u in np.flatnonzero(p.unit_queue == q))
        if asked and deserved // step:
            out.append((column, min(deserved // step, (running + asked) // step), deserved // step, step))
    return out


def smallest_deficit(count: Count, q: int) -> int:
    """The least that the largest shortfall of the queue can be, over everything that may count as its own."""
    rows = deficit_rows(count, q)
    return min(
        max(max(0, -(-ledger.SCALE * (target - use[at] // step) // deserved)) for at, target, deserved, step in rows)
        for use in count.uses(q, growth=True)
    )


def check_scores(name: str, seeds: range) -> Counter[str]:
    """The score of a plan is the exact one, less what each of at most three floors per pod takes."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        problem, rng = problem_of(seed), Random(seed)
        named = ["cpu", "memory", "nvidia.com/gpu"]
        weight = {key: rng.choice([0, 1, 1, 3]) for key in WEIGHTS[name]}
        rules = derive(problem, weighted_policy(name, weight))
        plan = greedy_plan(problem, derive(problem, policy("predicates")))
        on_nodes = plan.on_nodes(problem)
        used = problem.node_alloc - problem.node_free + on_nodes.T @ problem.request
        exact, floors = 0.0, 0
        for s, n in np.argwhere(on_nodes > 0).tolist():
            full = {
                r: used[n, row] / problem.node_alloc[n, row]
                for row, r in enumerate(problem.resources)
                if r in named and problem.node_alloc[n, row] > 0
            }
            asked = {r for row, r in enumerate(problem.resources) if problem.request[s, row] > 0}
            one = SCORES[name](weight, full, asked)
            for kind, each in (("nodeaffinity", 2), ("podaffinity", 2), ("tainttoleration", 3)):
                if name == "nodeorder" and kind in problem.soft:
                    one += each * problem.soft[kind][s, problem.node_kind[n]]
            exact += one * int(on_nodes[s, n])
            floors += int(on_nodes[s, n]) * (3 * max(1, sum(weight.values())))
        # room being freed counts in whole IDLE, whatever the plugin
        score = placement_score(problem, rules, plan) % IDLE
        assert exact - floors <= score <= exact + 1e-6, (seed, exact, score)
        seen["scored"] += score > 0
    return seen


WEIGHTS = {
    "nodeorder": ("leastrequested.weight", "mostrequested.weight", "balancedresource.weight"),
    "binpack": ("binpack.cpu", "binpack.memory", "binpack.resources.nvidia.com/gpu"),
}


def weighted_policy(name: str, weight: dict[str, int]) -> Policy:
    arguments: dict[str, object] = {**weight}
    if name == "binpack":
        arguments["binpack.resources"] = "nvidia.com/gpu"
    return load_policy(
        {"actions": "allocate, backfill", "tiers": [{"plugins": [{"name": name, "arguments": arguments}]}]}
    )


def nodeorder_score(weight: dict[str, int], full: dict[str, float], asked: set[str]) -> float:
    full = {r: min(1.0, x) for r, x in full.items()}
    basic = [full[r] for r in ("cpu", "memory") if r in full]
    mean = sum(full.values()) / max(1, len(full))
    deviation = (sum((x - mean) ** 2 for x in full.values()) / max(1, len(full))) ** 0.5
    return (
        weight["leastrequested.weight"] * 100 * sum(1 - x for x in basic) / 2
        + weight["mostrequested.weight"] * 100 * sum(basic) / 2
        + weight["balancedresource.weight"] * (100 - 100 * deviation if full else 0)
    )


def binpack_score(weight: dict[str, int], full: dict[str, float], asked: set[str]) -> float:
    counted = {r: w for r, w in zip(("cpu", "memory", "nvidia.com/gpu"), weight.values(), strict=True) if r in asked}
    whole = sum(counted.values())
    return 100 * sum(w * full.get(r, 0.0) for r, w in counted.items()) / whole if whole else 0.0


SCORES: dict[str, Callable[[dict[str, int], dict[str, float], set[str]], float]] = {
    "nodeorder": nodeorder_score,
    "binpack": binpack_score,
}


@pytest.mark.parametrize("names", [("gang",), ("priority",), ("drf",), ("priority", "gang", "predicates", "drf")])
def test_starts_and_growth_are_counted_as_written(names: tuple[str, ...]) -> None:
    seen = check_starts(names, range(QUICK))
    assert min(seen[level] for level in ("start", "grow", "order")) >= RARE


@pytest.mark.parametrize("name", ["capacity", "proportion"])
def test_shares_and_what_is_own_are_counted_as_written(name: str) -> None:
    seen = check_shares(name, range(2 * QUICK))
    assert min(seen[what] for what in ("owned", "own starts", "deficits")) >= RARE


@pytest.mark.parametrize("name", ["binpack", "nodeorder"])
def test_scores_are_those_of_the_exact_formula(name: str) -> None:
    assert check_scores(name, range(QUICK))["scored"] >= RARE


# -- (c) greedy, (d) permutation, (e) silence --------------------------------------------------------------------------


def check_greedy(name: str, seeds: range) -> None:
    """Under this plugin's rule alone the solver reaches greedy, and both keep the rule."""
    for seed in seeds:
        problem = problem_of(seed)
        rules = derive(problem, policy(name))
        baseline = greedy_plan(problem, rules)
        solution = solve(problem, rules, EFFORT, greedy=baseline)
        assert violations(problem, rules, baseline) == [], seed
        assert violations(problem, rules, solution.plan) == [], seed
        assert_reaches(solution.levels, values(evaluate(problem, rules, baseline, EFFORT)))


def check_permutation(name: str, seeds: range) -> None:
    """Rows in another order: the same values."""
    for seed in seeds:
        snapshot = random_snapshot(Random(seed))
        both = []
        for given in (snapshot, shuffled(snapshot, Random(seed))):
            problem, _ = encode(given)
            both.append(solve(problem, derive(problem, policy(name)), EFFORT).levels)
        assert_same_optimum(*both)


def one_queue(problem: Problem) -> Problem:
    """All in queue 0, without limits: nothing is shared."""
    alone = np.zeros_like(problem.queue_used)
    alone[0] = problem.queue_used.sum(axis=0)
    return replace(
        problem,
        job_queue=problem.job_queue * 0,
        unit_queue=problem.unit_queue * 0,
        queue_used=alone,
        queue_capability=np.full_like(alone, NO_LIMIT),
        queue_guarantee=alone * 0,
    )


def rigid(problem: Problem) -> Problem:
    """Every pod belongs to the minimum: nothing grows."""
    pending = np.bincount(problem.set_job, problem.set_count, len(problem.job_min)).astype(np.int64)
    return replace(problem, job_min=problem.job_ready + pending)


SILENT: dict[str, Callable[[Problem], Problem]] = {
    "binpack": lambda problem: problem,
    "capacity": one_queue,
    "cdp": lambda problem: problem,
    "conformance": lambda problem: problem,
    "drf": rigid,
    "gang": lambda problem: replace(problem, job_min=problem.job_min * 0 + 1, role_min=problem.role_min * 0),
    "nodeorder": lambda problem: problem,
    "overcommit": lambda problem: problem,
    "predicates": lambda problem: replace(problem, masks={}, domain_rules=()),
    "priority": lambda problem: replace(
        problem, job_priority=problem.job_priority * 0, unit_priority=problem.unit_priority * 0
    ),
    "proportion": one_queue,
    "resourcequota": lambda problem: problem,
    "sla": lambda problem: problem,
}
"""Problems on which the plugin has nothing to say. Scores touch no level, and votes are cast before the solve."""


def check_silence(name: str, seeds: range) -> None:
    """Where it has nothing to say, the plugin changes no level."""
    others = [other for other in NAMES if other not in (name, "proportion" if name == "capacity" else "capacity")]
    for seed in seeds:
        problem = SILENT[name](problem_of(seed))
        without, with_it = (
            solve(problem, derive(problem, policy(*names)), EFFORT).levels for names in (others, [name, *others])
        )
        assert_same_optimum(without, with_it)


@pytest.mark.parametrize("name", NAMES)
def test_the_solver_reaches_greedy(name: str) -> None:
    check_greedy(name, range(QUICK // 2))


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_means_nothing(name: str) -> None:
    check_permutation(name, range(QUICK // 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_with_nothing_to_say_changes_nothing(name: str) -> None:
    check_silence(name, range(QUICK // 3))


# -- planted faults ----------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(1500)
"""A fault shows at the first seed where its rule decides; a rare rule takes some searching."""
RULE_WORDS: dict[str, type[DomainRule]] = {
    "_at_most_one": AtMostOne,
    "AtMostOne": AtMostOne,
    "_exclude": Exclude,
    "Exclude": Exclude,
    "apart": Exclude,
    "_require": Require,
    "Require": Require,
    "near": Require,
    "first": Require,
    "_spread": SpreadRule,
    "Spread": SpreadRule,
    "skew": SpreadRule,
}
"""Word in the name of a fault -> the rule without which it cannot show."""


def patched(owner: object, attribute: str, value: object) -> Fault:
    return lambda patch: patch.setattr(owner, attribute, value)


def blind(plugin: type[Plugin]) -> Fault:
    return lambda patch: patch.setattr(plugin, "violations", lambda self, problem, plan: iter(()))


def misread(plugin: type[Plugin], change: Callable[[Problem], Problem]) -> Fault:
    """The check judges another problem."""
    check = plugin.violations
    return lambda patch: patch.setattr(
        plugin, "violations", lambda self, problem, plan: check(self, change(problem), plan)
    )


def silent(owner: type[object], method: str) -> Fault:
    return lambda patch: patch.setattr(owner, method, lambda self, *arguments: None)


def one_pod_over(problem: Problem) -> Ints:
    room = original_room(problem)
    return np.where(room < NO_LIMIT, room + problem.grain, room)


original_room = shares.ceiling_room
original_broken = domain_rules.broken


def no_roles(patch: pytest.MonkeyPatch) -> None:
    grouped = classes.job_classes
    patch.setattr(
        classes, "job_classes", lambda *given: [replace(c, role_need=(0,) * len(c.role_need)) for c in grouped(*given)]
    )


def lost_mask(code: str) -> Fault:
    def forbidden(self: Plugin, problem: Problem) -> dict[str, Bools]:
        return {name: mask for name, mask in problem.masks.items() if name != code}

    return lambda patch: patch.setattr(predicates.Predicates, "forbidden", forbidden)


def altered(method: str, change: Callable[[DomainRule], DomainRule]) -> Fault:
    """The model writes the rows of another rule."""
    original = getattr(Placement, method)
    return lambda patch: patch.setattr(Placement, method, lambda self, rule: original(self, change(rule)))


def laxer(rule: DomainRule) -> DomainRule:
    assert isinstance(rule, SpreadRule)
    return replace(rule, max_skew=rule.max_skew + 1)


def one_domain(rule: DomainRule) -> DomainRule:
    return replace(rule, domain=np.minimum(rule.domain, 0))


def never_first(rule: DomainRule) -> DomainRule:
    return replace(rule, seed=False) if isinstance(rule, Require) else rule


def unchecked(kind: type[DomainRule]) -> Fault:
    return patched(
        predicates,
        "broken",
        lambda rules, on: original_broken([rule for rule in rules if not isinstance(rule, kind)], on),
    )


def no_guarantee(plugin: type[Plugin]) -> Fault:
    original = plugin.ceiling

    def ceiling(self: Plugin, problem: Problem) -> object:
        answer = original(self, problem)
        return answer and replace(answer, guarantee=answer.guarantee * 0)

    return lambda patch: patch.setattr(plugin, "ceiling", ceiling)


def half_the_cluster(self: Plugin, problem: Problem) -> QueueCeiling:
    half = np.tile(problem.total // 2, (len(problem.queue_used), 1))
    return QueueCeiling(half, problem.queue_guarantee * 0)


FAULTS_MODEL: dict[str, tuple[str, Fault]] = {
    "capability one pod too high": ("capacity", lambda patch: patch.setattr(capacity, "ceiling_room", one_pod_over)),
    "capability >= for >": (
        "capacity",
        misread(PLUGINS["capacity"], lambda p: replace(p, queue_capability=p.queue_capability - 1)),
    ),
    "capacity checks nothing": ("capacity", blind(PLUGINS["capacity"])),
    "capacity forgets guarantees": ("capacity", no_guarantee(PLUGINS["capacity"])),
    "proportion checks nothing": ("proportion", blind(PLUGINS["proportion"])),
    "proportion checks no guarantees": (
        "proportion",
        misread(PLUGINS["proportion"], lambda p: replace(p, queue_guarantee=p.queue_guarantee * 0)),
    ),
    "no ceiling rows": ("proportion", silent(Ledger, "_ceiling_rows")),
    "minimum one too low": (
        "gang",
        lambda patch: patch.setattr(gang.Gang, "minimum", lambda self, problem: problem.job_min - 1),
    ),
    "gang checks nothing": ("gang", blind(gang.Gang)),
    "gang counts one ready pod too many": ("gang", misread(gang.Gang, lambda p: replace(p, job_ready=p.job_ready + 1))),
    "no role rows": ("gang", no_roles),
    "roles unchecked": ("gang", misread(gang.Gang, lambda p: replace(p, role_min=p.role_min * 0))),
    "predicates check nothing": ("predicates", blind(predicates.Predicates)),
    **{f"mask {code} lost": ("predicates", lost_mask(code)) for code in ("NodeAffinity", "Taints", "Ports")},
    **{
        f"no rows of {method}": ("predicates", silent(Placement, method))
        for method in ("_at_most_one", "_exclude", "_require", "_spread")
    },
    **{
        f"{kind.__name__} unchecked": ("predicates", unchecked(kind))
        for kind in (AtMostOne, Exclude, Require, SpreadRule)
    },
    "skew one too high": ("predicates", altered("_spread", laxer)),
    "all nodes are near": ("predicates", altered("_require", one_domain)),
    "all nodes are apart": ("predicates", altered("_exclude", one_domain)),
    "nobody may come first": (
        "predicates",
        patched(predicates, "broken", lambda rules, on: original_broken(map(never_first, rules), on)),
    ),
    "no capacity rows": ("binpack", silent(Placement, "_capacity")),
}


@pytest.mark.parametrize("fault", FAULTS_MODEL)
def test_model_and_check_part_ways(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS_MODEL[fault]
    kind = next((kind for word, kind in RULE_WORDS.items() if word in fault), None)

    def binds(problem: Problem) -> bool:
        if "role" in fault:
            return bool(problem.role_min.any())
        return kind is None or any(isinstance(rule, kind) for rule in problem.domain_rules)

    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_model(name, SEEDS, binds)


def evenly(avail: int, weight: list[int], floor: list[int], cap: list[int]) -> list[int]:
    return original_fill(avail, [1] * len(weight), floor, cap)


original_fill = shares.water_fill
original_minimum = combined.minimum_among
original_scores = PLUGINS["nodeorder"].scores
original_binpack = PLUGINS["binpack"].scores


def no_preferences(self: Plugin, problem: Problem) -> NodeScores | None:
    answer = original_scores(self, problem)
    return answer and replace(answer, static=answer.static * 0)


def equal_weights(self: Plugin, problem: Problem) -> NodeScores | None:
    answer = original_binpack(self, problem)
    return answer and replace(answer, binpack_shares=np.ones_like(answer.binpack_shares))


FAULTS_NUMBERS: dict[str, tuple[Callable[[], object], Fault]] = {
    "lowest priority first": (
        lambda: check_starts(("priority",), SEEDS),
        patched(PLUGINS["priority"], "rank", lambda self, problem: -problem.job_priority),
    ),
    "priority ignored": (
        lambda: check_starts(("priority",), SEEDS),
        patched(PLUGINS["priority"], "rank", lambda self, problem: None),
    ),
    "all growth alike": (lambda: check_starts(("drf",), SEEDS), patched(combined, "band_weight", lambda at, reach: 1)),
    "no bands": (
        lambda: check_starts(("drf",), SEEDS),
        patched(PLUGINS["drf"], "share_bands", lambda self, problem: False),
    ),
    "roles not first in the minimum": (
        lambda: check_starts(("gang",), SEEDS),
        patched(combined, "minimum_among", lambda p, count, need, roles: original_minimum(p, count, need, roles * 0)),
    ),
    "weights ignored": (lambda: check_shares("proportion", SEEDS), patched(shares, "water_fill", evenly)),
    "deserved beyond what is asked": (
        lambda: check_shares("capacity", SEEDS),
        patched(PLUGINS["capacity"], "deserved", lambda self, problem, wanted: np.maximum(problem.queue_deserved, 0)),
    ),
    "no share rows": (lambda: check_shares("proportion", SEEDS), silent(Ledger, "_own_rows")),
    "running pods of a starting gang are free": (
        lambda: check_shares("proportion", SEEDS),
        lambda patch: patch.setattr(classes, "JobClass", lambda **row: JobClass(**row | {"held": row["held"] * 0})),
    ),
    "preferences lost": (
        lambda: check_scores("nodeorder", SEEDS),
        patched(PLUGINS["nodeorder"], "scores", no_preferences),
    ),
    "binpack weighs all alike": (
        lambda: check_scores("binpack", SEEDS),
        patched(PLUGINS["binpack"], "scores", equal_weights),
    ),
    "greedy knows no ceiling": (
        lambda: check_greedy("capacity", SEEDS),
        patched(fill.Greedy, "_allowed", lambda self, queue, shape: True),
    ),
    "greedy keeps half gangs": (
        lambda: check_greedy("gang", SEEDS),
        patched(fill.Greedy, "_undo", lambda *given: None),
    ),
    "age by row": (
        lambda: check_permutation("gang", SEEDS),
        patched(combined, "_age", lambda problem, wanted: np.arange(len(problem.job_min), dtype=np.int64)),
    ),
    "a limit out of nothing": (
        lambda: check_silence("capacity", SEEDS),
        patched(PLUGINS["capacity"], "ceiling", half_the_cluster),
    ),
    "an order out of nothing": (
        lambda: check_silence("priority", SEEDS),
        patched(PLUGINS["priority"], "rank", lambda self, problem: problem.job_created),
    ),
}


@pytest.mark.parametrize("fault", FAULTS_NUMBERS)
def test_a_wrong_number_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plant = FAULTS_NUMBERS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()

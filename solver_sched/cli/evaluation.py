"""A plan made elsewhere, judged: which rules it breaks on this snapshot, and the value it reaches at each level."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from solver_sched.cluster.documents import documents, unpacked
from solver_sched.cluster.sources import STDIN
from solver_sched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from solver_sched.cluster.objects import Pod
    from solver_sched.plugins.plugin import Violation
    from solver_sched.plugins.rules import Rules
    from solver_sched.policy import Policy
    from solver_sched.problem.arrays import Index, Plan, Problem
    from solver_sched.snapshot import Snapshot


MOVING = "consolidate:"


def read_plan(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Pod -> node of what is bound or nominated, and pod -> action ("" if not said) of what goes, from a Plan or from
    {bindings, gone}, as JSON or YAML; of standard input where `path` is "-". A pod that moves goes by the action
    `consolidate:NODE`.

    Raises InputError with file and field.
    """
    source = "stdin" if str(path) == STDIN else str(path)
    document = _document(sys.stdin.buffer.read() if source == "stdin" else path.read_bytes(), source)
    if isinstance(document, dict) and "decisions" in document:
        decisions = _typed(source, document, "decisions", list[_Decision])
        bindings: dict[str, str] = {}
        for row, decision in enumerate(decisions):
            if decision.kind in ("Bind", "Nominate"):
                wrong = ""
                if not (decision.pod and decision.node):
                    place = f"pod {decision.pod!r} on node {decision.node!r}"
                    wrong = f"{decision.kind} of {place}: both must be given"
                elif decision.pod in bindings:
                    wrong = f"pod {decision.pod} is placed twice, on {bindings[decision.pod]} and {decision.node}"
                if wrong:
                    raise InputError(wrong, source=source, field=f"decisions[{row}]")
                bindings[decision.pod] = decision.node
        gone = [decision for decision in decisions if decision.kind == "Evict"]
        return bindings, {one.pod: f"{MOVING}{one.to}" if one.to else one.action for one in gone}
    if isinstance(document, dict) and "bindings" in document:
        named = _typed(source, {"gone": [], **document}, "gone", list[str])
        return _typed(source, document, "bindings"), dict.fromkeys(named, "")
    raise InputError("must be a Plan (decisions) or a mapping with bindings (pod: node) and gone", source=source)


def _document(data: bytes, source: str) -> Any:
    """The one value that the text holds."""
    try:
        found = list(documents(unpacked(data)))
    except InputError as wrong:
        raise InputError(wrong.message, source=source) from None
    if len(found) != 1:
        raise InputError(f"{len(found)} documents: must be one plan", source=source)
    if isinstance(found[0], InputError):
        raise InputError(found[0].message, source=source)
    return msgspec.json.decode(found[0].raw)


class _Decision(msgspec.Struct):
    kind: str = ""
    pod: str = ""
    node: str = ""
    action: str = ""
    to: str = ""


def _typed(source: str, document: Mapping[str, Any], field: str, wanted: Any = dict[str, str]) -> Any:
    try:
        return msgspec.convert(document[field], wanted)
    except msgspec.ValidationError as error:
        raise InputError(str(error), source=source, field=field) from None


def judged(
    snapshot: Snapshot,
    policy: Policy,
    bindings: Mapping[str, str],
    gone: Mapping[str, str] | Iterable[str],
    *,
    nodes: bool = False,
) -> dict[str, Any]:
    """The plan document of the given decisions, with `violations`: one line per broken rule. `gone`: pods that go,
    with the action where it is known. `nodes`: with the use of each node.

    Under a policy that evicts, what goes is judged as evictions, and a plan that evicts has the levels of
    formulation.md 8: also where it breaks rules about who may go, as long as what is placed fits once they have gone.
    A gang that is left below its minimum then counts as ended whole. Remainders of broken gangs are taken as whoever
    the plan completes leaves them, where a cycle of ours goes by what it could complete without evictions: levels
    in-share.spare and disruption.whom may differ by that. Under any other policy pods that go are taken as
    gone, with the right to evict them unquestioned.

    Levels have no bound: a bound is a statement about all plans, and this is one. Which of a queue's work counts as in
    its share is still to be chosen, in the plan's favour: a level where that choice is not proven to be the best has
    status "GIVEN (at least)".
    """
    began = time.perf_counter()
    from solver_sched.actions.decide import decide
    from solver_sched.actions.enqueue import open_cycle
    from solver_sched.compare import values_of
    from solver_sched.cycle import Budget, CycleReport, reasons_of
    from solver_sched.model.effort import Effort
    from solver_sched.problem.arrays import EMPTY_PLAN
    from solver_sched.problem.reservations import by_hand
    from solver_sched.verify import violations

    actions = dict(gone) if isinstance(gone, Mapping) else dict.fromkeys(gone, "")
    pods = {pod.key: pod for pod in snapshot.pods}
    broken = [f"pod {pod} is gone, but the snapshot does not have it" for pod in sorted(actions.keys() - pods.keys())]
    leaving = {pod: action for pod, action in sorted(actions.items()) if pod in pods}
    evicting = policy.evicts
    if evicting:
        outside = {pod: why for pod in leaving if (why := _never_goes(snapshot, pods[pod]))}
        broken += [f"pod {pod} goes, but {why}" for pod, why in outside.items()]
    else:
        outside = leaving
    after = replace(snapshot, pods=tuple(pod for pod in snapshot.pods if pod.key not in outside))
    reserved = by_hand(after)
    started = {pod.group for pod in after.pods if pod.group and pod.key in bindings}
    problem, index, rules, entries = open_cycle(after, policy, started, reserved)
    plan, unplaced = _placed(index, pods, bindings)
    broken += unplaced
    going = {pod: action for pod, action in leaving.items() if pod not in outside}
    to = {pod: action.removeprefix(MOVING) for pod, action in going.items() if action.startswith(MOVING)}
    again = {
        pod for s, shape in enumerate(problem.victims.shape.tolist()) if shape >= 0 for pod in index.victim_pods[s]
    }
    lost = [pod for pod, node in to.items() if pod not in again or node not in index.nodes]
    broken += [f"pod {pod} moves to {to.pop(pod)}, where it cannot: it just goes" for pod in lost]
    plan, renamed = _with_victims(problem, index, rules, plan, {p: a for p, a in going.items() if p not in to})
    plan, others = _with_moves(index, plan, to, renamed)
    renamed |= others
    broken += [_line(index, found) for found in violations(problem, rules, plan)]
    stands = not unplaced and not violations(problem.after(plan), rules, _without_victims(plan))
    effort = Effort(Budget().seconds, policy.solve.gap)
    known = stands and (not broken or plan.frees)
    levels = values_of(problem, rules, plan, effort, evicting=plan.frees) if known else ()
    report = CycleReport(
        snapshot=after,
        policy=policy,
        problem=problem,
        index=index,
        rules=rules,
        plan=plan,
        greedy=EMPTY_PLAN,
        levels=levels,
        greedy_levels={},
        winner="solver",
        decisions=decide(entries.admitted, problem, index, plan, rules),
        reasons=reasons_of(after, problem, index, rules, plan, (), reserved, entries.refused),
        reservations=reserved,
        seconds={"total": time.perf_counter() - began},
    )
    document = report.as_dict(nodes=nodes)
    document["decisions"] = [
        *({"kind": "Evict", "pod": pod} for pod in sorted(outside)),
        *(_renamed(row, bindings, renamed) for row in document["decisions"]),
    ]
    document["levels"] = [
        {**row, "bound": None, "status": "GIVEN" if row["status"] == "OPTIMAL" else "GIVEN (at least)", "greedy": None}
        for row in document["levels"]
    ]
    document["certificate"] = {"status": "given", "gap": None, "winner": "given"}
    document["violations"] = broken
    return document


def _never_goes(snapshot: Snapshot, pod: Pod) -> str:
    """Why no policy lets the pod go, "" if one may. One that is being deleted goes anyway."""
    if pod.terminating:
        return ""
    if pod.node is None or pod.finished:
        return "does not run"
    if pod.scheduler not in snapshot.scheduler_names:
        return f"is of scheduler {pod.scheduler}"
    return "" if pod.preemptable else "is marked preemptable: false"


def _placed(index: Index, pods: Mapping[str, Pod], bindings: Mapping[str, str]) -> tuple[Plan, list[str]]:
    """The bindings as a plan, and a line for each that is none."""
    import numpy as np

    from solver_sched.problem.arrays import Plan

    set_of = {pod: t for t, members in enumerate(index.set_pods) for pod in members}
    row_of = {node: row for row, node in enumerate(index.nodes)}
    rows: Counter[tuple[int, int]] = Counter()
    broken = []
    for pod, node in sorted(bindings.items()):
        if pod not in set_of:
            state = "held, or not ours, or not pending" if pod in pods else "not in the snapshot"
            broken.append(f"pod {pod} is placed, but is {state}")
        elif node not in row_of:
            broken.append(f"pod {pod} is placed on {node}, which is no node that can be used")
        else:
            rows[set_of[pod], row_of[node]] += 1
    table = np.array([(t, n, count) for (t, n), count in sorted(rows.items())], np.int64).reshape(-1, 3)
    return Plan(table[:, 0], table[:, 1], table[:, 2]), broken


def _with_victims(
    problem: Problem, index: Index, rules: Rules, plan: Plan, leaving: Mapping[str, str]
) -> tuple[Plan, dict[str, str]]:
    """The plan with those who go, and the pod that goes for each that `decide` will name: those of a set are alike.

    Where the action is not said it is preempt if a job of the victim's queue starts that may take from it, else reclaim
    if a job of another queue may; where nobody may, the queues of those who start decide.
    """
    import numpy as np

    from solver_sched.problem.arrays import CAUSES, PREEMPT, RECLAIM
    from solver_sched.rights import rights, takers

    v, allowed = problem.victims, rights(problem, rules)
    set_of = {pod: s for s, members in enumerate(index.victim_pods) for pod in members}
    starting = [j for j in set(problem.set_job[plan.pod_set].tolist()) if rules.need[j]]

    def cause(h: int) -> int:
        for each in (PREEMPT, RECLAIM):
            if takers(problem, rules, allowed, h, each)[starting].any():
                return each
        return RECLAIM if starting and all(problem.job_queue[j] != v.queue[h] for j in starting) else PREEMPT

    going: dict[tuple[int, int], list[str]] = defaultdict(list)
    for pod, action in leaving.items():
        if pod in set_of:
            s = set_of[pod]
            going[s, CAUSES.get(action, cause(int(v.holder[s])))].append(pod)
    rows = sorted(going)
    named: dict[str, str] = {}
    taken: Counter[int] = Counter()
    for s, each in rows:
        mine = going[s, each]
        named |= dict(zip(index.victim_pods[s][taken[s] : taken[s] + len(mine)], mine, strict=True))
        taken[s] += len(mine)
    table = np.array([(s, len(going[s, each]), each) for s, each in rows], np.int64).reshape(-1, 3)
    return dataclasses.replace(plan, victim=table[:, 0], out=table[:, 1], cause=table[:, 2]), named


def _with_moves(
    index: Index, plan: Plan, to: Mapping[str, str], taken: Mapping[str, str]
) -> tuple[Plan, dict[str, str]]:
    """The plan with those who move, and the pod that moves for each that `decide` will name. `taken`: pods of each set
    that go come first.
    """
    import numpy as np

    row_of = {node: row for row, node in enumerate(index.nodes)}
    set_of = {pod: s for s, members in enumerate(index.victim_pods) for pod in members}
    rows: dict[tuple[int, int], list[str]] = defaultdict(list)
    for pod, node in to.items():
        if pod in set_of:
            rows[set_of[pod], row_of[node]].append(pod)
    named: dict[str, str] = {}
    at = Counter(set_of[pod] for pod in taken)
    for s, n in sorted(rows):
        mine = rows[s, n]
        named |= dict(zip(index.victim_pods[s][at[s] : at[s] + len(mine)], mine, strict=True))
        at[s] += len(mine)
    table = np.array([(s, n, len(rows[s, n])) for s, n in sorted(rows)], np.int64).reshape(-1, 3)
    return dataclasses.replace(plan, moved=table[:, 0], to=table[:, 1], moves=table[:, 2]), named


def _without_victims(plan: Plan) -> Plan:
    none = plan.victim[:0]
    return dataclasses.replace(plan, victim=none, out=none, cause=none, moved=none, to=none, moves=none)


def _line(index: Index, found: Violation) -> str:
    where = [
        f"{word} {names[row]}"
        for word, names, row in (
            ("group", index.holders, found.holder),
            ("group", index.jobs, found.job if found.holder < 0 else -1),
            ("node", index.nodes, found.node),
            ("queue", index.queues, found.queue),
        )
        if row >= 0
    ]
    parts = [*([found.plugin] if found.plugin != "base" else []), *([", ".join(where)] if where else []), found.message]
    return ": ".join(parts)


def _renamed(row: dict[str, Any], bindings: Mapping[str, str], gone: Mapping[str, str]) -> dict[str, Any]:
    """The decision on the pods and nodes that the given plan names."""
    if row["kind"] in ("Bind", "Nominate"):
        return {**row, "node": bindings[row["pod"]]}
    return {**row, "pod": gone[row["pod"]]} if row["kind"] == "Evict" else row

"""A plan made elsewhere, judged: which rules it breaks on this snapshot, and the value it reaches at each level."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from solver_sched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from solver_sched.policy import Policy
    from solver_sched.snapshot import Snapshot


def read_plan(path: Path) -> tuple[dict[str, str], list[str]]:
    """Pod -> node of what is bound or nominated, and the pods that go, from a Plan or from {bindings, gone}.

    Raises InputError with file and field.
    """
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not JSON: {error}", source=str(path)) from None
    except RecursionError:
        raise InputError("not JSON: nested too deep", source=str(path)) from None
    if isinstance(document, dict) and "decisions" in document:
        decisions = _typed(path, document, "decisions", list[_Decision])
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
                    raise InputError(wrong, source=str(path), field=f"decisions[{row}]")
                bindings[decision.pod] = decision.node
        return bindings, [decision.pod for decision in decisions if decision.kind == "Evict"]
    if isinstance(document, dict) and "bindings" in document:
        return _typed(path, document, "bindings"), _typed(path, {"gone": [], **document}, "gone", list[str])
    raise InputError("must be a Plan (decisions) or a mapping with bindings (pod: node) and gone", source=str(path))


class _Decision(msgspec.Struct):
    kind: str = ""
    pod: str = ""
    node: str = ""


def _typed(path: Path, document: Mapping[str, Any], field: str, wanted: Any = dict[str, str]) -> Any:
    try:
        return msgspec.convert(document[field], wanted)
    except msgspec.ValidationError as error:
        raise InputError(str(error), source=str(path), field=field) from None


def judged(snapshot: Snapshot, policy: Policy, bindings: Mapping[str, str], gone: list[str]) -> dict[str, Any]:
    """The plan document of the given decisions, with `violations`: one line per broken rule.

    Evicted pods are taken as gone, with the right to evict them unquestioned. Levels have no bound: a bound is a
    statement about all plans, and this is one. Which of a queue's work counts as in its share is still to be chosen, in
    the plan's favour: a level where that choice is not proven to be the best has status "GIVEN (at least)".
    """
    began = time.perf_counter()
    import numpy as np

    from solver_sched.actions.decide import decide
    from solver_sched.actions.enqueue import open_cycle
    from solver_sched.cycle import Budget, CycleReport
    from solver_sched.explain import Reason, explain
    from solver_sched.model.effort import Effort
    from solver_sched.model.levels import evaluate
    from solver_sched.problem.arrays import EMPTY_PLAN, Plan
    from solver_sched.problem.reservations import by_hand
    from solver_sched.verify import violations

    known = {pod.key for pod in snapshot.pods}
    broken = [f"pod {pod} is gone, but the snapshot does not have it" for pod in sorted(set(gone) - known)]
    leaving = set(gone)
    after = replace(snapshot, pods=tuple(pod for pod in snapshot.pods if pod.key not in leaving))
    placed = {pod.group for pod in after.pods if pod.group and pod.key in bindings}
    reserved = by_hand(after)
    problem, index, rules, entries = open_cycle(after, policy, placed, reserved)
    set_of = {pod: t for t, pods in enumerate(index.set_pods) for pod in pods}
    row_of = {node: row for row, node in enumerate(index.nodes)}
    rows: Counter[tuple[int, int]] = Counter()
    for pod, node in sorted(bindings.items()):
        if pod not in set_of:
            state = "held, or not ours, or not pending" if pod in known else "not in the snapshot"
            broken.append(f"pod {pod} is placed, but is {state}")
        elif node not in row_of:
            broken.append(f"pod {pod} is placed on {node}, which is no node that can be used")
        else:
            rows[set_of[pod], row_of[node]] += 1
    table = np.array([(t, n, count) for (t, n), count in sorted(rows.items())], np.int64).reshape(-1, 3)
    plan = Plan(table[:, 0], table[:, 1], table[:, 2])
    for found in violations(problem, rules, plan):
        where = [
            f"{word} {names[row]}"
            for word, names, row in (
                ("group", index.jobs, found.job),
                ("node", index.nodes, found.node),
                ("queue", index.queues, found.queue),
            )
            if row >= 0
        ]
        broken.append(f"{found.plugin}: {', '.join(where)}: {found.message}" if where else str(found.message))
    levels = () if broken else evaluate(problem, rules, plan, Effort(Budget().seconds, policy.solve.gap))
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
        reasons=explain(after, problem, index, rules, plan, (), reserved)
        | {key: Reason(*why) for key, why in entries.refused.items()},
        reservations=reserved,
        seconds={"total": time.perf_counter() - began},
    )
    document = report.as_dict()
    document["decisions"] = [
        *({"kind": "Evict", "pod": pod} for pod in sorted(leaving & known)),
        *({**row, "node": bindings[row["pod"]]} if row["kind"] == "Bind" else row for row in document["decisions"]),
    ]
    document["levels"] = [
        {**row, "bound": None, "status": "GIVEN" if row["status"] == "OPTIMAL" else "GIVEN (at least)", "greedy": None}
        for row in document["levels"]
    ]
    document["certificate"] = {"status": "given", "gap": None, "winner": "given"}
    document["violations"] = broken
    return document

"""`solver-sched plan` and `solver-sched explain`: objects in, a verified plan or the record of one group out."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

import solver_sched
from solver_sched.cli.errors import BAD_INPUT, NO, said
from solver_sched.cli.inputs import Cluster, Inputs, chosen, opened, present, usable
from solver_sched.cli.options import (
    Context,
    EvaluateFile,
    Example,
    Files,
    Kubeconfig,
    Lenient,
    Namespace,
    Now,
    Output,
    OutputForm,
    PolicyName,
    Report,
    ReportForm,
    SaveSnapshot,
    SchedulerNames,
    Seed,
    Solver,
    SolverName,
    Strict,
    TimeLimit,
    WhatIf,
)
from solver_sched.cli.output import answer, checked_form
from solver_sched.cli.progress import progress
from solver_sched.errors import InputError

if TYPE_CHECKING:
    from solver_sched.cycle import CycleReport
    from solver_sched.model.effort import LevelResult
    from solver_sched.policy import Policy
    from solver_sched.snapshot import Snapshot


def plan(
    filename: Files = None,
    example: Example = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    what_if: WhatIf = False,
    namespace: Namespace = None,
    policy: PolicyName = None,
    solver: SolverName = Solver.optimal,
    time_limit: TimeLimit = None,
    output: ReportForm = Report.table,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    strict: Strict = False,
    lenient: Lenient = False,
    evaluate: EvaluateFile = None,
    seed: Seed = None,
    save_snapshot: SaveSnapshot = None,
) -> None:
    """Plan what should run where, now: which gangs start, on which nodes, how good that is, and why the rest waits.

    Without -f the live cluster is read, the one that kubectl would talk to; nothing is written to it.

    Exit code 0 with a plan, also where single objects had mistakes; 1 if --evaluate finds a broken rule; 2 if nothing
    is left to plan.
    """
    checked_form(output)
    checked = checked_policy(policy, lenient)
    inputs = chosen(filename, example, Cluster(kubeconfig, context, what_if), namespace)
    if "-" in inputs.paths and str(evaluate) == "-":
        raise typer.BadParameter("standard input can be read only once", param_hint="--evaluate")
    snapshot = read(inputs, scheduler_name, now, strict=strict, solver=solver if evaluate is None else None)
    if save_snapshot is not None:
        from solver_sched.snapshot import dump

        save_snapshot.write_bytes(dump(snapshot))
    if evaluate is not None:
        from solver_sched.cli.evaluation import judged, read_plan

        bindings, gone = read_plan(evaluate)
        with progress("evaluating"):
            result = judged(snapshot, checked, bindings, gone, nodes=output is Report.html)
    else:
        report = planned(snapshot, checked, solver, time_limit, seed)
        result = report.as_dict(nodes=True) if output is Report.html else report.as_dict()
    from solver_sched.report.tables import plan_blocks

    answer(result, output, lambda: plan_blocks(result, wide=output is Report.wide, unmet=checked.unmet()))
    if result.get("violations"):
        raise typer.Exit(NO)


def explain(
    name: Annotated[str, typer.Argument(metavar="NAMESPACE/PODGROUP", help="A pod group, or a pod without one.")],
    filename: Files = None,
    example: Example = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    what_if: WhatIf = False,
    namespace: Namespace = None,
    policy: PolicyName = None,
    solver: SolverName = Solver.optimal,
    time_limit: TimeLimit = None,
    output: OutputForm = Output.table,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    strict: Strict = False,
    lenient: Lenient = False,
    seed: Seed = None,
) -> None:
    """Say why a pod group is pending, with all the numbers behind it, or where it would run.

    Exit code 0 if all its pods run or are bound now; 1 if some wait, be it for room that is being freed, if it is not
    let in, if it has fewer pods than its minimum, or if it is ended to make room; 2 if there is no such group.
    """
    from solver_sched.report.explain import explain_blocks, record, short_of_pods, unknown_group

    checked = checked_policy(policy, lenient)
    inputs = chosen(filename, example, Cluster(kubeconfig, context, what_if), namespace)
    if inputs.namespace and "/" not in name:
        name = f"{inputs.namespace}/{name}"
    snapshot = read(inputs, scheduler_name, now, strict=strict, solver=solver)
    result = planned(snapshot, checked, solver, time_limit, seed).as_dict()
    try:
        found = record(result, name)
    except KeyError:
        names = [group["name"] for group in result["podGroups"]]
        of = next((pod.group for pod in snapshot.pods if pod.key == name), None)
        raise InputError(unknown_group(names, name, of)) from None
    answer(found, output, lambda: explain_blocks(result, name))
    group = found["podGroup"]
    if group["pending"] or group["reason"] or short_of_pods(group):
        raise typer.Exit(NO)


def checked_policy(name: str | None, lenient: bool) -> Policy:
    """The policy that --policy names, its warnings on stderr. Raises PolicyError."""
    from solver_sched.policy import load_policy

    policy = load_policy(name, lenient=lenient)
    for warning in policy.warnings:
        said(f"warning: {warning}", BAD_INPUT)
    return policy


def read(
    inputs: Inputs, scheduler_names: list[str] | None, now: int | None, *, strict: bool, solver: Solver | None
) -> Snapshot:
    """What there is to plan, with the imports of `solver` on their way. Raises InputError."""
    if solver is Solver.optimal:
        from solver_sched.model.process import warm_up

        warm_up()  # the solver's imports run beside the reading
    with ExitStack() as stack, progress("reading"):
        snapshot = solver_sched.load_snapshot(
            opened(inputs, stack),
            now=present(inputs, now),
            scheduler_names=scheduler_names,
            namespace=inputs.namespace or "default",
        )
    return usable(snapshot, strict=strict)


def planned(
    snapshot: Snapshot,
    policy: Policy,
    solver: Solver,
    time_limit: float | None,
    seed: int | None,
    doing: str = "planning",
) -> CycleReport:
    """One cycle, with the progress of its levels under what is said to be done."""
    from solver_sched.cycle import Budget

    limit = time_limit or policy.solve.time_limit_seconds or Budget().seconds
    with progress(doing) as tell:

        def solved(level: LevelResult) -> None:
            bound = "no bound" if level.bound is None else f"bound {level.bound}, gap {level.gap:.4%}"
            tell(f"{level.name} = {level.value}, {bound}")

        return solver_sched.run_cycle(snapshot, policy, Budget(limit, seed=seed), solver.value, solved)

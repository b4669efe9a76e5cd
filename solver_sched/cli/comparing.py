"""`solver-sched compare`: one snapshot, every solver under every policy, and what differs."""

from __future__ import annotations

from typing import Annotated

import typer

from solver_sched.cli.inputs import Cluster, chosen
from solver_sched.cli.options import (
    Context,
    Example,
    Files,
    Kubeconfig,
    Lenient,
    Namespace,
    Now,
    Report,
    ReportForm,
    SchedulerNames,
    Seed,
    Solver,
    Strict,
    TimeLimit,
    WhatIf,
    names,
)
from solver_sched.cli.output import answer, checked_form
from solver_sched.cli.planning import checked_policy, planned, read


def compare(
    filename: Files = None,
    example: Example = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    what_if: WhatIf = False,
    namespace: Namespace = None,
    policies: Annotated[
        str, typer.Option(metavar="NAME|FILE,..", help="Shipped policies or scheduler.conf files.")
    ] = "default",
    solvers: Annotated[str, typer.Option(metavar="NAME,..", help="Who decides: greedy, optimal.")] = "greedy,optimal",
    time_limit: TimeLimit = None,
    output: ReportForm = Report.table,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    strict: Strict = False,
    lenient: Lenient = False,
    seed: Seed = None,
) -> None:
    """Plan one snapshot with several solvers and policies, and show what differs: what starts, how full it gets, who
    has what of its share, who is ended, and which groups fare differently, with why.

    Without -f the live cluster is read, the one that kubectl would talk to; nothing is written to it.
    """
    checked_form(output)
    deciders = [Solver(name) for name in names("--solvers", solvers, list(Solver))]
    wanted = names("--policies", policies)
    checked = {policy.name: policy for policy in (checked_policy(name, lenient) for name in wanted)}
    if len(checked) < len(wanted):
        raise typer.BadParameter(f"two of {', '.join(wanted)} have one name", param_hint="--policies")
    inputs = chosen(filename, example, Cluster(kubeconfig, context, what_if), namespace)
    solver = Solver.optimal if Solver.optimal in deciders else Solver.greedy
    snapshot = read(inputs, scheduler_name, now, strict=strict, solver=solver)
    from solver_sched.compare import Run, comparison
    from solver_sched.report.comparison import comparison_blocks

    runs = [
        Run(one.value, planned(snapshot, policy, one, time_limit, seed, f"{one.value} {policy.name}"))
        for policy in checked.values()
        for one in deciders
    ]
    result = comparison(runs, nodes=output is Report.html)
    answer(result, output, lambda: comparison_blocks(result, wide=output is Report.wide))

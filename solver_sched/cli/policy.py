"""`solver-sched policy check | list | show`: what a policy file says, and what of it has an effect."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from solver_sched.cli.errors import NO, said
from solver_sched.cli.options import Lenient, Output, OutputForm
from solver_sched.cli.output import answer
from solver_sched.policy import Policy, PolicyError, load_policy, shipped_policies

EVICTING = ("preempt", "reclaim", "gangpreempt", "gangreclaim")
app = typer.Typer(help="Check, list and show policies.", no_args_is_help=True)


@app.command(
    short_help="Whether a policy file can be used, and what is wrong with it.",
    epilog="Example: solver-sched policy check volcano-scheduler.conf",
)
def check(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A scheduler.conf or its ConfigMap; - = stdin.", show_default=False)
    ],
    lenient: Lenient = False,
    output: OutputForm = Output.table,
) -> None:
    """Say whether a policy file can be used, what is wrong with it, and what of it has no effect yet.

    Exit code 1 if it cannot be used; 2 if there is no such file.
    """
    from solver_sched.report.policies import check_blocks

    source = f"{sys.stdin.read()}\n" if file == "-" else file
    if file != "-" and file not in shipped_policies():
        try:
            Path(file).open("rb").close()  # no file is bad usage, a bad file is an answer
        except FileNotFoundError as wrong:
            wrong.strerror = f"no such file, and no shipped policy (known: {', '.join(shipped_policies())})"
            raise
    try:
        policy = load_policy(source, lenient=lenient)
    except PolicyError as error:
        if output in (Output.json, Output.yaml):
            answer(
                {"ok": False, "errors": list(error.messages), "warnings": list(error.warnings), "inert": {}},
                output,
                list,
            )
        else:
            for message in error.messages:
                said(message, NO)
            for warning in error.warnings:
                said(f"warning: {warning}", NO)
        raise typer.Exit(NO) from None
    found = {"ok": True, "errors": [], "warnings": list(policy.warnings), "inert": dict(policy.inert())}
    answer(found, output, lambda: check_blocks(policy, file))


@app.command(
    "list",
    short_help="Shipped policies; actions and plugins that a file may name.",
    epilog="Example: solver-sched policy list",
)
def list_(output: OutputForm = Output.table) -> None:
    """List the shipped policies, and the actions and plugins that a file may name."""
    from solver_sched.policy.catalogue import ACTIONS, PLUGINS
    from solver_sched.report.policies import list_blocks

    policies = {name: load_policy(name) for name in shipped_policies()}
    found = {
        "policies": [policy.as_dict() for policy in policies.values()],
        "actions": [{"name": name, "inert": entry.inert} for name, entry in ACTIONS.items()],
        "plugins": [
            {
                "name": name,
                "inert": entry.inert,
                "arguments": {
                    argument: {"type": known.kind, "default": known.default, "inert": known.inert}
                    for argument, known in entry.arguments.items()
                },
            }
            for name, entry in PLUGINS.items()
        ],
    }
    answer(found, output, lambda: list_blocks(policies))


@app.command(
    short_help="A policy in full, and the levels that it comes down to.",
    epilog="Example: solver-sched policy show packing",
)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped policy or a file.", show_default=False)],
    lenient: Lenient = False,
    output: OutputForm = Output.table,
) -> None:
    """Show a policy in full: arguments with their defaults, and the levels that result."""
    from solver_sched.report.policies import show_blocks

    policy = load_policy(name, lenient=lenient)
    answer(policy.as_dict(), output, lambda: show_blocks(policy, *_levels(policy)))


def _levels(policy: Policy) -> tuple[list[str], list[str]]:
    """Names of the levels without evictions, and of those with (none where nobody may go), read off a solved cluster
    that is too small for its work, where every rule has a say.

    One node of 4 CPU, held by a gang of queue a that needs one of its four pods; a higher job of a and one of b wait.
    """
    import solver_sched
    from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
    from solver_sched.cycle import Budget
    from solver_sched.snapshot import Snapshot

    needs = Needs(request=(("cpu", 1000), ("pods", 1)))
    dialect = "scheduling.volcano.sh/v1beta1"
    priority = {"low": 0, "high": 1, "other": 0}

    def pods(group: str, count: int, node: str | None = None) -> list[Pod]:
        phase = "Pending" if node is None else "Running"
        return [
            Pod(
                "ns",
                f"{group}-{i}",
                needs,
                scheduler="solver-sched",
                group=f"ns/{group}",
                member_of=dialect,
                priority=priority[group],
                phase=phase,
                node=node,
            )
            for i in range(count)
        ]

    def names(chosen: Policy, running: int) -> list[str]:
        waiting = pods("high", 2) + pods("other", 2)
        snapshot = Snapshot(
            nodes=(Node("n", {"cpu": 1000 * (running or 2), "pods": 10}),),
            pods=tuple(pods("low", running or 1, "n") + waiting),
            groups=tuple(
                PodGroup("ns", group, dialect, queue="b" if group == "other" else "a", priority=priority[group])
                for group in priority
            ),
            queues=tuple(Queue(name) for name in ("a", "b", "default")),
        )
        plan = solver_sched.run_cycle(snapshot, chosen, Budget(apart=False)).as_dict()
        if running and not any(decision["kind"] == "Evict" for decision in plan["decisions"]):
            return []
        # of the lowest priority, which has them all; P- counts only what runs above minimums
        rows = [level["name"] for level in plan["levels"] if not level["name"].endswith("-")]
        rows = [re.sub(r">=.*", ">=p", re.sub(r"\[\d+\]", "[k]", name)) for name in rows]
        return list(dict.fromkeys(reversed(rows)))[::-1]

    staying = replace(policy, actions=tuple(name for name in policy.actions if name not in EVICTING))
    return names(staying, 0), names(policy, 4) if policy.preempts or policy.reclaims else []

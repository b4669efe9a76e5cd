"""`solver-sched policy check | list | show`: what a policy file says, and what of it has an effect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solver_sched.cli.errors import NO, said
from solver_sched.cli.options import Lenient, Output, OutputForm
from solver_sched.cli.output import answer
from solver_sched.policy import Policy, PolicyError, load_policy, shipped_policies

app = typer.Typer(help="Check, list and show policies.", no_args_is_help=True)


@app.command(epilog="Example: solver-sched policy check volcano-scheduler.conf")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scheduler.conf or its ConfigMap.", show_default=False)],
    lenient: Lenient = False,
    output: OutputForm = Output.table,
) -> None:
    """Say whether a policy file can be used, what is wrong with it, and what of it has no effect yet.

    Exit code 1 if it cannot be used; 2 if there is no such file.
    """
    from solver_sched.report.policies import check_blocks

    if file not in shipped_policies():
        Path(file).open("rb").close()  # no file is bad usage, a bad file is an answer
    try:
        policy = load_policy(file, lenient=lenient)
    except PolicyError as error:
        if output in (Output.json, Output.yaml):
            answer({"ok": False, "errors": list(error.messages), "warnings": [], "inert": {}}, output, list)
        else:
            for message in error.messages:
                said(message, NO)
        raise typer.Exit(NO) from None
    found = {"ok": True, "errors": [], "warnings": list(policy.warnings), "inert": dict(policy.inert())}
    answer(found, output, lambda: check_blocks(policy, file))


@app.command("list", epilog="Example: solver-sched policy list")
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


@app.command(epilog="Example: solver-sched policy show packing")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped policy or a file.", show_default=False)],
    lenient: Lenient = False,
    output: OutputForm = Output.table,
) -> None:
    """Show a policy in full: arguments with their defaults, and the levels that result."""
    from solver_sched.report.policies import show_blocks

    policy = load_policy(name, lenient=lenient)
    answer(policy.as_dict(), output, lambda: show_blocks(policy, _levels(policy)))


def _levels(policy: Policy) -> list[str] | None:
    """Names of the levels, read off a solved cluster that is too small for its work, where every rule has a say.

    One node of 2 CPU, one of them held by the low queue's gang, both queues asking for more than is left.
    """
    import solver_sched
    from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
    from solver_sched.cycle import Budget
    from solver_sched.snapshot import Snapshot

    needs = Needs(request=(("cpu", 1000), ("pods", 1)))
    ours, dialect = "solver-sched", "scheduling.volcano.sh/v1beta1"
    node = Node("n", {"cpu": 2000, "pods": 10})
    pods = [Pod("ns", "a-0", needs, phase="Running", node="n", scheduler=ours, group="ns/a", member_of=dialect)]
    pods += [
        Pod("ns", f"{g}-{i}", needs, scheduler=ours, group=f"ns/{g}", member_of=dialect) for g in "ab" for i in (1, 2)
    ]
    snapshot = Snapshot(
        nodes=(node,),
        pods=tuple(pods),
        groups=tuple(PodGroup("ns", g, dialect, queue=g) for g in "ab"),
        queues=tuple(Queue(name) for name in ("a", "b", "default")),
    )
    report = solver_sched.run_cycle(snapshot, policy, Budget(apart=False))
    return [level["name"].replace(">=0", ">=p") for level in report.as_dict()["levels"]]

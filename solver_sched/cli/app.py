"""The commands of `solver-sched`. Engines are imported where a command needs them: `--help` answers at once."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from solver_sched.cli import capture, comparing, listing, planning, policy, run, simulation, traces
from solver_sched.cli.errors import Commands

PLUGIN = "kubectl solver-sched"
app = typer.Typer(
    cls=Commands,
    help="A batch scheduler for Kubernetes that decides by solving.",
    epilog="Example: kubectl get nodes,pods,podgroups,queues,priorityclasses -A -o yaml | solver-sched plan -f -",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off the names of long options, and with them what is to be typed
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for does, short, example in (
    (
        planning.plan,
        "What should run where, now, how good that is, why the rest waits.",
        "plan -f cluster.yaml -f new-job.yaml --policy volcano --time-limit 5s -o wide",
    ),
    (
        planning.explain,
        "Why a pod group is pending, with numbers, or where it would run.",
        "explain ml/train-7 -f cluster.yaml",
    ),
    (
        comparing.compare,
        "Solvers and policies on one snapshot, side by side.",
        "compare -f cluster.yaml --policies default,volcano --solvers greedy,optimal",
    ),
    (
        capture.snapshot,
        "What scheduling knows of the live cluster, as JSON for `plan -f`.",
        "snapshot --context prod -o prod.json",
    ),
    (traces.convert, "A cluster trace as Kubernetes objects.", "convert openb nodes.csv pods.csv -o cluster.json"),
    (traces.generate, "A contended cluster from a seed.", "generate --nodes 100 --gangs 40 --seed 7 -o cluster.json"),
    (
        simulation.simulate,
        "Replay a workload and compare schedulers over time.",
        "simulate --generate nodes=50,jobs=500,days=1 --policies default,preempting",
    ),
):
    app.command(short_help=short, epilog=f"Example: solver-sched {example}")(does)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    short_help="The service: schedule the pods that name this scheduler.",
    epilog="Example: solver-sched run --kubeconfig ~/.kube/config --scheduler-name solver-sched --dry-run",
)(run.run)
app.add_typer(listing.queues, name="queue", epilog="Example: solver-sched queue list -o wide")
app.add_typer(listing.jobs, name="job", epilog="Example: solver-sched job list -A")
app.add_typer(policy.app, name="policy", epilog="Example: solver-sched policy check volcano-scheduler.conf")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"solver-sched {version('solver-sched')}")
        except PackageNotFoundError:  # a source tree on PYTHONPATH
            typer.echo("solver-sched (not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Decide what runs where in a Kubernetes cluster, by solving: objects in, live or dumped, a verified plan out."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the `solver-sched` script."""
    _open_streams()
    app()


def plugin() -> None:
    """Entry point of `kubectl-solver_sched`, which kubectl runs as `kubectl solver-sched`: in a file's name underscores
    stand for the dashes of a command (kubectl pkg/cmd/plugin).
    """
    _open_streams()
    app(prog_name=PLUGIN)


def complete() -> None:
    """Entry point of `kubectl_complete-solver_sched`: kubectl asks it for what may follow the arguments, one a line
    (kubectl pkg/cmd/plugin, plugin_completion.go). The last argument is the word that is being typed, perhaps empty.
    """
    words = ["solver-sched", *sys.argv[1:]]
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(words), str(len(words) - 1)
    os.environ["_SOLVER_SCHED_COMPLETE"] = "complete_bash"
    app(complete_var="_SOLVER_SCHED_COMPLETE")


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: `<&-`, `>&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # kept open

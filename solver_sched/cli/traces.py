"""`solver-sched convert` and `solver-sched generate`: clusters from traces and from seeds, as one List of objects."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solver_sched.cli.options import OutputFile

if TYPE_CHECKING:
    from collections.abc import Sequence


class TraceFormat(StrEnum):
    """Known trace formats."""

    openb = "openb"


class GpuShare(StrEnum):
    """What a request for part of a GPU becomes."""

    whole = "whole"
    milli = "milli"


class Load(StrEnum):
    """What runs in a generated cluster."""

    pods = "pods"
    gangs = "gangs"
    victims = "victims"


def convert(
    trace: Annotated[TraceFormat, typer.Argument(help="Format of the trace.", show_default=False)],
    nodes: Annotated[Path, typer.Argument(metavar="NODES", help="The node list (CSV).", show_default=False)],
    pods: Annotated[Path, typer.Argument(metavar="PODS", help="The pod list (CSV).", show_default=False)],
    output: OutputFile = None,
    gpu_share: Annotated[
        GpuShare,
        typer.Option(
            help="A pod that asks for part of a GPU gets a whole one; or thousandths pooled over the node: an upper "
            "bound, not executable."
        ),
    ] = GpuShare.whole,
) -> None:
    """Turn a cluster trace into Kubernetes objects: nodes, and all pods pending."""
    assert trace is TraceFormat.openb
    from solver_sched.simulate.openb import read

    _write(read(nodes, pods, gpu_share="milli" if gpu_share is GpuShare.milli else "whole"), output)


def generate(
    nodes: Annotated[int, typer.Option(min=0, help="Number of nodes.")] = 100,
    gangs: Annotated[int, typer.Option(min=0, help="Number of pending gangs.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same cluster.")] = 0,
    occupancy: Annotated[float, typer.Option(min=0, max=1, help="Mean share of a node that is taken.")] = 0.5,
    queues: Annotated[int, typer.Option(min=1, help="Number of queues.")] = 10,
    priorities: Annotated[int, typer.Option(min=1, help="Number of priority classes.")] = 4,
    load: Annotated[
        Load,
        typer.Option(
            help="What runs: pods nobody may move, gangs of the same queues, or such gangs filling every node to "
            "the occupancy, as victims of preempt and reclaim: --running, --surplus and --budgets are for these."
        ),
    ] = Load.pods,
    running: Annotated[
        int | None, typer.Option(min=0, help="About how many victims run.", show_default="as many as fit")
    ] = None,
    surplus: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the victim gangs that need only half of their pods.")
    ] = 0.3,
    claims: Annotated[bool, typer.Option(help="Whether pending gangs have somebody to take from.")] = True,
    budgets: Annotated[bool, typer.Option("--budgets", help="Give some victims disruption budgets.")] = False,
    distinct: Annotated[bool, typer.Option("--distinct", help="Give every node a free vector of its own.")] = False,
    output: OutputFile = None,
) -> None:
    """Make a contended cluster from a seed: nodes with and without GPUs, queues, running work and pending gangs."""
    from solver_sched.simulate import generate as cluster

    try:
        objects = cluster.generate(
            nodes=nodes,
            gangs=gangs,
            seed=seed,
            occupancy=occupancy,
            queues=queues,
            priorities=priorities,
            load=load.value,
            distinct=distinct,
            running=running,
            surplus=surplus,
            claims=claims,
            budgets=budgets,
        )
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    _write(objects, output)


def _write(items: Sequence[object], output: Path | None) -> None:
    import msgspec

    text = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}) + b"\n"
    if output is None:
        sys.stdout.write(text.decode())
    else:
        output.write_bytes(text)

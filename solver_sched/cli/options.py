"""Options that several commands share, and the values they parse to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from solver_sched.policy.conf import as_seconds


class Output(StrEnum):
    """How an answer is written to stdout."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"


class Report(StrEnum):
    """How an answer is written of which there is a page too."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    html = "html"


class Solver(StrEnum):
    """Who decides."""

    optimal = "optimal"
    greedy = "greedy"


def duration(text: str) -> float:
    """Seconds above 0 of `5s`, `500ms`, `2m`, `5`."""
    try:
        seconds = float(as_seconds(text))
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise typer.BadParameter(f"{text!r} is not a duration above zero such as 5s, 500ms or 1m30s")
    return seconds


def instant(text: str) -> int:
    """Seconds since the epoch of `2026-01-02T03:04:05Z` or of a number."""
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-02T03:04:05Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


Files = Annotated[
    list[str] | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="PATH",
        help="Objects to read: a file, a folder, a dumped snapshot, or - for stdin. Repeatable.",
        show_default="the live cluster",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Read the live cluster of this file.", show_default="as kubectl"),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Read the live cluster of this context.", show_default="the current one"
    ),
]
WhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if",
        help="Put -f on top of the live cluster, as if it were applied; implied by --context and --kubeconfig.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Of names and objects that say no namespace.",
        show_default="the context's; of files: default",
    ),
]
Example = Annotated[bool, typer.Option("--example", help="Read the shipped example cluster.")]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|FILE", help="A shipped policy or a scheduler.conf.", show_default="default"),
]
SolverName = Annotated[Solver, typer.Option("--solver", help="Who decides.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="DURATION",
        parser=duration,
        help="Wall time of the cycle, the start of the solver's process not counted.",
        show_default="the policy's, or 5s",
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write.", show_default="stdout")
]
OutputForm = Annotated[Output, typer.Option("--output", "-o", help="Form of the answer.")]
ReportForm = Annotated[
    Report, typer.Option("--output", "-o", help="Form of the answer; html: one page, for a browser.")
]
SchedulerNames = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler-name",
        metavar="NAME",
        help="Decide on pods of this schedulerName; all others are usage. Repeatable.",
        show_default="solver-sched, kube-batch, volcano",
    ),
]
Now = Annotated[
    int | None,
    typer.Option(
        "--now",
        metavar="TIME",
        parser=instant,
        help="The present.",
        show_default="newest time in the files; of a live cluster: now",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse input in which any object has a mistake.")]
Lenient = Annotated[
    bool, typer.Option("--lenient", help="Warn of unknown names in the policy instead of refusing them.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the solver.", show_default="the policy's, or 0")
]
EvaluateFile = Annotated[
    Path | None,
    typer.Option(
        "--evaluate",
        metavar="FILE",
        help="Judge this plan (JSON or YAML: a Plan, or {bindings, gone}; - for stdin) instead of making one.",
        show_default=False,
    ),
]
SaveSnapshot = Annotated[
    Path | None,
    typer.Option("--save-snapshot", metavar="FILE", help="Write what was read, for a bug report.", show_default=False),
]


def names(option: str, text: str, known: Sequence[str] = ()) -> list[str]:
    """The names of a list `a,b`, each once. Raises typer.BadParameter; also for one that is not `known`, if any are."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in found:
        raise typer.BadParameter(f"{text!r} is not a list of names such as a,b", param_hint=option)
    wrong = [name for name in found if known and name not in known]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is not one of {', '.join(known)}", param_hint=option)
    return found

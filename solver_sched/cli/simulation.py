"""`solver-sched simulate`: a trace or a generated workload under several schedulers, in virtual time."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solver_sched.cli.errors import BAD_INPUT, INTERRUPTED, said
from solver_sched.cli.options import Report, ReportForm, Solver, Strict, duration, names
from solver_sched.cli.output import answer, checked_form
from solver_sched.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor
    from types import FrameType

    from solver_sched.simulate.replay import Told
    from solver_sched.simulate.runs import Task
    from solver_sched.simulate.trace import Trace

SHOWN_PROBLEMS = 5
BUDGET = 1.0
PERIOD = 60
NO_DASK = "dask.distributed is not installed: pip install 'solver-sched[dask]'"


def simulate(
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A trace: .swf (Standard Workload Format), .jsonl, or twice .csv (nodes and pods of openb).",
            show_default=False,
        ),
    ] = None,
    generate: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="A workload from a seed: nodes=50,jobs=1000,days=1,load=0.9; other keys are queues, priorities, "
            "gpus, estimates, elastic, failures, losses.",
            show_default=False,
        ),
    ] = None,
    solvers: Annotated[str, typer.Option(metavar="A,B", help="Who decides: greedy, optimal.")] = "greedy,optimal",
    policies: Annotated[str, typer.Option(metavar="A,B", help="Shipped policies or files.")] = "default",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each scheduler, each with a seed of its own.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed: of a generated workload and of the solver.")] = 0,
    period: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="Virtual time between cycles.")
    ] = "60s",  # type: ignore[assignment]  # typer parses defaults as well
    time_limit: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration,
            help="Deterministic time of each solve: no machine's speed changes a result.",
        ),
    ] = "1s",  # type: ignore[assignment]
    first: Annotated[
        int | None, typer.Option(min=1, help="Read so many jobs of the trace.", show_default="all")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time.", show_default="as many as processors")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on this dask.distributed scheduler.", show_default=False),
    ] = None,
    output: ReportForm = Report.table,
    strict: Strict = False,
) -> None:
    """Replay a workload on an embedded cluster and compare schedulers: waiting, slowdown, use, fairness, evictions.

    Ctrl-C ends the runs where they are: what there is is printed (`partial: true`), with exit code 130. A second one
    ends the command at once.
    """
    from solver_sched.policy import load_policy
    from solver_sched.report.simulation import simulation_blocks
    from solver_sched.simulate.replay import Run
    from solver_sched.simulate.runs import Task
    from solver_sched.simulate.runs import simulate as carried_out

    checked_form(output)
    who, rules = names("--solvers", solvers, list(Solver)), names("--policies", policies)
    for name in rules:
        for warning in load_policy(name).warnings:
            said(f"warning: {warning}", BAD_INPUT)
    if int(period) != period:
        raise typer.BadParameter(f"{period} s is no whole number of seconds", param_hint="--period")
    numbers = range(seed, seed + seeds)
    traces = _traces(trace, generate, numbers, first, strict=strict)
    tasks = [
        Task(traces[number], Run(solver, policy, number), int(period), time_limit)
        for number in numbers
        for policy in rules
        for solver in who
    ]
    with ExitStack() as stack:
        executor = stack.enter_context(_executor(tasks, jobs, dask))
        told = stack.enter_context(_progress(tasks))
        interrupted = stack.enter_context(_interrupts())
        result = carried_out(tasks, executor, told=told, stopped=interrupted)
    answer(result, output, lambda: simulation_blocks(result, wide=output is Report.wide))
    if result["partial"] and interrupted():
        raise typer.Exit(INTERRUPTED)


def _traces(
    files: list[Path] | None, spec: str | None, seeds: Sequence[int], first: int | None, *, strict: bool
) -> dict[int, Trace]:
    """The trace of each seed: the same one, unless it is generated."""
    if bool(files) == (spec is not None):
        raise typer.BadParameter("give one of --trace FILE and --generate SPEC", param_hint="--trace")
    if spec is not None:
        from solver_sched.simulate.workload import parsed, workload

        if first is not None:
            raise typer.BadParameter("is for --trace; --generate takes jobs=N", param_hint="--first")
        return {seed: workload(parsed(spec), seed) for seed in seeds}
    from solver_sched.errors import InputError
    from solver_sched.simulate.read import read

    found = read(files or [], first)
    for problem in found.problems[:SHOWN_PROBLEMS]:
        if strict:
            raise InputError(str(problem))
        said(f"warning: {problem}", BAD_INPUT)
    more = len(found.problems) - SHOWN_PROBLEMS
    if more > 0:
        said(f"warning: {more} more problems (-o json lists them all)", BAD_INPUT)
    return dict.fromkeys(seeds, found)


@contextmanager
def _executor(tasks: Sequence[Task], jobs: int | None, dask: str | None) -> Iterator[Executor | None]:
    """Where runs take place; None = here, one after another. Raises ConfigError without dask, where it is asked for."""
    if dask is not None:
        try:
            from distributed import Client
        except ImportError:
            raise ConfigError(NO_DASK) from None
        with Client(dask) as client:
            yield client.get_executor()
        return
    most = min(len(tasks), jobs or len(os.sched_getaffinity(0)))
    if most == 1:
        yield None
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # started anew and not forked: a fork would copy the locks of the solver's threads
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(most, context, _ignore_interrupts) as pool:
        yield pool


def _ignore_interrupts() -> None:
    """The terminal sends Ctrl-C to all processes: the one that was called tells the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; the second one is as usual."""
    pressed = False

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)
        sys.stderr.write("\n")
        said("ending the runs where they are; once more ends at once", INTERRUPTED)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(tasks: Sequence[Task]) -> Iterator[Callable[[int, Told], None]]:
    """A bar for each run, on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _number, _told: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[how]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        rows = [
            bars.add_task(
                f"{task.run.solver} {task.run.policy or 'default'} {task.run.seed}",
                total=max(1, len(task.trace.jobs)),
                how="",
            )
            for task in tasks
        ]

        def told(number: int, so_far: Told) -> None:
            how = f"day {so_far.now / 86400:.1f}, {so_far.cycles} cycles, {so_far.pending} pods wait"
            bars.update(rows[number], completed=so_far.ended, how=how)

        yield told

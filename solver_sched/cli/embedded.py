"""`solver-sched run --embedded`: the service's loop on a cluster in this process, to be watched."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from solver_sched.cycle import CycleReport
    from solver_sched.report.screen import Moment
    from solver_sched.simulate.replay import Told

    Show = Callable[[Mapping[str, Any] | None, Moment], None]

WORKLOAD = "nodes=20,jobs=400,days=1,queues=3,load=1.2"
TICK = 0.2
"""Seconds between two looks at the clock while nothing is to be done."""


def play(workload: str, *, seed: int, policy: str | None, speed: float, period: float) -> None:
    """Until all jobs have ended, or SIGINT or SIGTERM; then the tables of `simulate`. `speed`: virtual seconds in one
    of ours; `period`: our seconds between cycles.

    On a terminal a screen shows the last cycle; elsewhere each cycle is a line of the log. Raises InputError for a bad
    workload, ConfigError for a bad policy.
    """
    from solver_sched.report.screen import FEW, Moment, decided
    from solver_sched.report.simulation import simulation_blocks
    from solver_sched.report.terminal import write
    from solver_sched.simulate.replay import Run
    from solver_sched.simulate.runs import Task, simulate
    from solver_sched.simulate.workload import parsed
    from solver_sched.simulate.workload import workload as drawn

    trace = drawn(parsed(workload), seed)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    decisions: deque[str] = deque(maxlen=FEW)
    plan: dict[str, Any] | None = None
    now = 0
    began = time.monotonic()

    def pace(_: int, told: Told) -> None:
        """Wait until it is time for the next cycle."""
        nonlocal now
        while not stop.is_set():
            now = min(told.now, int((time.monotonic() - began) * speed))
            show(plan, Moment(now, told.cycles, told.ended, len(trace.jobs), told.pending, tuple(decisions)))
            if now >= told.now:
                return
            stop.wait(min(TICK, (told.now - now) / speed))

    def see(report: CycleReport) -> None:
        nonlocal plan
        plan = report.as_dict()
        decisions.extendleft(reversed(decided(plan, now)))

    task = Task(trace, Run(policy=policy, seed=seed), period=max(1, round(period * speed)))
    with _screen() as show:
        document = simulate([task], told=pace, stopped=stop.is_set, see=see)
    write(simulation_blocks(document))


@contextmanager
def _screen() -> Iterator[Show]:
    """The whole terminal while it lasts; nothing where there is none."""
    if not sys.stdout.isatty():
        yield lambda _plan, _moment: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from solver_sched.report.layout import layout
    from solver_sched.report.screen import screen
    from solver_sched.report.terminal import STYLES, encodable

    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(plan: Mapping[str, Any] | None, moment: Moment) -> None:
            text = Text(no_wrap=True)
            for line, style in list(layout(screen(plan, moment), console.width))[: console.height - 1]:
                text.append(encodable(line, console.file) + "\n", STYLES[style])  # type: ignore[arg-type]  # a stream
            live.update(text, refresh=True)

        yield show

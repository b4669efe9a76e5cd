"""`solver-sched snapshot`: the facts of the live cluster in a file, to plan on elsewhere or to report a bug with."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import solver_sched
from solver_sched.cli.errors import said
from solver_sched.cli.inputs import Cluster, chosen, opened, present, usable
from solver_sched.cli.options import Context, Kubeconfig, Now, OutputFile, SchedulerNames, Strict
from solver_sched.cli.progress import progress
from solver_sched.report.tables import counted

if TYPE_CHECKING:
    from solver_sched.snapshot import Snapshot


def snapshot(
    output: OutputFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    strict: Strict = False,
) -> None:
    """Write what scheduling knows of the live cluster, as JSON that `plan -f` reads.

    It holds names, labels, requests and annotations about scheduling: no Secret, no environment, no command, no other
    annotation. Nothing is written to the cluster. Kinds that may not be listed are left out, with a line each.
    """
    from solver_sched.snapshot import dump

    inputs = chosen(None, False, Cluster(kubeconfig, context, below=True))
    with ExitStack() as stack, progress("reading"):
        found = solver_sched.load_snapshot(
            opened(inputs, stack), now=present(inputs, now), scheduler_names=scheduler_name
        )
    if found.problems:
        usable(found, strict=strict)
    text = dump(found)
    if output is None:
        sys.stdout.write(text.decode() + "\n")
    else:
        output.write_bytes(text)
    for problem in found.problems:
        said(f"warning: {problem}", 0)
    said(_summary(found) + (f" in {output}" if output is not None else ""), 0)


def _summary(found: Snapshot) -> str:
    parts = (
        (len(found.nodes), "node", "nodes"),
        (len(found.pods), "pod", "pods"),
        (len(found.groups), "pod group", "pod groups"),
        (len(found.queues), "queue", "queues"),
    )
    return ", ".join(counted(*part) for part in parts)

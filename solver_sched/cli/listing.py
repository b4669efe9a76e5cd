"""`solver-sched queue list` and `solver-sched job list`: how queues and jobs stand, from the facts and the policy's
entitlements and order alone. Nothing is solved and nothing placed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solver_sched.cli.errors import BAD_INPUT, said
from solver_sched.cli.inputs import Cluster, Inputs, chosen, opened, present, usable
from solver_sched.cli.options import (
    Context,
    Example,
    Files,
    Kubeconfig,
    Lenient,
    Namespace,
    Now,
    Output,
    OutputForm,
    PolicyName,
    SchedulerNames,
)
from solver_sched.cli.output import answer
from solver_sched.cli.planning import checked_policy
from solver_sched.cli.progress import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from solver_sched.cluster.conditions import Condition
    from solver_sched.plugins.rules import Rules
    from solver_sched.policy import Policy
    from solver_sched.problem.arrays import Index, Problem
    from solver_sched.problem.jobs import Job
    from solver_sched.snapshot import Snapshot

SHOWN_PROBLEMS = 5
queues = typer.Typer(help="Queues: their entitlement, use and demand.", no_args_is_help=True)
jobs = typer.Typer(help="Pod groups, and pods without one.", no_args_is_help=True)
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Print rows only.")]


@queues.command(
    "list",
    short_help="State, weight, share, pending and running of each queue.",
    epilog="Example: solver-sched queue list -o wide",
)
def list_queues(
    filename: Files = None,
    example: Example = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    policy: PolicyName = None,
    output: OutputForm = Output.table,
    no_headers: NoHeaders = False,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    lenient: Lenient = False,
) -> None:
    """List queues: state, weight, share (what it holds of what it deserves), jobs that wait, jobs that run.

    -o wide adds what each deserves under the policy, holds and asks for.
    """
    from solver_sched.actions.enqueue import open_cycle
    from solver_sched.report.lists import queue_table

    checked = checked_policy(policy, lenient)
    inputs = chosen(filename, example, Cluster(kubeconfig, context))
    snapshot, _ = _read(inputs, scheduler_name, now)
    problem, index, rules, _ = open_cycle(snapshot, checked)
    rows = queue_rows(snapshot, problem, index, rules)
    answer(
        {"apiVersion": "solver-sched.io/v1alpha1", "kind": "QueueList", "items": rows},
        output,
        lambda: [queue_table(rows, wide=output is Output.wide, bare=no_headers)],
    )


@jobs.command(
    "list",
    short_help="Who runs, who waits, at which place in its queue.",
    epilog="Example: solver-sched job list -A -o wide",
)
def list_jobs(
    filename: Files = None,
    example: Example = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces; of files that is so without -n.")
    ] = False,
    policy: PolicyName = None,
    output: OutputForm = Output.table,
    no_headers: NoHeaders = False,
    scheduler_name: SchedulerNames = None,
    now: Now = None,
    lenient: Lenient = False,
) -> None:
    """List jobs: queue, priority, phase, minimum, pods that run and wait, age, position in the queue.

    Position 1 is the job that the policy looks at first; jobs without pods to place, or that must wait, have none.
    -o wide adds the reason of the condition that was last written to the group.
    """
    from solver_sched.report.lists import job_table

    checked = checked_policy(policy, lenient)
    inputs = chosen(filename, example, Cluster(kubeconfig, context), namespace)
    snapshot, conditions = _read(inputs, scheduler_name, now)
    where = None if all_namespaces else inputs.namespace
    rows = [row for row in job_rows(snapshot, checked, conditions) if where in (None, row["namespace"])]
    if not rows and output in (Output.table, Output.wide):
        sys.stderr.write(f"No jobs found in {where} namespace.\n" if where else "No jobs found.\n")
        return
    answer(
        {
            "apiVersion": "solver-sched.io/v1alpha1",
            "kind": "JobList",
            "items": [row | {"created": _utc(row["created"])} for row in rows],
        },
        output,
        lambda: [job_table(rows, snapshot.now, namespaces=where is None, wide=output is Output.wide, bare=no_headers)],
    )


def _read(
    inputs: Inputs, scheduler_names: list[str] | None, now: int | None
) -> tuple[Snapshot, Mapping[str, Condition]]:
    """The snapshot, what is wrong with it on stderr, and the conditions of its groups."""
    from solver_sched.cluster.sources import load_with_conditions

    with ExitStack() as stack, progress("reading"):
        snapshot, conditions = load_with_conditions(
            opened(inputs, stack),
            now=present(inputs, now),
            scheduler_names=scheduler_names,
            namespace=inputs.namespace or "default",
        )
    if not snapshot.queues:
        usable(snapshot)
    for problem in snapshot.problems[:SHOWN_PROBLEMS]:
        said(f"warning: {problem}", BAD_INPUT)
    more = len(snapshot.problems) - SHOWN_PROBLEMS
    if more > 0:
        said(f"warning: {more} more problems (solver-sched plan -o wide lists them all)", BAD_INPUT)
    return snapshot, conditions


def queue_rows(snapshot: Snapshot, problem: Problem, index: Index, rules: Rules) -> list[dict[str, Any]]:
    """One entry per queue, sorted by name. `running`: jobs with a pod that runs; `pending`: others that wait."""
    from solver_sched import document
    from solver_sched.problem.arrays import EMPTY_PLAN
    from solver_sched.problem.jobs import queues_of

    pending: dict[str, int] = defaultdict(int)
    running: dict[str, int] = defaultdict(int)
    for job in _jobs(snapshot):
        if job.resident:
            running[job.queue] += 1
        elif job.pending or (job.group is not None and not job.succeeded and _phase(job) in ("Pending", "Inqueue")):
            pending[job.queue] += 1
    given = queues_of(snapshot)
    return [
        {
            "name": (name := row["name"]),
            "state": given[name].state or "Open",
            "weight": row["weight"],
            "parent": given[name].parent or None,
            "share": row["share"],
            "pending": pending[name],
            "running": running[name],
            "deserved": row["deserved"],
            "allocated": row["allocated"],
            "request": row["request"],
        }
        for row in document.queue_rows(problem, index, rules, EMPTY_PLAN)
    ]


def job_rows(snapshot: Snapshot, policy: Policy, conditions: Mapping[str, Condition]) -> list[dict[str, Any]]:
    """One entry per job, sorted by namespace and name. `created`: s since the epoch, None where unknown."""
    from solver_sched.actions.enqueue import open_cycle

    problem, index, rules, _ = open_cycle(snapshot, policy)
    places = positions(problem, index, rules)
    rows = []
    for job in _jobs(snapshot):
        namespace, _, name = job.key.partition("/")
        condition = conditions.get(job.key) if job.group is not None else None
        rows.append(
            {
                "namespace": namespace,
                "name": name,
                "kind": "Pod" if _lone(job) else "PodGroup",
                "queue": job.queue or None,
                "priority": job.priority,
                "phase": _phase(job),
                "minMember": job.minimum,
                "running": len(job.resident),
                "pending": len(job.pending),
                "created": _created(job),
                "position": places.get(job.key),
                "condition": None
                if condition is None
                else {
                    "type": condition.type,
                    "status": condition.status,
                    "reason": condition.reason,
                    "message": condition.message,
                },
            }
        )
    return rows


def positions(problem: Problem, index: Index, rules: Rules) -> dict[str, int]:
    """Job -> 1, 2 .. in its queue: by rank; of one rank those that start before those that grow; smaller before larger
    among these; older first. The order in which `greedy` takes jobs of a queue, as kube-batch and Volcano do.
    """
    lines: dict[int, list[tuple[int, bool, int, int, int]]] = defaultdict(list)
    for j in sorted(set(problem.set_job.tolist())):
        grows = bool(rules.need[j] == 0)
        held = int(rules.start_value[j]) if grows else 0
        key = (int(rules.rank[j]), grows, held, int(problem.job_created[j]), j)
        lines[int(problem.job_queue[j])].append(key)
    return {index.jobs[key[-1]]: at for line in lines.values() for at, key in enumerate(sorted(line), 1)}


def _jobs(snapshot: Snapshot) -> Sequence[Job]:
    """The jobs that are decided on: no group whose pods are all of another scheduler."""
    from solver_sched.problem.jobs import jobs_of

    ours = frozenset(snapshot.scheduler_names)
    elsewhere = {pod.group for pod in snapshot.pods if pod.scheduler not in ours}
    return [
        job
        for job in jobs_of(snapshot)
        if job.pending or job.resident or job.succeeded or job.terminating or job.key not in elsewhere
    ]


def _lone(job: Job) -> bool:
    return job.group is None and not any(pod.group for pod in (*job.pending, *job.resident, *job.succeeded))


def _phase(job: Job) -> str:
    """As it is written on the group or the lone pod; where nobody writes one, what its pods come to."""
    if job.group is not None and job.group.phase:
        return job.group.phase
    if job.resident and len(job.resident) + len(job.succeeded) >= job.minimum:
        return "Running"
    return "Completed" if job.succeeded and not (job.pending or job.resident or job.terminating) else "Pending"


def _created(job: Job) -> int | None:
    if job.group is not None and job.group.created:
        return job.group.created
    return min((pod.created for pod in (*job.pending, *job.resident, *job.succeeded) if pod.created), default=None)


def _utc(seconds: int | None) -> str | None:
    from datetime import UTC, datetime

    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

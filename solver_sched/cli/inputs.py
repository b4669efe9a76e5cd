"""What a command reads: files, the shipped example, a live cluster, or files on top of one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from solver_sched.errors import InputError

if TYPE_CHECKING:
    from solver_sched.cluster.sources import Input
    from solver_sched.snapshot import Snapshot

EXAMPLE = "cluster.yaml"
NO_CLUSTER = "no cluster is configured (no kubeconfig, and this is no pod)"


class Cluster(NamedTuple):
    """The live cluster that the options name; without any the one that kubectl would choose. `below`: it is read
    although files are given, which then come on top of it.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    below: bool = False

    @property
    def asked_for(self) -> bool:
        """Whether an option says that it is to be read."""
        return self.below or self.kubeconfig is not None or self.context is not None

    def namespace(self) -> str:
        """Where objects and names belong that say no namespace. Raises InputError."""
        from solver_sched.cluster.live import namespace_of

        return namespace_of(self.kubeconfig, self.context)


class Inputs(NamedTuple):
    """`cluster` None = none is read. `namespace`: of names that say none, as -n or the context has it; None = neither
    says.
    """

    paths: list[str]
    example: bool = False
    cluster: Cluster | None = None
    namespace: str | None = None


def chosen(files: list[str] | None, example: bool, cluster: Cluster, namespace: str | None = None) -> Inputs:
    """Files and the example alone, unless a cluster is asked for; without either, the cluster.

    Raises typer.BadParameter where there is nothing at all, InputError for a context that there is not.
    """
    paths = list(files or ())
    if (paths or example) and not cluster.asked_for:
        return Inputs(paths, example, namespace=namespace)
    from solver_sched.cluster.live import configured

    if cluster.kubeconfig is None and not configured():
        if cluster.asked_for:
            raise InputError(f"{NO_CLUSTER}: give --kubeconfig FILE")
        raise typer.BadParameter(
            f"nothing to read: give -f PATH (- for stdin) or --example; {NO_CLUSTER}", param_hint="-f"
        )
    return Inputs(paths, example, cluster, namespace or cluster.namespace())


def opened(inputs: Inputs, stack: ExitStack) -> list[Input]:
    """What `load_snapshot` takes, files first: of two objects of one name the first counts. Raises InputError."""
    found: list[Input] = list(inputs.paths)
    if inputs.example:
        shipped = resources.files("solver_sched") / "examples" / EXAMPLE
        found.append(stack.enter_context(resources.as_file(shipped)))
    if inputs.cluster is not None:
        from solver_sched.cluster.api import Api
        from solver_sched.cluster.kinds import KINDS
        from solver_sched.cluster.live import RULES, THREADS, listed

        api = Api.load(inputs.cluster.kubeconfig, inputs.cluster.context, connections=THREADS)
        stack.callback(api.close)
        found += listed(api, (*KINDS, *RULES) if inputs.paths else KINDS)
    return found


def present(inputs: Inputs, now: int | None) -> int | None:
    """Of a live cluster the present is now; of files the newest time in them (None)."""
    return int(time.time()) if now is None and inputs.cluster is not None else now


def usable(snapshot: Snapshot, *, strict: bool = False) -> Snapshot:
    """The snapshot itself. Raises InputError where nothing is left in it, with `strict` at any mistake."""
    problems = snapshot.problems
    empty = not (snapshot.nodes or snapshot.pods or snapshot.groups)
    if problems and (strict or empty):
        raise InputError(f"{problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""))
    if empty:
        raise InputError("nothing to plan: no node, pod or pod group in the input")
    return snapshot

"""A live cluster, read once: every kind that a cycle reads, listed in pages, for `sources` to sort and decode.

Lists of different kinds are as old as they happen to be, as those of `kubectl get` are: what one of them is too new or
too old for waits, with a reason, and binds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import TimeoutError as PoolTimeout
from multiprocessing.pool import IMapIterator, ThreadPool
from pathlib import Path

import msgspec
from msgspec import Raw

from solver_sched.cluster.api import Api, ApiError, Refused, in_pod
from solver_sched.cluster.kinds import KINDS, Kind
from solver_sched.cluster.sources import Listed
from solver_sched.cluster.watch import pages, served
from solver_sched.errors import InputError
from solver_sched.snapshot import InputProblem

SOURCE = "cluster"
"""Stands for the file name in problems."""
THREADS = 4
TRIES = 3
"""Lists of one kind. A token lasts five minutes, so that a second one that expires is a fault."""
RULES: tuple[Kind, ...] = (
    Kind("LimitRange", ("v1",), "limitranges", True),
    Kind("RuntimeClass", ("node.k8s.io/v1",), "runtimeclasses", False),
)
"""What a new pod is admitted by; pods that the server has let in have it behind them."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def configured() -> bool:
    """Whether kubectl would find a cluster here: a kubeconfig, or the API server around this pod."""
    return in_pod() or any(Path(one).expanduser().exists() for one in _kubeconfigs())


def _kubeconfigs() -> list[str]:
    return [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one] or ["~/.kube/config"]


def namespace_of(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace that kubectl would use: the context's, else the pod's own, else "default". Raises InputError."""
    if kubeconfig is None and context is None and in_pod():
        return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else "default"
    from kubernetes import config

    try:
        contexts, current = config.list_kube_config_contexts(None if kubeconfig is None else str(kubeconfig))
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as wrong:
        raise InputError(" ".join(str(wrong).split()), source=str(kubeconfig or "")) from None
    named = [one for one in contexts if one["name"] == context] if context is not None else [current or {}]
    return next(
        (str(one["context"]["namespace"]) for one in named if one.get("context", {}).get("namespace")), "default"
    )


def listed(api: Api, kinds: Sequence[Kind] = KINDS) -> list[Listed]:
    """All objects of all kinds that the server serves, in the order of `kinds`. A kind that may not be listed, or a
    built-in one that is not there, is a problem in its place; a CRD that is not installed is none.

    Raises InputError where the server gives no answer, or none that can be used.
    """
    try:
        with ThreadPool(THREADS) as pool:  # of daemons: Ctrl-C does not wait for a server that hangs
            return [one for one in _each(pool.imap(partial(_listed, api), kinds)) if one is not None]
    except ApiError as wrong:
        raise InputError(f"cannot be read: {wrong}", source=SOURCE) from None
    except msgspec.MsgspecError as wrong:
        raise InputError(f"cannot be read: it does not answer as Kubernetes does: {wrong}", source=SOURCE) from None


def _each(results: IMapIterator[Listed | None]) -> Iterator[Listed | None]:
    """What `imap` gives, waited for a second at a time: a Ctrl-C that comes when the main thread is just about to wait
    for a lock may be seen only when that wait ends, and a server that hangs would not end it.
    """
    while True:
        try:
            yield results.next(timeout=1)
        except StopIteration:
            return
        except PoolTimeout:
            continue


def _listed(api: Api, kind: Kind) -> Listed | None:
    # Discovery comes first: of a kind that it does not serve a server says "forbidden" to those without rights.
    version = served(api, kind)
    if not version:
        wanted = kind.versions[0]
        missing = InputProblem(SOURCE, kind.kind, "", f"{kind.plural} of {wanted} are not served: none of them is read")
        return Listed(SOURCE, kind.kind, wanted, (), (missing,)) if kind.built_in else None
    try:
        return Listed(SOURCE, kind.kind, version, _all(api, kind, version))
    except Refused as refused:
        if refused.status != 403:
            raise
        return Listed(SOURCE, kind.kind, version, (), (_forbidden(kind, version, refused),))


def _all(api: Api, kind: Kind, version: str) -> list[Raw]:
    """Every object of a list, which starts over where its next page has expired."""
    for _ in range(TRIES - 1):
        try:
            return [raw for items, _ in pages(api, kind, version) for raw in items]
        except Refused as refused:
            if refused.status != 410:
                raise
    return [raw for items, _ in pages(api, kind, version) for raw in items]


def _forbidden(kind: Kind, version: str, refused: Refused) -> InputProblem:
    group = version.rpartition("/")[0]
    resource = f"{kind.plural}.{group}" if group else kind.plural
    said = f" ({' '.join(refused.message.split())[:300]})" if refused.message else ""
    return InputProblem(SOURCE, kind.kind, "", f"verb list on {resource} is not granted: none of them is read{said}")

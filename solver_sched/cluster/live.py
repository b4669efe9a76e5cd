"""A live cluster, read once: every kind that a cycle reads, listed in pages, for `sources` to sort and decode.

Lists of different kinds are as old as they happen to be, as those of `kubectl get` are: what one of them is too new or
too old for waits, with a reason, and binds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct, field

from solver_sched.cluster.api import Api, ApiError, Refused
from solver_sched.cluster.kinds import KINDS, Kind, base, path
from solver_sched.cluster.sources import Listed
from solver_sched.errors import InputError
from solver_sched.snapshot import InputProblem

_T = TypeVar("_T")

SOURCE = "cluster"
"""Stands for the file name in problems."""
PAGE = 500
THREADS = 4
RULES: tuple[Kind, ...] = (
    Kind("LimitRange", ("v1",), "limitranges", True),
    Kind("RuntimeClass", ("node.k8s.io/v1",), "runtimeclasses", False),
)
"""What a new pod is admitted by; pods that the server has let in have it behind them."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def configured() -> bool:
    """Whether kubectl would find a cluster here: a kubeconfig, or the API server around this pod."""
    return in_pod() or any(Path(one).expanduser().exists() for one in _kubeconfigs())


def in_pod() -> bool:
    """Whether nothing but the pod that this runs in says which cluster is meant."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


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
    """All objects of all kinds that the server serves, in the order of `kinds`; a kind that may not be listed is
    a problem in its place. Raises InputError where the server gives no answer, or none that can be used.
    """
    pool = ThreadPoolExecutor(THREADS, "list")
    try:
        return [one for one in pool.map(partial(_first_served, api), kinds) if one is not None]
    except ApiError as wrong:
        raise InputError(f"cannot be read: {wrong}", source=SOURCE) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _first_served(api: Api, kind: Kind) -> Listed | None:
    for version in kind.versions:
        try:
            return Listed(SOURCE, kind.kind, version, _all(api, path(kind, version)))
        except Refused as refused:
            if refused.status == 404:
                continue
            if refused.status != 403:
                raise
            # the server asks for rights before it looks whether there is such a kind
            if _served(api, kind, version):
                return Listed(SOURCE, kind.kind, version, (), (_forbidden(kind, version, refused),))
    return None


def _served(api: Api, kind: Kind, version: str) -> bool:
    """Asked of discovery, which everybody who is logged in may read (ClusterRole system:discovery)."""
    try:
        found = _decoded(api.get(base(version)), _Resources, base(version))
    except Refused as refused:
        return refused.status != 404
    return any(one.name == kind.plural for one in found.resources)


def _forbidden(kind: Kind, version: str, refused: Refused) -> InputProblem:
    group = version.rpartition("/")[0]
    resource = f"{kind.plural}.{group}" if group else kind.plural
    said = f" ({refused.message})" if refused.message else ""
    return InputProblem(SOURCE, kind.kind, "", f"verb list on {resource} is not granted: none of them is read{said}")


def _all(api: Api, where: str) -> list[Raw]:
    """Every object of a list. A list whose next page has expired is read once more, in one piece, which cannot expire
    (client-go tools/pager/pager.go).
    """
    items: list[Raw] = []
    query: Mapping[str, str | int] = {"limit": PAGE}
    while True:
        try:
            page = _decoded(api.get(where, query), _Page, where)
        except Refused as refused:
            if refused.status != 410 or "continue" not in query:
                raise
            items, query = [], {}
            continue
        items += page.items or ()
        if not page.metadata.proceed:
            return items
        query = {"limit": PAGE, "continue": page.metadata.proceed}


class _PageMeta(Struct):
    proceed: str = field(name="continue", default="")


class _Page(Struct):
    """`items` is null where a server has none."""

    items: list[Raw] | None
    metadata: _PageMeta = field(default_factory=_PageMeta)


class _Resource(Struct):
    name: str


class _Resources(Struct):
    resources: list[_Resource]


def _decoded(data: bytes, shape: type[_T], where: str) -> _T:
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.MsgspecError as wrong:
        raise InputError(f"GET {where} is not answered as Kubernetes does: {wrong}", source=SOURCE) from None

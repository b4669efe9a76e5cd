"""Reads and patches of one object that hit only the object, and the state of it, that they were made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from solver_sched.cluster.api import MERGE_PATCH, STRATEGIC_PATCH, Api, Lost, Refused
from solver_sched.cluster.kinds import POD, Kind, path
from solver_sched.cluster.objects import Pod
from solver_sched.cluster.wire import Wire

PODS = POD.versions[0]
POD_GROUP = Kind("PodGroup", (), "podgroups", True, False)
QUEUE = Kind("Queue", (), "queues", False, False)


class _Meta(Wire, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _Spec(Wire, rename="camel"):
    node_name: str | None = None
    scheduling_gates: list[Any] | None = None


class _Status(Wire):
    phase: str | None = None
    conditions: list[dict[str, Any]] | None = None


class PodNow(Wire):
    """A pod as the server has it."""

    metadata: _Meta
    spec: _Spec
    status: _Status | None = None

    @property
    def node(self) -> str:
        return self.spec.node_name or ""

    @property
    def ending(self) -> bool:
        """Being deleted, or finished."""
        phase = self.status.phase if self.status else None
        return self.metadata.deletion_timestamp is not None or phase in ("Succeeded", "Failed")

    def condition(self, name: str) -> dict[str, Any]:
        """One of its conditions, {} if it has none of that type."""
        conditions = self.status.conditions if self.status else None
        return next((one for one in conditions or () if one.get("type") == name), {})


_decode_pod = msgspec.json.Decoder(PodNow).decode


def read_pod(api: Api, pod: Pod) -> PodNow | None:
    """The pod as the server has it now, None if it is gone or another has its name. Raises ApiError."""
    try:
        found = _decode_pod(api.request("GET", path(POD, PODS, pod.namespace, pod.name)))
    except Refused as wrong:
        if wrong.status == 404:
            return None
        raise
    except msgspec.MsgspecError as wrong:
        raise Lost(f"no pod was answered: {wrong}") from None
    return None if pod.uid and found.metadata.uid != pod.uid else found


def read_object(text: bytes) -> dict[str, Any]:
    """An object from the server. Raises Lost where what came is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as wrong:
        raise Lost(f"no object was answered: {wrong}") from None


def patch_pod(api: Api, pod: Pod, status: Mapping[str, Any], version: str = "") -> None:
    """Merge into the pod's status: conditions by their type, so that those of others stay as they are.

    A pod of another uid is not touched (Refused, 422), nor one of another resourceVersion if `version` is given (409).
    """
    metadata = {"uid": pod.uid} if pod.uid else {}
    if version:
        metadata["resourceVersion"] = version
    body = msgspec.json.encode({"metadata": metadata, "status": status})
    where = path(POD, PODS, pod.namespace, pod.name, "status")
    api.request("PATCH", where, body, content_type=STRATEGIC_PATCH)


class StatusPatches:
    """Patches of the status of custom resources, through `/status` or, where a definition has no such subresource
    (Volcano's PodGroup), through the object itself. Which of the two is learnt from the answers.

    Through the object a server with the subresource takes the patch and drops the status without a word, so `/status`
    is tried first, and again once the answer does not show what was written.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._whole: set[tuple[str, str]] = set()

    def patch(
        self,
        kind: Kind,
        version: str,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        content_type: str = MERGE_PATCH,
    ) -> bytes:
        """The object after the patch; `body` has a `status` and perhaps `metadata`. Raises ApiError."""
        data = msgspec.json.encode(body)
        if (kind.kind, version) in self._whole:
            answer = self._send(path(kind, version, namespace, name), data, content_type)
            if _shows(answer, body["status"]):
                return answer
            self._whole.discard((kind.kind, version))
        try:
            return self._send(path(kind, version, namespace, name, "status"), data, content_type)
        except Refused as wrong:
            if wrong.status not in (404, 405):
                raise
        answer = self._send(path(kind, version, namespace, name), data, content_type)
        self._whole.add((kind.kind, version))
        return answer

    def _send(self, where: str, data: bytes, content_type: str) -> bytes:
        return self._api.request("PATCH", where, data, content_type=content_type)


def _shows(answer: bytes, wanted: Mapping[str, Any]) -> bool:
    """Whether the object has one of the plain values that were written."""
    status = read_object(answer).get("status") or {}
    return all(status.get(key) == value for key, value in wanted.items() if not isinstance(value, Mapping))

"""Files, folders, standard input or Python objects -> one `Snapshot`, with a line for all that could not be used.

Dumps are decoded straight from their text. Only where workloads are to be expanded into pods, or hand-written pods
to be admitted, do objects become dicts on the way (`workloads.expand`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from solver_sched.cluster import admission, decode, volumes, wire
from solver_sched.cluster.admission import RULE_KINDS
from solver_sched.cluster.conditions import Condition, last_written
from solver_sched.cluster.decode import DEFAULT_QUEUE, HOLD, Reader
from solver_sched.cluster.dialects import BY_VERSION, DIALECTS, MISPRINTS, alike, first_counts
from solver_sched.cluster.documents import Document, document, documents, unpacked
from solver_sched.cluster.objects import Namespace, Pod, PodGroup, Queue, VolumeClaim
from solver_sched.cluster.run_times import medians
from solver_sched.cluster.workloads import WORKLOAD_KINDS, expand
from solver_sched.collector import paused
from solver_sched.errors import InputError
from solver_sched.snapshot import DEFAULT_SCHEDULERS, FORMAT, InputProblem, Snapshot, load

SUFFIXES = (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz")
"""What is read of a folder; logs and everything else in a `cluster-info dump` are passed over."""

STDIN = "-"

_START = re.compile(rb'\{\s*"apiVersion":\s*"([\w./-]+)",\s*"kind":\s*"(\w+(?<!List))"')
"""How kubectl begins an object. Looking for kind and version elsewhere means reading it to its end."""

_V = TypeVar("_V", bound=Struct)


class Listed(NamedTuple):
    """Objects of one kind and apiVersion as an API server lists them, without saying either of each. `problems`: what
    kept some of them from being listed. Workloads are not expanded: their controllers are there, and make the pods.
    """

    source: str
    kind: str
    version: str
    items: Sequence[Raw]
    problems: tuple[InputProblem, ...] = ()


Input = str | Path | Mapping[str, Any] | Listed
"""A path of a file or folder, "-" for standard input, an object as a dict, or what a server lists."""


def load_snapshot(
    inputs: Input | Iterable[Input],
    *,
    now: int | None = None,
    scheduler_names: Iterable[str] | None = None,
    strict: bool = False,
    namespace: str = "default",
) -> Snapshot:
    """The snapshot that `inputs` describe: paths of files and folders, "-" for standard input, or objects as dicts.

    `now`: seconds since the epoch, default the newest time in the input. `scheduler_names`: whose pods are decided on.
    `namespace`: of objects that name none.
    What cannot be used is left out and stands in `problems`, sorted; with `strict` the first one is raised.
    Raises InputError for a path that cannot be read.
    """
    snapshot, _ = load_with_conditions(inputs, now=now, scheduler_names=scheduler_names, namespace=namespace)
    if strict and snapshot.problems:
        first, *others = snapshot.problems
        more = f" (and {len(others)} more)" if others else ""
        raise InputError(first.message + more, source=first.source, kind_and_name=first.object, field=first.field)
    return snapshot


def load_with_conditions(
    inputs: Input | Iterable[Input],
    *,
    now: int | None = None,
    scheduler_names: Iterable[str] | None = None,
    namespace: str = "default",
) -> tuple[Snapshot, dict[str, Condition]]:
    """`load_snapshot`, and the last written condition of each PodGroup that has any, by "namespace/name"."""
    named = tuple(scheduler_names) if scheduler_names is not None else None
    with paused():
        load = _Load(named, namespace)
        load.read([inputs] if isinstance(inputs, str | Path | Mapping | Listed) else inputs)
        conditions = load.conditions()  # before `snapshot` uses the texts up
        return load.snapshot(now), conditions


def read_objects(
    objects: Iterable[Mapping[str, Any]], scheduler_names: Iterable[str] | None = None, now: int | None = None
) -> Snapshot:
    """`load_snapshot` of Kubernetes objects as dicts."""
    return load_snapshot(objects, now=now, scheduler_names=scheduler_names)


_LINE = re.compile(r"[\x00-\x1f\x7f]+")
_LONGEST = 400
"""Input may put line breaks or megabytes anywhere, into names too; a problem stays one line."""


class _Object(NamedTuple):
    """One object's JSON text. `hold`: why a pod must wait, found while workloads were expanded. `made_by`: kind and
    name of the workload that the pod was made for here.
    """

    source: str
    raw: Raw | bytes
    version: str
    hold: str = ""
    made_by: str = ""


class _Load:
    """One load: texts sorted by kind first, because pods are read by what classes, namespaces and groups say."""

    def __init__(self, scheduler_names: tuple[str, ...] | None, namespace: str = "default") -> None:
        self.scheduler_names = scheduler_names
        self.namespace = namespace
        self.by_kind: dict[str, list[_Object]] = defaultdict(list)
        self.problems: list[InputProblem] = []
        self.ignored: Counter[str] = Counter()
        self.earlier: list[Snapshot] = []
        self.listed_workloads: list[Raw] = []
        self._kinds = msgspec.json.Decoder(wire.Kind)

    # Texts

    def read(self, inputs: Iterable[Input]) -> None:
        for number, given in enumerate(inputs):
            if isinstance(given, Listed):
                self._listed(given)
            elif isinstance(given, Mapping):
                self._dict(given, f"objects[{number}]")
            elif not str(given):
                raise InputError("an empty path: must name a file or a folder, or be - for stdin")
            elif str(given) == STDIN:
                self._text(sys.stdin.buffer.read(), "stdin")
            else:
                self._path(Path(given))

    def _listed(self, given: Listed) -> None:
        self.problems.extend(given.problems)
        if given.kind in WORKLOAD_KINDS:
            self.listed_workloads += given.items
            return
        for raw in given.items:
            self._sort(given.kind, given.version, raw, given.source, placed=True)

    def _path(self, path: Path) -> None:
        if not path.is_dir():
            try:
                data = path.read_bytes()
            except OSError as wrong:
                raise InputError(f"cannot be read: {wrong.strerror}", source=str(path)) from None
            self._text(data, str(path))
            return
        files = sorted(
            file
            for file in path.rglob("*")
            if file.name.endswith(SUFFIXES)
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not files:
            self._problem(str(path), f"no file that ends in {', '.join(SUFFIXES)} in this folder")
        for file in files:
            self._path(file)

    def _dict(self, given: Mapping[str, Any], source: str) -> None:
        try:
            raw = msgspec.json.encode(given)
        except (TypeError, ValueError, RecursionError) as wrong:
            self._problem(source, f"not plain data: {wrong}")
            return
        self._document(document(raw), "", "" if given.get("kind") else source)

    def _text(self, data: bytes, source: str) -> None:
        found = False
        try:
            for one in documents(unpacked(data)):
                found = True
                if isinstance(one, InputError):
                    self._problem(source, one.message)
                else:
                    self._document(one, source, source)
        except InputError as wrong:
            self._problem(source, wrong.message)
            return
        if not found:
            self._problem(source, "empty: expected Kubernetes objects as YAML or JSON")

    def _document(self, given: Document, source: str, told: str, default: wire.Kind | None = None) -> None:
        """One document, or the items of a list. `told`: the source for a complaint about the document as such."""
        raw, head = given
        if head is None:
            self._problem(told, "not an object: expected a mapping with apiVersion and kind")
            return
        if head.format == FORMAT and head.kind is None:
            try:
                earlier = load(bytes(raw))
            except msgspec.MsgspecError as wrong:
                self._problem(told, f"broken snapshot: {wrong}")
                return
            self.earlier.append(earlier)
            self.problems.extend(earlier.problems)
            self.ignored.update(earlier.ignored)
            return
        kind, version = head.kind, head.api_version
        if kind and kind.endswith("List"):
            # `kubectl get --raw` and `cluster-info dump` write the kind of the items only once, in front of "List".
            implied = wire.Kind(kind.removesuffix("List") or None, version)
            for item in head.items or ():
                self._item(item, source, told, implied)
            return
        kind = kind or (default.kind if default else None)
        if not kind:
            self._problem(told, "no kind: expected a Kubernetes object with apiVersion and kind")
            return
        self._sort(kind, version or (default.api_version if default else None) or "", raw, source)

    def _item(self, raw: Raw, source: str, told: str, implied: wire.Kind) -> None:
        start = _START.match(memoryview(raw)[:200])
        if start is not None:
            self._sort(start[2].decode(), start[1].decode(), raw, source)
            return
        try:
            own = self._kinds.decode(raw)
        except msgspec.MsgspecError:
            self._problem(told, "an item of a list is no Kubernetes object")
            return
        kind = own.kind or implied.kind
        if kind is None or kind.endswith("List"):
            self._document(document(raw), source, told, implied)
        else:
            self._sort(kind, own.api_version or implied.api_version or "", raw, source)

    def _sort(self, kind: str, version: str, raw: Raw | bytes, source: str, *, placed: bool = False) -> None:
        """`placed`: it has a namespace if its kind has any."""
        if kind in ("PodGroup", "Queue"):
            known = BY_VERSION.get(version)
            if known is None or (kind == "Queue" and known.queue is None):
                self.ignored[f"kind {kind}"] += 1
                allowed = ", ".join(v for d in DIALECTS if kind == "PodGroup" or d.queue for v in d.versions)
                self._problem(source, f"{version or 'none'} is not known: allowed are {allowed}", kind, "apiVersion")
                return
            if version in MISPRINTS:
                message = f"{version} is a misprint of {MISPRINTS[version]}: read as that"
                self._problem(source, message, kind, "apiVersion")
        elif kind not in WORKLOAD_KINDS and version.rpartition("/")[0] not in _API_GROUPS.get(kind, ()):
            self.ignored[f"kind {kind}"] += 1
            return
        if not placed and self.namespace != "default" and kind not in _CLUSTER_SCOPED:
            raw = _put_into(self.namespace, raw)
        self.by_kind[kind].append(_Object(source, raw, version))

    def _problem(self, source: str, message: str, thing: str = "", path: str = "") -> None:
        self.problems.append(
            InputProblem(*(_LINE.sub(" ", part)[:_LONGEST] for part in (source, thing, path, message)))
        )

    # Workloads and admission

    def expand(self) -> None:
        """Replace workloads by their missing pods. Pods that an API server has seen go along as stubs only."""
        if not any(self.by_kind.get(kind) for kind in (*WORKLOAD_KINDS, *RULE_KINDS)):
            return
        bodies: list[dict[str, Any]] = []
        originals: dict[int, _Object] = {}
        stubs: dict[tuple[str, str], _Object] = {}
        sources: dict[tuple[str, str, str], str] = {}
        rest: dict[str, list[_Object]] = defaultdict(list)
        for kind, objects in self.by_kind.items():
            for one in objects:
                body = _stub(one.raw) if kind == "Pod" else None
                if body is not None:
                    stubs[_place(body)] = one
                else:
                    body = msgspec.json.decode(one.raw, type=dict[str, Any])
                    body |= {"kind": kind, "apiVersion": one.version}
                sources.setdefault((kind, *_place(body)), one.source)
                originals[id(body)] = one
                bodies.append(body)
        expanded, problems = expand(bodies, self.scheduler_names or DEFAULT_SCHEDULERS)
        for body in expanded:
            kind, version = str(body["kind"]), str(body["apiVersion"])
            original = originals.get(id(body))
            if original is None and _place(body) in stubs and kind == "Pod":
                original = stubs[_place(body)]._replace(hold=str(body["metadata"]["annotations"][HOLD]))
            if kind in WORKLOAD_KINDS:  # of an API group that is no workload of Kubernetes or Volcano
                self.ignored[f"kind {kind}"] += 1
            elif original is not None:
                rest[kind].append(original)
            else:
                owners = [(kind, *_place(body)), *_owners(body)]
                owner = next((owner for owner in owners if owner in sources), ("", "", ""))
                made_by = f"{owner[0]} {owner[1]}/{owner[2]}" if kind == "Pod" and owner[0] != kind else ""
                raw = msgspec.json.encode(body)
                rest[kind].append(_Object(sources.get(owner, ""), raw, version, made_by=made_by.strip(" /")))
        self.by_kind = rest
        for problem in problems:
            kind, _, place = problem.object.partition(" ")
            where, _, name = place.rpartition("/")
            source = problem.source or sources.get((kind, where or "default", name), "")
            self._problem(source, problem.message, problem.object, problem.field)

    # Values

    def conditions(self) -> dict[str, Condition]:
        """Of each PodGroup the last written condition; where a name is given twice, of the first."""
        found: dict[str, Condition] = {}
        for one in self.by_kind.get("PodGroup", ()):
            written = last_written(one.raw)
            if written is not None:
                found.setdefault(_called("PodGroup", one.raw).removeprefix("PodGroup "), written)
        return found

    def snapshot(self, now: int | None) -> Snapshot:
        """Everything read, as values."""
        jobs = dict(self._jobs())
        self.expand()
        classes = self._values("PriorityClass", "priority_classes", lambda o: decode.read_priority_class(o.raw))
        queues_of: dict[str, str] = {}

        def namespace(one: _Object) -> Namespace:
            found, queue = decode.read_namespace(one.raw)
            if queue:
                queues_of[found.name] = queue
            return found

        namespaces = self._values("Namespace", "namespaces", namespace)
        known = {one.name: one for one in (*decode.SYSTEM_CLASSES, *classes.values())}
        reader = Reader(known, queues_of)
        held: dict[str, _Object] = {}

        def group(one: _Object) -> PodGroup:
            found = reader.group(one.raw, one.version)
            if found.hold:
                held.setdefault(found.key, one)
            return found

        groups = self._values("PodGroup", "groups", group)
        reader.dialects = {key: group.dialect for key, group in groups.items()}
        reader.jobs = jobs
        pods = self._values("Pod", "pods", lambda o: reader.pod(o.raw, o.hold))
        members: dict[str, list[Pod]] = {key: [] for key in held}
        for pod in pods.values() if held else ():
            if pod.group in members:
                members[pod.group].append(pod)
        for key, one in held.items():
            settle = BY_VERSION[one.version].settle
            if settle is not None and groups[key].dialect == one.version:
                groups[key] = settle(one.raw, groups[key], members[key])
        groups = reader.shadows | groups
        names = self._scheduler_names()
        groups = {group.key: group for group in decode.placed_by(groups.values(), jobs, names)}
        queues = self._values("Queue", "queues", lambda o: reader.queue(o.raw, o.version))
        if DEFAULT_QUEUE not in queues and any(one.object == f"Queue {DEFAULT_QUEUE}" for one in self.problems):
            # Absent, it is implied and has no limits; given with a mistake, its limits are not known.
            queues[DEFAULT_QUEUE] = Queue(DEFAULT_QUEUE, state="Unreadable")
        nodes = self._values("Node", "nodes", lambda o: reader.node(o.raw))
        budgets = self._values("PodDisruptionBudget", "budgets", lambda o: decode.read_budget(o.raw, pods.values()))
        quotas = self._values("ResourceQuota", "quotas", lambda o: decode.read_quota(o.raw))
        claims = self._claims(reader.claim_templates)
        limits = {limit for earlier in self.earlier for limit in earlier.attach_limits}
        for rows in self._values("CSINode", "", lambda o: volumes.read_attach_limits(o.raw)).values():
            limits.update(rows.limits)
        self._unknown_classes(reader.unknown_classes)
        newest = max([reader.newest, *(earlier.now for earlier in self.earlier)])
        return Snapshot(
            nodes=_sorted(nodes),
            pods=_sorted(pods),
            groups=_sorted(groups),
            queues=_sorted(queues),
            priority_classes=_sorted(classes),
            budgets=_sorted(budgets),
            quotas=_sorted(quotas),
            claims=_sorted(claims),
            attach_limits=tuple(sorted(limits, key=lambda limit: (limit.node, limit.driver, limit.count))),
            namespaces=_sorted(namespaces),
            now=newest if now is None else now,
            scheduler_names=names,
            run_times=tuple(run for earlier in self.earlier for run in earlier.run_times) + medians(reader.runs),
            ignored=dict(sorted(self.ignored.items())),
            problems=tuple(sorted(set(self.problems), key=lambda p: (p.source, p.object, p.field, p.message))),
        )

    def _jobs(self) -> Iterator[tuple[tuple[str, str], decode.OfJob]]:
        """What Jobs set for their pods; a mistake in one is told where its pods are made."""
        for raw in (*self.listed_workloads, *(one.raw for one in self.by_kind.get("Job", ()))):
            with suppress(InputError):
                yield decode.read_job(raw)

    def _scheduler_names(self) -> tuple[str, ...]:
        if self.scheduler_names is not None:
            return self.scheduler_names
        return self.earlier[0].scheduler_names if self.earlier else DEFAULT_SCHEDULERS

    def _values(self, kind: str, part: str, read: Callable[[_Object], _V | None]) -> dict[str, _V]:
        """All objects of `kind` by name, those of snapshots in the input (their `part`) first."""
        found: dict[str, _V] = {
            _key(value): value for earlier in self.earlier for value in (getattr(earlier, part) if part else ())
        }
        for one in self.by_kind.pop(kind, ()):
            try:
                value = read(one)
            except InputError as wrong:
                if one.made_by:  # a mistake in a template is one, however many pods are made of it
                    self._problem(one.source, wrong.message, one.made_by, f"template.{wrong.field}")
                else:
                    self._problem(one.source, wrong.message, _called(kind, one.raw), wrong.field)
                continue
            if value is None:
                self.ignored["finished pods"] += 1
                continue
            key = _key(value)
            other = found.setdefault(key, value)
            if other is not value and not alike(other, value):
                found[key] = self._one_of(kind, one.source, other, value)
        return found

    def _one_of(self, kind: str, source: str, first: _V, second: _V) -> _V:
        """Which of two objects of one name counts."""
        if isinstance(first, PodGroup) and isinstance(second, PodGroup) and first.dialect != second.dialect:
            is_first, complaint = first_counts(first.dialect, second.dialect)
            if complaint:
                self._problem(source, complaint, f"{kind} {_key(second)}")
            return first if is_first else second
        self._problem(source, "is given twice and differs: the first one is used", f"{kind} {_key(second)}")
        return first

    def _claims(self, templates: Iterable[tuple[str, str, wire.ClaimTemplate]]) -> dict[str, VolumeClaim]:
        """Claims joined with volumes and classes; those of generic ephemeral volumes that nobody has made yet too."""
        classes = self._values("StorageClass", "", lambda o: volumes.read_class(o.raw))
        stock = self._values("PersistentVolume", "", lambda o: volumes.read_volume(o.raw))
        claims = self._values("PersistentVolumeClaim", "", lambda o: volumes.read_claim(o.raw))
        for where, name, template in templates:
            claims.setdefault(f"{where}/{name}", volumes.claim_of_template(where, name, template))
        joined = volumes.join(claims.values(), stock.values(), classes.values())
        return {_key(claim): claim for earlier in self.earlier for claim in earlier.claims} | {
            _key(claim): claim for claim in joined
        }

    def _unknown_classes(self, named_by: Mapping[str, str]) -> None:
        for name, who in named_by.items():
            known = f"PriorityClass {name} is not in the input"
            if not any(problem.message.startswith(known) for problem in self.problems):
                self._problem("", f"{known}: the default priority is assumed", who, "spec.priorityClassName")


def _key(value: Any) -> str:
    """`namespace/name`, or the name alone where there is no namespace."""
    where = getattr(value, "namespace", None)
    return value.name if where is None else f"{where}/{value.name}"


def _rank(value: Any) -> tuple[str, str]:
    return getattr(value, "namespace", ""), value.name


def _sorted(values: Mapping[str, _V]) -> tuple[_V, ...]:
    return tuple(sorted(values.values(), key=_rank))


def _called(kind: str, raw: Raw | bytes) -> str:
    """Kind and name, as far as they can be read."""
    try:
        meta = msgspec.json.decode(raw, type=_Called).metadata
    except msgspec.MsgspecError:
        return kind
    where = meta.namespace or ("" if kind in _CLUSTER_SCOPED else "default")
    return f"{kind} {where}/{meta.name}" if where and meta.name else f"{kind} {meta.name or '(without a name)'}"


def _put_into(namespace: str, raw: Raw | bytes) -> Raw | bytes:
    """The object in `namespace`, if it names none."""
    try:
        if msgspec.json.decode(raw, type=_Called).metadata.namespace:
            return raw
        body = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError:
        return raw  # told where it is read
    return msgspec.json.encode(body | {"metadata": body["metadata"] | {"namespace": namespace}})


def _place(body: dict[str, Any]) -> tuple[str, str]:
    return admission.namespace(body), admission.name(body)


def _owners(body: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Kind, namespace and name of the workloads that a pod was made for."""
    references = admission.items(admission.mapping(body.get("metadata")).get("ownerReferences"))
    return [(str(one.get("kind")), admission.namespace(body), str(one.get("name"))) for one in references]


def _stub(raw: Raw | bytes) -> dict[str, Any] | None:
    """What `expand` must know of a pod that an API server has seen; None for any other pod."""
    try:
        pod = msgspec.json.decode(raw, type=_Stub)
    except msgspec.MsgspecError:
        return None
    if not (pod.metadata.uid or pod.metadata.resourceVersion):
        return None
    return {"apiVersion": "v1", "kind": "Pod", **msgspec.to_builtins(pod)}


class _Name(Struct):
    name: str | None = None
    namespace: str | None = None


class _Called(Struct):
    metadata: _Name


class _StubMeta(_Name, omit_defaults=True):
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815
    ownerReferences: list[dict[str, Any]] | None = None  # noqa: N815


class _StubSpec(Struct, omit_defaults=True):
    nodeName: str | None = None  # noqa: N815
    schedulerName: str | None = None  # noqa: N815


class _StubStatus(Struct, omit_defaults=True):
    phase: str | None = None


class _Stub(Struct, omit_defaults=True):
    metadata: _StubMeta
    spec: _StubSpec
    status: _StubStatus | None = None


_API_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Pod": ("",),
    "Node": ("",),
    "Namespace": ("",),
    "PersistentVolumeClaim": ("",),
    "PersistentVolume": ("",),
    "StorageClass": ("storage.k8s.io",),
    "CSINode": ("storage.k8s.io",),
    "PriorityClass": ("scheduling.k8s.io",),
    "PodDisruptionBudget": ("policy",),
    "ResourceQuota": ("",),
    "LimitRange": ("",),
    "RuntimeClass": ("node.k8s.io",),
}
"""Kind -> the API groups in which it is the kind we mean."""

_CLUSTER_SCOPED = frozenset(
    {"Node", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "PriorityClass", "Queue", "RuntimeClass"}
)

"""The short notation of tests/cases/*.yaml (see the README there), turned into Kubernetes objects and a policy file.

A case is checked on reading: an unknown key, a case without a demand and a demand about a name that the case does not
have are errors, so that no case can pass by a typing mistake.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

if TYPE_CHECKING:
    from pathlib import Path

Object = dict[str, Any]

SCHEDULER = "solver-sched"
NAMESPACE = "default"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""Creation time of everything without an `age`."""
SHORT = {"gpu": "nvidia.com/gpu", "disk": "ephemeral-storage"}
ONE = re.compile(r"(?:(?P<count>\d+) x )?(?P<ask>[^@]*?)(?: ?@(?P<node>\S+))?")
TAINT = re.compile(r"(?P<key>[^=:]*)(?:=(?P<value>[^:]*))?(?::(?P<effect>\w+))?")
QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?\d+))")
SUFFIX = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def exact(quantity: str) -> Fraction:
    """The value of a Kubernetes quantity; ValueError outside the grammar of resource.Quantity."""
    match = QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    number, suffix, exponent = match.groups()
    if suffix and suffix.endswith("i"):
        return Fraction(number) * Fraction(1024 ** ("KMGTPE".index(suffix[0]) + 1))
    return Fraction(f"{number}e{SUFFIX[suffix] if exponent is None else exponent}")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def amounts(text: object) -> dict[str, Any]:
    """`cpu=1 memory=1Gi` or a mapping -> resource list; `nothing` -> {}. A number in a mapping stays a number."""
    if isinstance(text, Mapping):
        return {SHORT.get(str(name), str(name)): amount for name, amount in text.items()}
    if text in (None, "", "nothing"):
        return {}
    pairs = [part.partition("=") for part in str(text).split()]
    if not all(sign for _, sign, _ in pairs):
        raise ValueError(f"{text!r}: write resources as `cpu=1 memory=1Gi`")
    return {SHORT.get(name, name): amount for name, _, amount in pairs}


def line(text: object, into: str) -> object:
    """`4 x cpu=1 @n1` -> {count: 4, `into`: "cpu=1", at: "n1"}; a mapping passes."""
    if not isinstance(text, str):
        return text
    match = ONE.fullmatch(text)
    assert match is not None, text
    found: dict[str, str | None] = {"count": match["count"], into: match["ask"], "at": match["node"]}
    return {key: value for key, value in found.items() if value is not None}


class Line(Strict):
    """Some nodes or pods that differ by nothing but their number: `name` alone, or `name-0` .. with a `count`."""

    count: int | None = None
    labels: dict[str, str] = {}

    def names(self, name: str) -> list[str]:
        return [name] if self.count is None else [f"{name}-{i}" for i in range(self.count)]


class NodeLine(Line):
    have: Any
    taints: list[str] = []
    annotations: dict[str, str] = {}
    cordoned: bool = False
    ready: bool = True

    @model_validator(mode="before")
    @classmethod
    def short(cls, data: object) -> object:
        return line(data, "have")


class Spread(Strict):
    by: str
    of: dict[str, str]
    skew: int = 1


class PodLine(Line):
    """`ask` is the request of the only container; `containers` and `init` replace it by raw container fields."""

    ask: Any = None
    limits: Any = None
    containers: list[Object] = []
    init: list[Object] = []
    at: str | None = None
    phase: str | None = None
    role: str | None = None
    priority: int | None = None
    group: str | None = None
    namespace: str = NAMESPACE
    scheduler: str = SCHEDULER
    age: int = 0
    started: int | None = None
    terminating: bool = False
    preemptable: bool | None = None
    polite: bool = False
    nominated: str | None = None
    gates: list[str] = []
    selector: dict[str, str] = {}
    tolerates: list[str] = []
    ports: list[int] = []
    apart: str | None = None
    together: str | None = None
    spread: Spread | None = None
    claims: list[str] = []
    annotations: dict[str, str] = {}
    spec: Object = {}
    status: Object = {}

    @model_validator(mode="before")
    @classmethod
    def short(cls, data: object) -> object:
        return line(data, "ask")


class QueueLine(Strict):
    weight: int | None = None
    capability: Any = None
    deserved: Any = None
    guarantee: Any = None
    priority: int | None = None
    reclaimable: bool | None = None
    state: str = "Open"


class BudgetLine(Strict):
    """`allowed`: what its status says; else what `spec` (raw) leaves."""

    of: dict[str, str]
    allowed: int | None = None
    spec: Object = {}
    namespace: str = NAMESPACE


class GroupLine(Strict):
    """`copies: 3` writes the group three times, `name-0` .. `name-2`. A string as `pods` is one line of
    the group's name.
    """

    min: int = 1
    queue: str = "default"
    roles: dict[str, int] = {}
    priority: int | None = None
    namespace: str = NAMESPACE
    phase: str = "Inqueue"
    age: int = 0
    copies: int | None = None
    spec: Object = {}
    pods: dict[str, PodLine] = {}

    def names(self, name: str) -> list[str]:
        return [name] if self.copies is None else [f"{name}-{i}" for i in range(self.copies)]

    def prefix(self, key: str, copy: str, line: str) -> str:
        """What the pods of one line in one copy of the group are named after; `key` is the group as written."""
        return line if self.copies is None else copy if line == key else f"{copy}-{line}"


class Reason(Strict):
    """`code`: one of these; `says`: each stands in the message, as it is written; `held`: kept out of the decision."""

    code: str | list[str] = []
    says: list[str] = []
    held: bool = False


class Why(Strict):
    """Of one eviction: by which action, for which group, and what its reason says."""

    action: str = ""
    to: str = ""
    says: list[str] = []


class Expect(Strict):
    """What must hold of the plan. `bound`, `groups`, `pods`, `nodes`, `evicted`, `nominated` are complete: what is not
    named gets or loses nothing. `evicted` by pod or, as a mapping, by group; absent, nothing may be evicted.
    """

    bound: dict[str, str] | None = None
    evicted: list[str] | dict[str, int] | None = None
    nominated: dict[str, str] | None = None
    runs: dict[str, int] = {}
    why: dict[str, Why] = {}
    count: int | None = None
    groups: dict[str, int] | None = None
    pods: dict[str, int] | None = None
    nodes: dict[str, int] | None = None
    pending: list[str] = []
    phases: dict[str, str] = {}
    reasons: dict[str, Reason] = {}
    queues: dict[str, dict[str, str]] = {}
    ignored: dict[str, int] = {}
    problems: list[str] = []
    one_of: list[Expect] = []

    @model_validator(mode="after")
    def demands_something(self) -> Expect:
        if not self.model_fields_set:
            raise ValueError("expect is empty")
        return self


class Cluster(Strict):
    nodes: dict[str, NodeLine] = {}
    queues: dict[str, QueueLine] = {}
    groups: dict[str, GroupLine] = {}
    pods: dict[str, PodLine] = {}
    budgets: dict[str, BudgetLine] = {}
    manifests: list[Object] = []

    @model_validator(mode="before")
    @classmethod
    def short(cls, data: Any) -> Any:
        groups = {}
        for name, group in (data.get("groups") or {}).items():
            pods = group.get("pods", {})
            groups[name] = {**group, "pods": {name: pods} if isinstance(pods, str) else pods}
        return {**data, "groups": groups}

    def lines(self) -> set[str]:
        """Names as they are written, and those that are made of them."""
        pods = {k for group in self.groups.values() for k in group.pods}
        nodes = {n for k, v in self.nodes.items() for n in v.names(k)}
        manifests = {o["metadata"]["name"] for o in self.manifests}
        made = {*self.pods_to_lines(), *self.groups_to_lines()}
        return {*self.pods, *self.groups, *pods, *self.nodes, *nodes, *manifests, *made}

    def pods_to_lines(self) -> dict[str, str]:
        """Pod name -> the line that it is written under."""
        out = {pod: name for name, pods in self.pods.items() for pod in pods.names(name)}
        for key, group in self.groups.items():
            for name, pods in group.pods.items():
                for copied in group.names(key):
                    out |= dict.fromkeys(pods.names(group.prefix(key, copied, name)), name)
        return out

    def groups_to_lines(self) -> dict[str, str]:
        """Group name -> the line that it is written under; a pod without a group is a group named after itself."""
        out = {copied: key for key, group in self.groups.items() for copied in group.names(key)}
        return out | {pod: name for name, pods in self.pods.items() for pod in pods.names(name) if not pods.group}

    def objects(self) -> list[Object]:
        """The cluster as `kubectl get -o json` would list it."""
        out: list[Object] = []
        for name, node in self.nodes.items():
            out += [node_object(one, node) for one in node.names(name)]
        out += [queue_object(name, queue) for name, queue in self.queues.items()]
        out += [budget_object(name, budget) for name, budget in self.budgets.items()]
        for value in sorted({g.priority for g in self.groups.values() if g.priority is not None}):
            out.append(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": class_name(value)},
                    "value": value,
                }
            )
        for key, group in self.groups.items():
            for copied in group.names(key):
                out.append(group_object(copied, group))
                for name, pods in group.pods.items():
                    inherited = {"group": copied, "namespace": group.namespace, "priority": group.priority}
                    role = name if name in group.roles else None
                    own = pods.model_copy(
                        update={
                            "role": pods.role or role,
                            **{k: v for k, v in inherited.items() if k not in pods.model_fields_set},
                        }
                    )
                    out += [pod_object(one, own) for one in own.names(group.prefix(key, copied, name))]
        for name, pods in self.pods.items():
            out += [pod_object(one, pods) for one in pods.names(name)]
        return out + self.manifests


class After(Cluster):
    """The next cycle: the plan was carried out, `without` these objects and with the new ones given here.

    Bound pods run. `evicted` ones are gone, or back as pending pods of the same name, or still leaving; whatever was
    leaving before is gone unless all still leave. `times`: this often, with the same demand each time.
    """

    evicted: Literal["gone", "back", "leaving"] = "gone"
    without: list[str] = []
    times: int = 1
    expect: Expect


class Case(Cluster):
    """`missing`: what the scheduler does not do yet; the case is then expected to fail."""

    name: str
    story: str
    source: str = ""
    missing: str = ""
    policy: str | Object = "default"
    expect: Expect
    then: list[After] = []

    @model_validator(mode="after")
    def names_exist(self) -> Case:
        """A demand about a misspelt pod would be met by every plan in which that pod does not occur."""
        known = self.lines().union(*(after.lines() for after in self.then))
        blocks = [self.expect, *(after.expect for after in self.then)]
        for block in [*blocks, *(one for whole in blocks for one in whole.one_of)]:
            named = {*(block.bound or {}), *(block.groups or {}), *(block.pods or {}), *(block.nodes or {})}
            named |= {*block.pending, *block.phases, *block.reasons, *block.runs, *block.why}
            named |= {*(block.evicted or []), *(block.nominated or {}), *(why.to for why in block.why.values())}
            for name in sorted(named - {""}):
                if name not in known and "/" not in name:
                    raise ValueError(f"{self.name}: expect names {name!r}, which the case does not have")
        return self

    def of_line(self) -> tuple[dict[str, str], dict[str, str]]:
        """Groups and pods of all cycles -> the line they are written under."""
        parts: list[Cluster] = [self, *self.then]
        groups = {name: line for part in parts for name, line in part.groups_to_lines().items()}
        return groups, {name: line for part in parts for name, line in part.pods_to_lines().items()}

    def policy_file(self) -> str | Object:
        """A shipped policy's name, or the file: `tiers` are lists of names, or of one-entry mappings to settings."""
        if isinstance(self.policy, str) or "tiers" not in self.policy:
            return self.policy
        tiers = []
        for tier in self.policy["tiers"]:
            entries = [plugin if isinstance(plugin, Mapping) else {plugin: {}} for plugin in tier]
            tiers.append({"plugins": [{"name": name, **more} for entry in entries for name, more in entry.items()]})
        return {**self.policy, "tiers": tiers}


def class_name(priority: int) -> str:
    return f"priority{priority}".replace("-", "-minus-")


def metadata(name: str, age: int, namespace: str | None = None, **more: object) -> Object:
    stamp = (NOON - timedelta(minutes=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    where = {} if namespace is None else {"namespace": namespace}
    filled = {key: value for key, value in more.items() if value}
    return {"name": name, **where, "uid": f"{namespace or ''}.{name}", "creationTimestamp": stamp, **filled}


def taint(text: str) -> Object:
    """`key=value:Effect`; value and effect may be left out."""
    match = TAINT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}: write taints and tolerations as `key=value:Effect`")
    return {key: value for key, value in match.groupdict().items() if value}


def toleration(text: str) -> Object:
    """As a taint; `*` tolerates everything, a key without a value any value."""
    if text == "*":
        return {"operator": "Exists"}
    fields = taint(text)
    return fields if "value" in fields else {**fields, "operator": "Exists"}


def node_object(name: str, node: NodeLine) -> Object:
    have = {"pods": "110", **amounts(node.have)}
    spec: Object = {"unschedulable": True} if node.cordoned else {}
    if node.taints:
        spec["taints"] = [taint(text) for text in node.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(
            name, 0, labels={"kubernetes.io/hostname": name, **node.labels}, annotations=node.annotations
        ),
        "spec": spec,
        "status": {
            "allocatable": have,
            "capacity": have,
            "conditions": [{"type": "Ready", "status": "True" if node.ready else "False"}],
        },
    }


def queue_object(name: str, queue: QueueLine) -> Object:
    spec: Object = {} if queue.weight is None else {"weight": queue.weight}
    spec |= {key: amounts(value) for key in ("capability", "deserved") if (value := getattr(queue, key)) is not None}
    if queue.guarantee is not None:
        spec["guarantee"] = {"resource": amounts(queue.guarantee)}
    if queue.priority is not None:
        spec["priority"] = queue.priority
    if queue.reclaimable is not None:
        spec["reclaimable"] = queue.reclaimable
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": metadata(name, 0),
        "spec": spec,
        "status": {"state": queue.state},
    }


def budget_object(name: str, budget: BudgetLine) -> Object:
    status = {} if budget.allowed is None else {"status": {"disruptionsAllowed": budget.allowed}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, 0, budget.namespace),
        "spec": {**budget.spec, "selector": {"matchLabels": budget.of}},
        **status,
    }


def group_object(name: str, group: GroupLine) -> Object:
    spec: Object = {"minMember": group.min, "queue": group.queue}
    if group.roles:
        spec["minTaskMember"] = group.roles
    if group.priority is not None:
        spec["priorityClassName"] = class_name(group.priority)
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(name, group.age, group.namespace),
        "spec": {**spec, **group.spec},
        "status": {"phase": group.phase},
    }


def pod_term(text: str) -> Object:
    """`app=demo by zone`: against pods of that label, in the node's zone; without `by`: on the node."""
    label, _, key = text.partition(" by ")
    name, value = label.split("=")
    term = {"labelSelector": {"matchLabels": {name: value}}, "topologyKey": key or "kubernetes.io/hostname"}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def pod_object(name: str, pod: PodLine) -> Object:
    only: Object = {"name": "main", "resources": {}}
    if pod.ask is not None:
        only["resources"]["requests"] = amounts(pod.ask)
    if pod.limits is not None:
        only["resources"]["limits"] = amounts(pod.limits)
    if pod.ports:
        only["ports"] = [{"containerPort": port, "hostPort": port} for port in pod.ports]
    spec: Object = {"schedulerName": pod.scheduler, "containers": named(pod.containers) or [only]}
    if pod.init:
        spec["initContainers"] = named(pod.init, "init")
    if pod.priority is not None:
        spec["priority"] = pod.priority
    if pod.polite:
        spec["preemptionPolicy"] = "Never"
    if pod.at is not None:
        spec["nodeName"] = pod.at
    if pod.selector:
        spec["nodeSelector"] = pod.selector
    if pod.tolerates:
        spec["tolerations"] = [toleration(text) for text in pod.tolerates]
    if pod.gates:
        spec["schedulingGates"] = [{"name": gate} for gate in pod.gates]
    terms = {"podAntiAffinity": pod.apart, "podAffinity": pod.together}
    if pod.apart or pod.together:
        spec["affinity"] = {key: pod_term(text) for key, text in terms.items() if text}
    if pod.spread is not None:
        spec["topologySpreadConstraints"] = [
            {
                "topologyKey": pod.spread.by,
                "maxSkew": pod.spread.skew,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": pod.spread.of},
            }
        ]
    if pod.claims:
        spec["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in pod.claims]
    notes = {"scheduling.k8s.io/group-name": pod.group, "volcano.sh/task-spec": pod.role}
    annotations = {**{key: value for key, value in notes.items() if value}, **pod.annotations}
    if pod.preemptable is not None:
        annotations["volcano.sh/preemptable"] = str(pod.preemptable).lower()
    meta = metadata(name, max(pod.age, pod.started or 0), pod.namespace, labels=pod.labels, annotations=annotations)
    if pod.terminating:
        meta |= leaving(0)
    phase = pod.phase or ("Running" if pod.at else "Pending")
    status: Object = {"phase": phase}
    if pod.started is not None:
        status["startTime"] = stamp(-pod.started)
    if pod.nominated is not None:
        status["nominatedNodeName"] = pod.nominated
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {**spec, **pod.spec},
        "status": {**status, **pod.status},
    }


def stamp(minutes: int) -> str:
    """That many minutes after noon."""
    return (NOON + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def leaving(minutes: int) -> Object:
    return {"deletionTimestamp": stamp(minutes), "deletionGracePeriodSeconds": 30}


def carried_out(objects: list[Object], plan: Object, after: After, minutes: int) -> list[Object]:
    """The cluster after a plan, that many minutes after noon."""
    by_pod = {d["pod"]: d for d in plan["decisions"] if "pod" in d}
    phases = {group["name"]: group["phase"] for group in plan["podGroups"]}
    out = []
    for was in objects:
        new = copy.deepcopy(was)
        meta, status = new["metadata"], new.get("status", {})
        name = f"{meta.get('namespace')}/{meta['name']}"
        gone = meta["name"] in after.without
        if new["kind"] == "PodGroup" and phases.get(name):
            status["phase"] = phases[name]
        if new["kind"] == "Pod":
            gone |= "deletionTimestamp" in meta and after.evicted != "leaving"
            status.pop("nominatedNodeName", None)
            decision = by_pod.get(name, {"kind": ""})
            if decision["kind"] == "Bind":
                new["spec"]["nodeName"] = decision["node"]
                new["status"] = {"phase": "Running", "startTime": stamp(minutes)}
            elif decision["kind"] == "Nominate":
                status["nominatedNodeName"] = decision["node"]
            elif decision["kind"] == "Evict" and after.evicted == "back":
                del new["spec"]["nodeName"]
                new["status"] = {"phase": "Pending"}
            elif decision["kind"] == "Evict":
                gone |= after.evicted == "gone"
                meta |= leaving(minutes)
        out += [] if gone else [new]
    known = {(one["kind"], key(one)) for one in out}
    return out + [new for new in after.objects() if (new["kind"], key(new)) not in known]


def played(case: Case, plan: Callable[[list[Object]], Object]) -> Iterator[tuple[Expect, list[Object], Object]]:
    """The demand, the cluster and the plan of every cycle. A cycle takes a minute."""
    objects = case.objects()
    found = plan(objects)
    yield case.expect, objects, found
    minutes = 0
    for after in case.then:
        for time in range(after.times):
            minutes += 1
            again = after if not time else After(evicted=after.evicted, expect=after.expect)
            objects = carried_out(objects, found, again, minutes)
            found = plan(objects)
            yield after.expect, objects, found


def named(containers: list[Object], prefix: str = "main") -> list[Object]:
    """Raw container fields, where `ask` may stand for the requests."""
    out = []
    for i, fields in enumerate(containers):
        rest = {key: value for key, value in fields.items() if key != "ask"}
        asked = {"resources": {"requests": amounts(fields["ask"])}} if "ask" in fields else {}
        out.append({"name": f"{prefix}-{i}", **asked, **rest})
    return out


def merged(base: Any, change: Any) -> Any:
    """`change` over `base`, mapping by mapping."""
    if not (isinstance(base, Mapping) and isinstance(change, Mapping)):
        return change
    return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}


def read(text: str, source: str) -> Iterator[Case]:
    """The cases of one file; a variant is the case with some keys changed and a demand of its own."""
    for entry in yaml.safe_load(text):
        variants = entry.pop("variants", {})
        yield case(entry, source)
        for name, change in variants.items():
            if "expect" not in change:
                raise ValueError(f"{source}: {entry['name']}: variant {name} has no expect")
            base = {key: value for key, value in entry.items() if key != "expect"}
            yield case({**merged(base, change), "name": f"{entry['name']}/{name}"}, source)


def case(entry: Object, source: str) -> Case:
    try:
        return Case.model_validate(entry)
    except ValueError as error:
        raise ValueError(f"{source}: {entry.get('name', '?')}: {error}") from error


def cases(folder: Path) -> list[Case]:
    return [one for path in sorted(folder.glob("*.yaml")) for one in read(path.read_text(), path.name)]


def qualified(name: str) -> str:
    return name if "/" in name else f"{NAMESPACE}/{name}"


def count(items: list[str]) -> dict[str, int]:
    return {item: items.count(item) for item in sorted(set(items))}


def halves(objects: list[Object], out: set[str]) -> Iterator[str]:
    """Gangs that evictions leave below their minimum, though not at nothing; those below it before do not count."""
    runs: dict[str, list[str]] = {}
    for pod in objects:
        if on_node(pod):
            runs.setdefault(owner(pod), []).append(key(pod))
    for group in objects:
        if group["kind"] == "PodGroup":
            pods = runs.get(key(group).removeprefix(f"{NAMESPACE}/"), [])
            left = [pod for pod in pods if pod not in out]
            least = group["spec"]["minMember"]
            if len(pods) >= least and 0 < len(left) < least:
                yield f"leaves half a gang: {len(left)} of {group['metadata']['name']}, minimum {least}"


def shortfalls(
    case: Case,
    plan: Object,
    expect: Expect | None = None,
    objects: list[Object] | None = None,
    *,
    part: bool = False,
) -> list[str]:
    """Every way in which the plan is not what the case demands, one line each. `part`: `expect` is one of `one_of`."""
    expect = expect or case.expect
    objects = case.objects() if objects is None else objects
    binds = {d["pod"]: d for d in plan["decisions"] if d["kind"] == "Bind"}
    nominated = {d["pod"]: d for d in plan["decisions"] if d["kind"] == "Nominate"}
    records = {group["name"]: group for group in plan["podGroups"]}
    evicted = {d["pod"]: d for d in plan["decisions"] if d["kind"] == "Evict"}
    bad = [] if part else list(halves(objects, {*evicted}))
    if expect.evicted is None and not part and all(block.evicted is None for block in expect.one_of):
        bad += [f"evicts {pod}" for pod in evicted]
    twice = count([d["pod"] for d in plan["decisions"] if d["kind"] == "Bind"])
    bad += [f"binds {pod} {times} times" for pod, times in twice.items() if times > 1]

    def local(name: str) -> str:
        return name.removeprefix(f"{NAMESPACE}/")

    def compare(what: str, want: dict[str, int] | None, got: list[str]) -> None:
        if want is not None and count(got) != {key: n for key, n in want.items() if n}:
            bad.append(f"{what}: want {want}, got {count(got)}")

    if expect.bound is not None:
        want = {qualified(pod): node for pod, node in expect.bound.items()}
        got = {pod: d["node"] for pod, d in binds.items()}
        anywhere = {pod: got.get(pod, "?") if node == "*" else node for pod, node in want.items()}
        if got != anywhere:
            bad.append(f"bound: want {want}, got {got}")
    if expect.count is not None and len(binds) != expect.count:
        bad.append(f"count: want {expect.count} bound, got {sorted(binds)}")
    of_group, of_pod = case.of_line()
    groups = [local(d.get("podGroup") or d["pod"]) for d in binds.values()]
    compare("groups", expect.groups, [of_group.get(name, name) for name in groups])
    compare("pods", expect.pods, [of_pod.get(local(pod), local(pod)) for pod in binds])
    compare("nodes", expect.nodes, [d["node"] for d in binds.values()])
    if isinstance(expect.evicted, list):
        compare("evicted", count([qualified(pod) for pod in expect.evicted]), [*evicted])
    elif expect.evicted is not None:
        owners = [local(d.get("podGroup") or d["pod"]) for d in evicted.values()]
        compare("evicted", expect.evicted, [of_group.get(name, name) for name in owners])
    if expect.nominated is not None:
        want = {qualified(pod): node for pod, node in expect.nominated.items()}
        got = {pod: d["node"] for pod, d in nominated.items()}
        if got != {pod: got.get(pod, "?") if node == "*" else node for pod, node in want.items()}:
            bad.append(f"nominated: want {want}, got {got}")
    if expect.runs:
        found = Counter(owner(pod) for pod in objects if on_node(pod) and key(pod) not in evicted)
        found.update(local(d.get("podGroup") or d["pod"]) for d in [*binds.values(), *nominated.values()])
        lines: Counter[str] = Counter()
        for name, number in found.items():
            lines[of_group.get(name, name)] += number
        bad += [f"runs: want {n} of {name}, got {lines[name]}" for name, n in expect.runs.items() if lines[name] != n]
    for name, why in expect.why.items():
        bad += [f"eviction of {name}: {text}" for text in unlike(why, evicted.get(qualified(name)))]
    for name in expect.pending:
        placed = {**binds, **nominated}
        if any(qualified(name) in (pod, d.get("podGroup")) for pod, d in placed.items()):
            bad.append(f"pending: {name} is placed")
    for name, phase in expect.phases.items():
        shown = records.get(qualified(name), {}).get("phase")
        if shown != phase:
            bad.append(f"phase of {name}: want {phase}, got {shown}")
    for name, reason in expect.reasons.items():
        bad += [f"reason of {name}: {text}" for text in misses(reason, records.get(qualified(name)))]
    queues = {queue["name"]: queue for queue in plan["queues"]}
    for name, fields in expect.queues.items():
        for field, text in fields.items():
            got_amounts = queues[name][field]
            for resource, amount in amounts(text).items():
                if exact(got_amounts.get(resource, "0")) != exact(amount):
                    bad.append(f"queue {name}: want {field} {resource} {amount}, got {got_amounts}")
    for cause, number in expect.ignored.items():
        if plan["snapshot"]["ignored"].get(cause) != number:
            bad.append(f"ignored: want {number} {cause}, got {plan['snapshot']['ignored']}")
    problems = [" ".join(map(str, problem.values())) for problem in plan["snapshot"]["problems"]]
    bad += [f"problems: none says {text!r} in {problems}" for text in expect.problems if text not in " ".join(problems)]
    if expect.one_of:
        tries = [shortfalls(case, plan, block, objects, part=True) for block in expect.one_of]
        if all(tries):
            bad += ["one_of: " + "; or ".join(", ".join(lines) for lines in tries)]
    return bad


def key(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"


def owner(pod: Object) -> str:
    """The group, else the pod, without the default namespace."""
    meta = pod["metadata"]
    group = meta.get("annotations", {}).get("scheduling.k8s.io/group-name", meta["name"])
    return f"{meta['namespace']}/{group}".removeprefix(f"{NAMESPACE}/")


def on_node(pod: Object) -> bool:
    """A pod that runs and is not leaving."""
    finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return (
        pod["kind"] == "Pod"
        and "nodeName" in pod["spec"]
        and not finished
        and "deletionTimestamp" not in pod["metadata"]
    )


def unlike(why: Why, decision: Object | None) -> Iterator[str]:
    if decision is None:
        yield "there is none"
        return
    if why.action and decision["action"] != why.action:
        yield f"want action {why.action}, got {decision['action']}"
    if why.to and decision["for"] != qualified(why.to):
        yield f"want it for {why.to}, got {decision['beneficiary']}"
    yield from (f"{text!r} is not in {decision['reason']!r}" for text in why.says if text not in decision["reason"])


def misses(reason: Reason, record: Object | None) -> Iterator[str]:
    if record is None:
        yield "the group is not in the plan"
        return
    got = record.get("reason")
    if got is None:
        yield "none is given"
        return
    codes = [reason.code] if isinstance(reason.code, str) else reason.code
    if codes and got["code"] not in codes:
        yield f"want code {' or '.join(codes)}, got {got['code']}: {got['message']}"
    yield from (f"{text!r} is not in {got['message']!r}" for text in reason.says if text not in got["message"])
    if reason.held and not (got.get("detail") or {}).get("held"):
        yield f"not held: {got}"

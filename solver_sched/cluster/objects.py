"""The facts of a cluster that scheduling depends on, as frozen values.

Every reader (files, a live watch) produces these; nothing after `Snapshot` sees raw Kubernetes JSON.
Resources are integers in one unit per name: `cpu` in milli-CPU, everything else in whole units (bytes, counts),
rounded up as the API server rounds them. Times are integer seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

Resources = Mapping[str, int]
"""Resource name -> amount; `cpu` in milli-CPU, `pods` in slots, all others in whole units. Absent = 0."""


class Requirement(Struct, frozen=True):
    """One expression of a label selector or node selector term.

    `operator` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt. A `matchLabels` pair becomes `In` with one value.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


Selector = tuple[Requirement, ...]
"""All requirements must hold; the empty selector matches everything. A missing selector is None: matches nothing."""


class NodeTerm(Struct, frozen=True):
    """One term of node affinity: all expressions (labels) and fields (`metadata.name`) must hold.

    A term with neither matches no node (Kubernetes API convention).
    """

    expressions: Selector = ()
    fields: Selector = ()


class Toleration(Struct, frozen=True):
    """`key` "" with `Exists` tolerates all taints; `effect` "" all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(Struct, frozen=True):
    key: str
    value: str
    effect: str


class PodTerm(Struct, frozen=True):
    """One inter-pod (anti-)affinity term; `namespaces` already holds the pod's own where none is given.

    `namespace_selector` None = only `namespaces`; the empty selector = all namespaces.
    `weight` is 0 for required terms, 1..100 for preferred ones.
    """

    topology_key: str
    selector: Selector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None
    weight: int = 0


class Spread(Struct, frozen=True):
    """A topology spread constraint; `matchLabelKeys` are already merged into `selector`."""

    topology_key: str
    max_skew: int
    hard: bool
    selector: Selector | None
    min_domains: int = 1
    honor_node_affinity: bool = True
    honor_node_taints: bool = False


class HostPort(Struct, frozen=True):
    ip: str
    protocol: str
    port: int


class Needs(Struct, frozen=True):
    """What a pod asks of its node. Hash-consed by the reader: equal needs are one object, so `id` identifies them.

    `request` is the effective request (init containers, sidecars, overhead, pod-level resources, resize), sorted by
    name, zeros left out, `pods: 1` included.
    """

    request: tuple[tuple[str, int], ...] = (("pods", 1),)
    node_selector: tuple[tuple[str, str], ...] = ()
    node_affinity: tuple[NodeTerm, ...] | None = None
    preferred_nodes: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_affinity: tuple[PodTerm, ...] = ()
    preferred_anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volume_claims: tuple[str, ...] = ()
    inline_csi: tuple[str, ...] = ()
    resource_claims: tuple[str, ...] = ()

    @property
    def best_effort(self) -> bool:
        """No request but the pod slot: placed by `backfill`, not by `allocate`.

        Volcano pkg/scheduler/api/job_info.go, NewTaskInfo.
        """
        return all(name == "pods" for name, _ in self.request)


class Pod(Struct, frozen=True):
    """One pod. `group` is "namespace/name" of its PodGroup, None for a pod on its own.

    `deadline`: seconds after its start when kubelet or Job end it, 0 = none. `run_time`: seconds that it is said to
    run, 0 = nobody said.
    `node` set = bound (whatever the phase). `member_of` is the dialect that named the group (see `PodGroup.dialect`),
    "" if none. `gates` are scheduling gates. `hold` is "" or a reason the reader found that this pod must not be
    decided on ("Suspended: ...", "Claims: ..."), a code and a sentence.
    """

    namespace: str
    name: str
    needs: Needs
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    phase: str = "Pending"
    node: str | None = None
    nominated: str | None = None
    scheduler: str = "default-scheduler"
    priority: int = 0
    priority_class: str = ""
    preempts: bool = True
    preemptable: bool = True
    created: int = 0
    started: int = 0
    group: str | None = None
    member_of: str = ""
    role: str = ""
    index: int = -1
    terminating: bool = False
    gates: tuple[str, ...] = ()
    hold: str = ""
    owner: str = ""
    queue: str = ""
    deadline: int = 0
    run_time: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class Node(Struct, frozen=True):
    """`reserved_for`: the group ("namespace/name") that an annotation keeps the node for, "" if none."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    created: int = 0
    reserved_for: str = ""


class PodGroup(Struct, frozen=True):
    """A job. `dialect` is the apiVersion it was read in. `priority` is None until a class or default is resolved.

    `min_task_member` maps role -> minimum. `suspended` = its owner is suspended. `hold` as in `Pod`. `job`: the
    Job that made it; `scheduler`: who that Job says is to place its pods, where that is not us.
    """

    namespace: str
    name: str
    dialect: str
    min_member: int = 1
    queue: str = "default"
    min_task_member: Mapping[str, int] = {}
    min_resources: Resources | None = None
    priority_class: str = ""
    priority: int | None = None
    phase: str = ""
    created: int = 0
    annotations: Mapping[str, str] = {}
    topology: Mapping[str, str] = {}
    suspended: bool = False
    hold: str = ""
    job: str = ""
    scheduler: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Queue(Struct, frozen=True):
    """`capability`, `deserved` None = not given; a resource absent from a given one is not limited/entitled."""

    name: str
    weight: int = 1
    capability: Resources | None = None
    deserved: Resources | None = None
    guarantee: Resources | None = None
    parent: str = ""
    reclaimable: bool = True
    priority: int = 0
    state: str = "Open"
    created: int = 0
    annotations: Mapping[str, str] = {}


class PriorityClass(Struct, frozen=True):
    name: str
    value: int
    is_default: bool = False
    preempts: bool = True


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget: evictions of matching pods that it still allows."""

    namespace: str
    name: str
    selector: Selector | None
    allowed: int


class ResourceQuota(Struct, frozen=True):
    """A quota of a namespace without scopes. Names are quota names: `requests.cpu`, `count/pods` ...

    `used` None = no controller has counted yet.
    """

    namespace: str
    name: str
    hard: Resources
    used: Resources | None = None


class VolumeClaim(Struct, frozen=True):
    """A PersistentVolumeClaim joined with its class and volume.

    `volume` None = unbound. `wait` = WaitForFirstConsumer (any allowed node will do), else an unbound claim blocks.
    `nodes`: terms of the bound volume's node affinity or the class's allowed topologies; None = anywhere.
    `driver` is the CSI driver (counts against `CSINode` attach limits), "" if none. `missing` = why unusable, or "".
    """

    namespace: str
    name: str
    volume: str | None = None
    wait: bool = False
    nodes: tuple[NodeTerm, ...] | None = None
    driver: str = ""
    access_modes: tuple[str, ...] = ()
    missing: str = ""


class AttachLimit(Struct, frozen=True):
    """CSINode: how many volumes of `driver` the node can attach."""

    node: str
    driver: str
    count: int


class Namespace(Struct, frozen=True):
    name: str
    labels: Mapping[str, str] = {}


class RunTime(Struct, frozen=True):
    """How long finished pods of one class ran: `runs` of them, `median` in seconds."""

    key: str
    runs: int
    median: int

"""What a policy file may name: actions, plugins, callback switches and arguments with their defaults.

One table for all plugins, so that the reader can check a file before anything runs and `policy check` can say what has
an effect. Names and defaults are kube-batch's and Volcano's; where the two differ the default is Volcano's, and
models/policies/kube-batch.yaml spells out kube-batch's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["integer", "number", "boolean", "string", "duration", "any"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument's type, default and range.

    `otherwise_default`: a value below `minimum` is replaced by the default, as Volcano does, instead of refused.
    `inert`: read and checked, but nothing follows from it yet.
    """

    kind: Kind
    default: Any = None
    minimum: int | None = None
    otherwise_default: bool = False
    inert: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A known plugin or action. `inert` is "" when it has its effect, else why it has none and what happens instead.

    `moot`: having no effect makes no difference, because what it guards against does not happen.
    `arguments`: name as documented, with a last part `*` for any name -> type and default.
    `inert_switches`: switch that would turn on something not modelled -> what happens instead.
    """

    inert: str = ""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    inert_switches: Mapping[str, str] = field(default_factory=dict)
    moot: bool = False


def _weight(default: int, *, inert: bool = False) -> Argument:
    return Argument("integer", default, 0, inert=inert)


# Volcano's binpack replaces a negative weight by 1 (pkg/scheduler/plugins/binpack).
_PACK = Argument("integer", 1, 0, otherwise_default=True)
_SWITCHED_ON = Argument("boolean", True)
_ANY = Argument("any", inert=True)
_ERROR_CACHE = {"predicateErrorCacheEnable": Argument("boolean", True, inert=True)}
_NO_EVICTIONS = "not modelled; nothing is moved"
_HOOKS = (
    *("onSessionOpen", "onSessionClose", "predicate", "prioritize", "preemptable", "reclaimable", "queueOverused"),
    *("jobEnqueueable", "jobEnqueued", "jobReady", "allocateFunc", "deallocateFunc"),
)
_DEVICES = ("GPUSharing", "GPUNumber", "VGPU", "NodeLock", "AscendMindClusterVNPU", "AscendHAMiVNPU")

ACTIONS: Mapping[str, Entry] = {
    "enqueue": Entry(),
    "allocate": Entry(arguments=_ERROR_CACHE),
    "backfill": Entry(arguments=_ERROR_CACHE),
    "preempt": Entry(
        arguments={
            **_ERROR_CACHE,
            "enableTopologyAwarePreemption": Argument("boolean", False, inert=True),
            "topologyAwarePreemptWorkerNum": Argument("integer", 16, 1, inert=True),
            "minCandidateNodesPercentage": Argument("integer", 10, 0, inert=True),
            "minCandidateNodesAbsolute": Argument("integer", 1, 0, inert=True),
            "maxCandidateNodesAbsolute": Argument("integer", 100, 0, inert=True),
        },
    ),
    "reclaim": Entry(arguments=_ERROR_CACHE),
    "gangpreempt": Entry(
        arguments={"maxDomains": _weight(8, inert=True), "allowWholeBundle": Argument("boolean", True, inert=True)},
    ),
    "gangreclaim": Entry(
        arguments={"maxDomains": _weight(8, inert=True), "allowWholeBundle": Argument("boolean", True, inert=True)},
    ),
    "shuffle": Entry(_NO_EVICTIONS),
    "consolidation": Entry(),
    "consolidate": Entry(),
    "stalegangeviction": Entry(_NO_EVICTIONS),
    "elect": Entry("removed from Volcano: waiting jobs are protected by their age instead"),
    "reserve": Entry("removed from Volcano: waiting jobs are protected by their age instead"),
}

PLUGINS: Mapping[str, Entry] = {
    "gang": Entry(),
    "priority": Entry(),
    "conformance": Entry(),
    "drf": Entry(inert_switches={"hierarchy": "hierarchical shares are not modelled; queues follow proportion"}),
    "proportion": Entry(),
    "capacity": Entry(
        arguments={
            "ancestorReclaimLevel": Argument("integer", 0, 0, inert=True),
            "capacity.DynamicResourceAllocationEnable": Argument("boolean", False, inert=True),
            "capacity.DRAConsumableCapacityEnable": Argument("boolean", False, inert=True),
        },
        inert_switches={"hierarchy": "queue trees are not modelled yet; queues count as flat"},
    ),
    "predicates": Entry(
        arguments={
            "predicate.NodeAffinityEnable": _SWITCHED_ON,
            "predicate.NodePortsEnable": _SWITCHED_ON,
            "predicate.TaintTolerationEnable": _SWITCHED_ON,
            "predicate.PodAffinityEnable": _SWITCHED_ON,
            "predicate.NodeVolumeLimitsEnable": _SWITCHED_ON,
            "predicate.VolumeZoneEnable": _SWITCHED_ON,
            "predicate.PodTopologySpreadEnable": _SWITCHED_ON,
            "predicate.VolumeBindingEnable": _SWITCHED_ON,
            "predicate.CacheEnable": Argument("boolean", False, inert=True),
            "predicate.DynamicResourceAllocationEnable": Argument("boolean", False, inert=True),
            "volumebinding.bindTimeoutSeconds": Argument("integer", 600, 0, inert=True),
            "volumebinding.weight": _weight(1, inert=True),
            "volumebinding.shape": _ANY,
            "dynamicresources.filterTimeoutSeconds": Argument("integer", 10, 0, inert=True),
            # kube-batch's; a node under pressure carries a NoSchedule taint of its own today.
            "predicate.MemoryPressureEnable": Argument("boolean", False, inert=True),
            "predicate.DiskPressureEnable": Argument("boolean", False, inert=True),
            "predicate.PIDPressureEnable": Argument("boolean", False, inert=True),
        }
    ),
    "nodeorder": Entry(
        arguments={
            "leastrequested.weight": _weight(1),
            "mostrequested.weight": _weight(0),
            "balancedresource.weight": _weight(1),
            "nodeaffinity.weight": _weight(2),
            "tainttoleration.weight": _weight(3),
            "podaffinity.weight": _weight(2),
            "imagelocality.weight": _weight(1, inert=True),
            "podtopologyspread.weight": _weight(2, inert=True),
        }
    ),
    "binpack": Entry(
        arguments={
            "binpack.weight": _PACK,
            "binpack.cpu": _PACK,
            "binpack.memory": _PACK,
            "binpack.resources": Argument("string", ""),
            "binpack.resources.*": _PACK,
        }
    ),
    "overcommit": Entry(arguments={"overcommit-factor": Argument("number", "1.2", 1, otherwise_default=True)}),
    "sla": Entry(arguments={"sla-waiting-time": Argument("duration", "0s")}),
    "tdm": Entry(
        "revocable nodes count as ordinary nodes",
        {"tdm.revocable-zone.*": Argument("string", inert=True), "tdm.evict.period": Argument("duration", inert=True)},
    ),
    "resourcequota": Entry(),
    "pdb": Entry("disruption budgets are always kept", moot=True),
    "cdp": Entry(arguments={"cooldown-time": Argument("duration", "0s")}),
    "nodegroup": Entry(
        "queues are not tied to node groups",
        {
            "strict": Argument("boolean", True, inert=True),
            "enablePreferredOrder": Argument("boolean", False, inert=True),
        },
    ),
    "numa-aware": Entry("NUMA topology is not modelled", {"weight": _weight(1, inert=True)}),
    "task-topology": Entry("roles are not placed by task topology", {"task-topology.weight": _weight(1, inert=True)}),
    "usage": Entry(
        "measured load is not read",
        {
            "usage.weight": _weight(5, inert=True),
            "cpu.weight": _weight(1, inert=True),
            "memory.weight": _weight(1, inert=True),
            "thresholds": _ANY,
            "estimator": _ANY,
        },
    ),
    "rescheduling": Entry(
        "nothing is moved by measured load",
        {
            "interval": Argument("duration", inert=True),
            "metricsPeriod": Argument("duration", inert=True),
            "strategies": _ANY,
        },
    ),
    "resource-strategy-fit": Entry(
        "nodes are scored by nodeorder and binpack only",
        {
            "resourceStrategyFitWeight": _weight(10, inert=True),
            "resources": _ANY,
            "sra": _ANY,
            "proportional": _ANY,
        },
    ),
    "deviceshare": Entry(
        "only whole devices are counted, as plain resources",
        {
            **{f"deviceshare.{name}Enable": Argument("boolean", False, inert=True) for name in _DEVICES},
            "deviceshare.SchedulePolicy": Argument("string", "", inert=True),
            "deviceshare.ScheduleWeight": _weight(0, inert=True),
            "deviceshare.KnownGeometriesCMName": Argument("string", "volcano-vgpu-device-config", inert=True),
            "deviceshare.KnownGeometriesCMNamespace": Argument("string", "kube-system", inert=True),
            "deviceshare.GPUExclusiveRules": _ANY,
        },
    ),
    "extender": Entry(
        "no external process is asked",
        {
            "extender.urlPrefix": Argument("string", "", inert=True),
            "extender.httpTimeout": Argument("duration", "1s", inert=True),
            "extender.ignorable": Argument("boolean", False, inert=True),
            "extender.managedResources": _ANY,
            **{f"extender.{hook}Verb": Argument("string", "", inert=True) for hook in _HOOKS},
        },
    ),
    "network-topology-aware": Entry(
        "HyperNodes are not modelled yet",
        {
            "weight": _weight(1, inert=True),
            "hypernode.binpack.cpu": _weight(1, inert=True),
            "hypernode.binpack.memory": _weight(1, inert=True),
            "hypernode.binpack.resources": Argument("string", "", inert=True),
            "hypernode.binpack.resources.*": _weight(1, inert=True),
            "hypernode.binpack.normal-pod.enable": Argument("boolean", True, inert=True),
            "hypernode.binpack.normal-pod.fading": Argument("number", "0.8", 0, inert=True),
            "hypernode.gradient.evict.max-hypernodes": Argument("integer", 8, 0, inert=True),
        },
    ),
    "reservation": Entry("removed from Volcano: waiting jobs are protected by their age instead"),
}

SWITCHES = (
    *("jobOrder", "subJobOrder", "subJobReady", "subJobPipelined", "hierarchy", "jobReady", "jobPipelined", "jobValid"),
    *("taskOrder", "preemptable", "reclaimable", "preemptive", "unifiedEvictable", "victim", "victimQueueOrder"),
    *("queueOrder", "clusterOrder", "namespaceOrder", "predicate", "prePredicate", "bestNode", "nodeOrder"),
    *("targetJob", "reservedNodes", "jobEnqueued", "jobEnqueueable", "jobStarving", "overused", "allocatable"),
    *("hyperNodeOrder", "hyperNodeGradient"),
)
"""Callbacks that `enable...`, `enabled...` (Volcano mixes the two) or KAI's `disable...` may name."""

OFF_UNLESS_NAMED = ("hierarchy", "clusterOrder")
"""Every other switch that a file does not name is on (Volcano, pkg/scheduler/plugins/defaults.go)."""


def normalised(name: str) -> str:
    """Argument names match ignoring case and `-._`: `LeastRequestedWeight` is `leastrequested.weight`."""
    return name.lower().translate({ord(mark): None for mark in "-._"})


def argument(arguments: Mapping[str, Argument], name: str) -> Argument | None:
    """The entry for `name` in any spelling; the longest `...*` prefix where no full name fits."""
    wanted = normalised(name)
    prefixed = [known for known in arguments if known.endswith("*")]
    for known, what in arguments.items():
        if normalised(known) == wanted:
            return what
    for known in sorted(prefixed, key=len, reverse=True):
        if wanted.startswith(normalised(known[:-1])) and wanted != normalised(known[:-1]):
            return arguments[known]
    return None

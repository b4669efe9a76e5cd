"""A cluster as its watches tell it, and what we have under way in it: one `Snapshot` whenever it is asked for.

Texts come in from the watches; a snapshot reads again only those that changed, and pods whose group, Job or namespace
did. It equals what `load_snapshot` makes of the same objects, with our own binds and evictions assumed.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from solver_sched.cluster import decode, volumes, wire
from solver_sched.cluster.assumptions import SHOWN_SECONDS, Assumptions
from solver_sched.cluster.decode import DEFAULT_QUEUE, Reader
from solver_sched.cluster.dialects import BY_VERSION, alike, first_counts, rank
from solver_sched.cluster.kinds import KINDS, POD, Kind
from solver_sched.cluster.objects import Namespace, Pod, PodGroup, Queue
from solver_sched.cluster.run_times import medians
from solver_sched.cluster.states import Held, TaskState, task_state
from solver_sched.cluster.table import Table, in_order
from solver_sched.cluster.texts import Text, reads, trimmed
from solver_sched.snapshot import InputProblem, Snapshot

RUNS_KEPT = 101
"""Run times per class of which the median counts: the latest ones."""
CLASSES_KEPT = 10_000
"""Classes of run times; the one that is longest without a new one goes first."""
RENEWED = 10_000
"""Parts that a reader may have seen beyond twice what it saw when it was new, before another takes its place."""


class ClusterCache:
    """Safe to use from many threads. `scheduler_names`: whose pods are decided on."""

    def __init__(self, scheduler_names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.scheduler_names = tuple(scheduler_names)
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._changes = 0
        self._tables: dict[str, Table[Any]] = {kind.kind + _family(kind): Table(kind.kind) for kind in KINDS}
        self._pods: Table[Pod] = self._tables["Pod"]
        self._groups = [table for name, table in self._tables.items() if table.kind == "PodGroup"]
        self._queues = [table for name, table in self._tables.items() if table.kind == "Queue"]
        self._jobs = [table for name, table in self._tables.items() if table.kind == "Job"]
        self._alive: dict[Kind, float] = {}
        self._assumptions = Assumptions()
        self._readers_of: dict[str, set[str]] = defaultdict(set)
        """Whatever pods are read by ("group ns/name", "job ns/name") -> their keys."""
        self._read_by: dict[str, tuple[str, ...]] = {}
        self._queue_of: dict[str, str] = {}
        self._dialects: dict[str, str] = {}
        self._of_jobs: dict[tuple[str, str], decode.OfJob] = {}
        self._runs: dict[str, deque[int]] = {}
        self._ran: dict[str, str] = {}
        self._stale_shadows: set[str] = set()
        self._failed: dict[str, str] = {}
        self._last_word = ""
        self._merged: dict[str, tuple[Any, ...]] = {}
        self._reader = Reader({}, self._queue_of)
        self._reader_size = 0
        self._classes: Mapping[str, Any] = {}

    # What the watches tell

    def replace(self, kind: Kind, version: str, objects: Sequence[bytes | Raw]) -> None:
        """All objects of a kind; what is not among them is gone."""
        read = [trimmed(kind, raw) for raw in objects]
        with self._changed:
            table = self._tables[kind.kind + _family(kind)]
            renamed = table.version not in ("", version)
            if renamed:  # by an upgrade of the server: other versions are read otherwise
                table.dirty.update(table.texts)
            table.version = version
            there = {one.key for one in read}
            changed = [self._drop(kind, table, key) for key in list(table.texts) if key not in there]
            changed += [self._put(kind, table, one) for one in read]
            self._told(renamed or any(changed))

    def apply(self, kind: Kind, version: str, gone: bool, raw: bytes | Raw) -> None:
        """One object as it is now, or is no more."""
        one = trimmed(kind, raw)
        with self._changed:
            table = self._tables[kind.kind + _family(kind)]
            table.version = version
            self._told(self._drop(kind, table, one.key) if gone else self._put(kind, table, one))

    def alive(self, kind: Kind, at: float) -> None:
        """The server was heard of at `at`."""
        self._alive[kind] = at

    def _told(self, changed: bool) -> None:
        if changed:
            self._changes += 1
            self._changed.notify_all()

    def _put(self, kind: Kind, table: Table[Any], one: Text) -> bool:
        if kind.kind == "Pod":
            pod = one.pod
            status = (pod.status if pod is not None else None) or wire.PodStatus()
            if pod is not None:
                self._assumptions.seen(
                    one.key,
                    one.uid,
                    pod.spec.node_name or "",
                    status.nominated_node_name or "",
                    bool(pod.metadata.deletion_timestamp),
                )
            self._index(one.key, pod)
            if status.phase == "Failed" and pod is not None and pod.spec.scheduler_name in self.scheduler_names:
                group = next((token[6:] for token in self._read_by.get(one.key, ()) if token.startswith("group ")), "")
                self._failed[one.key] = group
            else:
                self._failed.pop(one.key, None)
            if one.told > self._last_word and pod is not None and pod.spec.scheduler_name in self.scheduler_names:
                self._last_word = one.told  # written in one format, in which the order is that of time
        return table.put(one)

    def _drop(self, kind: Kind, table: Table[Any], key: str) -> bool:
        if kind.kind == "Pod":
            self._assumptions.gone(key)
            self._index(key, None)
            self._ran.pop(key, None)
            self._failed.pop(key, None)
        return table.drop(key)

    def _index(self, key: str, pod: wire.Pod | None) -> None:
        now = reads(pod) if pod is not None else ()
        before = self._read_by.get(key, ())
        self._stale_shadows.update(token[7:] for token in (*before, *now) if token.startswith("shadow "))
        if now == before:
            return
        for token in before:
            keys = self._readers_of[token]
            keys.discard(key)
            if not keys:
                del self._readers_of[token]
        for token in now:
            self._readers_of[token].add(key)
        if now:
            self._read_by[key] = now
        else:
            self._read_by.pop(key, None)

    # What we have under way

    def assume(self, pod: Pod, node: str) -> None:
        """The pod is to be bound to `node`: its room is taken from now on."""
        with self._lock:
            found = self._assumptions.change(pod)
            found.node, found.held, found.until = node, Held.assumed, float("inf")
            self._pods.dirty.add(pod.key)

    def sent(self, pod: Pod) -> None:
        """Its bind is on the way."""
        with self._lock:
            found = self._assumptions.of(pod.key, pod.uid)
            if found is not None and found.held is Held.assumed:
                found.held = Held.sent

    def bound(self, pod: Pod, node: str) -> None:
        """The server has bound it; the watch will show it."""
        with self._lock:
            found = self._assumptions.of(pod.key, pod.uid)
            if found is not None and found.node == node:
                found.until = self._clock() + SHOWN_SECONDS

    def forget(self, pod: Pod) -> None:
        """It is not bound or evicted after all: it is where the server shows it."""
        with self._changed:
            self._assumptions.forget(pod)
            self._pods.dirty.add(pod.key)
            self._told(True)

    def evicting(self, pod: Pod) -> None:
        """Its eviction is to be asked for: it counts as terminating, or the next cycle would choose again."""
        with self._lock:
            found = self._assumptions.change(pod)
            found.held, found.until = Held.evicted, float("inf")
            self._pods.dirty.add(pod.key)

    def evicted(self, pod: Pod) -> None:
        """The server lets it go; the watch will show it."""
        with self._lock:
            found = self._assumptions.of(pod.key, pod.uid)
            if found is not None and found.held is Held.evicted:
                found.until = self._clock() + SHOWN_SECONDS

    def spared(self, pod: Pod, seconds: float) -> None:
        """The server refused to evict it: it stays, and is nobody's victim for so long."""
        with self._changed:
            self._assumptions.forget(pod)
            self._assumptions.change(pod).spared = self._clock() + seconds
            self._pods.dirty.add(pod.key)
            self._told(True)

    def nominate(self, pod: Pod, node: str | None) -> None:
        """Room on `node` is promised to it, or a promise is taken back."""
        with self._lock:
            self._assumptions.change(pod).nominated = node or ""
            self._pods.dirty.add(pod.key)

    # What there is

    def changes(self) -> int:
        """A number that grows whenever something changes that a cycle would look at."""
        with self._lock:
            return self._changes

    def wait_changed(self, since: int, seconds: float) -> bool:
        """Whether something has changed since `changes` was `since`; waits for it at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._changes != since, seconds)

    def wake(self) -> None:
        """As if something had changed."""
        with self._changed:
            self._told(True)

    def next_end(self) -> float:
        """Seconds until an assumption expires; infinity = none will."""
        with self._lock:
            now = self._clock()
            return max(0.0, self._assumptions.next_end(now, self._heard(now)) - now)

    def raw(self, kind: str, key: str) -> bytes | None:
        """The last text of a PodGroup ("namespace/name") or Queue (name), in the dialect that counts."""
        with self._lock:
            found = [(table.version, table.raws[key]) for table in self._of(kind) if key in table.raws]
            return bytes(min(found, key=lambda one: rank(one[0]))[1]) if found else None

    def served(self, kind: str, key: str) -> str:
        """The apiVersion of an object, "" if there is none."""
        with self._lock:
            return min((table.version for table in self._of(kind) if key in table.texts), key=rank, default="")

    def version(self, pod: Pod) -> str:
        """The revision of a pod as the watch showed it last, "" if it is not there."""
        with self._lock:
            return self._pods.versions.get(pod.key, "")

    def last_word(self) -> float:
        """When a scheduler last began to tell a pod of ours that it waits, in seconds since the epoch; -inf = never."""
        try:
            return wire.seconds(self._last_word) if self._last_word else -math.inf
        except ValueError:
            return -math.inf

    def failed(self) -> dict[str, int]:
        """Group -> its failed pods that still exist, those of other schedulers left out."""
        with self._lock:
            return Counter(self._failed.values())

    def counts(self) -> dict[str, int]:
        """Kind -> objects."""
        out: dict[str, int] = defaultdict(int)
        with self._lock:
            for table in self._tables.values():
                out[table.kind] += len(table.texts)
        return dict(out)

    def lag(self) -> dict[str, float]:
        """Kind -> seconds since the server was last heard of, in the API that has been silent longest."""
        now = time.monotonic()
        out: dict[str, float] = {}
        for kind, at in self._alive.copy().items():  # at once: other threads add to it
            out[kind.kind] = max(out.get(kind.kind, 0.0), now - at)
        return out

    def states(self) -> dict[str, int]:
        """State of a task -> pods of ours that the last snapshot has."""
        with self._lock:
            pods = self._pods.values.values()
            return Counter(self.state(pod) for pod in pods if pod.scheduler in self.scheduler_names)

    def state(self, pod: Pod) -> TaskState:
        """What the pod is doing."""
        with self._lock:
            found = self._assumptions.of(pod.key, pod.uid)
            return task_state(pod, found.held if found is not None else Held.nothing)

    # Snapshots

    def snapshot(self, now: int) -> Snapshot:
        """Everything as it is now; `now` in seconds since the epoch."""
        with self._lock:
            clock = self._clock()
            ended = self._assumptions.expired(clock, self._heard(clock))
            self._pods.dirty.update(key for key in ended if key in self._pods.texts)
            classes = self._values("PriorityClass", decode.read_priority_class)
            self._renew(classes)
            namespaces = self._namespaces()
            groups = self._read_groups()
            self._read_jobs()
            pods = self._read_pods()
            groups = self._settled(groups, pods)
            if any(one.scheduler for one in self._of_jobs.values()):
                groups = tuple(decode.placed_by(groups, self._of_jobs, self.scheduler_names))
            queues = self._read_queues()
            nodes = self._values("Node", self._reader.node)
            budgets = self._values("PodDisruptionBudget", lambda raw: decode.read_budget(raw, pods))
            quotas = self._values("ResourceQuota", decode.read_quota)
            claims = self._claims()
            limits = self._values("CSINode", volumes.read_attach_limits)
            problems = [
                one for table in self._tables.values() for one in (*table.problems.values(), *table.twice.values())
            ]
            problems += self._unknown_classes()
            return Snapshot(
                nodes=nodes,
                pods=pods,
                groups=groups,
                queues=queues,
                priority_classes=classes,
                budgets=budgets,
                quotas=quotas,
                claims=claims,
                attach_limits=tuple(limit for one in limits for limit in one.limits),
                namespaces=namespaces,
                now=now,
                scheduler_names=self.scheduler_names,
                run_times=medians({key: list(runs) for key, runs in self._runs.items()}),
                ignored={"finished pods": self._pods.left_out} if self._pods.left_out else {},
                problems=tuple(sorted(set(problems), key=lambda p: (p.source, p.object, p.field, p.message))),
            )

    def _heard(self, now: float) -> float:
        """When the server was last heard of about pods; now, where nobody says."""
        return min(now, self._alive.get(POD, now))

    def _of(self, kind: str) -> list[Table[Any]]:
        return [table for table in self._tables.values() if table.kind == kind]

    def _values(self, kind: str, read: Callable[[bytes], Any]) -> tuple[Any, ...]:
        (table,) = self._of(kind)
        table.refresh(read)
        return table.sorted()

    def _renew(self, classes: tuple[Any, ...]) -> None:
        """Another reader, where priority classes changed or the old one remembers too much that is gone."""
        known = {one.name: one for one in (*decode.SYSTEM_CLASSES, *classes)}
        if known == self._classes and self._reader.size <= 2 * self._reader_size + RENEWED:
            return
        self._classes = known
        self._reader = Reader(known, self._queue_of)
        self._reader.dialects, self._reader.jobs = self._dialects, self._of_jobs
        self._reader_size = 0
        for table in (self._pods, *self._groups, *self._queues, *self._of("Node")):
            table.dirty.update(table.texts)

    def _namespaces(self) -> tuple[Namespace, ...]:
        (table,) = self._of("Namespace")
        for key in table.refresh(decode.read_namespace):
            found = table.values.get(key)
            queue = found[1] if found is not None else ""
            if queue != self._queue_of.get(key, ""):
                if queue:
                    self._queue_of[key] = queue
                else:
                    self._queue_of.pop(key, None)
                shadows = f"shadow {key}/"
                self._stale_shadows.update(token[7:] for token in self._readers_of if token.startswith(shadows))
                for other in (self._pods, *self._groups):
                    other.dirty.update(one for one in other.texts if one.partition("/")[0] == key)
        return tuple(one for one, _ in table.sorted())

    def _read_groups(self) -> tuple[PodGroup, ...]:
        touched: set[str] = set()
        for table in self._groups:
            touched |= table.refresh(self._reading_group(table))
        for key in touched:
            found = self._preferred(key)
            dialect = found.dialect if found is not None else None
            if dialect != self._dialects.get(key):
                if dialect is None:
                    del self._dialects[key]
                else:
                    self._dialects[key] = dialect
                self._pods.dirty.update(self._readers_of.get(f"group {key}", ()))
        return self._all("groups", self._groups, bool(touched))

    def _read_jobs(self) -> None:
        for table in self._jobs:
            for key in table.refresh(decode.read_job):
                found = table.values.get(key)
                where, _, name = key.partition("/")
                before, after = self._of_jobs.get((where, name), decode.NO_JOB), found[1] if found else decode.NO_JOB
                if after == before:
                    continue
                if after == decode.NO_JOB:
                    del self._of_jobs[where, name]
                else:
                    self._of_jobs[where, name] = after
                self._pods.dirty.update(self._readers_of.get(f"job {key}", ()))
            table.problems.clear()  # a mistake in one is told where its pods are

    def _read_pods(self) -> tuple[Pod, ...]:
        for shadow in self._stale_shadows:  # made of what all its members say, so all are asked again
            self._reader.shadows.pop(shadow, None)
            self._pods.dirty.update(self._readers_of.get(f"shadow {shadow}", ()))
        self._stale_shadows.clear()
        now = self._clock()

        def read(raw: bytes) -> Pod | None:
            pod = self._reader.pod(raw)
            if self._reader.runs:
                self._ran_for(raw)
            if pod is None:
                return None
            found = self._assumptions.of(pod.key, pod.uid)
            return pod if found is None else found.over(pod, now)

        self._pods.refresh(read)
        self._reader_size = self._reader_size or self._reader.size
        return self._pods.sorted()

    def _ran_for(self, raw: bytes) -> None:
        """Keep how long a pod ran, once."""
        pod = msgspec.json.decode(raw, type=wire.Pod)
        key, uid = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}", pod.metadata.uid or ""
        for name, seconds in self._reader.runs.items():
            if self._ran.get(key) != uid:
                runs = self._runs.pop(name, None) or deque(maxlen=RUNS_KEPT)  # at the end: the last that is dropped
                runs.extend(seconds)
                self._runs[name] = runs
        self._ran[key] = uid
        self._reader.runs.clear()
        while len(self._runs) > CLASSES_KEPT:
            del self._runs[next(iter(self._runs))]

    def _settled(self, groups: tuple[PodGroup, ...], pods: tuple[Pod, ...]) -> tuple[PodGroup, ...]:
        """With groups that only pods imply, and those read again that depend on their members."""
        by_key = dict(self._reader.shadows)
        held = {group.key for group in groups if group.hold and BY_VERSION[group.dialect].settle is not None}
        if not by_key and not held:
            return groups
        members: dict[str, list[Pod]] = {key: [] for key in held}
        for pod in pods if held else ():
            if pod.group in members:
                members[pod.group].append(pod)
        for group in groups:
            settle = BY_VERSION[group.dialect].settle
            raw = self.raw("PodGroup", group.key)
            again = group.key in held and settle is not None and raw is not None
            by_key[group.key] = settle(raw, group, members[group.key]) if again and settle and raw else group
        return tuple(by_key[key] for key in sorted(by_key, key=in_order))

    def _read_queues(self) -> tuple[Queue, ...]:
        touched: set[str] = set()
        for table in self._queues:
            touched |= table.refresh(self._reading_queue(table))
        queues = self._all("queues", self._queues, bool(touched))
        unreadable = any(DEFAULT_QUEUE in table.problems for table in self._queues)
        if unreadable and not any(queue.name == DEFAULT_QUEUE for queue in queues):
            # absent, it is implied and has no limits; given with a mistake, its limits are not known
            queues = tuple(sorted((*queues, Queue(DEFAULT_QUEUE, state="Unreadable")), key=lambda queue: queue.name))
        return queues

    def _reading_queue(self, table: Table[Any]) -> Callable[[bytes], Queue]:
        return lambda raw: self._reader.queue(raw, table.version)

    def _reading_group(self, table: Table[Any]) -> Callable[[bytes], PodGroup]:
        return lambda raw: self._reader.group(raw, table.version)

    def _preferred(self, key: str) -> PodGroup | None:
        found = [table.values[key] for table in self._groups if key in table.values]
        return min(found, key=lambda group: rank(group.dialect), default=None)

    def _all(self, name: str, tables: Sequence[Table[Any]], changed: bool) -> tuple[Any, ...]:
        """The values of several tables by name, of each name the one that counts."""
        if changed or name not in self._merged:
            merged: dict[str, Any] = {}
            for table in tables:
                table.twice.clear()
                for key, value in table.values.items():
                    other = merged.setdefault(key, value)
                    if other is value:
                        continue
                    complaint = "" if alike(other, value) else "is given twice and differs: the first one is used"
                    if isinstance(value, PodGroup):
                        is_first, complaint = first_counts(other.dialect, value.dialect)
                        merged[key] = other if is_first else value
                    if complaint:
                        table.twice[key] = InputProblem("", f"{table.kind} {key}", "", complaint)
            self._merged[name] = tuple(merged[key] for key in sorted(merged, key=in_order))
        return self._merged[name]

    def _claims(self) -> tuple[Any, ...]:
        parts = {
            "PersistentVolumeClaim": volumes.read_claim,
            "PersistentVolume": volumes.read_volume,
            "StorageClass": volumes.read_class,
        }
        changed = False
        for kind, read in parts.items():
            (table,) = self._of(kind)
            changed |= bool(table.refresh(read))
        if changed or "claims" not in self._merged:
            claims, stock, classes = ((*self._of(kind)[0].values.values(),) for kind in parts)
            joined = volumes.join(claims, stock, classes)
            self._merged["claims"] = tuple(sorted(joined, key=lambda claim: (claim.namespace, claim.name)))
        return self._merged["claims"]

    def _unknown_classes(self) -> list[InputProblem]:
        named: dict[str, str] = {}
        for group in (one for table in self._groups for one in table.values.values()):
            name = group.priority_class
            if name and name not in self._classes and group.dialect in BY_VERSION and group.priority is not None:
                named[name] = min(group.key, named.get(name, group.key))
        return [
            InputProblem(
                "",
                f"PodGroup {key}",
                "spec.priorityClassName",
                f"PriorityClass {name} is not in the input: the default priority is assumed",
            )
            for name, key in named.items()
        ]


def _family(kind: Kind) -> str:
    """What tells apart the API families of a kind."""
    return f" {kind.versions[0]}" if kind.kind in ("PodGroup", "Queue", "Job") else ""

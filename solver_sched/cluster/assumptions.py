"""What we have done to pods and the server does not show yet: assume, confirm, expire.

A bind is true from the moment it is decided, or the next cycle would give its room away; it is undone when it fails,
and forgotten when the watch shows what became of it. The same holds for evictions, promises and refusals.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from solver_sched.cluster.objects import Pod
from solver_sched.cluster.states import Held

SHOWN_SECONDS = 60.0
"""How long a watch that is heard of may take to show what the server has confirmed, before the pod is believed as the
watch has it. While the watch is silent nothing expires: its room would be given away a second time.
"""

_UNSET = "\0"


class Assumed(Struct):
    """What is held to be true of the pod `uid`, beyond what the server shows.

    `node`: where it is bound, "" if nowhere. `nominated`: the promise made, "" = taken back. `until`: the whole
    expires once the watch has been heard of so late, on the clock of the cache. `spared`: until when nobody may evict
    it.
    """

    uid: str
    node: str = ""
    held: Held = Held.nothing
    nominated: str = _UNSET
    until: float = float("inf")
    spared: float = 0.0

    def over(self, pod: Pod, now: float) -> Pod:
        """`pod` with all this true."""
        if self.node and pod.node is None:
            # a bind on its way cannot be called back, so the pod is nobody's victim yet
            pod = replace(pod, node=self.node, nominated=None, preemptable=False)
        if self.held is Held.evicted:
            pod = replace(pod, terminating=True)
        if self.nominated != _UNSET and pod.node is None:
            pod = replace(pod, nominated=self.nominated or None)
        if self.spared > now:
            pod = replace(pod, preemptable=False)
        return pod

    def ends(self, now: float, heard: float) -> float:
        """When what it says changes next; infinity = not before the watch, last heard of at `heard`, says more."""
        until = self.until if self.until > now or self.until <= heard else float("inf")
        return min(until, self.spared if self.spared > now else float("inf"))


class Assumptions:
    """By pod key. Not safe for threads: the cache locks."""

    def __init__(self) -> None:
        self._of: dict[str, Assumed] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, key: str, uid: str) -> Assumed | None:
        """What is assumed of this very pod; a successor of the same name has another uid."""
        found = self._of.get(key)
        return found if found is not None and found.uid == uid else None

    def change(self, pod: Pod) -> Assumed:
        """What is assumed of the pod, to be changed by the caller."""
        found = self.of(pod.key, pod.uid)
        if found is None:
            found = self._of[pod.key] = Assumed(pod.uid)
        return found

    def seen(self, key: str, uid: str, node: str, nominated: str, terminating: bool) -> None:
        """The server shows the pod like this: what it confirms or contradicts is not assumed any longer."""
        found = self._of.get(key)
        if found is None:
            return
        if found.uid != uid:
            del self._of[key]
            return
        if node:
            found.node = ""
            found.nominated = _UNSET
            if found.held in (Held.assumed, Held.sent):
                found.held = Held.nothing
        if terminating and found.held is Held.evicted:
            found.held = Held.nothing
        if found.nominated == nominated:
            found.nominated = _UNSET
        self._tidy(key)

    def gone(self, key: str) -> None:
        """The pod does not exist any longer."""
        self._of.pop(key, None)

    def forget(self, pod: Pod) -> None:
        """The bind or eviction failed: the pod is where the server shows it."""
        found = self.of(pod.key, pod.uid)
        if found is not None:
            found.node, found.held, found.until = "", Held.nothing, float("inf")
            self._tidy(pod.key)

    def expired(self, now: float, heard: float) -> Iterator[str]:
        """Keys of pods of which something is not true any longer; it is dropped. `heard`: when the watch was, last."""
        for key, found in list(self._of.items()):
            if found.until <= heard:
                del self._of[key]
                yield key
            elif found.spared and found.spared <= now:
                found.spared = 0.0
                self._tidy(key)
                yield key

    def next_end(self, now: float, heard: float) -> float:
        """When `expired` has something to say next; infinity = never."""
        return min((found.ends(now, heard) for found in self._of.values()), default=float("inf"))

    def _tidy(self, key: str) -> None:
        found = self._of[key]
        if not found.node and found.held is Held.nothing and found.nominated == _UNSET and not found.spared:
            del self._of[key]

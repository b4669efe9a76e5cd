"""How long pods are expected to run, and when running ones end (formulation.md 10). A pure function of the snapshot."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from solver_sched.cluster.objects import Pod
from solver_sched.cluster.run_times import RUN_TIME, run_class, run_time
from solver_sched.problem.arrays import Ints
from solver_sched.snapshot import Snapshot

NEVER = 2**62
"""The end of what nobody knows the run time of."""
ENOUGH = 3
"""Succeeded pods of a class whose median counts; one alone may have been a test run."""
GRACE = 30
"""Seconds that a pod still holds its room once it is to end (Kubernetes' default terminationGracePeriodSeconds)."""


class RunTimes:
    """Expected run times of the pods of one snapshot, in seconds."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now
        told = (group for group in snapshot.groups if group.annotations)
        said = {group.key: run_time(group.annotations.get(RUN_TIME)) for group in told}
        self._groups = {key: seconds for key, seconds in said.items() if seconds}
        self._classes = {one.key: one.median for one in snapshot.run_times if one.runs >= ENOUGH}

    def known(self, pods: Iterable[Pod]) -> bool:
        """Whether anything can be known of any of them: where not, there is no need to ask for each."""
        said = bool(self._groups or self._classes)
        return said or any(pod.deadline or pod.run_time or pod.terminating for pod in pods)

    def of(self, pod: Pod) -> int:
        """The expected run time; NEVER where it is not known."""
        said = [seconds for seconds in (pod.deadline, self._said(pod)) if seconds]
        return min(said) if said else self._median(pod)

    def end(self, pod: Pod) -> int:
        """When a pod that has a node ends; NEVER where that is not known. One that has not started starts now."""
        if pod.terminating:
            return self.now + GRACE
        started = pod.started or self.now
        expected = self._said(pod) or (0 if pod.deadline else self._median(pod))
        out = NEVER
        if expected and expected < NEVER:
            # What has outrun its estimate has shown it to be too short (Tsafrir et al., IEEE TPDS 18(6), 2007, correct
            # predictions in growing steps too).
            while started + expected <= self.now:
                expected *= 2
            out = started + expected
        if pod.deadline:
            due = started + pod.deadline
            out = min(out, due if due > self.now else self.now + GRACE)
        return min(out, NEVER)

    def ends(self, stays: Ints, medians: Ints) -> Ints:
        """(P,) `end` of many pods. `stays` (P, 4): when it started, the run time that is said, its
        deadline, whether it is terminating; 0 = none. `medians` (P,): of the class, NEVER = not known.
        """
        begun, said, deadline, terminating = stays.T
        started = np.where(begun > 0, begun, self.now)
        expected = np.where(said > 0, said, np.where(deadline > 0, 0, medians))
        known = (expected > 0) & (expected < NEVER)
        expected = np.where(known, expected, 1)
        while (late := known & (started + expected <= self.now)).any():
            expected = np.where(late, 2 * expected, expected)
        out = np.where(known, np.minimum(started + expected, NEVER), NEVER)
        due = np.where(started + deadline > self.now, started + deadline, self.now + GRACE)
        out = np.where(deadline > 0, np.minimum(out, due), out)
        return np.where(terminating > 0, self.now + GRACE, out)

    def median(self, name: str) -> int:
        """Of a class of pods; NEVER where it is not known."""
        return self._classes.get(name, NEVER)

    def _said(self, pod: Pod) -> int:
        return pod.run_time or (self._groups.get(pod.group, 0) if pod.group is not None and self._groups else 0)

    def _median(self, pod: Pod) -> int:
        if not self._classes:
            return NEVER
        return self.median(class_of(pod))


def class_of(pod: Pod) -> str:
    return run_class(pod.namespace, pod.owner, pod.name, pod.role)

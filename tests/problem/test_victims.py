"""Who may be asked to go at all."""

from __future__ import annotations

import pytest

from solver_sched.actions.enqueue import posed
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup
from solver_sched.policy import load_policy
from solver_sched.snapshot import Snapshot

STARTED = 1_000_000
ONE_CPU = Needs(request=(("cpu", 1000), ("pods", 1)))


def rest_of_a_gang(now: int) -> Snapshot:
    """One pod of a gang of two runs since STARTED, the other is lost."""
    pod = Pod("ns", "a-0", ONE_CPU, scheduler="solver-sched", group="ns/a", node="n1", phase="Running", started=STARTED)
    group = PodGroup("ns", "a", "scheduling.volcano.sh/v1beta1", 2, created=STARTED, phase="Running")
    return Snapshot(nodes=(Node("n1", {"cpu": 4000, "pods": 110}),), pods=(pod,), groups=(group,), now=now)


@pytest.mark.parametrize("grace", [5, 60, 600])
def test_a_broken_gang_keeps_its_rest_for_the_grace_period_of_the_policy(grace: int) -> None:
    policy = load_policy(load_policy("preempting").as_dict() | {"solver": {"staleGracePeriod": grace}})
    for seconds, stale in ((grace - 1, False), (grace, True)):
        problem, _, _ = posed(rest_of_a_gang(STARTED + seconds), policy)
        assert (problem.victims.broken.tolist(), problem.victims.stale.tolist()) == ([True], [stale])

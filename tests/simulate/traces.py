"""Traces of a few nodes and jobs: by hand for stories, random ones for properties."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from solver_sched.cluster.objects import Needs, Node, Queue
from solver_sched.simulate.trace import Happening, Job, NodeEvent, Pods, Trace


def needs(**request: int) -> Needs:
    return Needs(tuple(sorted({"pods": 1, **request}.items())))


ONE = needs(cpu=1000)


def node(name: str, cpu: int = 4, **other: int) -> Node:
    return Node(name, {"cpu": 1000 * cpu, "pods": 110, **other}, labels={"kubernetes.io/hostname": name})


def job(name: str, pods: int = 1, runs: int = 100, at: int = 0, least: int | None = None, **other: object) -> Job:
    what = {"needs": ONE, **other}
    asked = what.pop("needs")
    assert isinstance(asked, Needs)
    return Job("ns", name, (Pods(pods, asked),), at, runs, pods if least is None else least, **what)  # type: ignore[arg-type]


def trace(
    *jobs: Job, nodes: tuple[Node, ...] | None = None, events: tuple[NodeEvent, ...] = (), **weights: int
) -> Trace:
    queues = tuple(Queue(name, weight) for name, weight in sorted((weights or {"default": 1}).items()))
    some = (node("n1"), node("n2")) if nodes is None else nodes
    return Trace("by hand", some, queues, tuple(sorted(jobs, key=lambda one: one.submitted)), events)


SHAPES = [ONE, needs(cpu=2000), needs(cpu=3000, memory=2**30), needs(cpu=1000, gpu=1)]
GIVEN: Mapping[str, int] = {"memory": 4 * 2**30}


HAPPENINGS: tuple[Happening, ...] = ("drain", "loss", "return")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """2 to 4 nodes, up to 8 jobs in an hour, some larger than the cluster; failures, deadlines, drains, losses."""
    nodes = tuple(
        node(f"n{n}", draw(st.integers(2, 6)), **GIVEN, gpu=draw(st.integers(0, 2)))
        for n in range(draw(st.integers(2, 4)))
    )
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        pods, runs = draw(st.integers(1, 5)), draw(st.integers(0, 1500))
        jobs.append(
            job(
                f"job-{number}",
                pods,
                runs,
                draw(st.integers(0, 3600)),
                draw(st.integers(0, pods)),
                needs=draw(st.sampled_from(SHAPES)),
                queue=draw(st.sampled_from("ab")),
                priority=draw(st.sampled_from((0, 0, 100))),
                estimate=draw(st.sampled_from((0, runs, 2 * runs))),
                deadline=draw(st.sampled_from((0, 0, 0, 600))),
                failures=tuple(draw(st.lists(st.integers(0, 1500), max_size=2))),
                fails=draw(st.sampled_from((False, False, False, True))),
            )
        )
    events = [
        NodeEvent(draw(st.integers(0, 4000)), draw(st.sampled_from(nodes)).name, draw(st.sampled_from(HAPPENINGS)))
        for _ in range(draw(st.integers(0, 4)))
    ]
    return trace(*jobs, nodes=nodes, events=tuple(sorted(events, key=lambda event: event.at)), a=1, b=2)

"""Jobs that would stand only beside, or evened out by, pods that make room for them (formulation.md 8).

The rules of affinity and spread count running pods as staying. So the predicates are asked again of a plan, without
the pods that go. A job that they then refuse is held for this cycle: else its supporters would go for nothing, come
back, and be made to go again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver_sched.cluster.objects import Pod
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import Index, Plan, Problem, Require, SpreadRule
from solver_sched.problem.census import Census
from solver_sched.problem.domain_rules import broken
from solver_sched.problem.inter_pod import CODE as AFFINITY
from solver_sched.problem.placement import place
from solver_sched.problem.spread import CODE as SPREAD

SENTENCE = "what it would stand beside, or be spread over, would have to make room for it"


def leaning(census: Census, problem: Problem, index: Index, rules: Rules, plan: Plan) -> dict[str, tuple[str, str]]:
    """Group keys of such jobs, with the code of the predicate that they fail, and a sentence. Pods that move have no
    such rules.
    """
    if not len(plan.victim):
        return {}
    pods = {pod.key: pod for pod in census.snapshot.pods if pod.node is None}
    placed: list[Pod] = []
    row: list[int] = []
    for i, (t, count) in enumerate(zip(plan.pod_set.tolist(), plan.count.tolist(), strict=True)):
        one = pods[index.set_pods[t][0]]
        placed += [one] * count  # how many there are decides which rules can bind
        row += [i] * count
    if not any(pod.needs.affinity or any(spread.hard for spread in pod.needs.spread) for pod in placed):
        return {}
    going = zip(plan.victim.tolist(), plan.out.tolist(), strict=True)
    gone = {key for v, count in going for key in index.victim_pods[v][:count]}
    staying = [pod for pod in census.on_node if pod.key not in gone]
    found = place(census.snapshot.nodes, placed, staying, census.snapshot, (), census.table)
    judged = replace(problem, masks=found.masks)
    masks = {code: mask for plugin in rules.plugins for code, mask in plugin.forbidden(judged).items()}
    out: dict[str, str] = {}
    on_nodes = np.zeros((len(found.representative), len(problem.node_free)), np.int64)
    rows = np.array(row, np.int64)
    nodes, jobs = plan.node[rows], problem.set_job[plan.pod_set[rows]]
    for s, n, j in zip(found.shape_of.tolist(), nodes.tolist(), jobs.tolist(), strict=True):
        kind = int(found.node_kind[n])
        code = next((code for code in (AFFINITY, SPREAD) if s < 0 or (code in masks and masks[code][s, kind])), None)
        if code is not None:
            out[index.jobs[j]] = code
        else:
            on_nodes[s, n] += 1
    for rule in found.rules:
        on = any(plugin.applies(rule) for plugin in rules.plugins)
        if on and isinstance(rule, Require | SpreadRule) and any(broken([rule], on_nodes)):
            wrong = np.unique(jobs[np.isin(found.shape_of, rule.shapes)])
            out |= {index.jobs[j]: rule.source.partition(":")[0] for j in wrong.tolist()}
    return {key: (code, SENTENCE) for key, code in out.items()}

"""How many pods of one shape the rules between pods allow at once, in closed form where there is one.

Each formula is exact for its rule, given what stands already: it takes the best final placement, not the best order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import AtMostOne, Bools, DomainRule, Exclude, Ints, Require, SpreadRule
from solver_sched.problem.domain_rules import blocked, touched

Coupling = dict[int, list[DomainRule]]


def coupling(rules: Rules) -> Coupling:
    """Shape -> the rules that may refuse it a node."""
    out: Coupling = {}
    for rule in rules.domain_rules:
        for s in (rule.shapes if isinstance(rule, Require) else touched(rule)).tolist():
            out.setdefault(s, []).append(rule)
    return out


def countable(rules: Sequence[DomainRule], shape: int) -> bool:
    """Whether `most` is exact for the rules that may refuse the shape a node.

    Exclusions and one pod per node go with anything; of rules that couple several nodes there may be one.
    """
    wide = [rule for rule in rules if not isinstance(rule, Exclude)]
    wide = [rule for rule in wide if not (isinstance(rule, AtMostOne) and rule.per_node)]
    if len(wide) == 1 and isinstance(wide[0], SpreadRule):
        return shape in wide[0].shapes and shape in wide[0].counted
    return len(wide) <= 1


def most(rules: Sequence[DomainRule], fits: Ints, standing: Ints, shape: int) -> int:
    """Pods of the shape at once. `fits` (N,): pods each node holds without the rules; `standing` (S, N): pods there."""
    group: AtMostOne | Require | SpreadRule | None = None
    for rule in rules:
        match rule:
            case Exclude():
                fits = np.where(blocked([rule], standing, shape), 0, fits)
            case AtMostOne():
                fits = np.where(blocked([rule], standing, shape), 0, fits)
                if rule.per_node:
                    fits = np.where(rule.domain >= 0, np.minimum(fits, 1), fits)
                else:
                    group = rule
            case Require() | SpreadRule():
                group = rule
    match group:
        case None:
            return int(fits.sum())
        case AtMostOne():
            # the nodes without the key are bound by nothing
            return int((_per_domain(group.domain, fits) > 0).sum() + fits[group.domain < 0].sum())
        case Require():
            return _gathered(group, fits, standing, shape)
        case SpreadRule():
            return _spread(group, fits, standing)


def _gathered(rule: Require, fits: Ints, standing: Ints, shape: int) -> int:
    """All nodes near a target; or, where none is yet, the one domain with most room."""
    helpers = standing[np.setdiff1d(rule.targets, rule.shapes)].sum(axis=0)
    near = rule.present | _in_domain_of(rule.domain, helpers)
    opened = _in_domain_of(rule.domain, standing[rule.shapes].sum(axis=0)) & ~near
    if rule.seed and shape in rule.targets and not opened.any():
        near &= rule.domain >= 0
        elsewhere = np.where(near, 0, fits)
        return int(fits[near].sum() + _per_domain(rule.domain, elsewhere).max(initial=0))
    return int(fits[~blocked([rule], standing, shape)].sum())


def _in_domain_of(domain: Ints, pods: Ints) -> Bools:
    """(N,) nodes in a domain where some of the `pods` (N,) are."""
    there = np.append(_per_domain(domain, pods) > 0, False)  # domain -1 reads the last
    found: Bools = there[domain]
    return found


def _spread(rule: SpreadRule, fits: Ints, standing: Ints) -> int:
    """Every domain up to the skew above the highest level that all of them reach."""
    domains = len(rule.existing)
    here = rule.existing + _per_domain(rule.domain, standing[rule.counted].sum(axis=0), domains)
    room = _per_domain(rule.domain, fits, domains)
    floor = int((here + room).min(initial=2**31)) if domains >= rule.min_domains else 0
    return int(np.clip(floor + rule.max_skew - here, 0, room).sum())


def _per_domain(domain: Ints, pods: Ints, domains: int | None = None) -> Ints:
    """(domains,) sum of `pods` (N,) over the nodes of each domain; nodes outside all are left out."""
    size = int(domain.max(initial=-1)) + 1 if domains is None else domains
    out = np.zeros(size, np.int64)
    inside = domain >= 0
    np.add.at(out, domain[inside], pods[inside])
    return out

"""Rules among pending pods, judged on where pods stand in the end, whatever the order in which they got there.

Two pods that require each other may so start together, which scheduling one pod at a time cannot give them. For all
else an order exists in which kube-scheduler would have placed the same pods: in a spread the lowest domain first, in an
affinity group the pod that opens its domain first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from solver_sched.problem.arrays import AtMostOne, Bools, DomainRule, Exclude, Ints, Require, SpreadRule


def touched(rule: DomainRule) -> Ints:
    """Shapes whose placement the rule reads or restricts, ascending."""
    match rule:
        case AtMostOne():
            return np.unique(rule.shapes)
        case Exclude():
            return np.union1d(rule.left, rule.right)
        case Require():
            return np.union1d(rule.shapes, rule.targets)
        case SpreadRule():
            return np.union1d(rule.shapes, rule.counted)


def blocked(rules: Iterable[DomainRule], on_nodes: Ints, shape: int) -> Bools:
    """Nodes where one more pod of `shape` would break a rule, (N,).

    `on_nodes` (S, N): pods placed so far, which break none; pods that run already are inside the rules.
    """
    out = np.zeros(on_nodes.shape[1], np.bool_)
    for rule in rules:
        match rule:
            case AtMostOne() if shape in rule.shapes:
                out |= (rule.domain >= 0) & (_per_domain(rule.domain, on_nodes[rule.shapes])[rule.domain] > 0)
            case Exclude():
                for mine, theirs in ((rule.left, rule.right), (rule.right, rule.left)):
                    if shape in mine:
                        out |= (rule.domain >= 0) & (_per_domain(rule.domain, on_nodes[theirs])[rule.domain] > 0)
            case Require() if shape in rule.shapes:
                out |= ~_reachable(rule, on_nodes, shape)
            case SpreadRule() if shape in rule.shapes or shape in rule.counted:
                out |= _too_skewed(rule, on_nodes, shape)
            case _:
                pass
    return out


def broken(rules: Iterable[DomainRule], on_nodes: Ints) -> Iterator[tuple[DomainRule, str]]:
    """Rules that the placement `on_nodes` (S, N) breaks, each domain with its numbers."""
    for rule in rules:
        match rule:
            case AtMostOne():
                pods = _inside(rule.domain, on_nodes[rule.shapes])
                for d in np.flatnonzero(pods > 1).tolist():
                    yield rule, f"{rule.source}: {pods[d]} pods in {_named(rule.domain, d)}, at most 1 allowed"
            case Exclude():
                left, right = (_inside(rule.domain, on_nodes[side]) for side in (rule.left, rule.right))
                for d in np.flatnonzero((left > 0) & (right > 0)).tolist():
                    pair = f"{left[d]} and {right[d]} pods that exclude each other"
                    yield rule, f"{rule.source}: {pair} in {_named(rule.domain, d)}"
            case Require():
                yield from _unmet(rule, on_nodes)
            case SpreadRule():
                yield from _uneven(rule, on_nodes)


def class_columns(rules: Iterable[DomainRule], n_nodes: int) -> Ints:
    """(N, k) columns that a node class must not mix, so that every domain of every rule is made of whole classes.

    A rule of one pod per node needs none: every node is a domain of its own, whatever class it is in.
    """
    columns: dict[bytes, Ints] = {}
    for rule in rules:
        if isinstance(rule, AtMostOne) and rule.per_node:
            continue
        columns[rule.domain.tobytes()] = rule.domain
    return np.stack(list(columns.values()), axis=1) if columns else np.zeros((n_nodes, 0), np.int64)


def _per_domain(domain: Ints, pods: Ints) -> Ints:
    """(domains + 1,) pods of the rows (_, N) in each domain; index -1 reads 0, the nodes outside."""
    size = int(domain.max(initial=-1)) + 2
    count = np.zeros(size, np.int64)
    np.add.at(count, domain, pods.sum(axis=0))
    count[-1] = 0
    return count


def _reachable(rule: Require, on_nodes: Ints, shape: int) -> Bools:
    """(N,) nodes where a pod of `shape`, one of `rule.shapes`, finds its target or may open the one seed domain."""
    helpers = np.setdiff1d(rule.targets, rule.shapes)
    supported = rule.present | (_per_domain(rule.domain, on_nodes[helpers])[rule.domain] > 0)
    if rule.seed:
        used = _per_domain(rule.domain, on_nodes[rule.shapes])[rule.domain] > 0
        opened = used & ~supported
        # The seed domain is kept by a pod that matches its own term; without one nothing may be opened.
        supported |= opened if opened.any() else np.full(len(opened), shape in rule.targets)
    return supported & (rule.domain >= 0)


def _too_skewed(rule: SpreadRule, on_nodes: Ints, shape: int) -> Bools:
    """(N,) nodes where one more pod of `shape` would leave a constrained domain above the skew."""
    receives = shape in rule.shapes
    out = rule.domain < 0 if receives else np.zeros(len(rule.domain), np.bool_)
    domains = len(rule.existing)
    if not domains:
        return out
    here = rule.existing + _per_domain(rule.domain, on_nodes[rule.counted])[:domains]
    users = _per_domain(rule.domain, on_nodes[rule.shapes])[:domains]
    lowest = _others_lowest(here, domains < rule.min_domains)
    after = here + (shape in rule.counted)
    # The fewest after the step: of the other domains, or of this one with the newcomer counted.
    fewest = np.zeros_like(here) if domains < rule.min_domains else np.minimum(lowest, after)
    over = (after - fewest > rule.max_skew) & ((users > 0) | receives)
    return out | ((rule.domain >= 0) & over[rule.domain])


def _others_lowest(here: Ints, counts_as_zero: bool) -> Ints:
    """(D,) the lowest of all other domains; its own value where there is no other."""
    if counts_as_zero or len(here) == 1:
        return np.zeros_like(here) if counts_as_zero else here + 1
    order = np.argsort(here, kind="stable")
    out = np.full(len(here), here[order[0]], np.int64)
    out[order[0]] = here[order[1]]
    return out


def _unmet(rule: Require, on_nodes: Ints) -> Iterator[tuple[DomainRule, str]]:
    outside = int(on_nodes[rule.shapes][:, rule.domain < 0].sum())
    if outside:
        yield rule, f"{rule.source}: {outside} pods on nodes without the topology key"
    pods = _inside(rule.domain, on_nodes[rule.shapes])
    helpers = _inside(rule.domain, on_nodes[np.setdiff1d(rule.targets, rule.shapes)])
    openers = _inside(rule.domain, on_nodes[np.intersect1d(rule.targets, rule.shapes)])
    running = _inside(rule.domain, rule.present[None, :].astype(np.int64))
    opened = []
    for d in np.flatnonzero((pods > 0) & (helpers == 0) & (running == 0)).tolist():
        where = f"{pods[d]} pods in {_named(rule.domain, d)}"
        if not rule.seed:
            yield rule, f"{rule.source}: {where} without the pod they require"
        elif not openers[d]:
            yield rule, f"{rule.source}: {where}, none matches their own term"
        else:
            opened.append(d)
    if len(opened) > 1:
        yield rule, f"{rule.source}: {len(opened)} domains opened ({', '.join(map(str, opened))}), 1 allowed"


def _uneven(rule: SpreadRule, on_nodes: Ints) -> Iterator[tuple[DomainRule, str]]:
    outside = int(on_nodes[rule.shapes][:, rule.domain < 0].sum())
    if outside:
        yield rule, f"{rule.source}: {outside} pods on nodes that are not eligible"
    count = rule.existing + _inside(rule.domain, on_nodes[rule.counted])
    fewest = 0 if len(count) < rule.min_domains else int(count.min(initial=np.iinfo(np.int64).max))
    receives = _inside(rule.domain, on_nodes[rule.shapes]) > 0
    for d in np.flatnonzero(receives & (count - fewest > rule.max_skew)).tolist():
        skew = f"skew {count[d] - fewest} of at most {rule.max_skew}"
        yield rule, f"{rule.source}: {count[d]} pods in domain {d}, {fewest} in the emptiest: {skew}"


def _inside(domain: Ints, pods: Ints) -> Ints:
    """(domains,) sum of the rows (_, N) over the nodes of each domain."""
    inside = domain >= 0
    # Sums of pods are far below 2^53, so the floats of bincount are exact.
    weights = pods.sum(axis=0)[inside]
    return np.bincount(domain[inside], weights, int(domain.max(initial=-1)) + 1).astype(np.int64)


def _named(domain: Ints, d: int) -> str:
    """A domain for a message, its node rows cut short."""
    nodes = np.flatnonzero(domain == d)
    shown = ", ".join(str(row) for row in nodes[:3])
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"domain {d} ({'node' if len(nodes) == 1 else 'nodes'} {shown}{more})"

"""Inter-pod affinity and anti-affinity: what running pods do to nodes, and what pending pods demand of each other.

InterPodAffinity of kube-scheduler: anti-affinity works both ways (a running pod's term keeps newcomers out as well),
affinity asks, for every term, for a pod that matches all terms of the newcomer. Pods that are being deleted count
until they are gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solver_sched.cluster.objects import Needs, Pod, PodTerm
from solver_sched.problem.arrays import AtMostOne, Bools, DomainRule, Exclude, Ints, Require
from solver_sched.problem.matching import Matcher, Matching
from solver_sched.problem.node_table import NodeTable
from solver_sched.snapshot import Snapshot

CODE = "InterPodAffinity"
PLUGIN = "predicates"
REQUIRED_TERM_WEIGHT = 1
"""Score of a node for each running pod there that requires the newcomer near it (hardPodAffinityWeight)."""


class Term(NamedTuple):
    """A pod affinity term: which pods (row of `Matching`), in which kind of domain, how strongly (0 = required)."""

    matcher: int
    key: str
    weight: int


class PodRules(NamedTuple):
    """All that inter-pod rules see of a pending pod: its own live terms, and the live terms of others that match it."""

    affinity: tuple[Term, ...] = ()
    anti: tuple[Term, ...] = ()
    preferred: tuple[Term, ...] = ()
    matched: tuple[int, ...] = ()


NO_RULES = PodRules()


class InterPod:
    """Terms of pending and running pods, matched against each other. `others`: further matchers that are live."""

    def __init__(
        self,
        table: NodeTable,
        pending: Sequence[Pod],
        resident: Sequence[Pod],
        snapshot: Snapshot,
        others: Iterable[Matcher] = (),
    ) -> None:
        self.table = table
        asking = _distinct(pod.needs for pod in pending)
        running: dict[int, tuple[Needs, list[int]]] = {}
        coupled = any(_couples(needs) for needs in {id(pod.needs): pod.needs for pod in resident}.values())
        for pod in resident if coupled else ():
            needs = pod.needs
            if _couples(needs):
                assert pod.node is not None
                running.setdefault(id(needs), (needs, []))[1].append(table.rows[pod.node])
        others = tuple(others)
        own = [term for needs in asking for term in _terms(needs)]
        theirs = [term for needs, _ in running.values() for term in _terms(needs)]
        self.matching = Matching([*others, *(Matcher.of(term) for term in (*own, *theirs))], snapshot.namespaces)
        number = self.matching.number
        looked_for = {number[Matcher.of(term)] for term in own} | {number[matcher] for matcher in others}

        self._nodes_matching: dict[int, list[int]] = defaultdict(list)
        self._nodes_of_set: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._leaving: dict[int, list[int]] = defaultdict(list)
        if looked_for:
            for pod in resident:
                matched = self.matching.matched(pod)
                if matched:
                    assert pod.node is not None
                    self._nodes_of_set[matched].append(table.rows[pod.node])
                    if pod.terminating:
                        for matcher in matched:
                            self._leaving[matcher].append(table.rows[pod.node])
            for matched, rows in self._nodes_of_set.items():
                for matcher in looked_for.intersection(matched):
                    self._nodes_matching[matcher] += rows

        self._repelling: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._attracting: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
        for needs, rows in running.values():
            for term in needs.anti_affinity:
                self._repelling[number[Matcher.of(term)]][term.topology_key] += rows
            for weight, entry in _wishes(needs, REQUIRED_TERM_WEIGHT):
                self._attracting[number[Matcher.of(entry)]][entry.topology_key, weight] += rows
        self._contested = self._contested_by(pending, asking)
        required = {number[Matcher.of(term)] for needs in asking for term in needs.affinity}
        spread = {number[matcher] for matcher in others}
        self._live = self._contested | required | spread | set(self._repelling) | set(self._attracting)
        self._own: dict[int, PodRules] = {}
        self._memo: dict[tuple[int, tuple[int, ...]], PodRules] = {}

    def rules_of(self, pod: Pod) -> PodRules:
        """The pod as inter-pod rules see it; equal values mean that no such rule tells two pods apart."""
        if not self.matching.matchers:
            return NO_RULES
        needs, matched = pod.needs, self.matching.matched(pod)
        found = self._memo.get((id(needs), matched))
        if found is None:
            live = tuple(matcher for matcher in matched if matcher in self._live)
            found = self._memo[id(needs), matched] = self._own_terms(needs)._replace(matched=live)
        return found

    def nodes_matching(self, matcher: int) -> list[int]:
        """Node row of every running pod that the matcher picks, one entry per pod."""
        return self._nodes_matching.get(matcher, [])

    def staying(self, matcher: Matcher) -> Ints:
        """(N,) running pods that the matcher picks and that are not being deleted, per node."""
        number, size = self.matching.number[matcher], len(self.table)
        counts = [np.bincount(rows.get(number, []), minlength=size) for rows in (self._nodes_matching, self._leaving)]
        return (counts[0] - counts[1]).astype(np.int64)

    def repelled(self, rules: PodRules) -> Bools:
        """Nodes that anti-affinity of or against running pods closes to such a pod, (N,)."""
        out = np.zeros(len(self.table), np.bool_)
        for term in rules.anti:
            out |= self.table.in_domains_of(term.key, self.nodes_matching(term.matcher))
        for matcher in rules.matched:
            for key, rows in self._repelling.get(matcher, {}).items():
                out |= self.table.in_domains_of(key, rows)
        return out

    def attraction(self, rules: PodRules) -> Ints:
        """Summed weights of preferred terms that running pods satisfy or hold towards such a pod, (N,)."""
        out = np.zeros(len(self.table), np.int64)
        for term in rules.preferred:
            out += term.weight * self.table.pods_in_domain(term.key, self.nodes_matching(term.matcher))
        for matcher in rules.matched:
            for (key, weight), rows in self._attracting.get(matcher, {}).items():
                out += weight * self.table.pods_in_domain(key, rows)
        return out

    def anti_affinity(self, shapes: Sequence[PodRules], pods: Ints) -> Iterator[DomainRule]:
        """Rules between pending pods; `pods` (S,) counts them per shape."""
        owners: dict[tuple[int, str], list[int]] = defaultdict(list)
        for s, rules in enumerate(shapes):
            for term in rules.anti:
                owners[term.matcher, term.key].append(s)
        targets = _shapes_matched(shapes)
        for (matcher, key), own in owners.items():
            mine, theirs = set(own), set(targets.get(matcher, ()))
            both = mine & theirs
            domain = self.table.domain(key)
            source = f"{CODE}: {self.matching.matchers[matcher]} not twice per {key}"
            if pods[list(both)].sum() > 1:
                yield AtMostOne(PLUGIN, source, _rows(both), domain, self.table.one_each(key))
            for left, right in ((mine, theirs - both), (mine - both, both)):
                if left and right:
                    yield Exclude(PLUGIN, source, _rows(left), _rows(right), domain)

    def affinity(self, shapes: Sequence[PodRules], pods: Ints) -> Affinity:
        """What required affinity leaves of the nodes, and the rules where pending pods decide; `pods` (S,)."""
        out = Affinity({}, [], {})
        groups: dict[tuple[Term, ...], list[int]] = defaultdict(list)
        for s, rules in enumerate(shapes):
            if rules.affinity:
                groups[rules.affinity].append(s)
        targets = _shapes_matched(shapes)
        merged: dict[tuple[str, tuple[int, ...], bytes, bool], list[int]] = defaultdict(list)
        openers: list[_Opener] = []
        for terms, own in groups.items():
            matching = set.intersection(*(set(targets.get(term.matcher, ())) for term in terms))
            running = self._running_all({term.matcher for term in terms})
            keys = tuple(dict.fromkeys(term.key for term in terms))
            seed = not any((self.table.domain(key)[running] >= 0).any() for key in keys)
            if seed and matching.intersection(own) and not self._nested(keys):
                crossing = " and ".join(keys)
                out.held.update(dict.fromkeys(own, f"would open an affinity over {crossing}, which cross"))
                continue
            if seed and matching.intersection(own):
                opener = _Opener(keys, set(own), matching)
                rival = next((other for other in openers if opener.rivals(other)), None)
                if rival is not None:
                    over = f"{' and '.join(keys)}, beside others over {' and '.join(rival.keys)}"
                    out.held.update(dict.fromkeys(own, f"would open an affinity over {over}"))
                    continue
                openers.append(opener)
            for key in keys:
                domain, present = self.table.domain(key), self.table.in_domains_of(key, running)
                # Who could bring the missing pod: others that match, or the group itself where none runs yet.
                open_later = bool(matching - set(own)) or (seed and bool(matching))
                closed = domain < 0 if open_later else ~present
                for s in own:
                    out.closed[s] = out.closed[s] | closed if s in out.closed else closed
                if open_later and not present[domain >= 0].all():
                    merged[key, tuple(sorted(matching)), present.tobytes(), seed].extend(own)
        for (key, matching_rows, present_bytes, seed), own in merged.items():
            distinct = set(own)
            seed = seed and not distinct.isdisjoint(matching_rows)
            if seed and distinct.issubset(matching_rows) and pods[list(distinct)].sum() <= 1:
                continue  # a single pod that may open its domain is free
            named = next(term for s in own for term in shapes[s].affinity if term.key == key)
            source = f"{CODE}: with {self.matching.matchers[named.matcher]} per {key}"
            present = np.frombuffer(present_bytes, np.bool_)
            out.rules.append(
                Require(PLUGIN, source, _rows(distinct), _rows(matching_rows), self.table.domain(key), present, seed)
            )
        return out

    def _running_all(self, matchers: set[int]) -> list[int]:
        """Node rows of the running pods that all the matchers pick."""
        if len(matchers) == 1:
            return self.nodes_matching(*matchers)
        return [row for matched, rows in self._nodes_of_set.items() if matchers.issubset(matched) for row in rows]

    def _nested(self, keys: tuple[str, ...]) -> bool:
        """Whether of any two keys the domains of one lie inside those of the other."""
        for a, left in enumerate(keys):
            for right in keys[a + 1 :]:
                x, y = self.table.domain(left), self.table.domain(right)
                pairs = np.unique(np.stack([x, y], axis=1)[(x >= 0) & (y >= 0)], axis=0)
                if len(pairs) not in (len(np.unique(pairs[:, 0])), len(np.unique(pairs[:, 1]))):
                    return False
        return True

    def _own_terms(self, needs: Needs) -> PodRules:
        """The terms of a pod that can still make a difference."""
        found = self._own.get(id(needs))
        if found is None:
            number = self.matching.number
            found = self._own[id(needs)] = PodRules(
                affinity=_numbered(((0, term) for term in needs.affinity), number),
                anti=tuple(
                    term
                    for term in _numbered(((0, term) for term in needs.anti_affinity), number)
                    if term.matcher in self._contested or self.nodes_matching(term.matcher)
                ),
                preferred=tuple(
                    term for term in _numbered(_wishes(needs, 0), number) if self.nodes_matching(term.matcher)
                ),
            )
        return found

    def _contested_by(self, pending: Sequence[Pod], asking: Sequence[Needs]) -> set[int]:
        """Matchers of pending pods' anti-affinity that pick a pending pod other than their only owner."""
        number = self.matching.number
        picked: Counter[int] = Counter()
        if any(needs.anti_affinity for needs in asking):
            for matched, pods in Counter(map(self.matching.matched, pending)).items():
                for matcher in matched:
                    picked[matcher] += pods
        owned: Counter[int] = Counter()
        by_itself: Counter[int] = Counter()
        for pod in pending:
            if pod.needs.anti_affinity:
                mine = {number[Matcher.of(term)] for term in pod.needs.anti_affinity}
                owned.update(mine)
                by_itself.update(mine.intersection(self.matching.matched(pod)))
        return {m for m in owned if picked[m] and not picked[m] == owned[m] == by_itself[m] == 1}


class _Opener(NamedTuple):
    """Shapes `own` whose terms over `keys` no running pod meets, but some of them; `matching`: all that meet them."""

    keys: tuple[str, ...]
    own: set[int]
    matching: set[int]

    def rivals(self, other: _Opener) -> bool:
        """Whichever opens its domain first, the other then finds a match and must join it, not open its own.

        One rule over one topology says that; two rules cannot.
        """
        mutual = self.own & other.matching and other.own & self.matching
        return bool(mutual) and (self.keys, self.matching) != (other.keys, other.matching)


class Affinity(NamedTuple):
    """`closed`: shape -> nodes where its affinity can never hold (N,). `held`: shape -> why it cannot be modelled."""

    closed: dict[int, Bools]
    rules: list[DomainRule]
    held: dict[int, str]


def _distinct(needs: Iterable[Needs]) -> list[Needs]:
    return list({id(entry): entry for entry in needs}.values())


def _terms(needs: Needs) -> Iterator[PodTerm]:
    yield from needs.affinity
    yield from needs.anti_affinity
    yield from needs.preferred_affinity
    yield from needs.preferred_anti_affinity


def _wishes(needs: Needs, required_weight: int) -> Iterator[tuple[int, PodTerm]]:
    """(signed weight, term) of what a pod would like, its required affinity among it where that has a weight."""
    yield from ((term.weight, term) for term in needs.preferred_affinity)
    yield from ((-term.weight, term) for term in needs.preferred_anti_affinity)
    if required_weight:
        yield from ((required_weight, term) for term in needs.affinity)


def _numbered(terms: Iterable[tuple[int, PodTerm]], number: Mapping[Matcher, int]) -> tuple[Term, ...]:
    return tuple(sorted({Term(number[Matcher.of(term)], term.topology_key, weight) for weight, term in terms}))


def _shapes_matched(shapes: Sequence[PodRules]) -> dict[int, list[int]]:
    out: dict[int, list[int]] = defaultdict(list)
    for s, rules in enumerate(shapes):
        for matcher in rules.matched:
            out[matcher].append(s)
    return out


def _rows(shapes: Iterable[int]) -> Ints:
    return np.array(sorted(shapes), np.int64)


def _couples(needs: Needs) -> bool:
    return bool(needs.anti_affinity or needs.affinity or needs.preferred_affinity or needs.preferred_anti_affinity)

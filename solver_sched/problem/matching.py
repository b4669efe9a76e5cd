"""Which pods a selector of some pod's rule picks out, found once per distinct combination of the labels that are read.

A *matcher* is a selector with the namespaces it looks into; pod affinity terms and spread constraints are matchers with
a topology key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from solver_sched.cluster.objects import Namespace, Pod, PodTerm, Requirement, Selector
from solver_sched.cluster.selectors import holds, selects

NAMESPACE_NAME = "kubernetes.io/metadata.name"


class Matcher(NamedTuple):
    """Pods in `namespaces`, or in a namespace that `namespace_selector` selects, whose labels `selector` selects."""

    namespaces: tuple[str, ...]
    namespace_selector: Selector | None
    selector: Selector | None

    @classmethod
    def of(cls, term: PodTerm) -> Matcher:
        return cls(term.namespaces, term.namespace_selector, term.selector)

    def __str__(self) -> str:
        words = [_phrase(requirement) for requirement in self.selector or ()]
        return ",".join(words) if words else ("nothing" if self.selector is None else "every pod")


class Matching:
    """Evaluates a fixed set of matchers on pods. Matchers are numbered in the order given, repeats left out."""

    def __init__(self, matchers: Iterable[Matcher], namespaces: Sequence[Namespace]) -> None:
        self.matchers = tuple(dict.fromkeys(matchers))
        self.number = {matcher: number for number, matcher in enumerate(self.matchers)}
        self._namespace_labels: dict[str, Mapping[str, str]] = {entry.name: entry.labels for entry in namespaces}
        # A thousand gangs bring a thousand selectors; a pod meets only those that ask for one of its own labels.
        self._by_label: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._others: list[int] = []
        keys: dict[str, None] = {}
        for number, matcher in enumerate(self.matchers):
            if matcher.selector is None:
                continue
            keys.update(dict.fromkeys(requirement.key for requirement in matcher.selector))
            first = next((entry for entry in matcher.selector if entry.operator == "In"), None)
            if first is None:
                self._others.append(number)
            else:
                for value in dict.fromkeys(first.values):
                    self._by_label[first.key, value].append(number)
        self._keys = tuple(keys)
        self._memo: dict[tuple[str, tuple[str | None, ...]], tuple[int, ...]] = {}

    def matched(self, pod: Pod) -> tuple[int, ...]:
        """Numbers of the matchers that pick the pod, ascending. Equal answers are one object."""
        if not self.matchers:
            return ()
        read = (pod.namespace, tuple([pod.labels.get(key) for key in self._keys]))
        found = self._memo.get(read)
        if found is None:
            labels = {key: value for key, value in zip(self._keys, read[1], strict=True) if value is not None}
            candidates = [n for pair in labels.items() for n in self._by_label.get(pair, ())] + self._others
            found = tuple(sorted(n for n in candidates if self._picks(self.matchers[n], pod.namespace, labels)))
            self._memo[read] = found
        return found

    def _picks(self, matcher: Matcher, namespace: str, labels: Mapping[str, str]) -> bool:
        if namespace not in matcher.namespaces and matcher.namespace_selector != ():
            # The API server gives every namespace this label; a dump without Namespace objects still has their names.
            known = self._namespace_labels.get(namespace, {NAMESPACE_NAME: namespace})
            if not selects(matcher.namespace_selector, known):
                return False
        return matcher.selector is not None and all(holds(entry, labels.get(entry.key)) for entry in matcher.selector)


def _phrase(requirement: Requirement) -> str:
    if requirement.operator == "In" and len(requirement.values) == 1:
        return f"{requirement.key}={requirement.values[0]}"
    values = f" ({','.join(requirement.values)})" if requirement.values else ""
    return f"{requirement.key} {requirement.operator}{values}"

"""Resourcequota: a group is let in only if its namespace's quotas have room for its `minResources`.

Else the API server would refuse some of its pods after admission, and the gang would stay half there. Quotas with
scopes are not read. Volcano pkg/scheduler/plugins/resourcequota/resourcequota.go, which charges pods that exist already
a second time; here they are taken off the minimum.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from solver_sched.plugins.plugin import Plugin
from solver_sched.problem.entrance import PERMIT, Applicant, Entrance, QuotaStand, Vote, Voter, of_pods, refusal


class ResourceQuotas(Plugin):
    name = "resourcequota"

    def voter(self, entrance: Entrance) -> Voter:
        return _Namespaces(entrance)


class _Namespaces:
    def __init__(self, entrance: Entrance) -> None:
        self._quotas = entrance.quotas
        self._admitted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def vote(self, group: Applicant) -> Vote:
        for quota in self._quotas.get(group.namespace, ()):
            admitted = self._admitted[group.namespace, quota.name]
            for name, asks in _asks(group, quota).items():
                used, hard = quota.used.get(name, 0), quota.hard[name]
                if used + admitted[name] + asks > hard:
                    who_may = f"quota {group.namespace}/{quota.name} allows"
                    return refusal(who_may, name, asks, hard, used, admitted[name])
        return PERMIT

    def admitted(self, group: Applicant) -> None:
        for quota in self._quotas.get(group.namespace, ()):
            self._admitted[group.namespace, quota.name].update(_asks(group, quota))


def _asks(group: Applicant, quota: QuotaStand) -> dict[str, int]:
    """What the group would add, in the names of the quota."""
    minimum, there = group.minimum or {}, group.present if quota.charged else group.held
    out = {}
    for name in quota.hard:
        plain = of_pods(name)
        wanted = max((amount for other, amount in minimum.items() if of_pods(other) == plain), default=0)
        missing = wanted - there.get(plain, 0)
        if missing > 0:
            out[name] = missing
    return out

"""Scheduling rules, one per file. The order of this table carries no meaning; tiers in the policy do."""

from __future__ import annotations

from solver_sched.plugins.binpack import Binpack
from solver_sched.plugins.capacity import Capacity
from solver_sched.plugins.cdp import Cdp
from solver_sched.plugins.conformance import Conformance
from solver_sched.plugins.drf import Drf
from solver_sched.plugins.gang import Gang
from solver_sched.plugins.nodeorder import NodeOrder
from solver_sched.plugins.overcommit import Overcommit
from solver_sched.plugins.plugin import Plugin
from solver_sched.plugins.predicates import Predicates
from solver_sched.plugins.priority import Priority
from solver_sched.plugins.proportion import Proportion
from solver_sched.plugins.resourcequota import ResourceQuotas
from solver_sched.plugins.sla import Sla

PLUGINS: dict[str, type[Plugin]] = {
    plugin.name: plugin
    for plugin in (
        *(Binpack, Capacity, Cdp, Conformance, Drf, Gang, NodeOrder, Overcommit, Predicates, Priority, Proportion),
        *(ResourceQuotas, Sla),
    )
}

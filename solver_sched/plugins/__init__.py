"""Scheduling rules, one per file. The order of this table carries no meaning; tiers in the policy do."""

from __future__ import annotations

from solver_sched.plugins.binpack import Binpack
from solver_sched.plugins.capacity import Capacity
from solver_sched.plugins.drf import Drf
from solver_sched.plugins.gang import Gang
from solver_sched.plugins.nodeorder import NodeOrder
from solver_sched.plugins.plugin import Plugin
from solver_sched.plugins.predicates import Predicates
from solver_sched.plugins.priority import Priority
from solver_sched.plugins.proportion import Proportion

PLUGINS: dict[str, type[Plugin]] = {
    plugin.name: plugin for plugin in (Binpack, Capacity, Drf, Gang, NodeOrder, Predicates, Priority, Proportion)
}

"""The policy file: actions, tiers of plugins with switches and arguments, and our own solve settings."""

from __future__ import annotations

from solver_sched.policy.conf import PluginConf, Policy, PolicyError, SolveSettings
from solver_sched.policy.reader import load_policy, shipped_policies

__all__ = ["PluginConf", "Policy", "PolicyError", "SolveSettings", "load_policy", "shipped_policies"]

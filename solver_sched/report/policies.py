"""Policies for people: what a file asks for, what of it has no effect yet, and the arguments a plugin knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solver_sched.policy.catalogue import ACTIONS, PLUGINS
from solver_sched.report.layout import Block, Note, Table
from solver_sched.report.tables import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from solver_sched.policy import PluginConf, Policy


def check_blocks(policy: Policy, where: str) -> list[Block]:
    """The verdict on a readable policy: fine, and what of it is only accepted."""
    inert = list(policy.inert())
    plugins = sum(map(len, policy.tiers))
    verdict = (
        f"{where}: ok, {counted(len(policy.actions), 'action', 'actions')}, {counted(plugins, 'plugin', 'plugins')}"
    )
    blocks: list[Block] = [Note(verdict, "good"), *(Note(f"warning: {text}", "warning") for text in policy.warnings)]
    if inert:
        blocks.append(Table("Accepted, without effect yet", ("NAME", "WHAT HAPPENS INSTEAD"), inert))
    return blocks


def list_blocks(policies: Mapping[str, Policy]) -> list[Block]:
    """The shipped policies, then every action and plugin that a file may name."""
    shipped = [
        (name, ", ".join(policy.actions), " | ".join(" ".join(conf.name for conf in tier) for tier in policy.tiers))
        for name, policy in policies.items()
    ]
    actions = [(name, "" if not entry.inert else f"no effect: {entry.inert}") for name, entry in ACTIONS.items()]
    plugins = [
        (name, str(len(entry.arguments)), "" if not entry.inert else f"no effect: {entry.inert}")
        for name, entry in PLUGINS.items()
    ]
    return [
        Table("Policies", ("NAME", "ACTIONS", "TIERS"), shipped),
        Table("Actions", ("NAME", "NOTE"), actions),
        Table("Plugins", ("NAME", "ARGUMENTS", "NOTE"), plugins),
    ]


def show_blocks(policy: Policy, levels: Sequence[str], evicting: Sequence[str] = ()) -> list[Block]:
    """The policy with every argument's value, defaults included, and the levels it makes: those of a cycle that evicts
    nobody, and those of one that does.
    """
    settings = [
        ("seed", str(policy.solve.seed)),
        ("gap", f"{policy.solve.gap:g}"),
        ("maxWait", f"{policy.solve.max_wait_seconds}s"),
        ("staleGracePeriod", f"{policy.solve.stale_grace_seconds}s"),
        ("reserve", str(policy.solve.reserve)),
        ("moves", str(policy.solve.moves)),
        ("timeLimit", "5s" if policy.solve.time_limit_seconds is None else f"{policy.solve.time_limit_seconds:g}s"),
    ]
    plugins = [
        (str(tier), conf.name, _switches(conf), _arguments(conf))
        for tier, confs in enumerate(policy.tiers, 1)
        for conf in confs
    ]
    blocks: list[Block] = [
        Note(f"policy {policy.name}: {', '.join(policy.actions)}", "title"),
        Table("Plugins", ("TIER", "NAME", "SWITCHES", "ARGUMENTS"), plugins),
        Table("Solver", ("NAME", "VALUE"), settings),
    ]
    titles = (
        ("Levels, most important first (p: each priority that pods have, highest first; k: 1, 2, all queues)", levels),
        ("Levels where somebody waits for whom others may make room; taken if anybody goes", evicting),
    )
    for title, names in titles:
        if names:
            blocks.append(Table(title, ("NO", "LEVEL"), [(str(number), name) for number, name in enumerate(names, 1)]))
    inert = list(policy.inert())
    if inert:
        blocks.append(Table("Accepted, without effect yet", ("NAME", "WHAT HAPPENS INSTEAD"), inert))
    return blocks


def _switches(conf: PluginConf) -> str:
    return ", ".join(f"{name} {'on' if value else 'off'}" for name, value in conf.switches.items()) or "-"


def _arguments(conf: PluginConf) -> str:
    return (
        ", ".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in conf.effective_arguments().items()
        )
        or "-"
    )

"""The policy file: actions, tiers of plugins with switches and arguments, and our own solve settings.

placeholder: replaced by the full reader. Only the types below are the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PluginConf:
    """One entry of a tier. `switches`: callback name without `enable(d)` in lower camel case (`jobOrder`,
    `preemptable`, `allocatable`, `hierarchy` ...) -> value, only those written down; `arguments`: normalised name
    (lower case, without `-._`) -> value as given.
    """

    name: str
    switches: Mapping[str, bool] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def on(self, switch: str) -> bool:
        """A switch not named is on, `hierarchy` excepted."""
        return self.switches.get(switch, switch != "hierarchy")


@dataclass(frozen=True)
class SolveSettings:
    """`seed`; `gap`: relative gap at which a level counts as closed; `max_wait_seconds`: aging (DESIGN 5)."""

    seed: int = 0
    gap: float = 1e-4
    max_wait_seconds: int = 3600


@dataclass(frozen=True)
class Policy:
    """A checked policy. `tiers` in file order, earlier = stronger."""

    name: str = "default"
    actions: tuple[str, ...] = ("enqueue", "allocate", "backfill")
    tiers: tuple[tuple[PluginConf, ...], ...] = ()
    solve: SolveSettings = SolveSettings()

    def plugin(self, name: str) -> PluginConf | None:
        return next((conf for tier in self.tiers for conf in tier if conf.name == name), None)

    def on(self, name: str, switch: str) -> bool:
        """The plugin is listed and its switch is not off."""
        conf = self.plugin(name)
        return conf is not None and conf.on(switch)

    def runs(self, action: str) -> bool:
        return action in self.actions

"""A checked policy as frozen values, and how a plugin reads its arguments.

Conversions are in one place: the reader checks every argument of a file with the functions that plugins use later.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from solver_sched.errors import ConfigError
from solver_sched.policy.catalogue import ACTIONS, OFF_UNLESS_NAMED, PLUGINS, Argument, argument, normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class PolicyError(ConfigError):
    """A policy that cannot be used. The text is one line: file, place, what stands there, what is allowed.

    `messages` holds one such line per mistake found, `warnings` what would have been let pass.
    """

    def __init__(self, *messages: str, warnings: tuple[str, ...] = ()) -> None:
        self.messages = messages
        self.warnings = warnings
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        super().__init__(messages[0] + more)


_UNIT_SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_ALLOWED = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "duration": "a duration such as 30s, 5m or 1h30m",
    "any": "anything",
}

_LARGEST = {"integer": 2**31 - 1, "duration": 2**63 // 10**9}
"""Weights add up in 64 bits; Go counts a duration in nanoseconds (time.Duration), this is its largest in seconds."""


def as_integer(value: object) -> int:
    """`value` or the integer it spells: kube-batch files quote numbers. Raises ValueError."""
    number = as_number(value)
    if number.denominator != 1:
        raise ValueError(f"{shown(value)} is no integer")
    return int(number)


def as_number(value: object) -> Fraction:
    """The exact value of a YAML number, quoted or not. Raises ValueError."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{shown(value)} is no number")  # noqa: TRY004
    # str(float) is what the file says; Fraction(float) would be the binary neighbour. A long exponent is refused: its
    # Fraction would be a number of that many digits.
    text = str(value).strip()
    if not re.fullmatch(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,2})?", text):
        raise ValueError(f"{shown(value)} is no number")
    return Fraction(text)


def as_boolean(value: object) -> bool:
    """A YAML boolean, or text as Go's strconv.ParseBool reads it. Raises ValueError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise ValueError(f"{shown(value)} is neither true nor false")


def as_string(value: object) -> str:
    """Text as it is. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no text")  # noqa: TRY004
    return value


def as_seconds(value: object) -> Fraction:
    """Seconds of a Go duration (`1h30m`, `1.5s`), of days too (`2d`), or of a plain number. Raises ValueError."""
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        parts = _DURATION_PART.findall(value)
        return sum((Fraction(amount) * _UNIT_SECONDS[unit] for amount, unit in parts), Fraction(0))
    return as_number(value)


# All conversions raise ValueError, for a wrong type too: to the file's author both are one mistake.
_CONVERT: Mapping[str, Callable[[object], Any]] = {
    "integer": as_integer,
    "number": as_number,
    "boolean": as_boolean,
    "string": as_string,
    "duration": as_seconds,
    "any": lambda value: value,
}


def converted(known: Argument, value: object) -> Any:
    """`value` in the type of `known`; the default where Volcano replaces what is too low.

    Raises ValueError whose text says what is allowed.
    """
    allowed = _ALLOWED[known.kind] + (f" >= {known.minimum}" if known.minimum is not None else "")
    try:
        result = _CONVERT[known.kind](value)
    except ValueError:
        raise ValueError(f"must be {allowed}, is {shown(value)}") from None
    if known.kind == "duration" and result < 0:
        raise ValueError(f"must be {allowed}, is {shown(value)}")
    if known.minimum is not None and result < known.minimum:
        if not known.otherwise_default:
            raise ValueError(f"must be {allowed}, is {shown(value)}")
        return _CONVERT[known.kind](known.default)
    if known.kind in _LARGEST and result > _LARGEST[known.kind]:
        raise ValueError(f"must be at most {_LARGEST[known.kind]}, is {shown(value)}")
    return result


_GLANCE = reprlib.Repr()
_GLANCE.maxlist = _GLANCE.maxdict = _GLANCE.maxstring = _GLANCE.maxlong = _GLANCE.maxother = 64
_GLANCE.maxlevel = 3
"""A few lines of YAML aliases can mean a list of billions."""


def shown(value: object) -> str:
    """`value` for a message: one line, not longer than a glance."""
    text = _GLANCE.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class PluginConf:
    """One entry of a tier. `switches`: callback name without `enable(d)` in lower camel case (`jobOrder`,
    `preemptable`, `allocatable`, `hierarchy` ...) -> value, only those written down; `arguments`: normalised name
    (lower case, without `-._`) -> value as given; `spelling`: normalised name -> name as the file has it.

    The getters take an argument's name in any spelling. Without `default` they fall back on the plugin's row in
    `catalogue.PLUGINS`. They raise PolicyError when the value is of another type, KeyError when there is no default.
    """

    name: str
    switches: Mapping[str, bool] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict, compare=False)

    def on(self, switch: str) -> bool:
        """A switch not named is on, `hierarchy` (and `clusterOrder`) excepted."""
        return self.switches.get(switch, switch not in OFF_UNLESS_NAMED)

    def integer(self, name: str, default: int | None = None) -> int:
        """The argument as an int; "3" and 3.0 are 3."""
        return int(self._value(name, Argument("integer", default)))

    def number(self, name: str, default: float | str | Fraction | None = None) -> Fraction:
        """The argument as an exact number: 1.2 is 6/5."""
        return Fraction(self._value(name, Argument("number", default)))

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """The argument as a bool; "true" is True."""
        return bool(self._value(name, Argument("boolean", default)))

    def string(self, name: str, default: str | None = None) -> str:
        """The argument as text."""
        return str(self._value(name, Argument("string", default)))

    def seconds(self, name: str, default: float | str | None = None) -> Fraction:
        """The argument, a duration, in seconds."""
        return Fraction(self._value(name, Argument("duration", default)))

    def effective_arguments(self) -> dict[str, Any]:
        """Every argument that has an effect -> its value, given or default, under its documented name."""
        known = PLUGINS[self.name].arguments if self.name in PLUGINS else {}
        out: dict[str, Any] = {}
        for name, what in known.items():
            if not what.inert and not name.endswith("*"):
                given = self.arguments.get(normalised(name))
                out[name] = converted(what, what.default if given is None else given)
        documented = {normalised(name) for name in known}
        for name, given in self.arguments.items():
            what_else = argument(known, name)
            if name not in documented and what_else is not None and not what_else.inert:
                out[self.spelling.get(name, name)] = converted(what_else, given)
        return out

    def _value(self, name: str, wanted: Argument) -> Any:
        known = argument(PLUGINS[self.name].arguments, name) if self.name in PLUGINS else None
        known = known if known is not None and known.kind == wanted.kind else wanted
        given = self.arguments.get(normalised(name))
        if given is None:
            given = wanted.default if wanted.default is not None else known.default
            if given is None:
                raise KeyError(f"plugin {self.name}: argument {name} has no default")
        try:
            return converted(known, given)
        except ValueError as wrong:
            raise PolicyError(f"plugin {self.name}: argument {name}: {wrong}") from None


@dataclass(frozen=True)
class SolveSettings:
    """`seed`; `gap`: relative gap at which a level counts as closed; `max_wait_seconds`: a job that
    waited longer ranks just above its own priority, unless its `sla-waiting-time` says otherwise.

    `time_limit_seconds`: wall seconds of one cycle, None = the caller's. `stale_grace_seconds`: how long a gang below
    its minimum is left alone. `reserve`: for how many of the first blocked jobs room is kept, 0 = for none
    (formulation.md 10). `moves`: how many running pods a cycle may move, 0 = none (formulation.md 11).
    """

    seed: int = 0
    gap: float = 1e-4
    max_wait_seconds: int = 3600
    time_limit_seconds: float | None = None
    stale_grace_seconds: int = 60
    reserve: int = 1
    moves: int = 10


@dataclass(frozen=True)
class Policy:
    """A checked policy. `tiers` in file order, earlier = stronger.

    `configurations`: action -> argument name as the file has it -> value as given. `warnings`: what the reader let pass
    (unknown arguments; unknown names if lenient), one line each; no part of the value.
    """

    name: str = "default"
    actions: tuple[str, ...] = ("enqueue", "allocate", "backfill")
    tiers: tuple[tuple[PluginConf, ...], ...] = ()
    solve: SolveSettings = SolveSettings()
    configurations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def plugin(self, name: str) -> PluginConf | None:
        return next((conf for tier in self.tiers for conf in tier if conf.name == name), None)

    def on(self, name: str, switch: str) -> bool:
        """The plugin is listed and its switch is not off."""
        conf = self.plugin(name)
        return conf is not None and conf.on(switch)

    def runs(self, action: str) -> bool:
        return action in self.actions

    @property
    def preempts(self) -> bool:
        return self.runs("preempt") or self.runs("gangpreempt")

    @property
    def reclaims(self) -> bool:
        return self.runs("reclaim") or self.runs("gangreclaim")

    @property
    def consolidates(self) -> bool:
        """KAI's name of the action, or that of the decision."""
        return (self.runs("consolidation") or self.runs("consolidate")) and self.solve.moves > 0

    @property
    def evicts(self) -> bool:
        """Some action may take running pods from their nodes."""
        return self.preempts or self.reclaims or self.consolidates

    def places(self, *, best_effort: bool) -> bool:
        """Some action places such pods: `backfill` request-less ones, `allocate` all others; without `allocate` an
        evicting action does it alone, and only nominates.
        """
        alone = (self.preempts or self.reclaims) and not self.runs("allocate")
        return alone or self.runs("backfill" if best_effort else "allocate")

    def inert(self) -> Iterator[tuple[str, str]]:
        """What the policy names that has no effect yet: (`action preempt`, what happens instead)."""
        for action in self.actions:
            if action in ACTIONS and ACTIONS[action].inert:
                yield f"action {action}", ACTIONS[action].inert
        for action, given in self.configurations.items():
            for name in given:
                yield f"action {action}: argument {name}", "not used"
        for conf in (conf for tier in self.tiers for conf in tier):
            entry = PLUGINS.get(conf.name)
            if entry is None:
                yield f"plugin {conf.name}", "unknown: left out"
                continue
            if entry.inert:
                yield f"plugin {conf.name}", entry.inert
                continue
            for switch, instead in entry.inert_switches.items():
                if conf.on(switch):
                    yield f"plugin {conf.name}: {_switch_key(switch)}", instead
            for name in conf.arguments:
                known = argument(entry.arguments, name)
                if known is None or known.inert:
                    spelled = conf.spelling.get(name, name)
                    yield f"plugin {conf.name}: argument {spelled}", "not used" if known else "unknown: not used"

    def unmet(self) -> list[str]:
        """Actions and plugins whose lack of effect makes a difference to the plan."""
        named = [(f"action {name}", ACTIONS.get(name)) for name in self.actions]
        named += [(f"plugin {conf.name}", PLUGINS.get(conf.name)) for tier in self.tiers for conf in tier]
        return [name for name, entry in named if entry is not None and entry.inert and not entry.moot]

    def as_dict(self) -> dict[str, Any]:
        """The policy in the file's own format: `load_policy(policy.as_dict()) == policy`."""
        defaults = SolveSettings()
        spelled = {
            "timeLimit": (self.solve.time_limit_seconds, defaults.time_limit_seconds),
            "seed": (self.solve.seed, defaults.seed),
            "gap": (self.solve.gap, defaults.gap),
            "maxWait": (self.solve.max_wait_seconds, defaults.max_wait_seconds),
            "staleGracePeriod": (self.solve.stale_grace_seconds, defaults.stale_grace_seconds),
            "reserve": (self.solve.reserve, defaults.reserve),
            "moves": (self.solve.moves, defaults.moves),
        }
        out: dict[str, Any] = {
            "name": self.name,
            "actions": list(self.actions),
            "tiers": [{"plugins": [_entry(conf) for conf in tier]} for tier in self.tiers],
        }
        if self.configurations:
            out["configurations"] = [
                {"name": action, "arguments": dict(given)} for action, given in self.configurations.items()
            ]
        if solver := {key: value for key, (value, default) in spelled.items() if value != default}:
            out["solver"] = solver
        return out


def _switch_key(switch: str) -> str:
    return "enable" + switch[0].upper() + switch[1:]


def _entry(conf: PluginConf) -> dict[str, Any]:
    out: dict[str, Any] = {"name": conf.name}
    out |= {_switch_key(switch): value for switch, value in conf.switches.items()}
    if conf.arguments:
        out["arguments"] = {conf.spelling.get(name, name): value for name, value in conf.arguments.items()}
    return out

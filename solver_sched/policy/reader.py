"""Reads a policy: kube-batch's and Volcano's scheduler.conf as it is, the ConfigMap around it, or a dict.

All mistakes of a file are found in one pass. What Volcano itself would skip without a word (an unknown argument or
switch) is a warning; what it refuses, or what would silently make another policy, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from solver_sched.policy.catalogue import ACTIONS, PLUGINS, SWITCHES, Argument, argument, normalised
from solver_sched.policy.conf import PluginConf, Policy, PolicyError, SolveSettings, as_boolean, converted, shown

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_TOP = ("actions", "tiers", "configurations", "metrics", "solver", "name")
# KAI's additions to the format; accepted so that its files read.
_TOP_INERT = ("queueDepthPerAction", "usageDBConfig")
_CONFIG_KEYS = ("volcano-scheduler.conf", "kube-batch-conf.yaml", "scheduler.conf")
_METRICS = ("prometheus", "prometheus_adaptor", "elasticsearch")
_SOLVER = {
    "timeLimit": Argument("duration"),
    "seed": Argument("integer", 0, 0),
    "gap": Argument("number", "1e-4", 0),
    "maxWait": Argument("duration", "1h"),
    "staleGracePeriod": Argument("duration", "60s"),
    "reserve": Argument("integer", 1, 0),
    "moves": Argument("integer", 10, 0),
}
MOST_RESERVED = 32
"""Flux schedules at most so many jobs of its queue ahead by default (flux-sched, queue-depth)."""
_SWITCH_NAMES = {name.lower(): name for name in SWITCHES}


def shipped_policies() -> dict[str, str]:
    """Name -> text of every policy in the package."""
    found = {
        item.name.removesuffix(".yaml"): item for item in _shipped_folder().iterdir() if item.name.endswith(".yaml")
    }
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def _shipped_folder() -> Traversable:
    folder = resources.files("solver_sched") / "policies"
    # A source tree (and an editable install) keeps them beside the formulation that explains them.
    return folder if folder.is_dir() else Path(__file__).parents[2] / "models" / "policies"


def load_policy(source: Mapping[str, Any] | str | Path | None = None, *, lenient: bool = False) -> Policy:
    """The policy in `source`: None (the default one), the name of a shipped policy, a path, YAML text, or a dict.

    A source without `actions` or `tiers` has those of the default policy. Names that nobody knows are errors; `lenient`
    leaves them out with a warning. Raises PolicyError with one line per mistake.
    """
    if source is None or isinstance(source, (str, Path)):
        name, where, raw = _document(source)
    else:
        name, where, raw = "custom", "policy", source
    return _Reading(where, lenient).policy(name, raw)


def _document(source: str | Path | None) -> tuple[str, str, Mapping[str, Any]]:
    """Name, label for messages, and the mapping that holds the policy."""
    source = "default" if source is None else source
    if isinstance(source, str) and "\n" not in source:
        shipped = _shipped_folder() / f"{source}.yaml"
        if re.fullmatch(r"[a-z0-9-]+", source) and shipped.is_file():
            return source, f"{source}.yaml", _unwrapped(f"{source}.yaml", shipped.read_text(encoding="utf-8"))
    if isinstance(source, str) and ("\n" in source or ": " in source):
        return "custom", "policy", _unwrapped("policy", source)
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise PolicyError(f"{path}: not a policy file: not text in UTF-8") from None
    except FileNotFoundError:
        raise PolicyError(
            f"{path}: no such file, and no shipped policy{_known(str(path), shipped_policies())}"
        ) from None
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return path.stem, str(path), _unwrapped(str(path), text)


class _Loader(yaml.SafeLoader if not yaml.__with_libyaml__ else yaml.CSafeLoader):  # type: ignore[misc]
    """YAML that refuses a key given twice: of two `tiers` the first would silently vanish."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return cast("dict[Any, Any]", super().construct_mapping(node, deep))


def _parsed(where: str, text: str) -> list[Any]:
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise PolicyError(f"{where}: not valid YAML:{place} {problem}") from None
    except (ValueError, RecursionError) as error:
        # PyYAML lets a date like 2026-13-45 and runaway nesting through as these.
        raise PolicyError(f"{where}: not valid YAML: {error}") from None


def _unwrapped(where: str, text: str) -> Mapping[str, Any]:
    """The policy itself: a bare document, or the one inside a ConfigMap (alone, or among a release's manifests)."""
    documents = _parsed(where, text)
    if not documents:
        raise PolicyError(f"{where}: empty: a policy has the keys actions and tiers")
    maps = [d for d in documents if isinstance(d, dict) and d.get("kind") == "ConfigMap" and _config_key(d) is not None]
    if len(documents) > 1 and len(maps) != 1:
        raise PolicyError(
            f"{where}: {len(documents)} documents with {len(maps)} scheduler ConfigMaps, must be one document, or "
            f"one ConfigMap with data key {_CONFIG_KEYS[0]}"
        )
    if maps:
        key = cast("str", _config_key(maps[0]))
        inner = _parsed(f"{where}: data[{key}]", maps[0]["data"][key])
        if len(inner) != 1:
            raise PolicyError(f"{where}: data[{key}]: {len(inner)} documents, must be one policy")
        documents = inner
    document = documents[0]
    if not isinstance(document, dict):
        raise PolicyError(f"{where}: must be a mapping with actions and tiers, is {shown(document)}")
    if "kind" in document:
        raise PolicyError(
            f"{where}: kind {document['kind']}: a policy is a scheduler.conf, or a ConfigMap with data key "
            f"{_CONFIG_KEYS[0]}"
        )
    return document


def _config_key(config_map: Mapping[str, Any]) -> str | None:
    data = config_map.get("data")
    texts = {key: text for key, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}
    named = [key for key in _CONFIG_KEYS if key in texts]
    return named[0] if named else next(iter(texts)) if len(texts) == 1 else None


def _known(name: str, names: Iterable[str]) -> str:
    """The end of a message: the nearest of `names`, then all of them."""
    names = sorted(names)
    near = get_close_matches(name, names, n=1)
    return (f"; did you mean {near[0]}?" if near else "") + f" (known: {', '.join(names)})"


class _Reading:
    """One pass over one policy: collects mistakes and warnings, and raises at the end."""

    def __init__(self, where: str, lenient: bool) -> None:
        self.where = where
        self.lenient = lenient
        self.mistakes: list[str] = []
        self.warnings: list[str] = []

    def wrong(self, place: str, message: str) -> None:
        self.mistakes.append(f"{self.where}: {place}: {message}")

    def warn(self, place: str, message: str) -> None:
        self.warnings.append(f"{self.where}: {place}: {message}")

    def unknown(self, place: str, message: str) -> None:
        (self.warn if self.lenient else self.wrong)(place, message)

    def policy(self, name: str, raw: Mapping[str, Any]) -> Policy:
        for key in raw:
            if key in _TOP_INERT:
                self.warn(str(key), "not used")
            elif key not in _TOP:
                self.unknown(str(key), f"unknown key{_known(str(key), _TOP)}")
        if "name" in raw:
            name = self.text("name", raw["name"]) or name
        self.metrics(raw.get("metrics"))
        actions = self.actions(raw["actions"]) if "actions" in raw else None
        tiers = self.tiers(raw["tiers"]) if "tiers" in raw else None
        configurations = self.configurations(raw.get("configurations"))
        solve = self.solver(raw.get("solver"))
        if self.mistakes:
            raise PolicyError(*self.mistakes, warnings=tuple(self.warnings))
        if actions is None or tiers is None:
            default = load_policy(None)
            actions = default.actions if actions is None else actions
            tiers = default.tiers if tiers is None else tiers
        return Policy(name, actions, tiers, solve, configurations, tuple(self.warnings))

    def text(self, place: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            self.wrong(place, f"must be text, is {shown(value)}")
            return ""
        return value.strip()

    def mapping(self, place: str, value: object) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(place, f"must be a mapping, is {shown(value)}")
            return {}
        return {str(key): item for key, item in value.items()}

    def sequence(self, place: str, value: object) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            self.wrong(place, f"must be a list, is {shown(value)}")
            return []
        return list(value)

    def actions(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            names: list[Any] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            names = self.sequence("actions", value)
        out: list[str] = []
        for name in names:
            if not isinstance(name, str):
                self.wrong("actions", f"must be names, has {shown(name)}")
            elif name.strip() not in ACTIONS:
                self.unknown("actions", f"unknown action {shown(name)}{_known(name, ACTIONS)}")
            elif name.strip() in out:
                self.warn("actions", f"{name.strip()} is named twice")
            else:
                out.append(name.strip())
        if not names:
            self.wrong("actions", f"must name at least one action{_known('', ACTIONS)}")
        return tuple(out)

    def tiers(self, value: object) -> tuple[tuple[PluginConf, ...], ...]:
        tiers: list[tuple[PluginConf, ...]] = []
        listed: dict[str, str] = {}
        for i, raw in enumerate(self.sequence("tiers", value)):
            tier = self.mapping(f"tiers[{i}]", raw)
            for key in tier:
                if key != "plugins":
                    self.unknown(f"tiers[{i}].{key}", "unknown key; a tier has plugins")
            confs: list[PluginConf] = []
            for k, item in enumerate(self.sequence(f"tiers[{i}].plugins", tier.get("plugins"))):
                place = f"tiers[{i}].plugins[{k}]"
                conf = self.plugin(place, item)
                if conf is None:
                    continue
                if conf.name in listed:
                    self.wrong(place, f"plugin {conf.name} stands already at {listed[conf.name]}; list it once")
                    continue
                listed[conf.name] = place
                confs.append(conf)
            # Volcano refuses it: both would order the queues of one tier, by different shares.
            if any(c.name == "drf" and c.on("hierarchy") for c in confs) and any(c.name == "proportion" for c in confs):
                self.wrong(
                    f"tiers[{i}]", "drf with enableHierarchy and proportion in one tier: move one, or switch it off"
                )
            tiers.append(tuple(confs))
        return tuple(tiers)

    def plugin(self, place: str, raw: object) -> PluginConf | None:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
            self.wrong(place, f"must be a mapping with the plugin's name, is {shown(raw)}")
            return None
        name = raw["name"].strip()
        if name not in PLUGINS:
            self.unknown(place, f"unknown plugin {shown(name)}{_known(name, PLUGINS)}")
            return None
        place = f"{place} {name}"
        switches: dict[str, bool] = {}
        for key, value in raw.items():
            if key in ("name", "arguments"):
                continue
            spelled = re.fullmatch(r"(enabled?|disabled?)(\w+)", str(key), re.IGNORECASE)
            switch = _SWITCH_NAMES.get(spelled.group(2).lower()) if spelled else None
            if spelled is None or switch is None:
                self.warn(f"{place}: {key}", f"unknown key, not used{self.near(str(key))}")
                continue
            try:
                switches[switch] = as_boolean(value) is (spelled.group(1)[0] in "eE")
            except ValueError:
                self.wrong(f"{place}: {key}", f"must be true or false, is {shown(value)}")
        given = raw.get("arguments")
        arguments = self.arguments(place, given, PLUGINS[name].arguments)
        spelling = {normalised(str(key)): str(key) for key in given} if isinstance(given, Mapping) else {}
        return PluginConf(name, switches, arguments, spelling)

    @staticmethod
    def near(key: str) -> str:
        names = {f"enable{name[0].upper()}{name[1:]}": name for name in SWITCHES}
        found = get_close_matches(key, [*names, "name", "arguments"], n=1)
        return f"; did you mean {found[0]}?" if found else ""

    def arguments(self, place: str, raw: object, known: Mapping[str, Argument]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in self.mapping(f"{place}: arguments", raw).items():
            here = f"{place}: argument {key}"
            if normalised(key) in out:
                self.wrong(here, "given twice (names match ignoring case and -._)")
                continue
            what = argument(known, key)
            if what is None:
                near = get_close_matches(key, list(known), n=1)
                self.warn(here, "unknown, not used" + (f"; did you mean {near[0]}?" if near else ""))
            elif value is not None:
                try:
                    if what.otherwise_default and converted(Argument(what.kind), value) < cast("int", what.minimum):
                        self.warn(
                            here, f"{shown(value)} is below {what.minimum}: {what.default} is used, as in Volcano"
                        )
                    converted(what, value)
                except ValueError as wrong:
                    self.wrong(here, str(wrong))
            if value is not None:
                out[normalised(key)] = value
        return out

    def configurations(self, raw: object) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for i, item in enumerate(self.sequence("configurations", raw)):
            place = f"configurations[{i}]"
            entry = self.mapping(place, item)
            action = self.text(f"{place}.name", entry.get("name"))
            if not action:
                continue
            if action not in ACTIONS:
                self.unknown(place, f"unknown action {shown(action)}{_known(action, ACTIONS)}")
                continue
            if action in out:
                self.wrong(place, f"action {action} is configured twice")
                continue
            given = entry.get("arguments")
            known = self.arguments(f"{place} {action}", given, ACTIONS[action].arguments)
            spelled = {normalised(key): key for key in self.mapping(place, given)} if known else {}
            out[action] = {spelled[key]: value for key, value in known.items()}
        return out

    def metrics(self, raw: object) -> None:
        """Volcano's source of measured load; checked, not used."""
        kind = self.mapping("metrics", raw).get("type")
        if kind is not None and kind not in _METRICS:
            self.warn("metrics.type", f"{shown(kind)} is none of {', '.join(_METRICS)}; not used")

    def solver(self, raw: object) -> SolveSettings:
        names = {normalised(name): name for name in _SOLVER}
        found: dict[str, Any] = {}
        for key, value in self.mapping("solver", raw).items():
            name = names.get(normalised(key))
            if name is None:
                self.unknown(f"solver.{key}", f"unknown key{_known(key, _SOLVER)}")
                continue
            try:
                found[name] = converted(_SOLVER[name], value)
            except ValueError as wrong:
                self.wrong(f"solver.{key}", str(wrong))
        if found.get("timeLimit") == 0:
            self.wrong("solver.timeLimit", "must be a duration above 0s")
        if found.get("gap", 0) >= 1:
            self.wrong("solver.gap", f"must be a number from 0 to below 1, is {float(found['gap'])}")
        if found.get("reserve", 0) > MOST_RESERVED:
            self.wrong("solver.reserve", f"must be an integer from 0 to {MOST_RESERVED}, is {found['reserve']}")
        plain = SolveSettings()
        return SolveSettings(
            seed=found.get("seed", plain.seed),
            gap=float(found.get("gap", plain.gap)),
            max_wait_seconds=int(found.get("maxWait", plain.max_wait_seconds)),
            time_limit_seconds=float(found["timeLimit"]) if "timeLimit" in found else None,
            stale_grace_seconds=int(found.get("staleGracePeriod", plain.stale_grace_seconds)),
            reserve=found.get("reserve", plain.reserve),
            moves=found.get("moves", plain.moves),
        )

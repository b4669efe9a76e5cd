from __future__ import annotations

import ast
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import solver_sched
from solver_sched.cluster.objects import Needs, Node, Pod, PodGroup, Queue
from solver_sched.policy import PluginConf, Policy, PolicyError, SolveSettings, load_policy, shipped_policies
from solver_sched.policy.catalogue import ACTIONS, PLUGINS, SWITCHES, argument, normalised
from solver_sched.policy.conf import as_number, as_seconds
from solver_sched.snapshot import Snapshot

PLUGIN_FILES = Path(__file__).parents[1] / "solver_sched" / "plugins"
TIERS = "tiers:\n- plugins:\n  - name: gang\n"


def one_plugin(entry: dict[str, Any], **top: Any) -> Policy:
    return load_policy({"actions": "allocate", "tiers": [{"plugins": [entry]}], **top})


def mistakes(source: Any, **how: Any) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        load_policy(source, **how)
    assert all("\n" not in message for message in caught.value.messages)
    return caught.value.messages


def test_the_default_policy_moves_nothing() -> None:
    policy = load_policy()
    assert policy.name == "default"
    assert policy.actions == ("enqueue", "allocate", "backfill")
    assert [[conf.name for conf in tier] for tier in policy.tiers] == [
        ["priority", "gang", "conformance"],
        ["drf", "predicates", "proportion", "nodeorder"],
    ]


def test_a_volcano_file_reads_as_it_is(tmp_path: Path) -> None:
    """The file of Volcano's own documentation, with the sections that only its service uses."""
    file = tmp_path / "volcano-scheduler.conf"
    file.write_text(
        """
actions: "enqueue, allocate, backfill, "
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
    enableJobStarving: false
- plugins:
  - name: binpack
    arguments:
      binpack.weight: 10
      binpack.resources: nvidia.com/gpu, example.com/foo
      binpack.resources.nvidia.com/gpu: 2
configurations:
- name: allocate
  arguments:
    predicateErrorCacheEnable: false
metrics:
  type: prometheus
  address: http://prometheus:9090
  interval: 30s
"""
    )
    policy = load_policy(file)
    assert policy.name == "volcano-scheduler"
    assert policy.actions == ("enqueue", "allocate", "backfill")
    assert policy.warnings == ()
    gang, binpack = policy.plugin("gang"), policy.plugin("binpack")
    assert gang is not None
    assert gang.switches == {"preemptable": False, "jobStarving": False}
    assert gang.on("jobReady")
    assert binpack is not None
    assert binpack.integer("binpack.weight") == 10
    assert binpack.integer("binpack.memory") == 1
    assert binpack.integer("binpack.resources.nvidia.com/gpu") == 2
    assert binpack.integer("binpack.resources.example.com/foo") == 1
    assert policy.configurations == {"allocate": {"predicateErrorCacheEnable": False}}


def test_a_kube_batch_file_quotes_its_numbers() -> None:
    nodeorder = load_policy("kube-batch").plugin("nodeorder")
    assert nodeorder is not None
    assert nodeorder.arguments["nodeaffinityweight"] == "1"
    assert nodeorder.integer("nodeaffinity.weight") == 1
    assert PluginConf("nodeorder").integer("nodeaffinity.weight") == 2  # Volcano's default


@pytest.mark.parametrize("key", ["volcano-scheduler.conf", "kube-batch-conf.yaml", "anything.conf"])
def test_a_config_map_is_unwrapped(key: str) -> None:
    wrapped = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {key: f"actions: allocate\n{TIERS}"},
    }
    assert load_policy(yaml.safe_dump(wrapped)) == load_policy(f"actions: allocate\n{TIERS}")


def test_a_config_map_is_found_in_a_release() -> None:
    inner = f"actions: allocate\n{TIERS}"
    other = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1", "b": "2"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"volcano-scheduler.conf": inner}}
    assert load_policy(yaml.safe_dump_all([account, other, wanted])).actions == ("allocate",)
    assert "2 scheduler ConfigMaps" in mistakes(yaml.safe_dump_all([wanted, wanted]))[0]


@pytest.mark.parametrize(
    ("key", "switch", "value"),
    [
        ("enableJobOrder", "jobOrder", False),
        ("enabledSubJobOrder", "subJobOrder", False),
        ("enabledVictim", "victim", False),
        ("enableVictim", "victim", False),
        ("enabledHyperNodeGradient", "hyperNodeGradient", False),
        ("enabledJobOrder", "jobOrder", False),
        ("EnableQueueOrder", "queueOrder", False),
    ],
)
def test_switches_in_every_spelling(key: str, switch: str, value: bool) -> None:
    conf = one_plugin({"name": "gang", key: value}).plugin("gang")
    assert conf is not None
    assert conf.switches == {switch: value}
    assert not conf.on(switch)


def test_switches_not_named_are_on_but_for_two() -> None:
    assert {switch for switch in SWITCHES if not PluginConf("drf").on(switch)} == {"hierarchy", "clusterOrder"}


def test_kai_switches_are_turned_round() -> None:
    conf = one_plugin({"name": "gang", "disableJobOrder": True, "disablePredicate": "false"}).plugin("gang")
    assert conf is not None
    assert conf.switches == {"jobOrder": False, "predicate": True}


@pytest.mark.parametrize("name", ["leastrequested.weight", "LeastRequestedWeight", "least_requested-weight"])
def test_argument_names_ignore_case_and_marks(name: str) -> None:
    conf = one_plugin({"name": "nodeorder", "arguments": {name: 7}}).plugin("nodeorder")
    assert conf is not None
    assert conf.integer("leastrequested.weight") == 7


def test_our_own_settings_stand_under_one_key() -> None:
    policy = load_policy(
        {
            "solver": {
                "timeLimit": "1m30s",
                "seed": "7",
                "gap": 0.01,
                "max-wait": "2h",
                "staleGracePeriod": 5,
                "reserve": 4,
            }
        }
    )
    assert policy.solve == SolveSettings(7, 0.01, 7200, 90.0, 5, 4)
    assert policy.tiers == load_policy().tiers


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"actions": "allocate, prempt"},
            "policy: actions: unknown action 'prempt'; did you mean preempt? (known: allocate,",
        ),
        ({"actions": ""}, "policy: actions: must name at least one action"),
        ({"actions": [1]}, "policy: actions: must be names, has 1"),
        ({"actions": {"a": 1}}, "policy: actions: must be a list, is {'a': 1}"),
        ({"teirs": []}, "policy: teirs: unknown key; did you mean tiers?"),
        ({"tiers": {"plugins": []}}, "policy: tiers: must be a list"),
        (
            {"tiers": [{"plugins": ["gang"]}]},
            "policy: tiers[0].plugins[0]: must be a mapping with the plugin's name, is 'gang'",
        ),
        (
            {"tiers": [{"plugins": [{"name": "gnag"}]}]},
            "policy: tiers[0].plugins[0]: unknown plugin 'gnag'; did you mean gang? (known: binpack,",
        ),
        (
            {"tiers": [{"plugins": [{"name": "gang"}]}, {"plugins": [{"name": "gang"}]}]},
            "policy: tiers[1].plugins[0]: plugin gang stands already at tiers[0].plugins[0]; list it once",
        ),
        (
            {"tiers": [{"plugins": [{"name": "drf", "enableHierarchy": True}, {"name": "proportion"}]}]},
            "policy: tiers[0]: drf with enableHierarchy and proportion in one tier",
        ),
        (
            {"tiers": [{"plugins": [{"name": "gang", "enableJobOrder": "maybe"}]}]},
            "policy: tiers[0].plugins[0] gang: enableJobOrder: must be true or false, is 'maybe'",
        ),
        (
            {"tiers": [{"plugins": [{"name": "nodeorder", "arguments": {"leastrequested.weight": "many"}}]}]},
            "policy: tiers[0].plugins[0] nodeorder: argument leastrequested.weight: must be an integer >= 0, is 'many'",
        ),
        (
            {"tiers": [{"plugins": [{"name": "nodeorder", "arguments": {"mostrequested.weight": -1}}]}]},
            "policy: tiers[0].plugins[0] nodeorder: argument mostrequested.weight: must be an integer >= 0, is -1",
        ),
        (
            {"tiers": [{"plugins": [{"name": "nodeorder", "arguments": {"mostrequested.weight": True}}]}]},
            "policy: tiers[0].plugins[0] nodeorder: argument mostrequested.weight: must be an integer >= 0, is True",
        ),
        (
            {"tiers": [{"plugins": [{"name": "nodeorder", "arguments": {"a.b": 1, "AB": 2}}]}]},
            "policy: tiers[0].plugins[0] nodeorder: argument AB: given twice (names match ignoring case and -._)",
        ),
        (
            {"tiers": [{"plugins": [{"name": "predicates", "arguments": {"predicate.NodePortsEnable": 3}}]}]},
            "policy: tiers[0].plugins[0] predicates: argument predicate.NodePortsEnable: must be true or false, is 3",
        ),
        (
            {"tiers": [{"plugins": [{"name": "sla", "arguments": {"sla-waiting-time": "soon"}}]}]},
            "policy: tiers[0].plugins[0] sla: argument sla-waiting-time: must be a duration such as 30s, 5m",
        ),
        ({"solver": {"sead": 1}}, "policy: solver.sead: unknown key; did you mean seed?"),
        ({"solver": {"seed": -1}}, "policy: solver.seed: must be an integer >= 0, is -1"),
        ({"solver": {"seed": 2**31}}, "policy: solver.seed: must be at most 2147483647, is 2147483648"),
        ({"solver": {"maxWait": "2562048h"}}, "policy: solver.maxWait: must be at most 9223372036, is '2562048h'"),
        (
            {"tiers": [{"plugins": [{"name": "nodeorder", "arguments": {"leastrequested.weight": 10**22}}]}]},
            "policy: tiers[0].plugins[0] nodeorder: argument leastrequested.weight: must be at most 2147483647, is 10",
        ),
        ({"solver": {"gap": 1}}, "policy: solver.gap: must be a number from 0 to below 1, is 1.0"),
        ({"solver": {"reserve": 33}}, "policy: solver.reserve: must be an integer from 0 to 32, is 33"),
        ({"solver": {"timeLimit": 0}}, "policy: solver.timeLimit: must be a duration above 0s"),
        (
            {"configurations": [{"name": "alocate"}]},
            "policy: configurations[0]: unknown action 'alocate'; did you mean allocate?",
        ),
        ("actions: [allocate\n", "policy: not valid YAML: line 2, column 1:"),
        (f"actions: allocate\n{TIERS}tiers: []\n", "policy: not valid YAML: line 5, column 1: 'tiers' is given twice"),
        ("\n\n", "policy: empty"),
        ("- a\n- b\n", "policy: must be a mapping with actions and tiers, is ['a', 'b']"),
        ("kind: Pod\nspec: {}\n", "policy: kind Pod: a policy is a scheduler.conf, or a ConfigMap"),
        ("defualt", "defualt: no such file, and no shipped policy; did you mean default? (known: default, kube-batch,"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_what_is_allowed(source: Any, message: str) -> None:
    assert mistakes(source)[0].startswith(message)


def test_all_mistakes_of_a_file_are_found_at_once() -> None:
    plugins = [{"name": "gnag"}, {"name": "nodeorder", "arguments": {"leastrequested.weight": "x"}}]
    source = {"actions": "prempt", "tiers": [{"plugins": plugins}]}
    found = mistakes(source)
    assert len(found) == 3
    with pytest.raises(PolicyError, match=r"unknown action 'prempt'.*\(and 2 more\)$"):
        load_policy(source)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x00\x01\x02", b""])
def test_binary_and_empty_files(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(content)
    assert mistakes(file)[0].startswith(f"{file}: ")


def test_lenient_leaves_unknown_names_out_with_a_warning() -> None:
    source = {"actions": "allocate, dance", "tiers": [{"plugins": [{"name": "waltz"}, {"name": "gang"}]}], "tempo": 3}
    policy = load_policy(source, lenient=True)
    assert policy.actions == ("allocate",)
    assert [conf.name for tier in policy.tiers for conf in tier] == ["gang"]
    assert [warning.split("(known")[0].rstrip("; ") for warning in policy.warnings] == [
        "policy: tempo: unknown key",
        "policy: actions: unknown action 'dance'",
        "policy: tiers[0].plugins[0]: unknown plugin 'waltz'",
    ]
    assert len(mistakes(source)) == 3


def test_what_volcano_skips_in_silence_is_a_warning() -> None:
    policy = one_plugin({"name": "nodeorder", "enableJobOrdre": True, "arguments": {"leastrequsted.weight": 3}})
    assert policy.warnings == (
        "policy: tiers[0].plugins[0] nodeorder: enableJobOrdre: unknown key, not used; did you mean enableJobOrder?",
        (
            "policy: tiers[0].plugins[0] nodeorder: argument leastrequsted.weight: unknown, not used; "
            "did you mean leastrequested.weight?"
        ),
    )


def test_a_weight_that_volcano_replaces_is_replaced() -> None:
    """binpack: a negative weight is 1; overcommit-factor below 1 is 1.2."""
    policy = one_plugin({"name": "binpack", "arguments": {"binpack.cpu": -5}})
    conf = policy.plugin("binpack")
    assert conf is not None
    assert conf.integer("binpack.cpu") == 1
    assert policy.warnings == (
        "policy: tiers[0].plugins[0] binpack: argument binpack.cpu: -5 is below 0: 1 is used, as in Volcano",
    )


def test_what_has_no_effect_is_said() -> None:
    policy = load_policy(
        {
            "actions": "enqueue, allocate, shuffle",
            "tiers": [{"plugins": [{"name": "tdm"}, {"name": "capacity", "enableHierarchy": True}]}],
        }
    )
    assert [name for name, _ in policy.inert()] == ["action shuffle", "plugin tdm", "plugin capacity: enableHierarchy"]


def test_getters_name_plugin_argument_and_what_is_allowed() -> None:
    conf = PluginConf(
        "nodeorder", arguments={"leastrequestedweight": "x", "flag": "true", "factor": 1.2, "wait": "1h30m"}
    )
    assert conf.boolean("flag", False) is True
    assert conf.number("factor") == Fraction(6, 5)
    assert conf.seconds("wait") == 5400
    assert conf.string("label", "none") == "none"
    assert conf.integer("other", 4) == 4
    with pytest.raises(
        PolicyError, match=r"^plugin nodeorder: argument leastrequested\.weight: must be an integer >= 0, is 'x'$"
    ):
        conf.integer("leastrequested.weight")
    with pytest.raises(KeyError, match="no default"):
        conf.integer("other")


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("500ms", Fraction(1, 2)), ("1h30m", 5400), ("1.5s", Fraction(3, 2)), (2, 2)]
)
def test_durations(text: Any, seconds: Fraction) -> None:
    assert as_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 s", "1e999", "nan", "inf", "0x10", "9" * 5000, True, None, [], "1/2"])
def test_what_is_no_number(text: Any) -> None:
    with pytest.raises(ValueError, match="is no number"):
        as_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15).map(lambda x: round(x, 6)))
def test_a_float_is_what_its_text_says(value: float) -> None:
    assert as_number(value) == Fraction(repr(value))


def settings() -> st.SearchStrategy[dict[str, Any]]:
    weights = st.sampled_from(["leastrequested.weight", "MostRequested.Weight", "nodeaffinity-weight"])
    entries = st.fixed_dictionaries(
        {"name": st.sampled_from(sorted(PLUGINS))},
        optional={"enableJobOrder": st.booleans(), "enabledVictim": st.booleans()},
    )
    order = st.fixed_dictionaries(
        {"name": st.just("nodeorder"), "arguments": st.dictionaries(weights, st.integers(0, 9))}
    )
    plugins = st.lists(entries | order, max_size=6, unique_by=lambda entry: str(entry["name"]))
    return st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b c"]),
            "actions": st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, unique=True),
            "tiers": plugins.flatmap(
                lambda all_of: st.integers(0, len(all_of)).map(
                    lambda cut: [{"plugins": all_of[:cut]}, {"plugins": all_of[cut:]}]
                )
            ),
            "solver": st.fixed_dictionaries(
                {}, optional={"seed": st.integers(0, 99), "timeLimit": st.integers(1, 99), "gap": st.floats(0.001, 0.5)}
            ),
        }
    )


@given(settings())
def test_a_policy_written_in_its_own_format_reads_back(source: dict[str, Any]) -> None:
    policy = load_policy(source)
    assert load_policy(policy.as_dict()) == policy
    assert load_policy(yaml.safe_dump(policy.as_dict())) == policy


KEYS = ["actions", "tiers", "plugins", "name", "arguments", "solver", "configurations", "metrics", "x"]
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(DOCUMENTS)
def test_any_document_is_a_policy_or_lines_of_mistakes(document: Any) -> None:
    text = yaml.safe_dump(document) + "\n"
    try:
        load_policy(text)
    except PolicyError:
        assert mistakes(text)


def test_shipped_policies_are_in_the_order_of_their_names() -> None:
    """Not of their files': `volcano-preempting.yaml` comes before `volcano.yaml`."""
    assert list(shipped_policies()) == sorted(shipped_policies())


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_shipped_policies_warn_of_nothing(name: str) -> None:
    policy = load_policy(name)
    assert policy.warnings == ()
    assert load_policy(policy.as_dict()) == policy


def test_the_table_of_arguments_is_sound() -> None:
    """Defaults are of the argument's type, so that a getter without one works; normalised names do not collide."""
    for name, entry in [*PLUGINS.items(), *ACTIONS.items()]:
        assert len({normalised(known) for known in entry.arguments}) == len(entry.arguments)
        for known, what in entry.arguments.items():
            assert argument(entry.arguments, known.replace("*", "x")) == what
            if not what.inert:
                assert what.default is not None, f"{name}: {known}"
        assert not any(known is None for known in PluginConf(name).effective_arguments().values())


def reads(constants: set[str], name: str) -> bool:
    """Whether the strings of a module can make up `name`: whole, or as the pieces of an f-string."""
    cuts = range(1, len(name))
    return name in constants or any(
        (name[:cut] in constants and (name[cut:] in constants or name[:cut].endswith("."))) for cut in cuts
    )


@pytest.mark.parametrize("name", sorted(name for name, entry in PLUGINS.items() if not entry.inert))
def test_arguments_with_an_effect_are_read_by_their_plugin(name: str) -> None:
    """An argument that the table calls effective and no plugin reads would be accepted and ignored."""
    code = ast.parse((PLUGIN_FILES / f"{name}.py").read_text())
    constants = {
        node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    effective = [known.rstrip("*") for known, what in PLUGINS[name].arguments.items() if not what.inert]
    assert [known for known in effective if not reads(constants, known)] == []


def test_aliases_that_expand_to_billions_cost_nothing() -> None:
    """Ten lists of ten lists ... nine deep: 10^9 names, of which a message shows a glance."""
    levels = [f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "\n".join(["b0: &b0 [x, x, x, x, x, x, x, x, x, x]", *levels, "actions: *b8", "tiers: *b8"])
    began = time.process_time()
    with pytest.raises(PolicyError) as caught:
        load_policy(text)
    assert time.process_time() - began < 2
    assert all(len(message) < 300 for message in caught.value.messages)


def test_a_full_queue_keeps_nobody_out_who_may_take_from_it() -> None:
    """4 of 4 CPU are held by a lower job. `preempting` lets the higher one in, Volcano's list does not."""
    dialect = "scheduling.volcano.sh/v1beta1"
    needs = Needs((("cpu", 4000), ("pods", 1)))

    def one(name: str, priority: int, node: str | None) -> Pod:
        phase = "Running" if node else "Pending"
        return Pod("ns", f"{name}-0", needs, group=f"ns/{name}", priority=priority, node=node, phase=phase)

    groups = [
        PodGroup("ns", name, dialect, min_resources={"cpu": 4000}, priority=priority, phase=phase)
        for name, priority, phase in (("high", 10, "Pending"), ("low", 0, "Running"))
    ]
    pods = [replace(pod, scheduler="volcano") for pod in (one("high", 10, None), one("low", 0, "n"))]
    snapshot = Snapshot(
        nodes=(Node("n", {"cpu": 4000, "pods": 9}),), pods=tuple(pods), groups=tuple(groups), queues=(Queue("default"),)
    )
    kinds = {
        name: [decision["kind"] for decision in solver_sched.plan(snapshot, name)["decisions"]]
        for name in ("preempting", "volcano-preempting")
    }
    assert kinds == {"preempting": ["Admit", "Evict", "Nominate"], "volcano-preempting": []}

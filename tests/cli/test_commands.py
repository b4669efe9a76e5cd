from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import solver_sched
from solver_sched.cli.app import app
from solver_sched.cluster.objects import Needs, Node, Pod
from solver_sched.errors import InputError
from solver_sched.snapshot import InputProblem, Snapshot

COMMANDS = [
    *("", "plan", "explain", "compare", "snapshot", "queue", "queue list", "job", "job list", "convert", "generate"),
    *("simulate", "run"),
    *("policy", "policy check", "policy list", "policy show"),
]
PROBLEM = InputProblem("a.yaml", "Pod ml/x", "spec.containers", "is missing")


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin, prog_name="solver-sched")


def refused(*arguments: str, code: int = 2) -> str:
    """The one line that a refusal prints."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("solver-sched: ")
    return str(line.removeprefix("solver-sched: "))


@pytest.fixture
def engine(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for reading and solving; remembers what it was asked."""
    asked = SimpleNamespace(snapshot=Snapshot(nodes=(Node("n1", {}),)), plan=plan)

    def load(paths: list[str], now: int | None, scheduler_names: list[str] | None, namespace: str) -> Any:
        asked.paths, asked.now, asked.scheduler_names = paths, now, scheduler_names
        return asked.snapshot

    def cycle(snapshot: Snapshot, policy: Any, budget: Any, solver: str = "optimal", *_: Any) -> Any:
        asked.given, asked.policy, asked.budget, asked.solver = snapshot, policy, budget, solver
        return SimpleNamespace(as_dict=lambda **_: asked.plan)

    monkeypatch.setitem(solver_sched.__dict__, "load_snapshot", load)
    monkeypatch.setitem(solver_sched.__dict__, "run_cycle", cycle)
    monkeypatch.setattr("solver_sched.model.process.warm_up", lambda: None)
    return asked


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Example: " in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_cuts_nothing_off(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a terminal of 80 columns: who reads `--leader-elect-...` does not know what to type."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*command.split(), "--help").stdout
    assert "…" not in shown
    assert "..." not in shown.replace("[ARGS]...", "")


def test_no_command_prints_the_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert "Commands" in result.stdout


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("solver-sched ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["polcy"], "No such command 'polcy'. Did you mean 'policy'? (see solver-sched --help)"),
        (
            ["plan"],
            "Invalid value for -f: nothing to read: give -f PATH (- for stdin) or --example; no cluster is configured",
        ),
        (["plan", "--context", "x"], "no cluster is configured (no kubeconfig, and this is no pod): give --kubeconfig"),
        (["snapshot"], "no cluster is configured (no kubeconfig, and this is no pod): give --kubeconfig FILE"),
        (
            ["run"],
            "no cluster is configured (no kubeconfig, and this is no pod): give --kubeconfig FILE, or --embedded",
        ),
        (["plan", "--kubeconfig", "/nowhere"], "/nowhere: Invalid kube-config file. No configuration found."),
        (
            ["explain", "ml/a", "-o", "html"],
            "Invalid value for '--output' / '-o': 'html' is not one of 'table', 'wide', 'json', 'yaml'",
        ),
        (
            ["plan", "-o", "pdf"],
            "Invalid value for '--output' / '-o': 'pdf' is not one of 'table', 'wide', 'json', 'yaml', 'html'",
        ),
        (["compare", "--solvers", "best"], "Invalid value for --solvers: 'best' is not one of optimal, greedy (see"),
        (["compare", "--solvers", ","], "Invalid value for --solvers: ',' is not a list of names such as a,b (see"),
        (["compare", "--policies", "default,nope"], "nope: no such file, and no shipped policy (known: default,"),
        (["compare"], "Invalid value for -f: nothing to read: give -f PATH (- for stdin) or --example; no cluster is"),
        (["plan", "--time-limit", "-3s"], "Invalid value for '--time-limit': '-3s' is not a duration above zero"),
        (["plan", "--time-limit", "0"], "Invalid value for '--time-limit': '0' is not a duration above zero"),
        (["plan", "--now", "noon"], "Invalid value for '--now': 'noon' is not a time such as 2026-01-02T03:04:05Z"),
        (["plan", "--policy", "nope", "-f", "x"], "nope: no such file, and no shipped policy (known: default,"),
        (["plan", "--wrong"], "No such option: --wrong (see solver-sched plan --help)"),
        (["explain"], "Missing argument 'NAMESPACE/PODGROUP' (see solver-sched explain --help)"),
        (["policy", "show", "nope"], "nope: no such file"),
        (["policy", "check", "nope"], "nope: no such file, and no shipped policy (known: "),
        (["convert", "openb", "nope", "nope"], "nope: "),
        (["convert", "philly", "a", "b"], "Invalid value for 'trace': 'philly' is not one of 'openb'"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], message: str) -> None:
    assert refused(*arguments).startswith(message)


def test_plan_prints_tables(engine: SimpleNamespace) -> None:
    result = run("plan", "-f", "a.yaml", "-f", "-")
    assert result.exit_code == 0
    assert "ml/b  q      Pending" in result.stdout
    assert result.stderr == ""
    assert engine.paths == ["a.yaml", "-"]
    assert engine.solver == "optimal"
    assert engine.policy.name == "default"
    assert engine.budget.seconds == 5.0


def test_plan_passes_its_options_on(engine: SimpleNamespace) -> None:
    options = ["--policy", "volcano", "--solver", "greedy", "--time-limit", "1m30s", "--seed", "7"]
    names = ["--scheduler-name", "x", "--scheduler-name", "y"]
    result = run("plan", "-f", "a", *options, *names, "--now", "2026-01-02T03:04:05Z")
    assert result.exit_code == 0, result.stderr
    assert engine.policy.name == "volcano"
    assert (engine.solver, engine.budget.seconds, engine.budget.seed) == ("greedy", 90.0, 7)
    assert engine.now == 1767323045
    assert engine.scheduler_names == ["x", "y"]


def test_plan_says_what_of_the_policy_has_no_effect(engine: SimpleNamespace) -> None:
    assert "no effect" not in run("plan", "-f", "a", "--policy", "kube-batch").stdout
    assert "no effect" not in run("plan", "-f", "a").stdout


def test_the_policy_may_hold_the_time_limit(engine: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("solver: {timeLimit: 2s}\n")
    run("plan", "-f", "a", "--policy", str(tmp_path / "p.yaml"))
    assert engine.budget.seconds == 2.0
    run("plan", "-f", "a", "--policy", str(tmp_path / "p.yaml"), "--time-limit", "500ms")
    assert engine.budget.seconds == 0.5


def test_machine_forms_are_the_plan_and_nothing_else(engine: SimpleNamespace) -> None:
    assert json.loads(run("plan", "-f", "a", "-o", "json").stdout) == engine.plan
    assert yaml.safe_load(run("plan", "-f", "a", "-o", "yaml").stdout) == engine.plan


def test_a_page_is_written_as_ascii_and_has_the_nodes(engine: SimpleNamespace) -> None:
    """Whatever the stream's encoding is."""
    engine.plan["nodes"] = [
        {"name": "n\u00f6", "allocatable": {"cpu": "2"}, "used": {"cpu": "1"}, "arrive": 1, "leave": 0}
    ]
    result = run("plan", "-f", "a", "-o", "html")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("<!doctype html>")
    assert result.stdout.isascii()
    assert "n&#246;: 1/2 cpu" in result.stdout


def test_compare_plans_with_each_solver_under_each_policy() -> None:
    """A node of 1 CPU and a pod of 1 CPU: nothing differs, and everything is in the document."""
    needs = Needs(request=(("cpu", 1000), ("pods", 1)))
    snapshot = Snapshot(
        nodes=(Node("n1", {"cpu": 1000, "pods": 110}),), pods=(Pod("ml", "a", needs, scheduler="solver-sched"),)
    )
    options = ["--policies", "default, packing", "--solvers", "greedy,optimal,greedy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(solver_sched.__dict__, "load_snapshot", lambda *_, **__: snapshot)
        found = json.loads(run("compare", "-f", "a", *options, "-o", "json").stdout)
        told = run("compare", "-f", "a", *options).stdout
        pages = run("compare", "-f", "a", *options, "-o", "html").stdout
    assert found["kind"] == "Comparison"
    assert [one["name"] for one in found["runs"]] == [
        *("greedy default", "optimal default", "greedy packing", "optimal packing"),
    ]
    assert [one["pods"]["bound"] for one in found["runs"]] == [1, 1, 1, 1]
    assert "nodes" not in found["runs"][0]
    assert "nothing differs" in told
    assert "Nodes by cpu in use, greedy packing" in pages


def test_two_policies_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.yaml").write_text("actions: allocate\n")
    policies = f"{tmp_path}/a/p.yaml,{tmp_path}/b/p.yaml"
    assert "have one name" in refused("compare", "-f", "x", "--policies", policies)


def test_lenient_warns_on_stderr(engine: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("actions: allocate, dance\n")
    assert refused("plan", "-f", "a", "--policy", str(tmp_path / "p.yaml")).split(":")[1] == " actions"
    result = run("plan", "-f", "a", "--policy", str(tmp_path / "p.yaml"), "--lenient")
    assert result.exit_code == 0
    assert result.stderr.startswith("solver-sched: warning: ")
    assert "unknown action 'dance'" in result.stderr


def test_strict_refuses_what_is_otherwise_left_out(engine: SimpleNamespace) -> None:
    engine.snapshot = Snapshot(nodes=(Node("n1", {}),), problems=(PROBLEM, PROBLEM))
    assert run("plan", "-f", "a").exit_code == 0
    assert refused("plan", "-f", "a", "--strict") == "a.yaml: Pod ml/x: spec.containers: is missing (and 1 more)"


def test_nothing_left_to_plan_is_bad_input(engine: SimpleNamespace) -> None:
    engine.snapshot = Snapshot(problems=(PROBLEM,))
    assert refused("plan", "-f", "a") == "a.yaml: Pod ml/x: spec.containers: is missing"
    engine.snapshot = Snapshot()
    assert refused("plan", "-f", "a") == "nothing to plan: no node, pod or pod group in the input"


def test_errors_of_the_reader_are_one_line(engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(paths: list[str], **_: Any) -> Snapshot:
        raise InputError("line 3:\n  not valid YAML", source=paths[0])

    monkeypatch.setitem(solver_sched.__dict__, "load_snapshot", load)
    assert refused("plan", "-f", "a.yaml") == "a.yaml: line 3: not valid YAML"


def test_a_defect_is_one_line_too(engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def cycle(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(solver_sched.__dict__, "run_cycle", cycle)
    monkeypatch.delenv("SOLVER_SCHED_TRACEBACK", raising=False)
    line = refused("plan", "-f", "a", code=3)
    assert line == "internal error: ZeroDivisionError: by zero (SOLVER_SCHED_TRACEBACK=1 shows where)"


def test_a_snapshot_is_saved_as_it_was_planned(engine: SimpleNamespace, tmp_path: Path) -> None:
    from solver_sched.snapshot import load

    run("plan", "-f", "a", "--save-snapshot", str(tmp_path / "s.json"))
    assert load((tmp_path / "s.json").read_bytes()) == engine.given
    assert (
        refused("plan", "-f", "a", "--save-snapshot", "/nowhere/s.json") == "/nowhere/s.json: No such file or directory"
    )


def test_explain_answers_with_its_exit_code(engine: SimpleNamespace) -> None:
    waits, runs = run("explain", "ml/b", "-f", "a"), run("explain", "ml/a", "-f", "a")
    assert (waits.exit_code, runs.exit_code) == (1, 0)
    assert "Resources: 3 pods do not fit" in waits.stdout
    found = json.loads(run("explain", "ml/b", "-f", "a", "-o", "json").stdout)
    assert found["podGroup"]["reason"]["code"] == "Resources"
    assert refused("explain", "ml/c", "-f", "a") == "no pod group 'ml/c' among 2 groups; did you mean ml/b?"


def test_policy_check_answers_with_its_exit_code(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("actions: allocate, shuffle\ntiers:\n- plugins:\n  - name: gang\n  - name: tdm\n")
    bad.write_text("actions: dance\ntiers:\n- plugins:\n  - name: waltz\n")
    fine, wrong = run("policy", "check", str(good)), run("policy", "check", str(bad))
    assert (fine.exit_code, wrong.exit_code) == (0, 1)
    assert f"{good}: ok, 2 actions, 2 plugins" in fine.stdout
    assert "action shuffle  not modelled; nothing is moved" in fine.stdout
    assert "plugin tdm      revocable nodes count as ordinary nodes" in fine.stdout
    assert len(wrong.stderr.splitlines()) == 2
    piped = run("policy", "check", "-", stdin=good.read_text())
    assert (piped.exit_code, piped.stdout) == (0, fine.stdout.replace(str(good), "-"))
    bad.write_text("actions: dance\ntiers:\n- plugins:\n  - name: drf\n    arguments: {no-such: 1}\n")
    assert run("policy", "check", str(bad)).stderr.splitlines()[1].startswith(f"solver-sched: warning: {bad}: tiers[0]")
    assert json.loads(run("policy", "check", str(bad), "-o", "json").stdout)["ok"] is False
    found = json.loads(run("policy", "check", str(good), "-o", "json").stdout)
    assert found["inert"].keys() == {"action shuffle", "plugin tdm"}


def test_policy_list_names_everything_a_file_may_name() -> None:
    shown = run("policy", "list").stdout
    for name in ("default", "packing", "shuffle", "numa-aware"):
        assert f"\n{name} " in shown
    assert {policy["name"] for policy in json.loads(run("policy", "list", "-o", "json").stdout)["policies"]} >= {
        "volcano"
    }


def test_policy_show_lists_the_levels_of_evictions_where_the_policy_has_any() -> None:
    """Of the lowest priority, in the order of formulation.md 8; nothing is solved for what cannot be."""
    title = "Levels where somebody waits for whom others may make room"
    assert title not in run("policy", "show", "default").stdout
    shown = run("policy", "show", "preempting").stdout.partition(title)[2]
    order = ["in-share.keep>=p", "in-share.start>=p", "in-share.spare>=p", "keep>=p", "start>=p", "disruption.gangs"]
    order += ["disruption.pods", "disruption.whom", "disruption.time", "grow>=p", "order"]
    found = [line.split()[1] for line in shown.splitlines() if line[:2].strip().isdigit()]
    assert [name for name in found if name in order] == order


def test_policy_show_gives_arguments_with_their_defaults_and_the_levels(engine: SimpleNamespace) -> None:
    shown = run("policy", "show", "kube-batch")
    assert shown.exit_code == 0, shown.stderr
    assert "nodeaffinity.weight=1" in shown.stdout
    assert "start>=p" in shown.stdout
    assert yaml.safe_load(run("policy", "show", "kube-batch", "-o", "yaml").stdout)["actions"][0] == "reclaim"


def test_convert_and_generate_write_lists(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,32000,262144,1,T4\n")
    (tmp_path / "p.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1000,1024,1,460\n")
    out = tmp_path / "c.json"
    result = run("convert", "openb", str(tmp_path / "n.csv"), str(tmp_path / "p.csv"), "-o", str(out))
    assert result.exit_code == 0, result.stderr
    assert [item["kind"] for item in json.loads(out.read_text())["items"]] == ["Node", "Pod"]
    made = json.loads(run("generate", "--nodes", "3", "--gangs", "1", "--seed", "5").stdout)
    assert sum(item["kind"] == "Node" for item in made["items"]) == 3
    assert made == json.loads(run("generate", "--nodes", "3", "--gangs", "1", "--seed", "5").stdout)


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "solver_sched.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Unbuffered text output drops what a short write leaves over, without an error.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`generate | head -c 10`: more than a pipe holds is written after the reader has left."""
    process = started("generate", "--nodes", "500", "--gangs", "100")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize(
    ("command", "code", "stderr"),
    [
        ("plan -f - <&-", 2, "solver-sched: stdin: empty: expected Kubernetes objects as YAML or JSON\n"),
        ("policy list >&-", 0, ""),
        ("plan -f /nowhere 2>&-", 2, ""),
    ],
)
def test_closed_streams_are_empty_ones(command: str, code: int, stderr: str) -> None:
    line = f"{sys.executable} -m solver_sched.cli {command}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", stderr)


WAITS_FOR_STDIN = """
import sys
import solver_sched
from solver_sched.cli import main
solver_sched.__dict__["load_snapshot"] = lambda paths, **_: (print("ready", flush=True), sys.stdin.read())
main()
"""


def test_ctrl_c_is_quiet() -> None:
    """It waits for stdin, as a user does who forgot the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_STDIN, "plan", "-f", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("", "", 130)


def test_help_answers_at_once() -> None:
    """Processor time, best of three, so that a busy machine does not fail it: 0.25 s, 12 times an empty interpreter."""

    def best(*command: str) -> float:
        seconds = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(seconds)

    empty, shown = best("-c", "pass"), best("-m", "solver_sched.cli", "--help")
    assert shown < 0.6
    assert shown < 40 * max(empty, 0.01)


@pytest.mark.parametrize("absent", ["typer", "rich", "numpy", "ortools", "kubernetes", "yaml", "msgspec", "pydantic"])
def test_importing_the_package_loads_nothing(absent: str) -> None:
    code = f"import sys, solver_sched; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_loads_no_engine() -> None:
    heavy = {"numpy", "ortools", "kubernetes", "pydantic"}
    code = f"import sys; from solver_sched.cli import app; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from solver_sched.report.explain import explain_blocks, record, unknown_group
from solver_sched.report.layout import Block, Note, Table, layout
from solver_sched.report.tables import SHORT_ROWS, certificate, percent, plan_blocks, readable
from solver_sched.report.terminal import write
from tests.cli.conftest import bind, group


def text(blocks: list[Block], width: int | None = None) -> str:
    return "\n".join(line for line, _ in layout(blocks, width))


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_plan_reads_like_kubectl(plan: dict[str, Any]) -> None:
    assert (
        text(plan_blocks(plan))
        == """\
policy default on 2 nodes, 1,005 pods, 2 pod groups, 1 queue
pods: 2 bound, 3 pending in 1 group (Resources 1)
gap 20.0000 %, first at level start>=0; 0.42 s (encode 0.01, solve 0.40)

Pod groups
NAME  QUEUE  PHASE    MIN  RUNNING  BOUND  PENDING  REASON
ml/a  q      Running    2        0      2        0
ml/b  q      Pending    3        0      0        3  Resources: 3 pods do not fit

Queues (allocated/deserved)
QUEUE  SHARE  CPU      MEMORY
q      0.625  2500m/4  0/8Gi

Decisions
DECISION  POD     POD GROUP  ACTION    NODE
Admit     -       ml/a       -
Bind      ml/a-0  ml/a       allocate  n1
Bind      ml/a-1  ml/a       allocate  n1

Levels
LEVEL     VALUE  BOUND        GAP  GREEDY  SECONDS  STATUS
start>=0     96    120  20.0000 %      96     0.02  FEASIBLE

1 level is proven, with the value that greedy has

Problems
SOURCE  OBJECT    FIELD            MESSAGE
a.yaml  Pod ml/x  spec.containers  is missing

ignored: 1,000 finished pods, 3 kind Service"""
    )


def test_wide_shows_every_level(plan: dict[str, Any]) -> None:
    assert "order" not in text(plan_blocks(plan))
    assert re.search(r"^order +5 +5 +0 % +5 +0\.00 +OPTIMAL$", text(plan_blocks(plan, wide=True)), re.MULTILINE)


def test_long_lists_are_cut_with_those_that_wait_first(plan: dict[str, Any]) -> None:
    """100 groups of which the last waits: the short form shows it first and says that 60 are not shown."""
    plan["podGroups"] = [group(f"ml/g{i:02}", bound=1) for i in range(99)] + [group("ml/z", pending=1, code="Lost")]
    plan["decisions"] = [bind(f"ml/g{i:02}-0", "n1", f"ml/g{i:02}") for i in range(99)]
    short, wide = text(plan_blocks(plan)), text(plan_blocks(plan, wide=True))
    assert short.index("ml/z") < short.index("ml/g00")
    assert f"{100 - SHORT_ROWS} more: -o wide lists them all" in short
    assert "99 decisions: -o wide lists them all" in short
    assert all(f"ml/g{i:02}-0" in wide for i in range(99))
    assert "more:" not in wide


def test_certificates(plan: dict[str, Any]) -> None:
    plan["certificate"] = {"status": "optimal", "gap": 0.0, "winner": "greedy"}
    assert certificate(plan).startswith("optimal: every level is proven, reached by the greedy plan; 0.42 s")
    plan["certificate"] = {"status": "greedy", "gap": None, "winner": "greedy"}
    assert certificate(plan).startswith("greedy: no bound is known; 0.42 s")


def test_an_open_gap_never_prints_as_none() -> None:
    assert percent(0.0) == "0 %"
    assert percent(1e-9) == "0.0001 %"
    assert percent(0.000832) == "0.0832 %"


def test_narrow_terminals_lose_columns_of_least_use_and_no_text(plan: dict[str, Any]) -> None:
    lines = text(plan_blocks(plan), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert not any("PHASE" in line for line in lines)
    assert "Resources:3podsdonotfit" in "".join(lines).replace(" ", "")


cells = st.text(st.characters(codec="utf-8"), max_size=30)


@given(st.lists(st.tuples(cells, cells, cells), max_size=5), st.integers(20, 90))
def test_a_table_keeps_its_width_and_its_words(rows: list[tuple[str, str, str]], width: int) -> None:
    """Whatever the names hold: no control character gets through, and wrapping loses no letter of the last column."""
    table = Table("", ("A", "B", "C"), rows, optional=("B",))
    lines = [line for line, _ in layout([table], width)]
    assert all(line.isprintable() for line in lines)
    assert all(line == line.rstrip() for line in lines)
    narrow = [line for line in lines if cell_len(line) > width]
    first = max([1, *(cell_len(ascii(row[0])) for row in rows)])
    assert not narrow or first + 26 > width
    joined = "".join("".join(lines).split())
    for row in rows:
        visible = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in row[2])
        assert not visible.split() or visible.split()[0][:5] in joined


def test_names_cannot_steer_the_terminal() -> None:
    assert text([Note("pod \x1b[31mred\nnext [bold]")]) == r"pod \x1b[31mred\nnext [bold]"


def test_output_into_a_pipe_is_plain_and_one_line_per_row(plan: dict[str, Any]) -> None:
    plan["podGroups"][1]["reason"]["message"] = "word " * 100
    out = io.StringIO()
    write(plan_blocks(plan), out)
    assert "\x1b" not in out.getvalue()
    assert "word " * 99 in out.getvalue()


def test_a_terminal_gets_colour_unless_it_asks_not_to(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    write(plan_blocks(plan), coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    write(plan_blocks(plan), plain)
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured.getvalue())
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain.getvalue())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.getvalue()).rstrip() == text(plan_blocks(plan), 100)


def test_an_ascii_stream_spells_out_what_it_lacks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    write([Note("gruppe-ä")], stream)
    stream.flush()
    assert raw.getvalue() == b"gruppe-\\xe4\n"


def test_explain_shows_the_whole_record(plan: dict[str, Any]) -> None:
    shown = text(explain_blocks(plan, "ml/b"))
    assert "Pods:   0 running, 0 bound now, 0 nominated, 3 pending; minimum 3" in shown
    assert "Resources: 3 pods do not fit" in shown
    assert re.search(r"^  Fits at once: +2$", shown, re.MULTILINE)
    assert re.search(r"^  Held: +no$", shown, re.MULTILINE)
    assert (
        """\
Pod sets
PODS  REQUEST            NODES ELIGIBLE  REMOVED   FITS NOW
   3  cpu 1, memory 1Gi               1  Taints 1  2"""
        in shown
    )
    assert "Queue q after the plan, share 0.625" in shown
    assert "deserved   cpu 4, memory 8Gi" in shown


def test_a_record_of_records_is_a_table(plan: dict[str, Any]) -> None:
    plan["podGroups"][1]["reason"]["detail"] = {
        "queue": {"name": "q", "used": {"cpu": "1", "memory": "2Gi"}, "cap": None}
    }
    expected = "Queue\nFIELD  VALUE\nName   q\nUsed   cpu 1, memory 2Gi\nCap    -\n"
    assert expected in text(explain_blocks(plan, "ml/b"))


def test_explain_of_a_group_whose_pods_are_for_another_scheduler(plan: dict[str, Any]) -> None:
    plan["podGroups"][0] |= {"running": 0, "bound": 0, "pending": 0, "reason": None, "minMember": 3}
    assert "or is of a scheduler not decided on" in text(explain_blocks(plan, plan["podGroups"][0]["name"]))


def test_explain_shows_what_could_not_be_read_in_its_namespace(plan: dict[str, Any]) -> None:
    """A pod with a mistake is in no plan: without this line nobody would know why the group lacks one."""
    mistake = {"source": "f.yaml", "field": "spec", "message": "is missing"}
    plan["snapshot"]["problems"] = [mistake | {"object": "Pod ml/a-9"}, mistake | {"object": "Pod web/x"}]
    shown = text(explain_blocks(plan, "ml/a"))
    assert "Problems" in shown
    assert "ml/a-9" in shown
    assert "web/x" not in shown


def test_explain_of_a_group_that_runs_says_where(plan: dict[str, Any]) -> None:
    shown = text(explain_blocks(plan, "ml/a"))
    assert "no pod of it is pending" in shown
    assert "ml/a-1" in shown
    assert record(plan, "ml/a")["decisions"] == plan["decisions"]


def test_a_share_of_memory_is_readable() -> None:
    assert readable("memory", "10607342087606") == "~9878.9Gi"  # 10607342087606 / 2^30 = 9878.86
    assert readable("memory", "5767169") == "~5.5Mi"
    assert [readable("memory", "8Gi"), readable("memory", "1000"), readable("pods", "2000000")] == [
        "8Gi",
        "1000",
        "2000000",
    ]


def test_a_pod_of_a_group_is_led_to_its_group() -> None:
    assert unknown_group(["ml/a"], "ml/a-0", "ml/a") == "ml/a-0 is no pod group but a pod of ml/a: name that"


def test_an_unknown_group_gets_the_nearest_name() -> None:
    names = ["ml/train", "ml/infer"]
    assert unknown_group(names, "ml/trian") == "no pod group 'ml/trian' among 2 groups; did you mean ml/train?"
    assert unknown_group(names, "infer") == "no pod group 'infer' among 2 groups; did you mean ml/infer?"
    assert unknown_group([], "x/y") == "no pod group 'x/y' among 0 groups"


def evicting(plan: dict[str, Any]) -> dict[str, Any]:
    """ml/a ends for ml/b, whose pods are nominated."""
    why = "priority 0 gives way to ml/b of priority 10; all its 2 pods go; n1: 2 cpu to place, 0 idle, 2 given up"
    evict = {"kind": "Evict", "action": "preempt", "node": "n1", "podGroup": "ml/a", "queue": "q", "for": "ml/b"}
    plan["decisions"] = [
        *({**evict, "pod": f"ml/a-{i}", "reason": why} for i in range(2)),
        *({**bind(f"ml/b-{i}", "n1", "ml/b"), "kind": "Nominate"} for i in range(2)),
    ]
    detail = {"evictions": {"mayGo": 0, "fits": 0, "keptBack": [{"rule": "budget", "pods": 2}]}}
    plan["podGroups"] = [
        group("ml/a", code="Evicted", running=0, phase="Pending"),
        group("ml/b", nominated=2, code="Nominated"),
        group("ml/c", pending=2, code="Resources", detail=detail),
    ]
    return plan


def test_who_goes_for_whom_is_a_table_of_its_own(plan: dict[str, Any]) -> None:
    shown = text(plan_blocks(evicting(plan)))
    assert "pods: 0 bound, 2 nominated, 2 evicted (1 gang ends), 2 pending in 1 group (Resources 1)" in shown
    assert (
        """\
Evictions
POD     NODE  ACTION   FOR   REASON
ml/a-0  n1    preempt  ml/b  priority 0 gives way to ml/b of priority 10; all its 2 pods go; """
        in shown
    )
    assert (
        """\
Nominations (bound when the room is there)
DECISION  POD     POD GROUP  ACTION    NODE
Nominate  ml/b-0  ml/b       allocate  n1
Nominate  ml/b-1  ml/b       allocate  n1
"""
        in shown
    )


def test_long_lists_of_evictions_are_cut(plan: dict[str, Any]) -> None:
    found = evicting(plan)
    found["decisions"] = found["decisions"][:1] * 90 + found["decisions"][2:3] * 90
    short, wide = text(plan_blocks(found)), text(plan_blocks(found, wide=True))
    assert (short.count("ml/a-0"), wide.count("ml/a-0")) == (SHORT_ROWS, 90)
    assert "50 more: -o wide lists them all" in short


def test_explain_shows_what_each_rule_keeps_back(plan: dict[str, Any]) -> None:
    shown = text(explain_blocks(evicting(plan), "ml/c"))
    assert "  Evictions:   mayGo 0, fits 0\n\nKept back\nPODS  RULE\n   2  budget" in shown or (
        "Kept back\nRULE    PODS\nbudget  2" in shown
    )

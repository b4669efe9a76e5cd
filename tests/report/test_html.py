"""Pages, read as HTML: their structure, that what a cluster says stays text, that tables hold the numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from solver_sched.cli.app import app
from solver_sched.compare import Run, comparison
from solver_sched.cycle import run_cycle
from solver_sched.errors import ConfigError
from solver_sched.policy import load_policy
from solver_sched.report.html import page
from solver_sched.report.html.nodes import busiest, colour
from solver_sched.report.html.simulation import span
from solver_sched.report.layout import printable
from solver_sched.snapshot import Snapshot
from tests.report import documents
from tests.strategies import snapshots

VOID = {"meta", "link", "br", "img", "input", "hr"}
DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "plan": documents.plan,
    "plan of the example": lambda: documents.plan("cluster.yaml", "default"),
    "comparison": documents.compared,
    "comparison of policies": lambda: documents.compared("preempting.yaml", "preempting", "default"),
    "simulation": documents.simulation,
    "hostile plan": lambda: documents.hostile(documents.plan()),
    "hostile comparison": lambda: documents.hostile(documents.compared()),
    "hostile simulation": lambda: documents.hostile(documents.simulation()),
}
every_page = pytest.mark.parametrize("name", DOCUMENTS)


class Element:
    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element | str] = []

    def all(self, *tags: str) -> Iterator[Element]:
        """Elements below, in the order of the text."""
        for child in self.children:
            if isinstance(child, Element):
                if not tags or child.tag in tags:
                    yield child
                yield from child.all(*tags)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def rows(self) -> list[list[str]]:
        return [[cell.text for cell in row.all("th", "td")] for row in self.all("tr")]


class Reader(HTMLParser):
    """A tree; every element must be closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(text: str) -> Element:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def table(root: Element, caption: str) -> list[list[str]]:
    """The rows of the one table with this caption, its header first."""
    (found,) = [one for one in root.all("table") if next(one.all("caption")).text == caption]
    return found.rows()


@every_page
def test_a_page_runs_nothing_and_asks_for_nothing(name: str) -> None:
    text = page(DOCUMENTS[name]())
    root = read(text)
    tags = {element.tag for element in root.all()}
    assert not tags & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "img",
        "image",
        "form",
        "base",
        "audio",
        "video",
        "a",
    }
    for element in root.all():
        for attribute, value in element.attributes.items():
            assert not attribute.startswith("on"), (element.tag, attribute)
            assert attribute not in ("src", "action", "srcset", "data", "ping")
            if attribute in ("href", "xlink:href"):
                assert value is not None
                assert value.startswith("#")
            if attribute == "style":
                assert "url(#" not in (value or "") or "url(#p" in (value or "")
                assert not re.search(r"url\((?!#)|@import|expression", value or "")
    policy = next(one for one in root.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    (style,) = root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text


@every_page
def test_a_page_can_be_read_without_seeing_it(name: str) -> None:
    """One title, headings in order, names for drawings and tables, and no id twice."""
    root = read(page(DOCUMENTS[name]()))
    assert next(root.all("html")).attributes["lang"] == "en"
    assert next(root.all("title")).text
    headings = [int(element.tag[1]) for element in root.all("h1", "h2", "h3")]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    for drawing in root.all("svg"):
        assert drawing.attributes["role"] == "img"
        assert drawing.attributes["aria-label"]
        assert drawing.attributes["viewbox"]
        first, second = (
            child for child in drawing.children if isinstance(child, Element) and child.tag in ("title", "desc")
        )
        assert first.text
        assert second.text
    figures = list(root.all("figure"))
    assert figures
    for figure in figures:
        assert next(figure.all("h3")).text
        assert list(next(figure.all("details")).all("table"))
    for one in root.all("table"):
        assert all(cell.attributes.get("scope") == "col" for row in one.all("thead") for cell in row.all("th"))
        for row in next(one.all("tbody")).all("tr"):
            assert [cell.attributes.get("scope") for cell in row.all("th")] == ["row"]
        assert len({len(row) for row in one.rows()}) == 1
    ids = [element.attributes["id"] for element in root.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    named = {element.attributes["aria-labelledby"] for element in root.all() if "aria-labelledby" in element.attributes}
    assert named <= set(ids)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("hostile plan", lambda plan: [*plan["podGroups"], *plan["queues"], *plan["nodes"]]),
        ("hostile comparison", lambda found: [*found["differences"], *found["runs"][0]["nodes"]]),
        ("hostile simulation", lambda found: [*found["runs"], *found["runs"][0]["jobs"], *found["runs"][0]["queues"]]),
    ],
)
def test_hostile_names_stay_text(name: str, rows: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """They are told as they are, but for characters that steer a terminal, or the order of what is read."""
    document = DOCUMENTS[name]()
    text = page(document)
    told = read(text).text
    for row in rows(document):
        assert printable(row["name"]) in told
    assert "\\u202e \\x00 \\x1b[31m" in told
    assert not {"\u202e", "\x00", "\x1b"} & set(text)


def test_the_page_of_a_plan_has_the_numbers_of_the_plan() -> None:
    document = documents.plan()
    root = read(page(document))
    gpu = table(root, "Nodes by nvidia.com/gpu")
    assert gpu[0] == ["NODE", "USED", "ALLOCATABLE", "PODS COME", "PODS GO"]
    # both nodes of 8 GPUs stay full: on gpu-1 two pods go for one of 2 GPUs, on gpu-2 four for two of 2 GPUs each
    assert gpu[1:] == [["gpu-1", "8", "8", "1", "2"], ["gpu-2", "8", "8", "2", "4"]]
    queues = {row[0]: row for row in table(root, "Queues")[1:]}
    assert {name: row[1] for name, row in queues.items()} == {
        queue["name"]: f"{queue['share']:.3f}" for queue in document["queues"]
    }
    assert queues["research"][3] == "cpu 14, pods 7, nvidia.com/gpu 10"
    waiting = {row[0]: row[1] for row in table(root, "Pod groups that wait")[1:]}
    reasons = {group["name"]: group["reason"] for group in document["podGroups"] if group["reason"]}
    assert waiting == {name: f"{reason['code']}: {reason['message']}" for name, reason in reasons.items()}
    assert len(table(root, "Evictions")) == 1 + sum(one["kind"] == "Evict" for one in document["decisions"]) == 7
    levels = table(root, "Levels")
    assert [row[:3] for row in levels[1:]] == [
        [level["name"], str(level["value"]), str(level["bound"])] for level in document["levels"]
    ]
    squares = [element for element in root.all("rect") if "cell" in (element.attributes.get("class") or "")]
    assert len(squares) == 2 * 2  # two nodes, by GPU and by CPU
    assert squares[0].text == "gpu-1: 8/8 nvidia.com/gpu; 1 pod comes, 2 pods go"


def test_the_page_of_a_comparison_has_both_runs() -> None:
    document = documents.compared("fragmented.yaml", "default")
    root = read(page(document))
    measures = {row[0]: row[1:] for row in table(root, "Measures")}
    assert measures["MEASURE"] == ["greedy", "optimal"]
    assert measures["nvidia.com/gpu used of 32"] == ["8 (25.0 %)", "32 (100.0 %)"]
    room = table(root, "Room")
    assert ["nvidia.com/gpu", "greedy", "32", "8", "24", "0"] in room
    assert ["nvidia.com/gpu", "optimal", "32", "32", "0", "0"] in room
    differ = table(root, "1 group fares differently")
    assert differ[1][:4] == ["ml/train", "default", "3 wait", "3 bound"]
    maps = [drawing.attributes["aria-label"] for drawing in root.all("svg")]
    assert "Nodes by nvidia.com/gpu in use, greedy" in maps
    assert "Nodes by nvidia.com/gpu in use, optimal" in maps


def test_the_page_of_a_simulation_has_its_series() -> None:
    root = read(page(documents.simulation()))
    measures = {row[0]: row[1:] for row in table(root, "Measures")}
    assert measures["makespan"] == ["2.5 min", "2.5 min"]
    assert measures["cpu utilisation"] == ["83.3 %", "83.3 %"]
    assert measures["waiting time, p95"] == ["50 s", "50 s"]
    assert table(root, "cpu in use over time") == [
        ["SECONDS", "greedy default", "optimal default"],
        ["0", "1.000", "1.000"],
        ["50", "1.000", "1.000"],
        ["100", "0.500", "0.500"],
        ["150", "0.000", "0.000"],
    ]
    assert table(root, "Waiting times")[1:3] == [["greedy default", "0", "0.500"], ["greedy default", "50", "1.000"]]
    jobs = [one.rows() for one in root.all("table") if "seconds since the start" in next(one.all("caption")).text]
    assert len(jobs) == 2
    assert jobs[0][2] == ["ml/b", "q", "1", "50", "100", "150", "0"]
    drawn = [drawing.attributes["aria-label"] for drawing in root.all("svg")]
    wanted = ("Queue share against deserved", "Waiting times", "Evictions over time", "Gangs over time, greedy default")
    assert set(wanted) <= set(drawn)


def test_a_simulation_that_was_stopped_says_so() -> None:
    document = documents.simulation() | {"partial": True, "notes": ["2 jobs of the trace were left out"]}
    lead = next(read(page(document)).all("header")).text
    assert "partial" in lead
    assert "note: 2 jobs of the trace were left out" in lead


def test_runs_of_several_seeds_are_told_apart() -> None:
    document = documents.simulation()
    document["runs"].append({**document["runs"][0], "seed": 1})
    root = read(page(document))
    assert table(root, "Measures")[0] == [
        "MEASURE",
        "greedy default, seed 0",
        "optimal default",
        "greedy default, seed 1",
    ]
    assert len(table(root, "cpu in use over time")[0]) == 1 + 3


def test_jobs_that_never_started_or_ended_are_drawn_as_far_as_they_came() -> None:
    document = documents.simulation()
    document["runs"][0]["jobs"][1] |= {"started": None, "ended": None}
    document["runs"][1]["jobs"][1] |= {"ended": None}
    jobs = [
        one.rows() for one in read(page(document)).all("table") if "since the start" in next(one.all("caption")).text
    ]
    assert [rows[2][3:6] for rows in jobs] == [["50", "-", "-"], ["50", "100", "-"]]


def nothing_ran() -> dict[str, Any]:
    """A simulation that was stopped before its first cycle."""
    document = documents.simulation()
    for run in document["runs"]:
        run["series"] = {
            "time": [],
            "utilisation": {"cpu": []},
            "pending": [],
            "running": [],
            "evictions": [],
            "queues": {},
        }
        run |= {"waiting": {"seconds": [], "share": []}, "jobs": [], "queues": [], "sizes": []}
        run["summary"] |= {"makespan": 0, "utilisation": {}}
    return document


@pytest.mark.parametrize(
    "emptied",
    [
        lambda: {**documents.simulation(), "runs": []},
        nothing_ran,
        lambda: {**documents.plan(), "nodes": [], "queues": [], "podGroups": [], "decisions": [], "levels": []},
        lambda: {key: value for key, value in documents.plan().items() if key != "nodes"},
    ],
)
def test_where_there_is_nothing_there_is_still_a_page(emptied: Callable[[], dict[str, Any]]) -> None:
    root = read(page(emptied()))
    assert next(root.all("h1")).text


def test_a_map_of_many_nodes_and_tables_that_end() -> None:
    """3,000 nodes: a square each; the table stops at 2,000 rows and says how many are left."""
    node = {"allocatable": {"cpu": "4", "pods": "110"}, "used": {"cpu": "1"}, "arrive": 1, "leave": 0}
    text = page({**documents.plan(), "nodes": [{"name": f"n{i}", **node} for i in range(3000)]})
    root = read(text)
    squares = [element for element in root.all("rect") if element.attributes.get("class") == "cell"]
    assert len(squares) == 3000
    assert squares[10].text.startswith("n10: ")  # n2 before n10
    assert len(table(root, "Nodes by cpu")) == 1 + 2000
    assert "1,000 more rows: -o json has them all." in root.text
    assert len(text) < 1_500_000


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        ("0", "8", "u0"),
        ("8", "8", "u10"),
        ("4", "8", "u5"),
        ("1m", "8", "u1"),
        ("7999m", "8", "u9"),
        ("9", "8", "over"),
    ],
)
def test_only_the_idle_look_idle_and_only_the_full_look_full(used: str, total: str, expected: str) -> None:
    assert colour({"allocatable": {"cpu": total}, "used": {"cpu": used}}, "cpu") == expected


def test_a_node_without_the_resource_has_no_colour() -> None:
    assert colour({"allocatable": {"cpu": "8"}, "used": {}}, "nvidia.com/gpu") == "none"
    # on paper more than nothing of it is in use
    assert colour({"allocatable": {"cpu": "8"}, "used": {"nvidia.com/gpu": "1"}}, "nvidia.com/gpu") == "over"


def test_devices_come_before_cpu_and_memory() -> None:
    node = {
        "allocatable": {"cpu": "1", "memory": "1", "pods": "1", "b.com/x": "1", "a.com/y": "1"},
        "used": {"b.com/x": "1"},
    }
    assert busiest([node], 3) == ["b.com/x", "cpu", "memory"]
    assert busiest([node], 1) == ["b.com/x"]
    assert busiest([], 3) == []


def test_times_are_told_in_units_that_one_can_grasp() -> None:
    assert [span(s) for s in (None, 0, 0.25, 59, 119, 120, 7199, 7200, 172800)] == [
        *("-", "0 s", "0.2 s", "59 s", "119 s", "2.0 min", "120.0 min", "2.0 h", "2.0 d"),
    ]


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots(hostile=True))
def test_any_cluster_has_its_pages(snapshot: Snapshot) -> None:
    """Empty ones, over-full ones, and those with absurd amounts."""
    report = run_cycle(snapshot, load_policy("default"), documents.BUDGET, "greedy")
    for document in (report.as_dict(nodes=True), comparison([Run("greedy", report)], nodes=True)):
        squares = [one for one in read(page(document)).all("rect") if "cell" in (one.attributes.get("class") or "")]
        assert len(squares) % max(1, len(snapshot.nodes)) == 0


def test_a_page_is_the_same_each_time() -> None:
    document = documents.compared()
    assert page(document) == page(document)


def test_a_document_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'QueueList' has no page: must be Plan, Comparison or Simulation"):
        page({"kind": "QueueList"})


@pytest.mark.parametrize("missing", ["jinja2", "markupsafe", "matplotlib"])
def test_a_missing_library_is_one_line_that_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in list(sys.modules):
        if module.startswith("solver_sched.report.html.") or module.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"^-o html needs {missing}: pip install 'solver-sched\[report\]'$"):
        page({"kind": "Plan"})
    said = CliRunner().invoke(app, ["plan", "-f", "/nowhere", "-o", "html"])
    assert (said.exit_code, said.stdout) == (2, "")
    assert f"-o html needs {missing}" in said.stderr

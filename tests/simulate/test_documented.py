"""docs/simulation.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from solver_sched.simulate import lines
from solver_sched.simulate.workload import Spec

DOCUMENT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def test_the_example_of_json_lines_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    path = tmp_path / "example.jsonl"
    path.write_text(example)
    found = lines.read(path)
    assert found.problems == ()
    assert (len(found.nodes), found.jobs[0].size, len(found.events)) == (4, 8, 1)


def test_every_key_of_a_spec_is_listed_with_its_default() -> None:
    table = DOCUMENT.partition("| key | default | |")[2]
    listed: dict[str, str] = {}
    for keys, defaults in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", table, re.MULTILINE):
        listed |= dict(zip(re.findall(r"`(\w+)`", keys), defaults.split(", "), strict=True))
    assert listed == {name: f"{getattr(Spec(), name):g}" for name in Spec.__struct_fields__}


def test_every_field_of_a_job_line_is_listed() -> None:
    (row,) = re.findall(r"^\| `Job` \|.*$", DOCUMENT, re.MULTILINE)
    names = {lines._Job.__struct_encode_fields__[n] for n in range(len(lines._Job.__struct_fields__))}
    assert names <= set(re.findall(r"`(\w+)`", row))

"""Answers on stdout: JSON and YAML undecorated, tables and pages through report/."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from solver_sched.cli.options import Output, Report
from solver_sched.report.terminal import write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from solver_sched.report.layout import Block


def checked_form(form: Report) -> None:
    """Raises ConfigError for a page where what draws it is not installed: before there is anything to draw."""
    if form is Report.html:
        from solver_sched.report.html import required

        required()


def answer(value: Mapping[str, Any], form: Output | Report, blocks: Callable[[], list[Block]]) -> None:
    """Write `value` in `form`; `blocks` makes the table and is only called for one."""
    if form in (Output.json, Report.json):
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    elif form is Report.html:
        from solver_sched.report.html import page

        # characters that the stream's encoding may lack are spelled out, as a page can
        sys.stdout.write(page(value).encode("ascii", "xmlcharrefreplace").decode())
    elif form in (Output.yaml, Report.yaml):
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump(dict(value), sys.stdout, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    else:
        write(blocks())

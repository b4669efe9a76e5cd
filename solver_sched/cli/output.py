"""Answers on stdout: JSON and YAML undecorated, tables through report/."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from solver_sched.cli.options import Output
from solver_sched.report.terminal import write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from solver_sched.report.layout import Block


def answer(value: Mapping[str, Any], form: Output, blocks: Callable[[], list[Block]]) -> None:
    """Write `value` in `form`; `blocks` makes the table and is only called for one."""
    if form is Output.json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    elif form is Output.yaml:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump(dict(value), sys.stdout, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    else:
        write(blocks())

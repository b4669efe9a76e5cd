"""A plan, a comparison or a simulation as one self-contained page: no network, no script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from solver_sched.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTRA = ("jinja2", "matplotlib")


def page(document: Mapping[str, Any]) -> str:
    """The page of a document of kind Plan, Comparison or Simulation, as `-o json` prints it.

    `nodes` of a plan, and of the runs of a comparison, are drawn where they are given (`document.node_rows`). All text
    of the document is escaped. Raises ConfigError where the libraries of the extra `report` are missing, ValueError
    for another kind.
    """
    try:
        from solver_sched.report.html.pages import sections
        from solver_sched.report.html.render import rendered
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"-o html needs {missing.name}: pip install 'solver-sched[report]'") from None
    return rendered(sections(document))

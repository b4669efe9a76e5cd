"""A plan, a comparison or a simulation as one self-contained page: no network, no script."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from solver_sched.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTRA = ("jinja2", "markupsafe", "matplotlib")


def required() -> None:
    """Raises ConfigError where a library of the extra `report` is missing: better before a plan is made than after."""
    try:
        for module in ("pages", "render"):
            import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"-o html needs {missing.name}: pip install 'solver-sched[report]'") from None


def page(document: Mapping[str, Any]) -> str:
    """The page of a document of kind Plan, Comparison or Simulation, as `-o json` prints it.

    `nodes` of a plan, and of the runs of a comparison, are drawn where they are given (`document.node_rows`). All text
    of the document is escaped. Raises ConfigError where the libraries are missing (`required`), ValueError for another
    kind.
    """
    required()
    from solver_sched.report.html.pages import sections
    from solver_sched.report.html.render import rendered

    return rendered(sections(document))

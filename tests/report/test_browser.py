"""Pages in a real browser: nothing sticks out, nothing is complained of or asked for, and both schemes are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from solver_sched.report.html import page
from tests.report import browser
from tests.report.test_html import DOCUMENTS, every_page

pytestmark = [
    pytest.mark.skipif(browser.found() is None, reason=f"no browser here: none of {', '.join(browser.BROWSERS)}"),
    pytest.mark.xdist_group("browser"),
]
STICKS_OUT = """
[...document.querySelectorAll("body *")].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth + 1 && !one.closest(".scroll, svg, .said");
}).map(one => one.tagName + "." + one.className).slice(0, 5).join(" ")
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Tab]:
    program = browser.found()
    assert program is not None
    with browser.tab(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@every_page
@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (360, "light"), (1280, "light"), (1280, "dark")])
def test_a_page_fits_and_is_quiet(
    tab: browser.Tab, tmp_path: Path, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(DOCUMENTS[name]()), encoding="utf-8")
    tab.open(file, width=width, scheme=scheme)
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert tab.value("innerWidth") == width
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(STICKS_OUT) == ""
    assert tab.requests() == [file.as_uri()]
    assert tab.complaints() == []
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    # drawings follow the scheme: no colour of theirs is left that stood in for one of the page
    assert tab.value("document.querySelectorAll('svg').length") > 0
    assert tab.value("document.body.innerHTML.includes('#a1b2')") is False


def test_a_page_is_printed_dark_on_white_and_nothing_is_cut_off(tab: browser.Tab, tmp_path: Path) -> None:
    """A sheet of A4 without its margins is some 720 pixels wide; scrolled out of sight is lost there."""
    file = tmp_path / "page.html"
    file.write_text(page(DOCUMENTS["plan of the example"]()), encoding="utf-8")
    tab.open(file, width=720, scheme="dark")
    tab.print_view()
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("Math.max(...[...document.querySelectorAll('table')].map(one => one.scrollWidth))") <= 720

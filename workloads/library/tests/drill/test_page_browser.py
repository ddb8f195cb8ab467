"""The page of a drill in a real browser: nothing cut off on a telephone, readable in the dark, nothing fetched."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill.show.page import page
from workloads.library.tests.drill.test_show import BROKEN, HELD, UNSEEN
from workloads.library.tests.report.chromium import Page, binary, chromium
from workloads.library.tests.report.test_browser import CONTRAST

pytestmark = pytest.mark.browser
CUT_OFF = "[...document.querySelectorAll('td, th, p, h1')].filter(e => e.scrollWidth > e.clientWidth + 1).length"


@pytest.fixture(scope="module")
def browser(require: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    require(binary(), "chromium is not installed (make system-packages)")
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.mark.parametrize("made", [HELD, BROKEN, UNSEEN], ids=["held", "broken", "unseen"])
def test_a_page_is_whole_on_a_telephone_and_stands_out_in_the_dark(
    browser: Page, made: dict[str, Any], tmp_path: Path
) -> None:
    long = {"t": made["start"], "step": "targets", "what": "node/gke-" + "spot-l4-" * 30}
    file = tmp_path / "page.html"
    file.write_text(page(made | {"timeline": [*made["timeline"], long]}))
    browser.open(file)
    for width in (1280, 400):
        for dark in (False, True):
            browser.look(dark=dark, width=width)
            assert browser.evaluate("document.documentElement.scrollWidth") == width
            assert browser.evaluate(CUT_OFF) == 0
            faint = [row for row in browser.evaluate(CONTRAST) if row[1] < 4.5]
            assert faint == [], (width, dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("file://")] == []

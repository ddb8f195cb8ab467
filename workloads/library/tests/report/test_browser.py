"""Tests the report in a real browser: no complaint, no request, nothing cut off, readable in dark
mode and on paper.
"""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from holdfast.report.cli import write_report
from workloads.library.tests import sample
from workloads.library.tests.report.chromium import Page, binary, chromium

# `make cdktf-cli` installs it from requirements/node/package-lock.json.
AXE = Path(__file__).parents[4] / ".node/node_modules/axe-core/axe.min.js"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(
    require: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Page]:
    require(binary(), "chromium is not installed (make system-packages)")
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def pages(browser: Page, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three reports: of the demo; with money, churn and waits; and one beyond the page's limits."""
    demo = tmp_path_factory.mktemp("demo")
    priced = tmp_path_factory.mktemp("priced")
    long = tmp_path_factory.mktemp("long")
    summaries = {demo: sample.demo(demo)}
    sample.write_watched_job(priced / "events")
    kills = sample.make_kills(90)
    for n in range(9):
        lines = sample.training(
            f"train-{n}",
            seed=n,
            total=2500,
            every=10,
            kills=kills,
        )
        sample.write(long / "events" / f"{n}.jsonl", lines)
    sample.write(
        long / "events" / "batch.jsonl", sample.batch("batch", workers=40, items=3000, kills=150)
    )
    paths = {}
    for name, folder in (("demo", demo), ("priced", priced), ("long", long)):
        paths[name] = folder / "report.html"
        write_report(folder / "events", summaries.get(folder), paths[name], as_json=False)
    return paths


def test_the_demo_page_loads_nothing_and_opens_by_keyboard(
    browser: Page, pages: dict[str, Path]
) -> None:
    browser.look()
    browser.open(pages["demo"])
    assert browser.complaints == []
    urls = []
    for url in browser.requests:
        if not url.startswith(("file://", "data:")):
            urls.append(url)
    assert urls == []
    assert browser.evaluate("document.querySelectorAll('svg[role=img] title').length") == 4
    widths = browser.evaluate(
        "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert min(widths) > 500
    assert browser.evaluate("document.querySelectorAll('svg path, svg rect').length") > 60
    key = {
        "key": "Enter",
        "code": "Enter",
        "text": "\r",
        "windowsVirtualKeyCode": 13,
    }
    for index in range(4):
        browser.evaluate(f"document.querySelectorAll('summary')[{index}].focus()")
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, **key)
    open_tables = browser.evaluate(
        "[...document.querySelectorAll('details')].filter(d => d.open).length"
    )
    assert open_tables == 4
    browser.look(media="print", width=700)
    edges = "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
    assert browser.evaluate(f"Math.max(...{edges})") <= 700


@pytest.mark.parametrize(
    ("name", "text"),
    [("demo", "Objectives"), ("priced", "Capacity"), ("long", "6 of 9 jobs drawn")],
)
def test_every_page_is_readable_at_any_width_and_in_dark_mode(
    require: Callable[[object, str], None],
    browser: Page,
    pages: dict[str, Path],
    name: str,
    text: str,
) -> None:
    browser.open(pages[name])
    assert text in browser.evaluate("document.body.textContent")
    for width in (1280, 1100, 480, 400):
        browser.look(width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.look()
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(OVERLAPPING) == []
    for dark in (False, True):
        browser.look(dark=dark)
        ratios = browser.evaluate(CONTRAST)
        assert len(ratios) > 100
        rows = [row for row in ratios if row[1] < 4.5]
        assert rows == []
    require(AXE.exists(), "axe-core is not installed (make cdktf-cli)")
    browser.evaluate(AXE.read_text() + ";0")
    for dark in (False, True):
        browser.look(dark=dark)
        results = browser.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert len(results["passes"]) > 20
        assert results["violations"] == []


# The contrast ratio of WCAG 2 of every text of the page and the plots, against the page or the bar
# behind it.
CONTRAST = """
(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => {
    const [r, g, b] = rgb(c).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05);
  };
  const paper = getComputedStyle(document.body).backgroundColor, rows = [];
  const bar = () => getComputedStyle(document.querySelector('svg [fill="#0f766e"]')).fill;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), owner = walk.currentNode.parentElement;
    if (!text || owner.closest('script,title,desc')) continue;
    const style = getComputedStyle(owner), ink = owner.closest('svg') ? style.fill : style.color;
    rows.push([text, ratio(ink, text.endsWith('% useful') ? bar() : paper)]);
  }
  return rows;
})()
"""
OUTSIDE = """
[...document.querySelectorAll('svg text')].filter(t => {
  const box = t.getBoundingClientRect();
  return t.textContent && (box.left < 0 || box.right > innerWidth);
}).map(t => t.textContent)
"""
OVERLAPPING = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const visible = t => t.textContent && getComputedStyle(t).opacity !== '0';
  const boxes = [...svg.querySelectorAll('text')].filter(visible)
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const overlap = (p, q) => p.left < q.right - 1 && q.left < p.right - 1
    && p.top < q.bottom - 1 && q.top < p.bottom - 1;
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1)
    .filter(([b, q]) => overlap(p, q)).map(([b]) => a + ' / ' + b));
})
"""

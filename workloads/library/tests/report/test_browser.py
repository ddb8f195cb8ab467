"""The report in a real browser: no complaint, no request, nothing cut off, readable in the dark and
on paper.
"""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from holdfast.report.cli import write_report
from workloads.library.tests import sample
from workloads.library.tests.report.chromium import Page, binary, chromium

# What `make cdktf-cli` installs from requirements/node/package-lock.json.
AXE = Path(__file__).parents[4] / ".node/node_modules/axe-core/axe.min.js"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(
    require: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Page]:
    require(binary(), "chromium is not installed (make system-packages)")
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(browser: Page, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports: of the demo; with money, churn and waits; with more jobs, lives and evictions than
    are drawn.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ("demo", "priced", "long")}
    demo, priced, long = folders.values()
    summaries = {demo: sample.demo(demo)}
    sample.watched(priced / "events")
    kills = tuple((10.0 + n % 7, "SIGKILL" if n % 2 else "SIGTERM") for n in range(90))
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
    for folder in folders.values():
        write_report(
            folder / "events", summaries.get(folder), folder / "report.html", as_json=False
        )
    return {name: folder / "report.html" for name, folder in folders.items()}


def test_the_page_of_the_demo_asks_for_nothing_and_opens_by_keyboard(
    browser: Page, pages: dict[str, Path]
) -> None:
    browser.look()
    browser.open(pages["demo"])
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file://", "data:"))] == []
    assert browser.evaluate("document.querySelectorAll('svg[role=img] title').length") == 4
    boxes = browser.evaluate(
        "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert all(width > 500 for width in boxes)
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
    assert (
        browser.evaluate("[...document.querySelectorAll('details')].filter(d => d.open).length")
        == 4
    )
    browser.look(media="print", width=700)
    edges = "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
    assert browser.evaluate(f"Math.max(...{edges})") <= 700


@pytest.mark.parametrize(
    ("shown", "text"),
    [("demo", "Objectives"), ("priced", "Capacity"), ("long", "6 of 9 jobs drawn")],
)
def test_every_page_can_be_read_at_any_width_in_the_dark_and_by_a_screen_reader(
    require: Callable[[object, str], None],
    browser: Page,
    pages: dict[str, Path],
    shown: str,
    text: str,
) -> None:
    browser.open(pages[shown])
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
        assert [row for row in ratios if row[1] < 4.5] == []
    require(AXE.exists(), "axe-core is not installed (make cdktf-cli)")
    browser.evaluate(AXE.read_text() + ";0")
    for dark in (False, True):
        browser.look(dark=dark)
        found = browser.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert len(found["passes"]) > 20
        assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in found["violations"]] == []


# Ratio of WCAG 2: every text of the page and of the plots against the page, or against the bar it
# stands on.
CONTRAST = """
(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
                       return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const paper = getComputedStyle(document.body).backgroundColor, found = [];
  const bar = () => getComputedStyle(document.querySelector('svg [fill="#0f766e"]')).fill;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), owner = walk.currentNode.parentElement;
    if (!text || owner.closest('script,title,desc')) continue;
    const style = getComputedStyle(owner), ink = owner.closest('svg') ? style.fill : style.color;
    found.push([text, ratio(ink, text.endsWith('% useful') ? bar() : paper)]);
  }
  return found;
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
  const boxes = [...svg.querySelectorAll('text')].filter(t => t.textContent && getComputedStyle(t).opacity !== '0')
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1).map(([b]) => a + ' / ' + b));
})
"""

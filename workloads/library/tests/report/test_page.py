"""Tests the sentences and objectives of a report, and that its file needs no other."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast.report import theme
from holdfast.report.cli import exit_code, read_report, write_report
from holdfast.report.model import Report, build
from holdfast.report.objectives import ObjectiveVerdict
from holdfast.report.page import render
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("demo")
    return read_report(folder / "events", sample.demo(folder))


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render(report)


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = dict(attrs)
        if "id" in values:
            self.ids[values["id"] or ""] += 1
        for name in ("src", "href", "action", "data"):
            if name in values:
                self.links.append(values[name] or "")


def test_the_answer_is_one_sentence_and_every_objective_is_judged(report: Report) -> None:
    answer = (
        "6 evictions cost 20 steps and 31 s of training, and the trained model is identical to"
        " the last bit; the batch, killed 8 times, stored each of its 480 documents exactly"
        " once."
    )
    assert report.answer == answer
    assert len(report.objectives) == 9
    for objective in report.objectives:
        assert objective.verdict is ObjectiveVerdict.HELD, objective
        assert objective.n > 0, objective


@pytest.mark.parametrize(
    ("part", "change", "goal"),
    [
        ("training", {"bit_exact": False}, "final parameters equal those of an undisturbed run"),
        ("training", {"false_completions": 1}, "never called complete before the last step"),
        (
            "training",
            {"save_every": 5},
            "an eviction costs less than two checkpoint intervals of 5 steps",
        ),
        ("batch", {"lost": 2}, "no document lost under 8 kills"),
        ("batch", {"duplicated": 1}, "no document stored twice under 8 kills"),
        ("batch", {"same_scores": False}, "scores equal those of an undisturbed run"),
        ("serving", {"failed": 1}, "no request failed under 4 evictions"),
        ("serving", {"counts_differ": 2}, "clients, proxy and servers count the same answers"),
    ],
)
def test_a_broken_objective_comes_first(
    report: Report,
    part: str,
    change: dict[str, object],
    goal: str,
) -> None:
    summary = sample.SUMMARY | {part: sample.SUMMARY[part] | change}
    broken = build(report.ledgers, {}, summary)
    goals = []
    for o in broken.objectives:
        if o.verdict is ObjectiveVerdict.BROKEN:
            goals.append(o.goal)
    assert goals == [goal]
    assert goal in broken.next_steps[0]


def test_a_goal_nobody_measured_is_inconclusive_not_held(report: Report) -> None:
    summary = {
        "training": {"evictions": 6, "lost_steps": 0},
        "batch": {"documents": 3},
    }
    verdicts: dict[str, ObjectiveVerdict] = {}
    for objective in build(report.ledgers, {}, summary).objectives:
        verdicts[objective.goal] = objective.verdict
    for goal in (
        "final parameters equal those of an undisturbed run",
        "no document lost under 0 kills",
    ):
        assert verdicts[goal] is ObjectiveVerdict.INCONCLUSIVE


def test_the_file_needs_no_other_and_has_a_table_for_every_plot(html: str) -> None:
    elements = Elements(html)
    assert elements.links == ["data:,"]
    assert not re.search(r"@import|url\((?!#)", html)
    for address in re.findall(r"https?://[^\s\"'<]+", html):
        assert address.startswith("http://www.w3.org/")
    assert elements.tags["script"] == 0
    # A table for every plot: states and evictions, for training and for batch.
    assert elements.tags["svg"] == elements.tags["details"] == html.count("<desc ") == 4
    assert max(elements.ids.values()) == 1
    assert len(html.encode()) < 1_500_000


def test_training_and_batch_have_separate_recovery_figures(report: Report) -> None:
    notes: dict[str, str] = {}
    for figure in report.figures:
        notes[figure.label] = figure.note
    count, slowest = re.fullmatch(
        r"after (\d+) of \d+ evictions, the slowest (.+)", notes["training back at work, median"]
    ).groups()  # pyright: ignore[reportOptionalMemberAccess]
    (goal,) = [o for o in report.objectives if o.goal.startswith("training: work goes on")]
    assert goal.measured == f"{count} of {goal.n}, slowest after {slowest}"
    assert "evictions, the slowest" in notes["batch back at work, median"]


def test_every_plot_color_has_a_dark_variant() -> None:
    style = (Path(theme.__file__).parent / "style.css").read_text()
    dark = style[style.index("prefers-color-scheme: dark") :]
    colors = {*theme.COLOR.values(), *theme.OURS, theme.BASELINE, theme.NAIVE}
    for color in colors | {theme.AXIS_COLOR, theme.MARK_COLOR}:
        assert f'[fill="{color}"]' in dark, color


@pytest.mark.parametrize(
    "only",
    [
        line(EPOCH, "start", rank=0),
        line(
            EPOCH,
            "scheduled",
            kind="batch",
            seconds=2.0,
            node="n",
            pool="p",
        ),
    ],
    ids=["started", "scheduled"],
)
def test_a_job_with_one_line_makes_a_page(tmp_path: Path, only: Line) -> None:
    sample.write(tmp_path / "a.jsonl", [only])
    report = read_report(tmp_path, None)
    assert "nothing can be concluded" not in report.answer
    assert only["job"] in render(report)


def test_exit_code_shows_a_broken_objective(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(report) == EXIT_DONE
    summary = sample.demo(tmp_path)
    batch = sample.SUMMARY["batch"] | {"lost": 1}
    summary.write_text(json.dumps(sample.SUMMARY | {"batch": batch}))
    code = write_report(tmp_path / "events", summary, tmp_path / "a.html", as_json=True)
    assert code == EXIT_FINDINGS
    assert json.loads(capsys.readouterr().out)["schema"] == "holdfast.report/4"
    assert list(tmp_path.glob("*.html")) == [tmp_path / "a.html"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"training": 3}', '{"batch": []}', '{"training": {"lost_steps": "many"}}']
)
def test_an_invalid_summary_is_refused(tmp_path: Path, text: str) -> None:
    summary = sample.demo(tmp_path)
    summary.write_text(text)
    with pytest.raises(InputError, match="summary"):
        write_report(tmp_path / "events", summary, tmp_path / "a.html", as_json=False)

"""Accepted findings: each with a reason, none out of date, none without effect."""

from datetime import date

import pytest

from holdfast.lint.engine import Options, Report, lint_texts

TODAY = date(2026, 11, 21)
CLASS = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot-other}\nvalue: 5"


def judged(text: str, **how: object) -> Report:
    return lint_texts({"a.yaml": text}, Options(today=TODAY, **how))  # type: ignore[arg-type]


def active(report: Report) -> list[str]:
    return [finding.rule for finding in report.active]


def test_a_comment_with_a_reason_silences_its_line() -> None:
    report = judged(f"{CLASS}  # holdfast: ignore[HF305] made by another team\n")
    assert active(report) == []
    assert [f.suppressed for f in report.suppressed] == ["made by another team"]


HEAD, LAST = CLASS.rsplit("\n", 1)
ANNOTATED = "{name: spot-other, annotations: {holdfast.dev/ignore-HF305: made by another team}}"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f"{HEAD}\n# holdfast: ignore[HF305] made by another team\n{LAST}\n", []),
        (CLASS.replace("{name: spot-other}", ANNOTATED), []),
        (f"{CLASS}  # holdfast: ignore[HF305]\n", ["HF305", "HF901"]),
        (f"{CLASS}  # holdfast: ignore[HF305,HF101] why\n", ["HF902"]),
        (f"{CLASS}  # holdfast: ignore[HF998] why\n", ["HF305", "HF907"]),
        (f"{CLASS}  # holdfast: ignore[HF305] soon, until 2026-11-20\n", ["HF305", "HF903"]),
        (f"{CLASS}  # holdfast: ignore[HF305] soon, until 2026-11-21\n", []),
    ],
    ids=["line before", "annotation", "no reason", "silences nothing", "no rule", "past", "last day"],
)
def test_an_ignore_silences_what_it_names_and_is_found_where_it_is_wrong(text: str, rules: list[str]) -> None:
    assert active(judged(text)) == rules


def test_ignores_can_be_switched_off() -> None:
    assert active(judged(f"{CLASS}  # holdfast: ignore[HF305] why\n", use_ignores=False)) == ["HF305"]

"""Accepted findings: each with a reason, none without effect."""

import pytest

from holdfast.lint.engine import Options, Report, lint_texts

CLASS = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot-other}\nvalue: 5"


def judged(text: str) -> Report:
    return lint_texts({"a.yaml": text}, Options())


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
    ],
    ids=["line before", "annotation", "no reason", "silences nothing", "no rule"],
)
def test_an_ignore_silences_what_it_names_and_is_found_where_it_is_wrong(text: str, rules: list[str]) -> None:
    assert active(judged(text)) == rules

"""Tests of accepted findings: each needs a reason and an effect."""

import pytest

from holdfast.lint.engine import Options, lint_texts

CLASS = (
    "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot-other}\nvalue: 5"
)


HEAD, LAST = CLASS.rsplit("\n", 1)
ANNOTATED = "{name: spot-other, annotations: {holdfast.dev/ignore-HF305: made by another team}}"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f"{CLASS}  # holdfast: ignore[HF305] made by another team\n", []),
        (f"{HEAD}\n# holdfast: ignore[HF305] made by another team\n{LAST}\n", []),
        (CLASS.replace("{name: spot-other}", ANNOTATED), []),
        (f"{CLASS}  # holdfast: ignore[HF305]\n", ["HF305", "HF901"]),
        (f"{CLASS}  # holdfast: ignore[HF305,HF101] why\n", ["HF902"]),
        (f"{CLASS}  # holdfast: ignore[HF998] why\n", ["HF305", "HF907"]),
    ],
    ids=["its line", "line before", "annotation", "no reason", "silences nothing", "no rule"],
)
def test_ignore_silences_its_rules_or_is_reported(text: str, rules: list[str]) -> None:
    report = lint_texts({"a.yaml": text}, Options())
    assert [finding.rule for finding in report.active] == rules
    assert rules or [finding.suppressed for finding in report.suppressed] == [
        "made by another team"
    ]

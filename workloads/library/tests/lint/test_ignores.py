"""Accepted findings: each with a reason, none out of date, none without effect."""

from datetime import date
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.lint import config
from holdfast.lint.engine import Options, Report, lint_texts, suppress

TODAY = date(2026, 11, 21)
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}"


def judged(text: str, **how: object) -> Report:
    return lint_texts({"a.yaml": text}, Options(today=TODAY, **how))  # type: ignore[arg-type]


def active(report: Report) -> list[str]:
    return [finding.rule for finding in report.active]


def test_a_comment_with_a_reason_silences_its_line() -> None:
    report = judged(f"{NAMESPACE}  # holdfast: ignore[HF412] made by another team\n")
    assert active(report) == []
    assert [f.suppressed for f in report.suppressed] == ["made by another team"]


def test_a_comment_on_a_line_of_its_own_covers_the_next_one() -> None:
    head, last = NAMESPACE.rsplit("\n", 1)
    assert active(judged(f"{head}\n# holdfast: ignore[HF412] made by another team\n{last}\n")) == []


def test_an_annotation_silences_the_object() -> None:
    text = (
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations: {holdfast.dev/ignore-HF412: not ours}\n"
    )
    assert active(judged(text)) == []


def test_an_ignore_without_reason_has_no_effect_and_is_found() -> None:
    assert active(judged(f"{NAMESPACE}  # holdfast: ignore[HF412]\n")) == ["HF412", "HF901"]


def test_an_ignore_that_silences_nothing_is_found() -> None:
    assert active(judged(f"{NAMESPACE}  # holdfast: ignore[HF412,HF101] why\n")) == ["HF902"]


def test_an_ignore_past_its_date_is_found_and_its_finding_comes_back() -> None:
    assert active(judged(f"{NAMESPACE}  # holdfast: ignore[HF412] soon, until 2026-11-20\n")) == ["HF412", "HF903"]
    assert active(judged(f"{NAMESPACE}  # holdfast: ignore[HF412] soon, until 2026-11-21\n")) == []


def test_ignores_can_be_switched_off() -> None:
    assert active(judged(f"{NAMESPACE}  # holdfast: ignore[HF412] why\n", use_ignores=False)) == ["HF412"]


def test_the_configuration_ignores_by_path_and_object(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[[tool.holdfast.lint.ignore]]\nid = "HF412"\nobject = "Namespace/*"\npath = "a.*"\nreason = "x"\n')
    assert active(judged(NAMESPACE, ignores=config.read(file).ignores)) == []


def test_a_key_that_the_configuration_does_not_know_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[[tool.holdfast.lint.ignore]]\nid = "HF412"\nwhy = "x"\n')
    with pytest.raises(InputError, match="why"):
        config.read(file)


def test_a_baseline_silences_what_was_there_even_when_lines_move(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    config.write_baseline(file, judged(NAMESPACE).active)
    moved = judged(f"# a new line\n{NAMESPACE}\n---\n{NAMESPACE.replace('other', 'new')}")
    assert suppress(moved, config.read_baseline(file), "known") == 1
    assert [f.object_name for f in moved.active] == ["Namespace/new"]

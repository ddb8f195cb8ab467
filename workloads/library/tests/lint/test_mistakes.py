"""Finds the mistakes of strangers' sets: each case has a file with one mistake, the corrected file,
and why it is one.
"""

import tomllib
from pathlib import Path

import pytest

from holdfast.job_commands.lint import render_job
from holdfast.lint.engine import Options, lint
from holdfast.support.errors import InputError
from tests import platforms

SETS = sorted((Path(__file__).parent / "mistakes").iterdir())
REFUSED = "refused"
# Findings of a corrected file that are right: what the platform advises beyond the mistake.
ADVICE = {
    "HF036",
    "HF037",
    "HF110",
    "HF114",
    "HF115",
    "HF116",
    "HF118",
    "HF156",
    "HF202",
    "HF303",
}
# Findings of files that were written for another platform than the one of the tests.
ELSEWHERE = {"HF002", "HF003", "HF483"}


def load_expected(folder: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads((folder / "expected.toml").read_text())


def list_cases() -> list[Path]:
    cases: list[Path] = []
    for folder in SETS:
        for name in load_expected(folder)["found"]:
            cases.append(folder / name)
    return cases


def find(file: Path) -> set[tuple[str, str]]:
    """Rule and message of each finding; `refused` where the command refuses the file."""
    options = Options(platforms=[platforms.load("example")], render=render_job)
    try:
        findings = lint([file], options).active
    except InputError as error:
        return {(REFUSED, str(error))}
    return {(finding.rule, finding.message) for finding in findings}


@pytest.mark.parametrize("case", list_cases(), ids=lambda case: f"{case.parent.name}-{case.name}")
def test_mistake_is_found_and_its_correction_is_clean(case: Path) -> None:
    expected = load_expected(case.parent)
    corrected = find(case / "good.yaml")
    added = find(case / "bad.yaml") - corrected
    rules = {rule for rule, _ in added}
    reason = (case / "why.txt").read_text()
    assert expected["found"][case.name] in rules, reason
    advice = set(expected["advice"].get(case.name, ()))
    remaining_rules = {rule for rule, _ in corrected}
    assert remaining_rules == advice
    assert advice <= ADVICE | ELSEWHERE


def test_each_case_states_what_finds_it() -> None:
    for folder in SETS:
        names = {path.name for path in folder.iterdir() if path.is_dir()}
        assert names == load_expected(folder)["found"].keys()

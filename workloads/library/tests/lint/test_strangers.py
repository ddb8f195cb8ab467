"""Finds the mistakes of strangers' sets of manifests, and none in the correct ones."""

import tomllib
from pathlib import Path

import pytest

from holdfast.job_commands.lint import render_job
from holdfast.lint.engine import Options, lint
from holdfast.lint.finding import Finding
from tests import platforms

FOLDER = Path(__file__).parent / "strangers"
EXPECTED = tomllib.loads((FOLDER / "expected.toml").read_text())
# What the platform advises for a correct manifest that was written for another one.
ADVICE = {
    "HF003",
    "HF037",
    "HF101",
    "HF114",
    "HF118",
    "HF119",
    "HF156",
    "HF301",
    "HF303",
    "HF326",
}


def lint_file(file: Path) -> list[Finding]:
    options = Options(platforms=[platforms.load("example")], render=render_job)
    return list(lint([file], options).active)


def list_cases() -> list[tuple[str, str]]:
    cases: list[tuple[str, str]] = []
    for folder, files in EXPECTED.items():
        for name, case in files.items():
            if case["rule"]:
                cases.append((folder, name))
    return cases


@pytest.mark.parametrize(("folder", "name"), list_cases())
def test_strangers_mistake_is_found(folder: str, name: str) -> None:
    case = EXPECTED[folder][name]
    findings = lint_file(FOLDER / folder / f"{name}.yaml")
    fixes = [finding.fix for finding in findings if finding.rule == case["rule"]]
    assert case.get("fix") in {None, *fixes} and fixes, case["mistake"]


@pytest.mark.parametrize("file", sorted((FOLDER / "clean").iterdir()), ids=lambda file: file.stem)
def test_correct_manifest_gets_advice_at_most(file: Path) -> None:
    assert {finding.rule for finding in lint_file(file)} <= ADVICE


def test_each_file_has_a_case() -> None:
    for folder, files in EXPECTED.items():
        assert {file.stem for file in (FOLDER / folder).iterdir()} == files.keys()

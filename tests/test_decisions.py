"""Decisions: one form, an index by room, paths that exist, and each cited where it explains
something.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from tests import decision_index
from tests.support import ROOT, ran

FOLDER = decision_index.FOLDER
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))
HEADER = re.compile(
    r"# (\d{4}) (\S[^\n]*[^.\n])\n\n\d{4}-\d\d-\d\d\. Status: (accepted|replaced)\.[^\n]* Room:"
    r" \S+\.\n\n## Context\n"
)
CITATION = re.compile(r"\bdecisions?[/ ](\d{4})")
MAX_LINES = 60


def number(path: Path) -> str:
    return path.name[:4]


@cache
def list_tracked() -> list[str]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names: list[str] = []
    for name in ran(words).stdout.splitlines():
        if (ROOT / name).is_file():
            names.append(name)
    return names


@cache
def list_cited() -> set[str]:
    """Numbers named by code, manifests and pages."""
    kinds = (".py", ".md", ".sql", ".yaml", ".toml", "Dockerfile")
    names = []
    for name in list_tracked():
        if name.endswith(kinds) and not name.startswith("infra/decisions"):
            names.append(name)
    numbers: set[str] = set()
    for name in names:
        numbers.update(CITATION.findall((ROOT / name).read_text()))
    return numbers


@pytest.mark.parametrize("path", DECISIONS, ids=number)
def test_a_decision_has_the_one_form(path: Path) -> None:
    text = path.read_text()
    head = HEADER.match(text)
    assert head, "see infra/decisions/README.md for the form"
    assert head[1] == number(path), "see infra/decisions/README.md for the form"
    assert re.findall(r"^## (\w+)", text, re.M) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= MAX_LINES
    assert number(path) in list_cited(), (
        "cite it at the hazard it explains, as infra/decisions/NNNN, or delete it"
    )


@pytest.mark.parametrize("path", DECISIONS, ids=number)
def test_a_decision_names_only_files_that_exist(path: Path) -> None:
    rooms = ("infra/", "workloads/", "monitoring/", "tests/", ".ci/", ".github/")
    names = []
    for n in re.findall(r"`([^`\s]+)`", path.read_text()):
        if n.startswith(rooms):
            names.append(n.rstrip("/"))
    names.append(decision_index.room(path))
    missing = []
    for n in names:
        if not any(file == n or file.startswith(f"{n}/") for file in list_tracked()):
            missing.append(n)
    assert not missing, "the module moved: name it as it is called now"


def test_the_index_is_up_to_date() -> None:
    assert (FOLDER / "README.md").read_text() == decision_index.index(), (
        "run `python -m tests.decision_index`"
    )


def test_cited_decisions_exist() -> None:
    by_decisions: set[str] = set()
    for path in DECISIONS:
        by_decisions.update(CITATION.findall(path.read_text()))
    assert list_cited() | by_decisions <= {number(path) for path in DECISIONS}

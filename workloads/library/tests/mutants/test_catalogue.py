"""The list fits the product of today, and the runner can tell a killed mutant from one that
survived.
"""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.support.errors import InputError, Unjudged
from workloads.library.tests.mutants.__main__ import (
    MUTANTS,
    ROOT,
    UNBROKEN,
    Fate,
    Mutant,
    choose,
    judge_mutant,
    require_green,
    snapshot,
)

VERDICT = next(mutant for mutant in MUTANTS if mutant.file.endswith("drill/verdict.py"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_exactly_one_place_in_todays_code(mutant: Mutant) -> None:
    text = mutant.mutate((ROOT / mutant.file).read_text())
    assert (
        compile(text, mutant.file, "exec") if mutant.file.endswith(".py") else tomllib.loads(text)
    )
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_a_place_that_is_gone_and_an_unknown_name_are_errors() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
    with pytest.raises(ValueError, match="0 times"):
        replace(VERDICT, old="nowhere").mutate("text")
    with pytest.raises(InputError, match="no such mutant"):
        choose(["restore everything"])


@pytest.mark.process
def test_fault_is_killed_comment_survives_and_broken_import_is_unjudged(tmp_path: Path) -> None:
    snapshot(tmp_path / UNBROKEN)
    before = (ROOT / VERDICT.file).read_text()
    comment = replace(VERDICT, name="comment", new=VERDICT.old + "        # nothing\n")
    broken = replace(VERDICT, name="broken", new="            return (\n")
    fates = []
    for mutant in (VERDICT, comment, broken):
        fates.append(judge_mutant(mutant, tmp_path))
    assert fates == [Fate.KILLED, Fate.SURVIVED, Fate.NOT_JUDGED]
    assert (ROOT / VERDICT.file).read_text() == before


@pytest.mark.process
def test_a_test_that_fails_anyway_proves_nothing(tmp_path: Path) -> None:
    snapshot(tmp_path / UNBROKEN)
    with pytest.raises(Unjudged, match="fail without a mutant"):
        require_green([replace(VERDICT, tests=["tests/no_such_test.py"])], tmp_path)

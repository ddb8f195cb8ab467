"""Drills of other distributions: found by their entry point, and named where they cannot be used."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.contract.errors import InputError
from holdfast.contract.extensions import extensions
from holdfast.drill.catalogue import BUILT_IN, GROUP, drills
from workloads.library.tests import distribution

MODULE = """
from dataclasses import replace
from holdfast.drill.catalogue import BUILT_IN

def made():
    return [replace(BUILT_IN[0], name="of-acme", question="Does it hold at Acme?")]

def clashing():
    return [BUILT_IN[0]]

def failing():
    raise OSError("no network")

def words():
    return ["a drill"]

nothing = None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a tiny distribution whose entry point has this value."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda value: distribution.install(tmp_path, "acme-drills", MODULE, GROUP, f"ours = {value}")


def test_without_any_there_are_the_built_in_ones() -> None:
    assert extensions(GROUP) == []
    assert list(drills().values()) == list(BUILT_IN)


def test_a_drill_of_another_distribution_is_listed_and_found(install: Callable[[str], None], tmp_path: Path) -> None:
    install("acme_drills:made")
    done = CliRunner().invoke(
        app, ["drill", "--list", "--json", "--out", str(tmp_path / "out")], catch_exceptions=False
    )
    listed = {drill["name"]: drill for drill in json.loads(done.stdout)["drills"]}
    assert len(listed) == len(BUILT_IN) + 1 and listed["of-acme"]["question"] == "Does it hold at Acme?"
    [(found, name, _)] = extensions(GROUP)
    assert (found, name) == ("acme-drills", "ours")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("acme_drills:clashing", f"a second drill {BUILT_IN[0].name}"),
        ("acme_drills:failing", "OSError: no network"),
        ("acme_drills:words", "'a drill'"),
        ("acme_drills:nothing", "TypeError"),
        ("acme_drills:gone", "AttributeError"),
        ("acme_no_such_module:made", "ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_distribution(
    install: Callable[[str], None], value: str, got: str
) -> None:
    install(value)
    with pytest.raises(InputError) as error:
        drills()
    assert "acme-drills" in error.value.what and GROUP in error.value.what
    assert got in error.value.got and "pip uninstall acme-drills" in error.value.fix
    assert len(error.value.lines().splitlines()) == 4

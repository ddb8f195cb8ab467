"""AGENTS.md: its quick commands run, its other commands and its rooms exist."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, ran

PAGE = (ROOT / "AGENTS.md").read_text()
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def commands(heading: str) -> list[str]:
    block = PAGE.partition(f"## {heading}\n")[2].partition("```sh\n")[2].partition("```")[0]
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


@pytest.mark.process
@pytest.mark.parametrize("line", commands("While you work"))
def test_a_quick_command_runs(line: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = ran(line.split(), ROOT, os.environ | {"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("heading", ["Set up, once", "Before you commit"])
def test_other_commands_are_targets_of_make(heading: str) -> None:
    lines = commands(heading)
    assert lines
    for line in lines:
        make, *targets = line.replace(" ENV=example", "").split()
        assert make == "make" and set(targets) <= set(TARGETS), line


def test_its_rooms_exist() -> None:
    table = PAGE.partition("## Rooms\n")[2].partition("\n## ")[0]
    folders = re.findall(r"`([a-z/]+/)`", table)
    assert len(folders) > 10
    assert [name for name in folders if not (ROOT / name).is_dir()] == []

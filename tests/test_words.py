"""The check of words finds a bad word in each kind of text that people read, and in no other."""

import subprocess
from pathlib import Path

import pytest

from tests.check_words import check

SEEN = {
    "PAGE.md": "# Title\n\nWhoever reads this.\n",
    "Makefile": "fmt: ## Mend files\n",
    "option.py": 'help = typer.Option(help="as told")\n',
    "error.py": 'raise InputError("x", got="y", allowed="z", fix=f"{a} so many")\n',
    "alert.py": 'Alert(name="A", why="Spot is dearer", query="up")\n',
    "alerts.toml": '[[alert]]\nwhy = "Spot is dearer"\n',
    "comment.py": "x = 1  # nobody reads it\n",
    "docstring.py": '"""Anew."""\n',
    "command.py": '@app.command()\ndef run() -> None:\n    """Run it anew."""\n',
    "infra/environments/schema.py": 'class A:\n    b: int\n    """Nobody knows it but you."""\n',
}
UNSEEN = {
    "PAGE.md": "The image stands for it; `is told`, [page](beside.md)\n\n```\nanew\n```\n",
    "alert.py": 'Alert(name="A", why="Spot costs more", query="beside")\n',
    "tests/cases.toml": 'name = "begin anew"\n',
    "tests/error.py": 'raise InputError("anew")\n',
    "code.py": 'beside = "anew"\n',
}


def _found(folder: Path, name: str, text: str) -> list[str]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    for command in (["init", "--quiet"], ["add", name]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return check(folder)


@pytest.mark.parametrize("name", SEEN)
def test_a_bad_word_is_found(name: str, tmp_path: Path) -> None:
    assert len(_found(tmp_path, name, SEEN[name])) == 1


@pytest.mark.parametrize("name", UNSEEN)
def test_other_text_is_left_alone(name: str, tmp_path: Path) -> None:
    assert _found(tmp_path, name, UNSEEN[name]) == []


def test_the_line_is_named(tmp_path: Path) -> None:
    assert _found(tmp_path, "PAGE.md", SEEN["PAGE.md"]) == ["PAGE.md:3: Whoever"]

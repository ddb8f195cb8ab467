"""The check of words finds a bad word in each kind of text that people read, with its line, and in
no other.
"""

import subprocess
from pathlib import Path

from tests.check_words import check

SEEN = {
    "PAGE.md": "# Title\n\nWhoever reads this.\n",
    "Makefile": "fmt: ## Mend files\n",
    "option.py": 'help = typer.Option(help="as told")\n',
    "error.py": 'raise InputError("x", got="y", allowed="z", fix=f"{a} so many")\n',
    "alert.py": 'Alert(name="A", why="Spot is dearer", query="up")\n',
    "alerts.toml": '[[alert]]\nwhy = "Spot is dearer"\n',
    "cause.py": 'Cause(Reason.TAINT, "3 nodes bear TAINT", "wait", "kubectl")\n',
    "log.py": 'logs.warning("left", reason="nobody answers")\n',
    "echo.py": 'typer.echo("begin anew")\n',
    "comment.py": "x = 1  # nobody reads it\n",
    "docstring.py": '"""Anew."""\n',
    "command.py": '@app.command()\ndef run() -> None:\n    """Run it anew."""\n',
    "tests/test_error.py": '"""Of ours."""\n',
    "infra/environments/schema.py": 'class A:\n    b: int\n    """Nobody knows it but you."""\n',
}
UNSEEN = {
    "OTHER.md": "The image stands for it; `is told`, [page](beside.md)\n\n```\nanew\n```\n",
    "query.py": 'Alert(name="A", why="Spot costs more", query="beside")\n',
    "tests/cases.toml": 'name = "begin anew"\n',
    "tests/error.py": 'message = "anew"\n',
    "code.py": 'beside = "anew"\n',
}


def test_a_bad_word_is_found_with_its_line_and_other_text_is_left_alone(tmp_path: Path) -> None:
    for name, text in {**SEEN, **UNSEEN}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(
            [
                "git",
                "-C",
                tmp_path,
                *command,
            ],
            check=True,
        )
    findings = check(tmp_path)
    assert sorted(line.partition(":")[0] for line in findings) == sorted(SEEN)
    assert "PAGE.md:3: Whoever" in findings

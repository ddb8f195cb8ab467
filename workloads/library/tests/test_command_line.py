"""One style of errors: what Typer refuses, what the system lacks, and who stops reading."""

import subprocess

import pytest
import typer

from holdfast.support.command_line import run_app
from workloads.library.tests.support.test_errors import assert_read_in_part

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command()
def count(to: int = 100_000) -> None:
    for number in range(to):
        print(number)


@app.command()
def start(program: str) -> None:
    subprocess.run([program], check=False)


@app.command()
def ask() -> None:
    typer.confirm("Go on?", err=True)


def run_until_exit(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        run_app(app, words)
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["count", "--to", "x"], "Invalid value for '--to'"),
        (["count", "--of", "x"], "No such option: --of"),
        (["start"], "Missing argument"),
        (["coutn"], "Did you mean 'count'?"),
        (["count", "\x1b[2J"], r"\x1b[2J"),
        (["count", "\udce9"], r"\udce9"),
        (["count", "a\u202eb"], r"a\u202eb"),
    ],
)
def test_an_unreadable_command_line_is_refused(
    words: list[str], got: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_until_exit(*words) == 2
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("error:   ")
    assert second.startswith("  got:     ")
    assert got in second
    assert [line.split(":")[0] for line in rest] == ["  allowed", "  fix"]


def test_a_program_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_until_exit("start", "no-such-program") == 3
    assert (
        capsys.readouterr().err
        == "could not judge: the program no-such-program is not installed, or not on PATH\n"
    )


def test_no_command_at_all_shows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_until_exit() == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_question_without_an_answer_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_eof(*_: object) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", raise_eof)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", raise_eof)
    assert run_until_exit("ask") == 4
    assert "stopped: no answer" in capsys.readouterr().err


@pytest.mark.process
def test_a_reader_that_has_seen_enough_is_no_finding() -> None:
    assert_read_in_part(
        "from workloads.library.tests.test_command_line import *; run_app(app, ['count'])"
    )

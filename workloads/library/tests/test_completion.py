"""The Tab key: what the script of --show-completion asks the command for."""

import pytest

from holdfast.commands import app


@pytest.mark.parametrize(
    ("typed", "words_before", "expected"),
    [
        ("holdfast sub", 1, "submit"),
        ("holdfast explain --fol", 2, "--follow"),
        ("holdfast checkpoints exp", 2, "export"),
    ],
)
def test_commands_and_options_are_completed(
    typed: str,
    words_before: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(words_before))
    with pytest.raises(SystemExit) as end:
        app([], prog_name="holdfast")
    assert end.value.code in (None, 0)
    assert capsys.readouterr().out.split() == [expected]

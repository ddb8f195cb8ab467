"""Sentences on a terminal break between words, elsewhere nowhere."""

import os
import sys

import pytest

from holdfast.support.tables import print_sentences, print_table

SENTENCE = "demo ok: 480 documents scored once each; see out/a-folder-with-a-long-name/report.html"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_sentences_break_on_a_terminal_alone(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 24)))
    print_sentences(SENTENCE, "Short.")
    lines = capsys.readouterr().out.splitlines()
    if not is_terminal:
        assert lines == [SENTENCE, "Short."]
        return
    assert lines[-1] == "Short."
    assert " ".join(lines[:-1]) == SENTENCE
    *text, address, _ = lines
    assert address == "out/a-folder-with-a-long-name/report.html"
    assert text
    assert len(max(text, key=len)) <= 30


def test_wide_rows_are_whole_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    first = "a" * 700
    second = "b" * 700
    print_table(["FOUND", "FIX"], [(first, second)])
    assert capsys.readouterr().out.splitlines()[1].split() == [first, second]

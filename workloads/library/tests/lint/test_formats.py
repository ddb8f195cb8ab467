"""Tests of the output formats and of `--rule`."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app
from holdfast.lint import formats
from holdfast.lint.engine import Options, lint
from holdfast.lint.registry import all_rules
from holdfast.support.errors import InputError

CORPUS = Path(__file__).parent / "corpus"


KEY = (
    "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  annotations:\n   "
    " iam.gke.io/gcp-serviceaccount: a@b\n"
)


@pytest.mark.parametrize(
    ("text", "place", "marked", "detail"),
    [
        (
            (CORPUS / "b6-grace.yaml").read_text(),
            r"\d+:\d+: error: grace period of 25 s",
            "25",
            "(platform document of example: pools.",
        ),
        (KEY, "5:5: error: GKE does not read ", "iam.gke.io/gcp-serviceaccount", "fix:"),
    ],
    ids=["value", "key"],
)
def test_text_shows_a_caret_under_the_error(
    tmp_path: Path,
    text: str,
    place: str,
    marked: str,
    detail: str,
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    output = formats.text(lint([tmp_path], Options()))
    block = re.search(rf"a\.yaml:{place}.*?\n(.*)\n(.*)\n", output)
    assert block and detail in output
    line, caret = block.groups()
    assert line[caret.index("^") : caret.rindex("^") + 1] == marked


def test_json_and_github_list_each_finding() -> None:
    report = lint([CORPUS], Options())
    body = json.loads(formats.format_json(report))
    assert body["schema"] == "holdfast.lint/1"
    assert len(body["findings"]) == len(report.findings) > 40
    for finding in body["findings"]:
        assert finding["rule"] in all_rules() and finding["fix"] and finding["line"] > 0
    lines = formats.format_github(report).splitlines()
    assert len(lines) == len(report.active)
    for line in lines:
        assert re.match(r"::(error|warning|notice) file=[^,]+,line=\d+,col=\d+,", line)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=True)


def test_all_rules_are_listed_as_text_and_as_json() -> None:
    result = call("lint", "--rule", "all")
    assert result.exit_code == 0
    for rule in all_rules().values():
        assert rule.id in result.stdout and rule.slug in result.stdout
    body = json.loads(call("lint", "--rule", "all", "--json").stdout)
    assert body["schema"] == "holdfast.rules/1"
    assert [rule["id"] for rule in body["rules"]] == list(all_rules())


def test_rule_page_has_text_and_examples() -> None:
    rule = all_rules()["HF101"]
    for name in (rule.id, rule.name):
        page = " ".join(call("lint", "--rule", name).stdout.split())
        for part in (rule.what, rule.why, rule.fix, rule.bad, rule.source):
            assert " ".join(part.split()) in page


def test_unknown_rule_is_bad_input() -> None:
    result = call("lint", "--rule", "HF999")
    assert isinstance(result.exception, InputError) and "HF999" in str(result.exception)

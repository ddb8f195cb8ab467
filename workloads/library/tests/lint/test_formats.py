"""What each output format, and `--rule`, promises its reader."""

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
    ("text", "place", "marked", "more"),
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
def test_text_shows_a_caret_under_what_is_wrong(
    tmp_path: Path,
    text: str,
    place: str,
    marked: str,
    more: str,
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    block = re.search(
        rf"a\.yaml:{place}.*?\n(.*)\n(.*)\n", shown := formats.text(lint([tmp_path], Options()))
    )
    assert block and more in shown
    line, caret = block.groups()
    assert line[caret.index("^") : caret.rindex("^") + 1] == marked


def test_json_has_a_schema_and_a_rule_and_a_fix_for_each_finding_and_github_a_line() -> None:
    report = lint([CORPUS], Options())
    body = json.loads(formats.as_json(report))
    assert body["schema"] == "holdfast.lint/1"
    assert len(body["findings"]) == len(report.findings) > 40
    assert all(f["rule"] in all_rules() and f["fix"] and f["line"] > 0 for f in body["findings"])
    lines = formats.github(report).splitlines()
    assert len(lines) == len(report.active)
    assert all(
        re.match(r"::(error|warning|notice) file=[^,]+,line=\d+,col=\d+,", line) for line in lines
    )


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=True)


def test_all_rules_are_listed_as_text_and_as_json() -> None:
    done = call("lint", "--rule", "all")
    assert done.exit_code == 0
    assert all(rule.id in done.stdout and rule.slug in done.stdout for rule in all_rules().values())
    body = json.loads(call("lint", "--rule", "all", "--json").stdout)
    assert body["schema"] == "holdfast.rules/1" and {rule["id"] for rule in body["rules"]} == set(
        all_rules()
    )


def test_one_rule_shows_what_why_both_examples_and_the_fix_and_an_unknown_one_is_bad_input() -> (
    None
):
    rule = all_rules()["HF101"]
    for name in (rule.id, rule.name):
        shown = " ".join(call("lint", "--rule", name).stdout.split())
        parts = (rule.what, rule.why, rule.fix, rule.bad, rule.source)
        assert all(" ".join(part.split()) in shown for part in parts)
    done = call("lint", "--rule", "HF999")
    assert isinstance(done.exception, InputError) and "HF999" in str(done.exception)

"""What each output format promises its reader."""

import json
import re
from pathlib import Path

import pytest

from holdfast.lint import formats
from holdfast.lint.engine import Options, Report, lint
from holdfast.lint.registry import all_rules

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def report() -> Report:
    return lint([CORPUS], Options())


def test_text_shows_the_line_with_a_caret_under_the_value() -> None:
    text = formats.text(lint([CORPUS / "b6-grace.yaml"], Options()))
    block = re.search(r"b6-grace\.yaml:(\d+):(\d+): error: grace period of 25 s.*?\n(.*)\n(.*)\n(.*)\n(.*)\n", text)
    assert block
    line, caret = block.group(3), block.group(4)
    assert line[caret.index("^") : caret.rindex("^") + 1] == "25"
    assert "(platform document of example: pools.spot-l4-g2-standard-8)" in block.group(5) and "fix:" in block.group(6)


def test_the_caret_is_under_a_key_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  annotations:\n    iam.gke.io/gcp-serviceaccount: a@b\n"
    )
    text = formats.text(lint([tmp_path / "a.yaml"], Options()))
    block = re.search(r"a\.yaml:5:5: error: GKE does not read .*?\n(.*)\n(.*)\n", text)
    assert block
    line, caret = block.group(1), block.group(2)
    assert line[caret.index("^") : caret.rindex("^") + 1] == "iam.gke.io/gcp-serviceaccount"


def test_json_names_its_schema_and_every_finding_a_rule_and_a_fix(report: Report) -> None:
    body = json.loads(formats.as_json(report))
    assert body["schema"] == "holdfast.lint/1"
    assert len(body["findings"]) == len(report.findings) > 40
    assert all(f["rule"] in all_rules() and f["fix"] and f["line"] > 0 for f in body["findings"])


def test_github_commands_stay_on_one_line_each(report: Report) -> None:
    lines = formats.github(report).splitlines()
    assert len(lines) == len(report.active)
    assert all(re.match(r"::(error|warning|notice) file=[^,]+,line=\d+,col=\d+,", line) for line in lines)

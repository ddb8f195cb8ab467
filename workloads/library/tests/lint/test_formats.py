"""What each output format promises its reader."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.lint.engine import Options, Report, lint, lint_texts
from holdfast.lint.formats import FORMATS, MAX_MARKDOWN
from holdfast.lint.registry import all_rules
from tests.plan.isolated import environment

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def report() -> Report:
    return lint([CORPUS], Options())


def test_text_shows_the_line_with_a_caret_under_the_value() -> None:
    text = FORMATS["text"](lint([CORPUS / "b6-grace.yaml"], Options()))
    block = re.search(r"b6-grace\.yaml:(\d+):(\d+): error: grace period of 25 s.*?\n(.*)\n(.*)\n(.*)\n(.*)\n", text)
    assert block
    line, caret = block.group(3), block.group(4)
    assert line[caret.index("^") : caret.rindex("^") + 1] == "25"
    assert "(platform document of example: pools.spot-l4-g2-standard-8)" in block.group(5) and "fix:" in block.group(6)


def test_the_caret_is_under_a_key_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  annotations:\n    iam.gke.io/gcp-serviceaccount: a@b\n"
    )
    text = FORMATS["text"](lint([tmp_path / "a.yaml"], Options()))
    block = re.search(r"a\.yaml:5:5: error: GKE does not read .*?\n(.*)\n(.*)\n", text)
    assert block
    line, caret = block.group(1), block.group(2)
    assert line[caret.index("^") : caret.rindex("^") + 1] == "iam.gke.io/gcp-serviceaccount"


def test_json_names_its_schema_and_every_finding_a_rule_and_a_fix(report: Report) -> None:
    body = json.loads(FORMATS["json"](report))
    assert body["schema"] == "holdfast.lint/1"
    assert len(body["findings"]) == len(report.findings) > 40
    assert all(f["rule"] in all_rules() and f["fix"] and f["line"] > 0 for f in body["findings"])


def test_github_commands_stay_on_one_line_each(report: Report) -> None:
    lines = FORMATS["github"](report).splitlines()
    assert len(lines) == len(report.active)
    assert all(re.match(r"::(error|warning|notice) file=[^,]+,line=\d+,col=\d+,", line) for line in lines)


def test_markdown_stays_below_the_limit_of_a_comment(report: Report) -> None:
    many = Report(files=1, objects=1, findings=report.findings * 20)
    text = FORMATS["markdown"](many)
    assert len(text) < MAX_MARKDOWN + 200 and "more findings are left out" in text


def test_sarif_of_a_clean_run_has_an_empty_list() -> None:
    clean = lint_texts({"a.yaml": all_rules()["HF305"].good}, Options())
    assert json.loads(FORMATS["sarif"](clean))["runs"][0]["results"] == []


@pytest.mark.process
@pytest.mark.timeout(900)  # the first run installs the models
def test_sarif_is_valid_by_models_made_from_the_official_schema(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.sarif"
    file.write_text(FORMATS["sarif"](report))
    assert valid(file) == ""
    file.write_text(file.read_text().replace('"startLine"', '"startline"', 1))
    assert "startline" in valid(file), "a validator that takes every text proves nothing"


def valid(file: Path) -> str:
    """What breaks the schema; the models are strict about names that it does not know."""
    script = (
        "import sys; from pathlib import Path; from pydantic import ValidationError\n"
        "from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Log\n"
        "try: Log.model_validate_json(Path(sys.argv[1]).read_text())\n"
        "except ValidationError as error: print(error)\n"
    )
    python = environment("sarif") / "bin" / "python"
    done = subprocess.run([python, "-c", script, file], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout

"""The defects of the articles that this platform replaces, in manifests written for it."""

import json
import re
from pathlib import Path

import pytest

from workloads.manifests.lint import examples
from workloads.manifests.lint.engine import Options, lint, lint_texts
from workloads.manifests.lint.pages import example_text
from workloads.manifests.lint.registry import Rule, all_rules

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.yaml"))


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_every_defect_of_the_articles_is_found(file: Path) -> None:
    expected = re.findall(r"HF\d{3}", file.read_text().partition("\n")[0])
    found = {finding.rule for finding in lint([file], Options()).active}
    assert expected and set(expected) <= found, set(expected) - found


def test_the_corrected_versions_pass() -> None:
    for base in ("job", "flex", "jobset", "serving"):
        text = json.dumps(examples.whole(base, "metadata: {name: corrected}")[0])
        assert lint_texts({f"{base}.yaml": text}, Options()).findings == []


def test_there_are_more_than_forty_rules_with_ids_of_one_form() -> None:
    rules = all_rules()
    assert len(rules) >= 40
    assert len({rule.slug for rule in rules.values()}) == len(rules)
    for rule_id, rule in rules.items():
        assert re.fullmatch(r"HF\d{3}", rule_id)
        assert all((rule.what, rule.why, rule.source, rule.fix, rule.bad, rule.good)), rule_id


@pytest.mark.parametrize("rule", all_rules().values(), ids=lambda rule: rule.name)
def test_a_rule_finds_its_bad_example_and_all_rules_pass_its_good_one(rule: Rule) -> None:
    bad = lint_texts({"bad.yaml": example_text(rule, rule.bad)}, Options()).active
    assert rule.id in {finding.rule for finding in bad}
    good = lint_texts({"good.yaml": example_text(rule, rule.good)}, Options()).active
    assert [finding.message for finding in good] == []


def test_a_finding_quotes_the_constant_and_the_file_it_was_judged_by() -> None:
    rule = all_rules()["HF101"]
    (finding,) = lint_texts({"a.yaml": example_text(rule, rule.bad)}, Options()).active
    assert finding.basis is not None
    source = (Path(__file__).parents[3] / finding.basis.file).read_text().splitlines()
    assert "spot-l4" in source[finding.basis.line - 1]
    assert "gives a pod 15 s" in finding.basis.fact

"""Tests with manifests that have the defects of the articles that this platform replaces."""

import re
from pathlib import Path

import pytest

from holdfast.lint import examples
from holdfast.lint.engine import Options, lint, lint_texts
from holdfast.lint.registry import Rule, all_rules
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.defects import make_file

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").glob("*.yaml"))
CORRECTED = HERE / "corrected"


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_article_defects_are_found(file: Path) -> None:
    expected = re.findall(r"HF\d{3}", file.read_text().partition("\n")[0])
    rules = {finding.rule for finding in lint([file], Options()).active}
    assert expected and set(expected) <= rules, set(expected) - rules


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_corrected_objects_are_clean(file: Path) -> None:
    corrected_file = CORRECTED / file.name
    assert list_titles(file) <= list_titles(corrected_file), "every object is corrected"
    findings = lint([corrected_file], Options()).findings
    assert [(finding.rule, finding.object_name) for finding in findings] == []


def list_titles(file: Path) -> set[str]:
    return {defects.title(body) for body in examples.parse(file.read_text())}


def test_rules_have_unique_ids_and_complete_text() -> None:
    rules = all_rules()
    assert len(rules) >= 40
    assert len({rule.slug for rule in rules.values()}) == len(rules)
    for rule_id, rule in rules.items():
        assert re.fullmatch(r"HF\d{3}", rule_id)
        texts = (rule.what, rule.why, rule.source, rule.fix, rule.bad, rule.good or rule.base)
        assert all(texts), rule_id
        is_whole_object = rule.bad.startswith("apiVersion:")
        assert rule.good or not is_whole_object, f"{rule_id}: a whole object shows no change"


@pytest.mark.parametrize("rule", all_rules().values(), ids=lambda rule: rule.name)
def test_rule_finds_its_bad_example_and_passes_its_good_one(rule: Rule) -> None:
    bad = lint_texts({"bad.yaml": make_file(rule, rule.bad)}, Options()).active
    assert rule.id in {finding.rule for finding in bad}
    good = lint_texts({"good.yaml": make_file(rule, rule.good)}, Options()).active
    assert [finding.message for finding in good] == []

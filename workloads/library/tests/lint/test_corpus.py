"""The defects of the articles that this platform replaces, in manifests written for it."""

import re
from pathlib import Path

import pytest

from holdfast.lint import examples
from holdfast.lint.engine import Options, lint, lint_texts
from holdfast.lint.pages import example_text
from holdfast.lint.registry import Rule, all_rules
from workloads.library.tests.lint import defects

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").glob("*.yaml"))
CORRECTED = HERE / "corrected"


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_every_defect_of_the_articles_is_found(file: Path) -> None:
    expected = re.findall(r"HF\d{3}", file.read_text().partition("\n")[0])
    found = {finding.rule for finding in lint([file], Options()).active}
    assert expected and set(expected) <= found, set(expected) - found


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_the_same_objects_corrected_are_clean(file: Path) -> None:
    twin = CORRECTED / file.name
    bad, good = (
        {defects.title(body) for body in examples.parse(each.read_text())} for each in (file, twin)
    )
    assert bad <= good, "every object is corrected, none left out"
    assert [(f.rule, f.object_name) for f in lint([twin], Options()).findings] == []


def test_there_are_more_than_forty_rules_with_ids_of_one_form() -> None:
    rules = all_rules()
    assert len(rules) >= 40
    assert len({rule.slug for rule in rules.values()}) == len(rules)
    for rule_id, rule in rules.items():
        assert re.fullmatch(r"HF\d{3}", rule_id)
        assert all(
            (rule.what, rule.why, rule.source, rule.fix, rule.bad, rule.good or rule.base)
        ), rule_id
        assert rule.good or not rule.bad.startswith("apiVersion:"), (
            f"{rule_id}: a whole object shows no change"
        )


@pytest.mark.parametrize("rule", all_rules().values(), ids=lambda rule: rule.name)
def test_a_rule_finds_its_bad_example_and_all_rules_pass_its_good_one(rule: Rule) -> None:
    bad = lint_texts({"bad.yaml": example_text(rule, rule.bad)}, Options()).active
    assert rule.id in {finding.rule for finding in bad}
    good = lint_texts({"good.yaml": example_text(rule, rule.good)}, Options()).active
    assert [finding.message for finding in good] == []

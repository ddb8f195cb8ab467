"""The command `rules`: what is shown, and the exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app
from holdfast.contract.errors import InputError
from holdfast.lint.registry import all_rules


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_all_rules_are_listed_as_text_and_as_json() -> None:
    done = call("lint", "--rule", "all")
    assert done.exit_code == 0
    assert all(rule.id in done.stdout and rule.slug in done.stdout for rule in all_rules().values())
    body = json.loads(call("lint", "--rule", "all", "--json").stdout)
    assert body["schema"] == "holdfast.rules/1" and {rule["id"] for rule in body["rules"]} == set(all_rules())


@pytest.mark.parametrize("asked", ["HF101", "HF101-grace-exceeds-window"])
def test_one_rule_shows_what_why_both_examples_and_the_fix(asked: str) -> None:
    rule = all_rules()["HF101"]
    shown = " ".join(call("lint", "--rule", asked).stdout.split())
    for part in (rule.what, rule.why, rule.fix, rule.bad, rule.source):
        assert " ".join(part.split()) in shown


def test_an_unknown_rule_is_bad_input() -> None:
    done = call("lint", "--rule", "HF999")
    assert isinstance(done.exception, InputError) and "HF999" in str(done.exception)

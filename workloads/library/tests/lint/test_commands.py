"""The commands `render` and `rules`: what is written, what is shown, and the exit codes."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app as library
from holdfast.contract.errors import InputError
from holdfast.lint.registry import all_rules
from holdfast.lint.retired import RETIRED
from tests.workloads.manifests.rendered import RENDERED
from workloads.__main__ import app as platform

FILES = sorted(path.relative_to(RENDERED / "example").as_posix() for path in (RENDERED / "example").rglob("*.yaml"))


def call(*words: str | Path) -> Result:
    app = library if words[0] == "rules" else platform
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_render_writes_the_files_of_the_environments(tmp_path: Path) -> None:
    done = call("render", "example", "--out", tmp_path)
    assert done.exit_code == 0
    assert sorted(done.stdout.split()) == [(tmp_path / "example" / name).as_posix() for name in FILES]
    for name in FILES:
        assert (tmp_path / "example" / name).read_text() == (RENDERED / "example" / name).read_text()
    assert not (tmp_path / "prod").exists()


def test_render_again_changes_nothing_and_removes_what_no_longer_belongs(tmp_path: Path) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")  # as the test above has seen it written
    left = tmp_path / "example" / "platform" / "99-old.yaml"
    left.write_text("kind: Pod\n")
    done = call("render", "example", "--out", tmp_path)
    assert done.stdout.split() == [left.as_posix()] and not left.exists()


def test_render_check_writes_nothing_and_exits_1_when_a_file_would_change(tmp_path: Path) -> None:
    shutil.copytree(RENDERED / "example", tmp_path / "example")
    edited = tmp_path / "example" / FILES[0]
    edited.write_text("edited by hand\n")
    done = call("render", "example", "--out", tmp_path, "--check")
    assert done.exit_code == 1 and done.stdout.split() == [edited.as_posix()]
    assert edited.read_text() == "edited by hand\n"


def test_render_of_an_unknown_environment_names_the_known_ones(tmp_path: Path) -> None:
    done = call("render", "exmaple", "--out", tmp_path)
    assert isinstance(done.exception, InputError) and "example" in str(done.exception)
    assert not any(tmp_path.iterdir())


def test_rules_lists_every_rule() -> None:
    done = call("rules")
    assert done.exit_code == 0
    assert all(rule.id in done.stdout and rule.slug in done.stdout for rule in all_rules().values())


@pytest.mark.parametrize("asked", ["HF101", "HF101-grace-exceeds-window"])
def test_rules_of_one_rule_shows_what_why_both_examples_and_the_fix(asked: str) -> None:
    rule = all_rules()["HF101"]
    shown = " ".join(call("rules", asked).stdout.split())
    assert "terminationGracePeriodSeconds: 15" in shown, "the clean object has it"
    for part in (rule.what, rule.why, rule.fix, rule.bad, rule.source):
        assert " ".join(part.split()) in shown


def test_rules_as_json_holds_the_same_as_the_pages() -> None:
    body = json.loads(call("rules", "--json").stdout)
    assert body["schema"] == "holdfast.rules/1"
    assert {rule["id"] for rule in body["rules"]} == set(all_rules())


def test_rules_of_an_unknown_rule_is_bad_input() -> None:
    done = call("rules", "HF999")
    assert isinstance(done.exception, InputError) and "HF999" in str(done.exception)


def test_rules_of_a_retired_rule_names_the_tool_that_judges_the_same() -> None:
    done = call("rules", "HF401")
    assert isinstance(done.exception, InputError) and "kube-score: container-image-tag" in str(done.exception)
    assert not set(RETIRED) & set(all_rules())

"""Workflow files: pinned, without standing credentials, and clean under the linters that are run on them."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.check_workflows import WORKFLOWS, check

FILES = sorted(WORKFLOWS.glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_and_nothing_is_granted_to_all_jobs(file: Path) -> None:
    text = file.read_text()
    for action in re.findall(r"uses: (\S+)(.*)", text):
        assert re.search(r"@[0-9a-f]{40}$", action[0]) and re.match(r" # v\d", action[1]), action
    assert "secrets." not in text, "keyless: identities are exchanged, nothing is stored"
    assert set((YAML(typ="safe").load(text)["permissions"] or {}).values()) <= {"read"}


def test_what_holds_credentials_never_runs_code_of_another_repository() -> None:
    for file in FILES:
        workflow = YAML(typ="safe").load(file.read_text())
        for job in workflow["jobs"].values():
            if "id-token" in job.get("permissions", {}) and "pull_request" in workflow.get("on", {}):
                assert "head.repo.full_name == github.repository" in job["if"], file
            assert "pull_request_target" not in workflow.get("on", {})


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_linters_find_nothing_here_and_something_in_a_bad_file(tmp_path: Path) -> None:
    assert check() == 0
    (tmp_path / "bad.yml").write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: nowhere\n    steps:\n      - run: echo ${{ github.head_ref }}\n"
    )
    assert check(tmp_path) != 0

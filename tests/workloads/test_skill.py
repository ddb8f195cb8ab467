"""The skill for agents of users: its commands parse, its exit codes are those of the commands, and
an agent that follows it offline gets what it promises.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.support.command_line import run_app
from holdfast.vocabulary import exit_codes
from tests.command_lines import APPS, COMMANDS, parse
from tests.support import ROOT

SKILL = (ROOT / "workloads/skills/holdfast-jobs/SKILL.md").read_text()
LINES: list[str] = []
for block in re.findall(r"```sh\n(.*?)```", SKILL, re.S):
    LINES += block.splitlines()
CODES = re.findall(r"^\| (\d+) \| .+? \|", SKILL, re.M)


def test_skill_is_short_and_says_when_to_use_it() -> None:
    assert len(SKILL.splitlines()) <= 80
    head = SKILL.split("---\n")[1]
    assert re.findall(r"^(\w+): \S", head, re.M) == ["name", "description"]


@pytest.mark.parametrize("line", LINES)
def test_skill_command_parses(line: str) -> None:
    assert parse(shlex.split(line))


def test_skill_names_only_existing_options() -> None:
    options: set[str] = set()
    for name, command in COMMANDS.items():
        if not name.startswith("holdfast "):
            continue
        options.add("--help")
        for parameter in command.params:
            options.update(parameter.opts)
    stated_options = re.findall(r"`[^`\n]*?(--[a-z-]+)", SKILL)
    assert set(stated_options) <= options


def test_skill_exit_codes_match_the_commands() -> None:
    codes = re.findall(r"\b(\d+) [a-z]", exit_codes.EXIT_CODES_HELP)
    assert set(CODES) == set(codes)


class Agent:
    """Types the skill's commands in a folder, without a cluster."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def type_code(self, line: str) -> int:
        code, _ = self.type(line)
        return code

    def type_json(self, line: str) -> Any:
        code, shown = self.type(line)
        assert code == 0
        return json.loads(shown)

    def type(self, line: str) -> tuple[int, str]:
        _, *words = shlex.split(line)
        code = 0
        try:
            run_app(APPS["holdfast"], words)
        except SystemExit as ending:
            code = int(ending.code or 0)
        return code, self._capsys.readouterr().out


@pytest.fixture
def agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Agent:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    document = ROOT / "workloads/rendered/example/platform.json"
    monkeypatch.setenv("HOLDFAST_PLATFORM", str(document))
    return Agent(capsys)


DIGEST = "2" * 64
IMAGE = f"us-docker.pkg.dev/acme/research/train@sha256:{DIGEST}"


def find_line(text: str) -> str:
    """Returns the first command of the skill that has the text."""
    for line in LINES:
        if text in line:
            return line
    raise AssertionError(f"the skill has no command with {text}")


def test_agent_that_follows_the_skill_has_a_priced_and_checked_job(agent: Agent) -> None:
    line = find_line("new-job")
    assert "--deadline" in line
    new_job = line.replace("--image trainer", f"--image {IMAGE}")
    assert agent.type_code(new_job) == 0
    placement = agent.type_json(find_line(" place --job"))
    assert placement["chosen"]
    assert placement["reason"]
    assert placement["options"]
    report = agent.type_json(find_line(" lint "))
    assert report["findings"] == []
    submission = agent.type_json(find_line("--dry-run"))
    assert 0 < submission["usd_per_hour"] < 5


def test_agent_meets_the_exit_codes_that_the_skill_names(agent: Agent) -> None:
    agent.type(f"holdfast new-job tune --image {IMAGE} --gpus 1xl4 -- python train.py")
    priced = find_line("--dry-run")
    too_dear = priced.replace("-hour 5", "-hour 0.01")
    assert agent.type_code(too_dear) == exit_codes.EXIT_STOPPED
    explained = find_line("explain")
    assert agent.type_code(explained) == exit_codes.EXIT_NOT_JUDGED
    file = Path("tune.yaml")
    text = file.read_text()
    file.write_text(text.replace("capacity: auto", "capacity: spott"))
    assert agent.type_code(priced) == exit_codes.EXIT_BAD_INPUT

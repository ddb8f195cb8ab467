"""The skill for agents of users: its commands parse, its exit codes are those of the commands, and
an agent that follows it offline gets what it promises.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from holdfast.support.command_line import run_app
from holdfast.vocabulary import exit_codes
from tests.command_lines import APPS, COMMANDS, parse
from tests.support import ROOT

SKILL = (ROOT / "workloads/skills/holdfast-jobs/SKILL.md").read_text()
LINES = [
    line for block in re.findall(r"```sh\n(.*?)```", SKILL, re.S) for line in block.splitlines()
]
CODES = {int(code): text for code, text in re.findall(r"^\| (\d+) \| (.+?) \|", SKILL, re.M)}


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
        if name.startswith("holdfast "):
            options.update(*(parameter.opts for parameter in command.params), ["--help"])
    assert set(re.findall(r"`[^`\n]*?(--[a-z-]+)", SKILL)) <= options


def test_skill_exit_codes_match_the_commands() -> None:
    codes = re.findall(r"\b(\d+) [a-z]", exit_codes.EXIT_CODES_HELP)
    assert set(CODES) == {int(code) for code in codes}


class Agent:
    """Types the skill's commands in a folder, without a cluster."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

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


IMAGE = f"us-docker.pkg.dev/acme/research/train@sha256:{'2' * 64}"


def test_agent_that_follows_the_skill_has_a_priced_and_checked_job(agent: Agent) -> None:
    line = next(line for line in LINES if "--deadline" in line and "new-job" in line)
    assert agent.type(line.replace("--image trainer", f"--image {IMAGE}"))[0] == 0
    code, shown = agent.type(next(line for line in LINES if " place --job" in line))
    placed = json.loads(shown)
    assert code == 0 and placed["chosen"] and placed["reason"] and placed["options"]
    code, shown = agent.type(next(line for line in LINES if " lint " in line))
    assert code == 0 and json.loads(shown)["findings"] == []
    priced = next(line for line in LINES if "--dry-run" in line)
    code, shown = agent.type(priced)
    assert code == 0 and 0 < json.loads(shown)["usd_per_hour"] < 5


def test_agent_meets_the_exit_codes_that_the_skill_names(agent: Agent) -> None:
    agent.type(f"holdfast new-job tune --image {IMAGE} --gpus 1xl4 -- python train.py")
    priced = next(line for line in LINES if "--dry-run" in line)
    assert agent.type(priced.replace("-hour 5", "-hour 0.01"))[0] == exit_codes.EXIT_STOPPED
    explained = next(line for line in LINES if "explain" in line)
    assert agent.type(explained)[0] == exit_codes.EXIT_NOT_JUDGED
    file = Path("tune.yaml")
    file.write_text(file.read_text().replace("capacity: auto", "capacity: spott"))
    assert agent.type(priced)[0] == exit_codes.EXIT_BAD_INPUT

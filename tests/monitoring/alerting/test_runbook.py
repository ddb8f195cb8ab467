"""Every alert has its section, every section fits into a notification, every command in it parses."""

import re
import shlex
import subprocess

import pytest
import typer
from typer.main import get_command

from monitoring.alerting import runbook
from monitoring.alerting.alerts import EXAMPLE, Alert, Source, alerts

ALERTS = alerts(EXAMPLE)
TOOLS = {"kubectl", "gcloud", "python"}
DOORS = {
    "holdfast": "holdfast.commands",
    "infra": "infra.__main__",
    "workloads": "workloads.__main__",
    "monitoring": "monitoring.__main__",
}


def test_sections_and_alerts_are_the_same_set() -> None:
    assert list(runbook.sections()) == [alert.slug for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.slug)
def test_a_section_has_all_its_parts_in_order_and_fits(alert: Alert) -> None:
    text = runbook.documentation(
        alert, "https://git.example.org/team/holdfast/blob/main/monitoring/alerting/runbook.md"
    )
    assert re.findall(r"^\*\*(.+?)\.?\*\*", text.content, flags=re.MULTILINE) == list(runbook.PARTS)
    assert text.url.endswith(f"/runbook.md#{alert.slug}")
    assert text.content.count("](") <= 3
    if alert.source is Source.PROMQL:
        assert f"make test-alert ALERT={alert.slug}" in text.content


@pytest.mark.parametrize("slug", list(runbook.sections()))
def test_every_command_parses_and_every_word_of_ours_exists(slug: str) -> None:
    found = runbook.commands(runbook.sections()[slug])
    assert found
    for command in found:
        subprocess.run(["bash", "-n", "-c", command], check=True, capture_output=True)
        words = shlex.split(command)
        assert words[0] in TOOLS, command
        if words[0] == "python":
            check_door(words)


def check_door(words: list[str]) -> None:
    import importlib

    assert words[1] == "-m"
    app: typer.Typer = importlib.import_module(DOORS[words[2]]).app
    command = get_command(app)
    for word in words[3:]:
        if word.startswith("-") or not hasattr(command, "commands"):
            break
        assert word in command.commands, words  # type: ignore[attr-defined]
        command = command.commands[word]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("--")} <= options, words


def test_the_table_is_the_one_of_the_alerts() -> None:
    text = runbook.PATH.read_text()
    assert runbook.with_table(text, ALERTS) == text, "run: python -m monitoring alerts --write"


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("git@git.example.org:team/holdfast.git", "https://git.example.org/team/holdfast"),
        ("https://git.example.org/team/holdfast", "https://git.example.org/team/holdfast"),
        ("ssh://git@git.example.org/team/holdfast.git", "https://git.example.org/team/holdfast"),
        ("/srv/git/holdfast", ""),
        ("https://user:secret@git.example.org/team/holdfast.git", ""),
        ("", ""),
    ],
)
def test_a_fork_links_to_itself_and_never_shows_a_secret(remote: str, url: str) -> None:
    assert runbook.web_url(remote) == (f"{url}/blob/main/monitoring/alerting/runbook.md" if url else "")

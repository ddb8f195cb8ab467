"""Every alert has its section, every section fits into a notification, every command in it parses."""

import re
import shlex
import subprocess

import pytest

from monitoring.alerting import runbook
from monitoring.alerting.alert import EXAMPLE, Alert, AlertSource
from monitoring.alerting.alerts import alerts
from tests.monitoring.alerting.rule_cases import CASES
from tests.workloads.manifests import rendered

ALERTS = alerts(EXAMPLE)
TOOLS = {"kubectl", "gcloud", "python", "holdfast"}


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
    if alert.source is AlertSource.PROMQL:
        assert f"make test-alert ALERT={alert.slug}" in text.content


@pytest.mark.parametrize("slug", list(runbook.sections()))
def test_every_command_parses(slug: str) -> None:
    """That commands of ours exist is what tests/test_pages.py asks of every page."""
    found = runbook.commands(runbook.sections()[slug])
    assert found
    for command in found:
        subprocess.run(["bash", "-n", "-c", command], check=True, capture_output=True)
        words = shlex.split(command)
        assert words[0] in TOOLS, command
        assert words[0] == "kubectl" or "batch" not in words, "a laptop does not reach the results database"
    events = [command for command in found if "--events" in command]
    assert not events or "--follow" in events[0], "a laptop has no event lines before `explain --follow` has kept them"


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


# Shell variable -> label of the notification, where they differ; the environment's own need no label.
LABEL_OF = {"POOL": "node_pool_name", "HOSTNAME": "Hostname"}
OF_ENVIRONMENT = {"ENV", "PROJECT", "CLUSTER", "REGION", "CHECKPOINTS"}


@pytest.mark.parametrize("alert", [a for a in ALERTS if a.source is AlertSource.PROMQL], ids=lambda a: a.slug)
def test_commands_use_only_what_the_notification_carries(alert: Alert) -> None:
    """An empty variable makes a command that returns nothing, or everything."""
    carried = {name for history in CASES[alert.name] for fired in history.fires for name, _ in fired}
    for command in runbook.commands(runbook.sections()[alert.slug]):
        used = set(re.findall(r"\$\{?([A-Z_]+)", command)) - OF_ENVIRONMENT
        assert {LABEL_OF.get(name, name.lower()) for name in used} <= carried, command


def test_selectors_of_commands_match_pods_as_they_are_rendered() -> None:
    commands = [c for body in runbook.sections().values() for c in runbook.commands(body)]
    asked = [
        (re.findall(r"-n (\S+)", command), selector.partition("=")[0], selector.partition("=")[2])
        for command in commands
        for selector in re.findall(r"--selector [\"]?([^\s\"]+)", command)
        if "pods" in command or "logs" in command
    ]
    assert len(asked) >= 5
    pods = [(b["metadata"]["namespace"], t["metadata"]["labels"]) for b, t in rendered.workloads("example")]
    for namespaces, label, value in asked:
        anywhere = namespaces == ['"$NAMESPACE"']
        found = [
            labels[label] for namespace, labels in pods if (anywhere or [namespace] == namespaces) and label in labels
        ]
        assert found, f"no pod in {namespaces} has the label {label}"
        assert value.startswith("$") or value in found

"""Every alert has its section, which fits into a notification, and whose commands parse and name
what the platform gives.
"""

import fnmatch
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from holdfast.manifests.render_context import RenderContext
from holdfast.support.object_names import commit_object
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB
from infra import environments
from infra.describe import platform
from infra.specs import outputs
from monitoring import stack
from monitoring.alerting import runbook
from monitoring.alerting.alert import EXAMPLE, Alert, AlertSource, Severity
from monitoring.alerting.alerts import alerts
from tests.monitoring.alerting.rule_cases import CASES
from tests.support import program, ran
from tests.workloads.manifests import rendered

ALERTS = alerts(EXAMPLE)
TOOLS = {"kubectl", "gcloud", "python", "holdfast", "make"}
URL = "https://git.example.org/team/holdfast/blob/main/monitoring/alerting/runbook.md"
REACH = "gcloud container clusters get-credentials holdfast-example"
WORDS = {
    "ENV": "example",
    "PROJECT": "acme-ai-platform",
    "CLUSTER": "holdfast-example",
    "REGION": "us-central1",
    "CHECKPOINTS": "gs://acme-ai-platform-holdfast-example-checkpoints/default",
}


def test_sections_and_alerts_are_the_same_set() -> None:
    assert list(runbook.sections()) == [alert.slug for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.slug)
def test_a_section_has_all_its_parts_in_order_and_fits(alert: Alert) -> None:
    text = runbook.documentation(alert, URL, WORDS, REACH)
    assert re.findall(r"^\*\*(.+?)\.?\*\*", text.content, flags=re.MULTILINE) == [
        "Reach the cluster",
        *runbook.PARTS,
    ]
    assert text.url.endswith(f"/runbook.md#{alert.slug}")
    assert text.content.count("](") <= 3
    if alert.source is AlertSource.PROMQL:
        assert f"make test-alert ALERT={alert.slug}" in text.content


@pytest.mark.parametrize("slug", list(runbook.sections()))
def test_every_command_parses(slug: str) -> None:
    """tests/test_pages.py checks on every page that our commands exist."""
    commands = runbook.commands(runbook.sections()[slug])
    assert commands
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, capture_output=True)
        words = shlex.split(command)
        assert words[0] in TOOLS, command
        assert words[0] == "kubectl" or "batch" not in words, (
            "a laptop does not reach the results database"
        )
    events = [command for command in commands if "--events" in command]
    assert not events or "--follow" in events[0], (
        "a laptop has no event lines before `explain --follow` has kept them"
    )


def test_runbook_table_matches_the_alerts() -> None:
    text = runbook.PATH.read_text()
    assert runbook.replace_table(text, ALERTS) == text, "run: python -m monitoring alerts --write"


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
    assert runbook.web_url(remote) == (
        f"{url}/blob/main/monitoring/alerting/runbook.md" if url else ""
    )


def list_labels(alert: Alert) -> set[str]:
    labels: set[str] = set()
    for history in CASES.get(alert.name, ()):
        for fired in history.fires:
            labels.update(name for name, _ in fired)
    return labels


@pytest.mark.parametrize("name", environments.names())
@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.slug)
def test_notification_uses_only_what_cloud_monitoring_replaces(alert: Alert, name: str) -> None:
    """An empty variable makes a command that returns nothing, or everything."""
    environment = environments.load(name)
    words = stack.make_words(environment)
    text = runbook.documentation(alert, URL, words, outputs.credentials(environment))
    assert text.subject.startswith(f"[{alert.severity.value}] {name}: {alert.name}")
    lines = runbook.commands(text.content)
    assert lines[0].startswith("gcloud container clusters get-credentials")
    assert environment.cluster_name in lines[0]
    for line in (*lines, text.subject):
        variables = re.findall(r"\$\{[^}]*\}?", line)
        labels = {variable.removeprefix("${metric.label.").rstrip("}") for variable in variables}
        assert labels <= list_labels(alert), line
        assert not re.search(r"\$[A-Z_]", line), f"a variable that nobody sets: {line}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.slug)
def test_what_a_mitigation_asks_for_is_a_command(alert: Alert) -> None:
    mitigation = runbook.sections()[alert.slug].partition("**Mitigation.**")[2]
    mitigation = mitigation.partition("**Safe to ignore when**")[0]
    if alert.severity is Severity.PAGE:
        assert runbook.commands(mitigation), "a page without an action"
    actions = {
        r"\bStop the (job|workers)": "holdfast stop",
        r"\bcordon\b": "kubectl cordon",
        r"\bDelete (the|its|a|the job's) pods?\b": "kubectl delete pod",
        r"\bundo it\. ": "kubectl rollout undo",
    }
    for words, command in actions.items():
        if re.search(words, mitigation, flags=re.IGNORECASE):
            assert re.search(rf"{command}|xargs kubectl delete", mitigation), command
    assert not re.search(r"\bsuspend", mitigation, flags=re.IGNORECASE), "say: holdfast stop"


ENVIRONMENT = environments.load("example")
CHECKPOINTS = RenderContext(platform(ENVIRONMENT)).checkpoints
INVENTORY = Path(__file__).parents[2] / "snapshots" / "plan" / "example" / "foundation-example.yaml"
USED = []
for slug, body in runbook.sections().items():
    for command in runbook.commands(body):
        if command.startswith("gcloud "):
            USED.append((slug, command))


def jobs() -> dict[str, str]:
    """Name of each rendered training job -> the run that its first pod works on."""
    runs: dict[str, str] = {}
    for body, _, command in rendered.trainers("example"):
        runs[body["metadata"]["name"]] = rendered.option(command, "--run").replace(
            "$(JOB_COMPLETION_INDEX)", "0"
        )
    return runs


def words(command: str, job: str, folder: Path) -> list[str]:
    """Return gcloud's arguments, as the shell passes them."""
    program(folder / "gcloud", '#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    variables = {
        "JOB": job,
        "PROJECT": ENVIRONMENT.project,
        "CLUSTER": ENVIRONMENT.cluster_name,
    }
    variables |= {"CHECKPOINTS": CHECKPOINTS, "NAMESPACE": "training"}
    variables |= {
        "REGION": ENVIRONMENT.region,
        "POOL": "spot-a100",
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    done = ran(["bash", "-uc", command], variables=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_runbook_names_existing_resources(tmp_path: Path) -> None:
    inventory = json.dumps(YAML(typ="safe").load(INVENTORY.read_text()))
    named = re.compile(r"holdfast-example-\w+")
    for _, command in USED:
        for name in named.findall(" ".join(words(command, "job", tmp_path))):
            assert name in inventory, command


@pytest.mark.parametrize(("job", "run"), jobs().items())
def test_alert_names_the_job_whose_checkpoints_the_runbook_lists(
    job: str,
    run: str,
    tmp_path: Path,
) -> None:
    commands = []
    for _, command in USED:
        if "$JOB" in command or "${JOB" in command:
            commands.append(words(command, job, tmp_path))
    listed = []
    for called in commands:
        if called[0] == "storage":
            for word in called:
                if word.startswith("gs://"):
                    listed.append(word)
    assert len(listed) >= 2
    for pattern in listed:
        folder = pattern.removeprefix(f"{CHECKPOINTS}/")
        assert fnmatch.fnmatch(commit_object(run, 1), f"{folder}/*"), pattern


def test_log_filter_finds_a_jobs_lines_by_its_pod_label(tmp_path: Path) -> None:
    filters: list[Any] = []
    for _, command in USED:
        if "k8s-pod" in command:
            filters.append(words(command, "job-1", tmp_path))
    label = f'labels."k8s-pod/{LABEL_HOLDFAST_JOB.replace(".", "_")}"="job-1"'
    assert filters
    for called in filters:
        assert label in called[2]

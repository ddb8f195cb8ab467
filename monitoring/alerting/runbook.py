"""runbook.md as data: the text of a notification, and the table of all alerts.

A notification is a section with its shell variables filled in: those of the environment by their
values, those of the incident by Cloud Monitoring's variables, which it replaces when it sends
(https://cloud.google.com/monitoring/alerts/doc-variables). Cloud Monitoring's limits on
documentation are checked here, so that a section that is too long fails in a test and not in an
apply.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.support.errors import InputError
from monitoring.alerting.alert import Alert

PATH = Path(__file__).parent / "runbook.md"
PARTS = (
    "Meaning",
    "Impact",
    "First command",
    "Diagnosis",
    "Mitigation",
    "Safe to ignore when",
    "Tested by",
)
MAX_CHARACTERS = 8_192
MAX_BYTES = 10_240
MAX_SUBJECT = 255
MAX_URL = 2_083
BEGIN = (
    "<!-- alerts: written by `python -m monitoring alerts --write`, checked by"
    " tests/monitoring/alerting/test_runbook.py -->"
)
END = "<!-- end of alerts -->"
LABELS = {
    "POOL": "node_pool_name",
    "JOB": "job",
    "ACCELERATOR": "accelerator",
    "NAMESPACE": "namespace",
    "HOSTNAME": "Hostname",
    "NAMESPACE_NAME": "namespace_name",
    "POD_NAME": "pod_name",
}
"""Shell variable of the runbook -> label of the series that fired."""


@dataclass(frozen=True, slots=True)
class Documentation:
    """The text of a notification."""

    subject: str
    content: str
    url: str
    """The address of the section in the runbook; empty if it is unknown."""


def sections(text: str | None = None) -> dict[str, str]:
    """Return slug -> Markdown below that heading; of runbook.md by default."""
    if text is None:
        text = PATH.read_text()
    parts = re.split(r"^## (\S+)\n", text, flags=re.MULTILINE)
    bodies = {}
    for slug, body in zip(parts[1::2], parts[2::2], strict=True):
        bodies[slug] = body.strip()
    return bodies


def documentation(
    alert: Alert,
    base_url: str,
    values: Mapping[str, str],
    reach: str,
) -> Documentation:
    """Return the text of an alert's notifications.

    values: shell variable -> value of the environment; it has at least `ENV`.
    reach: the command that makes kubectl talk to the environment's cluster.
    Raises InputError if the text is too long.
    """
    body = fill_in(alert.runbook or sections()[alert.slug], values)
    summary = alert.why[0].upper() + alert.why[1:]
    text = f"{summary}.\n\n**Reach the cluster.**\n```bash\n{reach}\n```\n{body}"
    url = f"{base_url}#{alert.slug}" if base_url and not alert.runbook else ""
    subject = f"[{alert.severity.value}] {values['ENV']}: {alert.name}"
    if alert.subject:
        subject = f"{subject} {_label_variable(alert.subject)}"
    fits = len(text) <= MAX_CHARACTERS and len(text.encode()) <= MAX_BYTES
    if not (fits and len(subject) <= MAX_SUBJECT and len(url) <= MAX_URL):
        raise InputError(
            f"runbook section {alert.slug} does not fit into a notification",
            got=f"{len(text)} characters",
            allowed=f"{MAX_CHARACTERS} characters and {MAX_BYTES} bytes",
            fix="shorten the section in monitoring/alerting/runbook.md",
        )
    return Documentation(subject, text, url)


def fill_in(body: str, values: Mapping[str, str]) -> str:
    """Return a section with its shell variables replaced; other text stays as it is."""
    replacements = dict(values)
    for variable, label in LABELS.items():
        replacements[variable] = _label_variable(label)
    # Longer names first: NAMESPACE is the beginning of NAMESPACE_NAME.
    names = "|".join(sorted(replacements, key=len, reverse=True))
    return re.sub(rf"\$({names})\b", lambda match: replacements[match[1]], body)


def _label_variable(label: str) -> str:
    return f"${{metric.label.{label}}}"


def commands(body: str) -> list[str]:
    """Return the shell lines of a section."""
    lines: list[str] = []
    for block in re.findall(r"```bash\n(.*?)```", body, flags=re.DOTALL):
        lines += block.splitlines()
    return lines


def remote_url(root: Path = PATH.parents[2]) -> str:
    """Return the address of this checkout's runbook at its git remote; empty if there is none."""
    command = [
        "git",
        "-C",
        str(root),
        "config",
        "--get",
        "remote.origin.url",
    ]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    return web_url(process.stdout.strip())


def web_url(remote: str) -> str:
    """Return the runbook's page for a git remote, as git@host:owner/repo.git or
    https://host/owner/repo; empty for other forms.
    """
    match = re.fullmatch(
        r"(?:https://|git@|ssh://git@)([^/:@\s]+)[:/]([^\s@]+?)(?:\.git)?/?", remote
    )
    if match:
        return f"https://{match[1]}/{match[2]}/blob/main/monitoring/alerting/runbook.md"
    return ""


def table(alerts: tuple[Alert, ...]) -> str:
    """Return the alerts as a Markdown table."""
    rows = ["| alert | severity | judged on | why |", "|---|---|---|---|"]
    for alert in alerts:
        link = f"[{alert.name}](#{alert.slug})"
        severity = alert.severity.value
        source = alert.source.value
        rows.append(f"| {link} | {severity} | {source} | {alert.why} |")
    return "\n".join(rows)


def replace_table(text: str, alerts: tuple[Alert, ...]) -> str:
    """Return the runbook with a new table between its markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(alerts)}\n{END}{after}"

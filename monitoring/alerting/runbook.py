"""runbook.md as data: the text that travels in a notification, and the table of all alerts.

Cloud Monitoring's limits on documentation are
checked here, so that a section that grew too long fails in a test and not in an apply.
"""

import re
import subprocess
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


@dataclass(frozen=True, slots=True)
class Documentation:
    """What a notification carries."""

    subject: str
    content: str
    url: str
    """Empty where no address of the runbook is known."""


def sections(text: str | None = None) -> dict[str, str]:
    """Slug -> Markdown below that heading."""
    parts = re.split(r"^## (\S+)\n", PATH.read_text() if text is None else text, flags=re.MULTILINE)
    return {slug: body.strip() for slug, body in zip(parts[1::2], parts[2::2], strict=True)}


def documentation(alert: Alert, base_url: str) -> Documentation:
    body = alert.runbook or sections()[alert.slug]
    text = f"{alert.why[0].upper()}{alert.why[1:]}.\n\n{body}"
    url = f"{base_url}#{alert.slug}" if base_url and not alert.runbook else ""
    subject = f"[{alert.severity.value}] {alert.name}"
    fits = len(text) <= MAX_CHARACTERS and len(text.encode()) <= MAX_BYTES
    if not (fits and len(subject) <= MAX_SUBJECT and len(url) <= MAX_URL):
        what = f"runbook section {alert.slug} does not fit into a notification"
        allowed = f"{MAX_CHARACTERS} characters and {MAX_BYTES} bytes"
        fix = "shorten the section in monitoring/alerting/runbook.md"
        raise InputError(
            what,
            got=f"{len(text)} characters",
            allowed=allowed,
            fix=fix,
        )
    return Documentation(subject, text, url)


def commands(body: str) -> list[str]:
    """Shell lines of a section."""
    return [
        line
        for block in re.findall(r"```bash\n(.*?)```", body, flags=re.DOTALL)
        for line in block.splitlines()
    ]


def remote_url(root: Path = PATH.parents[2]) -> str:
    """Where this checkout's runbook can be read, from its git remote; empty if there is none."""
    command = [
        "git",
        "-C",
        str(root),
        "config",
        "--get",
        "remote.origin.url",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    return web_url(done.stdout.strip())


def web_url(remote: str) -> str:
    """git@host:owner/repo.git and https://host/owner/repo ->
    https://host/owner/repo/blob/main/monitoring/alerting/runbook.md
    """
    match = re.fullmatch(
        r"(?:https://|git@|ssh://git@)([^/:@\s]+)[:/]([^\s@]+?)(?:\.git)?/?", remote
    )
    if match:
        return f"https://{match[1]}/{match[2]}/blob/main/monitoring/alerting/runbook.md"
    return ""


def table(alerts: tuple[Alert, ...]) -> str:
    rows = []
    for a in alerts:
        rows.append(f"| [{a.name}](#{a.slug}) | {a.severity.value} | {a.source.value} | {a.why} |")
    return "\n".join(["| alert | severity | judged on | why |", "|---|---|---|---|", *rows])


def with_table(text: str, alerts: tuple[Alert, ...]) -> str:
    """The runbook with the table between its markers renewed."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(alerts)}\n{END}{after}"

"""Asks Google, read-only, through the user's gcloud."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from holdfast.support.errors import Unjudged


class GcloudFailed(Unjudged):
    """Reports that gcloud ran and failed."""


def ask(*arguments: str, project: str, timeout_s: float = 60) -> Any:
    """Runs gcloud and returns its JSON output. Raises Unjudged if it fails."""
    # Without the project, gcloud would answer about the default of the user's configuration.
    options = (f"--project={project}", "--format=json", "--quiet")
    output = run((*arguments, *options), timeout_s=timeout_s)
    return json.loads(output or "null")


def find_gcloud() -> str:
    """Returns the path of the program. Raises Unjudged if it is not installed."""
    program = shutil.which("gcloud")
    if program is None:
        raise Unjudged("gcloud is not installed: https://cloud.google.com/sdk/docs/install")
    return program


def run(arguments: Sequence[str], *, timeout_s: float = 60) -> str:
    """Runs gcloud and returns its output. Raises Unjudged if it is missing, slow or fails."""
    program = find_gcloud()
    command = f"gcloud {' '.join(arguments[:3])}"
    try:
        # gcloud itself retries for long if packets are dropped, and `doctor` asks nine questions in
        # turn.
        process = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GcloudFailed(f"{command} took longer than {timeout_s:.0f} s") from None
    if process.returncode != 0:
        messages = process.stderr.strip().splitlines()
        # Warnings come first, as that of impersonation.
        reason = messages[0] if messages else f"exit {process.returncode}"
        for message in reversed(messages):
            if message.startswith("ERROR:"):
                reason = message
        raise GcloudFailed(f"{command}: {reason}")
    return process.stdout

"""Ask Google, read-only, through the user's own gcloud."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from holdfast.support.errors import Unjudged


class GcloudFailed(Unjudged):
    """gcloud ran and refused."""


def ask(*arguments: str, project: str, timeout_s: float = 60) -> Any:
    """The answer as JSON."""
    # The project is always stated: a default of the user's configuration would answer about another
    # one.
    output = run(
        (*arguments, f"--project={project}", "--format=json", "--quiet"), timeout_s=timeout_s
    )
    return json.loads(output or "null")


def found() -> str:
    """The path of the program. Unjudged where it is not installed."""
    program = shutil.which("gcloud")
    if program is None:
        raise Unjudged("gcloud is not installed: https://cloud.google.com/sdk/docs/install")
    return program


def run(arguments: Sequence[str], *, timeout_s: float = 60) -> str:
    program = found()
    try:
        # gcloud retries on its own where packets are dropped, and `doctor` asks nine questions one
        # after the other.
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GcloudFailed(
            f"gcloud {' '.join(arguments[:3])} took longer than {timeout_s:.0f} s"
        ) from None
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        raise GcloudFailed(
            f"gcloud {' '.join(arguments[:3])}:"
            f" {reason[0] if reason else f'exit {done.returncode}'}"
        )
    return done.stdout

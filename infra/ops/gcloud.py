"""Ask Google, read-only, through the user's own gcloud. Called by doctor, leftovers and bootstrap."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from holdfast.contract.errors import Unjudged


class Refused(Unjudged):
    """gcloud ran and said no."""


def ask(*words: str, project: str, timeout_s: float = 60) -> Any:
    """The answer as JSON."""
    said = run((*words, f"--project={project}", "--format=json", "--quiet"), timeout_s=timeout_s)
    return json.loads(said or "null")


def run(words: Sequence[str], *, timeout_s: float = 60) -> str:
    program = shutil.which("gcloud")
    if program is None:
        raise Unjudged("gcloud is not installed: https://cloud.google.com/sdk/docs/install")
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"gcloud {' '.join(words[:3])} took longer than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        raise Refused(f"gcloud {' '.join(words[:3])}: {reason[0] if reason else f'exit {done.returncode}'}")
    return done.stdout

"""Installs a rival in its own environment when it is first needed."""

import subprocess
from pathlib import Path

from _pytest.outcomes import OutcomeException

from tests.plan.isolated import environment


class CannotRun(Exception):
    """A rival cannot run here; the message is shown in place of its numbers."""


def home(name: str) -> Path:
    """Returns the environment of a rival; raises CannotRun if it cannot be installed."""
    try:
        return environment(name)
    except (OutcomeException, subprocess.SubprocessError, OSError) as error:
        raise CannotRun(f"cannot be installed: {str(error).splitlines()[0][:200]}") from error

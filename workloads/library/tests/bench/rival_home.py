"""Where a rival is installed: an environment of its own, made when it is first asked for."""

import subprocess
from pathlib import Path

from _pytest.outcomes import OutcomeException

from tests.plan.isolated import environment


class CannotRun(Exception):
    """Why a rival is a row without numbers."""


def home(name: str) -> Path:
    try:
        return environment(name)
    except (OutcomeException, subprocess.SubprocessError, OSError) as error:
        raise CannotRun(f"cannot be installed: {str(error).splitlines()[0][:200]}") from error

"""Packages of locks of their own, which the tests of some files import."""

import subprocess
from pathlib import Path

from tests import support
from tests.tools import frameworks


def install_packages(name: str) -> Path:
    """Returns the folder with the packages of a lock.

    Skips the test where they cannot be installed, or fails it if CI is set.
    """
    try:
        return frameworks.install(name)
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"the packages of {name} cannot be installed: {error}")

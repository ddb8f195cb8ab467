"""Turns a module into a program that any image with Python runs."""

from pathlib import Path
from types import ModuleType


def make_program(module: ModuleType) -> str:
    """Return the text for `python -c`. It calls `main` of the module with the arguments."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return f"{text}\n\nmain(*sys.argv[1:])\n"

"""Reads known_values.toml: what the API, the operators and programs know of values and names.

Why it is so: infra/decisions/0195.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("known_values.toml")


def load_table(name: str) -> dict[str, Any]:
    """Returns one table of the file."""
    return _load()[name]


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))

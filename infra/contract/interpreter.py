"""Imported first by every door: ends it, with the way out, where this Python has not what commands
need.
"""

import sys
from importlib.util import find_spec

if lacking := [name for name in ("typer", "holdfast") if find_spec(name) is None]:
    print(
        "error:   this Python has not what the commands need",
        f"  got:     {sys.executable}, without {' and '.join(lacking)}",
        "  allowed: the one that `make setup` makes, .venv/bin/python",
        "  fix:     make setup && source .venv/bin/activate",
        sep="\n",
        file=sys.stderr,
    )
    sys.exit(2)

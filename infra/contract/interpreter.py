"""Exits with an error if this Python lacks packages that the commands need. Every command imports
it first.
"""

import sys
from importlib.util import find_spec

missing = [name for name in ("typer", "holdfast") if find_spec(name) is None]
if missing:
    print(
        "error:   this Python lacks packages that the commands need",
        f"  got:     {sys.executable}, without {' and '.join(missing)}",
        "  allowed: the one that `make setup` makes, .venv/bin/python",
        "  fix:     make setup && source .venv/bin/activate",
        sep="\n",
        file=sys.stderr,
    )
    sys.exit(2)

"""Prints what the placement room answers: Rich tables on a terminal, plain rows elsewhere, JSON on request."""

import json
import sys

from rich.console import Console
from rich.table import Table

from infra.placement import matrix as decision

PLAIN_WIDTH = 10_000  # off a terminal nothing is cut


def console() -> Console:
    """Standard output; Rich would cut tables at 80 columns off a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, no_color=True)


def matrix(*, as_json: bool, markdown: bool) -> None:
    if as_json:
        print(json.dumps(decision.as_json(), indent=2))
    elif markdown:
        print(decision.markdown())
    else:
        table = Table("rule", "workload", "runs on", "discount", "because", box=None, pad_edge=False)
        for row in decision.rows():
            table.add_row(row.rule, row.scenario, row.placement, row.discount, row.reason)
        console().print(table)

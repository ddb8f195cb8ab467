"""The command `holdfast receipt`. Its body imports: `--help` must not wait for what only a run needs."""

from pathlib import Path
from typing import Annotated

import typer


def receipt(
    events: Annotated[Path, typer.Option(help="Folder with event files (*.jsonl).")],
    job: Annotated[str, typer.Argument(help="The job that ended.")],
    usd_per_hour: Annotated[float, typer.Option(help="Price of one machine of the job.")],
    on_demand_usd_per_hour: Annotated[float, typer.Option(help="On-demand price of the machine.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a job cost, what evictions wasted of it, and what on-demand would have cost."""
    from holdfast.ledger.receipt import show

    show(events, job, usd_per_hour, on_demand_usd_per_hour, as_json=as_json)

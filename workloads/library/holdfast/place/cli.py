"""The commands `holdfast place churn` and `prices`. Bodies import, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.support.progress import working

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def churn(
    events: Annotated[
        Path | None, typer.Option(help="Folder with event files (*.jsonl) of the node watcher.")
    ] = None,
    project: Annotated[
        str, typer.Option(help="Cloud project to read instead, where the exporter writes.")
    ] = "",
    since: Annotated[
        str, typer.Option(help="With --project: the period to read: 30d, 12h. Empty: 30d.")
    ] = "",
    cluster: Annotated[
        str, typer.Option(help="With --project: only this cluster; empty: the sum of all.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Print preemptions per node-hour by pool, machine type, zone and age, with their interval."""
    from holdfast.cost.churn.cli import show_churn

    show_churn(
        events,
        project,
        since,
        as_json=as_json,
        cluster=cluster,
    )


def prices(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="First read Google's catalog; needs a login.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the price of a machine for an hour, and how many GPUs it has, by region and capacity."""
    from holdfast.place import output

    if refresh:
        with working("read the price catalog"):
            output.refresh_prices()
    output.print_prices(as_json=as_json)

"""The command `holdfast churn`. Its body imports: `--help` must not wait for what only a run needs."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def churn(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl) of the node watcher.")] = None,
    project: Annotated[str, typer.Option(help="Cloud project to read instead, where the exporter writes.")] = "",
    since: Annotated[
        str, typer.Option(help="With --project: how far back, from a midnight; 30d, 12h. Empty: 30d.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="With --project: this cluster alone; empty: all added up.")] = "",
    half_life_days: Annotated[float, typer.Option(help="After so long an observation counts half.")] = 14.0,
    as_json: Json = False,
) -> None:
    """Print preemptions per node-hour by pool, machine type, zone and age, with their interval."""
    from holdfast.place.churn.cli import show_churn

    show_churn(events, project, since, half_life_days, as_json=as_json, cluster=cluster)

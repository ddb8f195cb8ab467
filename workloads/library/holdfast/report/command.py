"""The command `holdfast report`. Its body imports: `--help` must not wait for what only a run needs."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def report(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl).")] = None,
    project: Annotated[str, typer.Option(help="Cloud project to read instead, where the exporter writes.")] = "",
    summary: Annotated[Path | None, typer.Option(help="What a demo or drill found out, as JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("out/report.html"),
    since: Annotated[
        str, typer.Option(help="Only this long before the newest event, or with --project from a midnight: 7d, 12h.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="With --project: this cluster alone; empty: each apart.")] = "",
    machine: Annotated[str, typer.Option(help="Machine type to price by; empty: that of the node lines.")] = "",
    region: Annotated[str, typer.Option(help="Region to price in, with --machine.")] = "",
    as_json: Json = False,
) -> None:
    """Write where the time went, what evictions cost, and whether the objectives held."""
    from holdfast.report.cli import one_source, write_cloud_report, write_report

    if source := one_source(events, project, cluster, summary, machine, region):
        raise typer.Exit(
            write_report(source, summary, out, since=since, machine=machine, region=region, as_json=as_json)
        )
    raise typer.Exit(write_cloud_report(project, out, cluster=cluster, since=since, as_json=as_json))

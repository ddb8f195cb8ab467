"""The command `holdfast report`. Its body imports: `--help` must not wait for what only a run needs."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def report(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl).")] = None,
    project: Annotated[str, typer.Option(help="Cloud project of the exporter's metrics, instead of event files.")] = "",
    summary: Annotated[Path | None, typer.Option(help="Results of a demo or drill, as JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("out/report.html"),
    since: Annotated[
        str,
        typer.Option(
            help="Only the last period before the newest event: 7d, 12h. With --project it starts at midnight."
        ),
    ] = "",
    cluster: Annotated[
        str, typer.Option(help="With --project: only this cluster; empty: each cluster separately.")
    ] = "",
    machine: Annotated[str, typer.Option(help="Machine type for prices; empty: the type in the node events.")] = "",
    region: Annotated[str, typer.Option(help="Region to price in, with --machine.")] = "",
    receipts: Annotated[
        Path | None, typer.Option(help="Lines of the mover (kubectl logs deploy/mover): receipts, summed by team.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a report: where the time went, what evictions cost, and which objectives were met."""
    from holdfast.report.cli import one_source, write_cloud_report, write_report

    if source := one_source(events, project, cluster, summary, machine, region):
        raise typer.Exit(
            write_report(
                source, summary, out, since=since, machine=machine, region=region, receipts=receipts, as_json=as_json
            )
        )
    raise typer.Exit(write_cloud_report(project, out, cluster=cluster, since=since, receipts=receipts, as_json=as_json))

"""Command line of `holdfast report`; the function imports late, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    events: Annotated[
        Path | None,
        typer.Option(help="Folder with event files (*.jsonl); none: print the receipts alone."),
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Results of a demo or drill, as JSON.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("out/report.html"),
    machine: Annotated[
        str, typer.Option(help="Machine type for prices; empty: the type in the node events.")
    ] = "",
    region: Annotated[str, typer.Option(help="Region to price in, with --machine.")] = "",
    receipts: Annotated[
        Path | None,
        typer.Option(
            help="File or folder with receipts, from their bucket or the mover's log; by team."
        ),
    ] = None,
    platform: Annotated[
        Path | None,
        typer.Option(
            help="Platform document, whose budgets are shown in the bill of teams; else"
            " HOLDFAST_PLATFORM."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a report: where the time went, what evictions cost, and which objectives were met."""
    from holdfast.report.bill import print_bill
    from holdfast.report.cli import write_report
    from holdfast.support.errors import InputError

    if events is not None and platform is not None:
        raise InputError(
            "--platform with --events",
            got="both",
            allowed="--platform for the bill of receipts, which has no events",
            fix="leave --events out for the bill, or --platform for the report",
        )
    if events is None:
        raise typer.Exit(print_bill(receipts, platform, as_json=as_json))
    code = write_report(
        events,
        summary,
        out,
        machine=machine,
        region=region,
        receipts=receipts,
        as_json=as_json,
    )
    raise typer.Exit(code)

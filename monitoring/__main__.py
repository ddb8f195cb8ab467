"""The door of monitoring: `python -m monitoring report ...`. Bodies import; this module stays light."""

from pathlib import Path
from typing import Annotated

import typer

from infra.contract.errors import EXIT_CODES_HELP, run_door

app = typer.Typer(
    help=f"Watch what was taken away, and what it cost. {EXIT_CODES_HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def door() -> None:
    """Keeps `report` a word of its own while it is the only command."""


@app.command()
def report(
    events: Annotated[Path, typer.Option(help="Folder with event files (*.jsonl).")],
    summary: Annotated[Path | None, typer.Option(help="What a demo or drill found out, as JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("out/report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Write where the time went, what evictions cost, and whether the objectives held."""
    from monitoring.report.cli import write_report

    raise typer.Exit(write_report(events, summary, out, as_json=as_json))


if __name__ == "__main__":
    run_door(app)

"""The command line of monitoring: `python -m monitoring alerts`. Bodies import; this module stays
light.
"""

# first: all below needs what `make setup` installs
from infra.contract import interpreter as interpreter

# isort: split
from typing import Annotated

import typer

from holdfast.support.command_line import new_app, run_app
from holdfast.support.examples import examples

app = new_app("Alerts and their runbook.")


@app.callback()
def _commands() -> None:  # pyright: ignore[reportUnusedFunction]
    """Keeps the command's name: Typer drops it where an app has one command."""


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(epilog=examples("python -m monitoring alerts"))
def alerts(
    write: Annotated[
        bool, typer.Option("--write", help="Update the table in monitoring/alerting/runbook.md.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List all alerts with severity, source and reason."""
    from dataclasses import asdict

    from holdfast.support.tables import print_json
    from monitoring.alerting import alert, runbook
    from monitoring.alerting import alerts as data

    known = data.alerts(alert.EXAMPLE)
    if write:
        runbook.PATH.write_text(runbook.with_table(runbook.PATH.read_text(), known))
        typer.echo(f"wrote {runbook.PATH}", err=True)
    if as_json:
        print_json("alerts", alerts=[asdict(each) | {"slug": each.slug} for each in known])
    elif not write:
        print(runbook.table(known))


if __name__ == "__main__":
    run_app(app)

"""The command line of monitoring: `python -m monitoring alerts`. Bodies import what they need, so
that --help is quick.
"""

# Imported first, since everything below needs the packages that `make setup` installs.
from infra.contract import interpreter as interpreter

# isort: split
from typing import Annotated

import typer

from holdfast.support.command_line import new_app, run_app
from holdfast.support.examples import examples

app = new_app("Alerts and their runbook.")


@app.callback()
def _commands() -> None:  # pyright: ignore[reportUnusedFunction]
    """Keep the command's name: Typer drops it if an app has one command."""


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

    items = data.alerts(alert.EXAMPLE)
    if write:
        runbook.PATH.write_text(runbook.replace_table(runbook.PATH.read_text(), items))
        typer.echo(f"wrote {runbook.PATH}", err=True)
    if as_json:
        print_json("alerts", alerts=[asdict(item) | {"slug": item.slug} for item in items])
    elif not write:
        print(runbook.table(items))


if __name__ == "__main__":
    run_app(app)

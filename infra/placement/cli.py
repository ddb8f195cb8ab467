"""Commands of the placement room; mounted by infra.__main__. Module top stays light: bodies import."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def matrix(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the README.")] = False,
) -> None:
    """Which capacity suits which workload, and why."""
    from infra.placement import show

    show.matrix(as_json=as_json, markdown=markdown)

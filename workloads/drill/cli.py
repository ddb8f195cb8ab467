"""Commands of the drills; bodies import, modules do not."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report, the summary, events and logs.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Of the eviction schedule.")] = 7,
    data: Annotated[
        Path | None, typer.Option(help="Folder with text to train on; default: Python's own sources.")
    ] = None,
) -> None:
    """Train and score under evictions, compare with undisturbed runs, and write a report."""
    from workloads.drill.demo import play

    raise typer.Exit(play(out.resolve(), seed=seed, data=data))

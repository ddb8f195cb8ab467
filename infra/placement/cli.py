"""Commands of the placement room; mounted by infra.__main__. Module top stays light: bodies import."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
prices = typer.Typer(help="Prices of GPU machines, with their date and SKUs.", no_args_is_help=True)
app.add_typer(prices, name="prices")


@app.command()
def matrix(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the README.")] = False,
) -> None:
    """Which capacity suits which workload, and why."""
    from infra.placement import show

    show.matrix(as_json=as_json, markdown=markdown)


@app.command()
def place(
    gpu: Annotated[str, typer.Option(help="l4, a100, a100-80, h100.")],
    hours: Annotated[float, typer.Option(help="Undisturbed work on all GPUs together.")],
    gpus: Annotated[int, typer.Option(help="How many work at the same time.")] = 1,
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    checkpoint: Annotated[str, typer.Option(help="What one checkpoint blocks: 30s. none: cannot resume.")] = "30s",
    restart: Annotated[str, typer.Option(help="From a new machine to the first new step.")] = "5m",
    batch: Annotated[bool, typer.Option("--batch", help="Work from a queue, one small item at a time.")] = False,
    region: Annotated[str, typer.Option(help="Default: the region that answers cheapest.")] = "",
    churn: Annotated[float | None, typer.Option(help="Evictions a running node-hour, if you know it.")] = None,
    measured: Annotated[Path | None, typer.Option(help="Churn that the ledger measured, JSON.")] = None,
    together: Annotated[float, typer.Option(help="Nodes of a gang that one reclaim takes, on average.")] = 1.0,
    flex_wait: Annotated[str, typer.Option(help="Median wait in the flex-start queue here.")] = "30m",
    traces: Annotated[Path | None, typer.Option(help="Folder of recorded availability instead of a churn.")] = None,
    encoding: Annotated[str, typer.Option(help="Of the traces: available or preempted is 1.")] = "",
    project: Annotated[str, typer.Option(help="Also ask Google's capacity advice, for this project.")] = "",
    emit: Annotated[Path | None, typer.Option(help="Write ComputeClass and pod placement to this folder.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write cost against finish time to this SVG.")] = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """What each capacity would cost for a job, when it would be done, and where the answer turns."""
    from infra.placement import ask, job, show_place

    asked = job.Job(
        accelerator=job.accelerator(gpu),
        gpus=gpus,
        hours=hours,
        deadline_h=job.duration(deadline, "deadline"),
        checkpoint_h=job.duration(checkpoint, "checkpoint"),
        restart_h=job.duration(restart, "restart"),
        batch=batch,
    )
    belief = ask.Belief(
        churn=churn, measured=measured, together=together, flex_wait_h=job.duration(flex_wait, "flex wait"),
        traces=traces, encoding=encoding, seed=seed,
    )  # fmt: skip
    answer = ask.answer(asked, belief, region)
    google = ask.google(asked, answer, project) if project else None
    written = ask.write(asked, answer, emit, plot)
    show_place.place(asked, answer, google=google, written=written, as_json=as_json)


@prices.command("show")
def show_prices(as_json: Json = False) -> None:
    """What one GPU with its share of the machine costs an hour, by region and capacity."""
    from infra.placement import show

    show.prices(as_json=as_json)


@prices.command()
def refresh() -> None:
    """Read the Cloud Billing Catalog and rewrite prices.json. Needs an API key or a Google login."""
    import datetime

    from infra.placement import catalog, show
    from infra.placement.prices import TABLE, dump, load

    table = catalog.refresh(load(), datetime.datetime.now(tz=datetime.UTC).date())
    TABLE.write_text(dump(table))
    show.refreshed(table)

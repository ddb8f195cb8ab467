"""The commands `holdfast place`, `matrix` and `prices`. Bodies import, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.examples import examples
from holdfast.contract.progress import working

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]

prices = typer.Typer(help="Prices of GPU machines, with their date and SKUs.", no_args_is_help=True)


def matrix(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the README.")] = False,
) -> None:
    """Which capacity suits which workload, and why."""
    from holdfast.place import show

    show.matrix(as_json=as_json, markdown=markdown)


def place(
    gpu: Annotated[str, typer.Option(help="l4, a100, a100-80, h100, h200, b200, or as nvidia-smi prints it.")] = "",
    gpus: Annotated[int, typer.Option(help="How many work at the same time.")] = 1,
    hours: Annotated[str, typer.Option(help="Undisturbed work by the clock, all GPUs together: 40, 40h, 2d.")] = "",
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    nodes: Annotated[str, typer.Option(help="4..8: an elastic gang, which goes on with fewer.")] = "",
    checkpoint: Annotated[
        str, typer.Option(help="How long one save blocks: 30s. none: cannot resume. queue: items of a batch.")
    ] = "30s",
    region: Annotated[str, typer.Option(help="Where the data may lie: us-central1, or europe,us-east4.")] = "",
    platform: Annotated[Path | None, typer.Option(help="platform.json: only its machines and its region.")] = None,
    churn: Annotated[str, typer.Option(help="Preemptions a node-hour, or FILE of `holdfast churn --json`.")] = "",
    spot_wait: Annotated[str, typer.Option(help="Median wait for Spot here: 2h. Default: the record.")] = "",
    file: Annotated[
        Path | None, typer.Option("--job", help="Job file: GPUs, hours, deadline and platform from it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What each capacity costs for a job and when it is done, in three scenarios of Spot, and which one to take."""
    from holdfast.contract import node_range
    from holdfast.contract.errors import InputError
    from holdfast.place import ask, job, job_file, show_place
    from holdfast.platform.cluster import nearest

    document = nearest(platform, file.parent if file else None)
    if file is not None:
        if gpu or hours:
            raise InputError(
                "--job and a question", got="both", allowed="one of them", fix="leave --gpu and --hours out"
            )
        stated = job_file.read(file)
        gpu, gpus, hours, deadline = stated.gpu, stated.gpus, stated.hours, stated.deadline
        checkpoint, nodes = stated.checkpoint, nodes or stated.nodes
        if document is not None and document.name != stated.environment:
            raise InputError(
                f"{file} is a job of another platform", got=stated.environment, allowed=document.name,
                fix="--platform with the document of its environment",
            )  # fmt: skip
    least, most = node_range.parse(nodes, job.MAX_GPUS) if nodes else (0, 0)
    asked = job.Job(
        accelerator=job.accelerator(gpu), gpus=gpus, hours=job.clock_hours(hours),
        deadline_h=job.duration_h(deadline, "deadline"),
        checkpoint_h=job.duration_h("30s" if checkpoint == job.QUEUE else checkpoint, "checkpoint"),
        batch=checkpoint == job.QUEUE, min_nodes=least, max_nodes=most,
        offered=ask.machines_of(document) if document else frozenset(),
    )  # fmt: skip
    belief = ask.belief(churn, job.duration_h(spot_wait, "Spot wait") if spot_wait else None)
    with working("price every capacity"):
        # A job runs where its platform is: a cheaper region is no answer to its owner.
        answer = ask.answer(asked, belief, region or (document.price_region if document else ""))
    show_place.place(asked, answer, as_json=as_json)


@prices.command("show", epilog=examples("holdfast prices show"))
def show_prices(as_json: Json = False) -> None:
    """What one GPU with its share of the machine costs an hour, by region and capacity."""
    from holdfast.place import show

    show.prices(as_json=as_json)


@prices.command(epilog=examples("holdfast prices refresh"))
def refresh() -> None:
    """Read the Cloud Billing Catalog and rewrite prices.json. Needs an API key or a Google login."""
    import datetime

    from holdfast.place import catalog, show
    from holdfast.place.prices import TABLE, dump, load

    with working("read the price catalog"):
        table = catalog.refresh(load(), datetime.datetime.now(tz=datetime.UTC).date())
    TABLE.write_text(dump(table))
    show.refreshed(table)

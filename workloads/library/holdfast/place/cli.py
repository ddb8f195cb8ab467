"""The commands `holdfast place`, `matrix` and `prices`. Bodies import, so that --help is quick."""

import dataclasses
import sys
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
    hours: Annotated[str, typer.Option(help="Undisturbed work by the clock, all GPUs together: 40, 40h, 2d.")] = "",
    gpu_hours: Annotated[str, typer.Option(help="Instead of --hours: the same times the GPUs.")] = "",
    gpus: Annotated[int, typer.Option(help="How many work at the same time.")] = 1,
    nodes: Annotated[str, typer.Option(help="4..8: an elastic gang, which goes on with fewer.")] = "",
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    checkpoint: Annotated[str, typer.Option(help="What one checkpoint blocks: 30s. none: cannot resume.")] = "30s",
    restart: Annotated[str, typer.Option(help="From a new machine to the first new step: 5m.")] = "5m",
    batch: Annotated[bool, typer.Option("--batch", help="Work from a queue, one small item at a time.")] = False,
    items: Annotated[int, typer.Option(help="With --batch: how many the hours get through.")] = 0,
    environment: Annotated[str, typer.Option(help="Only machines of its pools, as example.")] = "",
    region: Annotated[str, typer.Option(help="Default: the region that answers cheapest.")] = "",
    within: Annotated[str, typer.Option(help="Where the data may lie: europe, or us-central1,us-east4.")] = "",
    data_in: Annotated[str, typer.Option(help="Region of the bucket with checkpoint and data set.")] = "",
    data_gib: Annotated[float, typer.Option(help="How much of it must move where the job goes.")] = 0.0,
    transfer_usd: Annotated[float | None, typer.Option(help="A GiB between regions, of your price list.")] = None,
    transfer_rate: Annotated[float | None, typer.Option(help="MiB a second between regions, as measured.")] = None,
    committed: Annotated[str, typer.Option(help="Your price of a GPU-hour for a term, to compare: 1.90/30d.")] = "",
    churn: Annotated[float | None, typer.Option(help="Evictions a running node-hour, if you know it.")] = None,
    measured: Annotated[Path | None, typer.Option(help="Churn and waits that the ledger measured, JSON.")] = None,
    together: Annotated[float, typer.Option(help="Nodes of a gang that one reclaim takes, on average.")] = 1.0,
    flex_wait: Annotated[
        str, typer.Option(help="Median wait in the flex-start queue here. Default: 30m assumed.")
    ] = "",
    spot_wait: Annotated[str, typer.Option(help="Median wait for Spot here: 2h. Default: as recorded.")] = "",
    on_demand_refused: Annotated[float, typer.Option(help="How often on-demand is refused here: 0.05.")] = 0.0,
    traces: Annotated[Path | None, typer.Option(help="Folder of recorded availability instead of a churn.")] = None,
    any_zone: Annotated[bool, typer.Option("--any-zone", help="The traces are zones of one region.")] = False,
    encoding: Annotated[str, typer.Option(help="Of the traces: available or preempted is 1.")] = "",
    project: Annotated[str, typer.Option(help="Also ask Google's capacity advice, for this project.")] = "",
    emit: Annotated[Path | None, typer.Option(help="Write ComputeClass and pod placement to this folder.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write cost against finish time to this SVG.")] = None,
    file: Annotated[
        Path | None, typer.Option("--job", help="Job file: GPUs, hours, deadline and pools from it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another sample, to see the noise; it does not change the choice.")] = 0,
    as_json: Json = False,
) -> None:
    """What each capacity would cost for a job, when it would be done, and where the answer turns.

    Without --gpu and --hours it asks, in a terminal.
    """
    from holdfast.contract import node_range
    from holdfast.contract.errors import InputError
    from holdfast.place import ask, commitment, interview, job, job_file, location, show_place

    if file is not None:
        if gpu or hours or gpu_hours:
            raise InputError(
                "--job and a question", got="both", allowed="one of them", fix="leave --gpu and --hours out"
            )
        stated = job_file.read(file)
        gpu, gpus, hours, deadline = stated.gpu, stated.gpus, stated.hours, stated.deadline
        checkpoint, batch, nodes = stated.checkpoint, stated.batch, nodes or stated.nodes
        environment = environment or stated.environment
        # Where the job would run: the cheapest region of all is no answer to its owner.
        region = region or ask.region_of(environment)
    # Half a question is a typo, and gets its error; only an empty one gets the interview.
    elif not (gpu or hours or gpu_hours) and sys.stdin.isatty() and sys.stdout.isatty():
        given = interview.interview(input, print)
        gpu, gpus, hours, deadline = given.gpu, given.gpus, given.hours, given.deadline
        checkpoint, batch, region = given.checkpoint, given.batch, given.region
        print(f"\nThe same without questions: {given.command()}\n", file=sys.stderr)

    least, most = node_range.parse(nodes, job.MAX_GPUS) if nodes else (0, 0)
    asked = job.Job(
        accelerator=job.accelerator(gpu),
        gpus=gpus,
        hours=job.clock_hours(hours, gpu_hours, gpus),
        deadline_h=job.duration_h(deadline, "deadline"),
        checkpoint_h=job.duration_h(checkpoint, "checkpoint"),
        restart_h=job.duration_h(restart, "restart"),
        batch=batch,
        items=items,
        min_nodes=least,
        max_nodes=most,
        offered=ask.machines_of(environment) if environment else frozenset(),
    )
    belief = ask.Belief(
        churn=churn, measured=measured, together=together, flex_wait_h=job.duration_h(flex_wait, "flex wait") if flex_wait else None,
        spot_wait_h=job.duration_h(spot_wait, "Spot wait") if spot_wait else None,
        on_demand_refused=on_demand_refused, traces=traces, any_zone=any_zone, encoding=encoding, seed=seed,
    )  # fmt: skip
    data = location.Location(
        within=location.parse_within(within), region=data_in, gib=data_gib, usd_per_gib=transfer_usd,
        mib_per_s=transfer_rate,
    )  # fmt: skip
    contract = commitment.parse(committed)
    with working("price every capacity"):
        answer = dataclasses.replace(ask.answer(asked, belief, region, data), committed=contract)
    google = ask.google(asked, answer, project) if project else None
    written = ask.write(asked, answer, emit, plot)
    show_place.place(asked, answer, google=google, written=written, as_json=as_json)


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

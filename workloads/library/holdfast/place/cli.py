"""The commands `holdfast place`, `churn` and `prices`. Bodies import, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.progress import working

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def place(
    gpu: Annotated[str, typer.Option(help="l4, a100, a100-80, h100, h200, b200, or as nvidia-smi prints it.")] = "",
    gpus: Annotated[int, typer.Option(help="Number of GPUs that work at the same time.")] = 1,
    hours: Annotated[str, typer.Option(help="Duration of undisturbed work on all GPUs: 40, 40h, 2d.")] = "",
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    nodes: Annotated[str, typer.Option(help="4..8: an elastic gang, which continues with fewer nodes.")] = "",
    checkpoint: Annotated[
        str, typer.Option(help="Time for which one save blocks: 30s. none: cannot resume. queue: items of a batch.")
    ] = "30s",
    region: Annotated[str, typer.Option(help="Allowed regions of the data: us-central1, or europe,us-east4.")] = "",
    platform: Annotated[Path | None, typer.Option(help="platform.json: only its machines and its region.")] = None,
    churn: Annotated[str, typer.Option(help="Preemptions per node-hour, or FILE of `holdfast churn --json`.")] = "",
    spot_wait: Annotated[str, typer.Option(help="Median wait for Spot: 2h. Default: the record.")] = "",
    file: Annotated[
        Path | None, typer.Option("--job", help="Job file: GPUs, hours, deadline and platform from it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare cost and finish time of a job on each capacity, in three Spot scenarios, and recommend one.

    Without a job: which capacity suits which workload, and why.
    """
    from holdfast.contract import node_range
    from holdfast.contract.errors import InputError
    from holdfast.place import ask, job, show, show_place
    from holdfast.platform.cluster import nearest

    if not (gpu or hours or file):
        show.matrix(as_json=as_json)
        return
    document, sharded = nearest(platform, file.parent if file else None), 0
    if file is not None:
        if gpu or hours:
            raise InputError(
                "--job and a question", got="both", allowed="one of them", fix="leave --gpu and --hours out"
            )
        stated = job.read_file(file)
        gpu, gpus, hours, deadline = stated.gpu, stated.gpus, stated.hours, stated.deadline
        checkpoint, nodes, sharded = stated.checkpoint, nodes or stated.nodes, stated.sharded
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
        batch=checkpoint == job.QUEUE, min_nodes=least, max_nodes=most, sharded=sharded,
        offered=ask.machines_of(document) if document else frozenset(),
    )  # fmt: skip
    belief = ask.belief(churn, job.duration_h(spot_wait, "Spot wait") if spot_wait else None)
    with working("price every capacity"):
        # A job runs where its platform is: a cheaper region is no answer to its owner.
        answer = ask.answer(asked, belief, region or (document.price_region if document else ""))
    show_place.place(asked, answer, as_json=as_json)


def churn(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl) of the node watcher.")] = None,
    project: Annotated[str, typer.Option(help="Cloud project to read instead, where the exporter writes.")] = "",
    since: Annotated[
        str, typer.Option(help="With --project: the period to read, from a midnight: 30d, 12h. Empty: 30d.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="With --project: only this cluster; empty: the sum of all.")] = "",
    half_life_days: Annotated[float, typer.Option(help="Age in days at which an observation counts half.")] = 14.0,
    as_json: Json = False,
) -> None:
    """Print preemptions per node-hour by pool, machine type, zone and age, with their interval."""
    from holdfast.place.churn.cli import show_churn

    show_churn(events, project, since, half_life_days, as_json=as_json, cluster=cluster)


def prices(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="First update them from the Cloud Billing Catalog; needs a Google login.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the price of one GPU-hour, with its share of the machine, by region and capacity."""
    from holdfast.place import show

    if refresh:
        with working("read the price catalog"):
            show.refresh()
    show.prices(as_json=as_json)

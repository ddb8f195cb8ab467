"""The commands new-job and try. Bodies import: `--help` must not wait for what only a run needs."""

from pathlib import Path
from typing import Annotated

import typer


def new_job(
    name: Annotated[str, typer.Argument(help="Of the run; started again under it, it resumes.")],
    command: Annotated[list[str] | None, typer.Argument(help="After --, the program and its options.")] = None,
    image: Annotated[str, typer.Option(help="NAME@sha256:DIGEST, NAME:TAG, or a role as trainer.")] = "",
    gpus: Annotated[str, typer.Option(help="Of each node, as 8xa100; none: CPU only.")] = "none",
    nodes: Annotated[str, typer.Option(help="Above 1 all run or none; 4..8: at least 4 of 8.")] = "1",
    capacity: Annotated[str, typer.Option(help="auto, spot, flex-start, queued or on-demand.")] = "auto",
    platform: Annotated[
        Path | None, typer.Option(help="platform.json; default: HOLDFAST_PLATFORM, else the document of the cluster.")
    ] = None,
    data: Annotated[str, typer.Option(help="gs://BUCKET/FOLDER, read-only at /data.")] = "",
    variables: Annotated[list[str] | None, typer.Option("--set", help="VARIABLE=VALUE, repeatable.")] = None,
    secrets: Annotated[list[str] | None, typer.Option("--secret", help="VARIABLE=SECRET, repeatable.")] = None,
    claims: Annotated[list[str] | None, typer.Option("--claim", help="PATH=CLAIM, read-only, repeatable.")] = None,
    hours: Annotated[float, typer.Option(help="Undisturbed work: the planner then computes the placement.")] = 0.0,
    deadline_hours: Annotated[float, typer.Option(help="Done so long after its submission; 0: whenever.")] = 0.0,
    max_hours: Annotated[float, typer.Option(help="Stopped after so many, waits included.")] = 168.0,
    resumes: Annotated[bool, typer.Option(help="It can go on elsewhere where it stopped.")] = True,
    on_notice: Annotated[str, typer.Option(help="handles, drain or wrap: what SIGTERM does to it.")] = "handles",
    restarts: Annotated[int, typer.Option(help="Crashes until it is given up.")] = 3,
    processes: Annotated[int, typer.Option(help="That torchrun starts in a pod; 0: one a GPU.")] = 0,
    checkpoints: Annotated[str, typer.Option(help="gs://BUCKET; default: the environment's.")] = "",
    checkpoint_key: Annotated[str, typer.Option(help="Secret that signs commits.")] = "",
    scratch: Annotated[str, typer.Option(help="Size of /tmp.")] = "10Gi",
    shm: Annotated[str, typer.Option(help="Size of /dev/shm; default: a quarter of the memory.")] = "",
    cpus: Annotated[float, typer.Option(help="Without GPUs.")] = 4.0,
    memory: Annotated[str, typer.Option(help="Without GPUs.")] = "16Gi",
    steady: Annotated[bool, typer.Option("--steady", help="--nodes workers that never end, as a Deployment.")] = False,
    predictor: Annotated[str, typer.Option(help="MODULE:FUNCTION: a batch over --data instead of a program.")] = "",
    out: Annotated[Path | None, typer.Option(help="The job file; default: NAME.yaml.")] = None,
    write: Annotated[Path | None, typer.Option(help="Also write what it becomes to this folder, for Git.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that say something else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Write the file of a job of your own: your image and command, and all that survives eviction around them."""
    from holdfast.clients.api import Api
    from holdfast.jobs.own import commands
    from holdfast.jobs.own.job_file import OwnJob
    from holdfast.platform.cluster import choose, nearest

    found = nearest(platform) or choose(Api(), None)
    job = OwnJob(
        name=name, environment=found.name, image=image, command=tuple(command or ()), gpus=gpus, nodes=commands.nodes(nodes),
        capacity=capacity, hours=hours, deadline_hours=deadline_hours, max_hours=max_hours, resumes=resumes, on_notice=on_notice, restarts=restarts,
        processes=processes, data=data, checkpoints=checkpoints, checkpoint_key=checkpoint_key,
        env=commands.pairs("--set", variables), secrets=commands.pairs("--secret", secrets),
        claims=commands.pairs("--claim", claims), scratch=scratch, shm=shm, cpus=cpus, memory=memory,
        steady=steady, predictor=predictor,
    )  # fmt: skip
    commands.new_job(job, found, out or Path(f"{name}.yaml"), write, force=force, as_json=as_json)


def try_(
    evict: Annotated[bool, typer.Option("--evict", help="Take its pod away once, when it has begun.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Of the reference trainer.")] = 200,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Refuse above this.")] = None,
    timeout_s: Annotated[float, typer.Option(min=1, help="How long it is followed; the job goes on.")] = 7200,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    platform: Annotated[Path | None, typer.Option(help="platform.json; default: the document of the cluster.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the current context, as kubectl takes it.")] = None,
) -> None:
    """The first run: the smallest sample on the cheapest Spot pool, followed to its receipt."""
    from holdfast.clients.api import Api
    from holdfast.jobs.following import Following
    from holdfast.jobs.own import trying
    from holdfast.jobs.submit import Caps
    from holdfast.platform.cluster import choose

    api = Api(kubeconfig)
    asked = trying.Asked(steps=steps, following=Following(evict=evict, timeout_s=timeout_s))
    raise typer.Exit(trying.run(api, choose(api, platform), asked, Caps(usd_per_hour=max_usd_per_hour), yes=yes))

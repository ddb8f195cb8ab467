"""The commands of jobs. Bodies import: `--help` must not wait for what only a run needs."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from holdfast.clients.api import Api
    from holdfast.jobs.submit.submission import Plan
    from holdfast.platform import Platform

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Default: the current context, as in kubectl.")
]
Namespace = Annotated[str, typer.Option(help="Default: every namespace.")]
Events = Annotated[
    Path | None, typer.Option(help="Folder of event lines: step, last save, useful share.")
]
PlatformFile = Annotated[
    Path | None, typer.Option("--platform", help="platform.json; default: that of the cluster.")
]


def submit(
    manifest: Annotated[
        Path, typer.Argument(help="A job file, or a manifest with a Job or JobSet.")
    ],
    job: Annotated[str, typer.Option(help="One job of the manifest; default: all.")] = "",
    platform: PlatformFile = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Refuse a higher price.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show and check, but send nothing.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Also write the objects to this folder, for Git.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the running job of this name or run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Show the cost of a manifest and start it; refuse it above a price limit (exit 4)."""
    from holdfast.clients.api import Api
    from holdfast.jobs import output
    from holdfast.jobs.submit import prepared_job

    # Without a cluster only a dry run has an answer, by a document that was given or is near.
    found, api = _platform(manifest, platform, kubeconfig, dry_run=dry_run)
    made = _planned(manifest, job, found, max_usd_per_hour)
    if as_json:
        output.as_json(made.as_json())
    else:
        output.plan(made, str(manifest))
    if made.refusals:
        for refusal in made.refusals:
            output.note(f"refused: {refusal}")
        raise typer.Exit(EXIT_STOPPED)
    if write:
        prepared_job.write_manifest(made, write / manifest.name)
    if dry_run:
        return
    _start(
        api or Api(kubeconfig),
        made,
        yes=yes,
        replace=replace,
    )


def _start(api: "Api", made: "Plan", *, yes: bool, replace: bool) -> None:
    """Sends what does not run already."""
    from holdfast.jobs import output
    from holdfast.jobs.submit import existing_jobs, submission

    with _asking():
        sent, replaced = existing_jobs.compare(api, made.documents, replace=replace)
    for document in made.documents:
        if document not in sent:
            output.note(
                f"{document['metadata']['name']} runs already as the file says: it is not sent"
                " again"
            )
    if not any(document["kind"] in submission.KINDS for document in sent):
        return
    for path in replaced:
        output.note(
            f"deletes {path.rpartition('/')[2]}, which runs now: what it did since its last"
            " checkpoint is lost"
        )
    output.agree(yes)
    with _asking():
        for path in replaced:
            existing_jobs.end(api, path)
    for name in submission.apply(api, sent):
        output.note(f"applied {name}")
    output.note(f"Next: holdfast explain {made.purchases[0].job}")
    if any(document["kind"] in ("Job", "JobSet") for document in sent):
        output.note(f"Next: holdfast explain {made.purchases[0].job} --follow")


def _platform(
    file: Path,
    given: Path | None,
    config: Path | None,
    *,
    dry_run: bool,
) -> "tuple[Platform, Api | None]":
    """The platform to judge by. Raises Stopped where the file is in the folder of another
    platform's document.
    """
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose, nearest

    if dry_run and (local := nearest(given, file.parent)):
        return local, None
    api = Api(config)
    with _asking():
        return choose(api, given, file.parent), api


def _planned(
    file: Path,
    job: str,
    platform: "Platform",
    cap: float | None,
) -> "Plan":
    """Of a manifest, or of a job file."""
    from holdfast.cost import prices
    from holdfast.jobs.file import file_text
    from holdfast.jobs.submit import prepared_job, submission

    documents = submission.documents_of(file)
    if documents and file_text.is_job(documents[0]):
        return prepared_job.plan(prepared_job.read_job(documents[0], file, platform), cap)
    chosen = submission.only(submission.checked(file, documents), job)
    submission.require_of(file, platform)
    return submission.plan(chosen, platform, prices.load(), cap)


def explain(
    job: Annotated[
        str, typer.Argument(help="Name of a JobSet or Job; without it, all jobs are listed.")
    ] = "",
    platform: PlatformFile = None,
    events: Events = None,
    namespace: Namespace = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow to its end, then print its receipt.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Stop --follow after this; the job continues.")
    ] = 604_800,
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Explain in six lines why a job waits, restarts or is slow. Without JOB, list all jobs:
    evictions, crashes, last save, dollars.

    --follow prints the event lines of its pods, and keeps them in the folder of --events.
    """
    from holdfast.clients.api import Api
    from holdfast.cost import prices
    from holdfast.jobs import output
    from holdfast.jobs.diagnose import explain as room
    from holdfast.jobs.diagnose import job_snapshot
    from holdfast.jobs.submit import follower
    from holdfast.platform.cluster import choose

    if follow and (as_json or not job):
        got = "--json" if as_json else "no job"
        raise InputError(
            "--follow shows one job as text",
            got=got,
            allowed="explain JOB --follow",
            fix="holdfast explain JOB --follow",
        )
    with _asking():
        api = Api(kubeconfig)
        chosen = choose(api, platform)
        if follow:
            followed = job_snapshot.find(api, job, namespace)
            if followed.kind == "Deployment":
                fix = f"holdfast explain {job}"
                raise InputError(
                    "it never ends",
                    got=f"{job}, a Deployment",
                    allowed="a JobSet or a Job",
                    fix=fix,
                )
            asked = follower.Following(timeout_s=timeout_s, events=events)
            raise typer.Exit(follower.follow(api, chosen, followed, asked, output.note))
        if job:
            found = room.explain(api, job, namespace, events, chosen)
        else:
            found = room.rows(api, chosen, prices.load(), events, namespace)
    if as_json:
        output.as_json(room.rows_json(found) if isinstance(found, list) else found.as_json())
    elif not isinstance(found, list):
        output.explanation(found)
    elif found:
        output.listing(found)
    else:
        output.note("no jobs")


@contextmanager
def _asking() -> Generator[None]:
    """A cluster that will not answer leaves nothing to judge by."""
    from holdfast.clients.api import ApiError

    try:
        yield
    except ApiError as error:
        raise Unjudged(f"the cluster does not answer: {error}") from error


def place(
    gpu: Annotated[
        str, typer.Option(help="l4, a100, a100-80, h100, h200, b200, or as nvidia-smi prints it.")
    ] = "",
    gpus: Annotated[int, typer.Option(help="Number of GPUs that work at the same time.")] = 1,
    hours: Annotated[
        str, typer.Option(help="Duration of undisturbed work on all GPUs: 40, 40h, 2d.")
    ] = "",
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    nodes: Annotated[
        str, typer.Option(help="4..8: an elastic gang, which continues with fewer nodes.")
    ] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            help=(
                "Time for which one save blocks: 30s. none: cannot resume. queue: items of a batch."
            )
        ),
    ] = "30s",
    region: Annotated[
        str, typer.Option(help="Allowed regions of the data: us-central1, or europe,us-east4.")
    ] = "",
    platform: Annotated[
        Path | None, typer.Option(help="platform.json: only its machines and its region.")
    ] = None,
    churn: Annotated[
        str, typer.Option(help="Preemptions per node-hour, or FILE of `holdfast churn --json`.")
    ] = "",
    spot_wait: Annotated[
        str, typer.Option(help="Median wait for Spot: 2h. Default: the record.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--job", help="Job file with GPUs, hours, deadline, platform.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare cost and finish time of a job on each capacity, in three Spot scenarios, and
    recommend one.

    Without a job: which capacity suits which workload, and why.
    """
    from holdfast.place import job, output, recommendation
    from holdfast.platform.cluster import nearest
    from holdfast.support.progress import working

    if not (gpu or hours or file):
        output.print_matrix(as_json=as_json)
        return
    if file and (gpu or hours or nodes):
        fix = "leave --gpu, --hours and --nodes out"
        raise InputError(
            "--job and a question",
            got="both",
            allowed="one of them",
            fix=fix,
        )
    document = nearest(platform, file.parent if file else None)
    pools = document.pools if document else ()
    offered = frozenset(pool.machine_type for pool in pools if pool.gpus_per_node)
    if file:
        from holdfast.jobs.file import file_text  # only here: it takes YAML readers

        asked = file_text.question_of(file, document, offered)
    else:
        asked = job.parse_job(gpu, gpus, hours, deadline, nodes, checkpoint, offered)
    world = recommendation.make_world(
        asked, churn, job.parse_duration(spot_wait, "Spot wait") if spot_wait else None
    )
    with working("price every capacity"):
        # A job runs where its platform is: a cheaper region is no answer to its owner.
        answer = recommendation.answer(
            asked, world, region or (document.price_region if document else "")
        )
    output.print_answer(asked, answer, as_json=as_json)


def new_job(
    name: Annotated[
        str, typer.Argument(help="Name of the run; a run started again under this name resumes.")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its options, after --.")
    ] = None,
    image: Annotated[str, typer.Option(help="NAME@sha256:DIGEST, or a role such as trainer.")] = "",
    gpus: Annotated[
        str | None, typer.Option(help="GPUs of each node, such as 8xa100; default: CPU only.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Nodes, started all or none; 4..8: at least 4, at most 8.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="auto, spot, flex-start, queued or on-demand.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Hours of undisturbed work; the planner places it.")
    ] = None,
    deadline_hours: Annotated[
        float | None, typer.Option(help="Deadline in hours after submission.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="gs://BUCKET/FOLDER, read-only at /data.")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="FIELD=VALUE of the job file: restarts=5, env.NAME=VALUE, secrets.NAME=SECRET.",
        ),
    ] = None,
    platform: PlatformFile = None,
    out: Annotated[Path | None, typer.Option(help="The job file; default: NAME.yaml.")] = None,
) -> None:
    """Write a job file for your image and command, with everything that it needs to survive
    evictions.
    """
    from holdfast.clients.api import Api
    from holdfast.jobs.file import file_text
    from holdfast.jobs.submit import prepared_job
    from holdfast.platform.cluster import choose, nearest

    found = nearest(platform) or choose(Api(), None)
    options = {
        "gpus": gpus,
        "nodes": nodes,
        "capacity": capacity,
        "hours": hours,
        "deadline_hours": deadline_hours,
        "data": data,
    }
    stated = {
        "name": name,
        "environment": found.name,
        "image": image,
        "command": command or [],
    }
    job = file_text.assigned(
        others or (), stated | {key: each for key, each in options.items() if each is not None}
    )
    prepared_job.new_job(job, found, out or Path(f"{name}.yaml"))


def try_(
    evict: Annotated[
        bool, typer.Option("--evict", help="Evict its pod once, after it has started.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the reference trainer.")] = 200,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Refuse a higher price.")] = None,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Stop following after this time; the job continues.")
    ] = 7200,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run the smallest sample on the cheapest Spot pool and follow it to its receipt."""
    from holdfast.clients.api import Api
    from holdfast.jobs.submit import prepared_job
    from holdfast.jobs.submit.follower import Following
    from holdfast.platform.cluster import choose

    api = Api(kubeconfig)
    asked = Following(evict=evict, timeout_s=timeout_s)
    raise typer.Exit(
        prepared_job.first_run(api, choose(api, platform), steps, asked, max_usd_per_hour, yes=yes)
    )

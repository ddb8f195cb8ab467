"""The commands of jobs. Imports are in the bodies, so that --help is quick."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.job_commands.options import (
    Context,
    Events,
    Form,
    JobName,
    Json,
    Kubeconfig,
    Namespace,
    Output,
    PlatformFile,
    Yes,
)
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from holdfast.clients.api import Api, Object
    from holdfast.jobs.plan.pricing import PurchasePlan
    from holdfast.platform import Platform


def submit(
    manifest: Annotated[
        Path,
        typer.Argument(help="A job file, a service file, or a manifest with a Job or JobSet."),
    ],
    job: Annotated[str, typer.Option(help="One job of the manifest; default: all.")] = "",
    platform: PlatformFile = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Refuse a higher price.")] = None,
    min_obtainability: Annotated[
        float | None,
        typer.Option(help="Refuse machines that Google rates as less obtainable now: 0 to 1."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show and check, but send nothing.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Also write the objects to this folder, for Git.")
    ] = None,
    write_trainjob: Annotated[
        Path | None,
        typer.Option(
            help="Also write a gang as a runtime and a TrainJob of Kubeflow Trainer to this folder."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the running job of this name or run.")
    ] = False,
    yes: Yes = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    as_json: Json = False,
    form: Output = Form.TEXT,
) -> None:
    """Show the cost of a manifest and start it; refuse it above a price limit (exit 4)."""
    from holdfast.clients.api import Api
    from holdfast.jobs.submit import prepared_job
    from holdfast.services.cli import submit_service

    # Without a cluster only a dry run works, with a platform document that is given or near.
    document, api = _choose_platform(manifest, platform, kubeconfig, context, dry_run=dry_run)
    service = _read_service(manifest)
    if service is not None:
        if write_trainjob:
            raise InputError(
                "--write-trainjob",
                got=f"the service file {manifest}",
                allowed="a job file",
                fix="leave it out",
            )
        submit_service(
            service,
            manifest,
            document,
            None if dry_run else api or Api(kubeconfig, context),
            cap=max_usd_per_hour,
            write=write,
            replace=replace,
            yes=yes,
            as_json=as_json,
        )
        return
    plan = _plan(manifest, job, document, max_usd_per_hour)
    _judge_obtainability(plan, document, min_obtainability, dry_run=dry_run)
    _show(plan, manifest, as_json=as_json or form is Form.JSON)
    if write:
        _write_for_git(plan, write / manifest.name)
    if write_trainjob:
        prepared_job.write_train_job(plan, write_trainjob)
    if dry_run:
        return
    _start(
        api or Api(kubeconfig, context),
        plan,
        yes=yes,
        replace=replace,
    )


def _show(plan: "PurchasePlan", manifest: Path, *, as_json: bool) -> None:
    """Print a plan and what it costs. Raises Exit if a limit refuses it."""
    from holdfast.jobs import output

    if as_json:
        output.print_body(plan.as_json())
    else:
        output.print_plan(plan, str(manifest))
    if plan.refusals:
        for refusal in plan.refusals:
            output.note(f"refused: {refusal}")
        raise typer.Exit(EXIT_STOPPED)


def _write_for_git(plan: "PurchasePlan", file: Path) -> None:
    """Write the objects of a plan, and name what a file cannot hold."""
    from holdfast.jobs import output
    from holdfast.jobs.submit import prepared_job

    prepared_job.write_manifest(plan, file)
    for upload in plan.uploads:
        output.note(f"not in the manifest: {upload.url}, which `submit` uploads as it starts")


def _judge_obtainability(
    plan: "PurchasePlan",
    platform: "Platform",
    min_obtainability: float | None,
    *,
    dry_run: bool,
) -> None:
    """Warn of jobs whose many nodes are hard to obtain; refuse jobs below a limit.

    Without a limit, a dry run does not ask Google, and no run asks about jobs of few nodes.
    """
    from holdfast.clients import capacity_advice
    from holdfast.jobs import output
    from holdfast.jobs.plan import obtainability
    from holdfast.support.progress import working
    from holdfast.support.values import between

    if min_obtainability is not None:
        between(
            "--min-obtainability",
            min_obtainability,
            0,
            1,
            fix="0.5, for machines that probably come",
        )
    elif dry_run:
        return
    requests = obtainability.list_requests(plan, platform)
    if min_obtainability is None:
        requests = obtainability.select_large(requests)
    if not requests:
        return
    with working("ask Google how obtainable the machines are"):
        answers = obtainability.find_all(requests, capacity_advice.ask)
    if min_obtainability is not None:
        plan.refusals.extend(obtainability.list_refusals(answers, min_obtainability))
    for warning in obtainability.list_warnings(answers):
        output.note(warning)


def _read_service(file: Path) -> "Object | None":
    """Return the document of a service file, or None for any other file."""
    from holdfast.jobs.file import file_text
    from holdfast.services.file.file_text import find_service

    return find_service(file_text.read_documents(file), file)


def _start(api: "Api", plan: "PurchasePlan", *, yes: bool, replace: bool) -> None:
    """Send what does not run already."""
    from holdfast.jobs import output
    from holdfast.jobs.submit import existing_jobs, source_upload, submission
    from holdfast.support.progress import working

    with working("compare with what runs"):
        sent, replaced = existing_jobs.compare(api, plan.documents, replace=replace)
    for document in plan.documents:
        if document not in sent:
            output.note(
                f"{document['metadata']['name']} runs already as the file says: it is not sent"
                " again"
            )
    unsent = [document for document in plan.documents if document not in sent]
    for limit in existing_jobs.update_limits(api, unsent):
        output.note(f"max_usd of {limit}")
    if not any(document["kind"] in submission.KINDS for document in sent):
        return
    for path in replaced:
        output.note(
            f"deletes {path.rpartition('/')[2]}, which runs now: what it did since its last"
            " checkpoint is lost"
        )
    output.ask_to_start(yes)
    # Before any job is deleted. Jobs to be replaced are left out: they would refuse the change of
    # their template.
    submission.dry_run(
        api, [document for document in sent if api.path_of(document) not in replaced]
    )
    source_upload.upload(plan.uploads, output.note)
    existing_jobs.carry_spending(api, sent, replaced)
    for path in replaced:
        with working(f"wait until {path.rpartition('/')[2]} is gone"):
            existing_jobs.end(api, path)
    with working("send the objects"):
        names = submission.apply(api, sent)
    for name in names:
        output.note(f"applied {name}")
    job = plan.purchases[0].job
    output.note(f"Next: holdfast explain {job}")
    if any(document["kind"] in ("Job", "JobSet") for document in sent):
        output.note(f"Next: holdfast explain {job} --follow")


def _choose_platform(
    file: Path,
    document: Path | None,
    kubeconfig: Path | None,
    context: str,
    *,
    dry_run: bool,
) -> "tuple[Platform, Api | None]":
    """Return the platform of the document, of the file's folder or of the cluster.

    Raises Stopped if the file is in the folder of another platform's document.
    """
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose, find_nearest
    from holdfast.support.progress import working

    if dry_run:
        local = find_nearest(document, file.parent)
        if local:
            return local, None
    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        return choose(api, document, file.parent), api


def _plan(
    file: Path,
    job: str,
    platform: "Platform",
    cap: float | None,
) -> "PurchasePlan":
    """Price the jobs of a manifest or of a job file."""
    from holdfast.cost import prices
    from holdfast.jobs.file import file_text
    from holdfast.jobs.output import note
    from holdfast.jobs.submit import manifest_linting, prepared_job, submission

    documents = file_text.read_documents(file)
    document = file_text.find_job(documents, file)
    if document is not None:
        prepared = prepared_job.read_job(document, file, platform)
        return prepared_job.plan(prepared, cap)
    objects = submission.only(submission.check_documents(file, documents), job)
    submission.require_environment(file, platform)
    manifest_linting.require_no_errors(file, objects, platform, note)
    return submission.plan(objects, platform, prices.load(), cap)


def explain(
    job: JobName,
    platform: PlatformFile = None,
    events: Events = None,
    namespace: Namespace = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow to its end, then print its receipt.")
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="Stop --follow after this, as 90s, 2h or 7d; the job continues.")
    ] = "7d",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    as_json: Json = False,
    form: Output = Form.TEXT,
) -> None:
    """Explain in six lines why a job waits, restarts or is slow.

    --follow prints the event lines of its pods, and keeps them in the folder of --events.
    """
    from holdfast.clients import capacity_advice
    from holdfast.clients.api import Api
    from holdfast.jobs import output
    from holdfast.jobs.diagnose import explain as explanations
    from holdfast.platform.cluster import choose
    from holdfast.services.explain import explain as explain_service
    from holdfast.support.progress import working
    from holdfast.support.values import duration

    as_json = as_json or form is Form.JSON
    timeout_s = duration("--timeout", timeout)
    if follow and as_json:
        raise InputError(
            "--follow shows a job as text",
            got="--follow and JSON",
            allowed="one of them",
            fix=f"holdfast explain {job} --follow",
        )
    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        document = choose(api, platform)
    if follow:
        raise typer.Exit(_follow(api, document, job, namespace, timeout_s, events))
    service = explain_service(api, document, job, namespace)
    if service:
        if as_json:
            output.print_body(service.as_json())
        else:
            output.print_explanation(service)
        return
    with working("ask the cluster"):
        explanation = explanations.explain(
            api,
            job,
            namespace,
            events,
            document,
            capacity_advice.ask,
        )
    if as_json:
        output.print_body(explanation.as_json())
    else:
        output.print_explanation(explanation)


def _follow(
    api: "Api",
    platform: "Platform",
    name: str,
    namespace: str,
    timeout_s: float,
    events: Path | None,
) -> int:
    """Follow a job to its end and return the exit code. Raises InputError for a Deployment."""
    from holdfast.jobs import output
    from holdfast.jobs.diagnose import job_snapshot
    from holdfast.jobs.submit import follower

    namespaces = job_snapshot.find_namespaces(api, platform, namespace)
    job = job_snapshot.find(api, name, *namespaces)
    if job.kind == "Deployment":
        raise InputError(
            "it never ends",
            got=f"{name}, a Deployment",
            allowed="a JobSet or a Job",
            fix=f"holdfast explain {name}",
        )
    following = follower.Following(timeout_s=timeout_s, events=events)
    return follower.follow(api, platform, job, following, output.note)


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
        str | None, typer.Option(help="Undisturbed work, as 40h or 2d; the planner places it.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Deadline after submission, as 72h or 3d.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="gs://BUCKET/FOLDER, mounted read-only at /data.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Folder with your code, packed as it is: the image need not have it."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=(
                "FIELD=VALUE of the job file: data=gs://BUCKET/FOLDER, env.NAME=VALUE,"
                " secrets.NAME=SECRET, sweep.NAME=1,2,3."
            ),
        ),
    ] = None,
    platform: PlatformFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The job file; default: NAME.yaml.")
    ] = None,
    context: Context = "",
) -> None:
    """Write a job file for your image and command, with everything that it needs to survive
    evictions.
    """
    from holdfast.clients.api import Api
    from holdfast.jobs.file import file_text
    from holdfast.jobs.submit import prepared_job
    from holdfast.place.job import parse_duration, parse_hours
    from holdfast.platform.cluster import choose, find_nearest
    from holdfast.support.progress import working

    document = find_nearest(platform)
    if document is None:
        with working("ask the cluster"):
            document = choose(Api(None, context), None)
    file = out or Path(f"{name}.yaml")
    optional = {
        "gpus": gpus,
        "nodes": nodes,
        "capacity": capacity,
        "hours": parse_hours(hours) if hours is not None else None,
        "deadline_hours": parse_duration(deadline, "deadline") if deadline is not None else None,
        "data": data,
        "source": os.path.relpath(source, file.parent) if source else None,
    }
    values = {
        "name": name,
        "environment": document.name,
        "image": image,
        "command": command or [],
    }
    values |= {key: value for key, value in optional.items() if value is not None}
    job = file_text.assign(assignments or (), values)
    prepared_job.new_job(job, document, file)


def try_(
    evict: Annotated[
        bool, typer.Option("--evict", help="Evict its pod once, after it has started.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the reference trainer.")] = 200,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Refuse a higher price.")] = None,
    timeout: Annotated[
        str, typer.Option(help="Stop following after this, as 90s or 2h; the job continues.")
    ] = "2h",
    yes: Yes = False,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Run the smallest sample on the cheapest Spot pool and follow it to its receipt."""
    from holdfast.clients.api import Api
    from holdfast.jobs.submit import prepared_job
    from holdfast.jobs.submit.follower import Following
    from holdfast.platform.cluster import choose
    from holdfast.support.progress import working
    from holdfast.support.values import duration

    following = Following(evict=evict, timeout_s=duration("--timeout", timeout))
    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        document = choose(api, platform)
    code = prepared_job.first_run(api, document, steps, following, max_usd_per_hour, yes=yes)
    raise typer.Exit(code)

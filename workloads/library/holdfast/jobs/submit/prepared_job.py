"""Prepares the job of a file: checks, places, renders and prices it."""

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api
from holdfast.cost import prices
from holdfast.jobs import output
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_fields import OnNotice
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import any_gpu, offers
from holdfast.jobs.plan.missing_parts import list_missing_parts
from holdfast.jobs.plan.pricing import PurchasePlan
from holdfast.jobs.render import kubeflow, manifests
from holdfast.jobs.render.source_volume import find_upload
from holdfast.jobs.source.archive import Upload, pack
from holdfast.jobs.submit import external_checks, follower, spending_limit, submission
from holdfast.jobs.submit.follower import Following, Report
from holdfast.manifests import database
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError, Stopped
from holdfast.support.progress import working
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_CHECKPOINTS, ENV_RUN
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from holdfast.vocabulary.job_identity import run_name
from holdfast.vocabulary.roles import ROLES

LOSSES = {
    OnNotice.DRAIN: (
        "the preStop hook waits within the same window: what it takes, the program does not have,"
        " and the image needs the package holdfast"
    ),
    OnNotice.WRAP: (
        "the program does not know that it is stopped: each eviction loses what it did since its"
        " own last save, and the image needs /bin/sh"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    job: JobSpec
    """The job, with its image by digest."""
    platform: Platform
    bodies: list[Body]
    notes: list[str]
    """The reason for its placement, what it loses on a notice, and what was not checked."""
    upload: Upload | None = None
    """The source of the job, if it is too large for a ConfigMap."""


def prepare(job: JobSpec, platform: Platform, folder: Path = Path()) -> Prepared:
    """Check, place and render a job; nothing is written or sent.

    folder: that of the job file, from which its source is named. Raises InputError, and Stopped
    for a job of another environment.
    """
    require_environment(job, platform)
    _require_home(job, platform)
    _require_prefixes(job, platform)
    context = RenderContext(platform)
    placed = any_gpu.place(job, platform, prices.load())
    with working("find the image"):
        pinned = replace(job, image=external_checks.resolve(job.image, context))
    if job.predictor and platform.database:
        external_checks.require_image(database.PROXY, platform)
    archive = None
    if job.source:
        # As text: the folder of the job file may not exist yet.
        source = Path(os.path.normpath(folder / job.source))
        archive = pack(source, job.source_include)
    objects = manifests.bodies(pinned, context, placed, archive)
    manifest = manifests.text(platform.name, objects)
    manifests.judge(f"{job.name}.yaml", manifest, platform, folder)
    notes = [f"placed: {placed.reason}"]
    if job.max_usd:
        notes.append(spending_limit.describe(job, objects, platform))
    upload = None
    if archive is not None:
        upload = find_upload(job, platform, archive)
        notes.append(f"source: {archive}")
    loss = LOSSES.get(OnNotice(job.on_notice))
    if loss:
        notes.append(f"on_notice {job.on_notice}: {loss}")
    disk_warning = offers.describe_unknown_disk(job, platform)
    if disk_warning:
        notes.append(disk_warning)
    notes += list_missing_parts(job, platform)
    with working("check the image, the buckets and the secrets"):
        notes += external_checks.check(job, platform)
    return Prepared(
        job=pinned,
        platform=platform,
        bodies=objects,
        notes=notes,
        upload=upload,
    )


def render(job: JobSpec, platform: Platform) -> str:
    """Return the manifest of a job, without a look at its image, its buckets and its secrets.

    Raises InputError where its spending limit buys less than the work.
    """
    require_environment(job, platform)
    _require_home(job, platform)
    context = RenderContext(platform)
    image = context.image(job.image) if job.image in ROLES else job.image
    placed = any_gpu.place(job, platform, prices.load())
    objects = manifests.bodies(replace(job, image=image), context, placed)
    if job.max_usd:
        spending_limit.describe(job, objects, platform)
    return manifests.text(platform.name, objects)


def require_environment(job: JobSpec, platform: Platform) -> None:
    """Raise Stopped if the job is one of another environment."""
    if job.environment != platform.name:
        raise Stopped(
            f"{job.name} is a job of another environment",
            got=job.environment,
            allowed=str(platform),
            fix="choose the cluster of its environment, or change `environment` in its file",
        )


def _require_home(job: JobSpec, platform: Platform) -> None:
    """Raise InputError if no team has the namespace, or if the run trains in another one."""
    namespaces = platform.job_namespaces
    if job.home not in namespaces:
        raise InputError(
            "namespace",
            got=job.home,
            allowed=", ".join(namespaces),
            fix=(
                "use a namespace of your team, or ask the platform team to add"
                f" {job.home} to a team"
                f" of {platform.name}"
            ),
        )
    home = platform.namespace_of(job.name)
    if platform.is_listed(job.name) and job.role == SHARED_ACCOUNT and job.home != home:
        raise InputError(
            "namespace: the run has its account in another one",
            got=job.home,
            allowed=home,
            fix=f"set namespace={home}, or ask the platform team to add the run to your Team",
        )


def _require_prefixes(job: JobSpec, platform: Platform) -> None:
    """Raise InputError if points of a sweep have no prefix in which they may save."""
    is_listed = platform.is_listed(job.name)
    has_team_folder = platform.role_in(job.home, SHARED_ACCOUNT) != SHARED_ACCOUNT
    if not job.sweep or not platform.runs or (has_team_folder and not is_listed):
        return
    prefixes: set[str] = set()
    for run in platform.runs:
        if run.name == job.name:
            prefixes.update(run.prefixes)
    count = len(job.points)
    needed_prefixes = {f"{run_name(job.name, point)}/" for point in range(count)}
    if needed_prefixes <= prefixes:
        return
    raise InputError(
        "points of the sweep have no prefix in the checkpoint bucket",
        got=f"{job.name} with {count} points",
        allowed=f"{job.name}-0/ to {job.name}-{count - 1}/ in {platform.name}",
        fix=(
            f'the platform team lists Run(name="{job.name}", indices={count}) in storage.runs of'
            f" {platform.name}; or submit it in a team's namespace"
        ),
    )


def new_job(job: JobSpec, platform: Platform, file: Path) -> None:
    """Write the job file and print its price.

    Raises InputError before anything is written.
    """
    prepared = prepare(job, platform, file.parent)
    # A role keeps its name in the file, so that the job follows the images of the environment.
    _write(file, file_text.dump(job))
    output.print_plan(plan(prepared), str(file))
    for line in (*prepared.notes, f"wrote {file}"):
        output.note(line)
    output.note(f"Next: holdfast submit {file}")


def write_manifest(purchase_plan: PurchasePlan, file: Path) -> None:
    """Write the objects that are sent, for Git; a manifest of an earlier call is replaced."""
    # The reader's types of strings and maps become plain ones.
    documents = json.loads(json.dumps(purchase_plan.documents))
    _write_objects(purchase_plan.environment, documents, file)


def write_train_job(purchase_plan: PurchasePlan, folder: Path) -> None:
    """Write a gang as Kubeflow Trainer takes it: the platform team's part, and the user's.

    Raises InputError for a job that Trainer cannot run.
    """
    documents = json.loads(json.dumps(purchase_plan.documents))
    runtime, train_job = kubeflow.convert(documents)
    name = runtime[0]["metadata"]["name"]
    _write_objects(purchase_plan.environment, runtime, folder / f"{name}-runtime.yaml")
    _write_objects(purchase_plan.environment, train_job, folder / f"{name}-trainjob.yaml")


def _write_objects(environment: str, objects: list[Body], file: Path) -> None:
    text = manifests.text(environment, objects)
    _write(file, text, replaceable=manifests.HEAD.partition("\n")[0])
    output.note(f"wrote {file}")


def plan(prepared: Prepared, cap: float | None = None) -> PurchasePlan:
    purchase_plan = submission.plan(prepared.bodies, prepared.platform, prices.load(), cap)
    if prepared.upload:
        purchase_plan.uploads.append(prepared.upload)
    return purchase_plan


def read_job(document: Any, path: Path, platform: Platform) -> Prepared:
    """Prepare the job of a file that `submit` was given, and print the notes about it."""
    job = file_text.parse(document, str(path))
    prepared = prepare(job, platform, path.parent)
    for line in prepared.notes:
        output.note(line)
    return prepared


def _write(path: Path, text: str, replaceable: str = "") -> None:
    """Write a file.

    Raises InputError if it has another content, which does not begin with `replaceable`.
    """
    old = path.read_text(encoding="utf-8") if path.exists() else text
    if old != text and not (replaceable and old.startswith(replaceable)):
        raise InputError(
            "a file with something else in it",
            got=path,
            allowed="a new file",
            fix="remove it, or choose another with --out FILE or --write FOLDER",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            "no folder",
            got=path.parent,
            allowed="a folder",
            fix="choose another",
        ) from error
    path.write_text(text, encoding="utf-8")


def first_run(
    api: Api,
    platform: Platform,
    steps: int,
    following: Following,
    cap: float | None,
    *,
    yes: bool,
) -> int:
    """Run the sample job and follow it.

    Returns the exit code: 0 complete, 1 failed, 4 over the cap.
    """
    prepared = prepare(make_sample(steps, platform), platform)
    purchase_plan = plan(prepared, cap)
    output.print_plan(purchase_plan, f"first run of {platform.name}")
    for refusal in purchase_plan.refusals:
        output.note(f"refused: {refusal}")
    if purchase_plan.refusals:
        return EXIT_STOPPED
    output.ask_to_start(yes)
    return follow(api, prepared, following, output.note)


def make_sample(steps: int, platform: Platform) -> JobSpec:
    """Return a job that runs the reference trainer on Python's own sources, for minutes.

    Its name is new, or it would resume the last one.
    """
    offer = offers.cheapest_spot(platform, prices.load())
    command = ["python", "-m", "holdfast", "train", "run"]
    command += ["--checkpoints", f"$({ENV_CHECKPOINTS})"]
    command += ["--run", f"$({ENV_RUN})"]
    command += ["--ranks", str(offer.machine.gpus)]
    command += ["--steps", str(steps)]
    command += ["--every", "5s"]
    command += ["--device", "cuda"]
    return JobSpec(
        name=time.strftime("try-%m%d-%H%M%S", time.gmtime()),
        environment=platform.name,
        image="trainer",
        command=tuple(command),
        gpus=f"{offer.machine.gpus}x{offer.accelerator}",
        capacity=Capacity.SPOT,
        max_hours=4.0,
    )


def follow(
    api: Api,
    prepared: Prepared,
    following: Following,
    report: Report,
) -> int:
    """Submit a job and follow it to its receipt."""
    for name in submission.apply(api, prepared.bodies):
        report(f"applied {name}")
    job = JobSnapshot(body=prepared.bodies[-1], pods=[])
    return follower.follow(api, prepared.platform, job, following, report)

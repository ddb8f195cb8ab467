"""A job file prepared: checked, placed, rendered and priced; what `new-job` and `try` do with it."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api
from holdfast.cost import prices
from holdfast.jobs import show
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import OnNotice, OwnJob
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.jobs.submit import external_checks, following, submission
from holdfast.jobs.submit.following import Following, Report
from holdfast.manifests import database
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_CHECKPOINTS, ENV_RUN
from holdfast.vocabulary.exit_codes import EXIT_STOPPED

LOSES = {
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
    job: OwnJob
    """With its image by digest."""
    platform: Platform
    bodies: list[Body]
    notes: list[str]
    """Why it runs there, what it loses, what was not checked."""


def prepare(job: OwnJob, platform: Platform) -> Prepared:
    """Raises InputError, and Stopped for a job of another environment: nothing was written and
    nothing sent.
    """
    if job.environment != platform.name:
        raise Stopped(
            f"{job.name} is a job of another environment",
            got=job.environment,
            allowed=str(platform),
            fix="choose the cluster of its environment, or change `environment` in its file",
        )
    _require_home(job, platform)
    context = RenderContext(platform)
    placed = placement.place(job, platform, prices.load())
    fixed = replace(job, image=external_checks.resolve(job.image, context))
    if job.predictor and platform.database:
        context.require_digests([database.PROXY])
    found = manifests.bodies(fixed, context, placed)
    manifests.judge(f"{job.name}.yaml", manifests.text(platform.name, found), platform)
    lost = LOSES.get(OnNotice(job.on_notice))
    notes = [f"placed: {placed.reason}", *([f"on_notice {job.on_notice}: {lost}"] if lost else [])]
    notes += external_checks.check(job, platform)
    return Prepared(
        job=fixed,
        platform=platform,
        bodies=found,
        notes=notes,
    )


def _require_home(job: OwnJob, platform: Platform) -> None:
    """InputError where no team has its namespace, or where its run trains in another one."""
    spaces = platform.job_namespaces
    if job.home not in spaces:
        fix = (
            f"the platform team adds the namespace to a Team of {platform.name}, then make deploy"
            " and make apply"
        )
        raise InputError(
            "namespace",
            got=job.home,
            allowed=", ".join(spaces),
            fix=fix,
        )
    home = platform.namespace_of(job.name)
    if platform.is_listed(job.name) and job.role == SHARED_ACCOUNT and job.home != home:
        raise InputError(
            "namespace: the run has its account in another one",
            got=job.home,
            allowed=home,
            fix=f"set namespace={home}, or add the run to `runs` of the Team",
        )


def new_job(job: OwnJob, platform: Platform, file: Path) -> None:
    """Writes the job file and shows its price. Raises InputError, and then nothing was written."""
    prepared = prepare(job, platform)
    # A role keeps its name in the file, so that the job follows the images of the environment.
    _write(file, file_text.dump(job))
    show.plan(plan(prepared), str(file))
    for line in (*prepared.notes, f"wrote {file}"):
        show.note(line)
    show.note(f"Next: holdfast submit {file}")


def write_manifest(made: submission.Plan, file: Path) -> None:
    """What is sent, for Git. A manifest that was written so before is replaced."""
    # a manifest's own have the types of the reader
    documents = json.loads(json.dumps(made.documents))
    _write(
        file, manifests.text(made.environment, documents), over=manifests.HEAD.partition("\n")[0]
    )
    show.note(f"wrote {file}")


def plan(prepared: Prepared, cap: float | None = None) -> submission.Plan:
    return submission.plan(prepared.bodies, prepared.platform, prices.load(), cap)


def read_job(document: Any, path: Path, platform: Platform) -> Prepared:
    """The job of a file that `submit` was given."""
    prepared = prepare(file_text.parse(document, str(path)), platform)
    for line in prepared.notes:
        show.note(line)
    return prepared


def _write(path: Path, text: str, over: str = "") -> None:
    """Raises InputError where the file holds something else, which does not begin with `over`."""
    old = path.read_text(encoding="utf-8") if path.exists() else text
    if old != text and not (over and old.startswith(over)):
        fix = "remove it, or choose another with --out FILE or --write FOLDER"
        raise InputError(
            "a file with something else in it",
            got=path,
            allowed="a new file",
            fix=fix,
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
    asked: Following,
    cap: float | None,
    *,
    yes: bool,
) -> int:
    """The exit code: 0 complete, 1 failed, 4 over the cap."""
    prepared = prepare(sample(steps, platform), platform)
    bought = plan(prepared, cap)
    show.plan(bought, f"first run of {platform.name}")
    for refusal in bought.refusals:
        show.note(f"refused: {refusal}")
    if bought.refusals:
        return EXIT_STOPPED
    show.agree(yes)
    return follow(api, prepared, asked, show.note)


def sample(steps: int, platform: Platform) -> OwnJob:
    """The reference trainer on Python's own sources, for minutes; a name of its own, or it would
    resume the last one.
    """
    offer = placement.cheapest_spot(platform, prices.load())
    command = ["python", "-m", "holdfast", "train", "run"]
    command += [
        "--checkpoints",
        f"$({ENV_CHECKPOINTS})",
        "--run",
        f"$({ENV_RUN})",
    ]
    command += [
        "--ranks",
        str(offer.machine.gpus),
        "--steps",
        str(steps),
        "--every",
        "5s",
        "--device",
        "cuda",
    ]
    return OwnJob(
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
    asked: Following,
    report: Report,
) -> int:
    """Submits it and follows it to its receipt."""
    for name in submission.apply(api, prepared.bodies):
        report(f"applied {name}")
    return following.follow(
        api, prepared.platform, JobSnapshot(body=prepared.bodies[-1], pods=[]), asked, report
    )

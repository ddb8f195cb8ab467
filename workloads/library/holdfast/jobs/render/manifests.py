"""Turns a job into the objects that the cluster gets, and lints them.

The objects are made by the builders of the platform's own jobs.
"""

from dataclasses import replace
from pathlib import Path

from holdfast.jobs.file.formats import parse_size_mib
from holdfast.jobs.file.job_fields import OnNotice
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan.placement import Placed
from holdfast.jobs.render import pod_parts
from holdfast.jobs.render.source_volume import add_source
from holdfast.jobs.render.sweep_launcher import add_sweep
from holdfast.jobs.source.archive import Archive
from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.finding import Severity
from holdfast.lint.settings import find_settings
from holdfast.manifests import training
from holdfast.manifests.elastic import elastic
from holdfast.manifests.gpu_choices import GpuChoice
from holdfast.manifests.pods import PodSettings, Size
from holdfast.manifests.policies import budget, peers
from holdfast.manifests.render_context import Body, RenderContext, yaml_text
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError
from holdfast.vocabulary import kubernetes
from holdfast.vocabulary.capacity import (
    ANNOTATION_HOURS,
    ANNOTATION_MAX_USD,
    ANNOTATION_PLAN,
    ANNOTATION_RULE,
    LABEL_MOVES,
    QUEUES,
    Capacity,
)
from holdfast.vocabulary.environment import ENV_CHECKPOINTS, ENV_OUTPUT, ENV_RUN, ENV_WINDOW_S
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, FLEX_MAX_RUN_S
from holdfast.vocabulary.pools import (
    GPU_TAINT,
    LABEL_ACCELERATOR,
    LABEL_COMPUTE_CLASS,
    QUEUED_TAINT,
    flex_selector,
)

HEAD = (
    "# Written by `holdfast submit --write`; change the job file and write it again.\n# holdfast:"
    " environment={}\n"
)
# An ordinary program writes to its home; torch asks the system for the name of its user.
HOMELESS = {
    "USER": "nonroot",
    "LOGNAME": "nonroot",
    "XDG_CACHE_HOME": "/tmp/.cache",
}
FLEX_GRACE_S = 60


def bodies(
    job: JobSpec,
    context: RenderContext,
    placed: Placed,
    archive: Archive | None = None,
) -> list[Body]:
    """Return the objects in the order in which they are sent: what the job needs comes first.

    archive: the packed source of the job.
    """
    objects: list[Body] = []
    work = _make_settings(job, context, placed)
    work = pod_parts.add_volumes(job, work)
    work = _apply_placement(job, placed, work)
    if archive is not None:
        work, needed = add_source(job, context, work, archive)
        objects += needed
    if job.sweep:
        work, needed = add_sweep(job, work)
        objects += needed
    if job.predictor:
        work = pod_parts.add_batch(job, context, work)
    else:
        work = pod_parts.add_start(job, work)
    provider = pod_parts.provider_class(job, context)
    if provider:
        objects.append(provider)
    queue = placed.queue
    task = training.Task(
        work=work,
        pods=job.pods,
        points=len(job.points),
        least=job.min_nodes,
        sharded=job.sharded,
        wait_s=round(job.wait_s) if job.sharded else 0,
        queue=queue,
        deadline_s=round(placed.limit_h * 3600),
        restarts=job.restarts,
        namespace=job.home,
        labels=_list_labels(job),
        annotations=_list_annotations(job, archive),
    )
    if job.in_place:
        return [*objects, *elastic(context, task)]
    if not job.gang:
        return [*objects, _add_plan(training.job(context, task), placed)]
    reason = (
        "An eviction through the API restarts the whole gang: one at a time. Spot preemption does"
        " not ask."
    )
    objects.append(peers(job.name, job.home))
    objects.append(budget(job.name, job.home, job.name, reason, keep=job.pods - 1))
    if queue == QUEUES[Capacity.QUEUED]:
        # Its nodes end after a week, and with them each of its Jobs.
        task = replace(task, deadline_s=min(task.deadline_s, FLEX_MAX_RUN_S))
        within_h = job.deadline_hours or placed.limit_h
        task = training.add_requeues(task, round(within_h * 3600))
    return [*objects, _add_plan(training.gang(context, task), placed)]


def _list_labels(job: JobSpec) -> dict[str, str]:
    """Return the labels of the job's own object."""
    if job.priority == kubernetes.PRIORITY_NORMAL:
        return {}
    return {kubernetes.LABEL_JOB_PRIORITY: kubernetes.name_job_priority(job.priority)}


def _list_annotations(job: JobSpec, archive: Archive | None) -> dict[str, str]:
    """Return the annotations of the job's own object."""
    annotations: dict[str, str] = {}
    if job.hours:
        annotations[ANNOTATION_HOURS] = f"{job.hours:g}"
    if job.max_usd:
        annotations[ANNOTATION_MAX_USD] = f"{job.max_usd:g}"
    if archive is not None:
        annotations[kubernetes.ANNOTATION_SOURCE] = f"sha256:{archive.digest}"
    return annotations


def _add_plan(body: Body, placed: Placed) -> Body:
    """Add the label by which the mover finds the job, and the plan that was priced."""
    if placed.plan is not None:
        meta = body["metadata"]
        labels = meta.get("labels", {})
        annotations = meta.get("annotations", {})
        meta["labels"] = labels | {LABEL_MOVES: "true"}
        meta["annotations"] = annotations | {ANNOTATION_PLAN: placed.plan.text()}
    return body


def text(environment: str, objects: list[Body]) -> str:
    return HEAD.format(environment) + yaml_text(objects)


def judge(name: str, manifest: str, platform: Platform, folder: Path | None = None) -> None:
    """Lint a manifest. Raises InputError with the rule of the first finding.

    folder: that of the job file, whose repository may have settings of the linter.
    """
    options = Options(
        platforms=[platform],
        find_settings=find_settings if folder else None,
    )
    path = folder / name if folder else Path(name)
    report = lint_texts({str(path): manifest}, options)
    findings = [finding for finding in report.active if finding.severity is not Severity.INFO]
    if findings:
        first = findings[0]
        raise InputError(
            f"{first.rule}: {first.message}",
            got=first.where or first.object_name,
            allowed=f"what `holdfast lint --rule {first.rule}` says",
            fix=first.fix,
        )


def _make_settings(job: JobSpec, context: RenderContext, placed: Placed) -> PodSettings:
    checkpoints = context.platform.checkpoints_of(job.name, job.home)
    env = {
        ENV_RUN: job.name,
        ENV_CHECKPOINTS: job.checkpoints or checkpoints,
        ENV_OUTPUT: pod_parts.find_output(job, context.platform),
        **HOMELESS,
    }
    if job.predictor and not job.output:  # its results go to the database
        del env[ENV_OUTPUT]
    annotations = {ANNOTATION_RULE: placed.rule.value}
    if job.state:
        annotations[kubernetes.ANNOTATION_STATE] = job.state
    # The library's commits and results refuse a second writer; a wrapped program may not.
    if job.on_notice != OnNotice.WRAP:
        annotations |= kubernetes.EXPENDABLE
    return PodSettings(
        name=job.name,
        role=job.role,
        image=job.image,
        job=job.name,
        command=list(job.command),
        size=_size(job, placed),
        pool=None,
        priority=kubernetes.PRIORITY_FLEX,
        grace_s=FLEX_GRACE_S,
        restart="Never",
        env=env | job.env,
        reads_run=job.name if _signs(job) else "",
        writes_run=job.name if job.role == SHARED_ACCOUNT else "",
        namespace=job.home,
        annotations=annotations,
    )


def _signs(job: JobSpec) -> bool:
    """Return whether the job takes the run's key if the environment signs.

    A wrapped program knows nothing of checkpoints.
    """
    return not (job.checkpoint_key or job.predictor or job.on_notice == OnNotice.WRAP)


def _size(job: JobSpec, placed: Placed) -> Size:
    disk = pod_parts.disk(job)
    if placed.offer is None or not placed.offer.accelerator:
        return Size(
            cpu=f"{job.cpus:g}",
            memory=job.memory,
            disk=disk,
            scratch=job.scratch,
        )
    size = Size.share(placed.offer.machine, job.gpu_count, disk=disk)
    if job.caches_in_memory:
        size = _leave_memory(size, job)
    return replace(size, scratch=job.scratch, shared_memory=job.shm or size.shared_memory)


def _apply_class(gpu_choice: GpuChoice, work: PodSettings) -> PodSettings:
    """Let GKE make a node for the pod, of the first GPU that it gets."""
    window_s = DEFAULT_WINDOW.pod_s
    return replace(
        work,
        priority=kubernetes.PRIORITY_SPOT,
        grace_s=window_s,
        env={ENV_WINDOW_S: str(window_s)} | work.env,
        tolerations=[GPU_TAINT],
        selector={LABEL_COMPUTE_CLASS: gpu_choice.name},
    )


def _leave_memory(size: Size, job: JobSpec) -> Size:
    """Take the memory of the cache from the pod's share of its machine.

    Raises InputError if less than half of the share would be left.
    """
    share_mib = parse_size_mib(size.memory)
    if job.cache_mib > share_mib // 2:
        raise InputError(
            "cache: more memory than the pod can spare",
            got=job.cache,
            allowed=f"{share_mib // 2}Mi memory, half of the pod's {size.memory}",
            fix="lower it, or leave `memory` out: the cache is then on the disk",
        )
    return replace(size, memory=f"{share_mib - job.cache_mib}Mi")


def _apply_placement(job: JobSpec, placed: Placed, work: PodSettings) -> PodSettings:
    """Set the nodes on which the job may run, its priority, and its time after a notice."""
    offer = placed.offer
    if offer is None:
        return work
    if placed.gpu_choice is not None:
        return _apply_class(placed.gpu_choice, work)
    is_spot = offer.capacity is Capacity.SPOT
    priority = kubernetes.PRIORITY_FLEX
    # Not below 0 for a gang: JobSet copies the number into a pod label, and "-5" is no label value.
    if is_spot and placed.plan is None and not job.gang:
        priority = kubernetes.PRIORITY_SPOT
    work = replace(
        work,
        priority=priority,
        grace_s=offer.pool.window.pod_s if is_spot and offer.pool else FLEX_GRACE_S,
        calls_kubernetes=offer.pool is None,  # a flex-start node says in an annotation when it ends
    )
    if placed.plan is not None:
        # No selector or toleration of a capacity: the flavor of the job's queue adds them.
        selector = {LABEL_ACCELERATOR: offer.accelerator}
        return replace(
            work,
            tolerations=[GPU_TAINT],
            selector=selector,
            avoided_classes=placed.avoided_classes,
        )
    if offer.pool is not None:
        return replace(work, pool=offer.pool)
    tolerations = [GPU_TAINT]
    if offer.capacity is Capacity.QUEUED:
        tolerations.append(QUEUED_TAINT)
    return replace(work, tolerations=tolerations, selector=flex_selector(offer.accelerator))

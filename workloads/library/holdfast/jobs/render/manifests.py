"""A job file to the objects that the cluster gets, made by the builders of the platform's own jobs,
and linted.
"""

from dataclasses import replace

from holdfast.jobs.file.job_file import OnNotice, OwnJob
from holdfast.jobs.plan.placement import Placed
from holdfast.jobs.render import pod_parts
from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests.elastic import elastic
from holdfast.manifests.pods import PodSettings, Size
from holdfast.manifests.policies import budget, peers
from holdfast.manifests.render_context import Body, RenderContext, yaml_text
from holdfast.manifests.training import Task, gang, job, requeued
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError
from holdfast.vocabulary import kubernetes
from holdfast.vocabulary.capacity import (
    ANNOTATION_PLAN,
    ANNOTATION_RULE,
    LABEL_MOVES,
    QUEUES,
    Capacity,
)
from holdfast.vocabulary.environment import ENV_CHECKPOINTS, ENV_RUN
from holdfast.vocabulary.pools import GPU_TAINT, LABEL_ACCELERATOR, QUEUED_TAINT, flex_selector

HEAD = (
    "# Written by `holdfast submit --write`; change the job file and write it again.\n# holdfast:"
    " environment={}\n"
)
# What an ordinary program writes goes where it may; torch asks the system for the name of its user.
HOMELESS = {
    "USER": "nonroot",
    "LOGNAME": "nonroot",
    "XDG_CACHE_HOME": "/tmp/.cache",
}
FLEX_GRACE_S = 60


def bodies(own: OwnJob, context: RenderContext, placed: Placed) -> list[Body]:
    """The objects in the order in which they are sent; what the job needs before it."""
    work = _placed(own, placed, pod_parts.mounted(own, _work(own, context, placed)))
    if own.predictor:
        work = pod_parts.predicting(own, context, work)
    else:
        work = pod_parts.started(own, work)
    found = [body for body in (pod_parts.provider_class(own, context),) if body]
    queue = QUEUES[placed.offer.capacity] if placed.offer else ""
    task = Task(
        work=work,
        pods=own.pods,
        least=own.min_nodes,
        sharded=own.sharded,
        queue=queue,
        deadline_s=round(own.max_hours * 3600),
        restarts=own.restarts,
        namespace=own.home,
    )
    if own.in_place:
        return [*found, *elastic(context, task)]
    if not own.gang:
        return [*found, _movable(job(context, task), placed)]
    reason = (
        "An eviction through the API restarts the whole gang: one at a time. Spot preemption does"
        " not ask."
    )
    found.append(peers(own.name, own.home))
    found.append(budget(own.name, own.home, own.name, reason, keep=own.pods - 1))
    if queue == QUEUES[Capacity.QUEUED]:
        task = requeued(task, round(own.deadline_hours * 3600))
    return [*found, _movable(gang(context, task), placed)]


def _movable(body: Body, placed: Placed) -> Body:
    """The mover finds it by the label, and what was priced in the annotation."""
    if placed.plan is not None:
        meta = body["metadata"]
        meta["labels"] = meta.get("labels", {}) | {LABEL_MOVES: "true"}
        meta["annotations"] = meta.get("annotations", {}) | {ANNOTATION_PLAN: placed.plan.text()}
    return body


def text(environment: str, found: list[Body]) -> str:
    return HEAD.format(environment) + yaml_text(found)


def judge(name: str, written: str, platform: Platform) -> None:
    """InputError with the rule where the linter finds anything: what it would find later is refused
    now.
    """
    report = lint_texts({name: written}, Options(platforms=[platform]))
    if report.active:
        first = report.active[0]
        raise InputError(
            f"{first.rule}: {first.message}",
            got=first.where or first.object_name,
            allowed=f"what `holdfast lint --rule {first.rule}` says",
            fix=first.fix,
        )


def _work(own: OwnJob, context: RenderContext, placed: Placed) -> PodSettings:
    checkpoints = context.platform.checkpoints_of(own.name, own.home)
    env = {
        ENV_RUN: own.name,
        ENV_CHECKPOINTS: own.checkpoints or checkpoints,
        **HOMELESS,
    }
    state = {kubernetes.ANNOTATION_STATE: own.state} if own.state else {}
    # The library's commits and results refuse a second writer; of a wrapped program that is not
    # known.
    expendable = {} if own.on_notice == OnNotice.WRAP else kubernetes.EXPENDABLE
    return PodSettings(
        name=own.name,
        role=own.role,
        image=own.image,
        job=own.name,
        command=list(own.command),
        size=_size(own, placed),
        pool=None,
        priority=kubernetes.PRIORITY_FLEX,
        grace_s=FLEX_GRACE_S,
        restart="Never",
        env=env | own.env,
        reads_run=own.name if _signs(own) else "",
        writes_run=own.name if own.role == SHARED_ACCOUNT else "",
        namespace=own.home,
        annotations={ANNOTATION_RULE: placed.rule.value} | state | expendable,
    )


def _signs(own: OwnJob) -> bool:
    """Whether it takes the run's key where the environment signs. A wrapped program knows nothing
    of checkpoints.
    """
    return not (own.checkpoint_key or own.predictor or own.on_notice == OnNotice.WRAP)


def _size(own: OwnJob, placed: Placed) -> Size:
    disk = pod_parts.disk(own)
    if placed.offer is None:
        return Size(
            cpu=f"{own.cpus:g}",
            memory=own.memory,
            disk=disk,
            scratch=own.scratch,
        )
    size = Size.share(placed.offer.machine, own.gpu_count, disk=disk)
    return replace(size, scratch=own.scratch, shared_memory=own.shm or size.shared_memory)


def _placed(own: OwnJob, placed: Placed, work: PodSettings) -> PodSettings:
    """Where it may run, under which priority, and how long it has after a notice."""
    offer = placed.offer
    if offer is None:
        return work
    spot = offer.capacity is Capacity.SPOT
    alone = placed.plan is None and not own.gang
    work = replace(
        work,
        # Not below 0 for a gang: JobSet copies the number into a pod label, and "-5" is no label
        # value.
        priority=kubernetes.PRIORITY_SPOT if spot and alone else kubernetes.PRIORITY_FLEX,
        grace_s=offer.pool.window.pod_s if spot and offer.pool else FLEX_GRACE_S,
        calls_kubernetes=offer.pool is None,  # a flex-start node says in an annotation when it ends
    )
    if placed.plan is not None:
        # Neither selector nor toleration of a capacity: the flavor of the queue that it is in puts
        # them in.
        return replace(
            work, tolerations=[GPU_TAINT], selector={LABEL_ACCELERATOR: offer.accelerator}
        )
    if offer.pool is not None:
        return replace(work, pool=offer.pool)
    tolerations = [GPU_TAINT, QUEUED_TAINT] if offer.capacity is Capacity.QUEUED else [GPU_TAINT]
    return replace(work, tolerations=tolerations, selector=flex_selector(offer.accelerator))

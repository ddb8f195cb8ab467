"""Builds batch inference: a Job that fills a queue, a Job that drains it, and steady workers.

The Job that drains scales to zero; a Deployment would restart workers that exit 0 with the queue
drained. Steady workers follow the backlog of a queue that never ends. They cost one Spot node while
idle, and none where Kubernetes 1.37 lets their autoscaler scale to zero.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests import data, database
from holdfast.manifests.deployments import autoscaler, deployment
from holdfast.manifests.pods import PodSettings, Size, template
from holdfast.manifests.render_context import Body, RenderContext, add_version, manifest, meta
from holdfast.manifests.training import DAY_S, SAMPLE_S, Task, failure_policy, gpu_size, job
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import (
    AUTOSCALING_METRIC_API,
    EXPENDABLE,
    JOB_API,
    PRIORITY_PLATFORM,
    PRIORITY_SPOT,
    SCALES_TO_ZERO,
    api_group,
)
from holdfast.vocabulary.roles import NAMESPACE_BATCH
from holdfast.vocabulary.telemetry import METRIC_PREFIX

LOAD = "batch-load"
DRAIN = "batch-drain"
STEADY = "batch-steady"
MAX_WORKERS = 8
WANTED = "workers-wanted"
LANES = {DRAIN: 1, STEADY: 2}  # they run at the same time


def samples(context: RenderContext) -> Iterator[Body]:
    yield load(context)
    yield drain(context)
    yield steady(context)
    yield replicas_metric(context)
    yield follower(context)


def queue_options(context: RenderContext, lane: int) -> list[str]:
    """Returns the options of the lane that a job has to itself.

    Empty where the environment has no such lane: the job then queues in the database.
    """
    if not 1 <= lane <= context.platform.lanes:
        return []
    project = f"projects/{context.platform.project}"
    topic = context.platform.work_topics[lane - 1]
    return [
        "--topic",
        f"{project}/topics/{topic}",
        "--subscription",
        f"{project}/subscriptions/{topic}",
    ]


def _work(context: RenderContext, name: str, *, restart: str | None) -> PodSettings:
    results = database.access(context, "batch")
    window = context.batch.window.pod_s
    words = ["python", "-m", "holdfast", "batch", "run", name, "--checkpoints", context.checkpoints]
    if context.small:
        # One by one: larger batches would end before a preemption.
        words += ["--set", "micro_batch=1"]
    return PodSettings(
        name=name,
        role="batch",
        job=name,
        reads_run="train-gang",
        command=[
            *words,
            "--run",
            "train-gang",
            "--window",
            str(window),
            *queue_options(context, LANES[name]),
        ],
        size=gpu_size(context.batch),
        pool=context.batch,
        selector=context.pins,
        priority=PRIORITY_SPOT,
        grace_s=window,
        restart=restart,
        env=results.env,
        sidecars=results.sidecars,
        volumes=results.volumes,
        annotations={ANNOTATION_RULE: PlacementRule.BATCH.value} | EXPENDABLE,
    )


def load(context: RenderContext) -> Body:
    """Builds the Job that fills the queue, with each item once however often it runs."""
    results = database.access(context, "batch")
    work = PodSettings(
        name=LOAD,
        role="batch",
        job=LOAD,
        command=[
            *("python", "-m", "holdfast", "batch", "enqueue", DRAIN),
            *("--source", context.small.items if context.small else data.PATH),
            *queue_options(context, LANES[DRAIN]),
        ],
        size=Size(cpu="1", memory="2Gi"),
        pool=None,
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        restart="Never",
        env=results.env,
        sidecars=results.sidecars,
        volumes=[(data.volume(), data.PATH), *results.volumes],
        annotations={ANNOTATION_RULE: PlacementRule.PLATFORM.value} | data.SIDECAR,
    )
    spec = client.V1JobSpec(
        backoff_limit=3,
        active_deadline_seconds=DAY_S,
        ttl_seconds_after_finished=DAY_S,
        pod_failure_policy=failure_policy(EXIT_PREEMPTED),
        template=template(context, work),
    )
    return add_version(manifest(JOB_API, "Job", meta(LOAD, NAMESPACE_BATCH), spec=spec))


def drain(context: RenderContext) -> Body:
    """Builds workers that end when the queue is empty, so that nodes go to zero by themselves.

    On Spot they are stopped like a job without `hours`, after 30 days.
    """
    pods = min(context.small.workers if context.small else MAX_WORKERS, context.batch.max_nodes)
    work = _work(context, DRAIN, restart="Never")
    task = Task(
        work=work,
        pods=pods,
        deadline_s=SAMPLE_S,
        queue="spot",
        namespace=NAMESPACE_BATCH,
    )
    return job(context, task)


def steady(context: RenderContext) -> Body:
    """Builds workers for queues that never end; the autoscaler sets their replicas."""
    return deployment(context, NAMESPACE_BATCH, _work(context, STEADY, restart=None))


def replicas_metric(context: RenderContext) -> Body:
    """Builds the metric of the workers that meet the deadline, which the exporter computes.

    GKE's managed adapter reads it, so nothing is installed.
    """
    selector = f'cluster_name="{context.platform.cluster}",job="{STEADY}"'
    prefix = METRIC_PREFIX.replace(".", "_").replace("/", ":")
    query = f"max({prefix}_batch_replicas_wanted{{{selector}}})"
    spec = {"metrics": [{"promql": {"name": WANTED, "query": query}}]}
    return manifest(
        AUTOSCALING_METRIC_API, "AutoscalingMetric", meta(STEADY, NAMESPACE_BATCH), spec=spec
    )


def follower(context: RenderContext) -> Body:
    name = f"{api_group(AUTOSCALING_METRIC_API)}|{STEADY}|{WANTED}"
    external = {
        "metric": {"name": name},
        "target": {"averageValue": "1", "type": "AverageValue"},
    }
    # An older cluster refuses 0: there the feature gate HPAScaleToZero is off.
    min_replicas = 0 if context.platform.versions.gke_has(*SCALES_TO_ZERO) else 1
    return autoscaler(
        STEADY,
        NAMESPACE_BATCH,
        min_replicas,
        min(MAX_WORKERS, context.batch.max_nodes),
        [{"external": external, "type": "External"}],
        scale_down_s=600,
    )

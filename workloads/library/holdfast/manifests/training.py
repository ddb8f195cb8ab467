"""Training: a gang on Spot as JobSet, independent tasks as a Job by index, planned runs on
flex-start.
"""

# Why it is so: infra/decisions/0063.

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kubernetes import client

from holdfast.manifests import data
from holdfast.manifests.pods import MAIN, PodSettings, Size, annotation, template
from holdfast.manifests.policies import RENDEZVOUS_PORT, budget, peers
from holdfast.manifests.rbac import reading
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta, plain, versioned
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.vocabulary.capacity import (
    ANNOTATION_REQUEUES_FOR,
    ANNOTATION_RULE,
    LABEL_REQUEUES,
    Capacity,
    PlacementRule,
)
from holdfast.vocabulary.environment import (
    ENV_ATTEMPT,
    ENV_CHARGED_FAILURES,
    ENV_COMPLETION_INDEX,
    ENV_IGNORED_FAILURES,
    ENV_JOB,
)
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, FATAL_EXIT_CODES
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_CHARGED_FAILURES,
    ANNOTATION_IGNORED_FAILURES,
    ANNOTATION_PROVISIONED_RUN,
    ANNOTATION_RESTART,
    EXPENDABLE,
    JOB_API,
    JOBSET_API,
    LABEL_GANG,
    LABEL_QUEUE,
    PRIORITY_FLEX,
    PRIORITY_SPOT,
)
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_TAINT, QUEUED_TAINT, Pool, Role, flex_selector
from holdfast.vocabulary.roles import NAMESPACE_BATCH, NAMESPACE_TRAINING

DAY_S = 86_400
INDEX = f"$({ENV_COMPLETION_INDEX})"  # the kubelet puts the number in
NODES = 2
FLEX_NODES = 4
# Where Kubernetes counts the starts before this one. A Job by index counts crashes and evictions
# apart.
RESTARTS = {ENV_ATTEMPT: annotation(ANNOTATION_RESTART)}
FAILURES = {
    ENV_CHARGED_FAILURES: annotation(ANNOTATION_CHARGED_FAILURES),
    ENV_IGNORED_FAILURES: annotation(ANNOTATION_IGNORED_FAILURES),
}
ADDED_UP = {ENV_ATTEMPT: f"$({ENV_CHARGED_FAILURES})+$({ENV_IGNORED_FAILURES})"}
# The first pod of a gang. Kubernetes expands the variable, which holds the name that the JobSet has
# in the end.
HEAD = f"$({ENV_JOB})-workers-0-0.$({ENV_JOB})"
DISRUPTED = client.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")


def samples(context: RenderContext) -> Iterator[Body]:
    if context.trains("train-gang"):
        yield from _sample_gang(context)
    if context.trains("train-sweep"):
        yield sweep(context)
    for accelerator in context.platform.auto_provisioning:
        yield from flex(context, accelerator)
        yield from queued(context, accelerator)


def _sample_gang(context: RenderContext) -> Iterator[Body]:
    yield peers("train-gang")
    work = spot_work(context, "train-gang", context.training, PlacementRule.TRAINING)
    # Not below 0: JobSet copies the number into a pod label, and "-5" is no label value, so no pod
    # is made.
    given = Task(
        work=replace(work, priority=PRIORITY_FLEX),
        pods=NODES,
        queue="spot",
        deadline_s=7 * DAY_S,
    )
    yield gang(context, joined(given))
    reason = (
        "An eviction through the API restarts the whole gang: drains take one node at a time. "
        "Spot preemption does not ask."
    )
    yield budget("train-gang", NAMESPACE_TRAINING, "train-gang", reason, keep=NODES - 1)


def rights(context: RenderContext) -> Iterator[Body]:
    """A flex-start node shows in an annotation when it ends."""
    rules = [
        client.V1PolicyRule(
            api_groups=[""],
            resources=["nodes"],
            verbs=["get"],
        )
    ]
    platform = context.platform
    homes = [(run.account, platform.namespace_of(run.name)) for run in platform.runs]
    # Where runs are listed, only those of teams may have another name.
    listed = {NAMESPACE_BATCH, NAMESPACE_TRAINING} if platform.runs else {NAMESPACE_BATCH}
    homes += [(SHARED_ACCOUNT, space) for space in platform.job_namespaces if space not in listed]
    for space in dict.fromkeys(space for _, space in homes):
        name = "holdfast-planned-end" + ("" if space == NAMESPACE_TRAINING else f"-{space}")
        accounts = [account for account, home in homes if home == space]
        yield from reading(name, rules, accounts=accounts, namespace=space)


def gpu_size(pool: Pool) -> Size:
    """A pod that fills a node, with room left for the system's own pods."""
    return Size.share(MACHINE_TYPES[pool.machine_type], pool.gpus_per_node)


def spot_work(
    context: RenderContext,
    name: str,
    pool: Pool,
    rule: PlacementRule,
    run: str = "",
) -> PodSettings:
    """On Spot, with the pool's window as its grace; a rank for each GPU of the machine. `run`
    differs where pods train apart.
    """
    words = [
        "python",
        "-m",
        "holdfast",
        "train",
        "run",
        "--checkpoints",
        context.checkpoints,
        "--run",
        run or name,
    ]
    words += [
        "--ranks",
        str(pool.gpus_per_node),
        "--steps",
        "100000",
        "--every",
        "auto",
        "--device",
        "cuda",
    ]
    return PodSettings(
        name=name,
        role="trainer",
        job=name,
        run_per_index=INDEX in run,
        reads_run=name,
        writes_run=name,
        command=[*words, "--data", data.PATH],
        size=gpu_size(pool),
        pool=pool,
        selector=context.pins,
        priority=PRIORITY_SPOT,
        grace_s=pool.window.pod_s,
        restart="Never",
        volumes=[(data.volume(), data.PATH)],
        annotations={ANNOTATION_RULE: rule.value} | EXPENDABLE | data.SIDECAR,
    )


@dataclass(frozen=True, kw_only=True)
class Task:
    """The pods of one job. Its builder decides what they are to each other."""

    work: PodSettings
    pods: int
    least: int = 0
    """Pods with which an elastic gang goes on."""
    sharded: bool = False
    """Each pod of the gang has a part of the state: it waits in place for all."""
    queue: str
    """Kueue's, which starts it; empty: it starts at once."""
    deadline_s: int
    restarts: int = 3
    """Crashes, of an index or of the whole gang; evictions are not counted."""
    namespace: str = NAMESPACE_TRAINING
    labels: dict[str, str] = field(default_factory=dict[str, str])
    annotations: dict[str, str] = field(default_factory=dict[str, str])

    def meta(self) -> client.V1ObjectMeta:
        labels = self.labels | ({LABEL_QUEUE: self.queue} if self.queue else {})
        return meta(
            self.work.name,
            self.namespace,
            labels=labels,
            annotations=self.annotations or None,
        )


def joined(given: Task) -> Task:
    """The reference trainer with the number of nodes and the place where they find each other."""
    command = [
        *given.work.command,
        "--nodes",
        str(given.pods),
        "--rendezvous",
        f"{HEAD}:{RENDEZVOUS_PORT}",
    ]
    return replace(given, work=replace(given.work, command=command))


def requeued(given: Task, within_s: int = 0) -> Task:
    """On queued flex-start. Its nodes are used once: the mover queues it again when they are gone,
    for each of its `restarts` once, until `within_s` after it was submitted; 0: without end.
    """
    until = {ANNOTATION_REQUEUES_FOR: str(within_s)} if within_s else {}
    longest = {ANNOTATION_PROVISIONED_RUN: str(FLEX_MAX_RUN_S)}
    return replace(given, labels={LABEL_REQUEUES: str(given.restarts)}, annotations=longest | until)


def gang(context: RenderContext, given: Task) -> Body:
    """All pods run or none. An eviction restarts the gang and is free; a crash counts towards
    maxRestarts.
    """
    failed = client.V1PodFailurePolicyRule(action="FailJob", on_pod_conditions=[DISRUPTED])
    work = given.work
    work = replace(
        work, from_pod=work.from_pod | RESTARTS, labels=work.labels | {LABEL_GANG: work.name}
    )
    spec = client.V1JobSpec(
        parallelism=given.pods,
        completions=given.pods,
        completion_mode="Indexed",
        backoff_limit=0,
        active_deadline_seconds=given.deadline_s,
        pod_failure_policy=client.V1PodFailurePolicy(rules=[failed]),
        template=template(context, work),
    )
    preempted = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    of_set = {
        **({"suspend": True} if given.queue else {}),
        "ttlSecondsAfterFinished": DAY_S,
        "failurePolicy": {
            "maxRestarts": given.restarts,
            "rules": [preempted],
        },
        "replicatedJobs": [
            {
                "name": "workers",
                "replicas": 1,
                "template": {"spec": spec},
            }
        ],
    }
    return versioned(manifest(JOBSET_API, "JobSet", given.meta(), spec=of_set))


def ignoring(*in_order: int) -> client.V1PodFailurePolicy:
    """Evictions and the codes `in_order` do not count. Order matters: an evicted pod has an exit
    code too.
    """

    def codes(*values: int) -> client.V1PodFailurePolicyOnExitCodesRequirement:
        # Named: else a sidecar that ends after the main container would be judged by its own code.
        return client.V1PodFailurePolicyOnExitCodesRequirement(
            container_name=MAIN,
            operator="In",
            values=list(values),
        )

    return client.V1PodFailurePolicy(
        rules=[
            client.V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[DISRUPTED]),
            client.V1PodFailurePolicyRule(action="FailJob", on_exit_codes=codes(*FATAL_EXIT_CODES)),
            # Stopped cleanly before its node's planned end: the next node goes on.
            client.V1PodFailurePolicyRule(action="Ignore", on_exit_codes=codes(*sorted(in_order))),
        ]
    )


def job(context: RenderContext, task: Task) -> Body:
    """Pods that do not need each other."""
    return versioned(plain(indexed(context, task, EXIT_PREEMPTED)))


def indexed(context: RenderContext, task: Task, *in_order: int) -> client.V1Job:
    """`in_order`: exit codes that are no crash."""
    work = replace(task.work, from_pod=task.work.from_pod | FAILURES, env=task.work.env | ADDED_UP)
    spec = client.V1JobSpec(
        suspend=True if task.queue else None,
        completion_mode="Indexed",
        completions=task.pods,
        parallelism=task.pods,
        # By index: one back-off for all would double with every round of evictions, ignored or not.
        backoff_limit_per_index=task.restarts,
        active_deadline_seconds=task.deadline_s,
        ttl_seconds_after_finished=DAY_S,
        pod_failure_policy=ignoring(*in_order),
        template=template(context, work),
    )
    return client.V1Job(
        api_version=JOB_API,
        kind="Job",
        metadata=task.meta(),
        spec=spec,
    )


def sweep(context: RenderContext) -> Body:
    """Each index is a run of its own."""
    name = "train-sweep"
    work = spot_work(context, name, context.training, PlacementRule.TRAINING, run=f"{name}-{INDEX}")
    return job(context, Task(pods=2, deadline_s=7 * DAY_S, queue="spot", work=work))


def _flex_work(
    context: RenderContext,
    name: str,
    accelerator: str,
    run: str,
) -> PodSettings:
    machine = next(m for m in MACHINE_TYPES.values() if m.accelerator == accelerator)
    # No window: its end is planned, and the process reads it from the node.
    pool = Pool(
        name="flex",
        role=Role.TRAINING,
        capacity=Capacity.ON_DEMAND,
        machine_type=machine.name,
        min_nodes=0,
        max_nodes=1,
        gpus_per_node=machine.gpus,
        taints=(GPU_TAINT,),
    )
    return replace(
        spot_work(context, name, pool, PlacementRule.GANG, run),
        pool=None,
        tolerations=[GPU_TAINT],
        # Auto-provisioning would install GKE's default driver, which is too old for the CUDA of our
        # images.
        selector=flex_selector(accelerator),
        priority=PRIORITY_FLEX,
        grace_s=60,
        calls_kubernetes=True,
    )


def flex(context: RenderContext, accelerator: str) -> Iterator[Body]:
    """Node by node as capacity comes. A node ends after 7 days at most; its index goes on with the
    next one.
    """
    name = f"train-flex-{accelerator.removeprefix('nvidia-')}"
    work = _flex_work(context, name, accelerator, f"{name}-{INDEX}")
    pods = min(FLEX_NODES, context.flex_gpus(accelerator) // work.size.gpus)
    if pods and context.trains(name):
        yield job(
            context,
            Task(
                pods=pods,
                deadline_s=7 * DAY_S,
                queue="flex",
                work=work,
            ),
        )


def queued(context: RenderContext, accelerator: str) -> Iterator[Body]:
    """All nodes at once or none, through Kueue and a ProvisioningRequest; again when they end."""
    name = f"train-queued-{accelerator.removeprefix('nvidia-')}"
    work = _flex_work(context, name, accelerator, name)
    pods = min(FLEX_NODES, context.queued_gpus(accelerator) // work.size.gpus)
    if pods and context.trains(name):
        work = replace(work, tolerations=[GPU_TAINT, QUEUED_TAINT])
        given = Task(
            work=work,
            pods=pods,
            queue="queued",
            deadline_s=FLEX_MAX_RUN_S,
        )
        yield peers(name)
        yield gang(context, joined(requeued(given)))

"""Builds training jobs.

A gang on Spot is a JobSet, independent tasks are an Indexed Job, planned runs use flex-start.
"""

# Why it is so: infra/decisions/0063.

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kubernetes import client

from holdfast.manifests import data
from holdfast.manifests.pods import MAIN, PodSettings, Size, annotation, template
from holdfast.manifests.policies import RENDEZVOUS_PORT, budget, peers
from holdfast.manifests.rbac import bind_cluster_role
from holdfast.manifests.render_context import (
    Body,
    RenderContext,
    add_version,
    manifest,
    meta,
    plain,
)
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
SAMPLE_S = 30 * DAY_S
INDEX = f"$({ENV_COMPLETION_INDEX})"  # the kubelet puts the number in
NODES = 2
FLEX_NODES = 4
# Fields in which Kubernetes counts the starts before this one. An Indexed Job counts crashes and
# evictions apart.
RESTARTS = {ENV_ATTEMPT: annotation(ANNOTATION_RESTART)}
FAILURES = {
    ENV_CHARGED_FAILURES: annotation(ANNOTATION_CHARGED_FAILURES),
    ENV_IGNORED_FAILURES: annotation(ANNOTATION_IGNORED_FAILURES),
}
ATTEMPT = {ENV_ATTEMPT: f"$({ENV_CHARGED_FAILURES})+$({ENV_IGNORED_FAILURES})"}
# The first pod of a gang. Kubernetes expands the variable, which has the final name of the JobSet.
HEAD = f"$({ENV_JOB})-workers-0-0.$({ENV_JOB})"
DISRUPTED = client.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")


def samples(context: RenderContext) -> Iterator[Body]:
    if context.trains("train-gang"):
        yield from _sample_gang(context)
    if context.trains("train-sweep"):
        yield sweep(context)
    for accelerator in context.platform.auto_provisioning:
        yield from flex(context, accelerator)
        yield from flex_gang(context, accelerator)


def _sample_gang(context: RenderContext) -> Iterator[Body]:
    yield peers("train-gang")
    work = spot_work(context, "train-gang", context.training, PlacementRule.TRAINING)
    # The priority is not below 0: JobSet copies the number into a pod label, and "-5" is no label
    # value, so no pod would be made.
    task = Task(
        work=replace(work, priority=PRIORITY_FLEX),
        pods=NODES,
        queue="spot",
        deadline_s=SAMPLE_S,
    )
    yield gang(context, add_rendezvous(task))
    reason = (
        "An eviction through the API restarts the whole gang: drains take one node at a time. "
        "Spot preemption does not ask."
    )
    yield budget("train-gang", NAMESPACE_TRAINING, "train-gang", reason, keep=NODES - 1)


def rights(context: RenderContext) -> Iterator[Body]:
    """Lets training read nodes: a flex-start node shows in an annotation when it ends."""
    rules = [
        client.V1PolicyRule(
            api_groups=[""],
            resources=["nodes"],
            verbs=["get"],
        )
    ]
    platform = context.platform
    accounts: dict[str, list[str]] = {}
    for run in platform.runs:
        home = platform.namespace_of(run.name)
        accounts.setdefault(home, []).append(run.account)
    for namespace in platform.job_namespaces:
        # If runs are listed, only runs of teams may have a name that is not in the list.
        if namespace == NAMESPACE_BATCH or (platform.runs and namespace == NAMESPACE_TRAINING):
            continue
        accounts.setdefault(namespace, []).append(SHARED_ACCOUNT)
    for namespace, namespace_accounts in accounts.items():
        name = "holdfast-planned-end"
        if namespace != NAMESPACE_TRAINING:
            name += f"-{namespace}"
        yield from bind_cluster_role(name, rules, accounts=namespace_accounts, namespace=namespace)


def gpu_size(pool: Pool) -> Size:
    """Returns the size of a pod that fills a node, with room for the system's own pods."""
    return Size.share(MACHINE_TYPES[pool.machine_type], pool.gpus_per_node)


def spot_work(
    context: RenderContext,
    name: str,
    pool: Pool,
    rule: PlacementRule,
    run: str = "",
) -> PodSettings:
    """Makes a trainer on Spot, with the pool's window as its grace, and a rank for each GPU.

    `run` differs from the name where each pod trains a run of its own.
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
    """The pods of one job. Its builder decides whether they form a gang."""

    work: PodSettings
    pods: int
    """Pods that run at the same time."""
    points: int = 0
    """Indices of an Indexed Job that fail each for itself; 0: one for each pod, and a bug in one
    fails the job.
    """
    least: int = 0
    """Smallest number of pods with which an elastic gang continues."""
    sharded: bool = False
    """Each pod of the gang has a part of the state: the gang waits in place for all."""
    wait_s: int = 0
    """Seconds for which a sharded gang waits below its least; 0: those of an elastic gang."""
    queue: str
    """Kueue's queue, which starts the job; empty: it starts at once."""
    deadline_s: int
    restarts: int = 3
    """Limit of crashes, of an index or of the whole gang; evictions are not counted."""
    namespace: str = NAMESPACE_TRAINING
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def meta(self) -> client.V1ObjectMeta:
        labels = dict(self.labels)
        if self.queue:
            labels[LABEL_QUEUE] = self.queue
        return meta(
            self.work.name,
            self.namespace,
            labels=labels,
            annotations=self.annotations or None,
        )


def add_rendezvous(task: Task) -> Task:
    """Gives the reference trainer the number of nodes and the address where they meet."""
    command = [
        *task.work.command,
        "--nodes",
        str(task.pods),
        "--rendezvous",
        f"{HEAD}:{RENDEZVOUS_PORT}",
    ]
    return replace(task, work=replace(task.work, command=command))


def add_requeues(task: Task, within_s: int = 0) -> Task:
    """Moves a task to queued flex-start, whose nodes are used once.

    When they are gone, the mover queues the task again, at most `restarts` times, and not later
    than `within_s` after it was submitted; 0 is no limit.
    """
    annotations = {ANNOTATION_PROVISIONED_RUN: str(FLEX_MAX_RUN_S)}
    if within_s:
        annotations[ANNOTATION_REQUEUES_FOR] = str(within_s)
    return replace(
        task,
        labels=task.labels | {LABEL_REQUEUES: str(task.restarts)},
        annotations=task.annotations | annotations,
    )


def gang(context: RenderContext, task: Task) -> Body:
    """Builds a JobSet of which all pods run or none.

    An eviction restarts the gang and is free; a crash counts towards maxRestarts. The deadline ends
    the gang: JobSet would restart it by default, each time with a deadline of its own.
    """
    failure_rule = client.V1PodFailurePolicyRule(action="FailJob", on_pod_conditions=[DISRUPTED])
    work = task.work
    labels = work.labels | {LABEL_GANG: work.name}
    work = replace(work, from_pod=work.from_pod | RESTARTS, labels=labels)
    spec = client.V1JobSpec(
        parallelism=task.pods,
        completions=task.pods,
        completion_mode="Indexed",
        backoff_limit=0,
        active_deadline_seconds=task.deadline_s,
        pod_failure_policy=client.V1PodFailurePolicy(rules=[failure_rule]),
        template=template(context, work),
    )
    preempted = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    overdue = {
        "name": "overdue",
        "action": "FailJobSet",
        "onJobFailureReasons": ["DeadlineExceeded"],
    }
    workers = {
        "name": "workers",
        "replicas": 1,
        "template": {"spec": spec},
    }
    jobset_spec: Body = {"suspend": True} if task.queue else {}
    jobset_spec |= {
        "ttlSecondsAfterFinished": DAY_S,
        "failurePolicy": {
            "maxRestarts": task.restarts,
            "rules": [preempted, overdue],
        },
        "replicatedJobs": [workers],
    }
    return add_version(manifest(JOBSET_API, "JobSet", task.meta(), spec=jobset_spec))


def failure_policy(*ignored_codes: int, on_bug: str = "FailJob") -> client.V1PodFailurePolicy:
    """Builds a policy that does not count evictions and the exit codes `ignored_codes`.

    Order matters: an evicted pod has an exit code too. `on_bug` is FailIndex where an index fails
    for itself.
    """
    evicted = client.V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[DISRUPTED])
    fatal = client.V1PodFailurePolicyRule(
        action=on_bug, on_exit_codes=_exit_codes(FATAL_EXIT_CODES)
    )
    # A process that stopped before its node's planned end continues on the next node.
    stopped = client.V1PodFailurePolicyRule(
        action="Ignore", on_exit_codes=_exit_codes(sorted(ignored_codes))
    )
    return client.V1PodFailurePolicy(rules=[evicted, fatal, stopped])


def _exit_codes(codes: Iterable[int]) -> client.V1PodFailurePolicyOnExitCodesRequirement:
    # Without a name, a sidecar that ends after the main container would be judged by its exit code.
    return client.V1PodFailurePolicyOnExitCodesRequirement(
        container_name=MAIN,
        operator="In",
        values=list(codes),
    )


def job(context: RenderContext, task: Task) -> Body:
    """Builds a Job of pods that do not need each other."""
    return add_version(plain(make_indexed_job(context, task, EXIT_PREEMPTED)))


def make_indexed_job(context: RenderContext, task: Task, *ignored_codes: int) -> client.V1Job:
    """Builds an Indexed Job; `ignored_codes` are exit codes that are no crash."""
    env = task.work.env | ATTEMPT
    work = replace(task.work, from_pod=task.work.from_pod | FAILURES, env=env)
    spec = client.V1JobSpec(
        suspend=True if task.queue else None,
        completion_mode="Indexed",
        completions=task.points or task.pods,
        parallelism=task.pods,
        # One back-off for all indices would double with every round of evictions, ignored or not.
        backoff_limit_per_index=task.restarts,
        active_deadline_seconds=task.deadline_s,
        ttl_seconds_after_finished=DAY_S,
        pod_failure_policy=failure_policy(
            *ignored_codes, on_bug="FailIndex" if task.points else "FailJob"
        ),
        template=template(context, work),
    )
    return client.V1Job(
        api_version=JOB_API,
        kind="Job",
        metadata=task.meta(),
        spec=spec,
    )


def sweep(context: RenderContext) -> Body:
    """Builds a Job of which each index trains a run of its own."""
    name = "train-sweep"
    run = f"{name}-{INDEX}"
    work = spot_work(context, name, context.training, PlacementRule.TRAINING, run=run)
    return job(context, Task(pods=2, deadline_s=SAMPLE_S, queue="spot", work=work))


def _flex_work(
    context: RenderContext,
    name: str,
    accelerator: str,
    run: str,
) -> PodSettings:
    machine = next(m for m in MACHINE_TYPES.values() if m.accelerator == accelerator)
    # Without a window: its end is planned, and the process reads it from the node.
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
        # Auto-provisioning would install GKE's default driver, too old for the CUDA of our images.
        selector=flex_selector(accelerator),
        priority=PRIORITY_FLEX,
        grace_s=60,
        calls_kubernetes=True,
    )


def flex(context: RenderContext, accelerator: str) -> Iterator[Body]:
    """Builds a Job that gets node by node as capacity comes.

    A node ends after 7 days at most; its index continues on the next one.
    """
    name = f"train-flex-{accelerator.removeprefix('nvidia-')}"
    work = _flex_work(context, name, accelerator, f"{name}-{INDEX}")
    pods = min(FLEX_NODES, context.flex_gpus(accelerator) // work.size.gpus)
    if pods and context.trains(name):
        yield job(context, Task(pods=pods, deadline_s=SAMPLE_S, queue="flex", work=work))


def flex_gang(context: RenderContext, accelerator: str) -> Iterator[Body]:
    """Builds a gang that gets all nodes at once or none, and again when they end.

    Kueue makes a ProvisioningRequest for them.
    """
    name = f"train-queued-{accelerator.removeprefix('nvidia-')}"
    work = _flex_work(context, name, accelerator, name)
    pods = min(FLEX_NODES, context.queued_gpus(accelerator) // work.size.gpus)
    if pods and context.trains(name):
        work = replace(work, tolerations=[GPU_TAINT, QUEUED_TAINT])
        task = Task(
            work=work,
            pods=pods,
            queue="queued",
            deadline_s=FLEX_MAX_RUN_S,
        )
        yield peers(name)
        yield gang(context, add_rendezvous(add_requeues(task)))

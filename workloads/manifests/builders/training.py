"""Training: a gang on Spot as JobSet, independent tasks as a Job by index, a planned run on flex-start."""

from collections.abc import Iterator
from dataclasses import dataclass

from kubernetes import client

from infra.contract.capacity import ANNOTATION_RULE, Capacity, PlacementRule
from infra.contract.lifecycle import FATAL_EXIT_CODES, FLEX_MAX_RUN_S
from infra.contract.machines import MACHINE_TYPES
from infra.contract.names import NAMESPACE_TRAINING
from infra.contract.pools import GPU_TAINT, LABEL_ACCELERATOR, LABEL_FLEX_START, LABEL_MAX_RUN, Pool, Role
from workloads.manifests.builders.pods import Size, Work, template
from workloads.manifests.builders.site import Body, Site, meta, plain
from workloads.manifests.builders.tenancy import RENDEZVOUS_PORT, budget

DAY_S = 86_400
NODES = 2
FLEX_NODES = 4
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
DISRUPTED = client.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")


def objects(site: Site) -> Iterator[Body]:
    yield gang(site)
    reason = (
        "An eviction through the API restarts the whole gang: drains take one node at a time. "
        "Spot preemption does not ask."
    )
    yield budget("train-gang", NAMESPACE_TRAINING, "train-gang", reason, keep=NODES - 1)
    yield sweep(site)
    for accelerator in (cap.accelerator for cap in site.env.auto_provisioning.accelerators):
        yield flex(site, accelerator)
        yield queued(site, accelerator)


def gpu_size(pool: Pool) -> Size:
    """A pod that fills a node, with room left for the system's own pods."""
    machine = MACHINE_TYPES[pool.machine_type]
    return Size(cpu=str(machine.vcpus - 2), memory=f"{machine.memory_gib * 3 // 4}Gi", gpus=pool.gpus_per_node)


def command(site: Site, run: str, *, nodes: int = 1, rendezvous: str = "") -> list[str]:
    words = ["python", "-m", "workloads", "train", "run", "--checkpoints", site.checkpoints, "--run", run]
    words += ["--ranks", "1", "--steps", "100000", "--every", "auto", "--device", "cuda"]
    return [*words, "--nodes", str(nodes), "--rendezvous", rendezvous] if rendezvous else words


def gang(site: Site) -> Body:
    """All pods or none. An eviction restarts the gang and is free; a crash counts towards maxRestarts."""
    pool = site.training
    head = f"train-gang-workers-0-0.train-gang:{RENDEZVOUS_PORT}"
    work = Work(
        name="train-gang",
        role="trainer",
        job="train-gang",
        command=command(site, "train-gang", nodes=NODES, rendezvous=head),
        size=gpu_size(pool),
        pool=pool,
        # Not below 0: JobSet copies the number into a pod label, and "-5" is no label value, so no pod is made.
        priority="flex-workload",
        grace_s=pool.window.pod_s,
        restart="Never",
        annotations={ANNOTATION_RULE: PlacementRule.TRAINING.value},
    )
    failed = client.V1PodFailurePolicy(
        rules=[client.V1PodFailurePolicyRule(action="FailJob", on_pod_conditions=[DISRUPTED])]
    )
    spec = client.V1JobSpec(
        parallelism=NODES,
        completions=NODES,
        completion_mode="Indexed",
        backoff_limit=0,
        active_deadline_seconds=7 * DAY_S,
        pod_failure_policy=failed,
        template=template(site, work),
    )
    preempted = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": plain(meta("train-gang", NAMESPACE_TRAINING, labels={QUEUE_LABEL: "spot"})),
        "spec": {
            "suspend": True,
            "ttlSecondsAfterFinished": DAY_S,
            "failurePolicy": {"maxRestarts": 3, "rules": [preempted]},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": plain(spec)}}],
        },
    }


def _ignoring_evictions() -> client.V1PodFailurePolicy:
    """Order matters: an evicted pod has an exit code too."""
    bugs = client.V1PodFailurePolicyOnExitCodesRequirement(operator="In", values=list(FATAL_EXIT_CODES))
    return client.V1PodFailurePolicy(
        rules=[
            client.V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[DISRUPTED]),
            client.V1PodFailurePolicyRule(action="FailJob", on_exit_codes=bugs),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class Task:
    """A plain Job: pods that do not need each other."""

    name: str
    pods: int
    deadline_s: int
    queue: str
    work: Work


def job(site: Site, task: Task) -> Body:
    body = client.V1Job(
        api_version="batch/v1",
        kind="Job",
        metadata=meta(task.name, NAMESPACE_TRAINING, labels={QUEUE_LABEL: task.queue}),
        spec=client.V1JobSpec(
            suspend=True,  # Kueue starts it
            completion_mode="Indexed",
            completions=task.pods,
            parallelism=task.pods,
            # By index: one back-off for all would double with every round of evictions, ignored or not.
            backoff_limit_per_index=3,
            active_deadline_seconds=task.deadline_s,
            ttl_seconds_after_finished=DAY_S,
            pod_failure_policy=_ignoring_evictions(),
            template=template(site, task.work),
        ),
    )
    return plain(body)


def sweep(site: Site) -> Body:
    pool = site.training
    work = Work(
        name="train-sweep",
        role="trainer",
        job="train-sweep",
        command=[
            "python",
            "-m",
            "workloads",
            "train",
            "run",
            "--checkpoints",
            f"{site.checkpoints}/$(JOB_COMPLETION_INDEX)",
        ],
        size=gpu_size(pool),
        pool=pool,
        priority="spot-workload-low",
        grace_s=pool.window.pod_s,
        restart="Never",
        annotations={ANNOTATION_RULE: PlacementRule.TRAINING.value},
    )
    return job(site, Task(name="train-sweep", pods=2, deadline_s=7 * DAY_S, queue="spot", work=work))


def _flex_work(site: Site, name: str, accelerator: str, selector: dict[str, str]) -> Work:
    machine = next(m for m in MACHINE_TYPES.values() if m.accelerator == accelerator)
    pool = Pool(
        name="flex",
        role=Role.TRAINING,
        capacity=Capacity.ON_DEMAND,  # no window: its end is planned, and comes by HOLDFAST_DEADLINE
        machine_type=machine.name,
        min_nodes=0,
        max_nodes=1,
        gpus_per_node=machine.gpus,
        taints=(GPU_TAINT,),
    )
    return Work(
        name=name,
        role="trainer",
        job=name,
        command=command(site, name),
        size=gpu_size(pool),
        pool=None,
        selector=selector,
        priority="flex-workload",
        grace_s=60,
        restart="Never",
        annotations={ANNOTATION_RULE: PlacementRule.GANG.value},
    )


def _tolerating_gpu(body: Body) -> Body:
    body["spec"]["template"]["spec"]["tolerations"] = [GPU_TAINT.toleration()]
    return body


def flex(site: Site, accelerator: str) -> Body:
    """Node by node as capacity comes; each node ends after a day, and the Job with it."""
    name = f"train-flex-{accelerator.removeprefix('nvidia-')}"
    selector = {LABEL_FLEX_START: "true", LABEL_ACCELERATOR: accelerator, LABEL_MAX_RUN: str(DAY_S)}
    pods = min(FLEX_NODES, site.env.auto_provisioning.cap(accelerator))
    work = _flex_work(site, name, accelerator, selector)
    return _tolerating_gpu(job(site, Task(name=name, pods=pods, deadline_s=DAY_S, queue="flex", work=work)))


def queued(site: Site, accelerator: str) -> Body:
    """All nodes at once or none, through Kueue and a ProvisioningRequest; the flavor adds the selector."""
    name = f"train-queued-{accelerator.removeprefix('nvidia-')}"
    pods = min(FLEX_NODES, site.env.auto_provisioning.cap(accelerator))
    work = _flex_work(site, name, accelerator, {LABEL_FLEX_START: "true", LABEL_ACCELERATOR: accelerator})
    body = _tolerating_gpu(job(site, Task(name=name, pods=pods, deadline_s=FLEX_MAX_RUN_S, queue="queued", work=work)))
    body["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": str(FLEX_MAX_RUN_S)}
    return body

"""What stands before any job: the exporter, the reader that proves checkpoints, the data volumes."""

from collections.abc import Iterator

from kubernetes import client

from holdfast.contract.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.kubernetes import (
    JOB_API,
    JOBSET_API,
    KUEUE_API,
    LABEL_NAME,
    PRIORITY_PLATFORM,
    PROVISIONING_API,
    api_group,
)
from holdfast.contract.roles import DATABASE_OWNER, NAMESPACE_BATCH, NAMESPACE_MONITORING, NAMESPACE_TRAINING
from holdfast.manifests import data, database, training
from holdfast.manifests.pods import Size, Work, template
from holdfast.manifests.policies import budget
from holdfast.manifests.rbac import holding, reading, within
from holdfast.manifests.render_context import Body, RenderContext, meta, plain, versioned
from workloads.manifests.tenancy import EXPORTER_PORT

JOBS = ((api_group(JOB_API), "jobs"), (api_group(JOBSET_API), "jobsets"))
# What holds a job before it has a pod.
QUEUED = ((api_group(KUEUE_API), "workloads"), (api_group(PROVISIONING_API), "provisioningrequests"))
RULE = {ANNOTATION_RULE: PlacementRule.PLATFORM.value}
STAYS_ON_THE_SYSTEM_POOL = {
    "holdfast.dev/ignore-HF008": "a quarter of a core for seconds, and an empty cluster buys no node for it",
    "holdfast.dev/ignore-HF119": "that it completed is what doctor asks for, and one that is gone would run again",
}


def objects(context: RenderContext) -> Iterator[Body]:
    yield exporter(context)
    yield from _watching_rights()
    yield budget("exporter", NAMESPACE_MONITORING, "exporter", "Blind alerts for as long as it is away: one at a time")
    yield verifier(context)
    yield from training.rights(context)
    for namespace in (NAMESPACE_TRAINING, NAMESPACE_BATCH):
        yield from data.claim(context, namespace)


def migration(context: RenderContext) -> Iterator[Body]:
    """Tables and rights of the results database, before any worker: one small Job, named by what it would do.

    Nothing where the environment has no Cloud SQL: who owns that database is known to its owner.
    """
    instance = context.platform.database
    if instance is None:
        return
    results = database.access(context, "migrator")
    rights = {"batch": "holdfast_worker", "exporter": "holdfast_exporter"}
    granted = [f"--grant={instance.users[role]}={right}" for role, right in rights.items()]
    work = Work(
        name="migrate",
        role="migrator",
        image=context.image("batch"),
        command=["python", "-m", "holdfast", "batch", "migrate", "--as-role", DATABASE_OWNER, *granted],
        size=Size(cpu="250m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        restart="Never",
        env=results.env,
        sidecars=results.sidecars,
        annotations=RULE,
    )
    spec = client.V1JobSpec(
        backoff_limit=6,
        # Above the time that images take to be pushed, so that an order of commands is a hint, not a trap.
        active_deadline_seconds=6 * 3600,
        pod_failure_policy=training.ignoring(EXIT_PREEMPTED),
        template=template(context, work),
    )
    job = client.V1Job(
        api_version=JOB_API,
        kind="Job",
        metadata=meta("migrate", NAMESPACE_BATCH, annotations=STAYS_ON_THE_SYSTEM_POOL),
        spec=spec,
    )
    yield versioned(plain(job))


def exporter(context: RenderContext) -> Body:
    env = context.platform
    words = ["python", "-m", "monitoring", "export", "--project", env.project, "--location", env.region]
    # Without Cloud SQL it says nothing about batches, and needs no secret to start.
    results = database.access(context, "exporter") if env.database else database.Access(env={})
    work = Work(
        name="exporter",
        role="exporter",
        command=[*words, "--cluster", env.cluster, "--port", str(EXPORTER_PORT)],
        size=Size(cpu="500m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        calls_kubernetes=True,
        env=results.env,
        sidecars=results.sidecars,
        ports=[EXPORTER_PORT],
        probe="/metrics",
        annotations=RULE,
    )
    deployment = client.V1Deployment(
        api_version="apps/v1",
        kind="Deployment",
        metadata=meta("exporter", NAMESPACE_MONITORING),
        spec=client.V1DeploymentSpec(
            replicas=1,
            # Two at once would count every preemption twice.
            strategy=client.V1DeploymentStrategy(type="Recreate"),
            selector=client.V1LabelSelector(match_labels={LABEL_NAME: "exporter"}),
            template=template(context, work),
        ),
    )
    return plain(deployment)


def _watching_rights() -> Iterator[Body]:
    watching = ["list", "watch"]
    rules = [
        client.V1PolicyRule(api_groups=[""], resources=["pods", "nodes"], verbs=watching),
        client.V1PolicyRule(api_groups=["policy"], resources=["poddisruptionbudgets"], verbs=watching),
        *(
            client.V1PolicyRule(api_groups=[group], resources=[kind], verbs=watching)
            for group, kind in (*JOBS, *QUEUED)
        ),
    ]
    yield from reading("holdfast-exporter", rules, accounts=["exporter"], namespace=NAMESPACE_MONITORING)
    yield from _receipt_rights()
    yield from _moving_rights()
    # While one is replaced by the next, the holder alone writes to Cloud Monitoring.
    yield from holding("holdfast-exporter", account="exporter", namespace=NAMESPACE_MONITORING)


def _receipt_rights() -> Iterator[Body]:
    """When a job ends its receipt is written onto it, where jobs of ours run and nowhere else."""
    rules = [client.V1PolicyRule(api_groups=[group], resources=[kind], verbs=["patch"]) for group, kind in JOBS]
    for namespace in (NAMESPACE_TRAINING, NAMESPACE_BATCH):
        yield from within(
            "holdfast-receipts", rules, namespace, account="exporter", account_namespace=NAMESPACE_MONITORING
        )


def _moving_rights() -> Iterator[Body]:
    """A job goes to another queue by the patch that receipts need too; then Kueue makes its Workload anew."""
    rules = [
        client.V1PolicyRule(api_groups=[api_group(KUEUE_API)], resources=["workloads"], verbs=["delete"]),
        client.V1PolicyRule(api_groups=[""], resources=["events"], verbs=["create"]),
    ]
    for namespace in (NAMESPACE_TRAINING, NAMESPACE_BATCH):
        yield from within(
            "holdfast-mover", rules, namespace, account="exporter", account_namespace=NAMESPACE_MONITORING
        )


def verifier(context: RenderContext) -> Body:
    """Reads the newest checkpoints back, byte for byte: a backup that was never restored is a hope."""
    work = Work(
        name="verify-checkpoints",
        role="trainer",
        command=["python", "-m", "holdfast", "checkpoints", "list", context.checkpoints],
        size=Size(cpu="1", memory="2Gi"),
        pool=None,
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        restart="Never",
        annotations=RULE,
    )
    spec = client.V1JobSpec(
        backoff_limit=1,
        active_deadline_seconds=3 * 3600,
        ttl_seconds_after_finished=86_400,
        template=template(context, work),
    )
    cron = client.V1CronJob(
        api_version=JOB_API,
        kind="CronJob",
        metadata=meta("verify-checkpoints", NAMESPACE_TRAINING),
        spec=client.V1CronJobSpec(
            schedule="17 3 * * *",
            time_zone="Etc/UTC",
            concurrency_policy="Forbid",
            starting_deadline_seconds=3600,
            successful_jobs_history_limit=3,
            failed_jobs_history_limit=3,
            job_template=client.V1JobTemplateSpec(spec=spec),
        ),
    )
    return plain(cron)

"""Builds the workloads of the platform itself.

These are exporter, mover, the verifier of checkpoints, the migration and the data volumes.
"""

from collections.abc import Iterator
from typing import Any

from kubernetes import client

from holdfast.manifests import data, database, mover_admission, training
from holdfast.manifests.pods import PodSettings, Probes, Size, tcp_probe, template
from holdfast.manifests.policies import budget
from holdfast.manifests.rbac import bind_cluster_role, bind_lease, bind_role
from holdfast.manifests.render_context import Body, RenderContext, add_version, manifest, meta
from holdfast.platform.cluster import NAME
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    KUEUE_API,
    LABEL_NAME,
    PRIORITY_PLATFORM,
    PROVISIONING_API,
    api_group,
)
from holdfast.vocabulary.roles import (
    DATABASE_OWNER,
    NAMESPACE_BATCH,
    NAMESPACE_MONITORING,
    NAMESPACE_TRAINING,
    team_folder,
    team_role,
)
from workloads.manifests.tenancy import EXPORTER_PORT

JOBS = ((api_group(JOB_API), "jobs"), (api_group(JOBSET_API), "jobsets"))
# Objects that hold a job before it has a pod.
QUEUED = (
    (api_group(KUEUE_API), "workloads"),
    (api_group(PROVISIONING_API), "provisioningrequests"),
)
WATCHING = ("list", "watch")
RULE = {ANNOTATION_RULE: PlacementRule.PLATFORM.value}
STAYS_ON_THE_SYSTEM_POOL = {
    "holdfast.dev/ignore-HF008": (
        "a quarter of a core for seconds, and an empty cluster buys no node for it"
    ),
    "holdfast.dev/ignore-HF119": (
        "that it completed is what doctor asks for, and one that is gone would run again"
    ),
}


def objects(context: RenderContext) -> Iterator[Body]:
    yield exporter(context)
    yield from _exporter_rights(context)
    yield budget(
        "exporter",
        NAMESPACE_MONITORING,
        "exporter",
        "Blind alerts for as long as it is away: one at a time",
    )
    yield mover(context)
    yield from _mover_rights(context)
    yield from mover_admission.objects()
    yield budget(
        "mover",
        NAMESPACE_MONITORING,
        "mover",
        "No job is moved for as long as it is away: one at a time",
    )
    yield verifier(context)
    for team in context.platform.other_teams:
        yield verifier(context, team.name)
    yield from training.rights(context)
    for namespace in context.platform.job_namespaces:
        yield from data.claim(context, namespace)


def migration(context: RenderContext) -> Iterator[Body]:
    """Builds the Job that makes tables and rights of the results database.

    Its name has a digest of its spec, so that a new migration is a new Job. Yields nothing where
    the environment has no Cloud SQL: the owner of that database migrates it.
    """
    instance = context.platform.database
    if instance is None:
        return
    results = database.access(context, "migrator")
    rights = {"batch": "holdfast_worker", "exporter": "holdfast_exporter"}
    for team in context.platform.other_teams:
        role = team_role(team.name)
        if role in instance.users:
            rights[role] = "holdfast_worker"
    grants: list[str] = []
    for role, right in rights.items():
        grants.append(f"--grant={instance.users[role]}={right}")
    work = _settings(
        name="migrate",
        role="migrator",
        image=context.image("batch"),
        command=[
            "python",
            "-m",
            "holdfast",
            "batch",
            "database",
            "--as-role",
            DATABASE_OWNER,
            *grants,
        ],
        size=Size(cpu="250m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        restart="Never",
        env=results.env,
        sidecars=results.sidecars,
    )
    spec = {
        # Longer than images take to be pushed, so that commands in another order work too.
        "activeDeadlineSeconds": 6 * 3600,
        "backoffLimit": 6,
        "podFailurePolicy": training.failure_policy(EXIT_PREEMPTED),
        "template": template(context, work),
    }
    metadata = meta("migrate", NAMESPACE_BATCH, annotations=STAYS_ON_THE_SYSTEM_POOL)
    yield add_version(manifest(JOB_API, "Job", metadata, spec=spec))


def _settings(**fields: Any) -> PodSettings:
    return PodSettings(
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        annotations=RULE,
        **fields,
    )


def exporter(context: RenderContext) -> Body:
    env = context.platform
    words = [
        "python",
        "-m",
        "holdfast",
        "export",
        "--project",
        env.project,
        "--location",
        env.region,
    ]
    every_s = env.security.ratings_every_s
    options = ["--ratings-every-s", str(every_s)] if every_s else []
    # Without Cloud SQL it reports nothing about batches, and needs no secret to start.
    results = database.access(context, "exporter") if env.database else database.Access(env={})
    readiness = client.V1Probe(
        http_get=client.V1HTTPGetAction(path="/metrics", port=EXPORTER_PORT),
        period_seconds=15,
        failure_threshold=4,
    )
    work = _settings(
        name="exporter",
        role="exporter",
        command=[
            *words,
            "--cluster",
            env.cluster,
            "--port",
            str(EXPORTER_PORT),
            *options,
            *_team_options(context),
        ],
        size=Size(cpu="500m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        calls_kubernetes=True,
        env=results.env,
        sidecars=results.sidecars,
        ports=[EXPORTER_PORT],
        # A slow answer is no reason to kill.
        probes=Probes(readiness=readiness, liveness=tcp_probe(EXPORTER_PORT, period_s=30)),
    )
    return _single(context, work)


def mover(context: RenderContext) -> Body:
    """Builds the mover. It acts, so it has its own process and account: the exporter only reads."""
    env = context.platform
    command = ["python", "-m", "holdfast", "move", "--project", env.project]
    command += ["--cluster", env.cluster]
    nodes_per_hour = env.security.faulty_nodes_per_hour
    if nodes_per_hour:
        command += ["--faulty-nodes-per-hour", str(nodes_per_hour)]
    command += _team_options(context)
    work = _settings(
        name="mover",
        role="mover",
        command=command,
        size=Size(cpu="250m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        calls_kubernetes=True,
    )
    return _single(context, work)


def _team_options(context: RenderContext) -> list[str]:
    """Returns options that name every namespace of jobs; none where there is only one team."""
    options: list[str] = []
    if context.platform.other_teams:
        for namespace, team in context.platform.job_namespaces.items():
            options += ["--team", f"{team}={namespace}"]
    return options


def _single(context: RenderContext, work: PodSettings) -> Body:
    """Builds a Deployment of one pod.

    Two at once would count every preemption twice, and wait for each other's Lease.
    """
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {LABEL_NAME: work.name}},
        "strategy": {"type": "Recreate"},
        "template": template(context, work),
    }
    return manifest("apps/v1", "Deployment", meta(work.name, NAMESPACE_MONITORING), spec=spec)


def _exporter_rights(context: RenderContext) -> Iterator[Body]:
    kinds = (("", "pods"), ("", "nodes"), ("policy", "poddisruptionbudgets"), *QUEUED)
    rules = [_rule(group, kind, *WATCHING) for group, kind in kinds]
    yield from bind_cluster_role(
        "holdfast-exporter",
        rules,
        accounts=["exporter"],
        namespace=NAMESPACE_MONITORING,
    )
    if context.platform.security.ratings_every_s:
        document = client.V1PolicyRule(
            api_groups=[""],
            resources=["configmaps"],
            resource_names=[NAME],
            verbs=["get"],
        )
        yield from bind_role(
            "holdfast-exporter-platform",
            [document],
            NAMESPACE_MONITORING,
            account="exporter",
            account_namespace=NAMESPACE_MONITORING,
        )
    # During a roll-out only the holder of the Lease writes to Cloud Monitoring.
    yield from bind_lease("holdfast-exporter", account="exporter", namespace=NAMESPACE_MONITORING)


def _mover_rights(context: RenderContext) -> Iterator[Body]:
    """Lets the mover move jobs between queues.

    A patch moves a job, and another writes its receipt; then Kueue creates its Workload again.
    """
    watch_pods = _rule("", "pods", *WATCHING)
    watch_nodes = _rule("", "nodes", *WATCHING)
    kueue = api_group(KUEUE_API)
    # Quotas tell how many nodes a waiting job lacks; a gang yields as many.
    list_quotas = [_rule(kueue, kind, "list") for kind in ("clusterqueues", "resourceflavors")]
    yield from bind_cluster_role(
        "holdfast-mover",
        [watch_pods, watch_nodes, *list_quotas],
        accounts=["mover"],
        namespace=NAMESPACE_MONITORING,
    )
    rules = [_rule(group, kind, *WATCHING, "patch") for group, kind in JOBS]
    rules += [
        _rule(kueue, "workloads", "list", "delete", "patch"),
        _rule(kueue, "localqueues", "list"),
        _rule("", "events", "create"),
        # For pods on a node that stopped reporting.
        _rule("", "pods/status", "patch"),
        _rule("", "pods", "delete"),
    ]
    for namespace in context.platform.job_namespaces:
        yield from bind_role(
            "holdfast-mover",
            rules,
            namespace,
            account="mover",
            account_namespace=NAMESPACE_MONITORING,
        )
    yield from bind_lease("holdfast-mover", account="mover", namespace=NAMESPACE_MONITORING)


def _rule(group: str, kind: str, *verbs: str) -> client.V1PolicyRule:
    return client.V1PolicyRule(
        api_groups=[group],
        resources=[kind],
        verbs=[*verbs],
    )


def verifier(context: RenderContext, team: str = "") -> Body:
    """Builds a CronJob that reads the newest checkpoints, to prove that they can be restored; with
    `team`, those in the folder of a team.
    """
    name = f"verify-checkpoints-{team}" if team else "verify-checkpoints"
    bucket = context.platform.buckets["checkpoints"]
    work = _settings(
        name=name,
        role="trainer",
        command=[
            "python",
            "-m",
            "holdfast",
            "checkpoints",
            "list",
            f"gs://{bucket}/{team_folder(team)}" if team else context.checkpoints,
        ],
        size=Size(cpu="1", memory="2Gi"),
        pool=None,
        restart="Never",
    )
    job = {
        "activeDeadlineSeconds": 3 * 3600,
        "backoffLimit": 1,
        "template": template(context, work),
        "ttlSecondsAfterFinished": 86_400,
    }
    spec = {
        "concurrencyPolicy": "Forbid",
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"spec": job},
        "schedule": "17 3 * * *",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 3,
        "timeZone": "Etc/UTC",
    }
    return manifest(JOB_API, "CronJob", meta(name, NAMESPACE_TRAINING), spec=spec)

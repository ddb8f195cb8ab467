"""What is there before any job: exporter, mover, the reader that proves checkpoints, the data
volumes.
"""

from collections.abc import Iterator
from typing import Any

from kubernetes import client

from holdfast.manifests import data, database, training
from holdfast.manifests.pods import PodSettings, Probes, Size, listening, template
from holdfast.manifests.policies import budget
from holdfast.manifests.rbac import holding, reading, within
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta, versioned
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
# What holds a job before it has a pod.
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
    yield from _exporter_rights()
    yield budget(
        "exporter",
        NAMESPACE_MONITORING,
        "exporter",
        "Blind alerts for as long as it is away: one at a time",
    )
    yield mover(context)
    yield from _mover_rights(context)
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
    """Tables and rights of the results database, before any worker: one small Job, named by what it
    would do.

    Nothing where the environment has no Cloud SQL: who owns that database is known to its owner.
    """
    instance = context.platform.database
    if instance is None:
        return
    results = database.access(context, "migrator")
    rights = {"batch": "holdfast_worker", "exporter": "holdfast_exporter"}
    teams = [team_role(team.name) for team in context.platform.other_teams]
    rights |= {role: "holdfast_worker" for role in teams if role in instance.users}
    granted = [f"--grant={instance.users[role]}={right}" for role, right in rights.items()]
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
            *granted,
        ],
        size=Size(cpu="250m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        restart="Never",
        env=results.env,
        sidecars=results.sidecars,
    )
    spec = {
        # Above the time that images take to be pushed, so that an order of commands is a hint, not
        # a trap.
        "activeDeadlineSeconds": 6 * 3600,
        "backoffLimit": 6,
        "podFailurePolicy": training.ignoring(EXIT_PREEMPTED),
        "template": template(context, work),
    }
    about = meta("migrate", NAMESPACE_BATCH, annotations=STAYS_ON_THE_SYSTEM_POOL)
    yield versioned(manifest(JOB_API, "Job", about, spec=spec))


def _settings(**own: Any) -> PodSettings:
    return PodSettings(
        priority=PRIORITY_PLATFORM,
        grace_s=30,
        annotations=RULE,
        **own,
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
    # Without Cloud SQL it says nothing about batches, and needs no secret to start.
    results = database.access(context, "exporter") if env.database else database.Access(env={})
    get = client.V1HTTPGetAction(path="/metrics", port=EXPORTER_PORT)
    answers = client.V1Probe(
        http_get=get,
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
            *_teams(context),
        ],
        size=Size(cpu="500m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        calls_kubernetes=True,
        env=results.env,
        sidecars=results.sidecars,
        ports=[EXPORTER_PORT],
        # A slow answer is no reason to kill.
        probes=Probes(readiness=answers, liveness=listening(EXPORTER_PORT, period_s=30)),
    )
    return _single(context, work)


def mover(context: RenderContext) -> Body:
    """It acts, so it is a process of its own with an account of its own: the exporter only reads."""
    env = context.platform
    per_hour = env.security.faulty_nodes_per_hour
    words = ["python", "-m", "holdfast", "move", "--project", env.project]
    cap = ["--faulty-nodes-per-hour", str(per_hour)] if per_hour else []
    work = _settings(
        name="mover",
        role="mover",
        command=[
            *words,
            "--cluster",
            env.cluster,
            *cap,
            *_teams(context),
        ],
        size=Size(cpu="250m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        calls_kubernetes=True,
    )
    return _single(context, work)


def _teams(context: RenderContext) -> Iterator[str]:
    """Words that name every namespace of jobs; none where there is the default team alone."""
    for namespace, team in (
        context.platform.job_namespaces.items() if context.platform.other_teams else ()
    ):
        yield from ("--team", f"{team}={namespace}")


def _single(context: RenderContext, work: PodSettings) -> Body:
    """A Deployment of one pod. Two at once would count every preemption twice, and wait for each
    other's Lease.
    """
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {LABEL_NAME: work.name}},
        "strategy": {"type": "Recreate"},
        "template": template(context, work),
    }
    return manifest("apps/v1", "Deployment", meta(work.name, NAMESPACE_MONITORING), spec=spec)


def _exporter_rights() -> Iterator[Body]:
    watched = (("", "pods"), ("", "nodes"), ("policy", "poddisruptionbudgets"), *QUEUED)
    rules = [_rule(group, kind, *WATCHING) for group, kind in watched]
    yield from reading(
        "holdfast-exporter",
        rules,
        accounts=["exporter"],
        namespace=NAMESPACE_MONITORING,
    )
    # While one is replaced by the next, the holder alone writes to Cloud Monitoring.
    yield from holding("holdfast-exporter", account="exporter", namespace=NAMESPACE_MONITORING)


def _mover_rights(context: RenderContext) -> Iterator[Body]:
    """A job goes to another queue by a patch, as its receipt is written; then Kueue creates its
    Workload again.
    """
    everywhere = [_rule("", kind, *WATCHING) for kind in ("pods", "nodes")]
    yield from reading(
        "holdfast-mover",
        everywhere,
        accounts=["mover"],
        namespace=NAMESPACE_MONITORING,
    )
    rules = [
        *(_rule(group, kind, *WATCHING, "patch") for group, kind in JOBS),
        _rule(api_group(KUEUE_API), "workloads", "list", "delete", "patch"),
        _rule("", "events", "create"),
        # Pods that a silent node holds.
        _rule("", "pods/status", "patch"),
        _rule("", "pods", "delete"),
    ]
    for namespace in context.platform.job_namespaces:
        yield from within(
            "holdfast-mover",
            rules,
            namespace,
            account="mover",
            account_namespace=NAMESPACE_MONITORING,
        )
    yield from holding("holdfast-mover", account="mover", namespace=NAMESPACE_MONITORING)


def _rule(group: str, kind: str, *verbs: str) -> client.V1PolicyRule:
    return client.V1PolicyRule(
        api_groups=[group],
        resources=[kind],
        verbs=[*verbs],
    )


def verifier(context: RenderContext, team: str = "") -> Body:
    """Reads the newest checkpoints back, byte for byte: a backup that was never restored is a hope.
    `team`: those in the folder of a team.
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

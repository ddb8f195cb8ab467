"""Connects batch pods to the results database.

They reach it by the Cloud SQL Auth Proxy in the same pod, or by a service file of yours.
"""

# Why it is so: infra/decisions/0064.

from dataclasses import dataclass, field
from urllib.parse import quote

from kubernetes import client

from holdfast.manifests.pods import Size, security_context
from holdfast.manifests.render_context import RenderContext
from holdfast.platform.document import Database
from holdfast.vocabulary.environment import ENV_DATABASE, ENV_SCHEMA_WAIT_S
from holdfast.vocabulary.roles import RESULTS_DATABASE

# The role of digests.json: a copy of Google's image in the registry of the environment.
PROXY = "cloud-sql-proxy"
POSTGRES_PORT = 5_432
# The port that the proxy dials on the instance; 5432 is refused there without a certificate.
INSTANCE_PORT = 3_307
HEALTH_PORT = 9_801
# A worker that comes with the platform waits for its migration, whose image it has to pull, too.
SCHEMA_WAIT_S = 1_200
# Where the environment has no Cloud SQL: `kubectl -n batch create secret generic results
# --from-file=pg_service.conf`. A file, since an environment variable is shown by every `describe`;
# libpq reads host, user and password from it.
SECRET = "results"
SECRET_DIR = "/etc/holdfast/results"
SERVICE_FILE = "pg_service.conf"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Additions to a pod that uses the database."""

    env: dict[str, str]
    sidecars: list[client.V1Container] = field(default_factory=list)
    volumes: list[tuple[client.V1Volume, str]] = field(
        default_factory=list[tuple[client.V1Volume, str]]
    )


def access(context: RenderContext, role: str) -> Access:
    instance = context.platform.database
    if instance is None:
        env = {
            ENV_DATABASE: "postgresql:///?service=results",
            "PGSERVICEFILE": f"{SECRET_DIR}/{SERVICE_FILE}",
        }
        return Access(env=env, volumes=[(_secret(), SECRET_DIR)])
    user = quote(instance.users[role], safe="")
    # Plain on the loopback; the proxy encrypts, authenticates and fetches the current password.
    uri = f"postgresql://{user}@127.0.0.1:{POSTGRES_PORT}/{RESULTS_DATABASE}?sslmode=disable"
    env = {ENV_DATABASE: uri, ENV_SCHEMA_WAIT_S: str(SCHEMA_WAIT_S)}
    return Access(env=env, sidecars=[_proxy(context, instance)])


def port(context: RenderContext) -> int:
    return POSTGRES_PORT if context.platform.database is None else INSTANCE_PORT


def _secret() -> client.V1Volume:
    source = client.V1SecretVolumeSource(secret_name=SECRET, default_mode=0o440)
    return client.V1Volume(name=SECRET, secret=source)


def _proxy(context: RenderContext, instance: Database) -> client.V1Container:
    """Builds a native sidecar: it runs before and until after the worker, and ends with the Job."""
    limits = Size(cpu="500m", memory="256Mi", disk="100Mi").limits()
    return client.V1Container(
        name=PROXY,
        image=context.image(PROXY),
        image_pull_policy="Always",
        restart_policy="Always",
        args=[
            "--private-ip",
            "--auto-iam-authn",
            "--structured-logs",
            f"--port={POSTGRES_PORT}",
            "--health-check",
            "--http-address=0.0.0.0",
            f"--http-port={HEALTH_PORT}",
            "--exit-zero-on-sigterm",
            instance.connection,
        ],
        ports=[client.V1ContainerPort(container_port=HEALTH_PORT)],
        resources=client.V1ResourceRequirements(limits=limits, requests=limits),
        startup_probe=client.V1Probe(
            http_get=client.V1HTTPGetAction(path="/startup", port=HEALTH_PORT),
            period_seconds=1,
            failure_threshold=60,
        ),
        security_context=security_context(),
    )

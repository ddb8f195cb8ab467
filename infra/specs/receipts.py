"""Receipts of ended jobs: Cloud Logging copies the mover's lines to a bucket, where they outlive
pods and the retention of logs.
"""

# Decision: infra/decisions/0160.

from holdfast.vocabulary.roles import NAMESPACE_MONITORING
from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource, grant

SCHEMA = "holdfast.receipt/1"


def resources(environment: Environment) -> list[Resource]:
    sink = _sink(environment)
    # Google chooses the sink's identity. It creates objects in this bucket, and reads none.
    writer = grant(
        "storage_bucket",
        "receipts-sink",
        "roles/storage.objectCreator",
        f"${{{sink.address}.writer_identity}}",
        ("google_storage_bucket.receipts",),
        bucket=environment.bucket("receipts"),
    )
    return [sink, writer]


def _sink(environment: Environment) -> Resource:
    # No team can run a pod in this namespace, so none can write a receipt.
    terms = (
        'resource.type="k8s_container"',
        f'resource.labels.cluster_name="{environment.cluster_name}"',
        f'resource.labels.namespace_name="{NAMESPACE_MONITORING}"',
        'log_id("stdout")',
        f'jsonPayload.schema="{SCHEMA}"',
    )
    arguments = {
        "name": f"{environment.cluster_name}-receipts",
        "project": environment.project,
        "description": "Receipts of ended jobs",
        "destination": f"storage.googleapis.com/{environment.bucket('receipts')}",
        "filter": " AND ".join(terms),
        "unique_writer_identity": True,
    }
    return Resource(
        kind="google_logging_project_sink",
        id="receipts",
        arguments=arguments,
        after=("google_storage_bucket.receipts", *api(environment, "logging")),
    )

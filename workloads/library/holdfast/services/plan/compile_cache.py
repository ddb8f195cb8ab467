"""Checks whose folder `compile_cache` names: what lies there runs as code in the servers."""

# Why it is so: infra/decisions/0201.

from holdfast.jobs.file.formats import parse_bucket
from holdfast.manifests.serving_proxy import SERVER
from holdfast.platform import Platform
from holdfast.services.file.service_file import ServiceSpec
from holdfast.support.errors import InputError
from holdfast.vocabulary.roles import team_folder

ROLES = ("roles/storage.objectViewer", "roles/storage.objectCreator")
"""Reads and creates: no server can replace or delete what another one has stored."""


def check(service: ServiceSpec, platform: Platform, account: str) -> list[str]:
    """Return the grants that the servers need.

    Raises InputError for a folder of the environment in which others may write.
    """
    if not service.compile_cache:
        return []
    bucket, _ = parse_bucket("compile_cache", service.compile_cache)
    if bucket not in platform.buckets.values():
        return _list_grants(bucket, account)
    own_folder = _find_own_folder(service, platform)
    if own_folder and f"{service.compile_cache}/".startswith(own_folder):
        return []
    own_place = f", or a folder below {own_folder}" if own_folder else ""
    raise InputError(
        "compile_cache: others may write there, and what lies there runs in the servers",
        got=service.compile_cache,
        allowed=f"a bucket that is not of {platform.name}{own_place}",
        fix=(
            f"gcloud storage buckets create gs://NAME --location={platform.region}"
            " --uniform-bucket-level-access, and compile_cache: gs://NAME"
        ),
    )


def _list_grants(bucket: str, account: str) -> list[str]:
    command = f"gcloud storage buckets add-iam-policy-binding gs://{bucket}"
    member = f"serviceAccount:{account}"
    lines: list[str] = []
    for role in ROLES:
        grant = f"{command} --member={member} --role={role}"
        lines.append(f"compile_cache: the servers need {grant}")
    warning = f"all who may write in gs://{bucket} can run code in the servers"
    return [*lines, f"compile_cache: {warning}"]


def _find_own_folder(service: ServiceSpec, platform: Platform) -> str:
    """Return the folder of the checkpoints that only the service's team writes; empty if none."""
    if platform.role_in(service.home, SERVER) == SERVER:
        return ""
    team = platform.job_namespaces[service.home]
    return f"gs://{platform.buckets['checkpoints']}/{team_folder(team)}/"

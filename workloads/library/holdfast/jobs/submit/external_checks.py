"""Checks what a job needs outside the cluster: its image, its buckets and its secrets.

The image is taken by digest; a bucket must be in the region. Nothing is changed.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from holdfast.clients.gcloud import GcloudFailed, ask
from holdfast.jobs.file.formats import parse_bucket, parse_secret
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.render import pod_parts
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.roles import ROLES

_ABSENT = ("not found", "does not exist", "404", "NOT_FOUND")


def check(job: JobSpec, platform: Platform) -> list[str]:
    """Return a line for each bucket or secret that could not be judged.

    Raises InputError if a bucket is in another region, or if a bucket or secret does not exist.
    """
    return [*_check_buckets(job, platform), *_check_secrets(job, platform)]


def _check_buckets(job: JobSpec, platform: Platform) -> Iterator[str]:
    environment_buckets = {platform.buckets["data"], platform.buckets["checkpoints"]}
    for field, url in (
        ("data", job.data),
        ("checkpoints", job.checkpoints),
        ("output", job.output),
    ):
        name = parse_bucket(field, url)[0] if url else ""
        if name and name not in environment_buckets:
            yield from _check_foreign_bucket(job, platform, field, name)
        elif (
            field == "checkpoints"
            and name == platform.buckets["checkpoints"]
            and job.role == SHARED_ACCOUNT
        ):
            _require_own_folder(job, platform)
        elif field == "output" and name:
            folder = pod_parts.find_output(replace(job, output=""), platform)
            raise InputError(
                "output: a folder in which the job may not write",
                got=job.output,
                allowed="a bucket of your own; or nothing, for a folder of the run",
                fix=f"leave it out: results go to {folder}",
            )


def _check_foreign_bucket(job: JobSpec, platform: Platform, field: str, name: str) -> Iterator[str]:
    try:
        bucket = ask("storage", "buckets", "describe", f"gs://{name}", project=platform.project)
    except Unjudged as error:
        problem = f"{field}: no such bucket"
        yield _describe_failure(error, problem, f"gs://{name}", "create it, or correct the name")
        return
    bucket = bucket or {}
    location = str(bucket.get("location", "")).lower()
    if location and location != platform.region:
        raise InputError(
            f"{field}: the bucket is in another region",
            got=f"gs://{name} in {location}",
            allowed=platform.region,
            fix=(
                f"gcloud storage buckets create gs://{name}-{platform.region}"
                f" --location={platform.region}, and copy: each read from another region is"
                " paid, and slow"
            ),
        )
    yield _describe_grant(field, name, platform, job)


def _require_own_folder(job: JobSpec, platform: Platform) -> None:
    """Raise InputError if the job's account may not write there: its first save would fail."""
    root = platform.checkpoints_of(job.name, job.home)
    folder = job.checkpoints.rstrip("/")
    if folder == root:
        return
    has_own_account = platform.is_listed(job.name)
    if has_own_account or not folder.startswith(f"{root}/"):
        raise InputError(
            "checkpoints: a folder that the job may not write",
            got=folder,
            allowed=root if has_own_account else f"{root}, or a folder below",
            fix=f"leave it out: {job.name} saves to {root}/{job.name}",
        )


def _check_secrets(job: JobSpec, platform: Platform) -> Iterator[str]:
    for secret in pod_parts.list_secrets(job):
        name, version = parse_secret(secret)
        try:
            ask(
                "secrets",
                "versions",
                "describe",
                version,
                f"--secret={name}",
                project=platform.project,
            )
        except Unjudged as error:
            fix = f"gcloud secrets create {name} --data-file=FILE --project={platform.project}"
            got = f"{name}, version {version}, in {platform.project}"
            yield _describe_failure(error, "no such secret", got, fix)
        role = "roles/secretmanager.secretAccessor"
        options = f"--member={_member(job, platform)} --role={role} --project={platform.project}"
        yield (
            f"secret {name}: the job may read it after gcloud secrets add-iam-policy-binding {name}"
            f" {options}"
        )


def _describe_failure(error: Unjudged, problem: str, got: str, fix: str) -> str:
    """Return a line if Google did not answer. Raises InputError if it says that there is none."""
    says_absent = any(words in str(error) for words in _ABSENT)
    if isinstance(error, GcloudFailed) and says_absent:
        raise InputError(
            problem,
            got=got,
            allowed="one that exists",
            fix=fix,
        ) from error
    return f"{got} was not checked: {error}"


def _describe_grant(field: str, name: str, platform: Platform, job: JobSpec) -> str:
    role = "objectViewer" if field == "data" else "objectUser"
    return (
        f"{field}: the job may use gs://{name} after gcloud storage buckets add-iam-policy-binding"
        f" gs://{name} --member={_member(job, platform)} --role=roles/storage.{role}"
    )


def _member(job: JobSpec, platform: Platform) -> str:
    """Return the identity of the job's pods, as policies name it."""
    account = job.role
    if account == SHARED_ACCOUNT:
        account = platform.account_of(job.name, job.home)
    if account in ROLES:
        role = platform.role_in(job.home, account)
        return f"serviceAccount:{platform.accounts[role]}"
    return f"principal://{platform.pod_identities}/subject/ns/{job.home}/sa/{account}"


def require_image(image: str, platform: Platform) -> None:
    """Raise InputError if the platform has not pushed one of its own images yet."""
    if image in platform.images:
        return
    fix = f"ask the platform team to push the image {image}"
    if image not in ROLES:
        raise InputError(
            f"{platform.name} has no image {image} yet, which the pods of a batch need too",
            got=", ".join(sorted(platform.images)) or "no image",
            allowed=f"{image} among the images of {platform.name}",
            fix=fix,
        )
    pushed = sorted(set(platform.images) & set(ROLES))
    raise InputError(
        f"{platform.name} has no image {image} yet",
        got=image,
        allowed=", ".join([*pushed, "NAME@sha256:DIGEST"]),
        fix=f"{fix}, or give one of yours by digest",
    )


_BY_DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")


def resolve(image: str, context: RenderContext) -> str:
    """Return the image by digest.

    Raises InputError if it has no digest, or if the cluster would refuse it.
    """
    if image in ROLES:
        require_image(image, context.platform)
        image = context.image(image)
    elif not _BY_DIGEST.fullmatch(image):
        raise InputError(
            "image without a digest",
            got=image,
            allowed="NAME@sha256:64 hex digits, or a role",
            fix=(
                "give the digest that `docker buildx imagetools inspect NAME` or `gcloud artifacts"
                " docker images describe` prints"
            ),
        )
    if not context.platform.admits(image):
        raise InputError(
            "the environment's image policy refuses this image",
            got=image,
            allowed=", ".join(context.platform.security.image_patterns or ()),
            fix=(
                f"push it to {context.platform.registry}, or ask the platform team to add its"
                " repository to security.image_patterns"
            ),
        )
    return image

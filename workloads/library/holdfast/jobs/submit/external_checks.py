"""What a job needs outside the cluster: its image by digest; and its buckets in the region and its
secrets, read only.
"""

import re
from collections.abc import Iterator

from holdfast.clients.gcloud import GcloudFailed, ask
from holdfast.jobs.file.formats import bucket, secret
from holdfast.jobs.file.job_file import OwnJob
from holdfast.jobs.render import pod_parts
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.roles import ROLES

_ABSENT = ("not found", "does not exist", "404", "NOT_FOUND")


def check(job: OwnJob, platform: Platform) -> list[str]:
    """What could not be judged, a line each. InputError where a bucket is elsewhere, or something
    does not exist.
    """
    return [*_buckets(job, platform), *_secrets(job, platform)]


def _buckets(job: OwnJob, platform: Platform) -> Iterator[str]:
    own = {platform.buckets[purpose] for purpose in ("data", "checkpoints")}
    for field, url in (("data", job.data), ("checkpoints", job.checkpoints)):
        name = bucket(field, url)[0] if url else ""
        if not name or name in own:
            if (
                name == platform.buckets["checkpoints"]
                and field == "checkpoints"
                and job.role == SHARED_ACCOUNT
            ):
                _require_own_folder(job, platform)
            continue
        try:
            found = ask("storage", "buckets", "describe", f"gs://{name}", project=platform.project)
        except Unjudged as error:
            yield _judged(
                error, f"{field}: no such bucket", f"gs://{name}", "create it, or correct the name"
            )
            continue
        where = str((found or {}).get("location", "")).lower()
        if where and where != platform.region:
            raise InputError(
                f"{field}: the bucket is in another region",
                got=f"gs://{name} in {where}",
                allowed=platform.region,
                fix=(
                    f"gcloud storage buckets create gs://{name}-{platform.region}"
                    f" --location={platform.region}, and copy: each read from another region is"
                    " paid, and slow"
                ),
            )
        yield _granted(field, name, platform, job)


def _require_own_folder(job: OwnJob, platform: Platform) -> None:
    """InputError where its account may not write: only its first save would show it."""
    root = platform.checkpoints_of(job.name, job.home)
    got = job.checkpoints.rstrip("/")
    alone = platform.is_listed(job.name)
    if got != root and (alone or not got.startswith(f"{root}/")):
        allowed = root if alone else f"{root}, or a folder below"
        fix = f"leave it out: {job.name} saves to {root}/{job.name}"
        raise InputError(
            "checkpoints: a folder that the job may not write",
            got=got,
            allowed=allowed,
            fix=fix,
        )


def _secrets(job: OwnJob, platform: Platform) -> Iterator[str]:
    for named in sorted(set(pod_parts.secret_files(job).values())):
        name, version = secret(named)
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
            yield _judged(
                error, "no such secret", f"{name}, version {version}, in {platform.project}", fix
            )
        right = "roles/secretmanager.secretAccessor"
        bound = f"--member={_member(job, platform)} --role={right} --project={platform.project}"
        yield (
            f"secret {name}: the job may read it after gcloud secrets add-iam-policy-binding {name}"
            f" {bound}"
        )


def _judged(error: Unjudged, what: str, got: str, fix: str) -> str:
    """A line where Google did not answer; InputError where it says that there is none."""
    if isinstance(error, GcloudFailed) and any(each in str(error) for each in _ABSENT):
        raise InputError(
            what,
            got=got,
            allowed="one that exists",
            fix=fix,
        ) from error
    return f"{got} was not checked: {error}"


def _granted(field: str, name: str, platform: Platform, job: OwnJob) -> str:
    right = "objectViewer" if field == "data" else "objectUser"
    return (
        f"{field}: the job may use gs://{name} after gcloud storage buckets add-iam-policy-binding"
        f" gs://{name} --member={_member(job, platform)} --role=roles/storage.{right}"
    )


def _member(job: OwnJob, platform: Platform) -> str:
    """The identity of the job's pods, as policies name it."""
    account = platform.account_of(job.name, job.home) if job.role == SHARED_ACCOUNT else job.role
    if account in ROLES:
        return f"serviceAccount:{platform.accounts[platform.role_in(job.home, account)]}"
    return f"principal://{platform.pod_identities}/subject/ns/{job.home}/sa/{account}"


_BY_DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")


def resolve(image: str, context: RenderContext) -> str:
    """The image by digest; InputError where it has none, or the cluster would refuse it."""
    found = image
    if image in ROLES:
        context.require_digests([image])
        found = context.image(image)
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
    if not context.platform.admits(found):
        raise InputError(
            "the environment's image policy refuses this image",
            got=found,
            allowed=", ".join(context.platform.security.image_patterns or ()),
            fix=(
                f"push it to {context.platform.registry}, or add its repository to"
                " security.image_patterns"
            ),
        )
    return found

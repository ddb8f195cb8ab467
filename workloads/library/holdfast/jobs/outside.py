"""What a job needs outside the cluster, asked read-only: its image's digest, its buckets in the region, its secrets."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.clients.gcloud import GcloudFailed
from holdfast.clients.gcloud import ask as ask_google
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.roles import ROLES
from holdfast.jobs import pod_parts
from holdfast.jobs.forms import bucket, secret
from holdfast.jobs.job_file import OwnJob
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.platform.document import SHARED_ACCOUNT

Ask = Callable[..., Any]
_ABSENT = ("not found", "does not exist", "404", "NOT_FOUND")


def check(job: OwnJob, platform: Platform, ask: Ask = ask_google) -> list[str]:
    """What could not be judged, a line each. InputError where a bucket is elsewhere, or something does not exist."""
    return [*_buckets(job, platform, ask), *_secrets(job, platform, ask)]


def _buckets(job: OwnJob, platform: Platform, ask: Ask) -> Iterator[str]:
    own = {platform.buckets[purpose] for purpose in ("data", "checkpoints")}
    for field, url in (("data", job.data), ("checkpoints", job.checkpoints)):
        name = bucket(field, url)[0] if url else ""
        if not name or name in own:
            if name == platform.buckets["checkpoints"] and field == "checkpoints" and job.role == SHARED_ACCOUNT:
                _require_own_folder(job, platform)
            continue
        try:
            found = ask("storage", "buckets", "describe", f"gs://{name}", project=platform.project)
        except Unjudged as error:
            yield _judged(error, f"{field}: no such bucket", f"gs://{name}", "create it, or correct the name")
            continue
        where = str((found or {}).get("location", "")).lower()
        if where and where != platform.region:
            raise InputError(
                f"{field}: the bucket is in another region", got=f"gs://{name} in {where}", allowed=platform.region,
                fix=f"gcloud storage buckets create gs://{name}-{platform.region} --location={platform.region}, and copy: "
                "each read from another region is paid, and slow",
            )  # fmt: skip
        yield _granted(field, name, platform, job)


def _require_own_folder(job: OwnJob, platform: Platform) -> None:
    """InputError where its account may not write: only its first save would show it."""
    root, got = RenderContext(platform).checkpoints, job.checkpoints.rstrip("/")
    if got != root and (platform.runs or not got.startswith(f"{root}/")):
        allowed = root if platform.runs else f"{root}, or a folder below"
        fix = f"leave it out: {job.name} saves to {root}/{job.name}"
        raise InputError("checkpoints: a folder that the job may not write", got=got, allowed=allowed, fix=fix)


def _secrets(job: OwnJob, platform: Platform, ask: Ask) -> Iterator[str]:
    for named in sorted(set(pod_parts.secret_files(job).values())):
        name, version = secret(named)
        try:
            ask("secrets", "versions", "describe", version, f"--secret={name}", project=platform.project)
        except Unjudged as error:
            fix = f"gcloud secrets create {name} --data-file=FILE --project={platform.project}"
            yield _judged(error, "no such secret", f"{name}, version {version}, in {platform.project}", fix)
        yield (
            f"secret {name}: the job may read it after gcloud secrets add-iam-policy-binding {name} "
            f"--member={_member(job, platform)} --role=roles/secretmanager.secretAccessor "
            f"--project={platform.project}"
        )


def _judged(error: Unjudged, what: str, got: str, fix: str) -> str:
    """A line where Google could not be asked; InputError where it says that there is none."""
    if isinstance(error, GcloudFailed) and any(each in str(error) for each in _ABSENT):
        raise InputError(what, got=got, allowed="one that exists", fix=fix) from error
    return f"{got} was not checked: {error}"


def _granted(field: str, name: str, platform: Platform, job: OwnJob) -> str:
    right = "objectViewer" if field == "data" else "objectUser"
    return (
        f"{field}: the job may use gs://{name} after gcloud storage buckets add-iam-policy-binding gs://{name} "
        f"--member={_member(job, platform)} --role=roles/storage.{right}"
    )


def _member(job: OwnJob, platform: Platform) -> str:
    """Whom the job's pods act as, as policies name it."""
    role = platform.account_of(job.name) if job.role == SHARED_ACCOUNT else job.role
    if role in ROLES:
        return f"serviceAccount:{platform.accounts[role]}"
    return f"principal://{platform.pod_identities}/subject/ns/{job.home}/sa/{role}"


_BY_DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")
_BY_TAG = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/-]*(:[0-9]{1,5}/[a-z0-9._/-]+)?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    image: str
    warning: str = ""


def resolve(image: str, context: RenderContext) -> Resolved:
    """The image by digest; InputError where none can be found, or the cluster would refuse it."""
    found = _by_digest(image, context)
    if not context.platform.admits(found.image):
        raise InputError(
            "the environment's image policy refuses this image", got=found.image,
            allowed=", ".join(context.platform.security.image_patterns or ()),
            fix=f"push it to {context.platform.registry}, or add its repository to security.image_patterns",
        )  # fmt: skip
    return found


def _by_digest(image: str, context: RenderContext) -> Resolved:
    if _BY_DIGEST.fullmatch(image):
        return Resolved(image=image)
    if image in ROLES:
        context.require_digests([image])
        return Resolved(image=context.image(image))
    match = _BY_TAG.fullmatch(image)
    if match is None:
        raise InputError(
            "image is no name", got=image, allowed="NAME@sha256:64 hex digits, NAME:TAG, or a role", fix=FIX
        )
    digest = _digest_of(image, context.platform)
    warning = f"{image} is a tag, which moves: taken as {digest}, its digest now"
    return Resolved(image=f"{match['name']}@{digest}", warning=warning)


FIX = "give NAME@sha256:DIGEST, as `docker buildx imagetools inspect NAME` or `gcloud artifacts docker images describe` prints it"
GOOGLES = (".pkg.dev", "gcr.io")
"""Ends of the hosts of Artifact Registry, which gcloud can ask."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _digest_of(image: str, platform: Platform) -> str:
    """`sha256:...` of an image by tag, by the login of gcloud; InputError where there is none."""
    allowed = "NAME@sha256:64 hex digits, or a tag in Artifact Registry that you may read"
    if not image.partition("/")[0].endswith(GOOGLES):
        raise InputError("image by tag, in a registry other than Google's", got=image, allowed=allowed, fix=FIX)
    try:
        found = ask_google("artifacts", "docker", "images", "describe", image, project=platform.project)
        digest = str(((found or {}).get("image_summary") or {}).get("digest"))
    except Unjudged as error:
        digest = str(error)
    if not _DIGEST.fullmatch(digest):
        got = f"{image}: {digest[:200]}"
        raise InputError("image by tag, and gcloud gives no digest", got=got, allowed=allowed, fix=f"push it, or {FIX}")
    return digest

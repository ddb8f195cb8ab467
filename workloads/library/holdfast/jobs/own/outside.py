"""What a job needs outside the cluster: its buckets in the region, its secrets. Asked of Google, read-only."""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.clients.gcloud import Refused
from holdfast.clients.gcloud import ask as ask_google
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.roles import NAMESPACE_TRAINING, ROLES
from holdfast.jobs.own import forms, mounts
from holdfast.jobs.own.job_file import OwnJob
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
        name = forms.bucket(field, url)[0] if url else ""
        if not name or name in own:
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


def _secrets(job: OwnJob, platform: Platform, ask: Ask) -> Iterator[str]:
    for secret in sorted(set(mounts.files(job).values())):
        name, version = forms.secret("secret", secret)
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
    if isinstance(error, Refused) and any(each in str(error) for each in _ABSENT):
        raise InputError(what, got=got, allowed="one that exists", fix=fix) from error
    return f"{got} was not checked: {error}"


def _granted(field: str, bucket: str, platform: Platform, job: OwnJob) -> str:
    right = "objectViewer" if field == "data" or job.steady else "objectUser"
    return (
        f"{field}: the job may use gs://{bucket} after gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        f"--member={_member(job, platform)} --role=roles/storage.{right}"
    )


def _member(job: OwnJob, platform: Platform) -> str:
    """Whom the job's pods act as, as policies name it."""
    role = platform.account_of(job.name) if job.role == SHARED_ACCOUNT else job.role
    if role in ROLES:
        return f"serviceAccount:{platform.accounts[role]}"
    return f"principal://{platform.pod_identities}/subject/ns/{NAMESPACE_TRAINING}/sa/{role}"

"""What a job needs outside the cluster, asked read-only: its image's digest, its buckets in the region, its secrets.

Source: OCI distribution specification, the digest of a manifest by HEAD; Docker Registry token authentication; Artifact
Registry, an access token as the password of `oauth2accesstoken`; the metadata server of Compute Engine.
"""

import base64
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.clients.gcloud import GcloudFailed
from holdfast.clients.gcloud import ask as ask_google
from holdfast.clients.gcloud import run as gcloud
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
    right = "objectViewer" if field == "data" or job.steady else "objectUser"
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
    """The image by digest; InputError where there is none, no registry answers, or the cluster would refuse it."""
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
    name, tag = match["name"], match["tag"] or "latest"
    digest = digest_of(name, tag)
    warning = f"{image} is a tag, which moves: taken as {digest}, its digest now"
    return Resolved(image=f"{name}@{digest}", warning=warning)


FIX = "give NAME@sha256:DIGEST, as `docker buildx imagetools inspect NAME` or `gcloud artifacts docker images describe` prints it"
GOOGLES = (".pkg.dev", "gcr.io")
"""Ends of the hosts that take the token of the user who is logged in."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LOCAL = ("localhost", "127.0.0.1")
_TIMEOUT_S = 10.0
_METADATA_TIMEOUT_S = 2.0
_ANSWER_BYTES = 1_000_000


def digest_of(name: str, tag: str) -> str:
    """`sha256:...`; InputError where there is no such image, or no registry answers."""
    host, path = _place(name)
    scheme = "http" if host.partition(":")[0] in _LOCAL else "https"
    image, url = f"{name}:{tag}", f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    try:
        found = _asked(url, host)
    except urllib.error.HTTPError as refused:
        raise _refused(image, refused.code) from refused
    except (OSError, ValueError) as error:
        raise _silent(image, error) from error
    if not _DIGEST.fullmatch(found):
        raise _silent(image, f"no digest: {found[:80]!r}")
    return found


def _place(name: str) -> tuple[str, str]:
    """Registry and path; a name without a host is of Docker Hub."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first in _LOCAL):
        return first, rest
    return "registry-1.docker.io", name if rest else f"library/{name}"


def _asked(url: str, host: str) -> str:
    try:
        return _head(url, {})
    except urllib.error.HTTPError as refused:
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', refused.headers.get("WWW-Authenticate", "")))
        if refused.code != 401 or "realm" not in challenge:
            raise
    return _head(url, {"Authorization": f"Bearer {_token(challenge, host)}"})


def _head(url: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": ", ".join(_MANIFESTS), **headers})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return answer.headers.get("Docker-Content-Digest", "")


def _token(challenge: dict[str, str], host: str) -> str:
    """Anybody gets one for a public image; ValueError where the registry names no service that may be asked."""
    realm = challenge.pop("realm")
    place = urllib.parse.urlsplit(realm)
    if place.scheme != "https" and place.hostname not in _LOCAL:
        raise ValueError(f"its token service is {realm[:200]!r}")
    # A realm elsewhere would be handed the token of the user who is logged in.
    own = host.endswith(GOOGLES) and place.netloc == host
    request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(challenge)}", headers=_login() if own else {})
    body = _answer(request, _TIMEOUT_S)
    return str(body.get("token") or body.get("access_token", ""))


def _answer(request: urllib.request.Request, timeout_s: float) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        body = json.loads(answer.read(_ANSWER_BYTES))
    if not isinstance(body, dict):
        raise ValueError(f"{request.host} answers with no JSON object")
    return body


def _login() -> dict[str, str]:
    """Empty without a login: the registry is then asked anonymously."""
    token = _of_gcloud() or _of_metadata()
    named = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode()
    return {"Authorization": f"Basic {named}"} if token else {}


def _of_gcloud() -> str:
    try:
        return gcloud(("auth", "print-access-token"), timeout_s=20).strip()
    except Unjudged:
        return ""


def _of_metadata() -> str:
    """Of the machine's or the pod's service account."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        return str(_answer(request, _METADATA_TIMEOUT_S).get("access_token", ""))
    except (OSError, ValueError):
        return ""


def _refused(image: str, code: int) -> InputError:
    if code == 404:
        return InputError(
            "no such image", got=image, allowed="an image that was pushed", fix="push it, or correct its name"
        )
    if code in (401, 403):
        fix = "gcloud auth login, with roles/artifactregistry.reader on the repository; or " + FIX
        return InputError("image by tag, and its registry needs a login", got=image, allowed="a login", fix=fix)
    return _silent(image, f"HTTP {code}")


def _silent(image: str, why: object) -> InputError:
    return InputError(
        "image by tag, and its registry gives no digest", got=f"{image}: {why}", allowed="an image by digest", fix=FIX
    )

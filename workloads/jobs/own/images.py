"""Image names: a digest is taken as it is, a role is looked up, a tag is resolved by its registry.

Source: OCI distribution specification, the digest of a manifest by HEAD; Docker Registry token authentication.
"""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from holdfast.contract.errors import InputError, Unjudged
from infra.contract.names import ROLES
from infra.ops.gcloud import run as gcloud
from workloads.manifests.builders.render_context import RenderContext

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BY_DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")
_BY_TAG = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/-]*(:[0-9]{1,5}/[a-z0-9._/-]+)?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LOCAL = ("localhost", "127.0.0.1")
_TIMEOUT_S = 10.0
_FIX = "give NAME@sha256:DIGEST, as `docker buildx imagetools inspect NAME` or `gcloud artifacts docker images describe` prints it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    image: str
    warning: str = ""


def resolve(image: str, context: RenderContext) -> Resolved:
    """The image by digest; InputError where there is none, or nobody answers for it."""
    if _BY_DIGEST.fullmatch(image):
        return Resolved(image=image)
    if image in ROLES:
        return Resolved(image=_of_role(image, context))
    match = _BY_TAG.fullmatch(image)
    if match is None:
        raise InputError(
            "image is no name", got=image, allowed="NAME@sha256:64 hex digits, NAME:TAG, or a role", fix=_FIX
        )
    name, tag = match["name"], match["tag"] or "latest"
    digest = _asked(name, tag)
    warning = f"{image} is a tag, which moves: taken as {digest}, its digest now"
    return Resolved(image=f"{name}@{digest}", warning=warning)


def require(context: RenderContext, *roles: str) -> None:
    """InputError where an image of the environment was not pushed yet."""
    context.require_digests(roles, fix=f"make images ENV={context.env.name}")


def _of_role(role: str, context: RenderContext) -> str:
    require(context, role)
    return context.image(role)


def _asked(name: str, tag: str) -> str:
    host, path = _place(name)
    scheme = "http" if host.partition(":")[0] in _LOCAL else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    try:
        found = _head(url, _basic(host))
    except urllib.error.HTTPError as refused:
        found = _with_token(url, refused)
    except (OSError, ValueError) as error:
        raise _silent(f"{name}:{tag}", error) from error
    if not _DIGEST.fullmatch(found):
        raise _silent(f"{name}:{tag}", f"no digest: {found[:80]!r}")
    return found


def _place(name: str) -> tuple[str, str]:
    """Registry and path; a name without a host is of Docker Hub."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first in _LOCAL):
        return first, rest
    return "registry-1.docker.io", name if rest else f"library/{name}"


def _head(url: str, authorization: str = "") -> str:
    headers = {"Accept": ", ".join(_MANIFESTS)} | ({"Authorization": authorization} if authorization else {})
    request = urllib.request.Request(url, method="HEAD", headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return answer.headers.get("Docker-Content-Digest", "")


def _with_token(url: str, refused: urllib.error.HTTPError) -> str:
    """The registry says where it gives tokens; anybody gets one for a public image."""
    if refused.code == 404:
        raise InputError(
            "no such image", got=url, allowed="an image that was pushed", fix="push it, or correct its name"
        )
    asked = dict(re.findall(r'(\w+)="([^"]*)"', refused.headers.get("WWW-Authenticate", "")))
    realm = asked.pop("realm", "")
    host = urllib.parse.urlsplit(realm).hostname or ""
    if refused.code != 401 or not (realm.startswith("https://") or host in _LOCAL):
        raise _silent(url, f"HTTP {refused.code}") from refused
    try:
        with urllib.request.urlopen(f"{realm}?{urllib.parse.urlencode(asked)}", timeout=_TIMEOUT_S) as answer:
            body = json.loads(answer.read(1_000_000))
        return _head(url, f"Bearer {body.get('token') or body.get('access_token', '')}")
    except (OSError, ValueError) as error:
        raise _silent(url, error) from error


def _basic(host: str) -> str:
    """Artifact Registry takes the token of whoever is logged in; others are asked without a name first."""
    if not host.endswith(".pkg.dev"):
        return ""
    try:
        token = gcloud(("auth", "print-access-token"), timeout_s=20).strip()
    except Unjudged:
        return ""
    return f"Bearer {token}"


def _silent(image: str, why: object) -> InputError:
    return InputError(
        "image by tag, and its registry gives no digest", got=f"{image}: {why}", allowed="an image by digest", fix=_FIX
    )

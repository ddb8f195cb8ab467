"""What a tag means today, asked of its registry: anonymously first, then with a token that it says where to get.

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
from collections.abc import Mapping
from typing import Any

from holdfast.clients.gcloud import run as gcloud
from holdfast.contract.errors import InputError, Unjudged

FIX = "give NAME@sha256:DIGEST, as `docker buildx imagetools inspect NAME` or `gcloud artifacts docker images describe` prints it"
GOOGLES = (".pkg.dev", "gcr.io")
"""Ends of the hosts that take the token of whoever is logged in."""
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


def digest(name: str, tag: str) -> str:
    """`sha256:...`; InputError where there is no such image, or nobody answers for it."""
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
    # A realm elsewhere would be handed the token of whoever is logged in.
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
    """Empty where nobody is logged in: the registry is then asked as anybody."""
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
        return InputError("image by tag, and its registry lets nobody in", got=image, allowed="a login", fix=fix)
    return _silent(image, f"HTTP {code}")


def _silent(image: str, why: object) -> InputError:
    return InputError(
        "image by tag, and its registry gives no digest", got=f"{image}: {why}", allowed="an image by digest", fix=FIX
    )

"""Copy an image of others into the environment's registry, and ask a registry what a tag means today."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast.contract.errors import Unjudged
from workloads.images.builders import run
from workloads.images.pins import checked_digest

_FIX = "install crane (github.com/google/go-containerregistry), skopeo, Docker with buildx, or buildah"


def copy(source: str, target: str, scratch: Path, *, plain_http: bool = False) -> str:
    """The digest under which `target` holds it; all platforms, but for buildah, which takes this machine's."""
    return _tool(_COPIES)(source, target, scratch, plain_http)


def resolve(image: str, scratch: Path, *, plain_http: bool = False) -> str:
    """`sha256:...` of a tag, as its registry answers now."""
    return _tool(_DIGESTS)(image, scratch, plain_http)


def _crane(source: str, target: str, scratch: Path, plain_http: bool) -> str:
    run(["crane", *(["--insecure"] if plain_http else []), "copy", source, target])
    return _crane_digest(target, scratch, plain_http)


def _crane_digest(image: str, scratch: Path, plain_http: bool) -> str:
    return checked_digest(run(["crane", *(["--insecure"] if plain_http else []), "digest", image]), "crane digest")


def _skopeo(source: str, target: str, scratch: Path, plain_http: bool) -> str:
    digest = scratch / "copied.digest"
    tls = ["--dest-tls-verify=false"] if plain_http else []
    run(["skopeo", "copy", "--all", *tls, f"--digestfile={digest}", f"docker://{source}", f"docker://{target}"])
    return checked_digest(digest.read_text(encoding="utf-8"), "skopeo copy --digestfile")


def _skopeo_digest(image: str, scratch: Path, plain_http: bool) -> str:
    tls = ["--tls-verify=false"] if plain_http else []
    return checked_digest(
        run(["skopeo", "inspect", *tls, "--format={{.Digest}}", f"docker://{image}"]), "skopeo inspect"
    )


def _imagetools(source: str, target: str, scratch: Path, plain_http: bool) -> str:
    run(["docker", "buildx", "imagetools", "create", "--tag", target, source])
    return _imagetools_digest(target, scratch, plain_http)


def _imagetools_digest(image: str, scratch: Path, plain_http: bool) -> str:
    found = json.loads(run(["docker", "buildx", "imagetools", "inspect", "--format={{json .Manifest}}", image]))
    return checked_digest(str(found.get("digest", "")), "docker buildx imagetools inspect")


def _buildah(source: str, target: str, scratch: Path, plain_http: bool) -> str:
    digest, tls = scratch / "copied.digest", ["--tls-verify=false"] if plain_http else []
    run(["buildah", "pull", "--policy=always", *tls, source])
    run(["buildah", "push", *tls, f"--digestfile={digest}", source, f"docker://{target}"])
    return checked_digest(digest.read_text(encoding="utf-8"), "buildah push --digestfile")


def _buildah_digest(image: str, scratch: Path, plain_http: bool) -> str:
    run(["buildah", "pull", "--policy=always", *(["--tls-verify=false"] if plain_http else []), image])
    found = json.loads(run(["buildah", "inspect", "--type=image", image]))
    return checked_digest(str(found.get("FromImageDigest", "")), "buildah inspect")


_COPIES = {"crane": _crane, "skopeo": _skopeo, "docker": _imagetools, "buildah": _buildah}
_DIGESTS = {
    "crane": _crane_digest,
    "skopeo": _skopeo_digest,
    "docker": _imagetools_digest,
    "buildah": _buildah_digest,
}


def _tool(tools: dict[str, Callable[..., str]]) -> Callable[..., str]:
    found = next((tool for program, tool in tools.items() if shutil.which(program)), None)
    if found is None:
        raise Unjudged(f"nothing here copies images: {_FIX}")
    return found

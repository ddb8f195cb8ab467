"""Copy an image of others into the environment's registry, and ask a registry what a tag means today."""

import json

from workloads.images.builders import choose, run
from workloads.images.pins import checked_digest


def copy(source: str, target: str, *, plain_http: bool = False) -> str:
    """The digest under which `target` holds it; all platforms, but for buildah, which takes this machine's."""
    if choose("") == "buildx":
        run(["docker", "buildx", "imagetools", "create", "--tag", target, source])
    else:
        tls = _tls(plain_http)
        run(["buildah", "pull", "--policy=always", *tls, source])
        run(["buildah", "push", *tls, source, f"docker://{target}"])
    return resolve(target, plain_http=plain_http)


def resolve(image: str, *, plain_http: bool = False) -> str:
    """`sha256:...` of a tag, as its registry answers now."""
    if choose("") == "buildx":
        ask, key = ["docker", "buildx", "imagetools", "inspect", "--format={{json .Manifest}}", image], "digest"
    else:
        run(["buildah", "pull", "--policy=always", *_tls(plain_http), image])
        ask, key = ["buildah", "inspect", "--type=image", image], "FromImageDigest"
    return checked_digest(str(json.loads(run(ask)).get(key, "")), " ".join(ask))


def _tls(plain_http: bool) -> list[str]:
    return ["--tls-verify=false"] if plain_http else []

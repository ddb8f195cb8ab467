"""Copies third-party images into the environment's registry, and resolves tags to digests."""

import json
import shutil
from dataclasses import dataclass

from holdfast.support.errors import Unjudged
from workloads.images.builders import run
from workloads.images.pins import require_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """Command lines of a program; a word that begins with `?` is for a registry without TLS."""

    copies: tuple[str, ...]
    asks: tuple[str, ...]
    """Commands; the last one prints the digest of {target}, or JSON that has it under `key`."""
    key: str = ""


TOOLS = {
    "crane": Tool(
        copies=("crane ?--insecure copy {source} {target}",),
        asks=("crane ?--insecure digest {target}",),
    ),
    "skopeo": Tool(
        copies=("skopeo copy --all ?--dest-tls-verify=false docker://{source} docker://{target}",),
        asks=("skopeo inspect ?--tls-verify=false --format={{{{.Digest}}}} docker://{target}",),
    ),
    "docker": Tool(
        copies=("docker buildx imagetools create --tag {target} {source}",),
        asks=("docker buildx imagetools inspect --format={{{{json_.Manifest}}}} {target}",),
        key="digest",
    ),
    "buildah": Tool(
        copies=(
            "buildah pull --policy=always ?--tls-verify=false {source}",
            "buildah push ?--tls-verify=false {source} docker://{target}",
        ),
        asks=(
            "buildah pull --policy=always ?--tls-verify=false {target}",
            "buildah inspect --type=image {target}",
        ),
        key="FromImageDigest",
    ),
}


def copy(source: str, target: str, *, plain_http: bool = False) -> str:
    """Copies an image. Returns its digest in the registry of `target`.

    Copies all platforms, except with buildah, which copies this machine's.
    """
    for line in _choose_tool().copies:
        _run(line, plain_http, source=source, target=target)
    return resolve(target, plain_http=plain_http)


def resolve(image: str, *, plain_http: bool = False) -> str:
    """Returns `sha256:...` of a tag, as its registry answers now."""
    tool = _choose_tool()
    answer = ""
    for line in tool.asks:
        answer = _run(line, plain_http, target=image)
    if tool.key:
        answer = str(json.loads(answer).get(tool.key, ""))
    return require_digest(answer, tool.asks[-1])


def _run(line: str, plain_http: bool, **values: str) -> str:
    words: list[str] = []
    for word in line.split():
        if plain_http or not word.startswith("?"):
            word = word.removeprefix("?").format(**values)
            words.append(word.replace("json_", "json "))
    return run(words)


def _choose_tool() -> Tool:
    for program, tool in TOOLS.items():
        if shutil.which(program):
            return tool
    raise Unjudged(
        "no image copier found: install crane (github.com/google/go-containerregistry), skopeo,"
        " Docker with buildx, or buildah"
    )

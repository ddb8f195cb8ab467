"""Builds and pushes an image: with BuildKit through Docker, or with Buildah without a daemon."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError, Unjudged
from workloads.images import pins
from workloads.images.pins import require_digest

DOCKERFILE = "workloads/images/Dockerfile"
# Revision of an image from a tree without git, such as a source archive.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image to build."""

    role: str
    context: Path
    """The repository's root, or a copy of it."""
    base: str
    target: str
    """REGISTRY/role:tag."""
    arguments: Mapping[str, str]
    """Arguments of the Dockerfile in addition to BASE."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """id -> file that the build sees and the image does not contain."""
    plain_http: bool = False
    """The registry is on this host, without TLS."""
    scratch: Path
    """Folder for files of the tools."""

    @property
    def epoch(self) -> str:
        return self.arguments.get("SOURCE_DATE_EPOCH", "0")


def make_build(role: str, context: Path, registry: str, **fields: Any) -> Build:
    """Makes the build of a role; `fields` are the remaining fields of Build.

    Revision, lock and time of the commit become labels and arguments.
    """
    revision = _git(context, "rev-parse", "HEAD") or UNKNOWN
    dirty = "-dirty" if _git(context, "status", "--porcelain", "--untracked-files=no") else ""
    arguments = {
        "GROUP": pins.ROLES[role].group,
        "WHEEL": pins.find_wheel(context / pins.VENDOR).name,
        "COMMAND": pins.ROLES[role].command,
        "REVISION": revision + dirty,
        "LOCK": sha256(pins.find_lock(context, role).read_bytes()).hexdigest(),
        "SOURCE_DATE_EPOCH": _git(context, "log", "-1", "--format=%ct") or "0",
    }
    target = f"{registry}/{role}:{revision[:12]}{dirty}"
    return Build(
        role=role,
        context=context,
        target=target,
        arguments=arguments,
        **fields,
    )


def _git(folder: Path, *words: str) -> str:
    process = subprocess.run(
        ["git", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip() if process.returncode == 0 else ""


def buildah(build: Build) -> str:
    """Builds with Buildah. Returns the digest in the registry."""
    tls = ["--tls-verify=false"] if build.plain_http else []
    words = [
        "buildah",
        "build",
        "--format=oci",
        "--layers=false",
        f"--timestamp={build.epoch}",
        *tls,
    ]
    words += _common_options(build)
    words += ["--tag", build.target, str(build.context)]
    run(words)
    digest = build.scratch / f"{build.role}.digest"
    words = [
        "buildah",
        "push",
        *tls,
        f"--digestfile={digest}",
        build.target,
        f"docker://{build.target}",
    ]
    run(words)
    text = digest.read_text(encoding="utf-8")
    return require_digest(text, "buildah push --digestfile wrote it")


def buildx(build: Build) -> str:
    """Builds with BuildKit. Returns the digest in the registry.

    BuildKit's own provenance and SBOM go to the registry with the image.
    """
    path = build.scratch / f"{build.role}.metadata.json"
    words = [
        "docker",
        "buildx",
        "build",
        "--provenance=mode=max",
        "--sbom=true",
        f"--metadata-file={path}",
    ]
    words += _common_options(build)
    words += ["--tag", build.target]
    words += ["--output=type=registry,rewrite-timestamp=true", str(build.context)]
    run(words)
    metadata = json.loads(path.read_text(encoding="utf-8"))
    digest = str(metadata.get("containerimage.digest", ""))
    return require_digest(digest, "docker buildx --metadata-file wrote it")


BUILDERS = {"buildx": buildx, "buildah": buildah}
# A docker client without its daemon answers `version` of the plugin, so this asks the daemon.
_PROGRAMS = {
    "buildx": ["docker", "info"],
    "buildah": ["buildah", "version"],
}


def choose(name: str) -> str:
    """Returns the named builder, or the first that works here.

    Raises InputError for an unknown name, Unjudged where none works.
    """
    if name in BUILDERS:
        return name
    if name:
        raise InputError(
            "builder",
            got=name,
            allowed=", ".join(BUILDERS),
            fix="name a builder, or none",
        )
    for builder, words in _PROGRAMS.items():
        if _works(words):
            return builder
    raise Unjudged("no image builder found: install Docker with buildx, or buildah")


def _works(words: Sequence[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    process = subprocess.run(words, capture_output=True, check=False, timeout=60)
    return process.returncode == 0


def _common_options(build: Build) -> list[str]:
    words = ["--file", str(build.context / DOCKERFILE)]
    for key, value in {"BASE": build.base, **build.arguments}.items():
        words += ["--build-arg", f"{key}={value}"]
    for name, path in build.secrets.items():
        words += ["--secret", f"id={name},src={path}"]
    return words


def run(words: Sequence[str], folder: Path | None = None) -> str:
    """Runs a tool and returns its standard output. Raises Unjudged if it fails.

    The tool's own messages go to this process's standard error as they come.
    """
    if shutil.which(words[0]) is None:
        raise Unjudged(f"{words[0]} is not on PATH")
    process = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode:
        command = " ".join(words[:3])
        raise Unjudged(f"{command} ended with {process.returncode}; its own message is above")
    return process.stdout

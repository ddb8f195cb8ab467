"""How an image is built and pushed: BuildKit through Docker, or Buildah without a daemon."""

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
from workloads.images.pins import checked_digest

DOCKERFILE = "workloads/images/Dockerfile"
# Of a tree without git, as a source archive: the revision of the image is then unknown.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image to make."""

    role: str
    context: Path
    """The repository's root, or a copy of it."""
    base: str
    target: str
    """REGISTRY/role:tag."""
    arguments: Mapping[str, str]
    """Of the Dockerfile, in addition to BASE."""
    secrets: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """id -> file that the build sees and the image does not hold."""
    plain_http: bool = False
    """A registry without TLS, on this host."""
    scratch: Path
    """For what the tools write."""

    @property
    def epoch(self) -> str:
        return self.arguments.get("SOURCE_DATE_EPOCH", "0")


def build_of(role: str, context: Path, registry: str, **more: Any) -> Build:
    """Revision, lock and time of the commit become labels and arguments. `more`: the other fields."""
    revision = _git(context, "rev-parse", "HEAD") or UNKNOWN
    dirty = "-dirty" if _git(context, "status", "--porcelain", "--untracked-files=no") else ""
    arguments = {
        "GROUP": pins.ROLES[role].group,
        "WHEEL": pins.wheel_in(context / pins.VENDOR).name,
        "COMMAND": pins.ROLES[role].command,
        "REVISION": revision + dirty,
        "LOCK": sha256(pins.lock_of(context, role).read_bytes()).hexdigest(),
        "SOURCE_DATE_EPOCH": _git(context, "log", "-1", "--format=%ct") or "0",
    }
    target = f"{registry}/{role}:{revision[:12]}{dirty}"
    return Build(
        role=role,
        context=context,
        target=target,
        arguments=arguments,
        **more,
    )


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def buildah(build: Build) -> str:
    """The digest that the registry holds."""
    tls = ["--tls-verify=false"] if build.plain_http else []
    words = [
        "buildah",
        "build",
        "--format=oci",
        "--layers=false",
        f"--timestamp={build.epoch}",
        *tls,
    ]
    run(
        [
            *words,
            *_common(build),
            "--tag",
            build.target,
            str(build.context),
        ]
    )
    digest = build.scratch / f"{build.role}.digest"
    run(
        [
            "buildah",
            "push",
            *tls,
            f"--digestfile={digest}",
            build.target,
            f"docker://{build.target}",
        ]
    )
    return checked_digest(digest.read_text(encoding="utf-8"), "buildah push --digestfile wrote it")


def buildx(build: Build) -> str:
    """BuildKit's own provenance and SBOM go to the registry with the image."""
    metadata = build.scratch / f"{build.role}.metadata.json"
    words = [
        "docker",
        "buildx",
        "build",
        "--provenance=mode=max",
        "--sbom=true",
        f"--metadata-file={metadata}",
    ]
    output = "--output=type=registry,rewrite-timestamp=true"
    run(
        [
            *words,
            *_common(build),
            "--tag",
            build.target,
            output,
            str(build.context),
        ]
    )
    found = json.loads(metadata.read_text(encoding="utf-8"))
    return checked_digest(
        str(found.get("containerimage.digest", "")), "docker buildx --metadata-file wrote it"
    )


BUILDERS = {"buildx": buildx, "buildah": buildah}
# A docker client without its daemon answers `version` of the plugin, so this asks the daemon.
_PROGRAMS = {
    "buildx": ["docker", "info"],
    "buildah": ["buildah", "version"],
}


def choose(asked: str) -> str:
    """The named one, or the first that works here."""
    if asked in BUILDERS:
        return asked
    if asked:
        raise InputError(
            "builder",
            got=asked,
            allowed=", ".join(BUILDERS),
            fix="name a builder, or none",
        )
    found = next((name for name, words in _PROGRAMS.items() if _works(words)), None)
    if found is None:
        raise Unjudged("nothing here builds images: install Docker with buildx, or buildah")
    return found


def _works(words: Sequence[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    return (
        subprocess.run(
            words,
            capture_output=True,
            check=False,
            timeout=60,
        ).returncode
        == 0
    )


def _common(build: Build) -> list[str]:
    words = ["--file", str(build.context / DOCKERFILE)]
    for key, value in {"BASE": build.base, **build.arguments}.items():
        words += ["--build-arg", f"{key}={value}"]
    for name, path in build.secrets.items():
        words += ["--secret", f"id={name},src={path}"]
    return words


def run(words: Sequence[str], folder: Path | None = None) -> str:
    """Standard output. The tool's own messages go to this process's standard error as they come."""
    if shutil.which(words[0]) is None:
        raise Unjudged(f"{words[0]} is not on PATH")
    done = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unjudged(
            f"{' '.join(words[:3])} ended with {done.returncode}; its own message is above"
        )
    return done.stdout

"""How an image is built and pushed: BuildKit through Docker, Buildah without a daemon, or Cloud Build. Commands as data."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged
from workloads.images.pins import checked_digest

CLOUD_BUILD = "workloads/images/cloudbuild.yaml"
DOCKERFILE = "workloads/images/Dockerfile"


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
    project: str = ""
    """Where Cloud Build runs."""
    plain_http: bool = False
    """A registry without TLS, on this host."""
    scratch: Path
    """For what the tools write."""

    @property
    def epoch(self) -> str:
        return self.arguments.get("SOURCE_DATE_EPOCH", "0")

    def build_arguments(self) -> dict[str, str]:
        return {"BASE": self.base, **self.arguments}


def buildah(build: Build) -> str:
    """The digest that the registry holds."""
    tls = ["--tls-verify=false"] if build.plain_http else []
    words = ["buildah", "build", "--format=oci", "--layers=false", f"--timestamp={build.epoch}", *tls]
    run([*words, *_common(build), "--tag", build.target, str(build.context)])
    digest = build.scratch / f"{build.role}.digest"
    run(["buildah", "push", *tls, f"--digestfile={digest}", build.target, f"docker://{build.target}"])
    return checked_digest(digest.read_text(encoding="utf-8"), "buildah push --digestfile wrote it")


def buildx(build: Build) -> str:
    """BuildKit's own provenance and SBOM go to the registry with the image."""
    metadata = build.scratch / f"{build.role}.metadata.json"
    words = ["docker", "buildx", "build", "--provenance=mode=max", "--sbom=true", f"--metadata-file={metadata}"]
    output = "--output=type=registry,rewrite-timestamp=true"
    run([*words, *_common(build), "--tag", build.target, output, str(build.context)])
    found = json.loads(metadata.read_text(encoding="utf-8"))
    return checked_digest(str(found.get("containerimage.digest", "")), "docker buildx --metadata-file wrote it")


def cloud_build(build: Build) -> str:
    """On Google's side, from the shipped configuration; it attests where and from what."""
    if build.secrets:
        raise InputError(
            "files for the build", got=", ".join(build.secrets), allowed="none with Cloud Build", fix="leave them out"
        )
    values = {f"_{key}": value for key, value in build.build_arguments().items()}
    listed = ",".join(f"{key}={value}" for key, value in {"_TARGET": build.target, **values}.items())
    words = ["gcloud", "builds", "submit", f"--config={CLOUD_BUILD}", f"--substitutions={listed}"]
    answer = json.loads(run([*words, f"--project={build.project}", "--format=json", "--quiet", "."], build.context))
    images = answer.get("results", {}).get("images", [])
    return checked_digest(str(images[0]["digest"]) if images else "", "gcloud builds submit answered without one")


BUILDERS = {"buildx": buildx, "buildah": buildah, "cloud-build": cloud_build}
_PROGRAMS = {
    "buildx": ["docker", "buildx", "version"],
    "buildah": ["buildah", "version"],
    "cloud-build": ["gcloud", "version"],
}


def choose(asked: str) -> str:
    """`asked`, or the first that works here: builds on this machine before those that are paid for."""
    if asked in BUILDERS:
        return asked
    if asked:
        raise InputError("builder", got=asked, allowed=", ".join(BUILDERS), fix="name a builder, or none")
    found = next((name for name, words in _PROGRAMS.items() if _works(words)), None)
    if found is None:
        raise Unjudged("nothing here builds images: install Docker with buildx, buildah, or gcloud for Cloud Build")
    return found


def _works(words: Sequence[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    # A docker client without its daemon answers `version` of the plugin, so the daemon is asked.
    asked = ["docker", "info"] if words[0] == "docker" else list(words)
    return subprocess.run(asked, capture_output=True, check=False, timeout=60).returncode == 0


def _common(build: Build) -> list[str]:
    words = ["--file", str(build.context / DOCKERFILE)]
    for key, value in build.build_arguments().items():
        words += ["--build-arg", f"{key}={value}"]
    for name, path in build.secrets.items():
        words += ["--secret", f"id={name},src={path}"]
    return words


def run(words: Sequence[str], folder: Path | None = None) -> str:
    """Standard output. The tool's own messages go to this process's standard error as they come."""
    if shutil.which(words[0]) is None:
        raise Unjudged(f"{words[0]} is not on PATH")
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Unjudged(f"{' '.join(words[:3])} ended with {done.returncode}; its own message is above")
    return done.stdout

"""`python -m infra.ops.provider_lock` writes checksums of the provider for every platform of a
team.

They are the registry's, so the command needs the registry. A provider that `make provider` builds
has other checksums, and a lock file of its own in the mirror. The composition root copies the lock
of the source in use to each stack, so that a changed provider fails `init`
(infra/decisions/0159).
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from holdfast.support.errors import Unjudged, run_cli
from infra.contract.versions import GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION
from infra.ops import engine
from infra.ops.synth import ROOT

# Platforms of a team: a lock file without one of them fails `init` there.
PLATFORMS = ("linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64")
LOCK = ROOT / "infra" / "provider.lock.hcl"


def find() -> Path | None:
    """Return the lock file of the source that provides the provider; None if it has none."""
    mirror = engine.mirror()
    if mirror and (mirror / LOCK.name).exists():
        return mirror / LOCK.name
    return LOCK if LOCK.exists() else None


def locks_the_registry() -> bool:
    """Return whether the lock has the provider of this engine's registry."""
    head = f'"{engine.registry()}/{GOOGLE_PROVIDER_SOURCE}"'
    return LOCK.exists() and head in LOCK.read_text()


def write_for_mirror(mirror: Path) -> Path:
    """Write the lock file of the unpacked packages in a mirror, for both engines."""
    versions = mirror / engine.REGISTRIES[0] / GOOGLE_PROVIDER_SOURCE / GOOGLE_PROVIDER_VERSION
    hashes = [f'    "{checksum(package)}",' for package in sorted(versions.iterdir())]
    blocks = ["# Written by `make provider`, for the packages that are beside it."]
    for registry in engine.REGISTRIES:
        blocks.append(f'provider "{registry}/{GOOGLE_PROVIDER_SOURCE}" {{')
        blocks.append(f'  version = "{GOOGLE_PROVIDER_VERSION}"')
        blocks += ["  hashes = [", *hashes, "  ]", "}"]
    target = mirror / LOCK.name
    fresh = target.with_suffix(f".{os.getpid()}")
    fresh.write_text("\n".join(blocks) + "\n")
    # Another process may read the file at this moment.
    fresh.replace(target)
    return target


def checksum(package: Path) -> str:
    """Return the checksum of an unpacked package as engines write it: Go's `dirhash`, scheme h1."""
    lines = []
    for file in sorted(package.rglob("*")):
        if not file.is_file():
            continue
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        lines.append(f"{digest}  {file.relative_to(package).as_posix()}\n")
    total = hashlib.sha256("".join(lines).encode()).digest()
    return f"h1:{base64.b64encode(total).decode()}"


def misfits(text: str) -> list[str]:
    """Return how a lock file differs from the pins: the version, and a checksum for each
    platform.
    """
    block = re.search(rf'provider "[^"]+/{GOOGLE_PROVIDER_SOURCE}" \{{(.*?)\n\}}', text, re.DOTALL)
    if not block:
        return [f"no {GOOGLE_PROVIDER_SOURCE}"]
    defects = []
    match = re.search(r'version\s*=\s*"([^"]+)"', block[1])
    version = match[1] if match else ""
    if version != GOOGLE_PROVIDER_VERSION:
        defects.append(f"version {version}, pinned {GOOGLE_PROVIDER_VERSION}")
    hashes = len(set(re.findall(r'"h1:[^"]+"', block[1])))
    if hashes < len(PLATFORMS):
        defects.append(f"{hashes} of {len(PLATFORMS)} platforms")
    return defects


def write(target: Path = LOCK) -> Path:
    """Write the lock file with the registry's checksums. Raises Unjudged without the registry."""
    requirement = (
        f'google = {{ source = "{GOOGLE_PROVIDER_SOURCE}", version = "{GOOGLE_PROVIDER_VERSION}" }}'
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.tf").write_text(
            f"terraform {{\n  required_providers {{\n    {requirement}\n  }}\n}}\n"
        )
        try:
            # These variables name no mirror.
            variables = os.environ | engine.QUIET
            registry = engine.Engine(command=engine.command(), environment=variables)
            registry.run(folder, "providers", "lock", *(f"-platform={p}" for p in PLATFORMS))
        except engine.EngineFailed as error:
            raise Unjudged(f"the registry must be reachable for this\n{error}") from error
        shutil.copy(folder / ".terraform.lock.hcl", target)
    return target


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(lambda: print(write().relative_to(ROOT)))

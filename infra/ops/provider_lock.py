"""`python -m infra.ops.provider_lock` writes checksums of the provider for every platform of a
team.

It needs the registry: a provider from a mirror has other checksums. The composition root copies the
file to each stack that is deployed, so that a changed provider fails `init`.
"""

import argparse
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

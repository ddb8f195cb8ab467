"""`python -m infra.ops.provider_lock`: checksums of the provider for every platform of a team.

Needs the registry: a provider from a mirror has checksums of its own. The composition root puts the
file next to each stack that is deployed, so that a changed provider fails `init`.
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

# A lock file of one platform fails `init` for the colleague on another.
PLATFORMS = ("linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64")
LOCK = ROOT / "infra" / "provider.lock.hcl"


def misfits(text: str) -> list[str]:
    """What in a lock file is not as the pin wants it: the version, and a checksum for each
    platform.
    """
    found = re.search(rf'provider "[^"]+/{GOOGLE_PROVIDER_SOURCE}" \{{(.*?)\n\}}', text, re.DOTALL)
    if not found:
        return [f"no {GOOGLE_PROVIDER_SOURCE}"]
    version = re.search(r'version\s*=\s*"([^"]+)"', found[1])
    held = version[1] if version else ""
    hashes = len(set(re.findall(r'"h1:[^"]+"', found[1])))
    if held == GOOGLE_PROVIDER_VERSION:
        wrong = []
    else:
        wrong = [f"version {held}, pinned {GOOGLE_PROVIDER_VERSION}"]
    return wrong + ([] if hashes >= len(PLATFORMS) else [f"{hashes} of {len(PLATFORMS)} platforms"])


def write(target: Path = LOCK) -> Path:
    requirement = (
        f'google = {{ source = "{GOOGLE_PROVIDER_SOURCE}", version = "{GOOGLE_PROVIDER_VERSION}" }}'
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.tf").write_text(
            f"terraform {{\n  required_providers {{\n    {requirement}\n  }}\n}}\n"
        )
        try:
            # no mirror
            registry = engine.Engine(
                command=engine.command(), environment=os.environ | engine.QUIET
            )
            registry.run(folder, "providers", "lock", *(f"-platform={p}" for p in PLATFORMS))
        except engine.EngineFailed as error:
            raise Unjudged(f"the registry must be reachable for this\n{error}") from error
        shutil.copy(folder / ".terraform.lock.hcl", target)
    return target


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(lambda: print(write().relative_to(ROOT)))

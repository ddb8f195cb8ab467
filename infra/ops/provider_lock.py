"""Checksums of the provider for every platform of a team.

Needs the registry: a provider from a mirror has checksums of its own. The composition root lays the file beside
each stack that is deployed, so that a changed provider fails `init`.
"""

import shutil
import tempfile
from pathlib import Path

from holdfast.contract.errors import Unjudged
from infra.contract.versions import GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION
from infra.ops import engine
from infra.ops.synth import ROOT

# A lock file of one platform fails `init` for the colleague on another.
PLATFORMS = ("linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64")
LOCK = ROOT / "infra" / "provider.lock.hcl"


def write(target: Path = LOCK) -> Path:
    requirement = f'google = {{ source = "{GOOGLE_PROVIDER_SOURCE}", version = "{GOOGLE_PROVIDER_VERSION}" }}'
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.tf").write_text(f"terraform {{\n  required_providers {{\n    {requirement}\n  }}\n}}\n")
        try:
            engine.direct().run(folder, "providers", "lock", *(f"-platform={p}" for p in PLATFORMS))
        except engine.EngineFailed as error:
            raise Unjudged(f"the registry must be reachable for this\n{error}") from error
        shutil.copy(folder / ".terraform.lock.hcl", target)
    return target

"""From an order to the build of each role: revision, lock and time of the commit become labels and arguments."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads.images import attest, pins
from workloads.images.builders import Build

# Of a tree without git, as a source archive: the revision of the image is then unknown.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Order:
    context: Path
    base: str
    registry: str
    project: str
    plain_http: bool
    secrets: Mapping[str, Path]
    scratch: Path


def build_for(order: Order, role: str) -> Build:
    revision = _git(order.context, "rev-parse", "HEAD") or UNKNOWN
    if _git(order.context, "status", "--porcelain", "--untracked-files=no"):
        revision += "-dirty"
    return Build(
        role=role,
        context=order.context,
        base=order.base,
        target=f"{order.registry}/{role}:{revision[:12]}{'-dirty' if revision.endswith('-dirty') else ''}",
        arguments={
            "GROUP": pins.ROLES[role].group,
            "WHEEL": pins.wheel(order.context).name,
            "COMMAND": pins.ROLES[role].command,
            "REVISION": revision,
            "LOCK": attest.file_digest(attest.lock_of(order.context, role)),
            "SOURCE_DATE_EPOCH": _git(order.context, "log", "-1", "--format=%ct") or "0",
        },
        secrets=order.secrets,
        project=order.project,
        plain_http=order.plain_http,
        scratch=order.scratch,
    )


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""

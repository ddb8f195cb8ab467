"""Which images an environment needs, and what pins them: base, lock, wheel, and the digests of what
was pushed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError
from infra.contract.versions import DCGM_EXPORTER_VERSION, ENVOY_VERSION, VLLM_VERSION
from workloads.operators.catalogue import OPERATORS

FOLDER = Path(__file__).parent
BASE = FOLDER / "base.json"
DIGESTS = FOLDER / "digests.json"
VENDOR = "vendor"
# Made by others and copied as they are: one registry is then all that nodes and Binary
# Authorization have to trust.
COPIED = {
    "cloud-sql-proxy": "gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.23.0",
    "dcgm-exporter": f"nvcr.io/nvidia/k8s/dcgm-exporter:{DCGM_EXPORTER_VERSION}-distroless",
    "envoy": f"docker.io/envoyproxy/envoy:distroless-v{ENVOY_VERSION}",
    "vllm": f"docker.io/vllm/vllm-openai:v{VLLM_VERSION}",
    **{operator.name: operator.release for operator in OPERATORS},
}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """One image of this platform."""

    group: str
    """Its lock is requirements/GROUP.txt."""
    command: str
    """Of `holdfast`: what its pods run."""


ROLES = {
    "batch": Role(group="serve", command="batch run"),
    "exporter": Role(group="monitor", command="export"),
    "mover": Role(group="monitor", command="move"),
    "server": Role(group="serve", command="serve run"),
    "trainer": Role(group="train", command="train run"),
}


def lock_of(context: Path, role: str) -> Path:
    """The one lock that the role's image installs."""
    return context / f"requirements/{ROLES[role].group}.txt"


def wheel_in(folder: Path) -> Path:
    """The one wheel of the library that images install. InputError for none, or several."""
    found = sorted(folder.glob("holdfast_gke-*.whl"))
    if len(found) != 1:
        got = ", ".join(path.name for path in found) or f"none in {folder}"
        fix = (
            "make images, which builds it; or .venv/bin/python .ci/wheel.py --wheel-only --out-dir"
            f" {VENDOR}"
        )
        raise InputError(
            "the wheel of the library",
            got=got,
            allowed="one holdfast_gke-VERSION-py3-none-any.whl",
            fix=fix,
        )
    return found[0]


def chosen(asked: list[str], known: list[str], what: str) -> list[str]:
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise InputError(
            what,
            got=", ".join(unknown),
            allowed=", ".join(known),
            fix="name some of these, or none for all",
        )
    return asked or known


def checked_digest(text: str, source: str) -> str:
    """`sha256:...` of what a tool printed."""
    if not _DIGEST.fullmatch(text.strip()):
        raise InputError(
            "digest of an image",
            got=text.strip() or "nothing",
            allowed="sha256: and 64 hex digits",
            fix=source,
        )
    return text.strip()


def base(given: str = "") -> str:
    """`given`, IMAGE@sha256:..., or the recorded one. InputError for a tag alone: it moves."""
    image = given or "{image}@{digest}".format_map(json.loads(BASE.read_text(encoding="utf-8")))
    if not _DIGEST.fullmatch(image.partition("@")[2]):
        allowed = "IMAGE@sha256:... of a Debian image with Python 3.11 to 3.13 as `python`"
        fix = (
            "make images-base, which resolves and records the tag's digest, or --base"
            " IMAGE@sha256:..."
        )
        raise InputError(
            "base image",
            got=image,
            allowed=allowed,
            fix=fix,
        )
    return image


def record_base(image: str, digest: str) -> None:
    _write(BASE, {"image": image, "digest": digest})


def record(environment: str, found: Mapping[str, str], path: Path = DIGESTS) -> None:
    """Role -> `sha256:...` into the file that `render` reads; other roles and environments stay as
    they are.
    """
    known: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    mine = known.get(environment, {}) | {
        role: digest.removeprefix("sha256:") for role, digest in found.items()
    }
    _write(path, dict(sorted((known | {environment: dict(sorted(mine.items()))}).items())))


def _write(path: Path, content: Any) -> None:
    """Whole or not at all: a half file would stop every render."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)

"""Lists the images that an environment needs, and pins them.

Pins are the base image, the lock, the wheel, and the digests of pushed images.
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
# Third-party images, copied as they are: then nodes and Binary Authorization trust one registry
# only.
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
    """Name of its lock, requirements/GROUP.txt."""
    command: str
    """Command of `holdfast` that its pods run."""


ROLES = {
    "batch": Role(group="serve", command="batch run"),
    "exporter": Role(group="monitor", command="export"),
    "mover": Role(group="monitor", command="move"),
    "server": Role(group="serve", command="serve run"),
    "trainer": Role(group="train", command="train run"),
}


def find_lock(context: Path, role: str) -> Path:
    """Returns the one lock that the role's image installs."""
    return context / f"requirements/{ROLES[role].group}.txt"


def find_wheel(folder: Path) -> Path:
    """Returns the one wheel of the library that images install.

    Raises InputError for none, or several.
    """
    wheels = sorted(folder.glob("holdfast_gke-*.whl"))
    if len(wheels) != 1:
        raise InputError(
            "the wheel of the library",
            got=", ".join(path.name for path in wheels) or f"none in {folder}",
            allowed="one holdfast_gke-VERSION-py3-none-any.whl",
            fix=(
                "make images, which builds it; or .venv/bin/python .ci/wheel.py --wheel-only"
                f" --out-dir {VENDOR}"
            ),
        )
    return wheels[0]


def choose(names: list[str], all_names: list[str], kind: str) -> list[str]:
    """Returns `names`, or all where none is given. Raises InputError for an unknown name."""
    unknown_names = sorted(set(names) - set(all_names))
    if unknown_names:
        raise InputError(
            kind,
            got=", ".join(unknown_names),
            allowed=", ".join(all_names),
            fix="name some of these, or none for all",
        )
    return names or all_names


def require_digest(text: str, source: str) -> str:
    """Returns `sha256:...` out of what a tool printed. Raises InputError for anything else."""
    digest = text.strip()
    if not _DIGEST.fullmatch(digest):
        raise InputError(
            "digest of an image",
            got=digest or "nothing",
            allowed="sha256: and 64 hex digits",
            fix=source,
        )
    return digest


def base(image: str = "") -> str:
    """Returns `image`, which is IMAGE@sha256:..., or the recorded base image.

    Raises InputError for a tag alone, since tags move.
    """
    if not image:
        pin = json.loads(BASE.read_text(encoding="utf-8"))
        image = f"{pin['image']}@{pin['digest']}"
    if not _DIGEST.fullmatch(image.partition("@")[2]):
        raise InputError(
            "base image",
            got=image,
            allowed="IMAGE@sha256:... of a Debian image with Python 3.11 to 3.13 as `python`",
            fix=(
                "make images-base, which resolves and records the tag's digest, or --base"
                " IMAGE@sha256:..."
            ),
        )
    return image


def record_base(image: str, digest: str) -> None:
    _write(BASE, {"image": image, "digest": digest})


def record(environment: str, digests: Mapping[str, str], path: Path = DIGESTS) -> None:
    """Writes digests, role -> `sha256:...`, into the file that `render` reads.

    Other roles and environments stay as they are.
    """
    pins: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    role_pins = pins.get(environment, {})
    for role, digest in digests.items():
        role_pins[role] = digest.removeprefix("sha256:")
    pins[environment] = dict(sorted(role_pins.items()))
    _write(path, dict(sorted(pins.items())))


def _write(path: Path, content: Any) -> None:
    """Writes the whole file or nothing: half a file would stop every render."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)

"""What an image holds and where it came from: CycloneDX from lock and wheel, and SLSA provenance, for each digest.

Both are written for a signer: `cosign attest --type cyclonedx --predicate FILE IMAGE@DIGEST`.
"""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from workloads.images import pins
from workloads.images.builders import DOCKERFILE, Build

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def lock_of(context: Path, role: str) -> Path:
    """The one lock that the role's image installs."""
    return context / f"requirements/{pins.ROLES[role].group}.txt"


def file_digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def components(lock: str) -> list[dict[str, Any]]:
    """Packages of a lock with every hash that it accepts: one of them is what was installed."""
    found: list[dict[str, Any]] = []
    starts = list(_PIN.finditer(lock))
    ends = [*(match.start() for match in starts[1:]), len(lock)]
    for match, end in zip(starts, ends, strict=False):
        name, version = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]
        hashes = _HASH.findall(lock, match.end(), end)
        found.append(
            {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "hashes": [{"alg": "SHA-256", "content": value} for value in hashes],
            }
        )
    return found


def sbom(build: Build, digest: str) -> dict[str, Any]:
    lock = lock_of(build.context, build.role).read_text(encoding="utf-8")
    image = {"type": "container", "name": build.target.rpartition(":")[0], "version": digest}
    base = {"type": "container", "name": build.base.partition("@")[0], "version": build.base.partition("@")[2]}
    wheel = build.context / pins.VENDOR / build.arguments["WHEEL"]
    name, version = wheel.name.split("-")[:2]
    content = {"alg": "SHA-256", "content": file_digest(wheel)}
    library = {"type": "library", "name": name, "version": version, "hashes": [content]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": [base, library, *components(lock)],
    }


def provenance(build: Build, digest: str, builder: str) -> dict[str, Any]:
    name, _, base_digest = build.base.partition("@sha256:")
    files = (lock_of(build.context, build.role), build.context / pins.VENDOR / build.arguments["WHEEL"])
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": build.target, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"https://holdfast.dev/images/{builder}/v1",
                "externalParameters": {"dockerfile": DOCKERFILE, "arguments": build.build_arguments()},
                "resolvedDependencies": [
                    {"uri": name, "digest": {"sha256": base_digest}},
                    *(
                        {"uri": path.relative_to(build.context).as_posix(), "digest": {"sha256": file_digest(path)}}
                        for path in files
                    ),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def write(build: Build, digest: str, builder: str, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    bodies = {"sbom.cdx": sbom(build, digest), "provenance": provenance(build, digest, builder)}
    paths = {folder / f"{build.role}.{kind}.json": body for kind, body in bodies.items()}
    for path, body in paths.items():
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return list(paths)

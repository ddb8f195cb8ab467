"""What an image holds and where it came from: CycloneDX from the lock, and SLSA provenance, beside each digest.

Both are written for whoever signs: `cosign attest --type cyclonedx --predicate FILE IMAGE@DIGEST`.
"""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from workloads.images.builders import Build

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_INSTALLS = re.compile(r"^COPY (requirements/\w+\.txt) ", re.MULTILINE)


def lock_of(context: Path, role: str) -> Path:
    """The one lock that the role's Dockerfile installs."""
    (path,) = _INSTALLS.findall((context / f"workloads/images/{role}.Dockerfile").read_text(encoding="utf-8"))
    return context / path


def lock_digest(lock: Path) -> str:
    return sha256(lock.read_bytes()).hexdigest()


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
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": [base, *components(lock)],
    }


def provenance(build: Build, digest: str, builder: str) -> dict[str, Any]:
    name, _, base_digest = build.base.partition("@sha256:")
    lock = lock_of(build.context, build.role)
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": build.target, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"https://holdfast.dev/images/{builder}/v1",
                "externalParameters": {"dockerfile": build.dockerfile, "arguments": build.build_arguments()},
                "resolvedDependencies": [
                    {"uri": name, "digest": {"sha256": base_digest}},
                    {"uri": lock.relative_to(build.context).as_posix(), "digest": {"sha256": lock_digest(lock)}},
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

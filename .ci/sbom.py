"""Bills of materials of the locks that images and the platform install, as CycloneDX 1.5."""

import re
from collections.abc import Iterator
from typing import Any

LIBRARY = "holdfast-gke"
_ENTRY = re.compile(
    r"^([A-Za-z0-9._-]+)==([^\s;]+)(?: ; ([^\\\n]+?))?(?: \\)?\n((?:[ \t]+--hash=\S+(?: \\)?\n?)*)",
    re.MULTILINE,
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def make_bill(lock: str, version: str) -> dict[str, Any]:
    """Describe an environment with the library of this version and what this lock pins."""
    library = _component(LIBRARY, version)
    components = list(_components(lock))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": library},
        "components": components,
        "dependencies": [
            {
                "ref": library["bom-ref"],
                "dependsOn": sorted(component["bom-ref"] for component in components),
            }
        ],
    }


def _components(lock: str) -> Iterator[dict[str, Any]]:
    for name, version, marker, hashes in _ENTRY.findall(lock):
        component = _component(name, version)
        # Each hash belongs to one file of the release; an environment installs one of the files.
        component["hashes"] = []
        for digest in _HASH.findall(hashes):
            component["hashes"].append({"alg": "SHA-256", "content": digest})
        if marker:
            component["properties"] = [{"name": "python:marker", "value": marker}]
        yield component


def _component(name: str, version: str) -> dict[str, Any]:
    url = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
    }

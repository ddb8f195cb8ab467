"""The one image of the lab, for pods and as their sandbox: a static busybox in an OCI archive."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from workloads.library.tests.node.lab.config import IMAGE

BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "sleep", "cat", "echo", "mkdir", "true", "ls", "date")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write(path: Path) -> Path:
    layer = gzip.compress(root_file_system())
    config = {
        "architecture": "amd64",
        "os": "linux",
        # The first process of a sandbox only has to stay; it ignores every signal but SIGKILL.
        "config": {
            "Entrypoint": ["/bin/sleep", "2147483647"],
            "Env": ["PATH=/bin"],
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [_digest(gzip.decompress(layer))],
        },
    }
    blobs = {
        "layer": (layer, "application/vnd.oci.image.layer.v1.tar+gzip"),
        "config": (json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
    }
    entries = {
        "config": _entry(*blobs["config"]),
        "layers": [_entry(*blobs["layer"])],
    }
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST} | entries).encode()
    named = _entry(manifest, MANIFEST) | {"annotations": {"io.containerd.image.name": IMAGE}}
    index = json.dumps(
        {
            "schemaVersion": 2,
            "manifests": [named],
        }
    ).encode()
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", index)
        for content in (manifest, *(content for content, _ in blobs.values())):
            _add(archive, f"blobs/sha256/{_digest(content).partition(':')[2]}", content)
    return path


def root_file_system() -> bytes:
    """A tar of it; `docker import` takes it too."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type = tarfile.SYMTYPE
            link.linkname = "busybox"
            archive.addfile(link)
        for folder in ("tmp", "proc", "dev", "sys", "etc"):
            info = tarfile.TarInfo(folder)
            info.type = tarfile.DIRTYPE
            info.mode = 0o1777 if folder == "tmp" else 0o755
            archive.addfile(info)
    return buffer.getvalue()


def _add(
    archive: tarfile.TarFile,
    name: str,
    content: bytes,
    mode: int = 0o644,
) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = mode
    archive.addfile(info, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _entry(content: bytes, media_type: str) -> dict[str, object]:
    return {
        "mediaType": media_type,
        "digest": _digest(content),
        "size": len(content),
    }

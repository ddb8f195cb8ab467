"""Is everything there that a deployment needs? Read-only."""

from collections.abc import Callable, Sequence

from holdfast.checks import Answer
from infra.contract.versions import GOOGLE_PROVIDER_VERSION, MIN_OPENTOFU, MIN_TERRAFORM
from infra.environments import Environment
from infra.ops import engine
from infra.ops.project import account_checks
from infra.ops.provider_lock import LOCK, misfits
from infra.ops.synth import ROOT

Probe = Callable[[Environment], Answer]


def probes() -> Sequence[tuple[str, Probe]]:
    """What this machine and the project need."""
    return (*LOCAL, *account_checks())


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


LOCAL: Sequence[tuple[str, Probe]] = (
    ("cdktf command", _command_line),
    ("engine", _engine),
    ("provider", _provider),
)

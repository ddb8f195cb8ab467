"""Deploy, compare and destroy through the cdktf command line; make the bucket of the state."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.exit_codes import EXIT_STOPPED
from infra.contract import names
from infra.environments import Environment, placeholders, source_of
from infra.ops import engine, gcloud, node
from infra.ops.synth import ROOT
from infra.rules import require_clean

CDKTF = ROOT / ".node" / "node_modules" / ".bin" / "cdktf"


def require_no_placeholders(environment: Environment) -> None:
    """No CHANGE-ME is left, and no rule broken."""
    left = placeholders(environment)
    if left:
        what = f"{source_of(environment.name)}: {', '.join(left)}"
        raise InputError(what, got="CHANGE-ME", allowed="your own values", fix="replace each CHANGE-ME")
    require_clean(environment)


def deploy(environment: Environment, *, yes: bool) -> int:
    require_no_placeholders(environment)
    _require_consent(yes)
    return _cdktf(environment, "deploy", *names.stacks(environment.name), *(["--auto-approve"] if yes else []))


def diff(environment: Environment) -> int:
    """Stack by stack: the command line compares one at a time."""
    require_no_placeholders(environment)
    return max(_cdktf(environment, "diff", stack) for stack in names.stacks(environment.name))


def destroy(environment: Environment, *, yes: bool) -> int:
    require_no_placeholders(environment)
    guards = protections(environment)
    if guards:
        for guard in guards:
            print(f"protected: {guard}", file=sys.stderr)
        print(f"fix:       take them off in {source_of(environment.name)}, deploy, destroy", file=sys.stderr)
        return EXIT_STOPPED
    _require_consent(yes)
    stacks = reversed(names.stacks(environment.name))
    return _cdktf(environment, "destroy", *stacks, *(["--auto-approve"] if yes else []))


def protections(environment: Environment) -> list[str]:
    """What would be lost and says that it must not be."""
    guards: list[str] = []
    if environment.cluster.deletion_protection:
        guards.append(f"cluster {environment.cluster_name} (cluster.deletion_protection)")
    if environment.database and environment.database.deletion_protection:
        guards.append(f"database {environment.database_name} (database.deletion_protection)")
    if not environment.storage.allow_destroy:
        guards.append(f"bucket {environment.bucket('checkpoints')} and others (storage.allow_destroy)")
    return guards


def bootstrap(environment: Environment, *, dry_run: bool) -> list[str]:
    """Make the bucket of Terraform's state: private, versioned, in the region. Says what it runs."""
    require_no_placeholders(environment)
    if not environment.state_bucket:
        what = f"{source_of(environment.name)}: state_bucket"
        raise InputError(what, got="''", allowed="a bucket name", fix="name the bucket of the state")
    url, project = f"gs://{environment.state_bucket}", f"--project={environment.project}"
    commands = [
        (
            *("storage", "buckets", "create", url, project, f"--location={environment.region}"),
            "--uniform-bucket-level-access",
            "--public-access-prevention",
        ),
        ("storage", "buckets", "update", url, project, "--versioning"),
    ]
    for arguments in commands:
        if not dry_run:
            gcloud.run(arguments, timeout_s=120)
    return [" ".join(("gcloud", *arguments)) for arguments in commands]


def _require_consent(yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise InputError("no terminal to ask on", got="no --yes", allowed="--yes", fix="repeat with --yes")


def _cdktf(environment: Environment, *arguments: str) -> int:
    if not CDKTF.exists():
        raise Unjudged("the cdktf command is missing; `make cdktf-cli` installs it")
    # With a mirror the command line cannot ask the registry for the checksums of other platforms.
    lock = ["--skip-provider-lock"] if engine.mirror() else []
    return subprocess.run(
        [str(CDKTF), *arguments, *lock], cwd=ROOT, env=_variables(environment), check=False
    ).returncode


def _variables(environment: Environment) -> Mapping[str, str]:
    folders = [str(folder) for folder in (node.folder(), Path(sys.executable).parent) if folder]
    return {
        **engine.connected().environment,
        "PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")]),
        "TERRAFORM_BINARY_NAME": engine.program(),
        "HOLDFAST_ENV": environment.name,
    }

"""Deploy and destroy through the cdktf command line; make the bucket of the state."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.clients import gcloud
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from infra.contract import names
from infra.environments import Environment, placeholders, source_of
from infra.ops import engine, show
from infra.ops.synth import ROOT
from infra.rules import require_clean
from infra.specs.network import apis

# Google makes an agent when its service is first used; the first apply grants it something before
# that. The resource that makes one exists in google-beta only (infra/decisions/0014). Compute's
# comes with its API.
MADE_AGENTS = ("artifactregistry", "container", "pubsub", "sqladmin")
# gcloud has no "create unless it exists". The code 409 alone would not do: it also answers for a
# name that another project of the world holds, and then the state must not be written there.
BUCKET_IS_OURS = "HTTPError 409: Your previous request to create the named bucket succeeded"
CDKTF = ROOT / ".node" / "node_modules" / ".bin" / "cdktf"


def require_no_placeholders(environment: Environment) -> None:
    """No CHANGE-ME is left, and no rule broken."""
    left = placeholders(environment)
    if left:
        what = f"{source_of(environment.name)}: {', '.join(left)}"
        raise InputError(
            what,
            got="CHANGE-ME",
            allowed="your own values",
            fix="replace each CHANGE-ME",
        )
    require_clean(environment)


def deploy(environment: Environment, *, yes: bool) -> int:
    require_no_placeholders(environment)
    _require_consent(yes)
    code = _cdktf(
        environment, "deploy", *names.stacks(environment.name), *(["--auto-approve"] if yes else [])
    )
    if code == 0:
        show.outputs(environment)
    return code


def destroy(environment: Environment, *, yes: bool, confirm: str = "") -> int:
    """Destroy the stacks, last first. What is protected goes only where `confirm` is the
    environment's name.

    Protections are set in the cloud as well: they are taken off by a deployment first, all of them
    or none.
    """
    require_no_placeholders(environment)
    # Terraform refuses a protected resource in the middle of a destroy, with half of the
    # environment gone already.
    guards = protections(environment)
    if not guards:
        _require_consent(yes)
    elif (confirm or typed_name(environment)) != environment.name:
        for guard in guards:
            print(f"protected: {guard}", file=sys.stderr)
        print(
            f"fix:       repeat with --confirm {environment.name}; the data will be lost",
            file=sys.stderr,
        )
        return EXIT_STOPPED
    else:
        # The name was typed above: a second question about the same thing is answered without
        # reading.
        code = _cdktf(
            environment,
            "deploy",
            *names.stacks(environment.name),
            "--auto-approve",
            unprotected=True,
        )
        if code:
            return code
    # The cluster uses the network of the stacks before it, and the cloud refuses to remove a
    # network in use.
    stacks = reversed(names.stacks(environment.name))
    answer = ["--auto-approve"] if yes or guards else []
    return _cdktf(environment, "destroy", *stacks, *answer, unprotected=bool(guards))


def typed_name(environment: Environment) -> str:
    """What a person types; empty without a terminal."""
    if not sys.stdin.isatty():
        return ""
    print(
        f"Everything of {environment.name} will be destroyed, including its data.", file=sys.stderr
    )
    return input("Type the name of the environment to continue: ").strip()


def protections(environment: Environment) -> list[str]:
    """What a destroy would lose although its protection is on."""
    guards: list[str] = []
    if environment.cluster.deletion_protection:
        guards.append(f"cluster {environment.cluster_name} (cluster.deletion_protection)")
    if environment.database and environment.database.deletion_protection:
        guards.append(f"database {environment.database_name} (database.deletion_protection)")
    if not environment.storage.allow_destroy:
        guards.append(
            f"bucket {environment.bucket('checkpoints')} and others (storage.allow_destroy)"
        )
    return guards


def bootstrap(environment: Environment, *, dry_run: bool) -> list[str]:
    """Make what must exist before Terraform: APIs, service agents, the bucket of the state. Returns
    what it runs.

    May be repeated: what is there already stays as it is.
    """
    require_no_placeholders(environment)
    commands = list(_preparations(environment))
    for arguments in commands if not dry_run else ():
        try:
            gcloud.run(arguments, timeout_s=300)
        except gcloud.GcloudFailed as error:
            if BUCKET_IS_OURS not in str(error):
                raise
    return [" ".join(("gcloud", *arguments)) for arguments in commands]


def _preparations(environment: Environment) -> Iterator[tuple[str, ...]]:
    project = f"--project={environment.project}"
    if environment.enable_apis:
        yield (
            "services",
            "enable",
            *(f"{name}.googleapis.com" for name in apis(environment)),
            project,
        )
    for name in MADE_AGENTS:
        # Asks for one that exists without complaint, so a repeated bootstrap is harmless.
        yield "beta", "services", "identity", "create", f"--service={name}.googleapis.com", project
    yield "storage", "service-agent", project
    if environment.state_bucket:
        url = f"gs://{environment.state_bucket}"
        private = ("--uniform-bucket-level-access", "--public-access-prevention")
        yield (
            "storage",
            "buckets",
            "create",
            url,
            project,
            f"--location={environment.region}",
            *private,
        )
        # An apply that is killed while it writes can leave a bad state: the version before it is
        # the only way back.
        yield "storage", "buckets", "update", url, project, "--versioning"


def _require_consent(yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise InputError(
            "no terminal to ask on",
            got="no --yes",
            allowed="--yes",
            fix="repeat with --yes",
        )


def _cdktf(environment: Environment, *arguments: str, unprotected: bool = False) -> int:
    if not CDKTF.exists():
        raise Unjudged("the cdktf command is missing; `make cdktf-cli` installs it")
    # With a mirror the command line cannot ask the registry for the checksums of other platforms.
    lock = ["--skip-provider-lock"] if engine.mirror() else []
    variables = {
        **_variables(environment),
        **({"HOLDFAST_UNPROTECTED": environment.name} if unprotected else {}),
    }
    # Not captured: the command line asks its questions on this terminal, and an apply takes many
    # minutes.
    return subprocess.run(
        [str(CDKTF), *arguments, *lock],
        cwd=ROOT,
        env=variables,
        check=False,
    ).returncode


def _variables(environment: Environment) -> Mapping[str, str]:
    # The app that cdktf starts needs this environment's python and the pinned Node, whatever the
    # login shell has.
    folders = []
    for folder in (engine.node_folder(), Path(sys.executable).parent):
        if folder:
            folders.append(str(folder))
    return {
        **engine.connected().environment,
        "PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")]),
        "TERRAFORM_BINARY_NAME": engine.program(),
        "HOLDFAST_ENV": environment.name,
        # Off a terminal the command line would print a line for each turn of its spinner.
        **({} if sys.stdout.isatty() else {"CI": "1"}),
    }

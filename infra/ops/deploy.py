"""Deploy and destroy through the cdktf command line; create the bucket of the state."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.clients import gcloud
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from infra.contract import names
from infra.environments import Environment, placeholders, source_path
from infra.ops import engine, provider_lock, show
from infra.ops.synth import ROOT
from infra.rules import require_clean
from infra.specs.network import apis

# Google creates an agent when its service is first used, but the first apply grants it something
# before that. The resource that creates one exists in google-beta only (infra/decisions/0014).
# Compute's agent comes with its API.
CREATED_AGENTS = ("artifactregistry", "container", "pubsub", "sqladmin")
# gcloud has no "create unless it exists". The code 409 alone is not enough: it also means that the
# bucket belongs to another project, where the state must not be written.
BUCKET_IS_OURS = "HTTPError 409: Your previous request to create the named bucket succeeded"
NODE_COMMANDS = ROOT / ".node" / "node_modules" / ".bin"


def require_no_placeholders(environment: Environment) -> None:
    """Raise InputError if a field is CHANGE-ME or a rule is broken."""
    fields = placeholders(environment)
    if fields:
        raise InputError(
            f"{source_path(environment.name)}: {', '.join(fields)}",
            got="CHANGE-ME",
            allowed="your own values",
            fix="replace each CHANGE-ME",
        )
    require_clean(environment)


def deploy(environment: Environment, *, yes: bool) -> int:
    """Deploy all stacks and print the outputs. Returns the exit code."""
    require_no_placeholders(environment)
    _require_consent(yes)
    _require_checksums()
    answer = ["--auto-approve"] if yes else []
    code = _cdktf(environment, "deploy", *names.stacks(environment.name), *answer)
    if code == 0:
        show.outputs(environment)
    return code


def _require_checksums() -> None:
    """Write the provider's checksums before the first deployment from a registry that has none:
    later ones accept the same provider only.
    """
    if engine.mirror() or provider_lock.locks_the_registry():
        return
    provider_lock.write(provider_lock.LOCK)
    print(f"wrote {provider_lock.LOCK}: commit it", file=sys.stderr)


def destroy(environment: Environment, *, yes: bool, confirm: str = "") -> int:
    """Destroy the stacks in reverse order. Protected resources are destroyed only if `confirm`, or
    a typed answer, is the environment's name. Returns the exit code.

    Protections are also set in the cloud: a deployment removes all of them first.
    """
    require_no_placeholders(environment)
    # Terraform would refuse a protected resource in the middle of a destroy, with half of the
    # environment destroyed.
    guards = protections(environment)
    if not guards:
        _require_consent(yes)
        return _destroy_stacks(environment, approve=yes)
    if (confirm or ask_for_name(environment)) != environment.name:
        for guard in guards:
            print(f"protected: {guard}", file=sys.stderr)
        print(
            f"fix:       repeat with --confirm {environment.name}; the data will be lost",
            file=sys.stderr,
        )
        return EXIT_STOPPED
    # The name is confirmed: a second question about the same thing is answered without reading.
    stacks = names.stacks(environment.name)
    code = _cdktf(environment, "deploy", *stacks, "--auto-approve", unprotected=True)
    if code:
        return code
    return _destroy_stacks(environment, approve=True, unprotected=True)


def _destroy_stacks(environment: Environment, *, approve: bool, unprotected: bool = False) -> int:
    # The cluster uses the network of the stacks before it, and the cloud refuses to remove a
    # network in use.
    stacks = reversed(names.stacks(environment.name))
    answer = ["--auto-approve"] if approve else []
    return _cdktf(environment, "destroy", *stacks, *answer, unprotected=unprotected)


def ask_for_name(environment: Environment) -> str:
    """Ask a person to type the environment's name. Returns nothing without a terminal."""
    if not sys.stdin.isatty():
        return ""
    print(
        f"Everything of {environment.name} will be destroyed, including its data.",
        file=sys.stderr,
    )
    return input("Type the name of the environment to continue: ").strip()


def protections(environment: Environment) -> list[str]:
    """List the protected resources that a destroy would lose, with the fields that protect them."""
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


def bootstrap(environment: Environment, *, dry_run: bool) -> Iterator[str]:
    """Create what must exist before Terraform: APIs, service agents, the bucket of the state.
    Yields each command once it is done. It may be repeated: existing parts stay as they are.
    """
    require_no_placeholders(environment)
    for arguments in _iter_bootstrap_commands(environment):
        if not dry_run:
            _run_unless_done(arguments)
        yield " ".join(("gcloud", *arguments))


def _run_unless_done(arguments: tuple[str, ...]) -> None:
    try:
        gcloud.run(arguments, timeout_s=300)
    except gcloud.GcloudFailed as error:
        if BUCKET_IS_OURS not in str(error):
            raise


def _iter_bootstrap_commands(environment: Environment) -> Iterator[tuple[str, ...]]:
    project = f"--project={environment.project}"
    if environment.enable_apis:
        yield (
            "services",
            "enable",
            *(f"{name}.googleapis.com" for name in apis(environment)),
            project,
        )
    for name in CREATED_AGENTS:
        # This also succeeds for an agent that exists.
        yield "beta", "services", "identity", "create", f"--service={name}.googleapis.com", project
    yield "storage", "service-agent", project
    if environment.state_bucket:
        url = f"gs://{environment.state_bucket}"
        yield (
            "storage",
            "buckets",
            "create",
            url,
            project,
            f"--location={environment.region}",
            "--uniform-bucket-level-access",
            "--public-access-prevention",
        )
        # An apply that is killed while it writes can leave a damaged state: only the previous
        # version repairs that.
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
    command = find_cdk_command()
    if command is None:
        raise Unjudged("the cdktf command is missing; `make cdktf-cli` installs it")
    # With a mirror the command line cannot ask the registry for the checksums of other platforms.
    lock = ["--skip-provider-lock"] if engine.mirror() else []
    variables = _variables(environment)
    if unprotected:
        variables["HOLDFAST_UNPROTECTED"] = environment.name
    is_interrupted = False
    # The output is not captured: the command line asks its questions on this terminal, and an apply
    # takes many minutes.
    with subprocess.Popen([str(command), *arguments, *lock], cwd=ROOT, env=variables) as process:
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                # The command line has it too, and ends once Terraform has written its state:
                # `subprocess.run` would kill it after a quarter of a second.
                is_interrupted = True
    if is_interrupted:
        raise KeyboardInterrupt
    return process.returncode


def find_cdk_command() -> Path | None:
    """Return the installed command line of the CDK: that of CDK Terrain, after a move to it
    (infra/decisions/0197). An installation has one of the two.
    """
    return max(NODE_COMMANDS.glob("cdkt[fn]"), default=None)


def _variables(environment: Environment) -> dict[str, str]:
    # The app that cdktf starts needs this environment's python and the pinned Node, whatever the
    # login shell has.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    node = engine.node_folder()
    if node:
        folders.insert(0, str(node))
    variables = {
        **engine.online().environment,
        "PATH": os.pathsep.join(folders),
        "TERRAFORM_BINARY_NAME": engine.program(),
        "HOLDFAST_ENV": environment.name,
    }
    if not sys.stdout.isatty():
        # Otherwise the command line prints a line for each turn of its spinner.
        variables["CI"] = "1"
    return variables

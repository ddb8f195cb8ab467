"""Commands of the platform: `python -m infra VERB`. Bodies import what they need, so that --help is quick."""

from infra.contract import interpreter as interpreter  # first: all below needs what `make setup` installs

# isort: split
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.command_line import run_app
from holdfast.contract.errors import InputError
from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_CODES_HELP, EXIT_FINDINGS
from holdfast.contract.progress import working

app = typer.Typer(
    help="The platform: environments, plan, rules, deployment.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take as long as all the rest of it
    add_completion=False,
)

if TYPE_CHECKING:
    from infra.environments import Environment

Env = Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def loaded(env: str) -> "Environment":
    from infra.environments import load

    return load(env)


@app.command(epilog=examples("python -m infra pools example", "python -m infra pools prod --json"))
def pools(env: Env, as_json: Json = False) -> None:
    """List node pools with capacity, machine type, taints and the grace period of their pods."""
    from infra.ops import show

    show.pools(loaded(env), as_json)


@app.command(epilog=examples("python -m infra synth example"))
def synth(env: Env) -> None:
    """Write the stacks as Terraform JSON to out/synth/ENV."""
    from infra.ops.synth import ROOT, synthesise

    loaded(env)
    with working(f"synthesise {env}"):
        folders = synthesise(env, ROOT / "out" / "synth" / env, local_state=False)
    for stack, folder in folders.items():
        print(f"{stack}  {folder.relative_to(ROOT)}")


@app.command(epilog=examples("python -m infra plan example", "python -m infra plan prod --full"))
def plan(
    env: Env,
    full: Annotated[bool, typer.Option("--full", help="Show every address, not only the counts.")] = False,
    as_json: Json = False,
) -> None:
    """Plan with the real provider, without credentials or network, and check the result against the rules."""
    import json

    from infra.ops import plan as planning
    from infra.ops import show
    from infra.rules import judge_plans, require_clean

    environment = loaded(env)
    require_clean(environment)
    with working(f"plan {env}") as step:
        files = planning.plan(env, step=step)
        step("judge")
        findings = judge_plans(environment, [json.loads(file.read_text()) for file in files.values()])
    changes = {stack: planning.changes(file) for stack, file in files.items()}
    show.plan(changes, findings, full=full, as_json=as_json)
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra rules"))
def rules(as_json: Json = False) -> None:
    """List all rules with reason and source."""
    from infra.ops import show

    show.rules(as_json)


@app.command(epilog=examples("python -m infra check example"))
def check(env: Env, as_json: Json = False) -> None:
    """Check an environment against the rules, without Terraform. Exit 1 also while a field is CHANGE-ME."""
    from infra.ops import show

    raise typer.Exit(show.check(loaded(env), as_json))


@app.command(epilog=examples("python -m infra describe example", "python -m infra describe prod --out platform.json"))
def describe(
    env: Env, out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None
) -> None:
    """Write the platform document of ENV, which `holdfast` and `python -m workloads` read."""
    from holdfast.platform import reading
    from infra.describe import described

    document = reading.text(described(env))
    if out is None:
        print(document, end="")
    else:
        out.write_text(document, encoding="utf-8")


@app.command(epilog=examples("python -m infra doctor example"))
def doctor(env: Env, as_json: Json = False) -> None:
    """Check what a deployment needs, on this machine and in the project, and show fixes. Read-only."""
    from holdfast import checks
    from infra.ops import doctor as examination

    with working(f"examine {env}"):
        found = list(checks.examine(loaded(env), examination.probes()))
    raise typer.Exit(checks.show(found, as_json=as_json))


@app.command(epilog=examples("python -m infra new eu"))
def new(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Create a new environment: a copy of example with CHANGE-ME in every field that you must set."""
    from infra.ops import new as literal
    from infra.ops.synth import ROOT

    print(literal.create(name, ROOT / "infra" / "environments").relative_to(ROOT))
    for step in literal.next_steps(name):
        typer.echo(f"Next: {step}", err=True)


@app.command(epilog=examples("python -m infra adopt eu --from cluster.json"))
def adopt(
    env: Env,
    record: Annotated[
        Path, typer.Option("--from", help="What `gcloud container clusters describe --format=json` printed.")
    ],
) -> None:
    """Write import blocks for a cluster and pools that are there, and show what the next apply changes. Asks no project."""
    from infra.contract.names import stack
    from infra.ops import adopt as adoption
    from infra.ops.synth import ROOT, synthesise
    from infra.rules import require_clean

    environment, found = loaded(env), adoption.read(record)
    require_clean(environment)
    folder = ROOT / "out" / "adopt" / env
    with working(f"adopt {found['name']}") as step:
        step("synthesise")
        stacks = synthesise(env, folder / "synth", local_state=True)
        step("plan")
        made = adoption.adopt(environment, found, stacks[stack("cluster", env)], folder / "plan")
    for line in adoption.report(made):
        print(line)
    print(f"wrote {adoption.write(environment, made).relative_to(ROOT)}")
    typer.echo(f"Next: make diff ENV={env}, which asks the project", err=True)


@app.command("upgrade-check", epilog=examples("python -m infra upgrade-check upstream/main --env example"))
def upgrade_check(
    ref: Annotated[str, typer.Argument(metavar="REF", help="A commit, branch or tag, for example upstream/main.")],
    env: Annotated[str, typer.Option("--env", help="The deployed environment.")] = "example",
    as_json: Json = False,
) -> None:
    """Show what a merge of REF would destroy, replace, change and create. Exit 1 if it would destroy anything."""
    from dataclasses import asdict

    from holdfast.tables import print_json
    from infra.ops import upgrade

    loaded(env)
    with working(f"plan {env} with this checkout and with {ref}"):
        found = upgrade.compare(ref, env)
    if as_json:
        print_json("upgrade-check", ref=ref, environment=env, **asdict(found))
    else:
        for line in upgrade.report(found) or [f"{ref} changes nothing for {env}"]:
            print(line)
    if found.harmful:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(
    epilog=examples("python -m infra leftovers example", "python -m infra leftovers example --run RUN --remove")
)
def leftovers(
    env: Env,
    run: Annotated[str, typer.Option(help="Show resources with the label of this proof run instead.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="With --run: delete them and their data.")] = False,
    as_json: Json = False,
) -> None:
    """List resources that GKE or an interrupted proof left in the project. Exit 1 if any of them costs money."""
    from infra.ops import leftovers as rest
    from infra.ops import show

    environment = loaded(env)
    if remove and not run:
        fix = "add --run RUN, or run the printed commands"
        raise InputError("--remove needs --run", got="--remove", allowed="--run RUN --remove", fix=fix)
    with working(f"look for leftovers of {env}"):
        found = rest.find(environment, run)
    if remove:
        with working(f"remove what run {run} left"):
            refused = rest.remove(found)
            found = rest.find(environment, run)
        for text in refused:
            typer.echo(text, err=True)
    raise typer.Exit(show.leftovers(found, as_json))


@app.command(epilog=examples("python -m infra deploy example"))
def deploy(env: Env, yes: Yes = False) -> None:
    """Deploy the stacks of ENV in order. Stops if a field is CHANGE-ME or a rule is broken."""
    from infra.ops import deploy as path

    raise typer.Exit(path.deploy(loaded(env), yes=yes))


@app.command(epilog=examples("python -m infra drift example --json"))
def drift(env: Env, as_json: Json = False) -> None:
    """Show what a deployment would change, for CI. Read-only, uses the real state. Exit 1 on any change."""
    from infra.ops import drift as difference
    from infra.ops.deploy import require_no_placeholders

    environment = loaded(env)
    require_no_placeholders(environment)
    with working(f"compare {env} with its state"):
        found = difference.drift(environment)
    difference.show(environment, found, as_json)
    if any(found.values()):
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra outputs example"))
def outputs(env: Env, as_json: Json = False) -> None:
    """Show how to reach the cluster, buckets, images, dashboards and accounts, whether or not they are deployed yet."""
    from infra.ops.outputs import show

    show(loaded(env), as_json)


@app.command(epilog=examples("python -m infra diff example"))
def diff(env: Env) -> None:
    """Show what a deployment would change in each stack, using the real state."""
    from infra.ops import deploy as path

    raise typer.Exit(path.diff(loaded(env)))


@app.command(
    epilog=examples("python -m infra destroy example", "python -m infra destroy example --yes --confirm example")
)
def destroy(
    env: Env,
    yes: Yes = False,
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="ENV", help="Repeat the name to destroy protected resources too.")
    ] = "",
) -> None:
    """Destroy the stacks of ENV. Stops at protected resources unless you confirm with the environment's name."""
    from infra.ops import deploy as path

    raise typer.Exit(path.destroy(loaded(env), yes=yes, confirm=confirm))


@app.command(epilog=examples("python -m infra prove example --max-usd 20"))
def prove(
    env: Env,
    max_usd: Annotated[
        float, typer.Option("--max-usd", min=0.01, help="Do not start if the estimated cost is higher.")
    ],
    yes: Yes = False,
) -> None:
    """Deploy ENV, run jobs on Spot, preempt their machines, check the results, destroy. Costs money."""
    from infra.ops import prove as proof

    raise typer.Exit(proof.prove(loaded(env), max_usd=max_usd, yes=yes))


@app.command("lock-provider", epilog=examples("python -m infra lock-provider"))
def lock_provider() -> None:
    """Record the provider's checksums for Linux and macOS in infra/provider.lock.hcl. Needs the registry."""
    from infra.ops import provider_lock
    from infra.ops.synth import ROOT

    print(provider_lock.write().relative_to(ROOT))


@app.command(epilog=examples("python -m infra bootstrap example --dry-run"))
def bootstrap(
    env: Env, dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands only.")] = False
) -> None:
    """Create the bucket for Terraform's state."""
    from infra.ops import deploy as path

    for command in path.bootstrap(loaded(env), dry_run=dry_run):
        print(command)


if __name__ == "__main__":
    run_app(app)

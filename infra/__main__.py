"""Commands of the platform: `python -m infra VERB`. Bodies import what they need, so that --help is quick."""

from infra.contract import interpreter as interpreter  # first: all below needs what `make setup` installs

# isort: split
from pathlib import Path
from typing import Annotated

import typer

from holdfast.command_line import run_app
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

Env = Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, as example.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


@app.command(epilog=examples("python -m infra pools example", "python -m infra pools prod --json"))
def pools(env: Env, as_json: Json = False) -> None:
    """Node pools with capacity, machine, taints and the window that a pod gets."""
    from infra.environments import load
    from infra.ops import show

    show.pools(load(env), as_json)


@app.command(epilog=examples("python -m infra synth example"))
def synth(env: Env) -> None:
    """Write the stacks as Terraform JSON to out/synth/ENV."""
    from infra.environments import load
    from infra.ops.synth import ROOT, synthesise

    load(env)
    with working(f"synthesise {env}"):
        folders = synthesise(env, ROOT / "out" / "synth" / env, local_state=False)
    for stack, folder in folders.items():
        print(f"{stack}  {folder.relative_to(ROOT)}")


@app.command(epilog=examples("python -m infra plan example", "python -m infra plan prod --full"))
def plan(
    env: Env,
    full: Annotated[bool, typer.Option("--full", help="Every address beside the counts.")] = False,
    as_json: Json = False,
) -> None:
    """Plan with the real provider, no credentials, no network; the rules judge the result."""
    from infra.environments import load
    from infra.ops import judgement, show
    from infra.ops import plan as planning
    from infra.rules import require_clean

    environment = load(env)
    require_clean(environment)
    with working(f"plan {env}") as step:
        files = planning.plan(env, step=step)
        step("judge")
        findings = judgement.judge_files(environment, files.values())
    changes = {stack: planning.changes(file) for stack, file in files.items()}
    show.plan(changes, [judgement.as_object(f) for f in findings], full=full, as_json=as_json)
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra rules"))
def rules(as_json: Json = False) -> None:
    """What must hold, why, and who says so."""
    from infra.ops import judgement

    judgement.show_rules(as_json)


@app.command(epilog=examples("python -m infra check example"))
def check(env: Env, as_json: Json = False) -> None:
    """Judge an environment by the rules, without Terraform; exit 1, too, while a field says CHANGE-ME."""
    from infra.environments import load
    from infra.ops import judgement

    raise typer.Exit(judgement.check(load(env), as_json))


@app.command(epilog=examples("python -m infra describe example", "python -m infra describe prod --out platform.json"))
def describe(
    env: Env, out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None
) -> None:
    """The platform document of ENV, which the command `holdfast` and the cluster half read."""
    from holdfast.platform import reading
    from infra.describe import described

    document = reading.text(described(env))
    if out is None:
        print(document, end="")
    else:
        out.write_text(document, encoding="utf-8")


@app.command(epilog=examples("python -m infra doctor example"))
def doctor(env: Env, as_json: Json = False) -> None:
    """What a deployment needs and lacks, here and in the project. Read-only; says how to fix it."""
    from holdfast import checks
    from infra.environments import load
    from infra.ops import doctor as examination

    with working(f"examine {env}"):
        found = list(checks.examine(load(env), examination.probes()))
    raise typer.Exit(checks.show(found, as_json=as_json))


@app.command(epilog=examples("python -m infra new eu"))
def new(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Make an environment of your own, a copy of example that says CHANGE-ME."""
    from infra.ops import new as literal
    from infra.ops.synth import ROOT

    print(literal.create(name, ROOT / "infra" / "environments").relative_to(ROOT))
    for step in literal.next_steps(name):
        typer.echo(f"Next: {step}", err=True)


@app.command("upgrade-check", epilog=examples("python -m infra upgrade-check upstream/main --env example"))
def upgrade_check(
    ref: Annotated[str, typer.Argument(metavar="REF", help="A commit, branch or tag, as upstream/main.")],
    env: Annotated[str, typer.Option("--env", help="The environment that is deployed.")] = "example",
    as_json: Json = False,
) -> None:
    """What a merge of REF would destroy, add and ask for; exit 1 if anything would be destroyed."""
    from dataclasses import asdict

    from holdfast.tables import print_json
    from infra.environments import load
    from infra.ops import upgrade

    load(env)
    with working(f"plan {env} as it is and as {ref} would have it"):
        found = upgrade.compare(ref, env)
    if as_json:
        print_json("upgrade-check", ref=ref, environment=env, **asdict(found))
    else:
        for line in upgrade.report(found) or [f"{ref} changes nothing for {env}"]:
            print(line)
    if found.harmful:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra leftovers example"))
def leftovers(env: Env, as_json: Json = False) -> None:
    """What GKE itself left in the project after a destroy; exit 1 if anything of it bills."""
    from infra.environments import load
    from infra.ops import leftovers as rest
    from infra.ops import show

    with working(f"look for leftovers of {env}"):
        found = rest.find(load(env))
    raise typer.Exit(show.leftovers(found, as_json))


@app.command(epilog=examples("python -m infra deploy example"))
def deploy(env: Env, yes: Yes = False) -> None:
    """Deploy the stacks of ENV in order. Refuses a CHANGE-ME and a broken rule."""
    from infra.environments import load
    from infra.ops import deploy as path

    raise typer.Exit(path.deploy(load(env), yes=yes))


@app.command(epilog=examples("python -m infra drift example --json"))
def drift(env: Env, as_json: Json = False) -> None:
    """What a deployment would change, for CI: read-only, against the real state; exit 1 if anything would."""
    from infra.environments import load
    from infra.ops import drift as difference
    from infra.ops.deploy import require_no_placeholders

    environment = load(env)
    require_no_placeholders(environment)
    with working(f"compare {env} with its state"):
        found = difference.drift(environment)
    difference.show(environment, found, as_json)
    if any(found.values()):
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra outputs example"))
def outputs(env: Env, as_json: Json = False) -> None:
    """What people need after a deployment: how to reach the cluster, buckets, images, dashboards, accounts."""
    from infra.environments import load
    from infra.ops.outputs import show

    show(load(env), as_json)


@app.command(epilog=examples("python -m infra diff example"))
def diff(env: Env) -> None:
    """What a deployment would change, stack by stack, against the real state."""
    from infra.environments import load
    from infra.ops import deploy as path

    raise typer.Exit(path.diff(load(env)))


@app.command(
    epilog=examples("python -m infra destroy example", "python -m infra destroy example --yes --confirm example")
)
def destroy(
    env: Env,
    yes: Yes = False,
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="ENV", help="The name once more: what is protected goes, too.")
    ] = "",
) -> None:
    """Destroy the stacks of ENV. Stops at what is protected, unless its name is typed or given once more."""
    from infra.environments import load
    from infra.ops import deploy as path

    raise typer.Exit(path.destroy(load(env), yes=yes, confirm=confirm))


@app.command(epilog=examples("python -m infra prove example --max-usd 20"))
def prove(
    env: Env,
    max_usd: Annotated[float, typer.Option("--max-usd", min=0.01, help="Nothing starts if it may cost more.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Deploy ENV to its project, run a gang and a batch on Spot, take their machines, judge, destroy. Costs money."""
    from infra.environments import load
    from infra.proof import cli

    raise typer.Exit(cli.prove(load(env), max_usd=max_usd, yes=yes, as_json=as_json))


@app.command(epilog=examples("python -m infra janitor example", "python -m infra janitor example --yes"))
def janitor(
    env: Env,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it.")] = False,
    as_json: Json = False,
) -> None:
    """What interrupted proofs of ENV left in the project; exit 1 while there is something."""
    from infra.environments import load
    from infra.proof import cli

    raise typer.Exit(cli.clean(load(env), yes=yes, as_json=as_json))


@app.command("lock-provider", epilog=examples("python -m infra lock-provider"))
def lock_provider() -> None:
    """Record the provider's checksums for Linux and macOS in infra/provider.lock.hcl; needs the registry."""
    from infra.ops import provider_lock
    from infra.ops.synth import ROOT

    print(provider_lock.write().relative_to(ROOT))


@app.command(epilog=examples("python -m infra bootstrap example --dry-run"))
def bootstrap(
    env: Env, dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands only.")] = False
) -> None:
    """Make the bucket that keeps Terraform's state."""
    from infra.environments import load
    from infra.ops import deploy as path

    for command in path.bootstrap(load(env), dry_run=dry_run):
        print(command)


if __name__ == "__main__":
    run_app(app)

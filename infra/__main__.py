"""Commands of the platform: `python -m infra VERB`. Bodies import what they need, so that --help is
quick.
"""

# Imported first, since everything below needs the packages that `make setup` installs.
from infra.contract import interpreter as interpreter

# isort: split
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.support.command_line import new_app, run_app
from holdfast.support.errors import InputError
from holdfast.support.examples import examples
from holdfast.support.progress import show_waiting, working
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

app = new_app("The platform: environments, plan, rules, deployment.")

if TYPE_CHECKING:
    from infra.environments import Environment

Env = Annotated[
    str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def load_environment(env: str) -> "Environment":
    from infra.environments import load

    return load(env)


@app.command(
    epilog=examples(
        "python -m infra plan example",
        "python -m infra plan prod --full",
        "python -m infra plan prod --merge upstream/main",
        "python -m infra plan prod --adopt cluster.json",
    )
)
def plan(
    env: Env,
    full: Annotated[
        bool, typer.Option("--full", help="Show every address, not only the counts.")
    ] = False,
    synth: Annotated[
        bool,
        typer.Option("--synth", help="Only write the stacks as Terraform JSON to out/synth/ENV."),
    ] = False,
    merge: Annotated[
        str,
        typer.Option(
            metavar="REF",
            help="Show what a merge of this commit would destroy, replace, change and create.",
        ),
    ] = "",
    adopt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Write import blocks for a cluster that is there, as `gcloud container clusters"
                " describe "
                "--format=json` printed it, and show what the next apply changes."
            ),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan with the real provider, without credentials or network, and check the result against the
    rules.

    Exit 1 if a rule is broken; with --merge, if the merge would destroy anything.
    """
    import json

    from infra.ops import adopt as adoption
    from infra.ops import plan as planning
    from infra.ops import show, upgrade
    from infra.ops.synth import ROOT, synthesize
    from infra.rules import judge_plans, require_clean

    environment = load_environment(env)
    if adopt:
        adoption.run(environment, adopt)
        return
    if merge:
        with working(f"plan {env} with this checkout and with {merge}"):
            differences = upgrade.compare(merge, env)
        upgrade.show(differences, merge, env, as_json=as_json)
        raise typer.Exit(EXIT_FINDINGS if differences.harmful else 0)
    if synth:
        with working(f"synthesize {env}"):
            folders = synthesize(env, ROOT / "out" / "synth" / env, local_state=False)
        for stack, folder in folders.items():
            print(f"{stack}  {folder.relative_to(ROOT)}")
        return
    require_clean(environment)
    with working(f"plan {env}") as step:
        files = planning.plan(env, step=step)
        step("judge")
        plans = {stack: json.loads(file.read_text()) for stack, file in files.items()}
        findings = judge_plans(environment, plans.values())
    changes = {stack: planning.list_changes(planned) for stack, planned in plans.items()}
    show.plan(changes, findings, full=full, as_json=as_json)
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m infra check example", "python -m infra check --rules"))
def check(
    env: Annotated[
        str,
        typer.Argument(metavar="ENV", help="A module of infra/environments; none with --rules."),
    ] = "",
    rules: Annotated[
        bool, typer.Option("--rules", help="List all rules with reason and source instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check an environment against the rules, without Terraform, and say what it takes and gives
    since it was rendered last. Exit 1 also while a field is CHANGE-ME.
    """
    from infra.ops import show

    if rules:
        show.rules(as_json)
        return
    from infra import effects
    from infra.describe import platform

    environment = load_environment(env)
    changes = effects.compare(effects.read_rendered(env), platform(environment))
    raise typer.Exit(show.check(environment, as_json, changes))


@app.command(epilog=examples("python -m infra describe example"))
def describe(env: Env) -> None:
    """Print the platform document of ENV, which `holdfast` and `python -m workloads` read."""
    from holdfast.platform import codec
    from infra.describe import load_platform

    print(codec.text(load_platform(env)), end="")


@app.command(epilog=examples("python -m infra doctor example"))
def doctor(env: Env, as_json: Json = False) -> None:
    """Check what a deployment needs, on this machine and in the project, and show fixes.
    Read-only.
    """
    from holdfast.support import checks
    from infra.ops import doctor as examination

    probes = (*examination.ON_THIS_MACHINE, *examination.OF_THE_PROJECT)
    with working(f"examine {env}"):
        results = list(checks.examine(load_environment(env), probes))
    raise typer.Exit(checks.show(results, as_json=as_json))


@app.command(epilog=examples("python -m infra new eu", "python -m infra new euprod --from prod"))
def new(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    pattern: Annotated[
        str,
        typer.Option(
            "--from", metavar="PATTERN", help="example; or prod, which has every protection."
        ),
    ] = "example",
) -> None:
    """Create a new environment: a copy of example or prod with CHANGE-ME in every field that you
    must set.
    """
    from infra.ops import new as literal
    from infra.ops.synth import ROOT

    file = literal.create(name, ROOT / "infra" / "environments", pattern)
    print(file.relative_to(ROOT))
    for step in literal.next_steps(name):
        typer.echo(f"Next: {step}", err=True)


@app.command(
    epilog=examples(
        "python -m infra leftovers example", "python -m infra leftovers example --run RUN --remove"
    )
)
def leftovers(
    env: Env,
    run: Annotated[
        str, typer.Option(help="Show resources with the label of this proof run instead.")
    ] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="With --run: delete them and their data.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List resources that GKE or an interrupted proof left in the project. Exit 1 if any of them
    costs money.
    """
    from infra.ops import leftovers as rest
    from infra.ops import show

    environment = load_environment(env)
    if remove and not run:
        raise InputError(
            "--remove needs --run",
            got="--remove",
            allowed="--run RUN --remove",
            fix="add --run RUN, or run the printed commands",
        )
    with working(f"look for leftovers of {env}"):
        resources = rest.find(environment, run)
    if remove:
        with working(f"remove what run {run} left"):
            errors = rest.remove(resources)
            resources = rest.find(environment, run)
        for error in errors:
            typer.echo(error, err=True)
    raise typer.Exit(show.leftovers(resources, as_json))


@app.command(epilog=examples("python -m infra deploy example"))
def deploy(env: Env, yes: Yes = False) -> None:
    """Deploy the stacks of ENV in order. Stops if a field is CHANGE-ME or a rule is broken."""
    from infra.ops import deploy as path

    raise typer.Exit(path.deploy(load_environment(env), yes=yes))


@app.command(epilog=examples("python -m infra outputs example"))
def outputs(env: Env, as_json: Json = False) -> None:
    """Show how to reach the cluster, buckets, images, dashboards and accounts, and the node pools.
    Reads no cloud.
    """
    from infra.ops import show

    show.outputs(load_environment(env), as_json)


@app.command(epilog=examples("python -m infra diff example", "python -m infra diff example --json"))
def diff(
    env: Env,
    full: Annotated[
        bool, typer.Option("--full", help="Show every attribute that changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a deployment would change. Read-only, uses the real state, takes no lock. Exit 1 on
    any change.
    """
    from infra.ops import drift
    from infra.ops.deploy import require_no_placeholders

    environment = load_environment(env)
    require_no_placeholders(environment)
    with working(f"compare {env} with its state"):
        changes = drift.drift(environment, print if full and not as_json else None)
    drift.show(environment, changes, as_json)
    if any(changes.values()):
        raise typer.Exit(EXIT_FINDINGS)


@app.command(
    epilog=examples(
        "python -m infra destroy example", "python -m infra destroy example --yes --confirm example"
    )
)
def destroy(
    env: Env,
    yes: Yes = False,
    confirm: Annotated[
        str,
        typer.Option(
            "--confirm", metavar="ENV", help="Repeat the name to destroy protected resources too."
        ),
    ] = "",
) -> None:
    """Destroy the stacks of ENV. Stops at protected resources unless you confirm with the
    environment's name.
    """
    from infra.ops import deploy as path

    raise typer.Exit(path.destroy(load_environment(env), yes=yes, confirm=confirm))


@app.command(epilog=examples("python -m infra prove example --max-usd 20"))
def prove(
    env: Env,
    max_usd: Annotated[
        float,
        typer.Option("--max-usd", min=0.01, help="Do not start if the estimated cost is higher."),
    ],
    yes: Yes = False,
) -> None:
    """Deploy ENV, run jobs on Spot, preempt their machines, check the results, destroy. Costs
    money.
    """
    from infra.ops import prove as proof

    raise typer.Exit(proof.prove(load_environment(env), max_usd=max_usd, yes=yes))


@app.command(epilog=examples("python -m infra bootstrap example --dry-run"))
def bootstrap(
    env: Env,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands only.")] = False,
) -> None:
    """Enable the APIs of ENV's project, and create service agents and the bucket of the state."""
    from infra.ops import deploy as path

    commands = path.bootstrap(load_environment(env), dry_run=dry_run)
    for command in show_waiting(f"prepare the project of {env}", commands):
        print(command)


if __name__ == "__main__":
    run_app(app)

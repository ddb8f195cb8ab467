"""The door of the platform: `python -m infra VERB`. Bodies import what they need, so that --help is quick."""

from typing import Annotated

import typer

from infra.contract.errors import EXIT_CODES_HELP, EXIT_FINDINGS, run_door
from infra.placement import cli as placement

app = typer.Typer(
    help="The platform: environments, plan, rules, deployment.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(placement.app)

Env = Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, as example.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


@app.command()
def pools(env: Env, as_json: Json = False) -> None:
    """Node pools with capacity, machine, taints and the window that a pod gets."""
    from infra.environments import load
    from infra.ops import show

    show.pools(load(env), as_json)


@app.command()
def synth(env: Env) -> None:
    """Write the stacks as Terraform JSON to out/synth/ENV."""
    from infra.environments import load
    from infra.ops.synth import ROOT, synthesise

    load(env)
    for stack, folder in synthesise(env, ROOT / "out" / "synth" / env, local_state=False).items():
        print(f"{stack}  {folder.relative_to(ROOT)}")


@app.command()
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
    files = planning.plan(env)
    findings = judgement.judge_files(environment, files.values())
    changes = {stack: planning.changes(file) for stack, file in files.items()}
    show.plan(changes, [judgement.as_object(f) for f in findings], full=full, as_json=as_json)
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def rules(as_json: Json = False) -> None:
    """What must hold, why, and who says so."""
    from infra.ops import judgement

    judgement.show_rules(as_json)


@app.command()
def check(env: Env, as_json: Json = False) -> None:
    """Judge an environment by the rules, without Terraform."""
    from infra.environments import load
    from infra.ops import judgement

    if not judgement.check(load(env), as_json):
        raise typer.Exit(EXIT_FINDINGS)


if __name__ == "__main__":
    run_door(app)

"""Commands `render`, `lint` and `rules`. Module top stays light, since `--help` is fast: bodies import."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_FINDINGS
from holdfast.contract.progress import working

FORMAT_NAMES = ("text", "json", "sarif", "github", "markdown")
RENDERED = Path(__file__).parents[1] / "rendered"
Env = Annotated[str, typer.Option("--env", help="Environment; else the file's own, the configuration's, or example.")]


def lint(
    paths: Annotated[list[Path], typer.Argument(help="YAML or JSON files, and folders of them.")],
    env: Env = "",
    formats: Annotated[
        list[str] | None, typer.Option("--format", help=f"{', '.join(FORMAT_NAMES)}; repeatable.")
    ] = None,
    outputs: Annotated[list[Path] | None, typer.Option("--output", help="File for the --format before it.")] = None,
    config: Annotated[Path | None, typer.Option(help="pyproject.toml; else the nearest one.")] = None,
    no_ignore: Annotated[bool, typer.Option("--no-ignore", help="Judge as if nothing were ignored.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="Findings to accept for now.")] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write all findings to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Judge manifests by what the platform offers. Exit 1: errors or warnings; 2: nothing to judge."""
    from workloads.manifests.lint import run

    request = run.Request(
        paths=tuple(paths),
        environment=env,
        formats=("json",) if as_json else tuple(formats or ["text"]),
        outputs=tuple(outputs or []),
        config=config,
        use_ignores=not no_ignore,
        baseline=baseline,
        write_baseline=write_baseline,
    )
    if run.run(request):
        raise typer.Exit(EXIT_FINDINGS)


def rules(
    rule: Annotated[str, typer.Argument(help="HF101 or HF101-slug; none lists all.")] = "",
    whole: Annotated[bool, typer.Option("--whole", help="Examples as whole objects.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What a rule finds, why, and how to mend it."""
    from workloads.manifests.lint import pages

    sys.stdout.write(pages.show(rule, whole=whole, as_json=as_json))


def render(
    env: Annotated[list[str] | None, typer.Argument(help="Environments; none means all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the environments' folders.")] = RENDERED,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file would change.")] = False,
    small: Annotated[str, typer.Option(help="Cut the samples down to this Spot pool; needs --out.")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Of the batch, with --small.")] = 2,
    items: Annotated[str, typer.Option(help="Source of the batch in its pod, with --small.")] = "/data",
) -> None:
    """Write the manifests of environments as YAML."""
    from infra.environments import names
    from workloads.manifests import rendering

    unknown = sorted(set(env or []) - set(names()))
    if unknown:
        raise InputError("unknown environment", got=", ".join(unknown), allowed=", ".join(names()), fix="choose one")
    if small and (out == RENDERED or len(env or []) != 1):
        got, fix = f"--small {small}", "render ENV --small POOL --out FOLDER"
        raise InputError("samples that are cut down", got=got, allowed="one ENV, and a folder of their own", fix=fix)
    wanted = rendering.small(env[0], small, workers, items) if env and small else None
    changed: list[Path] = []
    with working("render") as step:
        for name in env or names():
            step(name)
            changed += rendering.render(name, out, write=not check, small=wanted)
    for path in changed:
        typer.echo(path.as_posix())
    typer.echo(f"{len(changed)} files {'differ' if check else 'changed'}", err=True)
    if check and changed:
        raise typer.Exit(EXIT_FINDINGS)


def hook() -> None:
    """Entry point `holdfast-lint`: the command lint alone, for pre-commit in other repositories."""
    from holdfast.contract.errors import run_cli

    run_cli(lambda: typer.run(lint))

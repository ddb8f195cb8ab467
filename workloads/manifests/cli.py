"""The command `render`. Its body imports what it needs, so that `--help` is quick."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.support.errors import InputError
from holdfast.support.progress import working
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

RENDERED = Path(__file__).parents[1] / "rendered"


def render(
    env: Annotated[list[str] | None, typer.Argument(help="Environments; none means all.")] = None,
    out: Annotated[
        Path, typer.Option(help="Parent folder of the rendered environments.")
    ] = RENDERED,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if a file would change.")
    ] = False,
    small: Annotated[
        str, typer.Option(help="Reduce the samples to fit this Spot pool; needs --out.")
    ] = "",
    workers: Annotated[int, typer.Option(min=1, help="Workers of the batch, with --small.")] = 2,
    items: Annotated[
        str, typer.Option(help="Source of the batch in its pod, with --small.")
    ] = "/data",
) -> None:
    """Write the manifests of environments as YAML, and say what they take and give since the last
    time.
    """
    from infra import effects
    from infra.describe import load_platform
    from infra.environments import names
    from workloads.manifests import rendering

    unknown_names = sorted(set(env or []) - set(names()))
    if unknown_names:
        raise InputError(
            "unknown environment",
            got=", ".join(unknown_names),
            allowed=", ".join(names()),
            fix="choose one",
        )
    if small and (out == RENDERED or len(env or []) != 1):
        raise InputError(
            "reduced samples",
            got=f"--small {small}",
            allowed="one ENV, and a separate folder",
            fix="render ENV --small POOL --out FOLDER",
        )
    limits = (
        rendering.small(load_platform(env[0]), small, workers, items) if env and small else None
    )
    changed: list[Path] = []
    said: list[str] = []
    with working("render") as step:
        for name in env or names():
            step(name)
            platform = load_platform(name)
            before = effects.read_rendered(name, out)
            for effect in effects.compare(before, platform):
                said.append(f"{name} {effect}")
            said += rendering.list_removals(platform, out, limits)
            changed += rendering.render(
                platform,
                out,
                write=not check,
                small=limits,
            )
    for line in said:
        typer.echo(line, err=True)
    for path in changed:
        typer.echo(path.as_posix())
    if not check:
        typer.echo(f"{len(changed)} files changed", err=True)
        return
    fix = ": python -m workloads render" if changed else ""
    typer.echo(f"{len(changed)} files differ{fix}", err=True)
    if changed:
        raise typer.Exit(EXIT_FINDINGS)

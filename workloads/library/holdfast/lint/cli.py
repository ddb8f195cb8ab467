"""The command `holdfast lint`. Its body imports: `--help` must not wait for what only a run needs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.exit_codes import EXIT_FINDINGS

FORMAT_NAMES = ("text", "json", "sarif", "github", "markdown")
Platforms = Annotated[
    list[Path] | None,
    typer.Option(help="platform.json, repeatable; else the configuration's, the nearest one, or that of the cluster."),
]


def lint(
    paths: Annotated[list[Path] | None, typer.Argument(help="YAML or JSON files, and folders of them.")] = None,
    platform: Platforms = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help=f"{', '.join(FORMAT_NAMES)}; repeatable.")
    ] = None,
    outputs: Annotated[list[Path] | None, typer.Option("--output", help="File for the --format before it.")] = None,
    config: Annotated[Path | None, typer.Option(help="pyproject.toml; else the nearest one.")] = None,
    no_ignore: Annotated[bool, typer.Option("--no-ignore", help="Judge as if nothing were ignored.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="Findings to accept for now.")] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write all findings to this file.")] = None,
    rule: Annotated[
        str, typer.Option(help="What a rule finds, why, and how to fix it: HF101, HF101-slug, or all; judges nothing.")
    ] = "",
    whole: Annotated[bool, typer.Option("--whole", help="With --rule: examples as whole objects.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Check manifests against the platform. Exit 1: errors or warnings; 2: no manifests."""
    from holdfast.contract.errors import InputError
    from holdfast.lint import pages, run

    if rule:
        sys.stdout.write(pages.show("" if rule == "all" else rule, whole=whole, as_json=as_json))
        return
    if not paths:
        raise InputError(
            "nothing to judge", got="no path", allowed="files, folders or --rule", fix="holdfast lint FOLDER"
        )
    request = run.Request(
        paths=tuple(paths),
        platforms=tuple(platform or ()),
        formats=("json",) if as_json else tuple(formats or ["text"]),
        outputs=tuple(outputs or []),
        config=config,
        use_ignores=not no_ignore,
        baseline=baseline,
        write_baseline=write_baseline,
    )
    if run.run(request):
        raise typer.Exit(EXIT_FINDINGS)

"""The command `holdfast lint`.

Its body imports: `--help` must not wait for what only a run needs.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

_NEAREST = "platform.json, repeatable; else the nearest one, or that of the cluster."
Platforms = Annotated[list[Path] | None, typer.Option(help=_NEAREST)]


def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="YAML or JSON files, and folders of them.")
    ] = None,
    platform: Platforms = None,
    rule: Annotated[
        str, typer.Option(help="Only print what a rule finds, why, and the fix: HF101, or all.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of text.")
    ] = False,
) -> None:
    """Check manifests against the platform. Exit 1: errors or warnings; 2: no manifests."""
    from holdfast.lint import rule_pages, run
    from holdfast.support.errors import InputError

    if rule:
        page = rule_pages.show("" if rule == "all" else rule, as_json=as_json)
        sys.stdout.write(page)
        return
    if not paths:
        raise InputError(
            "no files to lint",
            got="no path",
            allowed="files, folders or --rule",
            fix="holdfast lint FOLDER",
        )
    if run.run(paths, platform or (), as_json=as_json):
        raise typer.Exit(EXIT_FINDINGS)

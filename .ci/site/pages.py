"""Pages of the site: every Markdown file of the tree, and what the program knows of itself.

A link to a file that is no page becomes its text, so that the site is complete.
"""

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from typer.cli import get_docs_for_click
from typer.main import get_command

ROOT = Path(__file__).parents[2]
IMAGES = {".png", ".svg"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
# What a user's own code imports.
PUBLIC = (
    "holdfast.checkpoint",
    "holdfast.training.elastic",
    "holdfast.training.frameworks.huggingface",
    "holdfast.training.frameworks.lightning",
    "holdfast.training.frameworks.accelerate",
    "holdfast.vocabulary.exit_codes",
    "holdfast.vocabulary.environment",
)
PROGRAMS = {"holdfast": "holdfast.commands"}
PROGRAMS |= {
    f"python -m {name}": f"{name}.__main__" for name in ("infra", "workloads", "monitoring")
}


def gather(folder: Path) -> None:
    """Write all pages into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    tracked = _tracked()
    for path in (path for path in tracked if path.endswith(".md")):
        _write(folder / path, linked((ROOT / path).read_text(encoding="utf-8"), path, set(tracked)))
    for path in (path for path in tracked if PurePosixPath(path).suffix in IMAGES):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path)
    shutil.copyfile(Path(__file__).with_name("site.css"), folder / "site.css")
    made = {
        "reference/library.md": library(),
        "reference/rules.md": rules(),
        "reference/commands.md": commands(),
    }
    for path, text in made.items():
        _write(folder / path, text)


def linked(text: str, page: str, tracked: set[str]) -> str:
    """`text` of `page` with links to pages, pictures and the network only."""

    def one(found: re.Match[str]) -> str:
        target, hash_, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = normpath(PurePosixPath(page).parent / target)
        if f"{path}/README.md" in tracked:
            return (
                f"{found['image']}[{found['text']}]({target.rstrip('/')}/README.md{hash_}{anchor})"
            )
        suffix = PurePosixPath(path).suffix
        if path in tracked and (suffix == ".md" or suffix in IMAGES):
            return found[0]
        return found["text"]

    return LINK.sub(one, text)


def library() -> str:
    parts = ["# Reference of the library", "What your own program imports."]
    return "\n\n".join([*parts, *(f"::: {name}" for name in PUBLIC)]) + "\n"


def rules() -> str:
    from holdfast.lint.registry import all_rules
    from holdfast.lint.rule_pages import page

    parts = ["# Rules of the linter", "`holdfast lint --rule NAME` prints one of them."]
    for rule in all_rules().values():
        parts += [f"## {rule.name}", f"```text\n{page(rule).rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    import click

    context: Any = click.Context(click.Command("site"))
    return "# Commands\n\n" + "\n".join(
        get_docs_for_click(
            obj=get_command(import_module(module).app),
            ctx=context,
            name=name,
            indent=1,
        )
        for name, module in PROGRAMS.items()
    )


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for path in listed.stdout.split("\0") if path]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""Pages of the site: every Markdown file of the tree, and references generated from the program.

A link to a file that is no page becomes its text, so that no link is broken.
"""

import re
import shutil
import subprocess
from importlib import import_module
from inspect import cleandoc
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from typer.cli import get_docs_for_click
from typer.main import get_command

ROOT = Path(__file__).parents[2]
IMAGES = {".png", ".svg"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)" width="(?P<width>\d+)">\s*</picture>'
)
# Modules and names that a user's own code imports. A test requires an example of each name.
PUBLIC_MODULES = (
    "holdfast.checkpoint",
    "holdfast.vocabulary.exit_codes",
    "holdfast.vocabulary.environment",
)
PUBLIC_NAMES = (
    "holdfast.training.frameworks.huggingface.HoldfastCallback",
    "holdfast.training.frameworks.lightning.HoldfastCallback",
    "holdfast.training.frameworks.accelerate.AccelerateCheckpointer",
    "holdfast.training.frameworks.torchtitan.HoldfastCheckpointManager",
    "holdfast.training.curves.tensorboard.TensorBoardCurve",
    "holdfast.training.curves.wandb.WandbCurve",
    "holdfast.training.curves.mlflow.MlflowCurve",
    "holdfast.training.elastic.gang.ElasticGang",
    "holdfast.training.gang.node.join_node",
    "holdfast.training.sharded.logical_shards.LogicalShards",
    "holdfast.inference.predictor.spec.PredictorSpec",
    "holdfast.inference.predictor.spec.require_model_folder",
    "holdfast.inference.predictor.spec.digest_folder",
    "holdfast.inference.proxy.endpoints.Endpoint",
    "holdfast.inference.proxy.endpoints.discovery",
    "holdfast.inference.proxy.endpoints.write",
    "holdfast.inference.proxy.rejection_sharing.RejectionSharer",
    "holdfast.manifests.envoy.Proxy",
    "holdfast.manifests.envoy.bootstrap",
    "holdfast.lint.registry.rule",
)
PROGRAMS = {
    "holdfast": "holdfast.commands",
    "python -m infra": "infra.__main__",
    "python -m workloads": "workloads.__main__",
    "python -m monitoring": "monitoring.__main__",
}


def gather(folder: Path) -> None:
    """Write all pages into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    tracked = set(_list_files())
    for path in sorted(tracked):
        suffix = PurePosixPath(path).suffix
        if suffix == ".md":
            text = show_pictures_by_palette((ROOT / path).read_text(encoding="utf-8"))
            _write(folder / path, indent_steps(fix_links(text, path, tracked)))
        elif suffix in IMAGES:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, folder / path)
    shutil.copyfile(Path(__file__).with_name("site.css"), folder / "site.css")
    _write(folder / "reference/library.md", library())
    _write(folder / "reference/rules.md", rules())
    _write(folder / "reference/commands.md", commands())


def fix_links(text: str, page: str, tracked: set[str]) -> str:
    """Return the text of `page` with links to pages, pictures and the network only."""

    def fix(link: re.Match[str]) -> str:
        target, hash_, anchor = link["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        path = normpath(PurePosixPath(page).parent / target)
        if f"{path}/README.md" in tracked:
            readme = f"{target.rstrip('/')}/README.md{hash_}{anchor}"
            return f"{link['image']}[{link['text']}]({readme})"
        suffix = PurePosixPath(path).suffix
        if path in tracked and (suffix == ".md" or suffix in IMAGES):
            return link[0]
        return link["text"]

    return LINK.sub(fix, text)


def show_pictures_by_palette(text: str) -> str:
    """Return the text with the light and the dark form of each picture; the site's palette hides
    one. The browser would choose by the system's colors, but a reader can choose others on the
    site.
    """

    def write_both(picture: re.Match[str]) -> str:
        images = []
        for mode in ("light", "dark"):
            address = f"{picture[mode]}#only-{mode}"
            images.append(
                f'<img alt="{picture["alt"]}" src="{address}" width="{picture["width"]}">'
            )
        return "\n".join(images)

    return PICTURE.sub(write_both, text)


def indent_steps(text: str) -> str:
    """Return the text with the contents of each numbered step indented by four spaces. At three,
    the site's Markdown ends the list, and would number the next step 1.
    """
    lines: list[str] = []
    is_step = False
    for line in text.splitlines():
        if re.match(r"\d+\. ", line):
            is_step = True
        elif line and not line.startswith("   "):
            is_step = False
        lines.append(f" {line}" if is_step and line.startswith("   ") else line)
    return "\n".join(lines) + "\n"


def library() -> str:
    """Return the reference of the library, whose content mkdocstrings fills in."""
    parts = ["# Reference of the library", "What your own program imports."]
    parts += [f"::: {name}" for name in (*PUBLIC_MODULES, *PUBLIC_NAMES)]
    return "\n\n".join(parts) + "\n"


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
    references = []
    for name, module in PROGRAMS.items():
        command = get_command(import_module(module).app)
        _show_whole_list(command)
        references.append(get_docs_for_click(obj=command, ctx=context, name=name, indent=1))
    return "# Commands\n\n" + "\n".join(references)


def _show_whole_list(command: Any) -> None:
    """List each command with its whole sentence, and also the commands that help texts hide from
    users: processes that manifests start.
    """
    sentence = cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
    command.short_help = f"{sentence} Manifests start it." if command.hidden else sentence
    command.hidden = False
    for subcommand in getattr(command, "commands", {}).values():
        _show_whole_list(subcommand)


def _list_files() -> list[str]:
    process = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for path in process.stdout.split("\0") if path]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""The door `python -m holdfast checkpoints URL` and `... checkpoints export URL`. Bodies import when they run."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_CODES_HELP, EXIT_FINDINGS


class ListByDefault(TyperGroup):
    """`checkpoints URL` means `checkpoints list URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault, help="What is saved, and whether it restores.", epilog=EXIT_CODES_HELP, no_args_is_help=True
)

Url = Annotated[str, typer.Argument(help="file:///dir, a path, or gs://bucket/prefix.")]
Run = Annotated[str | None, typer.Option(help="Name of one run; default: all.")]


@app.command("list")
def list_attempts(
    url: Url,
    run: Run = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read commits and manifests, not the tensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Every attempt: step, bytes, verified or why it is passed over, age, where it resumes. 1: something is damaged."""
    from dataclasses import asdict

    from holdfast.checkpoint.inspection import UNCOMMITTED, rows
    from holdfast.checkpoint.stores import existing_storage

    # All of it before the first line: an error in the middle must not look like a complete table.
    found = list(rows(existing_storage(url), run, read=not quick))
    if as_json:
        attempts = [asdict(row) | {"age_s": round(row.age_s, 1)} for row in found]
        print(json.dumps({"schema": "holdfast.checkpoints/1", "url": url, "attempts": attempts}))
    else:
        _print_table(found)
    # An empty table with exit 0 would let a mistyped run pass for one whose checkpoints are in order.
    if not found:
        print(f"no checkpoint in {url}", file=sys.stderr)
        raise typer.Exit(EXIT_BAD_INPUT)
    # An attempt without a commit is no damage: a save that is being written looks the same.
    if any(not row.sound and row.state != UNCOMMITTED for row in found):
        raise typer.Exit(EXIT_FINDINGS)


def _print_table(found: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    # Off a terminal lines are not cut: a reason is the point of the table.
    console = Console() if sys.stdout.isatty() else Console(width=400, no_color=True)
    table = Table("run", "step", "MB", "age", "ranks", "resumes on", "state", box=None)
    for row in found:
        ranks = str(row.world_size or "")
        table.add_row(
            row.run, str(row.step), f"{row.bytes / 1e6:.1f}", _age(row.age_s), ranks, row.resumes_on, row.state
        )
    console.print(table)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@app.command()
def export(
    url: Url,
    out: Annotated[Path, typer.Option(help="File to create.")],
    run: Run = None,
    keys: Annotated[str, typer.Option(help="Tensors to take; 'model/' takes all below it.")] = "model/",
    to: Annotated[str, typer.Option(help="safetensors")] = "safetensors",
) -> None:
    """Write the newest checkpoint that verifies as one safetensors file."""
    from holdfast.checkpoint.inspection import write_safetensors
    from holdfast.checkpoint.restore import load_tensors
    from holdfast.contract.errors import InputError

    if to != "safetensors":
        raise InputError("export format is not known", got=to, allowed="safetensors", fix="leave --to away")
    # Before the download: it may take minutes, and would end in the same refusal.
    if out.exists():
        raise InputError("file exists", got=str(out), allowed="a new file", fix="choose another --out")
    step, tensors = load_tensors(url, run, keys=keys.split(","))
    if not tensors:
        raise InputError("no tensor has such a key", got=keys, allowed="keys of the state", fix="try --keys model/")
    size = write_safetensors(out, tensors, {"step": str(step), "source": url})
    print(f"{out}: step {step}, {len(tensors)} tensors, {size / 1e6:.1f} MB")

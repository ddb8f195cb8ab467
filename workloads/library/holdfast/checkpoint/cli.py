"""The commands `holdfast checkpoints ...`. Bodies import when they run."""

import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_CODES_HELP, EXIT_FINDINGS
from holdfast.contract.progress import awaited, working


class ListByDefault(TyperGroup):
    """`checkpoints URL` means `checkpoints list URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else "--help"
        # A bare word that is no folder is a command mistyped.
        given = re.search("[/:.]|^-", first) or Path(first).exists()
        if given and first not in (*self.commands, "--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault, help="List, verify, copy and export checkpoints.", epilog=EXIT_CODES_HELP, no_args_is_help=True
)

Url = Annotated[str, typer.Argument(help="file:///dir, a path, or gs://bucket/prefix.")]
Step = Annotated[int | None, typer.Option(help="One step; default: the newest.")]
Mirror = Annotated[str, typer.Option(help="URL of a store with the same objects, for what the first does not give.")]
Run = Annotated[str | None, typer.Option(help="Name of one run; default: all.")]


@app.command(
    "list",
    epilog=examples(
        "python -m holdfast checkpoints list gs://my-bucket/checkpoints",
        "python -m holdfast checkpoints list out/checkpoints --run my-run --quick",
    ),
)
def list_attempts(
    url: Url,
    run: Run = None,
    quick: Annotated[bool, typer.Option("--quick", help="Read commits and manifests, not the tensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    mirror: Mirror = "",
) -> None:
    """Every attempt: step, bytes, verified or why it is passed over, age, where it resumes. 1: something is damaged."""
    from dataclasses import asdict

    from holdfast.checkpoint.inspection import UNCOMMITTED, rows
    from holdfast.contract.errors import InputError

    # All of it before the first line: an error in the middle must not look like a complete table.
    # What is logged on the way, such as that the mirror was read, is no part of the data on standard output.
    with working(f"{'look at' if quick else 'read'} {url}"), redirect_stdout(sys.stderr):
        found = list(rows(_storage(url, mirror), run, read=not quick))
    if as_json:
        attempts = [asdict(row) | {"age_s": round(row.age_s, 1)} for row in found]
        print(json.dumps({"schema": "holdfast.checkpoints/1", "url": url, "attempts": attempts}))
    else:
        show(found)
    # An empty table with exit 0 would let a mistyped run pass for one whose checkpoints are in order.
    if not found:
        raise InputError("no checkpoint is there", got=url if run is None else f"{url}, run {run}", allowed="a URL and run with a save", fix="check both for a typing error")  # fmt: skip
    # An attempt without a commit is no damage: a save that is being written looks the same.
    if any(not row.sound and row.state != UNCOMMITTED for row in found):
        raise typer.Exit(EXIT_FINDINGS)


def show(found: list[Any]) -> None:
    from holdfast.contract.printable import printable
    from holdfast.tables import print_table

    print_table(
        ("run", "step", "MB", "age", "ranks", "resumes on", "state"),
        [
            (
                printable(row.run), row.step, f"{row.bytes / 1e6:.1f}", _age(row.age_s), row.world_size or "",
                row.resumes_on, printable(row.state, 1_000),
            )
            for row in found
        ],
    )  # fmt: skip


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@app.command(
    epilog=examples(
        "python -m holdfast checkpoints export gs://my-bucket/checkpoints --run my-run --out model.safetensors"
    )
)
def export(
    url: Url,
    out: Annotated[Path, typer.Option(help="File or folder to create.")],
    run: Run = None,
    step: Step = None,
    keys: Annotated[str, typer.Option(help="Tensors to take; 'model/' takes all below it.")] = "model/",
    to: Annotated[
        str, typer.Option(help="safetensors, or pretrained: a folder for from_pretrained().")
    ] = "safetensors",
    like: Annotated[Path | None, typer.Option(help="pretrained: folder whose config and tokenizer go along.")] = None,
    mirror: Mirror = "",
) -> None:
    """Write a checkpoint that verifies, the newest by default, in the format of safetensors."""
    from holdfast.checkpoint.exchange import FORMATS, export_to, refuse_existing
    from holdfast.checkpoint.restore.loading import load_tensors, no_such_keys
    from holdfast.contract.errors import InputError

    if to not in FORMATS:
        raise InputError("export format is not known", got=to, allowed=", ".join(FORMATS), fix="choose one of these")
    # Before the download: it may take minutes, and would end in the same refusal.
    refuse_existing(out)
    with working(f"read {url}"):
        found, tensors = load_tensors(url, run, keys=keys.split(","), step=step, mirror=mirror)
    if not tensors:
        raise no_such_keys(keys, _storage(url, mirror), run, found)
    size = export_to(to, out, tensors, {"step": str(found), "source": url}, like=like)
    print(f"{out}: step {found}, {len(tensors)} tensors, {size / 1e6:.1f} MB")


@app.command(
    "copy",
    epilog=examples(
        "python -m holdfast checkpoints copy gs://my-bucket/checkpoints file:///backup --run my-run",
        "python -m holdfast checkpoints copy old/step-1000 gs://my-bucket/checkpoints --import --run my-run --step 1000",
    ),
)
def copy_between(
    source: Annotated[str, typer.Argument(help="URL to copy from; with --import a file or folder.")],
    target: Annotated[str, typer.Argument(help="URL to copy to; what is there already stays.")],
    run: Run = None,
    step: Step = None,
    all_steps: Annotated[bool, typer.Option("--all", help="Every committed step, not the newest alone.")] = False,
    mirror: Mirror = "",
    foreign: Annotated[
        bool, typer.Option("--import", help="SOURCE is a DCP folder, safetensors, or a file of torch.save.")
    ] = False,
    entry: Annotated[str, typer.Option(help="With --import: name in the state of tensors at the top.")] = "model",
    trust: Annotated[bool, typer.Option("--trust", help="With --import: read the pickle of a DCP checkpoint.")] = False,
) -> None:
    """Copy checkpoints to another store, verifying every byte. 1: a damaged one was passed over."""
    from holdfast.checkpoint.inspection import copy_run
    from holdfast.checkpoint.restore.loading import only_run

    if foreign:
        _import(Path(source), target, run, 1 if step is None else step, entry=entry, trust=trust)
        return
    here = _storage(source, mirror)
    there = _storage(target, create=True)
    damaged = False
    copied = copy_run(here, there, run or only_run(here), step, every=all_steps)
    for done, outcome, sound in awaited(f"copy {source}", copied):
        print(f"step {done}: {outcome}")
        damaged |= not sound
    if damaged:
        raise typer.Exit(EXIT_FINDINGS)


def _import(source: Path, url: str, run: str | None, step: int, *, entry: str, trust: bool) -> None:
    """One checkpoint of a file of another program, for Checkpointer or Checkpointer.load."""
    from holdfast.checkpoint.exchange import read_state, write_state
    from holdfast.contract.errors import InputError
    from holdfast.contract.values import between

    between("the step is out of range", step, 1, 10**15)
    if not run:
        raise InputError("an import needs a run", got="no --run", allowed="the name of a run", fix="add --run NAME")
    with working(f"import {source}"):
        state = read_state(source, entry=entry, trust=trust)
        size = write_state(_storage(url, create=True), run, step, state)
    print(f"{url} run {run}: step {step}, entries {', '.join(state)}, {size / 1e6:.1f} MB")


@app.command(
    epilog=examples(
        "python -m holdfast checkpoints prune gs://my-bucket/checkpoints --run my-run --keep 3",
        "python -m holdfast checkpoints prune out/checkpoints --keep 3 --keep-every 1000 --yes",
    )
)
def prune(
    url: Url,
    keep: Annotated[int, typer.Option(help="Newest that stay.", min=1)],
    run: Run = None,
    keep_every: Annotated[int, typer.Option(help="Steps that are a multiple stay.", min=0)] = 0,
    keep_best: Annotated[int, typer.Option(help="Best by their metric stay.", min=0)] = 0,
    highest: Annotated[bool, typer.Option("--highest", help="A higher metric is better.")] = False,
    keep_younger: Annotated[str, typer.Option(help="What is younger stays, such as 6h or 7d.")] = "",
    keep_one_per: Annotated[str, typer.Option(help="The first of each stretch stays, such as 1d.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it only the list is printed.")] = False,
) -> None:
    """Delete committed checkpoints that no option keeps; pinned ones stay. While a trainer runs it does so itself."""
    from holdfast.checkpoint.restore.loading import only_run
    from holdfast.checkpoint.save.retention import Policy, retain, superfluous

    policy = Policy(
        keep=keep,
        keep_every=keep_every,
        keep_best=keep_best,
        highest=highest,
        keep_younger_s=_seconds("--keep-younger", keep_younger),
        keep_one_per_s=_seconds("--keep-one-per", keep_one_per),
    )
    storage = _storage(url)
    name = run or only_run(storage)
    # Listed first also with --yes: what goes is printed while it can still be looked at.
    going = superfluous(storage, name, policy)
    print(f"{name}: {'deleting' if yes else 'would delete'} steps {', '.join(map(str, going)) or 'none'}")
    if yes:
        retain(storage, name, policy)
    elif going:
        print("Next: the same with --yes", file=sys.stderr)


@app.command(epilog=examples("python -m holdfast checkpoints pin gs://my-bucket/checkpoints 1000 --run my-run"))
def pin(
    url: Url,
    step: Annotated[int, typer.Argument(help="Committed step that retention leaves alone from now on.")],
    run: Run = None,
    remove: Annotated[bool, typer.Option("--remove", help="Let retention have it again.")] = False,
) -> None:
    """Keep a step for good."""
    from holdfast.checkpoint.restore.loading import only_run
    from holdfast.checkpoint.save import retention

    storage = _storage(url)
    name = run or only_run(storage)
    (retention.unpin if remove else retention.pin)(storage, name, step)
    print(f"{name}: pinned steps {', '.join(map(str, sorted(retention.pinned(storage, name)))) or 'none'}")


def _storage(url: str, mirror: str = "", *, create: bool = False) -> Any:
    from holdfast.checkpoint.settings import Tuning
    from holdfast.checkpoint.stores.opening import reliable_storage

    # A person waits for the answer: no five minutes, as a trainer has for its store.
    return reliable_storage(url, Tuning(retry_s=60.0), create=create, mirror=mirror)


def _seconds(option: str, text: str) -> float:
    from holdfast.contract.errors import InputError
    from holdfast.contract.values import duration_s

    found = duration_s(text, "smhd") if text else 0.0
    if found is None:
        raise InputError(
            f"{option} is no duration", got=text, allowed="a number and s, m, h or d", fix="write it as 6h"
        )
    return found

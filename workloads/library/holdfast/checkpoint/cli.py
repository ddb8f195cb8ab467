"""The commands `holdfast checkpoints ...`. Bodies import when they run."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.support.examples import examples
from holdfast.support.progress import awaited, working
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP, EXIT_FINDINGS

app = typer.Typer(
    help="List, verify and export checkpoints.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="file:///dir, a path, or gs://bucket/prefix.")]
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
    quick: Annotated[
        bool, typer.Option("--quick", help="Read commits and manifests, not the tensors.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> None:
    """Every attempt: step, bytes, verified or why it is passed over, age. 1: something is damaged."""
    from dataclasses import asdict

    from holdfast.checkpoint.inspection import UNCOMMITTED, rows
    from holdfast.support.errors import InputError

    # All of it before the first line: an error in the middle must not look like a complete table.
    # What is logged on the way is no part of the data on standard output.
    with working(f"{'look at' if quick else 'read'} {url}"), redirect_stdout(sys.stderr):
        found = list(rows(_storage(url), run, read=not quick))
    if as_json:
        attempts = [asdict(row) | {"age_s": round(row.age_s, 1)} for row in found]
        print(
            json.dumps(
                {
                    "schema": "holdfast.checkpoints/1",
                    "url": url,
                    "attempts": attempts,
                }
            )
        )
    else:
        show(found)
    # An empty table with exit 0 would let a mistyped run pass for one whose checkpoints are sound.
    if not found:
        raise InputError(
            "no checkpoint is there",
            got=url if run is None else f"{url}, run {run}",
            allowed="a URL and run with a save",
            fix="check both for a typing error",
        )
    # An attempt without a commit is no damage: a save that is being written looks the same.
    if any(not row.sound and row.state != UNCOMMITTED for row in found):
        raise typer.Exit(EXIT_FINDINGS)


def show(found: list[Any]) -> None:
    from holdfast.support.printable import printable
    from holdfast.support.tables import print_table

    print_table(
        ("run", "step", "MB", "age", "ranks", "state"),
        [
            (
                printable(row.run),
                row.step,
                f"{row.bytes / 1e6:.1f}",
                _age(row.age_s),
                row.world_size or "",
                printable(row.state, 1_000),
            )
            for row in found
        ],
    )


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@app.command(
    epilog=examples(
        "python -m holdfast checkpoints export gs://my-bucket/checkpoints --run my-run --out"
        " model.safetensors"
    )
)
def export(
    url: Url,
    out: Annotated[Path, typer.Option(help="File to create.")],
    run: Run = None,
    step: Annotated[int | None, typer.Option(help="One step; default: the newest.")] = None,
    keys: Annotated[
        str, typer.Option(help="Tensors to take; 'model/' takes all below it.")
    ] = "model/",
) -> None:
    """Write a checkpoint that verifies, the newest by default, as a safetensors file. As
    model.safetensors next to a config.json, from_pretrained() loads it.
    """
    from holdfast.checkpoint.restore import loading

    # Before the download: it may take minutes, and would end in the same refusal.
    loading.refuse_existing(out)
    with working(f"read {url}"):
        found, tensors = loading.load_tensors(
            url,
            run,
            keys=keys.split(","),
            step=step,
        )
    if not tensors:
        raise loading.no_such_keys(keys, _storage(url), run, found)
    notes = {
        "format": "pt",
        "step": str(found),
        "source": url,
    }
    size = loading.write_safetensors(out, loading.in_one_entry(tensors), notes)
    print(f"{out}: step {found}, {len(tensors)} tensors, {size / 1e6:.1f} MB")


@app.command(
    "verify-exact",
    epilog=examples(
        "python -m holdfast checkpoints verify-exact --steps 12 -- python train.py --small"
    ),
)
def verify_exact(
    command: Annotated[
        list[str], typer.Argument(help="After --: what trains, such as python train.py --small.")
    ],
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=4)] = 12,
    timeout: Annotated[
        int,
        typer.Option(
            help="Seconds for all starts together.",
            min=1,
            max=86400,
        ),
    ] = 1800,
) -> None:
    """Train undisturbed, then killed and resumed in several ways, and compare the bits. 1: they
    differ, and why; the first difference ends it.

    Checkpoints go to a folder of their own, whatever URL the script has; files that it writes
    itself are written.
    """
    import tempfile

    from holdfast.checkpoint.verify_exact import verify

    exact = True
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-") as folder:
        verdicts = verify(
            command,
            Path(folder),
            steps=steps,
            timeout_s=timeout,
        )
        for verdict in awaited("train, killed and resumed", verdicts):
            if verdict.resumed_at is None:
                resumed = "not resumed"
            else:
                resumed = f"resumed at {verdict.resumed_at}"
            place = f"{verdict.death} at step {verdict.at}, {resumed}"
            print(f"{place}: {verdict.finding or 'exact'}", flush=True)
            exact &= not verdict.finding
            # the other ways to die would show the same cause, at the price of two starts each
            if not exact:
                break
    if not exact:
        raise typer.Exit(EXIT_FINDINGS)


def _storage(url: str) -> Any:
    from holdfast.checkpoint.restore.loading import FOR_PEOPLE
    from holdfast.checkpoint.stores.opening import reliable_storage

    return reliable_storage(url, FOR_PEOPLE)

"""The commands `holdfast checkpoints ...`. Each imports what it needs when it runs."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.support.command_line import CommandGroup
from holdfast.support.duration_option import duration_option
from holdfast.support.examples import examples
from holdfast.support.progress import show_waiting, working
from holdfast.support.tables import print_json
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP, EXIT_FINDINGS

if TYPE_CHECKING:
    from holdfast.checkpoint.format import Commit
    from holdfast.checkpoint.inspection import Row
    from holdfast.checkpoint.stores.storage import Storage

app = typer.Typer(
    cls=CommandGroup,
    help="List, verify, import, export and branch checkpoints.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="file:///dir, a path, or gs://bucket/prefix.")]
Run = Annotated[str | None, typer.Option(help="Name of one run; default: all.")]

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command(
    "list",
    epilog=examples(
        "holdfast checkpoints list gs://my-bucket/checkpoints",
        "holdfast checkpoints list out/checkpoints --run my-run --quick",
    ),
)
def list_attempts(
    url: Url,
    run: Run = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read commits and manifests, not the tensors.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List every attempt: step, bytes, age, and whether it verifies or why it is skipped. Exit code
    1: something is damaged.
    """
    from dataclasses import asdict

    from holdfast.checkpoint.inspection import UNCOMMITTED, rows
    from holdfast.support.errors import InputError

    # All of it before the first line: an error in the middle must not look like a complete table.
    # What is logged on the way is no part of the data on standard output.
    with working(f"{'look at' if quick else 'read'} {url}"), redirect_stdout(sys.stderr):
        table = list(rows(_open_storage(url), run, read=not quick))
    if as_json:
        attempts = [asdict(row) | {"age_s": round(row.age_s, 1)} for row in table]
        document = {
            "schema": "holdfast.checkpoints/1",
            "url": url,
            "attempts": attempts,
        }
        print(json.dumps(document))
    else:
        print_attempts(table)
    # An empty table with exit 0 would let a mistyped run pass for one whose checkpoints are sound.
    if not table:
        raise InputError(
            "no checkpoint found",
            got=url if run is None else f"{url}, run {run}",
            allowed="a URL and run with a save",
            fix="check both for a typing error",
        )
    # An attempt without a commit is no damage: a save that is being written looks the same.
    if any(not row.sound and row.state != UNCOMMITTED for row in table):
        raise typer.Exit(EXIT_FINDINGS)


def print_attempts(table: list["Row"]) -> None:
    from holdfast.support.printable import printable
    from holdfast.support.tables import print_table

    cells: list[tuple[object, ...]] = []
    for row in table:
        cells.append(
            (
                printable(row.run),
                row.step,
                f"{row.bytes / 1e6:.1f}",
                _format_age(row.age_s),
                row.world_size or "",
                printable(row.state, 1_000),
            )
        )
    print_table(("run", "step", "MB", "age", "ranks", "state"), cells)


def _format_age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@app.command(
    epilog=examples(
        "holdfast checkpoints export gs://my-bucket/checkpoints --run my-run --out"
        " model.safetensors",
        "holdfast checkpoints export out/checkpoints --to hf --out out/model",
    )
)
def export(
    url: Url,
    out: Annotated[Path, typer.Option(help="File or folder to create.")],
    to: Annotated[
        str,
        typer.Option(help="file: one safetensors file; hf: sharded, with an index; dcp."),
    ] = "file",
    run: Run = None,
    step: Annotated[int | None, typer.Option(help="One step; default: the newest.")] = None,
    keys: Annotated[
        str, typer.Option(help="Tensors to take; 'model/' takes all below it.")
    ] = "model/",
    adapter_config: Annotated[
        Path | None,
        typer.Option(help="Write an adapter as PEFT does, with this adapter_config.json."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="Name of the adapter; needed if there are several.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint that verifies, the newest by default, in another format. Next to a
    config.json, from_pretrained() loads model.safetensors and the folder of hf.
    """
    from holdfast.checkpoint.interchange.commands import export_checkpoint
    from holdfast.checkpoint.restore.tensor_loading import refuse_existing

    # Before the download, which may take minutes and would end in the same error.
    refuse_existing(out)
    with working(f"read {url}"):
        exported = export_checkpoint(
            _open_storage(url),
            run,
            step,
            keys,
            out,
            to,
            adapter=adapter,
            adapter_config=adapter_config,
        )
    if as_json:
        print_json(
            "export",
            out=str(out),
            step=exported.step,
            tensors=exported.tensors,
            bytes=exported.bytes,
        )
        return
    size = f"{exported.bytes / 1e6:.1f} MB"
    print(f"{out}: step {exported.step}, {exported.tensors} tensors, {size}")


@app.command(
    "import",
    epilog=examples("holdfast checkpoints import out/dcp out/checkpoints --run my-run"),
)
def import_(
    source: Annotated[
        Path,
        typer.Argument(help="A folder of DCP or safetensors, or a file of torch.save."),
    ],
    url: Url,
    run: Annotated[str, typer.Option(help="Name of the new run.")],
    entry: Annotated[
        str, typer.Option(help="Entry of the state that gets tensors without one.")
    ] = "model",
    step: Annotated[int, typer.Option(help="Steps that it has been trained for.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Write a checkpoint of another format as the first one of a run. Code in a file of torch.save
    is refused and never run.
    """
    from holdfast.checkpoint.interchange.commands import import_checkpoint

    with working(f"read {source}"):
        commit = import_checkpoint(
            source,
            _open_storage(url, create=True),
            run,
            entry=entry,
            step=step,
        )
    _print_copy(url, run, commit, as_json=as_json)


@app.command(
    epilog=examples(
        "holdfast checkpoints branch out/checkpoints --run my-run --step 400 --to try-2"
    )
)
def branch(
    url: Url,
    run: Annotated[str, typer.Option(help="Name of the run to copy from.")],
    to: Annotated[str, typer.Option(help="Name of the new run.")],
    step: Annotated[int | None, typer.Option(help="One step; default: the newest.")] = None,
    into: Annotated[
        str | None, typer.Option(help="URL of the new run; default: the same store.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy a step of a run to be the first checkpoint of a new run, with all of its state. It also
    reads a run's folder that was copied under another name.
    """
    from holdfast.checkpoint.interchange.commands import branch as copy_step

    storage = _open_storage(url)
    target = storage if into is None else _open_storage(into, create=True)
    with working(f"copy {run}"):
        commit = copy_step(storage, run, step, target, to)
    _print_copy(into or url, to, commit, as_json=as_json)


@app.command(
    epilog=examples("holdfast checkpoints back out/checkpoints --run my-run --step 400 --yes")
)
def back(
    url: Url,
    run: Annotated[str, typer.Option(help="Name of the run.")],
    step: Annotated[int, typer.Option(help="Step that the next start restores.", min=0)],
    yes: Annotated[bool, typer.Option("--yes", help="Delete the commits of newer steps.")] = False,
    as_json: Json = False,
) -> None:
    """Make an older step the newest one, after a loss spike. Stop the job first; a trainer that
    still runs ends at its next save.
    """
    from holdfast.checkpoint.interchange.commands import go_back

    with working(f"read {url}"):
        deleted = go_back(_open_storage(url), run, step, confirmed=yes)
    if as_json:
        print_json("back", url=url, run=run, step=step, deleted=list(deleted))
        return
    removed = ", ".join(map(str, deleted)) or "none"
    print(f"{url}: run {run} continues from step {step}; deleted steps: {removed}")


@app.command(
    "verify-exact",
    epilog=examples("holdfast checkpoints verify-exact --steps 12 -- python train.py --small"),
)
def verify_exact(
    command: Annotated[
        list[str],
        typer.Argument(help="After --: the training command, such as python train.py --small."),
    ],
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=4)] = 12,
    timeout: Annotated[
        float,
        duration_option("Time for all starts together: 1s to 1d."),
    ] = 1800.0,
    as_json: Json = False,
) -> None:
    """Train undisturbed, then killed and resumed in several ways, and compare the bits. Exit code
    1: they differ. It prints the first difference with its cause, and stops there.

    Checkpoints go to a temporary folder, whatever URL the script has; files that the script writes
    itself are written.
    """
    import tempfile
    from dataclasses import asdict

    from holdfast.checkpoint.verify_exact import verify
    from holdfast.support.values import between

    between("--timeout", timeout, 1, 86_400)
    exact = True
    deaths: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-") as folder:
        results = verify(
            command,
            Path(folder),
            steps=steps,
            timeout_s=timeout,
        )
        for result in show_waiting("train, killed and resumed", results):
            if result.resumed_at is None:
                resumed = "not resumed"
            else:
                resumed = f"resumed at {result.resumed_at}"
            event = f"{result.death} at step {result.step}, {resumed}"
            stream = sys.stderr if as_json else sys.stdout
            print(f"{event}: {result.finding or 'exact'}", file=stream, flush=True)
            deaths.append(asdict(result))
            exact &= not result.finding
            # The other ways to die would show the same cause, at the price of two starts each.
            if not exact:
                break
    if as_json:
        print_json("verify-exact", exact=exact, deaths=deaths)
    if not exact:
        raise typer.Exit(EXIT_FINDINGS)


def _print_copy(url: str, run: str, commit: "Commit", *, as_json: bool) -> None:
    if as_json:
        print_json("checkpoint-copy", url=url, run=run, step=commit.step, bytes=commit.total_bytes)
        return
    print(f"{url}: run {run}, step {commit.step}, {commit.total_bytes / 1e6:.1f} MB")


def _open_storage(url: str, *, create: bool = False) -> "Storage":
    from holdfast.checkpoint.restore.tensor_loading import FOR_PEOPLE
    from holdfast.checkpoint.stores.factory import reliable_storage

    return reliable_storage(url, FOR_PEOPLE, create=create)

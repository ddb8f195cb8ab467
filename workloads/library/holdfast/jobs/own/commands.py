"""What `new-job` does with a job that has the right form, and how `submit` reads its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.jobs import show, submit
from holdfast.jobs.own import file_text
from holdfast.jobs.own.job_file import OwnJob
from holdfast.jobs.own.prepared import Prepared, prepare
from holdfast.place import prices
from holdfast.platform import Platform

SCHEMA = "holdfast.new-job/1"


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`["A=b"]` -> `{"A": "b"}`."""
    found: dict[str, str] = {}
    for text in given or ():
        key, joined, value = text.partition("=")
        if not joined or key in found:
            why = "twice" if key in found else "no ="
            raise InputError(
                option, got=f"{text} ({why})", allowed="NAME=VALUE, each name once", fix=f"{option} NAME=VALUE"
            )
        found[key] = value
    return found


def nodes(given: str) -> int | str:
    """`8` -> 8; what is no number is judged with the rest of the job."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else given


def new_job(job: OwnJob, platform: Platform, file: Path, folder: Path | None, *, force: bool, as_json: bool) -> None:
    prepared = prepare(job, platform)
    # A role keeps its name in the file, so that the job follows the images of the environment.
    text = file_text.dump(prepared.job if "@" in prepared.job.image and "/" in job.image else job)
    written = {file: text} | ({folder / f"{job.name}.yaml": prepared.text} if folder else {})
    _write(written, force=force)
    bought = plan(prepared, submit.Caps(), None)
    if as_json:
        show.as_json(_as_json(prepared, bought, [str(path) for path in written]))
    else:
        show.plan(bought, str(file))
    _notes(prepared)
    for path in written:
        show.note(f"wrote {path}")
    show.note(f"Next: holdfast submit {file}")


def plan(prepared: Prepared, caps: submit.Caps, hours: float | None) -> submit.Plan:
    return submit.plan(prepared.bodies, prepared.platform, prices.load(), caps, hours or prepared.job.hours or None)


def read(document: Any, path: Path, platform: Platform) -> Prepared:
    """The job of a file that `submit` was given."""
    prepared = prepare(file_text.parse(document, str(path)), platform)
    _notes(prepared)
    return prepared


def _notes(prepared: Prepared) -> None:
    for note in prepared.notes:
        show.note(note)


def _as_json(prepared: Prepared, bought: submit.Plan, written: list[str]) -> dict[str, Any]:
    job = bought.as_json() | {"schema": SCHEMA, "job": prepared.job.name, "image": prepared.job.image}
    return job | {"written": written, "rule": prepared.placed.rule.value, "notes": prepared.notes}


def _write(written: dict[Path, str], *, force: bool) -> None:
    """All or none: what stands in the way is found first."""
    for path, text in written.items():
        if path.exists() and not force and path.read_text(encoding="utf-8") != text:
            raise InputError(
                "a file with something else in it", got=path, allowed="a new file", fix="--force, or --out FILE"
            )
        if path.parent.exists() and not path.parent.is_dir():
            raise InputError("no folder", got=path.parent, allowed="a folder", fix="choose another")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

"""Reads and writes the text of a job file, and turns the job into the planner's question.

A written file has a comment for each field; reading it raises an error for each wrong field.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.jobs.file import sweep_points
from holdfast.jobs.file.documents import FileKind, read_option
from holdfast.jobs.file.job_file import JobSpec
from holdfast.place.job import Job, Offered
from holdfast.support.errors import InputError
from holdfast.support.values import finite
from holdfast.vocabulary.capacity import Capacity

SCHEMA = "holdfast.job/1"
CHECKPOINT_H = 30 / 3600  # what a save blocks, until the job has shown what it does
ALWAYS = ("name", "environment", "image", "command", "gpus", "nodes", "capacity")
SCHEMA_FILE = str(Path(__file__).with_name("job.schema.json"))
WRITE_COMMAND = "`holdfast new-job NAME --image IMAGE -- COMMAND` writes a job file"
_HEAD = f"""\
# `holdfast submit FILE` shows the price of this job and starts it.
schema: {SCHEMA}
"""
KIND = FileKind(
    entry=JobSpec,
    schema=SCHEMA,
    schema_file=SCHEMA_FILE,
    command="holdfast new-job",
)


def dump(job: JobSpec) -> str:
    """Return a short file: the fields that every job needs and those that differ from the default.

    The other fields follow as comments.
    """
    return KIND.dump(job, _HEAD, always=ALWAYS)


def is_job(document: Any) -> bool:
    return KIND.describes(document)


def parse(document: dict[str, Any], source: str) -> JobSpec:
    """Return the job of a document.

    Raises InputError, which names the file and the field. An empty `sweep` is refused too: a
    program that writes job files would otherwise start one run without parameters.
    """
    if document.get("sweep", True) == {}:
        raise InputError(
            f"{source}: sweep",
            got="no parameter",
            allowed="parameters with values, or no sweep",
            fix=f"as {sweep_points.EXAMPLE}, or leave it out",
        )
    return KIND.parse(document, source)


def assign(assignments: Sequence[str], options: dict[str, Any]) -> JobSpec:
    """Return the job of option values and of each FIELD=VALUE.

    Raises InputError as for a file, and for a field that is given twice.
    """
    types = {field.name: field.metadata["schema"]["type"] for field in fields(JobSpec)}
    values = {key: read_option(value, types[key]) for key, value in options.items()}
    for text in assignments:
        key, equals, value = text.partition("=")
        name, _, entry = key.partition(".")
        kind = types.get(name, "")
        is_mapping = "object" in kind
        target = values.setdefault(name, {}) if is_mapping else values
        last = entry if is_mapping else key
        if not equals or not last or last in target:
            reason = "given twice" if last in target else "no FIELD=VALUE"
            raise InputError(
                "--set",
                got=f"{text} ({reason})",
                allowed=(
                    "FIELD=VALUE, FIELD.NAME=VALUE of env, secrets and claims, and"
                    " sweep.NAME=VALUE,VALUE, each once"
                ),
                fix="--set restarts=5 --set env.MODE=fast --set sweep.SEED=1,2,3",
            )
        if name == "sweep":
            target[last] = value.split(",") if value else []
        elif name == "speeds":
            target[last] = read_option(value, "number")
        else:
            target[last] = value if is_mapping else read_option(value, kind)
    return parse({"schema": SCHEMA} | values, "new-job")


def make_question(job: JobSpec, offers: Mapping[Capacity, Offered] | None = None) -> Job:
    """Return the planner's question about the job.

    offers: what its platform has; None: all that Google sells.
    """
    return Job(
        accelerator=job.accelerator,
        gpus=job.gpu_count * job.pods,
        hours=job.hours * job.rounds,
        deadline_h=job.deadline_hours or math.inf,
        limit_h=job.max_hours or math.inf,
        checkpoint_h=CHECKPOINT_H if job.resumes else math.inf,
        batch=bool(job.predictor),
        min_nodes=job.min_nodes if job.elastic else 0,
        max_nodes=job.pods if job.elastic else 0,
        sharded=job.pods if job.sharded and job.copies else 0,
        pods=job.pods if offers else 0,
        offers=offers or {},
    )


def read_question(path: Path) -> JobSpec:
    """Return the job of a file, if it says what the planner asks.

    Raises InputError, which names the file and the field.
    """
    document = find_job(read_documents(path), path)
    if document is None:
        raise InputError(
            "no job file",
            got=f"{path} without schema: {SCHEMA}",
            allowed="a file that new-job wrote",
            fix="holdfast new-job NAME",
        )
    job = parse(document, str(path))
    if not job.gpu_count:
        raise InputError(
            "gpus of the job",
            got=job.gpus,
            allowed="COUNTxGPU, as 8xa100",
            fix="placement is about GPUs",
        )
    if not job.hours:
        raise InputError(
            "hours of the job",
            got="none",
            allowed="hours above 0",
            fix=f"add `hours: 40` to {path.name}",
        )
    return job


def find_job(documents: Sequence[Any], path: Path) -> dict[str, Any] | None:
    """Return the job of a file, or None. Raises InputError for a job next to another document."""
    return KIND.find(documents, path)


def read_documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file, of any kind.

    Raises InputError if there is no file, or it cannot be read. The linter's reader bounds size,
    depth and what aliases and merges expand to.
    """
    from holdfast.lint import document

    if not path.is_file():
        raise _no_such_file(path)
    try:
        if path.stat().st_size > document.MAX_FILE_BYTES:
            raise _unreadable(path, f"more than {document.MAX_FILE_BYTES:,} bytes")
        documents = list(document.read(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    for parsed in documents:
        for trouble in parsed.troubles:
            reason = f"line {trouble.mark.line}: {trouble.message}"
            if trouble.kind == "duplicate":
                raise InputError(
                    "a key comes twice",
                    got=f"{path}: {reason}",
                    allowed="each key once",
                    fix="remove one of the two; only the second would count",
                )
            raise _unreadable(path, reason)
        # JSON, in which all goes to the API server, knows no other numbers
        if finite(parsed.value) != parsed.value:
            raise _unreadable(path, "a number that is infinite or none (.inf, .nan)")
    return [parsed.value for parsed in documents]


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        "manifest cannot be read",
        got=f"{path}: {reason}",
        allowed="a YAML file",
        fix="correct it there, or write it again",
    )


def _no_such_file(path: Path) -> InputError:
    files = sorted(map(str, path.parent.glob("*.yaml")))
    matches = get_close_matches(str(path), files, n=1)
    return InputError(
        "no such manifest",
        got=path,
        allowed=", ".join(files[:6]) or "a YAML file",
        fix=f"did you mean {matches[0]}?" if matches else WRITE_COMMAND,
    )

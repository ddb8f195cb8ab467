"""The job file as text: written with a comment for each field, read with an error for each fault;
and the planner's question.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from holdfast.jobs.file.job_file import OwnJob
from holdfast.place.job import Job
from holdfast.platform import Platform
from holdfast.support.errors import InputError

SCHEMA = "holdfast.job/1"
CHECKPOINT_H = 30 / 3600  # what a save blocks, until the job has shown what it does
ALWAYS = ("name", "environment", "image", "command", "gpus", "nodes", "capacity")
SCHEMA_FILE = "workloads/library/holdfast/jobs/file/job.schema.json"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# `holdfast submit FILE` shows the price of this job and starts it.
schema: {SCHEMA}
"""
_REST = "\n# Other fields with their defaults:\n"


def dump(job: OwnJob) -> str:
    """Short: the fields that every job needs, those that were stated, and the rest as comments."""
    values = asdict(job)
    stated = _HEAD
    rest = _REST
    for each in fields(OwnJob):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        lines = _lines(each.name, values[each.name])
        if each.name in ALWAYS or values[each.name] != default:
            stated += f"# {each.metadata['about']}\n{lines}"
        else:
            rest += f"# {each.metadata['about']}\n" + "".join(
                f"#   {line}\n" for line in lines.splitlines()
            )
    return stated + rest


def is_job(document: Any) -> bool:
    return isinstance(document, dict) and str(document.get("schema", "")).startswith(
        SCHEMA.partition("/")[0] + "/"
    )


def parse(document: dict[str, Any], where: str) -> OwnJob:
    """InputError names the file and the field."""
    if document.get("schema") != SCHEMA:
        got = document.get("schema")
        fix = "write it again with `holdfast new-job`"
        raise InputError(
            f"{where}: schema",
            got=got,
            allowed=SCHEMA,
            fix=fix,
        )
    given = {key: value for key, value in document.items() if key != "schema"}
    known = {each.name: each for each in fields(OwnJob)}
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            fix = f"did you mean {near[0]}?" if near else f"see {SCHEMA_FILE}"
            raise InputError(
                f"{where}: unknown field",
                got=key,
                allowed=", ".join(known),
                fix=fix,
            )
    try:
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in given.items()
        }
        return OwnJob(**values)
    except InputError as error:
        raise InputError(
            f"{where}: {error.what}",
            got=error.got,
            allowed=error.allowed,
            fix=error.fix,
        ) from error
    except TypeError as error:
        missing = [
            n
            for n, each in known.items()
            if n not in given and each.default is each.default_factory is MISSING
        ]
        raise InputError(
            f"{where}: a field is missing",
            got=error,
            allowed=", ".join(missing),
            fix="add it",
        ) from error


def assigned(given: Sequence[str], stated: dict[str, Any]) -> OwnJob:
    """The job of `stated` fields and of each FIELD=VALUE. InputError as for a file, and for a field
    that is given twice.
    """
    known = {each.name: each.metadata["schema"]["type"] for each in fields(OwnJob)}
    found = {key: _read(value, known[key]) for key, value in stated.items()}
    for text in given:
        key, joined, value = text.partition("=")
        name, _, entry = key.partition(".")
        kinds = known.get(name, "")
        by_name = kinds == "object"
        place, last = (found.setdefault(name, {}), entry) if by_name else (found, key)
        if not joined or not last or last in place:
            why = "given twice" if last in place else "no FIELD=VALUE"
            allowed = "FIELD=VALUE, and FIELD.NAME=VALUE of env, secrets and claims, each once"
            fix = "--set restarts=5 --set env.MODE=fast"
            raise InputError(
                "--set",
                got=f"{text} ({why})",
                allowed=allowed,
                fix=fix,
            )
        place[last] = value if by_name else _read(value, kinds)
    return parse({"schema": SCHEMA} | found, "new-job")


def question(job: OwnJob, gpus: int, offered: frozenset[str]) -> Job:
    """The question to the planner about the job on `gpus` GPUs in all, of these machine types;
    empty: of any.
    """
    return Job(
        accelerator=job.accelerator,
        gpus=gpus,
        hours=job.hours,
        deadline_h=job.deadline_hours or math.inf,
        checkpoint_h=CHECKPOINT_H if job.resumes else math.inf,
        batch=bool(job.predictor),
        min_nodes=job.min_nodes if job.elastic else 0,
        max_nodes=job.pods if job.elastic else 0,
        sharded=job.pods if job.sharded and job.copies else 0,
        offered=offered,
    )


def question_of(path: Path, platform: Platform | None, offered: frozenset[str]) -> Job:
    """The question to the planner about the job of a file. InputError names the file and the field."""
    from holdfast.jobs.submit import submission

    documents = submission.documents_of(path)
    if not documents or not is_job(documents[0]):
        raise InputError(
            "no job file",
            got=f"{path} without schema: {SCHEMA}",
            allowed="a file that new-job wrote",
            fix="holdfast new-job NAME",
        )
    job = parse(documents[0], str(path))
    if platform is not None and platform.name != job.environment:
        raise InputError(
            f"{path} is a job of another platform",
            got=job.environment,
            allowed=platform.name,
            fix="--platform with the document of its environment",
        )
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
    return question(job, job.gpu_count * job.pods, offered)


def _read(value: Any, kinds: str | list[str]) -> Any:
    """As YAML has it: numbers and words like true are texts on a command line. What is none is left
    to the checks.
    """
    if not isinstance(value, str):
        return value
    if "boolean" in kinds:
        return {"true": True, "false": False}.get(value, value)
    if "integer" in kinds and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    if "number" in kinds and re.fullmatch("[0-9]{1,9}([.][0-9]{1,9})?", value):
        return float(value)
    return value


def _lines(key: str, value: Any) -> str:
    yaml = YAML()
    stream = io.StringIO()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({key: list(value) if isinstance(value, tuple) else value}, stream)
    return stream.getvalue()

"""The question of `place` from a job file, as `holdfast new-job` writes it.

Only what placement needs is read and checked here; `submit` checks the whole file.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.contract import node_range
from holdfast.contract.errors import InputError
from holdfast.contract.values import between
from holdfast.place import job

SCHEMA = "holdfast.job/1"
MAX_BYTES = 1_000_000
_GPUS = re.compile(r"(\d{1,4})x(.{1,64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Of the options of `place`, those that a file states; deadline and checkpoint as they are typed."""

    gpu: str
    gpus: int
    nodes: str
    """`4..8` of an elastic gang; empty: one number."""
    hours: str
    deadline: str
    checkpoint: str
    environment: str


def read(path: Path) -> Asked:
    """InputError names the file and the field."""
    body = _document(path)
    count, gpu = _gpus(body.get("gpus", "none"))
    least, nodes = node_range.parse(body.get("nodes", 1), job.MAX_GPUS)
    hours = _number(body, "hours", 0, 0, job.MAX_HOURS)
    deadline = _number(body, "deadline_hours", 0, 0, job.MAX_HOURS)
    if not hours:
        raise InputError("hours of the job", got="none", allowed="hours above 0", fix=f"add `hours: 40` to {path.name}")
    return Asked(
        gpu=gpu, gpus=count * nodes, nodes=f"{least}..{nodes}" if least < nodes else "", hours=f"{hours:g}",
        deadline=f"{deadline:g}h" if deadline else "none",
        checkpoint=job.QUEUE if body.get("predictor", "") else "30s" if body.get("resumes", True) is True else "none",
        environment=str(body.get("environment", "")),
    )  # fmt: skip


def _document(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is larger than any job file")
        body: Any = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError, RecursionError) as error:
        raise InputError(
            "job file", got=f"{path}: {error}"[:300], allowed="a YAML file", fix="check the path"
        ) from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise InputError(
            "job file", got=f"{path} without schema: {SCHEMA}", allowed="a file that new-job wrote",
            fix="holdfast new-job NAME",
        )  # fmt: skip
    return body


def _gpus(text: object) -> tuple[int, str]:
    found = _GPUS.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) < 1:
        raise InputError("gpus of the job", got=text, allowed="COUNTxGPU, as 8xa100", fix="placement is about GPUs")
    return int(found[1]), found[2]


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name, default)
    between(f"{name} of the job", value, low, high)
    return value

"""The file that `submit` is given: read, judged as far as its price needs it, and narrowed to one job."""

import math
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.clients.api import Object
from holdfast.contract.errors import InputError, Stopped
from holdfast.contract.kubernetes import LABEL_NAME
from holdfast.jobs.job_snapshot import JobSnapshot
from holdfast.jobs.nodes import gpus
from holdfast.platform import Platform

KINDS = ("Job", "JobSet", "Deployment")
RENDERED = Path("workloads/rendered")
_RENDER = "`python -m workloads render` writes manifests with jobs"


def documents(path: Path) -> list[Any]:
    """What stands in a YAML file, whatever it is; InputError where there is none, or it cannot be read."""
    if not path.is_file():
        raise _no_such_file(path)
    return _documents(path)


def environment(path: Path) -> str:
    """That the manifest names, as a rendered one does; empty: none."""
    from holdfast.lint import engine

    return engine.named_by(path.read_text())


def require_of(path: Path, platform: Platform) -> None:
    """Raises Stopped where the file names another environment than the platform's."""
    named = environment(path)
    if named and named != platform.name:
        raise Stopped(
            "the manifest is of another environment", got=f"{path}: {named}", allowed=str(platform),
            fix=f"choose the cluster of {named}, or the file of {platform.name}",
        )  # fmt: skip


def read(path: Path) -> list[Object]:
    """The documents of a manifest; InputError where one is no object, or none is a job."""
    return checked(path, documents(path))


def checked(path: Path, documents: list[Any]) -> list[Object]:
    for number, document in enumerate(documents, start=1):
        _check(document, f"{path}, document {number}")
    if not any(doc["kind"] in KINDS for doc in documents):
        kinds = ", ".join(doc["kind"] for doc in documents) or "nothing"
        raise InputError("no job in the manifest", got=f"{path}: {kinds}", allowed=" or ".join(KINDS), fix=_RENDER)
    return documents


def _documents(path: Path) -> list[Any]:
    """Through the linter's reader, which bounds size, depth and what aliases and merges expand to."""
    from holdfast.lint import document

    try:
        if path.stat().st_size > document.MAX_FILE_BYTES:
            raise _unreadable(path, f"more than {document.MAX_FILE_BYTES:,} bytes")
        found = list(document.read(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    for each in found:
        for trouble in each.troubles:
            raise _unreadable(path, f"line {trouble.mark.line}: {trouble.message}")
        if not _is_finite(each.value):
            raise _unreadable(path, "a number that is infinite or none (.inf, .nan)")
    return [each.value for each in found]


def _is_finite(value: Any) -> bool:
    """JSON, in which all goes to the API server, knows no other numbers."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        "manifest cannot be read", got=f"{path}: {why}", allowed="a YAML file", fix="give a rendered file"
    )


def _no_such_file(path: Path) -> InputError:
    beside = path.parent.glob("*.yaml") if path.parent != Path() else ()
    known = sorted(map(str, beside)) or sorted(map(str, RENDERED.glob("*/samples/[!k]*.yaml")))
    near = get_close_matches(str(path), known, n=1)
    fix = f"did you mean {near[0]}?" if near else _RENDER
    return InputError("no such manifest", got=path, allowed=", ".join(known[:6]) or "a YAML file", fix=fix)


def _check(document: Any, where: str) -> None:
    """As much of its form as is read here; the API server judges the rest."""
    try:
        known = all(document[key] and isinstance(document[key], str) for key in ("apiVersion", "kind"))
        known = known and isinstance(document["metadata"]["name"], str)
        if known and document["kind"] in KINDS:
            job = JobSnapshot(body=document, pods=[])
            known = job.size >= 0 and gpus(job.pod_spec) >= 0 and bool(job.pod_spec["containers"])
            known = known and isinstance(job.pod_spec.get("nodeSelector", {}), dict)
            tolerations = job.pod_spec.get("tolerations", [])
            known = known and isinstance(tolerations, list) and all(isinstance(t, dict) for t in tolerations)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _incomplete(f"{where}: {type(error).__name__} {error}") from error
    if not known:
        raise _incomplete(where)


def _incomplete(got: str) -> InputError:
    allowed = "apiVersion, kind, metadata.name, and of a job its parallelism and pod template"
    return InputError("not a Kubernetes object", got=got, allowed=allowed, fix=_RENDER)


def only(documents: list[Object], job: str) -> list[Object]:
    """`job` and everything that is no job, nor named after another one; all of them where no job is named.

    A rendered job is known by its name with and without the digest of its template.
    """
    jobs = [doc for doc in documents if doc["kind"] in KINDS]
    names = [doc["metadata"]["name"] for doc in jobs]
    if job and not any(job in _names(doc) for doc in jobs):
        near = get_close_matches(job, names, n=1)
        fix = f"did you mean {near[0]}?" if near else "leave --job out for all of them"
        raise InputError("no such job in the manifest", got=job, allowed=", ".join(names), fix=fix)
    others = [doc for doc in jobs if job and job not in _names(doc)]
    theirs = {_names(doc)[1] for doc in others} - {""}
    return [doc for doc in documents if doc not in others and _names(doc)[1] not in theirs]


def _names(document: Object) -> tuple[str, str]:
    meta = document["metadata"]
    return meta["name"], (meta.get("labels") or {}).get(LABEL_NAME, "")

"""`submit FILE`: read it, say what it buys, refuse over a cap, then apply it as it is.

Nothing is sent before the price has been shown and the cap has been met.
"""

import math
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api, ApiError, Object, fix_of_unchangeable
from holdfast.cost.prices import Table
from holdfast.jobs.diagnose.cluster_snapshot import gpus
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.plan import pricing
from holdfast.jobs.plan.pricing import Purchase
from holdfast.platform import Platform
from holdfast.support.errors import InputError, Stopped, Unjudged
from holdfast.support.values import finite
from holdfast.vocabulary.kubernetes import LABEL_NAME

SCHEMA = "holdfast.purchase/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    environment: str
    documents: list[Object]
    purchases: list[Purchase]
    price_date: str
    refusals: list[str]
    """Empty: within the cap."""

    @property
    def usd_per_hour(self) -> float | None:
        rates = [bought.usd_per_hour for bought in self.purchases]
        if None in rates:
            return None
        return sum(rate for rate in rates if rate is not None)

    def as_json(self) -> dict[str, Any]:
        head = {
            "schema": SCHEMA,
            "usd_per_hour": self.usd_per_hour,
            "price_date": self.price_date,
        }
        return head | {
            "refusals": self.refusals,
            "purchases": [asdict(row) for row in self.purchases],
        }


def plan(
    documents: list[Object],
    platform: Platform,
    prices: Table,
    cap: float | None = None,
) -> Plan:
    """`cap`: dollars an hour of all jobs together."""
    if cap is not None and not 0 < cap < math.inf:
        raise InputError(
            "--max-usd-per-hour",
            got=cap,
            allowed="more than 0",
            fix="leave it out for no cap",
        )
    jobs = [JobSnapshot(body=doc, pods=[]) for doc in documents if doc["kind"] in KINDS]
    purchases = []
    for v in jobs:
        purchases.append(
            pricing.purchase(v.body, _most(v, documents), v.pod_spec, platform, prices)
        )
    made = Plan(
        environment=platform.name,
        documents=documents,
        purchases=purchases,
        refusals=[],
        price_date=prices.fetched_at.isoformat(),
    )
    if cap is not None:
        made.refusals.extend(_refusals(made, cap))
    return made


def _most(job: JobSnapshot, documents: list[Object]) -> int:
    """Pods that may run at once: as many as an autoscaler in the same file may add."""
    scalers = (doc["spec"] for doc in documents if doc["kind"] == "HorizontalPodAutoscaler")
    return next(
        (int(s["maxReplicas"]) for s in scalers if s["scaleTargetRef"]["name"] == job.name),
        job.size,
    )


def _refusals(made: Plan, cap: float) -> list[str]:
    unpriced = [bought for bought in made.purchases if bought.usd_per_hour is None]
    unknown = []
    for b in unpriced:
        unknown.append(
            f"{b.job} {'has no price' if b.pools else 'fits no pool of the environment'}"
        )
    if unknown:
        return [f"a cap was given and the price is not known ({', '.join(unknown)})"]
    assert made.usd_per_hour is not None
    if made.usd_per_hour > cap:
        return [f"${made.usd_per_hour:.2f} an hour is over the cap of ${cap:.2f}"]
    return []


def apply(api: Api, documents: list[Object]) -> list[str]:
    """`kind/name` of each object, in the manifest's order. The cluster judges all of them before it
    takes one.
    """
    made = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Namespace"}
    for trial in ({"dryRun": "All"}, {}):
        for document in documents:
            # there is no such place yet
            if not (trial and document["metadata"].get("namespace") in made):
                _send(api, document, trial)
    return [named(document) for document in documents]


def _send(api: Api, document: Object, trial: dict[str, str]) -> None:
    try:
        api.apply(api.path_of(document), document, **trial)
    except ApiError as error:
        if lacks_right(error):
            raise Unjudged(f"no right to start {named(document)}: {error}") from error
        fix = (
            fix_of_unchangeable(error, document)
            or "install what the platform needs, or correct the manifest"
        )
        sent = "nothing was sent" if trial else "what precedes it in the manifest was sent"
        what = f"the cluster refuses {named(document)}; {sent}"
        raise InputError(
            what,
            got=error,
            allowed="what its API server accepts",
            fix=fix,
        ) from error


def lacks_right(error: ApiError) -> bool:
    """A webhook that denies an object answers 403 too."""
    return error.status in (401, 403) and "denied the request" not in str(error)


def named(document: Object) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


KINDS = ("Job", "JobSet", "Deployment")
_RENDER = "`python -m workloads render` writes manifests with jobs"


def documents_of(path: Path) -> list[Any]:
    """The content of a YAML file, of any kind; InputError where there is none, or it cannot be
    read.

    Through the linter's reader, which bounds size, depth and what aliases and merges expand to.
    """
    from holdfast.lint import document

    if not path.is_file():
        raise _no_such_file(path)
    try:
        if path.stat().st_size > document.MAX_FILE_BYTES:
            raise _unreadable(path, f"more than {document.MAX_FILE_BYTES:,} bytes")
        found = list(document.read(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    for each in found:
        for trouble in each.troubles:
            raise _unreadable(path, f"line {trouble.mark.line}: {trouble.message}")
        # JSON, in which all goes to the API server, knows no other numbers
        if finite(each.value) != each.value:
            raise _unreadable(path, "a number that is infinite or none (.inf, .nan)")
    return [each.value for each in found]


def require_of(path: Path, platform: Platform) -> None:
    """Raises Stopped where the file names another environment than the platform's."""
    from holdfast.lint import engine

    named = engine.named_by(path.read_text())
    if named and named != platform.name:
        raise Stopped(
            "the manifest is of another environment",
            got=f"{path}: {named}",
            allowed=str(platform),
            fix=f"choose the cluster of {named}, or the file of {platform.name}",
        )


def checked(path: Path, documents: list[Any]) -> list[Object]:
    """The documents of a manifest; InputError where one is no object, or none is a job."""
    for number, document in enumerate(documents, start=1):
        _check(document, f"{path}, document {number}")
    if not any(doc["kind"] in KINDS for doc in documents):
        kinds = ", ".join(doc["kind"] for doc in documents) or "nothing"
        raise InputError(
            "no job in the manifest",
            got=f"{path}: {kinds}",
            allowed=" or ".join(KINDS),
            fix=_RENDER,
        )
    return documents


def _unreadable(path: Path, why: str) -> InputError:
    what = "manifest cannot be read"
    fix = "give a rendered file"
    return InputError(
        what,
        got=f"{path}: {why}",
        allowed="a YAML file",
        fix=fix,
    )


def _no_such_file(path: Path) -> InputError:
    known = sorted(map(str, path.parent.glob("*.yaml")))
    near = get_close_matches(str(path), known, n=1)
    fix = f"did you mean {near[0]}?" if near else _RENDER
    return InputError(
        "no such manifest",
        got=path,
        allowed=", ".join(known[:6]) or "a YAML file",
        fix=fix,
    )


def _check(document: Any, where: str) -> None:
    """As much of its form as is read here; the API server judges the rest."""
    try:
        known = all(
            document[key] and isinstance(document[key], str) for key in ("apiVersion", "kind")
        )
        known = known and isinstance(document["metadata"]["name"], str)
        if known and document["kind"] in KINDS:
            job = JobSnapshot(body=document, pods=[])
            known = job.size >= 0 and gpus(job.pod_spec) >= 0 and bool(job.pod_spec["containers"])
            known = known and isinstance(job.pod_spec.get("nodeSelector", {}), dict)
            tolerations = job.pod_spec.get("tolerations", [])
            known = (
                known
                and isinstance(tolerations, list)
                and all(isinstance(t, dict) for t in tolerations)
            )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _incomplete(f"{where}: {type(error).__name__} {error}") from error
    if not known:
        raise _incomplete(where)


def _incomplete(got: str) -> InputError:
    allowed = "apiVersion, kind, metadata.name, and of a job its parallelism and pod template"
    return InputError(
        "not a Kubernetes object",
        got=got,
        allowed=allowed,
        fix=_RENDER,
    )


def only(documents: list[Object], job: str) -> list[Object]:
    """`job` and everything that is no job, nor named after another one; all of them where no job is
    named.

    A rendered job is known by its name with and without the digest of its template.
    """
    jobs = [doc for doc in documents if doc["kind"] in KINDS]
    names = [doc["metadata"]["name"] for doc in jobs]
    if job and not any(job in _names(doc) for doc in jobs):
        near = get_close_matches(job, names, n=1)
        fix = f"did you mean {near[0]}?" if near else "leave --job out for all of them"
        raise InputError(
            "no such job in the manifest",
            got=job,
            allowed=", ".join(names),
            fix=fix,
        )
    others = [doc for doc in jobs if job and job not in _names(doc)]
    theirs = {_names(doc)[1] for doc in others} - {""}
    return [doc for doc in documents if doc not in others and _names(doc)[1] not in theirs]


def _names(document: Object) -> tuple[str, str]:
    meta = document["metadata"]
    return meta["name"], (meta.get("labels") or {}).get(LABEL_NAME, "")

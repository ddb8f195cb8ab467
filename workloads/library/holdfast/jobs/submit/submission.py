"""Reads the manifest of `submit FILE`, prices its jobs, and applies it as it is.

Nothing is sent before the price has been shown and the cap has been met.
"""

import math
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api, ApiError, Object, suggest_fix
from holdfast.cost.prices import Table
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.file.file_text import WRITE_COMMAND
from holdfast.jobs.plan.pricing import Purchase, PurchasePlan, count_gpus, make_purchase
from holdfast.platform import Platform
from holdfast.support.errors import InputError, Stopped, Unjudged
from holdfast.vocabulary.kubernetes import LABEL_NAME

KINDS = ("Job", "JobSet", "Deployment")


def plan(
    documents: list[Object],
    platform: Platform,
    prices: Table,
    cap: float | None = None,
) -> PurchasePlan:
    """Price the jobs of a manifest.

    cap: the most dollars an hour for all jobs together. Raises InputError if it is not above 0.
    """
    if cap is not None and not 0 < cap < math.inf:
        raise InputError(
            "--max-usd-per-hour",
            got=cap,
            allowed="more than 0",
            fix="leave it out for no cap",
        )
    purchases: list[Purchase] = []
    for document in documents:
        if document["kind"] in KINDS:
            groups: list[Purchase] = []
            for group in _split_groups(document):
                pods = _max_pods(group, documents)
                groups.append(make_purchase(document, pods, group.pod_spec, platform, prices))
            purchases.append(_join(groups))
    purchase_plan = PurchasePlan(
        environment=platform.name,
        documents=documents,
        purchases=purchases,
        refusals=[],
        price_date=prices.fetched_at.isoformat(),
    )
    if cap is not None:
        purchase_plan.refusals.extend(_find_refusals(purchase_plan, cap))
    return purchase_plan


def _split_groups(document: Object) -> list[JobSnapshot]:
    """Return a job for each group of a JobSet, whose machines may differ; else the job itself."""
    if document["kind"] != "JobSet":
        return [JobSnapshot(body=document, pods=[])]
    spec = document["spec"]
    jobs: list[JobSnapshot] = []
    for group in spec["replicatedJobs"]:
        body = document | {"spec": spec | {"replicatedJobs": [group]}}
        jobs.append(JobSnapshot(body=body, pods=[]))
    return jobs


def _join(groups: list[Purchase]) -> Purchase:
    """Return what all groups of a job buy; without a price if one of them has none."""
    pools: list[str] = []
    usd_per_hour: float | None = 0.0
    for group in groups:
        pools += group.pools
        if usd_per_hour is not None:
            usd = group.usd_per_hour
            usd_per_hour = None if usd is None else usd_per_hour + usd
    return replace(
        groups[0],
        pods=sum(group.pods for group in groups),
        gpus=sum(group.gpus for group in groups),
        pools=tuple(dict.fromkeys(pools)),
        usd_per_hour=usd_per_hour,
    )


def _max_pods(job: JobSnapshot, documents: list[Object]) -> int:
    """Return the pods that may run at once, with those that an autoscaler of the file may add."""
    for document in documents:
        if document["kind"] == "HorizontalPodAutoscaler":
            spec = document["spec"]
            if spec["scaleTargetRef"]["name"] == job.name:
                return int(spec["maxReplicas"])
    return job.size


def _find_refusals(purchase_plan: PurchasePlan, cap: float) -> list[str]:
    unpriced: list[str] = []
    for purchase in purchase_plan.purchases:
        if purchase.usd_per_hour is None:
            reason = "has no price" if purchase.pools else "fits no pool of the environment"
            unpriced.append(f"{purchase.job} {reason}")
    if unpriced:
        return [f"a cap was given and the price is not known ({', '.join(unpriced)})"]
    usd_per_hour = purchase_plan.usd_per_hour
    assert usd_per_hour is not None
    if usd_per_hour > cap:
        return [f"${usd_per_hour:.2f} an hour is over the cap of ${cap:.2f}"]
    return []


def dry_run(api: Api, documents: list[Object]) -> None:
    """Raise InputError if the cluster refuses an object. Nothing is changed."""
    namespaces = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Namespace"}
    for document in documents:
        # A namespace of the manifest does not exist yet, so nothing in it can be tried.
        if document["metadata"].get("namespace") not in namespaces:
            _send(api, document, {"dryRun": "All"})


def apply(api: Api, documents: list[Object]) -> list[str]:
    """Apply the objects and return their `kind/name`, in the manifest's order.

    The cluster judges all of them before it takes one.
    """
    dry_run(api, documents)
    owners: list[Object] = []
    for document in documents:
        sent = _send(api, document, {})
        if document["kind"] in ("Job", "JobSet"):
            owners.append(document | {"metadata": sent["metadata"]})
    _add_owners(api, documents, owners)
    return [describe(document) for document in documents]


def _add_owners(api: Api, documents: list[Object], owners: list[Object]) -> None:
    """Make the jobs the owners of their immutable ConfigMaps, which go with the last of them.

    The whole ConfigMap is sent again: the cluster may have deleted it with a job that was replaced.
    """
    for document in documents:
        if document["kind"] != "ConfigMap" or not document.get("immutable"):
            continue
        for owner in owners:
            meta = owner["metadata"]
            reference = {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": meta["name"],
                "uid": meta["uid"],
            }
            owned = document | {"metadata": document["metadata"] | {"ownerReferences": [reference]}}
            # A manager of its own, so that the owners of other jobs stay.
            _send(api, owned, {"fieldManager": f"holdfast-{meta['uid']}"})


def _send(api: Api, document: Object, options: dict[str, str]) -> Object:
    try:
        return api.apply(api.path_of(document), document, **options)
    except ApiError as error:
        sent = (
            "nothing was sent"
            if "dryRun" in options
            else "what precedes it in the manifest was sent"
        )
        raise explain_refusal(error, document, sent) from error


def explain_refusal(error: ApiError, document: Object, sent: str) -> InputError | Unjudged:
    """Return the error for an object that the cluster refuses; `sent` says what it has by then."""
    if lacks_right(error):
        return Unjudged(f"no right to start {describe(document)}: {error}")
    fix = suggest_fix(error, document)
    return InputError(
        f"the cluster refuses {describe(document)}; {sent}",
        got=error,
        allowed="what its API server accepts",
        fix=fix or "install what the platform needs, or correct the manifest",
    )


def lacks_right(error: ApiError) -> bool:
    """Return whether the user lacks a right; a webhook that denies an object answers 403 too."""
    return error.status in (401, 403) and "denied the request" not in str(error)


def describe(document: Object) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def require_environment(path: Path, platform: Platform) -> None:
    """Raise Stopped if the file names another environment than the platform's."""
    from holdfast.lint import engine

    environment = engine.find_environment(path.read_text())
    if environment and environment != platform.name:
        raise Stopped(
            "the manifest is of another environment",
            got=f"{path}: {environment}",
            allowed=str(platform),
            fix=f"choose the cluster of {environment}, or the file of {platform.name}",
        )


def check_documents(path: Path, documents: list[Any]) -> list[Object]:
    """Return the documents of a manifest.

    Raises InputError if one is no object, or none is a job.
    """
    for number, document in enumerate(documents, start=1):
        _check(document, f"{path}, document {number}")
    if not any(doc["kind"] in KINDS for doc in documents):
        kinds = ", ".join(doc["kind"] for doc in documents) or "nothing"
        raise InputError(
            "no job in the manifest",
            got=f"{path}: {kinds}",
            allowed=" or ".join(KINDS),
            fix=WRITE_COMMAND,
        )
    return documents


def _check(document: Any, source: str) -> None:
    """Check as much of the form as is read here; the API server judges the rest."""
    try:
        is_complete = _is_object(document)
        if is_complete and document["kind"] in KINDS:
            jobs = [JobSnapshot(body=document, pods=[]), *_split_groups(document)]
            is_complete = all(map(_is_complete_job, jobs))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _incomplete(f"{source}: {type(error).__name__} {error}") from error
    if not is_complete:
        raise _incomplete(source)


def _is_object(document: Any) -> bool:
    for key in ("apiVersion", "kind"):
        if not document[key] or not isinstance(document[key], str):
            return False
    return isinstance(document["metadata"]["name"], str)


def _is_complete_job(job: JobSnapshot) -> bool:
    if job.size < 0 or count_gpus(job.pod_spec) < 0 or not job.pod_spec["containers"]:
        return False
    if not isinstance(job.pod_spec.get("nodeSelector", {}), dict):
        return False
    tolerations: Any = job.pod_spec.get("tolerations", [])
    if not isinstance(tolerations, list):
        return False
    return all(isinstance(toleration, dict) for toleration in tolerations)


def _incomplete(got: str) -> InputError:
    return InputError(
        "not a Kubernetes object",
        got=got,
        allowed="apiVersion, kind, metadata.name, and of a job its parallelism and pod template",
        fix=WRITE_COMMAND,
    )


def only(documents: list[Object], job: str) -> list[Object]:
    """Return `job` and everything that is no job, except objects named after another job.

    Returns all of them if no job is named. A rendered job is known by its name with and without the
    digest of its template.
    """
    jobs = [doc for doc in documents if doc["kind"] in KINDS]
    if job and not any(job in _names(doc) for doc in jobs):
        names = [doc["metadata"]["name"] for doc in jobs]
        matches = get_close_matches(job, names, n=1)
        raise InputError(
            "no such job in the manifest",
            got=job,
            allowed=", ".join(names),
            fix=f"did you mean {matches[0]}?" if matches else "leave --job out for all of them",
        )
    dropped: list[Object] = []
    dropped_labels: set[str] = set()
    for document in jobs:
        if job and job not in _names(document):
            dropped.append(document)
            dropped_labels.add(_label(document))
    dropped_labels.discard("")
    remaining = [doc for doc in documents if doc not in dropped]
    return [doc for doc in remaining if _label(doc) not in dropped_labels]


def _names(document: Object) -> tuple[str, str]:
    """Return the name of an object, and the one in its label."""
    return document["metadata"]["name"], _label(document)


def _label(document: Object) -> str:
    labels = document["metadata"].get("labels") or {}
    return labels.get(LABEL_NAME, "")

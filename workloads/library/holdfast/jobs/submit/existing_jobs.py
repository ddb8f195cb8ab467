"""Finds the jobs of a manifest that run already, by their name or by the run that they write.

Sending a running job again would suspend it and replace its pods. Two jobs of one run, as those of
two images are, would take its checkpoints from each other.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, find_limit
from holdfast.jobs.submit.submission import describe, explain_refusal
from holdfast.support.errors import Stopped, Unjudged
from holdfast.vocabulary.capacity import (
    ANNOTATION_MAX_USD,
    ANNOTATION_SPENT_USD,
    ANNOTATION_STOPPED_FOR,
)
from holdfast.vocabulary.kubernetes import LABEL_NAME

KINDS = ("Job", "JobSet")  # a Deployment rolls over by itself
GONE_WITHIN_S = 600.0
LOOK_S = 0.5
# How the API server and webhooks begin each reason for which they refuse a field.
_FIELD_ERROR = re.compile(
    r": (?:Invalid value|Unsupported value|Required value|Duplicate value|Not found|Forbidden"
    r"|Too long|Too many|Internal error)\b"
)


def compare(
    api: Api, documents: list[Object], *, replace: bool = False
) -> tuple[list[Object], list[str]]:
    """Return the documents to send, and the paths of running jobs that must be deleted first.

    A job that already runs as its document says is not sent. Raises Stopped, unless `replace`, if
    a job runs that differs from its document or writes the same run. Raises InputError if the
    cluster would refuse a document for anything but a field that cannot change.
    """
    unsent: list[Object] = []
    replaced: list[str] = []
    for document in documents:
        if document["kind"] not in KINDS:
            unsent.append(document)
            continue
        path = api.path_of(document)
        folder = path.rpartition("/")[0]
        changes = _find_changes(api, path, document)
        if changes == []:
            continue
        reasons: list[str] = []
        if changes:
            reasons.append("the file differs from it: " + ", ".join(changes[:4]))
            replaced.append(path)
        for other in _find_rivals(api, folder, document, documents):
            reasons.append(f"{describe(other)} writes the same run, {_run(document)}")
            replaced.append(f"{folder}/{other['metadata']['name']}")
        if reasons and not replace:
            raise _runs_already(document, reasons)
        unsent.append(document)
    return unsent, replaced


def update_limits(api: Api, documents: list[Object]) -> list[str]:
    """Write the `max_usd` of jobs that run already, and return their names with it.

    A job that was stopped for its limit can be resumed once the limit is higher.
    """
    updated: list[str] = []
    for document in documents:
        max_usd = _annotations(document).get(ANNOTATION_MAX_USD)
        if document["kind"] not in KINDS or not max_usd:
            continue
        path = api.path_of(document)
        live = api.find(path)
        if live is None or _annotations(live).get(ANNOTATION_MAX_USD) == max_usd:
            continue
        name = document["metadata"]["name"]
        text = f"{name}: ${float(max_usd):,.2f}"
        annotations: dict[str, str | None] = {ANNOTATION_MAX_USD: max_usd}
        limit = find_limit(JobSnapshot(body=live, pods=[]))
        if limit is not None and limit.stopped and float(max_usd) > limit.max_usd:
            annotations[ANNOTATION_STOPPED_FOR] = None
            text += f"; it is stopped, and holdfast resume {name} continues it"
        api.merge(path, {"metadata": {"annotations": annotations}})
        updated.append(text)
    return updated


def carry_spending(api: Api, documents: list[Object], replaced: list[str]) -> None:
    """Make the new version of a run start its count at what the replaced one has cost."""
    spent_by_run: dict[str, str] = {}
    for path in replaced:
        body = api.find(path)
        spent = _annotations(body).get(ANNOTATION_SPENT_USD) if body else None
        if body and spent:
            spent_by_run[_run(body)] = spent
    for document in documents:
        spent = spent_by_run.get(_run(document))
        if spent and ANNOTATION_MAX_USD in _annotations(document):
            document["metadata"]["annotations"][ANNOTATION_SPENT_USD] = spent


def _annotations(body: Object) -> dict[str, str]:
    return body["metadata"].get("annotations") or {}


def end(api: Api, path: str, *, sleep: Callable[[float], object] = time.sleep) -> None:
    """Delete a job and wait until its pods are gone. Raises Unjudged if they stay."""
    # In the foreground: the job is gone only when its pods are, so that none of them writes at the
    # same time as the pods of the next job.
    api.delete(path, propagationPolicy="Foreground")
    deadline = time.monotonic() + GONE_WITHIN_S
    while api.find(path) is not None:
        if time.monotonic() > deadline:
            raise Unjudged(f"{path} is not gone after {GONE_WITHIN_S:.0f} s; nothing was started")
        sleep(LOOK_S)


def _find_changes(api: Api, path: str, document: Object) -> list[str] | None:
    """Return the differences from the running job of that name, or None if none runs."""
    live = api.find(path)
    if live is None or JobSnapshot(body=live, pods=[]).outcome:
        return None
    try:
        trial = api.apply(path, document, dryRun="All")
    except ApiError as error:
        # Only a change that a running job refuses and a new one accepts is a difference. Any other
        # refusal would hit the new job too, after the running one was deleted for it.
        if not _changes_only_immutable_fields(error):
            raise explain_refusal(error, document, "nothing was sent") from error
        return [str(error)]
    return list(_compare_fields(live["spec"], trial["spec"]))


def _changes_only_immutable_fields(error: ApiError) -> bool:
    """Return whether each reason of a refusal is a field that cannot change."""
    immutable_fields = error.message.count("is immutable")
    reasons = len(_FIELD_ERROR.findall(error.message))
    return immutable_fields > 0 and reasons <= immutable_fields


def _compare_fields(live: Any, trial: Any, path: str = "spec") -> Iterator[str]:
    """Yield the fields whose values differ, except `suspend`, which a queue decides."""
    if not (isinstance(live, dict) and isinstance(trial, dict)):
        if live != trial:
            yield path
        return
    for name in sorted({*live, *trial} - {"suspend"}):
        yield from _compare_fields(live.get(name), trial.get(name), f"{path}.{name}")


def _find_rivals(
    api: Api,
    folder: str,
    document: Object,
    documents: list[Object],
) -> Iterator[Object]:
    """Yield other running jobs that write the same run.

    A rendered job has its run's name as a label, and the digest of its template in its name.
    """
    run = _run(document)
    if not run:
        return
    names = {other["metadata"]["name"] for other in documents}
    for body in api.items(folder, labelSelector=f"{LABEL_NAME}={run}"):
        meta = body["metadata"]
        if meta["name"] in names or meta.get("ownerReferences"):
            continue
        if not JobSnapshot(body=body, pods=[]).outcome:
            yield {"apiVersion": document["apiVersion"], "kind": document["kind"]} | body


def _run(document: Object) -> str:
    labels = document["metadata"].get("labels") or {}
    return labels.get(LABEL_NAME, "")


def _runs_already(document: Object, reasons: list[str]) -> Stopped:
    return Stopped(
        f"{describe(document)} cannot be started while this runs",
        got="; ".join(reasons),
        allowed="the file that the running job was started from, or a run of its own",
        fix=(
            "--replace, which deletes the running job and starts this one from its newest"
            " checkpoint; or another name"
        ),
    )

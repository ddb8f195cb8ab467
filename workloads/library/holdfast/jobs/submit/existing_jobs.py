"""What of a manifest runs already, by name or by the run that it writes, and what has to go first.

To send a running job again would suspend it and replace its pods. Two jobs of one run, as those of
two images are, would take its checkpoints from each other.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.submit.submission import lacks_right, named
from holdfast.support.errors import Stopped, Unjudged
from holdfast.vocabulary.kubernetes import LABEL_NAME

KINDS = ("Job", "JobSet")  # a Deployment rolls over by itself
GONE_WITHIN_S = 600.0
LOOK_S = 0.5


def compare(
    api: Api, documents: list[Object], *, replace: bool = False
) -> tuple[list[Object], list[str]]:
    """The documents without jobs that run already as they are, and paths of running jobs that have
    to go first.

    Raises Stopped, unless `replace`, where a running job differs from its document, or another one
    writes its run.
    """
    unsent: list[Object] = []
    replaced: list[str] = []
    for document in documents:
        if document["kind"] in KINDS:
            path = api.path_of(document)
            changed = _changes(api, path, document)
            if changed == []:
                continue
            reasons = ["the file differs from it: " + ", ".join(changed[:4])] if changed else []
            found = [path] if changed else []
            for other in _of_the_same_run(api, path, document, documents):
                reasons.append(f"{named(other)} writes the same run, {_run_of(document)}")
                found.append(f"{path.rpartition('/')[0]}/{other['metadata']['name']}")
            if reasons and not replace:
                raise _runs_already(document, reasons)
            replaced += found
        unsent.append(document)
    return unsent, replaced


def end(api: Api, path: str, *, sleep: Callable[[float], object] = time.sleep) -> None:
    """Delete a job and wait until its pods are gone. Raises Unjudged where they stay."""
    # In the foreground: the job is gone when its pods are, so that none of them writes while those
    # of the next do.
    api.delete(path, propagationPolicy="Foreground")
    ends = time.monotonic() + GONE_WITHIN_S
    while api.find(path) is not None:
        if time.monotonic() > ends:
            raise Unjudged(f"{path} is not gone after {GONE_WITHIN_S:.0f} s; nothing was started")
        sleep(LOOK_S)


def _changes(api: Api, path: str, document: Object) -> list[str] | None:
    """What differs from the job of that name that runs; None where none runs."""
    live = api.find(path)
    if live is None or JobSnapshot(body=live, pods=[]).finished:
        return None
    try:
        tried = api.apply(path, document, dryRun="All")
    except ApiError as error:  # the template of a job cannot change
        if lacks_right(error):
            raise Unjudged(f"no right to start {named(document)}: {error}") from error
        return [str(error)]
    return list(_changed(live["spec"], tried["spec"]))


def _changed(live: Any, tried: Any, path: str = "spec") -> Iterator[str]:
    """Fields whose values differ. A queue decides whether a job is suspended, so that is none."""
    if not (isinstance(live, dict) and isinstance(tried, dict)):
        yield from [] if live == tried else [path]
        return
    for name in sorted({*live, *tried} - {"suspend"}):
        yield from _changed(live.get(name), tried.get(name), f"{path}.{name}")


def _of_the_same_run(
    api: Api,
    path: str,
    document: Object,
    documents: list[Object],
) -> Iterator[Object]:
    """Other jobs that run. A rendered job has its run's name as a label, and the digest of its
    template in its own.
    """
    run = _run_of(document)
    if not run:
        return
    names = {each["metadata"]["name"] for each in documents}
    for found in api.items(path.rpartition("/")[0], labelSelector=f"{LABEL_NAME}={run}"):
        meta = found["metadata"]
        owned = meta.get("ownerReferences")
        if (
            meta["name"] not in names
            and not owned
            and not JobSnapshot(body=found, pods=[]).finished
        ):
            yield {"apiVersion": document["apiVersion"], "kind": document["kind"]} | found


def _run_of(document: Object) -> str:
    return (document["metadata"].get("labels") or {}).get(LABEL_NAME, "")


def _runs_already(document: Object, reasons: list[str]) -> Stopped:
    return Stopped(
        f"{named(document)} cannot be started while this runs",
        got="; ".join(reasons),
        allowed="the file that the running job was started from, or a run of its own",
        fix=(
            "--replace, which deletes the running job and starts this one from its newest"
            " checkpoint; or another name"
        ),
    )

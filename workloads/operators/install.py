"""Applies the operators server-side and waits until their webhooks answer.

Objects of an older version are removed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.clients.api import Api, ApiError, Object
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.kubernetes import JOBSET_API, KUEUE_API
from workloads.operators.catalogue import CRD, LABEL_OPERATOR, WEBHOOKS, Body, Operator

# The only field manager of these objects: changes by hand are reverted, as with any applied file.
MANAGER = "holdfast-operators"
# Kinds that are never removed: a definition takes all its objects along, a namespace its content, a
# volume its data.
KEPT = ("Namespace", CRD, "Secret", "PersistentVolume", "PersistentVolumeClaim")
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    verb: str
    """One of created, changed, removed and unchanged."""
    name: str
    """Kind/name of the object."""


def apply(api: Api, operator: Operator, bodies: Sequence[Body]) -> Iterator[Change]:
    """Applies objects in order and yields the change of each.

    Waits until the API server serves a definition before it sends an object of that kind.
    """
    for body in bodies:
        yield put(api, body, MANAGER)
        if body["kind"] == CRD:
            name = body["metadata"]["name"]
            _wait(f"{name} is served", partial(_find_definition_fault, api, body), 60)
    yield from prune(api, bodies, f"{LABEL_OPERATOR}={operator.name}")


def wait_ready(api: Api, operator: Operator, timeout_s: float) -> None:
    """Waits until an operator's pods are ready and its webhooks answer.

    Raises Unjudged with the last reason when the time is over.
    """
    _wait(
        f"{operator.deployment} is rolled out", lambda: find_rollout_fault(api, operator), timeout_s
    )
    _wait(
        f"the webhooks of {operator.name} answer",
        lambda: find_webhook_fault(api, operator) or None,
        timeout_s,
    )


def find_deployment(api: Api, operator: Operator) -> Object | None:
    path = f"/apis/apps/v1/namespaces/{operator.namespace}/deployments/{operator.deployment}"
    return api.find(path)


def find_rollout_fault(api: Api, operator: Operator) -> str | None:
    """Returns the reason why an operator is not rolled out.

    None when every replica has the newest template and is available.
    """
    deployment = find_deployment(api, operator)
    if deployment is None:
        return f"no Deployment {operator.deployment} in {operator.namespace}"
    replicas = deployment["spec"].get("replicas", 1)
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "the controller has not seen the newest template"
    updated = status.get("updatedReplicas", 0)
    available = status.get("availableReplicas", 0)
    if updated < replicas or available < replicas or status.get("replicas", 0) > replicas:
        return f"{available} of {replicas} replicas available, {updated} of the newest template"
    return None


def find_webhook_fault(api: Api, operator: Operator) -> str:
    """Returns the error of an operator's webhooks, which fail closed.

    Empty when a dry-run create of the operator's own kind passes them.
    """
    try:
        api.create(*_PROBES[operator.name], dryRun="All")
    except ApiError as error:
        # Forbidden and invalid are answers; unreachable webhooks are an internal error that names
        # them.
        return str(error) if error.status >= 500 or error.status == 404 else ""
    return ""


_POD = {
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "none"}],
}
_REPLICATED_JOB = {
    "name": "probe",
    "template": {"spec": {"template": {"spec": _POD}}},
}
_JOBSET = {
    "apiVersion": JOBSET_API,
    "kind": "JobSet",
    "metadata": {"name": "probe"},
    "spec": {"replicatedJobs": [_REPLICATED_JOB]},
}
_FLAVOR = {
    "apiVersion": KUEUE_API,
    "kind": "ResourceFlavor",
    "metadata": {"name": "probe"},
    "spec": {},
}
_PROBES: dict[str, tuple[str, Object]] = {
    "jobset": (f"/apis/{JOBSET_API}/namespaces/jobset-system/jobsets", _JOBSET),
    "kueue": (f"/apis/{KUEUE_API}/resourceflavors", _FLAVOR),
}


def put(api: Api, body: Body, manager: str) -> Change:
    """Applies an object server-side. Raises InputError if the cluster rejects it."""
    name = f"{body['kind']}/{body['metadata']['name']}"
    try:
        path = api.path_of(body)
        before = api.find(path)
        after = api.apply(path, body, fieldManager=manager)
        if body["kind"] in WEBHOOKS:
            after = _remove_other_webhooks(api, path, body, after)
    except ApiError as error:
        raise _explain_rejection(name, error) from error
    if before is None:
        return Change(verb="created", name=name)
    is_equal = _strip_status(before) == _strip_status(after)
    return Change(verb="unchanged" if is_equal else "changed", name=name)


def _strip_status(stored: Object) -> Object:
    """Removes what controllers write between two answers.

    The status of an admission policy, for example, comes seconds after it.
    """
    body = dict(stored)
    body.pop("status", None)
    metadata = dict(body["metadata"])
    metadata.pop("resourceVersion", None)
    metadata.pop("managedFields", None)
    return body | {"metadata": metadata}


def _remove_other_webhooks(api: Api, path: str, body: Body, stored: Object) -> Object:
    """Removes webhooks that `body` does not have.

    Applying merges lists by name: webhooks of a stock installation would still intercept every pod
    of the cluster.
    """
    names = {webhook["name"] for webhook in body["webhooks"]}
    webhooks = [webhook for webhook in stored["webhooks"] if webhook["name"] in names]
    if len(webhooks) == len(stored["webhooks"]):
        return stored
    return api.call("PUT", path, {}, stored | {"webhooks": webhooks})


def _explain_rejection(name: str, error: ApiError) -> Exception:
    if error.status in (401, 403):
        return Unjudged(f"no right to apply {name}: {error}")
    return InputError(
        f"the cluster rejects {name}; the objects before it were applied",
        got=error,
        allowed="objects that its API server accepts",
        fix="fix the cause and run the command again: applied objects are kept",
    )


def preview(api: Api, body: Body, manager: str) -> Change:
    """Returns the change that `put` would make, by a dry run. Raises InputError if the cluster
    rejects it.
    """
    name = f"{body['kind']}/{body['metadata']['name']}"
    path = api.path_of(body)
    before = api.find(path)
    if before is None:
        return Change(verb="created", name=name)
    try:
        after = api.apply(path, body, dryRun="All", fieldManager=manager)
    except ApiError as error:
        raise _explain_rejection(name, error) from error
    is_equal = _strip_status(before) == _strip_status(after)
    return Change(verb="unchanged" if is_equal else "changed", name=name)


def prune(
    api: Api,
    bodies: Sequence[Body],
    selector: str,
    *,
    former: Sequence[Body] = (),
    dry_run: bool = False,
) -> Iterator[Change]:
    """Deletes objects that the selector matches, of the kinds of `bodies` and of those that were
    applied before, but not among `bodies`.

    With `dry_run` it only yields them.
    """
    paths: set[str] = set()
    collections: set[tuple[str, str]] = set()
    for body in (*bodies, *former):
        if body["kind"] not in KEPT:
            path = api.path_of(body)
            collections.add((path.rpartition("/")[0], body["kind"]))
    for body in bodies:
        if body["kind"] not in KEPT:
            paths.add(api.path_of(body))
    for collection, kind in sorted(collections):
        for item in api.items(collection, labelSelector=selector):
            name = item["metadata"]["name"]
            if f"{collection}/{name}" not in paths:
                if not dry_run:
                    # A Job would leave its pods.
                    api.delete(f"{collection}/{name}", propagationPolicy="Background")
                yield Change(verb="removed", name=f"{kind}/{name}")


def _find_definition_fault(api: Api, definition: Body) -> str | None:
    """Returns the reason why a definition is not served; None when it is."""
    status = api.get(api.path_of(definition)).get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "Established" and condition["status"] == "True":
            return None
    return "not Established"


def _wait(goal: str, find_fault: Callable[[], str | None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (reason := find_fault()) is not None:
        if time.monotonic() > deadline:
            raise Unjudged(f"waited {timeout_s:.0f} s until {goal}: {reason}")
        time.sleep(POLL_S)

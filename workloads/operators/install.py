"""Apply the operators server-side, remove what an older version left, and wait until their webhooks
answer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.clients.api import Api, ApiError, Object
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.kubernetes import JOBSET_API, KUEUE_API
from workloads.operators.catalogue import CRD, LABEL_OPERATOR, WEBHOOKS, Body, Operator

# The only field manager of these: what people changed by hand in these objects is taken back, as
# with any applied file.
MANAGER = "holdfast-operators"
# Never removed: with a definition go all its objects, with a namespace all that is in it,
# with a volume what it holds.
KEPT = ("Namespace", CRD, "Secret", "PersistentVolume", "PersistentVolumeClaim")
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    verb: str
    """created, changed, removed or unchanged."""
    name: str
    """Kind/name."""


def apply(api: Api, operator: Operator, bodies: Sequence[Body]) -> Iterator[Change]:
    """One change for each object, as it is made; definitions are served before anything of their
    kind is sent.
    """
    for body in bodies:
        yield put(api, body, MANAGER)
        if body["kind"] == CRD:
            _wait(
                f"{body['metadata']['name']} is served",
                lambda made=body: _established(api, made),
                60,
            )
    yield from prune(api, bodies, f"{LABEL_OPERATOR}={operator.name}")


def wait_ready(api: Api, operator: Operator, timeout_s: float) -> None:
    """Its pods are ready and its webhooks answer. Raises Unjudged with the last reason when the
    time is over.
    """
    _wait(f"{operator.deployment} is rolled out", lambda: rolled_out(api, operator), timeout_s)
    _wait(
        f"the webhooks of {operator.name} answer",
        lambda: webhook_fault(api, operator) or None,
        timeout_s,
    )


def rolled_out(api: Api, operator: Operator) -> str | None:
    """None when every replica is of the newest template and available; else what is lacking."""
    path = f"/apis/apps/v1/namespaces/{operator.namespace}/deployments/{operator.deployment}"
    found = api.find(path)
    if found is None:
        return f"no Deployment {operator.deployment} in {operator.namespace}"
    wanted = found["spec"].get("replicas", 1)
    status = found.get("status", {})
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return "the controller has not seen the newest template"
    fresh = status.get("updatedReplicas", 0)
    there = status.get("availableReplicas", 0)
    if fresh < wanted or there < wanted or status.get("replicas", 0) > wanted:
        return f"{there} of {wanted} replicas available, {fresh} of the newest template"
    return None


def webhook_fault(api: Api, operator: Operator) -> str:
    """Empty when a dry-run create of the operator's own kind passes its webhooks, which fail
    closed.
    """
    try:
        api.create(*_PROBES[operator.name], dryRun="All")
    except ApiError as error:
        # Forbidden and invalid are answers; unreachable webhooks are an internal error that names
        # them.
        return str(error) if error.status >= 500 or error.status == 404 else ""
    return ""


def _child() -> Body:
    container = {"name": "main", "image": "none"}
    return {
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [container],
                }
            }
        }
    }


_PROBES: dict[str, tuple[str, Object]] = {
    "jobset": (
        f"/apis/{JOBSET_API}/namespaces/jobset-system/jobsets",
        {
            "apiVersion": JOBSET_API,
            "kind": "JobSet",
            "metadata": {"name": "probe"},
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "probe",
                        "template": _child(),
                    }
                ]
            },
        },
    ),
    "kueue": (
        f"/apis/{KUEUE_API}/resourceflavors",
        {
            "apiVersion": KUEUE_API,
            "kind": "ResourceFlavor",
            "metadata": {"name": "probe"},
            "spec": {},
        },
    ),
}


def put(api: Api, body: Body, manager: str) -> Change:
    """Server-side apply; InputError where the cluster rejects it."""
    name = f"{body['kind']}/{body['metadata']['name']}"
    try:
        path = api.path_of(body)
        before = api.find(path)
        after = api.apply(path, body, fieldManager=manager)
        if body["kind"] in WEBHOOKS:
            after = _only(api, path, body, after)
    except ApiError as error:
        raise _refused(name, error) from error
    if before is None:
        return Change(verb="created", name=name)
    return Change(verb="unchanged" if _stated(before) == _stated(after) else "changed", name=name)


def _stated(stored: Object) -> Object:
    """Without what controllers write between the two answers: an admission policy's status comes
    seconds after it.
    """
    meta = {
        k: v for k, v in stored["metadata"].items() if k not in ("resourceVersion", "managedFields")
    }
    return {k: v for k, v in stored.items() if k != "status"} | {"metadata": meta}


def _only(api: Api, path: str, body: Body, stored: Object) -> Object:
    """Applying merges lists by name: webhooks of a stock installation would stay before every pod
    of the cluster.
    """
    wanted = {webhook["name"] for webhook in body["webhooks"]}
    kept = [webhook for webhook in stored["webhooks"] if webhook["name"] in wanted]
    if len(kept) == len(stored["webhooks"]):
        return stored
    return api.call("PUT", path, {}, stored | {"webhooks": kept})


def _refused(name: str, error: ApiError) -> Exception:
    if error.status in (401, 403):
        return Unjudged(f"no right to apply {name}: {error}")
    what = f"the cluster rejects {name}; the objects before it were applied"
    fix = "fix the cause and run the command again: applied objects are kept"
    return InputError(
        what,
        got=error,
        allowed="objects that its API server accepts",
        fix=fix,
    )


def prune(api: Api, bodies: Sequence[Body], selector: str) -> Iterator[Change]:
    """What the selector finds among the kinds of `bodies` and is in them no more."""
    paths = {api.path_of(body): body["kind"] for body in bodies if body["kind"] not in KEPT}
    for collection, kind in sorted(
        {(path.rpartition("/")[0], kind) for path, kind in paths.items()}
    ):
        for item in api.items(collection, labelSelector=selector):
            name = item["metadata"]["name"]
            if f"{collection}/{name}" not in paths:
                # a Job would leave its pods
                api.delete(f"{collection}/{name}", propagationPolicy="Background")
                yield Change(verb="removed", name=f"{kind}/{name}")


def _established(api: Api, definition: Body) -> str | None:
    conditions = api.get(api.path_of(definition)).get("status", {}).get("conditions") or ()
    served = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
    return None if served else "not Established"


def _wait(what: str, lacking: Callable[[], str | None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (reason := lacking()) is not None:
        if time.monotonic() > deadline:
            raise Unjudged(f"waited {timeout_s:.0f} s until {what}: {reason}")
        time.sleep(POLL_S)

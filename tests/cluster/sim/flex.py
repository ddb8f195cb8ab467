"""The queue of flex-start as a test plays it: Kueue waits for a ProvisioningRequest that no one
here fulfills.

The resource is that of GKE's autoscaler, with its conditions; the real Kueue reserves the quota and
waits.
"""

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.cluster_snapshot import PROVISIONING
from tests.cluster.sim import queues
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

CONDITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLURAL = "provisioningrequests"


def install(api: Api) -> None:
    """Installs the resource, once per cluster. A Kueue that starts later makes its own requests."""
    define(api, "ProvisioningRequest", PLURAL, PROVISIONING.split("/")[2])


def define(
    api: Api,
    kind: str,
    plural: str,
    group: str,
    scope: str = "Namespaced",
) -> None:
    """Installs a kind that only GKE serves; its objects are not validated."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
    }
    version["schema"] = {"openAPIV3Schema": schema}
    names = {
        "plural": plural,
        "singular": kind.lower(),
        "kind": kind,
    }
    spec = {
        "group": group,
        "scope": scope,
        "names": names,
        "versions": [version],
    }
    # The API server refuses a resource in a Kubernetes API group without this annotation, by which
    # its reviewers approve it.
    meta = {
        "name": f"{plural}.{group}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    }
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    api.apply(f"{CONDITIONS}/{plural}.{group}", head | {"metadata": meta, "spec": spec})
    until(f"{kind} is served", lambda: api.find(f"/apis/{group}/v1"))


def request(world: World, name: str, owner: Object, *conditions: Object) -> None:
    meta = owner["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "Workload",
        "name": meta["name"],
        "uid": meta["uid"],
    }
    body = {
        "metadata": {
            "name": name,
            "ownerReferences": [reference],
        },
        "spec": {"podSets": []},
    }
    head = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    path = world.path(PLURAL, PROVISIONING)
    until("a request is taken", lambda: _create(world, path, head | body))
    world.api.merge(f"{path}/{name}/status", {"status": {"conditions": list(conditions)}})


def _create(world: World, path: str, body: Object) -> Object | None:
    """Creates the object; returns None while the API server does not serve the resource yet."""
    try:
        return world.api.create(path, body)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def check(world: World) -> str:
    """An admission check for the world's queue that no controller here decides."""
    spec = {"controllerName": "holdfast.dev/nobody"}
    path = f"{queues.GROUP}/admissionchecks"
    head = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": world.name},
    }
    request = world.api.create(path, head | {"spec": spec})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "",
        "lastTransitionTime": request["metadata"]["creationTimestamp"],
    }
    world.api.merge(f"{path}/{world.name}/status", {"status": {"conditions": [active]}})
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": world.name}]}}
    world.api.merge(f"{queues.GROUP}/clusterqueues/{world.name}", {"spec": strategy})
    return world.name

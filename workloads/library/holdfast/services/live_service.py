"""Compares a service with what runs, starts it, rolls out a new version, and removes it."""

from collections.abc import Iterator
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.submit import submission
from holdfast.manifests.gateway import GATEWAY_API, POLICY_API
from holdfast.manifests.render_context import Body
from holdfast.platform import Platform
from holdfast.services.prepared_service import Prepared
from holdfast.services.render.manifests import ANNOTATION_SOURCE, SHARED
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.kubernetes import LEASE_API, MONITORING_API
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import ANNOTATION_IDLE, LABEL_SERVICE

# Kind -> version. The objects of a running service are found by its label.
TEAM_KINDS = {
    "Deployment": "apps/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodMonitoring": MONITORING_API,
    "Service": "v1",
    "ConfigMap": "v1",
}
"""The kinds of a service in a team's namespace, whose people have rights for no others."""
KINDS = TEAM_KINDS | {
    "Gateway": GATEWAY_API,
    "HTTPRoute": GATEWAY_API,
    "GCPBackendPolicy": POLICY_API,
    "HealthCheckPolicy": POLICY_API,
    "Lease": LEASE_API,
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "ServiceAccount": "v1",
}


def find(api: Api, name: str, namespace: str = NAMESPACE_SERVING) -> Object | None:
    """Return the Service for clients of a running service, or None."""
    service = api.find(f"/api/v1/namespaces/{namespace}/services/{name}")
    return service if service is not None and _label(service) == name else None


def find_in(api: Api, platform: Platform, name: str, namespace: str = "") -> Object | None:
    """Return the Service for clients of a running service; an empty namespace means all.

    None if no service of this name runs that the user may read. Raises InputError if several
    namespaces have one.
    """
    services: list[Object] = []
    for home in list_homes(platform, namespace):
        service = _find_readable(api, name, home)
        if service is not None:
            services.append(service)
    if len(services) > 1:
        homes = [service["metadata"]["namespace"] for service in services]
        raise InputError(
            "service name is not unique",
            got=f"{name} in {', '.join(homes)}",
            allowed="one service",
            fix=f"add --namespace {homes[-1]}",
        )
    return services[0] if services else None


def list_homes(platform: Platform, namespace: str) -> tuple[str, ...]:
    return (namespace,) if namespace else platform.service_namespaces


def _find_readable(api: Api, name: str, namespace: str) -> Object | None:
    try:
        return find(api, name, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def require_new(api: Api, name: str, namespace: str = NAMESPACE_SERVING) -> None:
    """Raise InputError if a service of this name runs."""
    running = find(api, name, namespace)
    if running is not None:
        raise InputError(
            "two services of one name",
            got=f"{name}, which serves {_source(running)} in {namespace}",
            allowed="a name that no service of the namespace has",
            fix="choose another name, or change the file of the running service and submit it",
        )


def compare(api: Api, prepared: Prepared, *, replace: bool) -> list[str]:
    """Return what a roll-out changes; nothing for a service that is new.

    Raises Stopped, unless `replace`, if the running service serves something else, and InputError
    if an object of another owner has a name of the service.
    """
    service = prepared.service
    for body in prepared.bodies:
        _require_own(api, body, service.name)
    running = find(api, service.name, service.home)
    if running is None:
        return []
    if _source(running) != service.source and not replace:
        raise Stopped(
            f"two services of one name: {service.name} serves something else",
            got=service.source,
            allowed=_source(running),
            fix="--replace, which rolls this one out instead, or another name",
        )
    return list(_list_changes(api, prepared.bodies))


def _require_own(api: Api, body: Body, name: str) -> None:
    if body["kind"] == SHARED:
        return
    try:
        live = api.find(api.path_of(body))
    except ApiError as error:
        if error.status == 404:  # the API server names the kind when the object is sent
            return
        raise
    if live is not None and _label(live) != name:
        raise InputError(
            "the name of the service is taken",
            got=f"{submission.describe(body)} is there, and not of this service",
            allowed="a name whose objects no one else has",
            fix="choose another name for the service",
        )


def _list_changes(api: Api, bodies: list[Body]) -> Iterator[str]:
    for body in bodies:
        if body["kind"] != "Deployment":
            continue
        live = api.find(api.path_of(body))
        name = body["metadata"]["name"]
        if live is None:
            yield f"{name} is new"
            continue
        trial = api.apply(api.path_of(body), body, dryRun="All")
        if live["spec"]["template"] != trial["spec"]["template"]:
            yield f"{name} gets new pods, one after the other"


def start(api: Api, prepared: Prepared) -> Iterator[str]:
    """Apply a service, then remove what an earlier version had and this one has not."""
    for name in submission.apply(api, _keep_replicas(api, prepared.bodies)):
        yield f"applied {name}"
    remaining = {(body["kind"], body["metadata"]["name"]) for body in prepared.bodies}
    service = prepared.service
    for path in _list_objects(api, service.name, service.home, remaining):
        api.delete(path, propagationPolicy="Background")
        yield f"removed {path.rpartition('/')[2]}"


def _keep_replicas(api: Api, bodies: list[Body]) -> list[Body]:
    """Return the objects, with the replicas that run in each Deployment that an autoscaler sizes.

    Without a number, a Deployment that had a fixed one would go back to a single replica until the
    autoscaler has looked. A service that sleeps goes on sleeping.
    """
    limits: dict[str, tuple[int, int]] = {}
    for body in bodies:
        if body["kind"] == "HorizontalPodAutoscaler":
            spec = body["spec"]
            limits[spec["scaleTargetRef"]["name"]] = (spec["minReplicas"], spec["maxReplicas"])
    sized_bodies: list[Body] = []
    for body in bodies:
        name = body["metadata"]["name"]
        if body["kind"] == "Deployment" and name in limits:
            min_replicas, max_replicas = limits[name]
            live = api.find(api.path_of(body))
            replicas = live["spec"].get("replicas", 0) if live else 0
            is_asleep = live is not None and not replicas and find_idle_minutes(live)
            floor = 0 if is_asleep and find_idle_minutes(body) else min_replicas
            size = min(max(replicas, floor), max_replicas)
            body = body | {"spec": body["spec"] | {"replicas": size}}
        sized_bodies.append(body)
    return sized_bodies


def stop(api: Api, name: str, namespace: str = NAMESPACE_SERVING) -> list[str]:
    """Delete all objects of a service and return their paths.

    What services of a namespace share stays. Raises InputError if no such service runs.
    """
    paths = list(_list_objects(api, name, namespace, set()))
    if not paths:
        names = [service["metadata"]["name"] for service in list_services(api, namespace)]
        raise InputError(
            "no such service",
            got=name,
            allowed=", ".join(names) or f"none runs in {namespace}",
            fix="holdfast explain NAME of a service that runs",
        )
    for path in paths:
        api.delete(path, propagationPolicy="Background")
    return paths


def list_services(api: Api, namespace: str = NAMESPACE_SERVING) -> list[Object]:
    """Return the Services for clients of all running services."""
    services = api.items(f"/api/v1/namespaces/{namespace}/services", labelSelector=LABEL_SERVICE)
    return [service for service in services if service["metadata"]["name"] == _label(service)]


def _list_objects(
    api: Api, name: str, namespace: str, remaining: set[tuple[str, str]]
) -> Iterator[str]:
    kinds = KINDS if namespace == NAMESPACE_SERVING else TEAM_KINDS
    for kind, version in kinds.items():
        stub = {"apiVersion": version, "kind": kind}
        stub["metadata"] = {"name": name, "namespace": namespace}  # pyright: ignore[reportArgumentType]
        try:
            folder = api.path_of(stub).rpartition("/")[0]
        except ApiError as error:
            if error.status == 404:  # the cluster has no such kind
                continue
            raise
        for item in list(api.items(folder, labelSelector=f"{LABEL_SERVICE}={name}")):
            if (kind, item["metadata"]["name"]) not in remaining:
                yield f"{folder}/{item['metadata']['name']}"


def find_idle_minutes(deployment: Object) -> str:
    """Return after how many minutes without a request it has no replicas; empty: it keeps them."""
    annotations: dict[str, str] = deployment["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION_IDLE, "")


def _label(body: Object) -> str:
    return str((body["metadata"].get("labels") or {}).get(LABEL_SERVICE, ""))


def _source(service: Object) -> str:
    annotations: dict[str, Any] = service["metadata"].get("annotations") or {}
    return str(annotations.get(ANNOTATION_SOURCE, "something else"))

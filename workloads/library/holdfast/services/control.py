"""Lists, finds and stops services, for the commands that jobs have too."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.manifests.deployments import LABEL_SERVES
from holdfast.platform import Platform
from holdfast.services import live_service
from holdfast.services.explain import find_address
from holdfast.services.render.manifests import ANNOTATION_SOURCE
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.serving import LABEL_SERVICE, TIER_BASE, TIER_OVERFLOW

HEAD = ("SERVICE", "SERVES", "BASE", "OVERFLOW", "ADDRESS")
_NONE = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceRow:
    name: str
    namespace: str
    source: str
    """The model or the predictor."""
    base: str
    """Ready and wanted replicas, such as 2/4, or `asleep`."""
    overflow: str
    address: str

    def cells(self) -> tuple[str, ...]:
        return (self.name, self.source, self.base, self.overflow, self.address)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rows(api: Api, platform: Platform, namespace: str = "") -> list[ServiceRow]:
    """Return a row for each service; none where the user may not read services."""
    rows: list[ServiceRow] = []
    for home in live_service.list_homes(platform, namespace):
        try:
            services = live_service.list_services(api, home)
            replicas = dict(_list_replicas(api, home)) if services else {}
        except ApiError as error:
            if error.status != 403:
                raise
            continue
        rows.extend(_make_row(api, service, replicas) for service in services)
    return rows


def _list_replicas(api: Api, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each Deployment of a service, with its replicas."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    for deployment in api.items(path, labelSelector=LABEL_SERVICE):
        status: dict[str, Any] = deployment.get("status") or {}
        ready = status.get("readyReplicas", 0)
        replicas = deployment["spec"].get("replicas", 0)
        is_asleep = live_service.find_idle_minutes(deployment) and not replicas
        yield deployment["metadata"]["name"], "asleep" if is_asleep else f"{ready}/{replicas}"


def _make_row(api: Api, service: Object, replicas: dict[str, str]) -> ServiceRow:
    name = service["metadata"]["name"]
    namespace = service["metadata"]["namespace"]
    annotations: dict[str, str] = service["metadata"].get("annotations") or {}
    address, _ = find_address(api, name, namespace)
    return ServiceRow(
        name=name,
        namespace=namespace,
        source=annotations.get(ANNOTATION_SOURCE, _NONE),
        base=replicas.get(f"{name}-{TIER_BASE}", _NONE),
        overflow=replicas.get(f"{name}-{TIER_OVERFLOW}", _NONE),
        address=address,
    )


def find(api: Api, platform: Platform, name: str, namespace: str = "") -> JobSnapshot | None:
    """Return the servers of a service as one job without an end.

    None if no service of this name runs, or if the user may not read it.
    """
    service = live_service.find_in(api, platform, name, namespace)
    return take_snapshot(api, service) if service is not None else None


def take_snapshot(api: Api, service: Object) -> JobSnapshot:
    metadata = service["metadata"]
    selector = f"{LABEL_SERVES}={metadata['name']}-servers"
    path = job_snapshot.path_in("/api/v1", "pods", metadata["namespace"])
    pods = list(api.items(path, labelSelector=selector))
    body = {"kind": "Service", "metadata": metadata, "spec": {"replicas": len(pods)}}
    return JobSnapshot(body=body, pods=pods)


def stop(api: Api, name: str, namespace: str, *, now: bool) -> list[str]:
    """Remove all objects of a service, and return them as KIND/NAME.

    Its pods finish their open requests within their grace periods. Raises InputError for `now`, and
    Unjudged if the user may not delete them.
    """
    if now:
        raise InputError(
            "--now is for jobs",
            got=f"{name}, a service: its servers answer the requests that they have",
            allowed="a job",
            fix=f"holdfast stop {name}",
        )
    try:
        paths = live_service.stop(api, name, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        raise Unjudged(
            f"no right to remove the service {name}",
            got=str(error),
            fix=f"ask the platform team, whose namespace {namespace} is",
        ) from error
    return ["/".join(path.rsplit("/", 2)[1:]) for path in paths]


def removal_json(service: JobSnapshot, removed: list[str]) -> dict[str, Any]:
    """Return the body that `stop --json` prints for a service, with KIND/NAME of each object."""
    return {
        "schema": "holdfast.service-removal/1",
        "name": service.name,
        "namespace": service.namespace,
        "removed": removed,
    }

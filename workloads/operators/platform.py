"""Applies the platform half of an environment.

These are namespaces, priorities, queues, rights, the exporter and the migration; none needs a GPU.
"""

from collections.abc import Iterator

from holdfast.clients.api import Api, ApiError, suggest_fix
from holdfast.manifests.render_context import Body, RenderContext, yaml_text
from holdfast.platform.cluster import NAME, read_published
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import LABEL_HALF, PLATFORM_HALF
from workloads.manifests.rendering import images, platform
from workloads.operators.install import Change, prune, put
from workloads.operators.install import preview as dry

MANAGER = "holdfast-platform"


def apply(api: Api, context: RenderContext) -> Iterator[Change]:
    """Applies all objects and yields the change of each.

    Raises InputError, with nothing applied, if the cluster rejects one of them in a dry run.
    """
    bodies = platform(context)
    # A pod whose digest is zeros would wait for its image forever.
    context.require_digests(images(context, yaml_text(bodies)))
    _dry_run(api, bodies)
    former = _read_former(api)
    document = next(body for body in bodies if body["metadata"]["name"] == NAME)
    for body in bodies:
        if body is not document:
            yield put(api, body, MANAGER)
    yield from prune(api, bodies, f"{LABEL_HALF}={PLATFORM_HALF}", former=former)
    # Last: by the old document, the command that follows an interrupted one finds what must go.
    yield put(api, document, MANAGER)


def preview(api: Api, context: RenderContext) -> Iterator[Change]:
    """Yields the change of each object that `apply` would make, and changes nothing.

    Raises InputError if the cluster rejects one of them.
    """
    bodies = platform(context)
    _dry_run(api, bodies)
    for body in bodies:
        yield dry(api, body, MANAGER)
    yield from prune(
        api,
        bodies,
        f"{LABEL_HALF}={PLATFORM_HALF}",
        former=_read_former(api),
        dry_run=True,
    )


def _read_former(api: Api) -> list[Body]:
    """Returns the objects that were applied last, by the document in the cluster: old objects of a
    kind that is rendered no more must be removed too.
    """
    published = read_published(api)
    return platform(RenderContext(published)) if published else []


def _dry_run(api: Api, bodies: list[Body]) -> None:
    new_namespaces: set[str] = set()
    for body in bodies:
        name = body["metadata"]["name"]
        if body["kind"] == "Namespace" and not api.find(f"/api/v1/namespaces/{name}"):
            new_namespaces.add(name)
    for body in bodies:
        if body["metadata"].get("namespace") in new_namespaces:
            continue  # a dry run makes no namespace, so objects in it would be rejected
        try:
            api.apply(
                api.path_of(body),
                body,
                dryRun="All",
                fieldManager=MANAGER,
            )
        except ApiError as error:
            name = f"{body['kind']}/{body['metadata']['name']}"
            fix = "run `make operators ENV=NAME` first, on a GKE cluster"
            raise InputError(
                f"the cluster rejects {name}; nothing was applied",
                got=error,
                allowed="objects that its API server accepts",
                fix=suggest_fix(error, body) or fix,
            ) from error

"""Apply the platform half of an environment: namespaces, priorities, queues, rights, the exporter,
the migration. No GPU.
"""

from collections.abc import Iterator

from holdfast.clients.api import Api, ApiError, fix_of_unchangeable
from holdfast.manifests.render_context import Body, RenderContext, yaml_text
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import LABEL_HALF, PLATFORM_HALF
from workloads.manifests.rendering import images, platform
from workloads.operators.install import Change, prune, put

MANAGER = "holdfast-platform"


def apply(api: Api, context: RenderContext) -> Iterator[Change]:
    """One change for each object. The cluster judges all of them first: InputError, and nothing was
    applied.
    """
    bodies = platform(context)
    # A pod of zeros would wait for its image forever.
    context.require_digests(images(context, yaml_text(bodies)))
    _try(api, bodies)
    for body in bodies:
        yield put(api, body, MANAGER)
    yield from prune(api, bodies, f"{LABEL_HALF}={PLATFORM_HALF}")


def _try(api: Api, bodies: list[Body]) -> None:
    made = {body["metadata"]["name"] for body in bodies if body["kind"] == "Namespace"}
    there = {name for name in made if api.find(f"/api/v1/namespaces/{name}")}
    for body in bodies:
        if body["metadata"].get("namespace") in made - there:
            continue  # there is no such place yet
        try:
            api.apply(
                api.path_of(body),
                body,
                dryRun="All",
                fieldManager=MANAGER,
            )
        except ApiError as error:
            raise InputError(
                f"the cluster rejects {body['kind']}/{body['metadata']['name']}; nothing was"
                " applied",
                got=error,
                allowed="objects that its API server accepts",
                fix=fix_of_unchangeable(error, body)
                or "run `make operators ENV=NAME` first, on a GKE cluster",
            ) from error

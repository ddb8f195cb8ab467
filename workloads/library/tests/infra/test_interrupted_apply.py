"""`workloads apply` that ends in the middle, against a cluster that keeps objects in memory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from holdfast.clients.api import Api
from holdfast.manifests.render_context import RenderContext
from holdfast.platform.cluster import read_published
from infra import describe
from tests import platforms
from tests.infra.samples import two_teams
from workloads.operators import platform

IMAGES = platforms.with_images("example").images
TWO_TEAMS = two_teams()
BINDING = "/rbac.authorization.k8s.io/v1/namespaces/vision/rolebindings/holdfast-people"


class Cluster:
    """Stores what is applied."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def path_of(self, body: Any) -> str:
        version = body["apiVersion"]
        group = f"/api/{version}" if version == "v1" else f"/{version}"
        namespace = body["metadata"].get("namespace")
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{group}{scope}/{body['kind'].lower()}s/{body['metadata']['name']}"

    def find(self, path: str) -> Any:
        return self.objects.get(path)

    def apply(self, path: str, body: Any, **query: object) -> Any:
        if "dryRun" not in query:
            self.objects[path] = body
        return body

    def items(self, collection: str, labelSelector: str) -> Iterator[Any]:
        key, _, value = labelSelector.partition("=")
        for path, body in list(self.objects.items()):
            is_labeled = body["metadata"]["labels"].get(key) == value
            if path.rpartition("/")[0] == collection and is_labeled:
                yield body

    def delete(self, path: str, **query: object) -> None:
        del self.objects[path]


def test_a_removed_teams_rights_go_after_an_interrupted_apply() -> None:
    """The second apply still knows which namespaces the team had."""
    cluster = Cluster()
    api = cast("Api", cluster)
    before = RenderContext(describe.platform(TWO_TEAMS, IMAGES))
    after = RenderContext(describe.platform(replace(TWO_TEAMS, teams=()), IMAGES))
    list(platform.apply(api, before))
    assert BINDING in cluster.objects
    for change in platform.apply(api, after):
        if change.name == "Deployment/mover":
            break  # the command is killed here
    list(platform.apply(api, after))
    assert BINDING not in cluster.objects
    assert read_published(api) == after.platform

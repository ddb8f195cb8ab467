"""The objects of the example services, as `submit` sends them to the environment `example`."""

from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import holdfast.services
from holdfast.jobs.render.manifests import text
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.services.file import file_text
from holdfast.services.file.service_file import OwnService
from holdfast.services.plan import placement
from holdfast.services.render import manifests
from tests.platforms import with_images

Body = dict[str, Any]
FOLDER = Path(holdfast.services.__file__).parent / "examples"
NAMES = ("chat", "scores")


@cache
def read(name: str) -> OwnService:
    path = FOLDER / f"{name}.yaml"
    return file_text.parse(YAML(typ="safe").load(path.read_text()), str(path))


def render(service: OwnService, platform: Platform | None = None) -> list[Body]:
    platform = platform or with_images("example")
    return manifests.bodies(service, RenderContext(platform), placement.place(service, platform))


def render_text(name: str) -> str:
    return text("example", render(read(name)))


def find(bodies: list[Body], kind: str, name: str) -> Body:
    return next(body for body in bodies if (body["kind"], body["metadata"]["name"]) == (kind, name))

"""The objects of the example services, as `submit` sends them to the environment `example`."""

import re
import shlex
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

import holdfast.services
from holdfast.clients.api import Object
from holdfast.jobs.render.manifests import text
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.services.file import file_text
from holdfast.services.file.service_file import ServiceSpec
from holdfast.services.plan import placement
from holdfast.services.render import manifests
from tests.platforms import with_images

FOLDER = Path(holdfast.services.__file__).parent / "examples"
NAMES = ("assistant", "chat", "drafts", "scores")
PAGE = Path(__file__).parents[2] / "docs/how-to/run-a-service.md"


@cache
def read(name: str) -> ServiceSpec:
    return read_file(FOLDER / f"{name}.yaml")


def read_file(path: Path) -> ServiceSpec:
    return file_text.parse(YAML(typ="safe").load(path.read_text()), str(path))


def render(service: ServiceSpec, platform: Platform | None = None) -> list[Object]:
    platform = platform or with_images("example")
    return manifests.bodies(service, RenderContext(platform), placement.place(service, platform))


def render_text(name: str) -> str:
    return text("example", render(read(name)))


def read_commands(beginning: str) -> list[list[str]]:
    """Returns the commands of the page's block that begins so, as words without `holdfast`."""
    block = re.search(rf"```sh\n({beginning}.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    lines = block[1].strip().splitlines()
    return [shlex.split(line)[1:] for line in lines]


def find(bodies: list[Object], kind: str, name: str) -> Object:
    return next(body for body in bodies if (body["kind"], body["metadata"]["name"]) == (kind, name))

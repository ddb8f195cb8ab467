"""Platform documents of the rendered environments, as commands read them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api
from holdfast.platform import Platform, codec, read
from holdfast.platform.cluster import NAME, PATH
from holdfast.vocabulary.roles import NAMESPACE_MONITORING, ROLES

OF_OTHERS = ("cloud-sql-proxy", "dcgm-exporter", "envoy", "jobset", "kueue", "vllm")
RENDERED = Path(__file__).parents[1] / "workloads" / "rendered"


def file(name: str) -> Path:
    return RENDERED / name / "platform.json"


@cache
def load(name: str) -> Platform:
    return read(file(name))


def names() -> list[str]:
    return sorted(path.parent.name for path in RENDERED.glob("*/platform.json"))


def with_images(name: str, *roles: str) -> Platform:
    """Return the platform after `make images` and `make operators-pin`; `roles`: the pushed images,
    by default all.
    """
    pushed = roles or (*ROLES, *OF_OTHERS)
    return replace(load(name), images=dict.fromkeys(pushed, "a" * 64))


def write_document(platform: Platform, folder: Path) -> Path:
    """Write the platform's document to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / codec.FILE
    path.write_text(codec.text(platform))
    return path


def make_config_map(platform: Platform) -> dict[str, Any]:
    """Return the ConfigMap that `make apply` creates in the cluster."""
    metadata = {"name": NAME, "namespace": NAMESPACE_MONITORING}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {codec.FILE: codec.text(platform)},
    }


def publish(api: Api, platform: Platform) -> None:
    """Create the ConfigMap with its namespace in a test's cluster."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE_MONITORING},
    }
    api.apply(f"/api/v1/namespaces/{NAMESPACE_MONITORING}", namespace)
    api.apply(PATH, make_config_map(platform))

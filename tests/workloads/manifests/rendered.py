"""Loads the committed manifests as objects."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
RENDERED = ROOT / "workloads/rendered"
Body = dict[str, Any]
KUSTOMIZATION = "kustomization.yaml"


@cache
def load_objects(name: str, half: str = "*") -> list[Body]:
    """Returns every object of an environment, or of one half of it.

    Tests share the objects: do not change them.
    """
    objects: list[Body] = []
    for file in sorted((RENDERED / name).glob(f"{half}/*.yaml")):
        if file.name != KUSTOMIZATION:
            objects += yaml.load_all(file.read_text(), yaml.CSafeLoader)
    return objects


def list_kinds(env: str, *kinds: str, half: str = "*") -> list[Body]:
    """Returns the objects of these kinds."""
    bodys: list[Body] = []
    for body in load_objects(env, half):
        if body["kind"] in kinds:
            bodys.append(body)
    return bodys


def find_object(env: str, kind: str, name: str, namespace: str | None = None) -> Body:
    """Returns an object by its name, which for a job may lack the digest of its template."""
    matches: list[Body] = []
    for body in list_kinds(env, kind):
        has_name = name in (body["metadata"]["name"], strip_version(body))
        if has_name and namespace in (None, body["metadata"].get("namespace")):
            matches.append(body)
    (match,) = matches
    return match


def strip_version(body: Body) -> str:
    """Returns the name of an object without the digest of its template."""
    return body["metadata"]["labels"]["app.kubernetes.io/name"]


def templates(value: Any) -> Iterator[Body]:
    """Yields the pod templates anywhere below `value`."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield value
        for child in value.values():
            yield from templates(child)
    elif isinstance(value, list):
        for child in value:
            yield from templates(child)


def workloads(env: str) -> list[tuple[Body, Body]]:
    """Returns every object that makes pods, with its pod template."""
    pairs: list[tuple[Body, Body]] = []
    for body in load_objects(env):
        for template in templates(body):
            pairs.append((body, template))
    return pairs


def list_containers(template: Body) -> list[Body]:
    """Returns the containers and init containers of a pod template."""
    spec = template["spec"]
    return [*spec["containers"], *(spec.get("initContainers") or ())]


def image_name(container: Body) -> str:
    """Returns the name of a container's image without registry and digest."""
    return container["image"].partition("@")[0].rpartition("/")[2]


def images(envs: Iterable[str]) -> set[str]:
    """Returns the names of all images that the pods of these environments run."""
    image_names: set[str] = set()
    for env in envs:
        for _, template in workloads(env):
            image_names.update(map(image_name, list_containers(template)))
    return image_names


def jobs(env: str) -> Iterator[tuple[Body, Body]]:
    """Yields every Job and JobSet, with the spec of its Job."""
    for body in list_kinds(env, "Job", "JobSet"):
        if body["kind"] == "Job":
            yield body, body["spec"]
        for group in body["spec"].get("replicatedJobs", ()):
            yield body, group["template"]["spec"]


def trainers(env: str) -> Iterator[tuple[Body, Body, list[str]]]:
    """Yields the jobs that train as ranks, with the command of their pods."""
    for body, spec in jobs(env):
        command = spec["template"]["spec"]["containers"][0]["command"]
        if command[3:5] == ["train", "run"]:
            yield body, spec, command


def variables(template: Body) -> Body:
    """Returns the environment of the main container, by name."""
    containers = {}
    for container in template["spec"]["containers"]:
        containers[container["name"]] = container
    return {entry["name"]: entry for entry in containers["main"]["env"]}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]

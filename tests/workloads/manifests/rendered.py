"""The committed manifests as objects, for the tests of this room."""

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
def bodies(name: str, half: str = "*") -> list[Body]:
    """Every object of an environment, or of one half of it. Shared between tests: do not change
    them.
    """
    files = sorted((RENDERED / name).glob(f"{half}/*.yaml"))
    files = [file for file in files if file.name != KUSTOMIZATION]
    return [b for file in files for b in yaml.load_all(file.read_text(), yaml.CSafeLoader)]


def named(env: str, kind: str, name: str, namespace: str | None = None) -> Body:
    """By its name, or for a job by the name that it has whatever its template."""
    fitting = [
        b
        for b in bodies(env)
        if b["kind"] == kind and name in (b["metadata"]["name"], unversioned(b))
    ]
    (found,) = (b for b in fitting if namespace in (None, b["metadata"].get("namespace")))
    return found


def unversioned(body: Body) -> str:
    """The name of an object without the digest of its template."""
    return body["metadata"]["labels"]["app.kubernetes.io/name"]


def templates(value: Any) -> Iterator[Body]:
    """Pod templates anywhere below `value`."""
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
    """Every object that makes pods, with its pod template."""
    return [(body, template) for body in bodies(env) for template in templates(body)]


def images(envs: Iterable[str]) -> set[str]:
    """Names of all images that the pods of these environments run, without registry and digest."""
    pods = []
    for env in envs:
        for _, template in workloads(env):
            pods.append(template["spec"])
    containers = []
    for pod in pods:
        for c in [*pod["containers"], *pod.get("initContainers", ())]:
            containers.append(c)
    return {container["image"].partition("@")[0].rpartition("/")[2] for container in containers}


def jobs(env: str) -> Iterator[tuple[Body, Body]]:
    """Every Job and JobSet, with the spec of its Job."""
    for body in bodies(env):
        if body["kind"] == "Job":
            yield body, body["spec"]
        for group in body["spec"].get("replicatedJobs", ()) if body["kind"] == "JobSet" else ():
            yield body, group["template"]["spec"]


def trainers(env: str) -> Iterator[tuple[Body, Body, list[str]]]:
    """Of these, each that trains as ranks: with the command of its pods."""
    for body, spec in jobs(env):
        command = spec["template"]["spec"]["containers"][0]["command"]
        if command[3:5] == ["train", "run"]:
            yield body, spec, command


def variables(template: Body) -> Body:
    """Environment of the main container: name -> entry."""
    (main,) = (c for c in template["spec"]["containers"] if c["name"] == "main")
    return {entry["name"]: entry for entry in main["env"]}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]

"""Views of Kubernetes objects that rules read: the object, its pods at any depth, its Jobs.

All of it takes hostile input: a value of the wrong type reads as absent.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Any

from holdfast.lint.document import Document, Path
from holdfast.support.values import quantity

MAX_DEPTH = 40
MAX_WORD = 100
MAX_SCRIPT = 1 << 16


def as_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_maps(value: Any) -> list[dict[str, Any]]:
    return [each for each in as_list(value) if isinstance(each, dict)]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that was most likely meant, or nothing. A long text is no word."""
    found = get_close_matches(word, known, n=1, cutoff=cutoff) if len(word) <= MAX_WORD else []
    return found[0] if found else ""


def dig(value: Any, *path: str | int) -> Any:
    """The value under `path`, or None where any step is missing."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value


@dataclass(eq=False)
class Object:
    """One Kubernetes object. `root` is its path in the document: empty, or inside a List."""

    document: Document
    file: str
    root: Path
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return as_text(self.body.get("kind"))

    @property
    def metadata(self) -> dict[str, Any]:
        return as_map(self.body.get("metadata"))

    @property
    def spec(self) -> dict[str, Any]:
        return as_map(self.body.get("spec"))

    @property
    def name(self) -> str:
        return as_text(self.metadata.get("name")) or as_text(self.metadata.get("generateName"))

    @property
    def namespace(self) -> str:
        return as_text(self.metadata.get("namespace"))

    @property
    def title(self) -> str:
        return "/".join(
            part for part in (self.kind or "?", self.namespace, self.name or "?") if part
        )

    @cached_property
    def pods(self) -> list["Pod"]:
        return [Pod(self, path, template) for path, template in _templates(self.body)]

    @cached_property
    def jobs(self) -> list["Job"]:
        return [Job(self, path, spec) for path, spec in _job_specs(self)]


@dataclass(eq=False)
class Pod:
    """A pod template (`metadata`, `spec`) at `path` of its object."""

    owner: Object
    path: Path
    template: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        return as_map(self.template.get("spec"))

    @property
    def at(self) -> Path:
        """Path of the pod's spec."""
        return (*self.path, "spec")

    @property
    def labels(self) -> dict[str, Any]:
        return as_map(dig(self.template, "metadata", "labels"))

    @property
    def annotations(self) -> dict[str, Any]:
        return as_map(dig(self.template, "metadata", "annotations"))

    @cached_property
    def job(self) -> "Job | None":
        return next((job for job in self.owner.jobs if self.path == (*job.path, "template")), None)

    @cached_property
    def containers(self) -> list["Container"]:
        """Containers and init containers."""
        return [
            Container(self, (*self.at, key, index), body)
            for key in ("containers", "initContainers")
            for index, body in enumerate(as_list(self.spec.get(key)))
            if isinstance(body, dict)
        ]

    @cached_property
    def tolerations(self) -> list[tuple[Path, dict[str, Any]]]:
        listed = enumerate(as_list(self.spec.get("tolerations")))
        return [((*self.at, "tolerations", i), t) for i, t in listed if isinstance(t, dict)]

    @cached_property
    def gpus(self) -> int:
        """GPUs of the whole pod."""
        return sum(
            container.gpus for container in self.containers if "containers" in container.path
        )

    @property
    def replicas(self) -> int:
        """How many of these pods run at once; 1 where it is not stated."""
        stated = self.job.parallelism if self.job else as_int(self.owner.spec.get("replicas"))
        return 1 if stated is None else stated


@dataclass(eq=False)
class Container:
    pod: Pod
    path: Path
    body: dict[str, Any]

    @property
    def name(self) -> str:
        return as_text(self.body.get("name")) or "?"

    @property
    def env(self) -> dict[str, Any]:
        """Literal environment variables."""
        return {
            as_text(item.get("name")): item.get("value") for item in as_maps(self.body.get("env"))
        }

    @property
    def words(self) -> list[str]:
        """Command and arguments."""
        return [str(word) for key in ("command", "args") for word in as_list(self.body.get(key))]

    @property
    def script(self) -> str:
        """The words on lines of their own, cut at MAX_SCRIPT."""
        return "\n".join(self.words)[:MAX_SCRIPT]

    def runs(self, *program: str) -> bool:
        """Whether these words follow each other in the command."""
        words = self.words
        return any(tuple(words[n : n + len(program)]) == program for n in range(len(words)))

    def option(self, name: str) -> str:
        """The value of `--name value` or `--name=value`; empty where it is not given."""
        for word, after in pairwise([*self.words, ""]):
            if word.partition("=")[0] == name:
                return word.partition("=")[2] or after
        return ""

    def expanded(self, text: str) -> str:
        """With $(NAME) replaced by literal variables, as Kubernetes does."""
        return re.sub(
            r"\$\(([\w.-]{1,200})\)",
            lambda match: as_text(self.env.get(match[1])) or match[0],
            text,
        )

    def number(self, option: str, variable: str = "") -> int | None:
        """A whole number after an option, or in a variable; None where there is none."""
        text = self.option(option) or as_text(self.env.get(variable))
        if text.isascii() and text.isdecimal() and len(text) < 9:
            return int(text)
        return None

    @property
    def ports(self) -> dict[int, str]:
        """Port -> name, as declared."""
        listed = as_list(self.body.get("ports"))
        return {
            as_int(dig(each, "containerPort")) or 0: as_text(dig(each, "name")) for each in listed
        }

    @property
    def command_at(self) -> Path:
        return (*self.path, "command" if "command" in self.body else "args")

    @property
    def mounts(self) -> dict[str, str]:
        """Mount path -> volume name."""
        mounts = as_maps(self.body.get("volumeMounts"))
        return {as_text(item.get("mountPath")): as_text(item.get("name")) for item in mounts}

    def limit(self, resource: str) -> Any:
        return dig(self.body, "resources", "limits", resource)

    def request(self, resource: str) -> Any:
        asked = dig(self.body, "resources", "requests", resource)
        return self.limit(resource) if asked is None else asked

    @property
    def gpus(self) -> int:
        return max(0, int(quantity(self.limit("nvidia.com/gpu")) or 0))


@dataclass(eq=False)
class Job:
    """A JobSpec: of a Job, of a CronJob, or of one replicated job of a JobSet."""

    owner: Object
    path: Path
    spec: dict[str, Any]

    @property
    def in_jobset(self) -> bool:
        return self.owner.kind == "JobSet"

    @property
    def parallelism(self) -> int:
        """Pods at once; never more than there are completions."""
        pods = as_int(self.spec.get("parallelism"))
        most = as_int(self.spec.get("completions"))
        pods = 1 if pods is None else pods
        copies = as_int(dig(self.owner.body, *self.path[:3], "replicas")) if self.in_jobset else 1
        return (pods if most is None else min(pods, most)) * (1 if copies is None else copies)

    @property
    def rules(self) -> list[dict[str, Any]]:
        return as_maps(dig(self.spec, "podFailurePolicy", "rules"))

    @cached_property
    def pod(self) -> Pod | None:
        return next((pod for pod in self.owner.pods if pod.path == (*self.path, "template")), None)


def objects(document: Document, file: str) -> list[Object]:
    """The Kubernetes objects of a document; the items of a List one by one."""
    body = document.value
    if not isinstance(body, dict) or not as_text(body.get("kind")):
        return []
    if as_text(body.get("kind")) == "List":
        items = enumerate(as_list(body.get("items")))
        return [
            Object(document, file, ("items", i), item)
            for i, item in items
            if isinstance(item, dict)
        ]
    return [Object(document, file, (), body)]


def _templates(body: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every pod template in an object of any kind, known or not: a mapping whose spec lists
    containers.
    """
    stack: list[tuple[Path, Any]] = [((), body)]
    while stack:
        path, value = stack.pop()
        if len(path) > MAX_DEPTH:
            continue
        if isinstance(value, dict):
            if isinstance(dig(value, "spec", "containers"), list):
                yield path, value
                continue
            stack += [((*path, key), child) for key, child in reversed(value.items())]
        elif isinstance(value, list):
            stack += [((*path, index), child) for index, child in reversed(list(enumerate(value)))]


def _job_specs(owner: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    if owner.kind == "Job":
        yield ("spec",), owner.spec
    elif owner.kind == "CronJob":
        yield ("spec", "jobTemplate", "spec"), as_map(dig(owner.spec, "jobTemplate", "spec"))
    elif owner.kind == "JobSet":
        for index, job in enumerate(as_list(owner.spec.get("replicatedJobs"))):
            yield (
                ("spec", "replicatedJobs", index, "template", "spec"),
                as_map(dig(job, "template", "spec")),
            )

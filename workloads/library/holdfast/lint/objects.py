"""Views of Kubernetes objects that rules read: the object, its pods at any depth, its Jobs.

All of it takes hostile input: a value of the wrong type reads as absent.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from holdfast.lint.accessors import (
    LocatedMap,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    as_texts,
    dig,
    list_maps,
)
from holdfast.lint.document import Document, Path
from holdfast.support.values import duration_s, quantity
from holdfast.vocabulary.kubernetes import LABEL_QUEUE

# Where an object without a namespace is created.
DEFAULT_NAMESPACE = "default"
# Kinds of Kubernetes and JobSet. A controller of another kind adds labels, variables and volumes of
# its own.
KNOWN_KINDS = (
    "CronJob",
    "DaemonSet",
    "Deployment",
    "Job",
    "JobSet",
    "Pod",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
)
# Their kind may be left out.
_KUSTOMIZATION_FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MAX_DEPTH = 40
MAX_SCRIPT = 1 << 16
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
SHELLS = ("sh", "bash", "ash", "dash", "zsh")
_VARIABLE = re.compile(r"\$\(([\w.-]{1,200})\)")
Identity = tuple[str, str, str]


@dataclass(eq=False)
class Object:
    """One Kubernetes object. `root` is its path in the document: empty, or inside a List."""

    document: Document
    file: str
    root: Path
    body: dict[str, Any]

    # Kept, since objects of one run are compared with each other many thousand times.
    @cached_property
    def kind(self) -> str:
        return as_text(self.body.get("kind"))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        return as_map(self.body.get("metadata"))

    @property
    def labels(self) -> dict[str, Any]:
        return as_map(self.metadata.get("labels"))

    @property
    def annotations(self) -> dict[str, Any]:
        return as_map(self.metadata.get("annotations"))

    @property
    def spec(self) -> dict[str, Any]:
        return as_map(self.body.get("spec"))

    @property
    def queue_path(self) -> Path:
        """The path of the label that names a queue: of a CronJob, that of its Jobs."""
        root: Path = ("spec", "jobTemplate") if self.kind == "CronJob" else ()
        return (*root, "metadata", "labels", LABEL_QUEUE)

    @property
    def queue(self) -> str:
        """The LocalQueue of the object; empty where it names none."""
        return as_text(dig(self.body, *self.queue_path))

    @cached_property
    def name(self) -> str:
        return as_text(self.metadata.get("name")) or as_text(self.metadata.get("generateName"))

    @cached_property
    def namespace(self) -> str:
        return as_text(self.metadata.get("namespace"))

    @cached_property
    def identity(self) -> Identity:
        """Kind, namespace and name: two objects of one identity do not go into one cluster."""
        return self.kind, self.namespace or DEFAULT_NAMESPACE, self.name

    @property
    def title(self) -> str:
        parts = (self.kind or "?", self.namespace, self.name or "?")
        return "/".join(filter(None, parts))

    @cached_property
    def pods(self) -> list["Pod"]:
        return [Pod(self, path, template) for path, template in _find_templates(self.body)]

    @property
    def claims(self) -> list[LocatedMap]:
        """The specs of its claims for volumes."""
        path = ("spec", "volumeClaimTemplates")
        claims: list[LocatedMap] = []
        for claim_path, claim in list_maps(path, self.spec.get("volumeClaimTemplates")):
            spec = as_map(claim.get("spec"))
            claims.append(((*claim_path, "spec"), spec))
        if self.kind == "PersistentVolumeClaim":
            claims.append((("spec",), self.spec))
        return claims

    @cached_property
    def jobs(self) -> list["Job"]:
        return [Job(self, path, spec) for path, spec in _find_job_specs(self)]


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
    def spec_path(self) -> Path:
        return (*self.path, "spec")

    @property
    def labels(self) -> dict[str, Any]:
        return as_map(dig(self.template, "metadata", "labels"))

    @cached_property
    def all_labels(self) -> dict[str, Any]:
        """The labels of the template, and those with known values that a controller adds."""
        return self.labels | self._controller_labels

    @property
    def _controller_labels(self) -> dict[str, str]:
        if self.owner.kind == "Job":
            name = as_text(self.owner.metadata.get("name"))
            return {"job-name": name, "batch.kubernetes.io/job-name": name}
        if self.owner.kind == "LeaderWorkerSet":
            return {"leaderworkerset.sigs.k8s.io/name": self.owner.name}
        if self.owner.kind == "JobSet" and self.job:
            return {
                "jobset.sigs.k8s.io/jobset-name": self.owner.name,
                "jobset.sigs.k8s.io/replicatedjob-name": as_text(self.job.dig_replicated("name")),
            }
        return {}

    @property
    def annotations(self) -> dict[str, Any]:
        return as_map(dig(self.template, "metadata", "annotations"))

    @cached_property
    def job(self) -> "Job | None":
        for job in self.owner.jobs:
            if self.path == (*job.path, "template"):
                return job
        return None

    @cached_property
    def containers(self) -> list["Container"]:
        """All containers of the pod, then its init containers."""
        containers: list[Container] = []
        for key in ("containers", "initContainers"):
            for path, body in self._list_maps(key):
                containers.append(Container(self, path, body))
        return containers

    def _list_maps(self, field: str) -> list[LocatedMap]:
        return list_maps((*self.spec_path, field), self.spec.get(field))

    @cached_property
    def main_containers(self) -> list["Container"]:
        """The containers of the pod without its init containers."""
        return [container for container in self.containers if container.is_main]

    @cached_property
    def tolerations(self) -> list[LocatedMap]:
        return self._list_maps("tolerations")

    @cached_property
    def volumes(self) -> list[LocatedMap]:
        return self._list_maps("volumes")

    @cached_property
    def gpus(self) -> int:
        """GPUs of the whole pod."""
        return sum(container.gpus for container in self.main_containers)

    def request(self, resource: str) -> float:
        """Adds up what the main containers request of a resource."""
        total = 0.0
        for container in self.main_containers:
            total += quantity(container.request(resource)) or 0.0
        return total

    @property
    def account(self) -> str:
        """Name of the service account; empty where the pod states none."""
        name = self.spec.get("serviceAccountName") or self.spec.get("serviceAccount")
        return as_text(name)

    @property
    def replicas(self) -> int:
        """Number of these pods that run at once; 1 where the object does not say."""
        if self.job:
            return self.job.parallelism
        replicas = as_int(self.owner.spec.get("replicas"))
        replicas = 1 if replicas is None else replicas
        if self.owner.kind == "LeaderWorkerSet":
            return replicas * self._count_in_group()
        return replicas

    def _count_in_group(self) -> int:
        """Counts the pods of this template in one group of a LeaderWorkerSet."""
        group = as_map(self.owner.spec.get("leaderWorkerTemplate"))
        if "leaderTemplate" in self.path:
            return 1
        size = as_int(group.get("size")) or 1
        return size - 1 if group.get("leaderTemplate") else size

    @property
    def grace_s(self) -> int | None:
        """Grace period in seconds; None where the pod does not state it."""
        return as_int(self.spec.get("terminationGracePeriodSeconds"))


@dataclass(eq=False)
class Container:
    pod: Pod
    path: Path
    body: dict[str, Any]

    @property
    def is_main(self) -> bool:
        """Returns whether it is no init container."""
        return "containers" in self.path

    @property
    def name(self) -> str:
        return as_text(self.body.get("name")) or "?"

    @cached_property
    def env(self) -> dict[str, Any]:
        """Literal environment variables."""
        variables = as_maps(self.body.get("env"))
        return {as_text(item.get("name")): item.get("value") for item in variables}

    @cached_property
    def variables(self) -> list[tuple[Path, str, str]]:
        """Path of the value, name and literal value of each environment variable."""
        variables: list[tuple[Path, str, str]] = []
        for path, item in self._list_maps("env"):
            name = as_text(item.get("name"))
            value = as_text(item.get("value"))
            variables.append(((*path, "value"), name, value))
        return variables

    @cached_property
    def mounts(self) -> list[LocatedMap]:
        return self._list_maps("volumeMounts")

    def _list_maps(self, field: str) -> list[LocatedMap]:
        return list_maps((*self.path, field), self.body.get(field))

    def list_words(self) -> Iterator[tuple[Path, str]]:
        """Yields the words of the command and its arguments, each with its path."""
        for key in ("command", "args"):
            for index, word in enumerate(as_texts(self.body.get(key))):
                yield (*self.path, key, index), word

    def list_texts(self) -> Iterator[tuple[Path, str]]:
        """Yields the values of variables, and the words of the command and its arguments."""
        for path, _, value in self.variables:
            yield path, value
        yield from self.list_words()

    @cached_property
    def words(self) -> list[str]:
        """Command and arguments."""
        command = as_list(self.body.get("command"))
        arguments = as_list(self.body.get("args"))
        return [str(word) for word in command + arguments]

    @cached_property
    def programs(self) -> list[str]:
        """The words without the folders before them."""
        return [word.rpartition("/")[2] for word in self.words]

    @cached_property
    def script(self) -> str:
        """The words, each on its own line, cut at MAX_SCRIPT."""
        return "\n".join(self.words)[:MAX_SCRIPT]

    @cached_property
    def arguments(self) -> list[str]:
        """The words, and after the script of a shell those of the script."""
        arguments: list[str] = []
        for word in self.words:
            arguments.append(word)
            if " " in word and self.programs[0] in SHELLS:
                arguments += word[:MAX_SCRIPT].split()
        return arguments

    def runs(self, *program: str) -> bool:
        """Returns whether these words follow each other in the command."""
        words = self.words
        for start in range(len(words)):
            if tuple(words[start : start + len(program)]) == program:
                return True
        return False

    def option(self, name: str) -> str:
        """Returns the value of `--name value` or `--name=value`; empty where it is not given."""
        for word, successor in pairwise([*self.arguments, ""]):
            flag, _, value = word.partition("=")
            if flag == name:
                return value or successor
        return ""

    def expand(self, text: str) -> str:
        """Replaces $(NAME) by literal variables, as Kubernetes does."""
        return _VARIABLE.sub(self._replace_variable, text)

    def _replace_variable(self, match: re.Match[str]) -> str:
        value = as_text(self.env.get(match[1]))
        return value or match[0]

    def number(self, option: str, variable: str = "") -> int | None:
        """Returns a whole number given by an option or a variable; None where neither has one."""
        text = self.option(option) or as_text(self.env.get(variable))
        if text.isascii() and text.isdecimal() and len(text) < 9:
            return int(text)
        return None

    def seconds(self, option: str) -> float | None:
        """Returns the seconds of an option that is a duration, as 15 or 15s; None for any other."""
        text = self.option(option)
        seconds = duration_s(text)
        return duration_s(f"{text}s") if seconds is None else seconds

    @property
    def ports(self) -> dict[int, str]:
        """Port -> name, as declared."""
        names: dict[int, str] = {}
        for port in as_list(self.body.get("ports")):
            number = as_int(dig(port, "containerPort")) or 0
            names[number] = as_text(dig(port, "name"))
        return names

    @property
    def command_path(self) -> Path:
        return (*self.path, "command" if "command" in self.body else "args")

    def limit(self, resource: str) -> Any:
        return dig(self.body, "resources", "limits", resource)

    def request(self, resource: str) -> Any:
        """Returns the request of a resource, which defaults to its limit."""
        request = dig(self.body, "resources", "requests", resource)
        return self.limit(resource) if request is None else request

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
        """Number of pods at once; never more than there are completions."""
        pods = as_int(self.spec.get("parallelism"))
        pods = 1 if pods is None else pods
        completions = as_int(self.spec.get("completions"))
        if completions is not None:
            pods = min(pods, completions)
        if not self.in_jobset:
            return pods
        replicas = as_int(self.dig_replicated("replicas"))
        return pods if replicas is None else pods * replicas

    def dig_replicated(self, field: str) -> Any:
        """Returns a field of the replicated job of a JobSet that has this spec."""
        return dig(self.owner.body, *self.path[:3], field)

    @property
    def deadlines(self) -> list[tuple[Path, int]]:
        """The deadlines of the Job and of its pods in seconds, each with its path."""
        places = [(self.path, self.spec)]
        if self.pod:
            places.append((self.pod.spec_path, self.pod.spec))
        deadlines: list[tuple[Path, int]] = []
        for path, spec in places:
            seconds = as_int(spec.get("activeDeadlineSeconds"))
            if seconds is not None:
                deadlines.append(((*path, "activeDeadlineSeconds"), seconds))
        return deadlines

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules of the pod failure policy."""
        return as_maps(dig(self.spec, "podFailurePolicy", "rules"))

    @cached_property
    def pod(self) -> Pod | None:
        for pod in self.owner.pods:
            if pod.path == (*self.path, "template"):
                return pod
        return None

    @property
    def containers(self) -> list[Container]:
        """Containers and init containers of the pod; none where the Job has no pod."""
        return self.pod.containers if self.pod else []


def objects(document: Document, file: str) -> list[Object]:
    """Lists the Kubernetes objects of a document; the items of a List one by one."""
    body = document.value
    if not isinstance(body, dict):
        return []
    if "kind" not in body and PurePosixPath(file).name in _KUSTOMIZATION_FILES:
        body = body | {"kind": "Kustomization"}
    if not as_text(body.get("kind")):
        return []
    if as_text(body.get("kind")) != "List":
        return [Object(document, file, (), body)]
    items: list[Object] = []
    for index, item in enumerate(as_list(body.get("items"))):
        if isinstance(item, dict):
            items.append(Object(document, file, ("items", index), item))
    return items


def _find_templates(body: dict[str, Any]) -> Iterator[LocatedMap]:
    """Yields every pod template in an object of any kind: a mapping whose spec lists containers."""
    stack: list[tuple[Path, Any]] = [((), body)]
    while stack:
        path, value = stack.pop()
        if len(path) > MAX_DEPTH:
            continue
        if isinstance(dig(value, "spec", "containers"), list):
            yield path, value
        elif isinstance(value, dict):
            for key, child in reversed(value.items()):
                stack.append(((*path, key), child))
        elif isinstance(value, list):
            for index in reversed(range(len(value))):
                stack.append(((*path, index), value[index]))


def _find_job_specs(owner: Object) -> Iterator[LocatedMap]:
    if owner.kind == "Job":
        yield ("spec",), owner.spec
    elif owner.kind == "CronJob":
        path = ("spec", "jobTemplate", "spec")
        yield path, as_map(dig(owner.body, *path))
    elif owner.kind == "JobSet":
        for index, job in enumerate(as_list(owner.spec.get("replicatedJobs"))):
            path = ("spec", "replicatedJobs", index, "template", "spec")
            yield path, as_map(dig(job, "template", "spec"))

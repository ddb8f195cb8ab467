"""Rendered workloads on a laptop's nodes: everything is as rendered except what only GKE has.

Image, GPU, bucket, database proxy and queue are replaced; policies, security, restarts, signals and
services stay. The interpreter and its packages are this host's own, mounted read-only at their own
paths.
"""

import copy
import sys
from pathlib import Path

from ruamel.yaml import YAML

from holdfast.clients.api import Object
from holdfast.vocabulary.environment import ENV_GPUS
from holdfast.vocabulary.kubernetes import LABEL_NAME

ROOT = Path(__file__).parents[3]
RENDERED = ROOT / "workloads" / "rendered" / "example"
# What an interpreter of this host needs to run unchanged inside a pod.
HOST_FOLDERS = tuple(
    path
    for path in dict.fromkeys(
        (
            Path("/usr"),
            Path("/lib"),
            Path("/lib64"),
            Path(sys.base_prefix),
            Path(sys.prefix).resolve(),
            ROOT,
        )
    )
    if path.is_dir()
)
# No Pub/Sub is here.
QUEUE_OPTIONS = {"--topic", "--subscription"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def find_object(kind: str, name: str, folder: Path = RENDERED) -> Object:
    """Finds a rendered object; the name of a job is without the digest of its template."""
    for path in sorted(folder.glob("*/[!k]*.yaml")):
        for doc in YAML(typ="safe", pure=True).load_all(path.read_text()):
            if doc and doc["kind"] == kind and doc["metadata"]["labels"][LABEL_NAME] == name:
                return doc
    raise LookupError(f"{kind} {name} is not in {folder}")


def job(doc: Object, namespace: str, pod_changes: "Here") -> Object:
    """Returns a Job or JobSet in `namespace`, changed to run here and not held by a queue."""
    runnable = copy.deepcopy(doc)
    runnable["metadata"] = {"name": doc["metadata"]["name"], "namespace": namespace}
    runnable["spec"]["suspend"] = False
    spec = runnable["spec"]
    if runnable["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod_changes.apply(spec["template"]["spec"])
    return runnable


def without_queue(command: list[str]) -> list[str]:
    """Returns the command of a batch job without Pub/Sub, so that it queues in the database."""
    words: list[str] = []
    for word, before in zip(command, ["", *command], strict=False):
        if not {word, before} & QUEUE_OPTIONS:
            words.append(word)
    return words


class Here:
    """What a pod needs on nodes of this host: image, mounts, and options instead of the rendered
    ones.
    """

    def __init__(
        self,
        image: str,
        node_root: str,
        writable: Path,
        selector: dict[str, str],
        **options: object,
    ) -> None:
        """`node_root` is where a node has this host's folders."""
        self._image = image
        self._node_root = node_root
        self._writable = writable
        self._selector = selector
        self._options = {}
        for name, value in options.items():
            self._options[f"--{name.replace('_', '-')}"] = str(value)
        self.spec: Object = {}
        """Fields of the pod that are set besides."""

    def apply(self, spec: Object) -> None:
        for field in ("serviceAccountName", "priorityClassName", "initContainers"):
            spec.pop(field, None)
        spec["nodeSelector"] = self._selector
        (container,) = spec["containers"]
        container.pop("resources", None)
        container |= {
            "image": self._image,
            "imagePullPolicy": "IfNotPresent",
            "workingDir": str(ROOT),
        }
        words = container["command"][1:]
        container["command"] = [sys.executable, *self._with_options(words)]
        entries = []
        for entry in container["env"]:
            if entry["name"] not in {*ENVIRONMENT, ENV_GPUS}:
                entries.append(entry)
        container["env"] = entries + [
            {"name": name, "value": value} for name, value in ENVIRONMENT.items()
        ]
        spec["volumes"] = [v for v in spec.get("volumes", ()) if "emptyDir" in v]
        volume_names = {volume["name"] for volume in spec["volumes"]}
        mounts = container.get("volumeMounts", ())
        container["volumeMounts"] = [mount for mount in mounts if mount["name"] in volume_names]
        for n, path in enumerate((*HOST_FOLDERS, self._writable)):
            spec["volumes"].append(
                {
                    "name": f"host-{n}",
                    "hostPath": {"path": f"{self._node_root}{path}"},
                }
            )
            read_only = path != self._writable
            container["volumeMounts"].append(
                {
                    "name": f"host-{n}",
                    "mountPath": str(path),
                    "readOnly": read_only,
                }
            )
        spec |= self.spec

    def _with_options(self, command: list[str]) -> list[str]:
        words = without_queue(command)
        for name, value in self._options.items():
            if name in words:
                words[words.index(name) + 1] = value
            else:
                words += [name, value]
        return words

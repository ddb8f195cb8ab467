"""HF56x: files that a program names, and that none of the pod's volumes has."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Pod, as_list, as_map, as_text, dig
from holdfast.lint.references import CONFIG_MAP, SECRET, list_keys
from holdfast.lint.registry import Context, rule

DOC_CONFIG = "https://kubernetes.io/docs/concepts/configuration/configmap/"
DOC_SECRET = "https://kubernetes.io/docs/concepts/configuration/secret/"
_LONGEST = 4_000
_SCRIPT = re.compile(r"(?<![\w./-])/[\w./-]{1,300}\.(?:py|sh)(?!\w)")
_GIVEN_FILES = re.compile(
    r"(^|_)(GOOGLE_APPLICATION_CREDENTIALS|KUBECONFIG|((?<!SPECIAL_)TOKEN|PASSWORD|SECRET|KEY|CREDENTIALS)_FILE)$"
)
_SYSTEM_FOLDERS = (
    *("/", "/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/usr/bin", "/usr/lib"),
    *("/usr/local", "/usr/local/bin", "/usr/local/lib", "/opt/conda"),
)
# Where the program itself writes its credentials, and where an injected agent does.
_OWN_FOLDERS = ("/var/run/secrets/", "/tmp/", "/root/", "/home/", "/vault/secrets/")


def _run_script(name: str) -> str:
    return f"""\
spec:
  template:
    spec:
      volumes: [{{name: scripts, configMap: {{name: scripts}}}}]
      containers:
      - name: main
        image: train
        command: [bash, /scripts/{name}]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: scripts, mountPath: /scripts}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: scripts, namespace: training}}
data: {{train.sh: exec train}}
"""


@rule(
    "HF560",
    "file-not-in-the-volume",
    Severity.ERROR,
    on=Pod,
    what="A program names a file that its ConfigMap, Secret or projected volume does not have.",
    why="The program ends at its start: no such file.",
    source=DOC_CONFIG,
    fix="name a key of the object, or a path of its items",
    base="job",
    bad=_run_script("run.sh"),
    good=_run_script("train.sh"),
)
def require_files(pod: Pod, context: Context) -> Iterator[Hit]:
    volumes: dict[str, set[str]] = {}
    for _, volume in pod.volumes:
        files = _list_files(volume, pod, context)
        if files:
            volumes[as_text(volume.get("name"))] = files
    for container in pod.containers if volumes else ():
        for path, mount in container.mounts:
            files = volumes.get(as_text(mount.get("name")), set())
            if files:
                yield from _check_mount(container, path, mount, files)
    yield from _check_entrypoint(pod, context)


def _check_entrypoint(pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields a script that a RayJob starts, and that its head mounts in another folder."""
    owner = pod.owner
    if owner.kind != "RayJob" or "headGroupSpec" not in pod.path:
        return
    for container in pod.main_containers:
        for match in _SCRIPT.finditer(as_text(owner.spec.get("entrypoint"))[:_LONGEST]):
            folder, _, name = match[0].rpartition("/")
            for _, mount in container.mounts:
                place = as_text(mount.get("mountPath")).rstrip("/")
                for _, volume in pod.volumes:
                    is_mounted = volume.get("name") == mount.get("name")
                    files = _list_files(volume, pod, context) if is_mounted else set[str]()
                    if name in files and place and folder != place:
                        message = f"{match[0]} is not there: {place} has {name}"
                        yield Hit((*container.path, "volumeMounts"), message)
                    elif files and place == folder and not _has_file(files, name):
                        message = f"{place} has no {name}; it has {', '.join(sorted(files)[:5])}"
                        yield Hit((*container.path, "volumeMounts"), message)


def _check_mount(
    container: Container, mount_path: Path, mount: dict[str, Any], files: set[str]
) -> Iterator[Hit]:
    listed = ", ".join(sorted(files)[:5])
    part = as_text(mount.get("subPath"))
    if part:
        if not _has_file(files, part):
            yield Hit((*mount_path, "subPath"), f"the volume has no {part}; it has {listed}")
        return
    folder = as_text(mount.get("mountPath")).rstrip("/")
    if not folder or "subPathExpr" in mount:
        return
    inner_mounts = _list_inner_mounts(container, folder)
    pattern = re.compile(rf"(?<![\w./-]){re.escape(folder)}/([\w@.-]+(?:/[\w@.-]+)*)(?![\w*?$/{{])")
    for path, text in container.list_texts():
        for match in pattern.finditer(container.expand(text)[:_LONGEST]):
            if not _has_file(files, match[1]) and not match[0].startswith(inner_mounts):
                yield Hit(path, f"{folder} has no {match[1]}; it has {listed}")
                break


def _list_inner_mounts(container: Container, folder: str) -> tuple[str, ...]:
    """Returns the mounts below a folder, which hide what the folder's volume has there."""
    places = [as_text(mount.get("mountPath")) for _, mount in container.mounts]
    return tuple(place for place in places if place.startswith(f"{folder}/"))


def _has_file(files: set[str], name: str) -> bool:
    """Returns whether a name is that of a file, or of a folder of one."""
    name = name.rstrip("./")
    if name in files:
        return True
    folder = f"{name}/"
    return any(file.startswith(folder) for file in files)


def _list_files(volume: dict[str, Any], pod: Pod, context: Context) -> set[str]:
    """Lists the files of a volume; none where the files examined do not show all of them."""
    sources = [volume]
    if "projected" in volume:
        sources = [as_map(source) for source in as_list(dig(volume, "projected", "sources"))]
    files: set[str] = set()
    for source in sources:
        names = _list_source_files(source, pod, context)
        if not names:
            return set()
        files |= names
    return files


def _list_source_files(source: dict[str, Any], pod: Pod, context: Context) -> set[str]:
    token = as_text(dig(source, "serviceAccountToken", "path"))
    if token:
        return {token}
    for kind, field in ((CONFIG_MAP, "configMap"), (SECRET, "secret")):
        body = as_map(source.get(field))
        name = as_text(body.get("name")) or as_text(body.get("secretName"))
        items = {as_text(dig(item, "path")) for item in as_list(body.get("items"))}
        if items:
            return items
        obj = context.index.find(kind, name, pod.owner.namespace) if name else None
        if obj and not body.get("optional"):
            return list_keys(obj)
    return set()


@rule(
    "HF561",
    "credentials-on-no-mount",
    Severity.ERROR,
    on=Pod,
    what="A variable names a file of credentials that no volume of the pod brings.",
    why="The program ends at its first call: the file does not exist.",
    source=DOC_SECRET,
    fix="mount the Secret there; with Workload Identity remove the variable",
    base="container",
    bad="""\
env:
- name: GOOGLE_APPLICATION_CREDENTIALS
  value: /secrets/key.json
""",
    good="""\
env:
- name: GOOGLE_CLOUD_PROJECT
  value: acme
""",
)
def require_credentials(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        places: list[str] = []
        for _, mount in container.mounts:
            place = as_text(mount.get("mountPath"))
            places.append(place.rstrip("/"))
        for path, name, file in container.variables:
            if not _GIVEN_FILES.search(name) or not file.startswith("/") or "$" in file:
                continue
            is_mounted = False
            for place in places:
                is_below = file.startswith(f"{place}/")
                is_mounted = is_mounted or is_below or file == place
            if not is_mounted and not file.startswith(_OWN_FOLDERS):
                yield Hit(path, f"{file} is on no mount")


@rule(
    "HF562",
    "mount-hides-the-image",
    Severity.ERROR,
    on=Pod,
    what="A volume is mounted over a folder of the system: its own programs are gone.",
    why="The container finds no shell, interpreter or library, and ends at its start.",
    source="https://kubernetes.io/docs/concepts/storage/volumes/",
    fix="mount it at a path of its own, as /data, or one file by subPath",
    base="container",
    bad="""\
volumeMounts:
- name: data
  mountPath: /usr
""",
    good="""\
env:
- name: DATA
  value: /data
""",
)
def check_mount_paths(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for path, mount in container.mounts:
            folder = as_text(mount.get("mountPath")).rstrip("/") or "/"
            if folder in _SYSTEM_FOLDERS and not mount.get("subPath"):
                yield Hit((*path, "mountPath"), f"hides what the image has in {folder}")

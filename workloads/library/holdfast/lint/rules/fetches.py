"""HF670, HF677: init containers fetch files to the folders from which programs read them."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, find_volume, is_read_only
from holdfast.lint.objects import Container, Pod, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.paths import LONGEST, LOOKS, PLACE, are_related, list_places

DOC_INIT = "https://kubernetes.io/docs/concepts/workloads/pods/init-containers/"
_TARGET = re.compile(
    r"(?:\bcp\b|\brsync\b|\bmv\b)[^\n;&|]{1,600}?[ \t](/[\w./-]{1,200})[ \t]*(?=$|[\n;&|\"'])"
    r"|--local-dir[= ](/[\w./-]{1,200})"
    r"|\bgit\s+clone[^\n;&|]{1,300}?[ \t](/[\w./-]{1,200})[ \t]*(?=$|[\n;&|])"
    r"|\bwget\b[^\n;&|]{1,300}?-O[ =]?(/[\w./-]{1,200})"
    r"|\btar\b[^\n;&|]{1,300}?-C[ =]?(/[\w./-]{1,200})"
)
_SYSTEM = ("/tmp", "/dev", "/etc", "/usr", "/proc", "/root", "/var/tmp", "/run", "/bin", "/opt")


def _fetch(target: str) -> str:
    return f"""\
volumes: [{{name: assets, emptyDir: {{sizeLimit: 1Gi}}}}]
initContainers:
- name: fetch
  image: registry.example/tools:1.4
  command: [sh, -c, "gcloud storage cp -r gs://assets/tokenizer {target}"]
  volumeMounts:
  - name: assets
    mountPath: /assets
containers:
- name: main
  image: registry.example/trainer:1.4
  command: [python, train.py, --tokenizer, /assets/tokenizer]
  resources:
    limits:
      nvidia.com/gpu: 1
      memory: 8Gi
      ephemeral-storage: 4Gi
  volumeMounts:
  - name: assets
    mountPath: /assets
"""


@rule(
    "HF670",
    "fetched-into-nothing",
    Severity.ERROR,
    on=Pod,
    what="An init container writes files to a folder that no other container of the pod mounts.",
    why="They end with the init container: the program starts without its data.",
    source=DOC_INIT,
    fix="write to a volume that both containers mount",
    base="job-pod",
    bad=_fetch("/tokenizer/"),
    good=_fetch("/assets/"),
)
def check_fetched_files(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        # A sidecar may fetch for itself.
        if container.is_main or container.body.get("restartPolicy") == "Always":
            continue
        for path, target in _list_targets(container):
            if target.startswith(_SYSTEM) and find_mount(container, target) is None:
                continue
            mount = find_mount(container, target)
            if mount is None:
                yield Hit(path, f"{target} is on no mount of {container.name}")
            elif is_read_only(container, mount):
                yield Hit(path, f"{target} is on a read-only mount")
            elif not _is_shared(container, mount.get("name")):
                yield Hit(path, f"{target} is on {mount.get('name')}, which no other one mounts")


def _list_targets(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the folders to which a command copies or downloads, each with its path.

    A target that the same script reads again is only on its way.
    """
    if "chroot" in container.script or "nsenter" in container.script:
        return
    texts = list(container.list_words())
    if not any(" " in word for _, word in texts):
        texts = [(container.command_path, " ".join(container.words))]
    for path, word in texts:
        for match in _TARGET.finditer(word[:LONGEST]):
            target = next(filter(None, match.groups()))
            text = LOOKS.sub("", word[:LONGEST])
            name = re.escape(target.rstrip("/"))
            uses = re.findall(rf"(?<![\w/.-]){name}(?![\w-])", text)
            if len(uses) == 1:
                yield path, target


def _is_shared(container: Container, name: object) -> bool:
    """Returns whether another container mounts a volume, or the volume outlives the pod."""
    volume = find_volume(container.pod, name)
    if "emptyDir" not in volume:
        return True
    for other in container.pod.containers:
        if other is not container and any(mount.get("name") == name for _, mount in other.mounts):
            return True
    return False


@rule(
    "HF677",
    "reads-what-nothing-fetched",
    Severity.ERROR,
    on=Pod,
    what="A program reads another folder of a volume than the one that an init container filled.",
    why="The folder is empty: the program ends at its start, or works on nothing.",
    source=DOC_INIT,
    fix="name the folder that the init container fills",
    base="job-pod",
    bad=_fetch("/assets/tokenizer").replace("/assets/tokenizer]", "/assets/vocabulary]"),
    good=_fetch("/assets/tokenizer"),
)
def reads_what_nothing_fetched(pod: Pod, context: Context) -> Iterator[Hit]:
    filled: dict[str, list[str]] = {}
    for container in pod.containers:
        for _, target in () if container.is_main else _list_targets(container):
            target = _add_source_name(container, target)
            mount = find_mount(container, target)
            if mount and "emptyDir" in find_volume(pod, mount.get("name")):
                place = as_text(mount.get("mountPath")).rstrip("/")
                filled.setdefault(as_text(mount.get("name")), []).append(
                    target.rstrip("/")[len(place) :]
                )
    for container in pod.main_containers if filled else ():
        for path, folder in (*list_places(container, _READS), *_list_variables(container)):
            mount = find_mount(container, folder)
            parts = filled.get(as_text(mount.get("name")), []) if mount else []
            place = as_text(mount.get("mountPath")).rstrip("/") if mount else ""
            part = folder[len(place) :]
            if not parts or any(_are_parts(part, item) for item in parts):
                continue
            if not _is_named_before(pod, as_text(dig(mount, "name")), part):
                yield Hit(path, f"{folder} is not filled; {place}{parts[0]} is")


def _add_source_name(container: Container, target: str) -> str:
    """Returns the path that a copy of one folder makes below a target that ends with a slash."""
    if not target.endswith("/"):
        return target
    source = re.search(
        rf"\bcp (?:-\w+ )*gs://[\w./-]{{1,300}}/([\w.-]{{1,100}})\s+{re.escape(target)}(?![\w/])",
        container.script.replace("\n", " "),
    )
    return target + source[1] if source else target


def _list_variables(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the variables that name a folder with data or weights."""
    for path, name, value in container.variables:
        if _READ_VARIABLES.search(name) and PLACE.fullmatch(value[:500]):
            yield path, value.rstrip("/")


def _is_named_before(pod: Pod, volume: str, part: str) -> bool:
    """Returns whether an init container names a folder of a volume, and thus may fill it."""
    for container in pod.containers:
        script = "" if container.is_main else LOOKS.sub("", container.script)
        for _, mount in container.mounts if script else ():
            place = as_text(mount.get("mountPath")).rstrip("/")
            name = rf"(?<![\w/.-]){re.escape(place + part)}(?![\w-])"
            if mount.get("name") == volume and re.search(name, script):
                return True
    return False


def _are_parts(part: str, other: str) -> bool:
    """Returns whether one path in a volume is the other one, or holds it."""
    return part == other or not part or not other or are_related(part, other)


_READ_VARIABLES = re.compile(r"(^|_)(MODEL|WEIGHTS|TOKENIZER|DATA|DATASET)(_(DIR|PATH|FOLDER))?$")
_READS = re.compile(
    r"--?(?:data|dataset|input|model|tokenizer|weights|corpus|model[-_]id)([-_](dir|path|folder|root))?"
    r"|--model-repository|--base"
)

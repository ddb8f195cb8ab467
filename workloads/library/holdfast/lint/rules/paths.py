"""HF671 to HF676: paths that one program writes and another one, or its next start, reads."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, find_volume, is_below, outlives_pod
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import KNOWN_KINDS, Container, Job, Pod, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import count_differences
from holdfast.support.values import GIB, quantity

DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/"
DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-sidecar"
)
LONGEST = 8_000
"""Characters of a script that are searched."""
# Commands that only look at a folder, or make it.
LOOKS = re.compile(r"\b(?:test|ls|du|mkdir|chmod|chown|rm|find|echo)\b[^\n;&|]{0,400}")
_SAVES = re.compile(
    r"--?(output|output[-_]?dir|save|save[-_]?dir|checkpoint[-_]?dir|ckpt[-_]?dir|checkpoints?"
    r"|ckpts?|run[-_]?dir|work[-_]?dir|checkpoint[-_]path|save[-_]path)"
)
_LOADS = re.compile(
    r"--?(resume|resume[-_]from|resume[-_]from[-_]checkpoint|restore|restore[-_]from|load"
    r"|load[-_]dir|resume[-_]dir|restore[-_]dir|load[-_]path|resume[-_]path)"
)
PLACE = re.compile(r"(gs:/)?/[\w./-]{1,400}")
_FILE = re.compile(r"[^\s$]{1,400}\.(parquet|json|jsonl|csv|npy|npz|pt|pth|txt|h5|arrow|tar|tsv)")
_RESULT_OPTIONS = re.compile(r"--(out|output|results?|predictions)([-_](file|path))?|-o")
_MEETS = re.compile(r"rdzv|rendezvous|nnodes|master|coordinator|mpirun|deepspeed", re.IGNORECASE)
_OWN_FOLDER = re.compile(r"--(?:ckpt|checkpoints?|run)[-_]?(?:dir|path|folder)?=(/?\S{2,300})")
_DEFAULT_SIDECAR_DISK = 5 * GIB


def _resume(folder: str) -> str:
    return f"""\
volumes:
  - name: runs
    persistentVolumeClaim:
      claimName: runs
containers:
  - name: main
    image: registry.example/trainer:1.4
    command:
      - python
      - train.py
      - --output-dir=/runs/a7
      - --resume-from={folder}
    resources:
      limits:
        nvidia.com/gpu: 1
    volumeMounts:
      - name: runs
        mountPath: /runs
"""


@rule(
    "HF671",
    "resumes-elsewhere",
    Severity.ERROR,
    on=Pod,
    what="A program saves to one folder and resumes from another, which nothing writes.",
    why="Its next start finds no checkpoint, and begins at step 0.",
    source=DOC_VOLUMES,
    fix="give both options the same folder",
    base="job-pod",
    bad=_resume("/run/a7"),
    good=_resume("/runs/a7"),
)
def resumes_elsewhere(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        saves = [place for _, place in list_places(container, _SAVES)]
        for path, place in list_places(container, _LOADS):
            if saves and not any(are_related(place, saved) for saved in saves):
                saved = saves[0]
                if _is_mistake(container, place, saved):
                    yield Hit(path, f"saves to {saved}, and resumes from {place}")


def list_places(container: Container, pattern: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    """Yields the absolute paths and buckets of the options that a pattern matches."""
    option = ""
    for path, word in container.list_words():
        name, equals, value = word.partition("=")
        place = container.expand(value if equals else word)
        is_given = pattern.fullmatch((name if equals else option)[:100])
        if is_given and PLACE.fullmatch(place[:500]):
            yield path, place.rstrip("/")
        option = "" if equals else word


def are_related(place: str, other: str) -> bool:
    return is_below(place, other) or is_below(other, place)


def _is_mistake(container: Container, place: str, saved: str) -> bool:
    """Returns whether a place was meant to be the other one.

    A run may also start from the checkpoint of another run. So it is a mistake only if the place is
    on no mount, or if the two paths are nearly the same.
    """
    is_lost = place.startswith("/") and find_mount(container, place) is None
    is_kept = saved.startswith("gs:") or find_mount(container, saved) is not None
    if is_lost and is_kept:
        return True
    names = [PurePosixPath(item).name for item in (place, saved)]
    has_same_name = names[0] == names[1]
    differences = count_differences(place[:200], saved[:200])
    has_other_numbers = bool(re.sub(r"\D", "", place) != re.sub(r"\D", "", saved))
    return not has_other_numbers and (differences <= 2 or (has_same_name and differences <= 6))


def _store(folder: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: queue, namespace: serving}}
spec:
  serviceName: queue
  selector: {{matchLabels: {{app: queue}}}}
  template:
    metadata: {{labels: {{app: queue}}}}
    spec:
      containers:
      - name: redis
        image: redis:7.4.1
        args: [--appendonly, "yes"]
        volumeMounts: [{{name: data, mountPath: {folder}}}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: premium-rwo
      resources: {{requests: {{storage: 20Gi}}}}
"""


@rule(
    "HF672",
    "data-off-the-disk",
    Severity.ERROR,
    on=Pod,
    what="A store of data has a disk, and writes to a folder that is not on it.",
    why="The data is in the container's own layer: it is gone with the pod.",
    source=DOC_VOLUMES,
    fix="mount the disk at the folder of the data, as /data of Redis",
    bad=_store("/var/lib/redis"),
    good=_store("/data"),
)
def data_off_the_disk(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        mounts = [mount for _, mount in container.mounts if outlives_pod(container, mount)]
        table = _find_store(container)
        if not mounts or not table:
            continue
        folder = _get_data_folder(container, table)
        mount = find_mount(container, folder)
        is_kept = mount is not None and mount in mounts
        is_inside = any(is_below(as_text(item.get("mountPath")), folder) for item in mounts)
        if folder.startswith("/") and not is_kept and not is_inside:
            path = (*container.path, "volumeMounts")
            disk = as_text(mounts[0].get("mountPath"))
            yield Hit(path, f"its data is in {folder}, and the disk is at {disk}")


def _find_store(container: Container) -> dict[str, str]:
    """Returns what is known of a store by its image; empty for another program."""
    image = as_text(container.body.get("image")).partition("@")[0][:500]
    name = image.rpartition("/")[2].partition(":")[0]
    publisher = image.rpartition("/")[0]
    if "bitnami" in publisher:
        return {}
    return load_table("stores").get(name, {})


def _get_data_folder(container: Container, table: dict[str, str]) -> str:
    option = container.option(table.get("option", "")) if table.get("option") else ""
    variable = as_text(container.env.get(table.get("variable", "")))
    if "conf" in container.script and not option:
        return ""  # a file of settings may say it
    return option or variable or table["folder"]


def _shards(target: str) -> str:
    return f"""\
command:
  - python
  - score.py
  - --shard=$(JOB_COMPLETION_INDEX)
  - --output={target}
"""


@rule(
    "HF673",
    "indices-write-one-file",
    Severity.ERROR,
    on=Job,
    what="All indices of a Job write their results to one file, or checkpoints to one folder.",
    why="Each one replaces what the others wrote: only the results of the last are left.",
    source="https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/",
    fix="put the index into the name: part-$(JOB_COMPLETION_INDEX).parquet",
    base="container",
    bad=_shards("gs://results/scores.parquet"),
    good=_shards("gs://results/scores-$(JOB_COMPLETION_INDEX).parquet"),
)
def indices_write_one_file(job: Job, context: Context) -> Iterator[Hit]:
    completions = job.spec.get("completions")
    if not isinstance(completions, int) or completions < 2 or job.in_jobset:
        return
    is_gang = bool(job.pod and job.pod.spec.get("subdomain"))
    for container in job.containers:
        is_gang = is_gang or bool(_MEETS.search(container.script))
        is_gang = is_gang or bool({"MASTER_ADDR", "WORLD_SIZE", "RANK"} & container.env.keys())
    is_alone = job.spec.get("completionMode") == "Indexed" and not is_gang and job.parallelism > 1
    for container in job.containers if is_alone else ():
        # A program that does not know its index may be one of a gang.
        if "COMPLETION_INDEX" not in container.script:
            continue
        for path, word in container.list_words():
            match = _OWN_FOLDER.match(word)
            if match and not re.search(r"INDEX|POD_NAME|HOSTNAME|\$\(", word):
                yield Hit(path, f"{job.parallelism} pods write checkpoints to {match[1][:60]}")
    for container in job.containers:
        option = ""
        has_shards = "COMPLETION_INDEX" in container.script
        for path, word in _list_shell_words(container):
            name, equals, value = word.partition("=")
            is_result = _RESULT_OPTIONS.fullmatch((name if equals else option)[:60])
            place = (value if equals else word)[:500].strip("\"'")
            option = "" if equals else word
            if has_shards and is_result and _FILE.fullmatch(place):
                yield Hit(path, f"{completions} indices write {place}")


def _list_shell_words(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the words of a command; those of a script one by one."""
    for path, word in container.list_words():
        for part in word[:20_000].split():
            yield path, part


def _cache(size: str) -> str:
    return f"""\
metadata:
  annotations: {{gke-gcsfuse/volumes: "true", gke-gcsfuse/ephemeral-storage-limit: 50Gi}}
spec:
  volumes:
  - name: data
    csi:
      driver: gcsfuse.csi.storage.gke.io
      readOnly: true
      volumeAttributes: {{bucketName: data, fileCacheCapacity: {size}}}
  containers:
  - name: main
    image: registry.example/trainer:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
    volumeMounts: [{{name: data, mountPath: /data, readOnly: true}}]
"""


@rule(
    "HF674",
    "cache-larger-than-its-sidecar",
    Severity.ERROR,
    on=Pod,
    what="The file cache of a mounted bucket is larger than the disk that its sidecar may use.",
    why="The pod is evicted when the cache has grown to the limit, in the middle of its work.",
    source=DOC_FUSE,
    fix='annotate the pod: gke-gcsfuse/ephemeral-storage-limit, "0" for no limit',
    base="job-template",
    bad=_cache("200Gi"),
    good=_cache("40Gi"),
)
def compare_caches(pod: Pod, context: Context) -> Iterator[Hit]:
    has_own_cache = bool(find_volume(pod, "gke-gcsfuse-cache"))
    text = str(pod.annotations.get("gke-gcsfuse/ephemeral-storage-limit", ""))
    limit = quantity(text) if text else _DEFAULT_SIDECAR_DISK
    if has_own_cache or not limit or pod.owner.kind not in KNOWN_KINDS:
        return
    for path, volume in pod.volumes:
        attribute = ("csi", "volumeAttributes", "fileCacheCapacity")
        size = quantity(dig(volume, *attribute))
        if size and size > limit:
            message = f"a cache of {size / GIB:.0f} GiB, and {limit / GIB:.0f} GiB for the sidecar"
            yield Hit((*path, *attribute), message)


def _upload(folder: str) -> str:
    return f"""\
command:
  - bash
  - -c
args:
  - set -e; python eval.py --output-dir /results/out; gcloud storage cp -r {folder} gs://r/a7
"""


@rule(
    "HF676",
    "copies-what-nothing-wrote",
    Severity.ERROR,
    on=Pod,
    what="A script copies results from a folder to which none of its programs writes.",
    why="The copy fails after the work is done, or copies nothing: the results end with the pod.",
    source=DOC_VOLUMES,
    fix="copy the folder of the option for results",
    base="serving-container",
    bad=_upload("/results/output"),
    good=_upload("/results/out"),
)
def copies_what_nothing_wrote(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        for path, text in container.list_words():
            script = text[:LONGEST]
            written = [match[1].rstrip("/") for match in _WRITTEN.finditer(script)]
            for match in _COPIED.finditer(script) if written else ():
                source = match[1].rstrip("/")
                name = rf"(?<![\w/.-]){re.escape(source)}(?![\w-])"
                is_used = len(re.findall(name, LOOKS.sub("", script))) > 1
                if not is_used and not any(are_related(source, item) for item in written):
                    yield Hit(path, f"copies {source}, and the results are in {written[0]}")


_WRITTEN = re.compile(
    r"--?(?:out|output|output[-_]?dir|output[-_]path|results?|save[-_]?dir)[= ]\"?(/[\w./-]{1,200})"
)
_COPIED = re.compile(
    r"\b(?:gcloud storage|gsutil(?: -m)?|aws s3) (?:cp|rsync|mv)(?: -\w+)* \"?(/[\w./-]{1,200})\"?"
    r"\s+\"?(?:gs|s3)://"
)

"""HF770 to HF775: what runs too early, too late or never."""

import re
from collections.abc import Iterator

from holdfast.lint.examples import write_scaler
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_volume
from holdfast.lint.object_index import SCALER
from holdfast.lint.objects import Object, Pod, as_int, as_text, as_texts, dig
from holdfast.lint.registry import Context, rule

DOC_HOOKS = "https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/"
DOC_HPA = "https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/"
DOC_CRON = "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/"
DOC_CONFIG = "https://kubernetes.io/docs/concepts/storage/volumes/#configmap"
DOC_INIT = "https://kubernetes.io/docs/concepts/workloads/pods/init-containers/"
_LAST_ACT = re.compile(
    r"(^|[\s/_-])(save|flush|drain|deregister|persist|shutdown|dump|offboard)([\s_-]|$)"
)
_WATCHES = re.compile(r"(^|\s)--?(watch|reload|hot-reload|auto-reload|live-reload)([\s=]|$)")
_FETCHES = re.compile(
    r"\b(?:gcloud storage|gsutil|aws s3|wget|curl|huggingface-cli|hf download|git clone|rsync)\b"
    r"[^\n;|]{0,600}\|\|\s{0,3}(?:true\b|:(?=[\s;&)]|$))"
)
_SAVE_EVERY = ("--save-steps", "--save_steps", "--save-interval", "--save_interval", "--ckpt-every")
_LAST_STEP = ("--max-steps", "--max_steps", "--total-steps", "--num-steps", "--train-steps")
_SHORT_WINDOW_S = 60


def _write_hook(hook: str) -> str:
    return f"""\
lifecycle:
  {hook}:
    exec:
      command:
      - /app/ctl
      - save-state
"""


@rule(
    "HF770",
    "hook-at-the-wrong-end",
    Severity.ERROR,
    on=Pod,
    what="A postStart hook saves or drains, which is work for the end of a container.",
    why="It runs as the container starts: at the end nothing saves, and the state is lost.",
    source=DOC_HOOKS,
    fix="make it a preStop hook, within the grace period",
    base="serving-container",
    bad=_write_hook("postStart"),
    good=_write_hook("preStop"),
)
def check_start_hooks(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        path = (*container.path, "lifecycle", "postStart", "exec", "command")
        text = " ".join(as_texts(dig(container.body, "lifecycle", "postStart", "exec", "command")))
        has_end = dig(container.body, "lifecycle", "preStop") is not None
        match = _LAST_ACT.search(text[:2_000])
        if match and not has_end:
            yield Hit(path, f"`{match[2]}` runs at the start of {container.name}")


def _write_window(seconds: int) -> str:
    return write_scaler(f"behavior: {{scaleDown: {{stabilizationWindowSeconds: {seconds}}}}}")


@rule(
    "HF771",
    "scaled-down-at-once",
    Severity.WARNING,
    on=Object,
    kinds=(SCALER,),
    what="An autoscaler removes pods with GPUs as soon as the load falls.",
    why="They take minutes to load a model: the next peak finds none, and replicas flap.",
    source=DOC_HPA,
    fix="stabilizationWindowSeconds of 300 or more for scaleDown",
    base="serving",
    bad=_write_window(0),
    good=_write_window(600),
)
def check_scale_down(obj: Object, context: Context) -> Iterator[Hit]:
    path = ("spec", "behavior", "scaleDown", "stabilizationWindowSeconds")
    seconds = as_int(dig(obj.body, *path))
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind"))
    name = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    workload = context.index.find(kind, name, obj.namespace)
    has_gpus = workload is not None and any(pod.gpus for pod in workload.pods)
    if has_gpus and seconds is not None and seconds < _SHORT_WINDOW_S:
        yield Hit(path, f"removes pods with GPUs after {seconds} s of less load")


def _write_steps(interval: int) -> str:
    return f"""\
command:
- python
- train.py
- --max-steps=40000
- --save-steps={interval}
"""


@rule(
    "HF772",
    "saves-after-the-end",
    Severity.ERROR,
    on=Pod,
    what="A program saves a checkpoint less often than once in its whole run.",
    why="Each restart begins at step 0, and after an eviction nothing is left.",
    source="https://huggingface.co/docs/transformers/main_classes/trainer",
    fix="save many times in a run, as every 15 minutes",
    base="container",
    bad=_write_steps(50_000),
    good=_write_steps(500),
)
def check_save_steps(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        intervals = filter(None, map(container.number, _SAVE_EVERY))
        interval = next(intervals, 0)
        steps = next(filter(None, map(container.number, _LAST_STEP)), 0)
        if steps and interval >= steps:
            message = f"saves every {interval} steps, of {steps} in all"
            yield Hit(container.command_path, message)


def _write_schedule(schedule: str) -> str:
    return f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: monthly
  namespace: research
spec:
  schedule: "{schedule}"
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 3600
      ttlSecondsAfterFinished: 86400
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: main
            image: registry.example/report:1.4
"""


@rule(
    "HF773",
    "days-joined-by-or",
    Severity.WARNING,
    on=Object,
    kinds=("CronJob",),
    what="A schedule names days of the month and days of the week.",
    why="The two are joined by or: the first Monday is not meant by it, but eight days or more.",
    source=DOC_CRON,
    fix="state one of the two, and let the program check the other",
    bad=_write_schedule("0 2 1-7 * 1"),
    good=_write_schedule("0 2 * * 1"),
)
def check_days(obj: Object, context: Context) -> Iterator[Hit]:
    fields = as_text(obj.spec.get("schedule")).split()
    if len(fields) != 5 or any(field.startswith(("*", "?")) for field in (fields[2], fields[4])):
        return
    message = f"runs on the days {fields[2]} of the month, and on each day {fields[4]}"
    yield Hit(("spec", "schedule"), message)


def _write_mount(sub_path: str) -> str:
    return f"""\
volumes:
- name: config
  configMap:
    name: routes
containers:
- name: main
  image: registry.example/router:1.4
  args:
  - --config=/etc/router/routes.yaml
  - --watch
  resources:
    limits:
      nvidia.com/gpu: 1
  volumeMounts:
  - name: config
    mountPath: /etc/router{sub_path}
"""


@rule(
    "HF774",
    "file-never-updated",
    Severity.WARNING,
    on=Pod,
    what="A program watches a file of a ConfigMap or Secret that is mounted by subPath.",
    why="Such a file is copied once: changes never reach pods that run.",
    source=DOC_CONFIG,
    fix="mount the whole ConfigMap as a folder",
    base="serving-pod",
    bad=_write_mount("/routes.yaml\n    subPath: routes.yaml"),
    good=_write_mount(""),
)
def check_watched_files(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if not _WATCHES.search(" ".join(container.words)[:8_000]):
            continue
        for path, mount in container.mounts:
            volume = find_volume(pod, mount.get("name"))
            if mount.get("subPath") and ("configMap" in volume or "secret" in volume):
                message = f"{mount.get('subPath')} is watched, and never updated"
                yield Hit((*path, "subPath"), message)


def _write_download(ending: str) -> str:
    return f"""\
initContainers:
- name: fetch
  image: registry.example/tools:1.4
  command:
  - bash
  - -c
  - gcloud storage cp -r gs://models/a7 /models/{ending}
  volumeMounts:
  - name: models
    mountPath: /models
containers:
- name: main
  image: registry.example/server:1.4
  resources:
    limits:
      nvidia.com/gpu: 1
  volumeMounts:
  - name: models
    mountPath: /models
volumes:
- name: models
  emptyDir: {{}}
"""


@rule(
    "HF775",
    "download-may-fail",
    Severity.WARNING,
    on=Pod,
    what="An init container goes on after a download that failed.",
    why="The program starts with files that are missing or cut, and nothing tries again.",
    source=DOC_INIT,
    fix="remove `|| true`, unless the files may be absent, as on a first start",
    base="serving-pod",
    bad=_write_download(" || true"),
    good=_write_download(""),
)
def check_downloads(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if container.is_main:
            continue
        for path, text in container.list_words():
            if _FETCHES.search(text[:8_000]):
                yield Hit(path, "a failed download counts as a success")
                break

"""HF859 to HF862: databases in files, proxies of Cloud SQL, and classes with small machines.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, outlives_pod
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Object, Pod, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.stock import get_repository
from holdfast.vocabulary.machines import MACHINE_TYPES

DOC_SQLITE = "https://docs.sqlalchemy.org/en/20/core/engines.html#sqlite"
DOC_PROXY = "https://cloud.google.com/sql/docs/postgres/connect-kubernetes-engine"
DOC_CLASS = "https://cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes"
DOC_LEVELS = "https://kubernetes.io/docs/concepts/overview/working-with-objects/"
_SQLITE = re.compile(r"\bsqlite(?:\+\w{1,30})?:///(/?[\w./-]{1,200})")
_INSTANCE = re.compile(r"[\w.-]+(?::[\w.-]+)?:[a-z]+-[a-z]+\d+:[\w-]+(\?.*)?|.*[$<{].*")
_PROXIES = ("cloud-sql-proxy", "gce-proxy", "alloydb-auth-proxy")
_USER = re.compile(r"(^|_)(DB|PG|POSTGRES|DATABASE|MYSQL)?_?USER(NAME)?$")
_PASSWORD = re.compile(
    r"PASS(WORD|WD)?(_FILE)?$|PGPASSFILE$|(DATABASE|DB|CONNECTION)_(URL|STRING)$"
)


def _write_tracker(database: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: tracker
  namespace: research
spec:
  strategy:
    type: Recreate
  selector:
    matchLabels:
      app: tracker
  template:
    metadata:
      labels:
        app: tracker
    spec:
      containers:
      - name: tracker
        image: registry.example/tracker:1.4
        command: [tracker, --store=sqlite:///{database}]
        volumeMounts:
        - name: data
          mountPath: /data
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: tracker
"""


@rule(
    "HF859",
    "database-off-its-disk",
    Severity.ERROR,
    on=Pod,
    what="A pod has a disk, and its SQLite database is a file that is not on it.",
    why="The database is gone with the pod.",
    source=DOC_SQLITE,
    fix="sqlite:////FOLDER-OF-THE-MOUNT/NAME.db, with four slashes",
    bad=_write_tracker("/store/tracker.db"),
    good=_write_tracker("/data/tracker.db"),
)
def check_database_files(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        disks: list[str] = []
        for _, mount in container.mounts:
            if outlives_pod(container, mount):
                disks.append(as_text(mount.get("mountPath")))
        for path, text in container.list_texts() if disks else ():
            match = _SQLITE.search(text[:4_000])
            if match is None or (not match[1].startswith("/") and container.body.get("workingDir")):
                continue
            # The working folder of many images is the root.
            mount = find_mount(container, "/" + match[1].lstrip("/"))
            if mount is None or not outlives_pod(container, mount):
                yield Hit(path, f"{match[1]} is not on the disk, which is at {disks[0]}")


def _write_proxy(instance: str, user: str = "scores@acme-ai-platform.iam") -> str:
    return f"""\
initContainers:
- name: proxy
  restartPolicy: Always
  image: gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.16.0
  args: [--auto-iam-authn, '{instance}']
  resources:
    limits:
      memory: 128Mi
containers:
- name: main
  image: registry.example/scores:1.4
  env:
  - name: DB_USER
    value: {user}
  resources:
    limits:
      memory: 8Gi
      nvidia.com/gpu: 1
"""


@rule(
    "HF860",
    "database-login-wrong",
    Severity.ERROR,
    on=Pod,
    what="A proxy of Cloud SQL gets no connection name, or its client a user that cannot log in.",
    why="The proxy ends at its start, or the database refuses each connection.",
    source=DOC_PROXY,
    fix="PROJECT:REGION:INSTANCE; a user is the e-mail without .gserviceaccount.com",
    base="serving-pod",
    bad=_write_proxy("acme-ai-platform/us-central1/results"),
    good=_write_proxy("acme-ai-platform:us-central1:results"),
)
def check_logins(pod: Pod, context: Context) -> Iterator[Hit]:
    proxies = [item for item in pod.containers if get_repository(item).endswith(_PROXIES)]
    is_alloy = any("alloydb" in get_repository(proxy) for proxy in proxies)
    for proxy in proxies:
        options = [word for word in proxy.words if word.startswith("-")]
        for path, word in proxy.list_words() if not is_alloy else ():
            is_name = "/" in word or word.count(":") > 0
            is_option = word.startswith(("-", "/")) or "=" in word or " " in word
            if is_name and not is_option and not _INSTANCE.fullmatch(word[:300]):
                yield Hit(path, f"{word[:100]} is no connection name: PROJECT:REGION:INSTANCE")
        has_login = any("iam" in option for option in options)
        for container in pod.main_containers:
            yield from _check_user(container, has_login=has_login or is_alloy)


def _check_user(container: Container, *, has_login: bool) -> Iterator[Hit]:
    names = [as_text(item.get("name")) for item in as_maps(container.body.get("env"))]
    has_password = bool(container.body.get("envFrom")) or any(map(_PASSWORD.search, names))
    for path, name, value in container.variables:
        if not _USER.search(name) or "@" not in value:
            continue
        if value.endswith(".gserviceaccount.com"):
            yield Hit(path, "a user of PostgreSQL is the e-mail without .gserviceaccount.com")
        elif value.endswith(".iam") and not has_login and not has_password:
            yield Hit(path, "the proxy has no --auto-iam-authn, and there is no password")


def _write_small(cpu: int) -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata:
  name: small
spec:
  nodePoolAutoCreation:
    enabled: true
  whenUnsatisfiable: DoNotScaleUp
  priorities:
  - machineType: n2-standard-8
    spot: true
  - machineType: n2-standard-8
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: api
  namespace: research
spec:
  selector:
    matchLabels:
      app: api
  template:
    metadata:
      labels:
        app: api
    spec:
      nodeSelector:
        cloud.google.com/compute-class: small
      containers:
      - name: api
        image: registry.example/api:1.4
        resources:
          requests:
            cpu: {cpu}
"""


@rule(
    "HF861",
    "larger-than-its-class",
    Severity.ERROR,
    on=Pod,
    what="A pod asks for more CPU, memory or GPUs than any machine of its ComputeClass has.",
    why="No priority fits: the pod stays Pending.",
    source=DOC_CLASS,
    fix="ask for less, or add a larger machine to the class",
    bad=_write_small(16),
    good=_write_small(4),
)
def check_class_machines(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).find_demands("cloud.google.com/compute-class"):
        classes = context.index.find_all("ComputeClass", demand.values[0])
        priorities = as_maps(classes[0].spec.get("priorities")) if len(classes) == 1 else []
        machines = [MACHINE_TYPES.get(as_text(item.get("machineType"))) for item in priorities]
        sizes = [machine for machine in machines if machine is not None]
        if not sizes or len(sizes) < len(machines):
            continue
        limits = {
            "cpu": max(machine.vcpus for machine in sizes),
            "memory": max(machine.memory_gib for machine in sizes) * 2**30,
            "nvidia.com/gpu": max(machine.gpus for machine in sizes),
        }
        for resource, size in limits.items():
            request = pod.request(resource)
            if request > size:
                unit = 2**30 if resource == "memory" else 1
                message = f"asks for {request / unit:g} of {resource}, of {size / unit:g} at most"
                yield Hit(demand.path, message)


def _write_job(fields: str) -> str:
    return f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
  namespace: research
spec:
  {fields}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: pytorch
            image: registry.example/bert:1.4
"""


@rule(
    "HF862",
    "field-at-another-level",
    Severity.ERROR,
    on=Object,
    what="A field of an operator's object is at a level that does not have it.",
    why="The API server drops it or refuses the object; what it says has no effect.",
    source=DOC_LEVELS,
    fix="move it to where it belongs",
    bad=_write_job("cleanPodPolicy: Running"),
    good=_write_job("runPolicy: {cleanPodPolicy: Running}"),
)
def check_levels(obj: Object, context: Context) -> Iterator[Hit]:
    for place, home in load_table("misplaced").get(obj.kind, {}).items():
        path: Path = tuple(place.split("."))
        parent = dig(obj.body, *path[:-1])
        if isinstance(parent, dict) and path[-1] in parent:
            yield Hit(path, f"{place} belongs to {home}", on_key=True)

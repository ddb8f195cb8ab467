"""HF859 and HF860: databases in files, and proxies of Cloud SQL.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, outlives_pod
from holdfast.lint.objects import Container, Pod, as_maps, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.stock import get_repository

DOC_SQLITE = "https://docs.sqlalchemy.org/en/20/core/engines.html#sqlite"
DOC_CLOUD_SQL = "https://cloud.google.com/sql/docs/postgres/connect-kubernetes-engine"
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
    source=DOC_CLOUD_SQL,
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

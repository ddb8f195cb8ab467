"""HF850 to HF852: names that pods do not have, identities they do not use, and far images.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    KNOWN_KINDS,
    Object,
    Pod,
    as_int,
    as_text,
    dig,
)
from holdfast.lint.references import ACCOUNT
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT, FUSE_DRIVER

DOC_STATEFUL = (
    "https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#stable-network-id"
)
DOC_IDENTITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"
DOC_REGIONS = "https://cloud.google.com/artifact-registry/pricing"
_BUCKET = re.compile(r"(?<![\w/])gs://[a-z0-9]")
_REGION = re.compile(r"([a-z]+)(?:-[a-z]+\d+)?-docker\.pkg\.dev/([a-z0-9-]{1,63})/")
_CONTINENTS = {"northamerica": "us", "eu": "europe"}


def _write_set(fields: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: store
  namespace: research
spec:
  {fields}
  selector:
    app: store
  ports:
  - port: 6334
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: store
  namespace: research
spec:
  serviceName: store
  replicas: 3
  selector:
    matchLabels:
      app: store
  template:
    metadata:
      labels:
        app: store
    spec:
      containers:
      - name: store
        image: registry.example/store:1.4
        ports:
        - containerPort: 6334
"""


@rule(
    "HF850",
    "members-without-names",
    Severity.WARNING,
    on=Object,
    kinds=("StatefulSet",),
    what="The Service that names the members of a StatefulSet has an address of its own.",
    why="store-0.store does not resolve: only a headless Service gives its pods names.",
    source=DOC_STATEFUL,
    fix="clusterIP: None; clients get a second Service",
    bad=_write_set("type: ClusterIP"),
    good=_write_set("clusterIP: None"),
)
def check_members(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("serviceName"))
    service = context.index.find("Service", name, obj.namespace) if name else None
    replicas = as_int(obj.spec.get("replicas"))
    # The only member is reached by the Service itself.
    if service is None or service.spec.get("clusterIP") == "None" or (replicas or 1) < 2:
        return
    if service.file == obj.file:
        yield Hit(("spec", "serviceName"), f"Service {name} is not headless: no pod has a name")


def _write_account(fields: str) -> str:
    return f"""\
metadata:
  namespace: research
spec:
  template:
    spec:
      {fields}
      containers:
      - name: main
        image: registry.example/trainer:1.4
        command: [python, train.py, --data, gs://research/tokens]
        resources:
          limits:
            nvidia.com/gpu: 1
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: trainer
  namespace: research
  annotations:
    iam.gke.io/gcp-service-account: trainer@acme-ai-platform.iam.gserviceaccount.com
"""


@rule(
    "HF851",
    "bucket-without-identity",
    Severity.ERROR,
    on=Pod,
    what="A pod uses a bucket as the account `default`, and another one has the rights.",
    why="The first read or write ends with 403: `default` has no rights at Google.",
    source=DOC_IDENTITY,
    fix="serviceAccountName: the account of this namespace with rights to the bucket",
    base="job",
    bad=_write_account("serviceAccountName: default"),
    good=_write_account("serviceAccountName: trainer"),
)
def check_identity(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.account not in ("", "default") or pod.owner.kind not in KNOWN_KINDS:
        return
    bucket = _find_bucket(pod)
    if not bucket:
        return
    namespace = pod.owner.namespace or DEFAULT_NAMESPACE
    accounts: list[str] = []
    for account in context.index.list_namespace(ACCOUNT, namespace):
        has_identity = ANNOTATION_GOOGLE_ACCOUNT in account.annotations
        if account.name == "default" and has_identity:
            return
        if account.file == pod.owner.file and has_identity:
            accounts.append(account.name)
    if namespace in context.platform.namespaces:
        accounts.append("that of the platform")
    if accounts:
        yield Hit(bucket, f"{_name_account(pod)} has no rights to buckets; {accounts[0]} has")


def _name_account(pod: Pod) -> str:
    return "the account default" if pod.account else "without serviceAccountName, default"


def _find_bucket(pod: Pod) -> Path:
    """Returns where a pod names a bucket; empty where it names none."""
    for path, volume in pod.volumes:
        if dig(volume, "csi", "driver") == FUSE_DRIVER:
            return (*path, "csi", "driver")
    for container in pod.containers:
        for path, text in container.list_texts():
            if _BUCKET.search(text[:4_000]):
                return path
    return ()


@rule(
    "HF852",
    "image-of-another-continent",
    Severity.WARNING,
    on=Pod,
    what="An image of the platform's project is in a registry of another continent.",
    why="Each new node pays for the transfer and waits for it, and Spot nodes are often new.",
    source=DOC_REGIONS,
    fix="copy the image into a repository of the cluster's region",
    base="container",
    bad="""\
image: europe-west4-docker.pkg.dev/acme-ai-platform/ml/trainer:1.4
""",
    good="""\
image: us-central1-docker.pkg.dev/acme-ai-platform/ml/trainer:1.4
""",
)
def check_regions(pod: Pod, context: Context) -> Iterator[Hit]:
    zones = context.platform.zones
    home = zones[0].partition("-")[0] if zones else ""
    home = _CONTINENTS.get(home, home)
    for container in pod.containers:
        match = _REGION.match(as_text(container.body.get("image"))[:300])
        # Images of other projects may have a mirror here.
        if match and match[2] != context.platform.project:
            continue
        continent = _CONTINENTS.get(match[1], match[1]) if match else home
        if home and continent != home:
            path = (*container.path, "image")
            yield Hit(path, f"comes from {continent}, and the cluster is in {home}")
